"""Run a float checkpoint at once: it becomes a folder of the cache, as `quantize` writes them.

In INT8, weights are rounded and packed for the native engine. This takes no data: the scale of each
activation is computed while the model runs, target `native-dynamic`. A checkpoint with quantizers
of its own has the ranges of activations, target `native`. In float, the weights are packed as they
are, or written as a graph for ONNX Runtime.
"""

from __future__ import annotations

import logging
from pathlib import Path

from qdqbert.common.cache import kept_folder
from qdqbert.common.choices import EngineName, Precision
from qdqbert.common.file_names import CONFIG, MODULES
from qdqbert.common.machine import release_memory
from qdqbert.encoders.checkpoint.folder import refuse_old_pickles
from qdqbert.encoders.checkpoint.gliner import GLINER_CONFIG
from qdqbert.encoders.task_kinds import TASK_KINDS, TaskName
from qdqbert.encoders.tensor_files import has_weights_below
from qdqbert.engines.cuda.device import Device
from qdqbert.engines.native.storage import FORMAT
from qdqbert.loading.float_checkpoint.closeness import keep_closeness, kept_closeness
from qdqbert.loading.float_checkpoint.source import (
    FloatCheckpoint,
    key_of,
    limits_pairs,
    read_checkpoint,
)
from qdqbert.runtime.artifact import Artifact, open_artifact, quantize_command

_LOGGER = logging.getLogger("qdqbert")

# Versions of the folders that are written for a checkpoint, by precision and engine.
_VERSIONS = {
    ("int8", "native"): f"7.{FORMAT}",
    ("float", "native"): f"float 6.{FORMAT}",
    ("float", "onnxruntime"): "float 5",
}


def is_float_checkpoint(folder: Path) -> bool:
    """Return whether a folder is a checkpoint with weights."""
    return has_settings(folder) and has_weights_below(folder)


def has_settings(folder: Path) -> bool:
    """Return whether a folder has the settings of a checkpoint."""
    return any((folder / name).is_file() for name in (CONFIG, MODULES, GLINER_CONFIG))


def weight_folders(folder: Path, name: str, *, task: TaskName | None = None) -> tuple[str, ...]:
    """Return the paths in a checkpoint of the folders with weights, by its settings.

    The folder may lack the weights. For the other arguments, see `read_checkpoint`.

    Raises:
        CheckpointError: The family is not supported, or a setting is missing or damaged.
        UserInputError: The task is not known.
    """
    checkpoint = read_checkpoint(folder, name=name, task=task)
    encoder = checkpoint.encoder_folder.relative_to(folder).as_posix()
    return (encoder, *(checkpoint.head.weight_folders if checkpoint.head else ()))


def open_float_checkpoint(
    folder: Path,
    *,
    name: str,
    precision: Precision = "int8",
    engine: EngineName = "native",
    device: Device | None = None,
    check: bool = True,
    task: TaskName | None = None,
    adapter: str | None = None,
) -> Artifact:
    """Return the folder of the cache that runs a checkpoint, which is made if it is not there.

    Args:
        folder: A folder that transformers or sentence-transformers saved.
        name: The user's name for it, for the log.
        precision: Whether it runs in INT8 or in float.
        engine: Engine that runs it: "native", or for float "onnxruntime".
        device: The GPU that runs it; `None` for the CPU.
        check: Whether to say in the log how close INT8 is to float.
        task: As in `read_checkpoint`.
        adapter: As in `read_checkpoint`.

    Raises:
        CheckpointError: A file is missing, damaged, or of a kind that is not supported.
        UserInputError: The family has no head for the checkpoint's task, or there is no such
            adapter.
    """
    refuse_old_pickles(folder, name)
    checkpoint = read_checkpoint(folder, name=name, task=task, adapter=adapter)

    def write(new: Path) -> None:
        # Code that reads families and writes models is needed once for a checkpoint.
        from qdqbert.loading.float_checkpoint.folder import write_folder

        write_folder(checkpoint, new, key=key, precision=precision, engine=engine)
        release_memory()

    settings = _VERSIONS[precision, engine]
    if precision == "int8":
        settings += f" {limits_pairs()}"
    key = key_of(checkpoint, settings)
    made = kept_folder(key, write)
    artifact = open_artifact(made)
    for guess in checkpoint.guesses(name, is_named=task is not None):
        _LOGGER.info("%s", guess)
    if TASK_KINDS[checkpoint.task].has_classes and (
        contradiction := checkpoint.config.contradicted_class()
    ):
        _LOGGER.warning("%s", contradiction)
    if lacking := artifact.lacking_tokens:
        _LOGGER.warning("The tokenizer of %s %s", name, lacking)
    if settings_of_class := artifact.contradictions:
        _LOGGER.warning(
            "tokenizer_config.json of %s has %s, and its tokenizer.json says something else. "
            "tokenizer.json is used, as by other runtimes; transformers can give other ids. If "
            "the model was trained with transformers, save its tokenizer again with "
            "`AutoTokenizer.from_pretrained(folder).save_pretrained(new_folder)`.",
            name,
            " and ".join(settings_of_class),
        )
    if check and precision == "int8":
        _log_closeness(checkpoint, artifact, name, device)
    return artifact


def _log_closeness(
    checkpoint: FloatCheckpoint, artifact: Artifact, name: str, device: Device | None
) -> None:
    found = kept_closeness(artifact.directory)
    if found is None:
        # It reads families, as `write_folder` does.
        from qdqbert.loading.float_checkpoint.comparison import measure_closeness

        found = measure_closeness(checkpoint, artifact.model_for("native"), device)
        keep_closeness(found, artifact.directory)
    if found.is_far:
        _LOGGER.warning(
            "INT8 of %s is far from float: %s. Its answers are not those of the model. Quantize it "
            "with `min_sqnr=20`, which calibrates and leaves layers in float if need be: %s. "
            "Or run it in float, which `qdqbert.load` and `qdqbert run` do with `target='float'`.",
            name,
            found,
            quantize_command(name, min_sqnr=20),
        )
    else:
        _LOGGER.info("INT8 of %s compared with float: %s.", name, found)
