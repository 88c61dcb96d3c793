"""Load what is evaluated: a checkpoint, a quantized folder, or an ONNX model."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qdqbert.common.choices import EngineName, PoolingMode, Precision, ProviderName, TargetName
from qdqbert.common.errors import UserInputError, naming
from qdqbert.common.file_names import CONFIG, TOKENIZER, TOKENIZER_CONFIG
from qdqbert.common.files import name_of
from qdqbert.common.options.onnx import is_onnx_file
from qdqbert.common.progress import Silent
from qdqbert.data.tokenizing.tokenizer import Tokenizer
from qdqbert.encoders.checkpoint.folder import check_name
from qdqbert.encoders.checkpoint.gliclass import is_gliclass
from qdqbert.encoders.checkpoint.own_layers import package_of, task_of_config
from qdqbert.encoders.checkpoint.sentence_files import SentenceFiles
from qdqbert.encoders.checkpoint.text_heads import read_span_head
from qdqbert.encoders.checkpoint.tokenizer import runtime_tokenizer
from qdqbert.encoders.checkpoint.tokenizer_and_config import choose_task, load_tokenizer_and_config
from qdqbert.encoders.families import LoadAloneError
from qdqbert.encoders.task_kinds import LABELS, TaskName, check_classes, head_of
from qdqbert.encoders.tensor_files import files_of
from qdqbert.engines.registry import check_engine
from qdqbert.engines.runner import Runner
from qdqbert.graphs.imported.graph_runner import NO_NAMES, GivenNames, open_graph_file
from qdqbert.loading.engine_choice import choose_engine
from qdqbert.loading.load import label_vectors, labels_in, open_folder, open_graph
from qdqbert.loading.options import LoadOptions
from qdqbert.pipeline.predictions import TorchRunner
from qdqbert.pipeline.settings import input_length
from qdqbert.pipeline.source import ModelPath, open_source
from qdqbert.runtime.artifact import (
    Artifact,
    is_artifact,
    open_artifact,
    read_training,
    rows_of,
    size_bytes,
)
from qdqbert.runtime.options import EngineOptions
from qdqbert.runtime.scheduler import Scheduler
from qdqbert.tasks.own_layers import task_of_folder
from qdqbert.tasks.registry import TASKS, task_for
from qdqbert.tasks.task import Task
from qdqbert.training.body import GraphBody
from qdqbert.training.models.quantized import load_model
from qdqbert.verbs.evaluate.options import EvaluateOptions

_NOTICES = {
    "float": (
        "It runs in float on the native engine: checkpoints of this type are not read in PyTorch."
    ),
    "native-dynamic": (
        "The model is the float checkpoint in INT8, as `qdqbert.load` runs it: its weights were "
        "rounded without data."
    ),
    "native": (
        "The model is the checkpoint in INT8, as `qdqbert.load` runs it: with the ranges that it "
        "stores."
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Subject:
    """A loaded model.

    Attributes:
        name: Name of its folder or file, or its hub id.
        engine: Name of the engine that runs it; `pytorch` for a checkpoint in float.
        target: Target that its graph was made for; `None` for PyTorch or an .onnx file.
        is_proxy: Whether the engine is a proxy for the runtime of the target.
        runner: The model, ready to run. A folder runs in the batches of `load`.
        id2label: Names of its classes by index.
        max_length: Longest input in tokens.
        stored_task_options: Settings of the task that it was trained or quantized with, by name.
        calibrated_on: Fingerprints of the examples that its ranges were taken from.
        trained_on: Fingerprints of the examples that it was trained on, as far as it is known.
        size_bytes: Size of its file; for a checkpoint, of its weights in float32.
        matched_names: transformers' names of the inputs and outputs that names of the call matched.
    """

    name: str
    task: Task
    engine: str
    target: str | None = None
    is_proxy: bool = False
    runner: Runner | Scheduler
    tokenizer: Tokenizer
    input_names: Sequence[str]
    id2label: Mapping[int, str]
    max_length: int
    stored_task_options: Mapping[str, Any]
    calibrated_on: frozenset[str] = frozenset()
    trained_on: frozenset[str] = frozenset()
    size_bytes: int
    notices: tuple[str, ...] = ()
    matched_names: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """How a model is to be loaded; see `EvaluateOptions`.

    Attributes:
        parameter: Name of the parameter that gave the model: `model` or `reference`.
        usual_length: Longest input in tokens without `max_length`; for a reference, the model's.
            `None` for the length that was stored with the model.
        tokenizer: Folder or hub id of the tokenizer of an .onnx file.
        names: Names of inputs and outputs of .onnx files.
    """

    parameter: str
    task: TaskName | str | None
    max_length: int | None
    usual_length: int | None = None
    engine: EngineName | None = None
    provider: ProviderName | None = None
    target: TargetName | None = None
    pooling: PoolingMode | None = None
    adapter: str | None = None
    tokenizer: str | None = None
    names: GivenNames = NO_NAMES

    def input_length(self, usual: int | None, limit: int) -> tuple[int, list[str]]:
        """Return the longest input in tokens, and notices; see `settings.input_length`."""
        return input_length(self.max_length, self.usual_length or usual, limit)


def request_of(options: EvaluateOptions) -> Request:
    """Return how the model is to be loaded: an .onnx file may share the reference's tokenizer."""
    tokenizer, reference = options.onnx.tokenizer_path, options.reference
    is_alone = is_onnx_file(options.model) and not _has_tokenizer(Path(options.model).parent)
    if tokenizer is None and is_alone and reference is not None and not is_onnx_file(reference):
        tokenizer = os.fspath(reference)
        with naming("reference"):
            check_name(tokenizer)
    return Request(
        parameter="model",
        task=options.task,
        max_length=options.max_length,
        engine=options.engine,
        provider=options.provider,
        target=options.target,
        pooling=options.task_options.pooling,
        adapter=options.task_options.adapter,
        tokenizer=tokenizer,
        names=names_of(options),
    )


