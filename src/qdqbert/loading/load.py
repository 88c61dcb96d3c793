"""Open a folder that `quantize` wrote as a model that is ready to run."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from qdqbert.common.choices import EngineName
from qdqbert.common.errors import CheckpointError, GraphError, UserInputError, showing
from qdqbert.common.file_names import TOKENIZER
from qdqbert.common.files import check_input_place, digest_of
from qdqbert.common.machine import usable_cores
from qdqbert.common.objects import ModelLike, SavedModel, saved
from qdqbert.common.options.functions import taking
from qdqbert.data.tokenizing.tokenizer import Tokenizer
from qdqbert.encoders.checkpoint.gliner import LABELS_FOLDER
from qdqbert.encoders.model import Floats
from qdqbert.encoders.peft import ADAPTER_CONFIG
from qdqbert.encoders.task_kinds import TASK_KINDS, has_other_use, names_entailment
from qdqbert.engines.cuda.device import Device, open_on
from qdqbert.engines.registry import check_engine, count_ids, open_runner
from qdqbert.engines.runner import Runner
from qdqbert.evidence.checksums import CHECKSUMS, require_intact
from qdqbert.loading.device_choice import Place, choose_place, target_on
from qdqbert.loading.download import absolute_name, download_graph, download_settings, is_hub_name
from qdqbert.loading.engine_choice import choose_engine, warn_of_slow_kernel
from qdqbert.loading.float_checkpoint import (
    has_settings,
    is_float_checkpoint,
    open_float_checkpoint,
    weight_folders,
)
from qdqbert.loading.float_checkpoint.closeness import kept_closeness
from qdqbert.loading.options import LoadOptions
from qdqbert.runtime.artifact import QUANTIZATION, Artifact, is_artifact, open_artifact, weights_of
from qdqbert.runtime.batches import BatchPlan
from qdqbert.runtime.model import Loaded
from qdqbert.runtime.options import EngineOptions
from qdqbert.runtime.runners import Runners
from qdqbert.runtime.scheduler import Schedule, Scheduler
from qdqbert.tasks.label_vectors import EmbedLabels, KeptLabels
from qdqbert.tasks.registry import TASKS, model_for

_LOGGER = logging.getLogger("qdqbert")

_SCHEDULES: dict[str, Schedule] = {
    "onnxruntime": Schedule(plan=BatchPlan(tokens=384, multiple=1), window=2048, single_tokens=512),
    "openvino": Schedule(plan=BatchPlan(tokens=2048, multiple=8), window=2048, single_tokens=512),
    # Texts run without padding. Outputs of texts of similar length have little padding.
    "native": Schedule(
        plan=BatchPlan(tokens=1024, multiple=1, has_few_shapes=False),
        window=2048,
        single_tokens=512,
        is_invariant=True,
    ),
    # Many texts at a time, as a GPU computes thousands of tokens in the time of one.
    "cuda": Schedule(
        plan=BatchPlan(tokens=16384, multiple=1, has_few_shapes=False),
        window=8192,
        single_tokens=16384,
        served_tokens=16384,
        is_invariant=True,
    ),
}
Opened = tuple[Runners, Scheduler, Tokenizer]
"""A graph of a folder, the scheduler of its inputs, and its tokenizer."""

# Targets that are made of a float checkpoint when it is loaded.
_FLOAT_TARGETS = (None, "float", "native", "native-dynamic")


@taking(LoadOptions)
def load(path: ModelLike, options: LoadOptions) -> Any:  # noqa: D417  # `taking` adds them
    """Load a model, ready to run on texts in INT8.

    It is a folder that `quantize` wrote, or a float checkpoint. The weights of a checkpoint are
    rounded when it is first loaded, in seconds and without data, and kept in the cache of this
    package for the native engine. A checkpoint that stores quantizers has their ranges.

    The graph is loaded when it is first needed; with a `provider` other than the CPU at once. Texts
    are tokenized without transformers, and run without torch. A message of level INFO in the log
    "qdqbert" says which engine runs it, and why.

    Args:
        path: The folder, or its URL in object storage; or the name of a model of the hub,
            OWNER/NAME or NAME, of which only the needed files are downloaded, to the hub's cache.
            Or a float model in memory: `(model, tokenizer)` of transformers, a pipeline, a
            `SentenceTransformer` or a `CrossEncoder`.

    Returns:
        An object for the task of the folder: `Embedder` with `encode`, `TextClassifier`,
        `Reranker` with `predict` and `rank`, and so on.

    Raises:
        CheckpointError: There is no such folder, and no such model on the hub or no connection; the
            folder is neither, is incomplete, is of a family that is not supported, or stores
            quantizers that the native engine does not have; or the graph or the tokenizer differs
            from its checksum in SHA256SUMS.
        UserInputError: An argument has a wrong value, the folder has no graph for the engine or no
            such adapter, or the model has another task or generates text.
        MissingExtraError: The engine or the provider is not installed.

    Example:
        >>> model = qdqbert.load("./my-classifier")
        >>> model(["great food", "the room was cold"])
        [{'label': 'positive', 'score': 0.998}, {'label': 'negative', 'score': 0.981}]
    """
    with saved(path, "path") as source:
        if not isinstance(source, str | os.PathLike):
            raise UserInputError(
                "`path` must be a folder, a name on the hub, or a model with its tokenizer, got "
                f"{type(source).__name__}.",
                argument="path",
            )
        place = choose_place(options.device)
        artifact = open_folder(source, options, place.device)
    with showing(str(source), artifact.directory):
        config, kind = _kind_of(artifact, str(source), options.task)
        if options.task is None and has_other_use(artifact.task):
            _name_other_use(str(source), config["id2label"])
        engine, target, place, opened = _open(artifact, str(source), options, place)
        runners, scheduler, tokenizer = opened
        adapters: tuple[str, ...] = ()
        closeness = None if target == "float" else kept_closeness(artifact.directory)
        if not isinstance(source, SavedModel):
            adapters = artifact.adapters
        loaded = Loaded(
            name=str(source),
            artifact=artifact,
            engine=engine,
            target=target,
            runners=runners,
            scheduler=scheduler,
            tokenizer=tokenizer,
            config=config,
            reopen=_reopen(source, artifact, options),
            adapters=adapters,
            closeness={} if closeness is None else closeness.facts,
        )
        second = _labels_encoder(loaded, options, place)
        return kind(dataclasses.replace(loaded, labels_encoder=second))


def labels_folder(path: str | os.PathLike[str]) -> Path | None:
    """Return the folder that runs the second encoder of a checkpoint in INT8, if it has one."""
    return labels_in(open_folder(path, LoadOptions(check=False)).directory)


def labels_in(folder: Path) -> Path | None:
    """Return the part of a folder with graphs that has its encoder of labels, if there is one."""
    labels = folder / LABELS_FOLDER
    return labels if is_artifact(labels) else None


def label_vectors(folder: Path | None) -> EmbedLabels | None:
    """Return a function that makes vectors of labels with the encoder in a folder."""

    def embed(labels: Sequence[str]) -> Floats:
        with load(str(folder)) as model:
            found: Floats = model.encode(list(labels))
        return found

    return None if folder is None else KeptLabels(embed)


def _labels_encoder(loaded: Loaded, options: LoadOptions, place: Place) -> Loaded | None:
    """Open the second encoder in the folder of a model, if there is one."""
    folder = labels_in(loaded.artifact.directory)
    if folder is None:
        return None
    artifact = open_artifact(folder)
    # `quantize` writes it for one target, which need not be that of the graph next to it.
    target = loaded.target if loaded.target in artifact.targets else next(iter(artifact.targets))
    engine = loaded.engine if loaded.target == target else artifact.targets[target]["engines"][0]
    name = f"The encoder of the labels of {loaded.name}"
    runners, scheduler, tokenizer = _open_on(place, artifact, name, target, options) or open_graph(
        artifact, engine, target, options
    )
    return dataclasses.replace(
        loaded,
        artifact=artifact,
        runners=runners,
        scheduler=scheduler,
        tokenizer=tokenizer,
        config=artifact.read_config(),
    )


def _kind_of(
    artifact: Artifact, name: str, task: str | None
) -> tuple[Mapping[str, Any], Callable[[Loaded], Any]]:
    """Return the config of a model, and the class for its task, which must be the one wanted."""
    config = artifact.read_config()
    found, kind = model_for(artifact.task, config, wanted=task)
    if kind is None:
        known = [name for name, each in TASKS.items() if each.model is not None]
        raise UserInputError(
            f"{name!r} is a model for {found!r}, which `load` does not run. It runs: "
            f"{', '.join(known)}."
        )
    if task not in (None, found):
        raise UserInputError(
            f"`task={task!r}`: {name!r} is a model for {found!r}. Pass `task={found!r}`, or "
            "the path of another model.",
            argument="task",
        )
    return config, kind


def _name_other_use(name: str, labels: Mapping[int, str]) -> None:
    """Say so if a classifier can choose among labels of a call."""
    if names_entailment(labels):
        _LOGGER.info(
            "%s is a classifier of entailment, and can choose among labels that a call names: pass "
            "the task zero-shot-classification to `load`, or `labels` to `run`.",
            name,
        )


def _open(
    artifact: Artifact, name: str, options: LoadOptions, place: Place
) -> tuple[EngineName, str, Place, Opened]:
    """Open the graph of a folder that runs, which is downloaded.

    Returns:
        Its engine, its target, the GPU or the CPU that runs it, and what was opened.
    """
    wanted = "float" if options.is_float else options.target
    chosen = target_on(place, artifact, name, wanted)
    if chosen is not None:
        _download(artifact, name, "native", chosen)
        if (opened := _open_on(place, artifact, name, chosen, options)) is not None:
            _LOGGER.info("Running %s (%s) on %s.", name, chosen, place.device)
            return "native", chosen, place, opened
    engine, reason = choose_engine(artifact, options, wanted)
    target = artifact.target_for(engine, wanted)
    _download(artifact, name, engine, target)
    _LOGGER.info("Running %s (%s) on %s%s.", name, target, engine, reason and f": {reason}")
    if engine == "native" and options.kernel is None:
        warn_of_slow_kernel(artifact)
    return engine, target, Place(), open_graph(artifact, engine, target, options)


def _download(artifact: Artifact, name: str, engine: EngineName, target: str) -> None:
    graph = artifact.model_for(engine, target)
    if not graph.is_file():
        download_graph(name, artifact, graph)


def _open_on(
    place: Place, artifact: Artifact, name: str, target: str, options: LoadOptions
) -> Opened | None:
    """Open a graph of the native engine on a GPU; `None` if it runs on the CPU, and say why."""
    if place.device is None:
        return None
    try:
        return open_graph(artifact, "native", target, options, place.device)
    except GraphError as error:
        place.leave(name, str(error))
    except UserInputError as error:
        # With "auto", a GPU may be full.
        if place.is_needed or error.argument != "device":
            raise
        place.leave(name, str(error))
    return None


def _reopen(
    source: str | os.PathLike[str], artifact: Artifact, options: LoadOptions
) -> Callable[..., Any]:
    """Return what loads a model again."""
    given: dict[str, Any] = {**options.given(), "check": False}
    place: str | SavedModel
    if isinstance(source, SavedModel):
        # It is gone, and what was made of it is in the cache.
        place = SavedModel(folder=str(artifact.directory), name=str(source))
        given["adapter"] = None
    else:
        # A pickle may be read in another folder.
        place = absolute_name(source)
    return functools.partial(_load_again, _content(artifact), place, given)


def _load_again(content: str, place: Any, options: Mapping[str, Any], **changes: Any) -> Any:
    """Load a model that was pickled.

    Args:
        content: Changes with the model. Caches of calls, as those of `datasets` and joblib, compare
            pickles, in which the path alone would stay the same.
        place: The path, or the `SavedModel` of a model in memory.
        options: Options of `load`.
        changes: Other values of them.
    """
    del content
    return load(place, **{**options, **changes})


def _content(artifact: Artifact) -> str:
    """Return what changes with the files of a folder, and is the same for copies of it."""
    sums = artifact.directory / CHECKSUMS
    # Without checksums, the folder is one of the cache, and this file has the key of the weights.
    return digest_of(sums if sums.is_file() else artifact.directory / QUANTIZATION)


def open_graph(
    artifact: Artifact,
    engine: EngineName,
    target: str,
    options: EngineOptions,
    device: Device | None = None,
) -> Opened:
    """Return a graph of a folder, the scheduler of its inputs, and its tokenizer.

    `device` is the GPU that runs it; `None` for the CPU.

    Raises:
        CheckpointError: A file is not what `quantize` wrote, or they do not fit together.
        GraphError: The kernels of GPUs do not compute a part of the model.
        MissingExtraError: The provider is not installed.
        UserInputError: The GPU cannot be used, or has too little free memory.
    """
    graph = artifact.model_for(engine, target)
    _check_files(artifact, graph)
    # Scores of a vocabulary for all tokens of a batch of a GPU would be gigabytes.
    kind = TASK_KINDS[artifact.task]
    is_wide = kind.predicts_words and kind.of_tokens
    schedule = _SCHEDULES[engine if device is None or is_wide else "cuda"]
    if options.batch_invariant and not schedule.is_invariant:
        alone = BatchPlan(tokens=1, multiple=1)
        # The graph for many inputs runs single ones, too: another number of threads may round
        # differently.
        schedule = dataclasses.replace(schedule, plan=alone, single_tokens=0)
    runners = _runners(artifact, engine, target, options, device)
    if device is not None or options.provider not in (None, "cpu"):
        # A provider can be installed and not start, and a GPU can be full.
        _ = runners.many
    tokenizer = Tokenizer.from_folder(artifact.directory, max_length=artifact.max_length)
    _check_ids(tokenizer, engine, graph)
    head = artifact.checkpoint.get("sentence_head")
    scheduler = Scheduler(
        runners,
        schedule,
        limit=artifact.max_length,
        padding=tokenizer.padding,
        takes_empty=isinstance(head, Mapping) and head.get("is_static") is True,
    )
    return runners, scheduler, tokenizer


def open_folder(
    path: str | os.PathLike[str], options: LoadOptions, device: Device | None = None
) -> Artifact:
    """Return the folder that runs a model: of `quantize`, or of the cache for a float checkpoint.

    From the hub, settings and the weights of checkpoints are downloaded. On a GPU, `device`, INT8
    runs there when it is compared with float.

    Raises:
        CheckpointError: As in `load`.
        UserInputError: The family has no head for the checkpoint's task, there is no such adapter,
            or a float checkpoint does not run on the engine or as the target.
    """
    check_input_place(path)
    is_on_hub = is_hub_name(path)
    folder = download_settings(str(path)) if is_on_hub else Path(path)
    if is_artifact(folder):
        if options.adapter is not None:
            raise UserInputError(
                f"`adapter={options.adapter!r}` applies to float checkpoints, and {str(path)!r} is "
                "a quantized model, whose weights are fixed. Leave it out.",
                argument="adapter",
            )
        with showing(str(path), folder):
            return open_artifact(folder, requires_graphs=not is_on_hub)
    if is_on_hub and has_settings(folder):
        from qdqbert.encoders.checkpoint.hub import download_weights

        # It refuses what cannot be run before weights are downloaded.
        download_weights(
            str(path), weight_folders(folder, str(path), task=options.task), commit=folder.name
        )
    if is_float_checkpoint(folder):
        engine = _engine_of_float(str(path), options, on_gpu=device is not None)
        with showing(str(path), folder):
            return open_float_checkpoint(
                folder,
                name=str(path),
                precision="float" if options.is_float else "int8",
                engine=engine,
                device=device,
                check=options.check,
                task=options.task,
                adapter=options.adapter,
            )
    if isinstance(path, SavedModel) and not folder.exists():
        raise CheckpointError(
            f"{path} was pickled, and is no longer in the cache of the machine that made it. Save "
            "the model with `save_pretrained`, with its tokenizer, and load that folder."
        )
    if not folder.exists():
        from qdqbert.encoders.checkpoint.hub import no_folder

        raise no_folder(str(path))
    if folder.is_file() and folder.suffix != ".onnx":
        from qdqbert.encoders.checkpoint.folder import is_a_file

        raise is_a_file(folder)
    if (folder / ADAPTER_CONFIG).is_file():
        from qdqbert.encoders.checkpoint.folder import only_an_adapter

        raise only_an_adapter(str(path))
    if is_on_hub or (folder.is_dir() and not has_settings(folder)):
        place = "The hub's model" if is_on_hub else "Folder"
        raise CheckpointError(
            f"{place} {str(path)!r} is neither a quantized model nor a float checkpoint: it has "
            f"neither {QUANTIZATION} nor config.json with weights."
        )
    if folder.is_dir():
        from qdqbert.encoders.checkpoint.folder import without_weights

        raise without_weights(folder)
    return open_artifact(folder)


def _engine_of_float(name: str, options: LoadOptions, *, on_gpu: bool) -> EngineName:
    """Return the engine that runs a float checkpoint.

    Options that it is not made for are refused, before it is made, and so is an engine that is not
    installed.
    """
    engine: EngineName = options.engine or ("onnxruntime" if options.provider else "native")
    has_provider = options.is_float and engine == "onnxruntime"
    allowed: Mapping[str, tuple[str | None, ...]] = {
        "engine": (None, "native", *(["onnxruntime"] if options.is_float else [])),
        "target": _FLOAT_TARGETS,
        "provider": (options.provider,) if has_provider else (None,),
    }
    given = {each: getattr(options, each) for each in allowed}
    argument = next((each for each, values in allowed.items() if given[each] not in values), None)
    if argument is not None:
        value = given[argument]
        raise UserInputError(
            f"`{argument}={value!r}`: {name!r} is a float checkpoint, which runs on engine "
            "'native', and as target 'float' on 'onnxruntime', too. To run it otherwise, quantize "
            "it.",
            argument=argument,
        )
    if not on_gpu:
        check_engine(engine, provider=options.provider, kernel=options.kernel)
    return engine


def _runners(
    artifact: Artifact,
    engine: EngineName,
    target: str,
    options: EngineOptions,
    device: Device | None,
) -> Runners:
    path = artifact.model_for(engine, target)
    names = (*artifact.input_names, *artifact.output_names)
    if device is not None:
        # A GPU runs one batch after another.
        return Runners(lambda *_: open_on(device, path), threads=1, streams=1)

    def open_graph(threads: int, streams: int) -> Runner:
        return open_runner(
            engine,
            path,
            threads=threads,
            streams=streams,
            names=names,
            provider=options.provider,
            kernel=options.kernel,
        )

    cores = options.threads or usable_cores()
    # A GPU runs one batch after another.
    streams = cores if options.provider in (None, "cpu") else 1
    return Runners(open_graph, threads=cores, streams=streams)


def _check_ids(tokenizer: Tokenizer, engine: EngineName, model: Path) -> None:
    """Refuse a tokenizer that gives ids which the graph does not have."""
    count = count_ids(engine, model)
    if count is not None and tokenizer.largest_id >= count:
        raise CheckpointError(
            f"{str(tokenizer.path)!r} has the id {tokenizer.largest_id}, and the model has "
            f"embeddings of ids 0 to {count - 1}. It is not the tokenizer of this model."
        )


def _check_files(artifact: Artifact, model: Path) -> None:
    """Compare the graph and the tokenizer with their checksums. Settings may be changed by hand."""
    files = [model, artifact.directory / TOKENIZER]
    if weights_of(model).exists():
        files.append(weights_of(model))
    names = [each.relative_to(artifact.directory).as_posix() for each in files if each.exists()]
    is_intact = require_intact(artifact.directory, names)
    # Folders made of a float checkpoint have no calibration, and no checksums either.
    if not is_intact and artifact.calibration:
        _LOGGER.info("%s has no %s, so its files are not checked.", artifact.directory, CHECKSUMS)
