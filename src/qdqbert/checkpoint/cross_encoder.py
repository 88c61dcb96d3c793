"""Cross-encoders of sentence-transformers: their files, and their activation function.

Version 5.4 and later write modules.json and config_sentence_transformers.json, which names the
activation function. Versions 4 and 5 named it in config.json, in `sentence_transformers`, and
versions before in `sbert_ce_default_activation_function`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from qdqbert.checkpoint.sentence import (
    MODEL_SETTINGS,
    SETTINGS,
    Layout,
    ModelSettings,
    ReadFile,
    is_cross_encoder,
    model_settings,
    read_layout_fields,
    read_modules,
    write_files,
)
from qdqbert.checkpoint.text_heads import TextHead, read_text_head
from qdqbert.errors import CheckpointError
from qdqbert.task_kinds import TaskName, head_of, task_of_architecture

Activation = Literal["sigmoid", "softmax", "none"]
"""A function that turns logits into scores."""

# Names of the classes of torch that files name by their path: torch.nn.modules.linear.Identity.
_ACTIVATIONS: Mapping[str, Activation] = {
    "Sigmoid": "sigmoid",
    "Softmax": "softmax",
    "Identity": "none",
}
_OLD_KEY = "sbert_ce_default_activation_function"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CrossEncoderFiles(Layout):
    """The files of a cross-encoder next to its model."""


def read_layout(read: ReadFile) -> TextHead | CrossEncoderFiles | None:
    """Read sentence-transformers' files of a checkpoint; `None` without such files.

    A cross-encoder is known by its config_sentence_transformers.json, also without modules.json.

    Raises:
        CheckpointError: The files describe something that cannot be quantized.
    """
    if not is_cross_encoder(read):
        return read_text_head(read)
    modules = read_modules(read) or [("Transformer", "")]
    kinds = [kind for kind, _ in modules]
    if kinds != ["Transformer"]:
        raise CheckpointError(
            f"modules.json lists {', '.join(kinds)}: the scores of this cross-encoder are computed "
            "by modules after the encoder, which are not supported. Only cross-encoders whose one "
            "module is Transformer are, with the head in the model."
        )
    return CrossEncoderFiles(**read_layout_fields(read, modules[0][1]))


def used_files(
    layout: object, config: Mapping[str, Any], task: TaskName
) -> tuple[CrossEncoderFiles | None, tuple[str, ...]]:
    """Return the files of a cross-encoder if its head is used, and notices about them.

    Raises:
        CheckpointError: Its activation function is not supported.
    """
    if head_of(task) != "text-classification":
        return None, ()
    files = layout if isinstance(layout, CrossEncoderFiles) else None
    if _outputs(config) == 1:
        activation_of(config, model_settings(files.files.get(MODEL_SETTINGS) if files else None), 1)
    if files is None or not files.default_prompt:
        return files, ()
    return files, (
        f"sentence-transformers puts the prompt {files.default_prompt!r} before the first text of "
        "each pair. Data are used as they are: add it to them.",
    )


def write_cross_encoder(files: CrossEncoderFiles, folder: Path) -> None:
    """Make a folder with a cross-encoder or its graph readable by sentence-transformers."""
    # Without a task, sentence-transformers would load an encoder.
    defaults = {SETTINGS: json.dumps({"transformer_task": "sequence-classification"}) + "\n"}
    write_files(folder, [("Transformer", "")], {**defaults, **files.files})


def task_of_files(
    architectures: Sequence[str], config: Mapping[str, Any], files: object
) -> TaskName | None:
    """Return the task of a checkpoint; `None` if its architecture is not known.

    Args:
        architectures: Names of transformers' classes in the config. The first one counts.
        config: Content of config.json.
        files: The files of sentence-transformers, if there are some.
    """
    # Embedders were often trained from masked language models, which their configs still name.
    if isinstance(files, TextHead):
        return files.task
    task = task_of_architecture(architectures[0]) if architectures else None
    if task == "text-classification" and is_reranker(config, files):
        return "reranking"
    return task


def is_reranker(config: Mapping[str, Any], files: object) -> bool:
    """Return whether a text classifier is known to score pairs with one number."""
    is_known = isinstance(files, CrossEncoderFiles) or any(
        config.get(key) is not None for key in ("sentence_transformers", _OLD_KEY)
    )
    return is_known and _outputs(config) == 1


def _outputs(config: Mapping[str, Any]) -> int:
    # Without names of classes there are two, as in transformers.
    return len(config.get("id2label") or "12")


def activation_of(config: Mapping[str, Any], settings: ModelSettings, outputs: int) -> Activation:
    """Return the activation function from logits to scores that sentence-transformers chooses.

    Raises:
        CheckpointError: It is a function that is not supported.
    """
    older = config.get("sentence_transformers")
    if isinstance(older, Mapping) and "activation_fn" in older:
        named = older["activation_fn"]
    else:
        named = config.get(_OLD_KEY)
    for path in (settings.activation, named):
        # sentence-transformers runs no other code, and takes the default.
        if not isinstance(path, str) or not path.startswith("torch."):
            continue
        name = path.rpartition(".")[2]
        if name not in _ACTIVATIONS:
            raise CheckpointError(
                f"The activation function {path} of this cross-encoder is not supported; expected "
                f"{', '.join(_ACTIVATIONS)} of torch. With Identity in {MODEL_SETTINGS} of a copy, "
                "scores are logits."
            )
        return _ACTIVATIONS[name]
    return "sigmoid" if outputs == 1 else "none"