def names_of(options: EvaluateOptions) -> GivenNames:
    """Return the names that a call gives for inputs and outputs of its .onnx files."""
    return GivenNames(
        inputs=options.onnx.input_names or {},
        outputs=options.onnx.output_names or {},
        are_shared=len(options.onnx_files) > 1,
    )


def _has_tokenizer(folder: Path) -> bool:
    """Tell whether a folder has a file of a tokenizer."""
    names = (TOKENIZER, TOKENIZER_CONFIG, "vocab.txt", "sentencepiece.bpe.model")
    return any((folder / name).is_file() for name in names)


def reference_request(options: EvaluateOptions, request: Request, subject: Subject) -> Request:
    """Return how the reference is to be loaded: for the task and the lengths of the model."""
    model_folder = None if is_onnx_file(options.model) else os.fspath(options.model)
    return Request(
        parameter="reference",
        task=subject.task.name,
        # The notice about `max_length` was already given for the model.
        max_length=None,
        usual_length=subject.max_length,
        pooling=request.pooling,
        adapter=request.adapter,
        tokenizer=options.onnx.tokenizer_path or model_folder,
        names=request.names,
    )


def load_subject(name: str, request: Request) -> Subject:
    """Load a quantized folder, an .onnx file or a checkpoint.

    Raises:
        UserInputError: It cannot be used, or an option does not apply to it.
    """
    with naming(request.parameter):
        if is_artifact(Path(name)):
            return _load_artifact(open_artifact(Path(name)), name, request)
        if is_onnx_file(name):
            return _load_onnx(Path(name), request)
        if request.engine == "native":
            return _load_on_engine(name, request)
        try:
            return _load_checkpoint(name, request)
        except LoadAloneError:
            if request.parameter != "reference":
                raise
            if request.pooling is not None:
                raise UserInputError(
                    f"`pooling={request.pooling!r}` applies to checkpoints in PyTorch only, and "
                    f"`reference={name!r}` runs on the native engine. Leave `pooling` out.",
                    argument="pooling",
                ) from None
            return _load_on_engine(name, request, precision="float")


def _load_on_engine(name: str, request: Request, precision: Precision = "int8") -> Subject:
    """Load a float checkpoint on the native engine, in INT8 or another precision."""
    # Refuses targets that a float checkpoint is not made for.
    artifact = open_folder(
        name,
        LoadOptions(
            engine="native",
            target=request.target,
            precision=precision,
            adapter=request.adapter,
            check=False,
        ),
    )
    if artifact.calibration_fingerprints or not artifact.model_for("native").is_file():
        raise UserInputError(
            f"`{request.parameter}={name!r}` is a quantized model of the hub. Download it with "
            "`hf download`, and pass its folder.",
            argument=request.parameter,
        )
    trained = read_training(Path(name))
    usual = trained.get("max_length") or TASKS[request.task or artifact.task].max_length
    subject = _load_artifact(
        artifact, name, dataclasses.replace(request, usual_length=request.usual_length or usual)
    )
    return dataclasses.replace(
        subject,
        stored_task_options=trained.get("task_options", {}),
        calibrated_on=rows_of(trained, "calibration"),
        trained_on=rows_of(trained, "training"),
        notices=(_NOTICES[artifact.target_for("native")], *subject.notices),
    )


def _shown_name(checkpoint: str) -> str:
    return name_of(checkpoint) if Path(checkpoint).is_dir() else checkpoint


def _load_checkpoint(name: str, request: Request) -> Subject:
    # A missing folder is reported by `load_model`, before options that do not apply to it.
    files = SentenceFiles.of_folder(Path(name))
    has_own_layers = read_span_head(files.read) is not None or is_gliclass(
        files.fields(CONFIG).values
    )
    checkpoint = (
        None
        if has_own_layers
        else load_model(name, task=request.task, pooling=request.pooling, adapter=request.adapter)
    )
    for option in ("provider", "engine", "target"):
        value = getattr(request, option)
        if value is not None:
            raise UserInputError(
                f"`{option}={value!r}` applies to quantized folders and .onnx files, and "
                f"`{request.parameter}={name!r}` is a checkpoint, which runs in PyTorch, or in "
                "INT8 with `engine='native'`.",
                argument=option,
            )
    if checkpoint is None:
        return _load_own_layers(name, request)
    task = task_for(checkpoint.task, checkpoint.config)
    trained = read_training(Path(name))
    length, notices = request.input_length(
        trained.get("max_length") or task.max_length, checkpoint.max_length
    )
    return Subject(
        name=_shown_name(name),
        task=task,
        engine="pytorch",
        runner=TorchRunner(GraphBody.of(checkpoint), checkpoint.input_names),
        tokenizer=runtime_tokenizer(checkpoint.tokenizer, checkpoint.pair_template),
        input_names=checkpoint.input_names,
        id2label=checkpoint.config.id2label,
        max_length=length,
        stored_task_options=trained.get("task_options", {}),
        calibrated_on=rows_of(trained, "calibration"),
        trained_on=rows_of(trained, "training"),
        size_bytes=sum(each.nbytes for each in checkpoint.model.parameters()),
        notices=(*checkpoint.notices, *notices),
    )


def _other_task(wanted: str | None, name: str, task: str) -> UserInputError:
    return UserInputError(
        f"`task={wanted!r}` does not fit {name!r}, which is a model for {task!r}.", argument="task"
    )


def _load_own_layers(name: str, request: Request) -> Subject:
    """Open a checkpoint in PyTorch whose encoder transformers does not find, as gliner's."""
    # It refuses other tasks itself, by another name.
    task = request.task if request.task == LABELS else None
    source = open_source(ModelPath(path=name, shown=name, task=task), Path(name), Silent())
    if request.task not in (None, source.task.name):
        raise _other_task(request.task, name, source.task.name)
    length, notices = request.input_length(None, source.max_length)
    return Subject(
        name=_shown_name(name),
        task=source.task,
        engine="pytorch",
        runner=source.runner(),
        tokenizer=runtime_tokenizer(source.tokenizer),
        input_names=source.input_names,
        id2label=source.config.id2label,
        max_length=length,
        stored_task_options={},
        size_bytes=sum(each.stat().st_size for each in files_of(Path(name))[1]),
        notices=(*source.notices, *notices),
    )


def _load_onnx(path: Path, request: Request) -> Subject:
    if request.target is not None:
        raise UserInputError(
            f"`target={request.target!r}` applies to quantized folders, and "
            f"`{request.parameter}={str(path)!r}` is one graph.",
            argument="target",
        )
    folder = _folder_of(path.absolute())
    if folder is not None:
        # A file without its folder does not contain the fingerprints of its calibration examples.
        raise UserInputError(
            f"`{request.parameter}={str(path)!r}` belongs to a quantized folder. Evaluate the "
            f"folder {folder.name!r}, with `target` if it has several graphs.",
            argument=request.parameter,
        )
    task = choose_task(path, task=request.task, tokenizer=request.tokenizer)
    engine: EngineName = request.engine or "onnxruntime"
    check_engine(engine)
    runner = open_graph_file(
        path, task=task, engine=engine, provider=request.provider, names=request.names
    )
    found = load_tokenizer_and_config(
        path, task=task, tokenizer=request.tokenizer, graph=runner.facts()
    )
    length, notices = request.input_length(TASKS[task].max_length, found.max_length)
    return Subject(
        name=path.name,
        task=task_for(task, found.config),
        engine=engine,
        runner=runner,
        tokenizer=runtime_tokenizer(found.tokenizer, found.pair_template),
        input_names=runner.input_names,
        id2label=found.config.id2label,
        max_length=length,
        stored_task_options={},
        size_bytes=runner.copy.size_bytes,
        notices=(*found.notices, *notices),
        matched_names=runner.copy.matched_names,
    )


def _folder_of(graph: Path) -> Path | None:
    """Return the quantized folder that a graph belongs to."""
    for folder in graph.parents[:2]:
        if is_artifact(folder):
            entries = open_artifact(folder).targets.values()
            if any(folder / entry["model"] == graph for entry in entries):
                return folder
    return None


def _load_artifact(artifact: Artifact, name: str, request: Request) -> Subject:
    config = artifact.load_config()
    content = artifact.read_config()
    own = task_of_config(artifact.task, content)
    task = request.task or own
    # Rerankers and classifiers read the same output.
    is_joint = package_of(content) is not None
    has_other = task not in (own, LABELS) if is_joint else head_of(task) != head_of(own)
    if has_other:
        raise _other_task(request.task, name, own)
    check_classes(task, config.id2label, where=str(artifact.directory / CONFIG))
    options = EngineOptions(engine=request.engine, provider=request.provider)
    engine, _ = choose_engine(artifact, options, request.target)
    target = artifact.target_for(engine, request.target)
    length, notices = request.input_length(None, artifact.max_length)
    _, scheduler, tokenizer = open_graph(artifact, engine, target, options)
    embed = label_vectors(labels_in(artifact.directory))
    return Subject(
        name=_shown_name(name),
        task=task_of_folder(task_for(task, config), artifact.directory, embed),
        engine=engine,
        target=target,
        is_proxy=artifact.targets[target]["is_proxy"],
        runner=scheduler,
        tokenizer=tokenizer,
        input_names=artifact.input_names,
        id2label=config.id2label,
        max_length=length,
        stored_task_options=dataclasses.asdict(artifact.task_options),
        calibrated_on=artifact.calibration_fingerprints,
        trained_on=artifact.trained_fingerprints,
        size_bytes=size_bytes(artifact.model_for(engine, target)),
        notices=tuple(notices),
    )
