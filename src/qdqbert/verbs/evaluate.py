"""`qdqbert evaluate`: a task's metric of a checkpoint, a quantized folder or a graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qdqbert.artifact import is_artifact, open_artifact, read_training, write_json
from qdqbert.choices import EngineName
from qdqbert.engines.runner import Runner, check_engine, open_runner
from qdqbert.errors import UserInputError
from qdqbert.evidence.reports import EvaluateReport
from qdqbert.graph.export import GraphBody
from qdqbert.graph.imported.graph_runner import open_graph_file
from qdqbert.graph.imported.input_output_names import INPUTS
from qdqbert.graph.imported.tokenizer_and_config import choose_task, load_tokenizer_and_config
from qdqbert.models.loading import load_model
from qdqbert.progress import Progress, Silent
from qdqbert.targets import target_named
from qdqbert.tasks import TASKS
from qdqbert.tasks.data import Columns, fingerprint
from qdqbert.tasks.task import Metric, Predictions, Task, TaskOptions
from qdqbert.verbs.graph_files import is_graph_file
from qdqbert.verbs.inference import (
    EncodedExamples,
    TorchRunner,
    encode_examples,
    fidelity_of,
    predict,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Subject:
    """A loaded model, and what its inputs are.

    Attributes:
        task: What it is for.
        engine: What runs it.
        target: What its graph was made for; `None` for a checkpoint or a file.
        runner: It, loaded.
        tokenizer: Its tokenizer.
        input_names: Inputs of the model.
        id2label: Its classes.
        max_length: Longest row in tokens.
        calibrated_on: Fingerprints of the examples that its ranges were taken from.
        notices: What the user should know.
        named: transformers' names of inputs that were found by what the user said.
    """

    task: Task
    engine: str
    target: str | None
    runner: Runner
    tokenizer: Any
    input_names: Sequence[str]
    id2label: dict[int, str]
    max_length: int
    calibrated_on: frozenset[str]
    notices: tuple[str, ...] = ()
    named: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Wanted:
    """How a model is to be loaded; see the arguments of `evaluate`."""

    task: str | None
    max_length: int | None
    engine: EngineName | None = None
    provider: str | None = None
    target: str | None = None
    tokenizer: str | None = None
    input_names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    others: bool = False


def evaluate(
    model: str | Path,
    data: str | Path,
    *,
    task: str | None = None,
    engine: EngineName | None = None,
    provider: str | None = None,
    target: str | None = None,
    reference: str | Path | None = None,
    tokenizer: str | None = None,
    input_names: Mapping[str, str] | None = None,
    columns: Columns | None = None,
    max_examples: int | None = None,
    max_length: int | None = None,
    batch_size: int = 8,
    options: Mapping[str, Any] | None = None,
    allow_leakage: bool = False,
    output: str | Path | None = None,
    progress: Progress | None = None,
) -> EvaluateReport:
    """Evaluates a float checkpoint, a QAT checkpoint, a quantized folder or an .onnx file.

    Args:
        model: A folder that `quantize` wrote; a checkpoint: a local folder or a hub id; or any
            .onnx file, float or quantized.
        data: Labelled examples, in a format of the task.
        task: A task name of transformers; inferred if `None`, but for .onnx files.
        engine: What runs a quantized folder or an .onnx file, ONNX Runtime if `None` and it can.
            A checkpoint runs in PyTorch.
        provider: Which of ONNX Runtime's execution providers: `cpu`, `cuda`, `tensorrt` or
            `openvino`.
        target: Which graph of a folder that has several; the one made for the engine if `None`.
        reference: A float checkpoint, or a float .onnx file, to compare with, text by text. The
            file runs on ONNX Runtime.
        tokenizer: Of .onnx files: folder or hub id of their tokenizer, and config if there is one.
            If `None`, the folder that is evaluated; of a file its own folder.
        input_names: Of .onnx files: names of their inputs by transformers' names, where they are
            others.
        columns: Which columns to read; guessed if `None`.
        max_examples: Read no more examples than this.
        max_length: Longest input in tokens; the folder's, the task's or the checkpoint's if `None`.
        batch_size: Rows at once; they are bucketed by length.
        options: Settings of the task that differ from those that the model was quantized or
            trained with: names and values of `TaskOptions`.
        allow_leakage: Score examples that ranges were taken from too; the report says how many.
        output: A folder for the files that are usual for the task, such as `predictions.json`.
        progress: Shows stages; silent if `None`.

    Raises:
        UserInputError: Something that was named cannot be used, or the model was calibrated on
            examples of the data.
    """
    if batch_size < 1:
        raise UserInputError(f"`--batch-size` must be at least 1, got {batch_size}.")
    files = [name for name in (model, reference) if name is not None and is_graph_file(name)]
    for flag, value in (("tokenizer", tokenizer), ("input-names", input_names)):
        if value and not files:
            raise UserInputError(f"`--{flag}` is for .onnx files; {str(model)!r} is none.")
    progress = progress or Silent()
    wanted = _Wanted(
        task=task,
        max_length=max_length,
        engine=engine,
        provider=provider,
        target=target,
        tokenizer=tokenizer,
        input_names=input_names or {},
        others=len(files) > 1,
    )
    with progress.stage(f"Loading {Path(model).name}"):
        subject = _load(str(model), wanted)
    other = None
    if reference is not None:
        with progress.stage(f"Loading {Path(reference).name}"):
            other = _load(
                str(reference),
                _Wanted(
                    task=subject.task.name,
                    max_length=subject.max_length,
                    tokenizer=tokenizer or (None if is_graph_file(model) else str(model)),
                    input_names=input_names or {},
                    others=len(files) > 1,
                ),
            )
    if other is not None:
        _check_input_names(input_names or {}, subject.named | other.named)
    cut = []
    if other is not None and other.max_length < subject.max_length:
        cut = [f"Texts are cut at {other.max_length} tokens: the reference takes no more."]
        subject = dataclasses.replace(subject, max_length=other.max_length)
    settings = dataclasses.replace(_options_of(Path(model)), **(options or {}))
    dataset = subject.task.read(str(data), columns=columns or Columns(), max_examples=max_examples)
    subject.task.check_labels(dataset, subject.id2label)
    leaked = sum(fingerprint(each) in subject.calibrated_on for each in dataset.examples)
    check_leakage(leaked, len(dataset), str(data), allowed=allow_leakage)
    encoded, rows = _run(subject, dataset.examples, batch_size, settings, progress)
    notices = [*subject.notices, *cut, *dataset.notices, *encoded.features.notices]
    if subject.target is not None and target_named(subject.target).is_proxy:
        notices.append(f"{subject.engine} stands in for what {subject.target} is made for.")
    if leaked:
        notices.append(
            f"{leaked} of {len(dataset)} examples were calibrated on: the metrics flatter."
        )
    metrics = subject.task.metrics(rows, encoded.features, subject.id2label, settings)
    fidelity, of_reference = None, tuple[Metric, ...]()
    if other is not None:
        notices += [f"Of the reference: {each}" for each in other.notices]
        _, expected = _run(other, dataset.examples, batch_size, settings, progress)
        if expected[0].shape != rows[0].shape:
            raise UserInputError(
                f"`--reference {reference}` gives {expected[0].shape[-1]} numbers a text, the "
                f"model {rows[0].shape[-1]}; expected what was quantized."
            )
        fidelity = fidelity_of(subject.task, expected, rows, encoded.features, settings)
        of_reference = tuple(
            subject.task.metrics(expected, encoded.features, subject.id2label, settings)
        )
    if output is not None:
        _write_files(subject.task, rows, encoded, settings, Path(output))
    return EvaluateReport(
        model=str(model),
        task=subject.task.name,
        engine=subject.engine,
        target=subject.target,
        reference=None if reference is None else str(reference),
        data=str(data),
        examples=len(dataset.examples),
        metrics=tuple(metrics),
        reference_metrics=of_reference,
        fidelity=fidelity,
        leaked_examples=leaked,
        notices=tuple(notices),
    )


def _check_input_names(given: Mapping[str, str], used: frozenset[str]) -> None:
    """Refuses names that neither the model nor the reference has."""
    missed = sorted(set(given) - used)
    if missed:
        raise UserInputError(
            f"`--input-names {missed[0]}={given[missed[0]]}`: neither graph has such an input; "
            f"expected one of {', '.join(INPUTS)}, then the name of an input."
        )


def check_leakage(leaked: int, examples: int, data: str, *, allowed: bool) -> None:
    """Refuses data that ranges were taken from.

    Raises:
        UserInputError: Some were, and it is not allowed.
    """
    if leaked and not allowed:
        raise UserInputError(
            f"{leaked} of {examples} examples of `{data}` were calibrated on, so that the metrics "
            "would flatter. Pass other data, or `--allow-leakage`, which the report will say."
        )


def _run(
    subject: _Subject,
    examples: Sequence[Any],
    batch_size: int,
    options: TaskOptions,
    progress: Progress,
) -> tuple[EncodedExamples, Predictions]:
    with progress.stage("Tokenizing"):
        encoded = encode_examples(
            subject.task,
            subject.tokenizer,
            examples,
            input_names=subject.input_names,
            max_length=subject.max_length,
            batch_size=batch_size,
            options=options,
        )
    with progress.stage("Evaluating", len(encoded.batches)) as advance:
        return encoded, predict(subject.task, subject.runner, encoded, advance)


def _options_of(model: Path) -> TaskOptions:
    if is_artifact(model):
        return open_artifact(model).task_options
    return TaskOptions(**read_training(model).get("task_options", {}))


def _write_files(
    task: Task, rows: Predictions, encoded: EncodedExamples, options: TaskOptions, output: Path
) -> None:
    if task.files is None:
        raise UserInputError(f"`--output`: task `{task.name}` has no files to write. Leave it out.")
    try:
        output.mkdir(parents=True, exist_ok=True)
        for name, content in task.files(rows, encoded.features, options).items():
            write_json(output / name, content)
    except OSError as error:
        raise UserInputError(
            f"`--output {output}` cannot be written: {error.strerror}. Name another folder."
        ) from error


def _load(name: str, wanted: _Wanted) -> _Subject:
    """Loads a folder, a file or a checkpoint, whose inputs are cut at the wanted length."""
    if is_artifact(Path(name)):
        return _load_artifact(Path(name), wanted)
    if is_graph_file(name):
        return _load_graph(Path(name), wanted)
    for option in ("provider", "engine", "target"):
        if getattr(wanted, option) is not None:
            raise UserInputError(
                f"`--{option} {getattr(wanted, option)}` is for quantized folders and .onnx files; "
                f"{name!r} is a checkpoint, which runs in PyTorch."
            )
    checkpoint = load_model(name, task=wanted.task)
    chosen = TASKS[checkpoint.task]
    trained = read_training(Path(name))
    usual = trained.get("max_length") or chosen.max_length or checkpoint.max_length
    return _Subject(
        task=chosen,
        engine="pytorch",
        target=None,
        runner=TorchRunner(GraphBody.of(checkpoint), checkpoint.input_names),
        tokenizer=checkpoint.tokenizer,
        input_names=checkpoint.input_names,
        id2label=checkpoint.config.id2label,
        max_length=min(wanted.max_length or usual, checkpoint.max_length),
        calibrated_on=frozenset(trained.get("calibration", {}).get("fingerprints", ())),
        notices=checkpoint.notices,
    )


def _load_graph(path: Path, wanted: _Wanted) -> _Subject:
    if wanted.target is not None:
        raise UserInputError(
            f"`--target {wanted.target}` is for quantized folders; {str(path)!r} is one graph."
        )
    folder = next(
        (each for each in path.absolute().parents[:2] if _holds(each, path.absolute())), None
    )
    if folder is not None:
        # Alone it would not say what it was calibrated on.
        raise UserInputError(
            f"{str(path)!r} is part of a quantized folder. Evaluate {folder.name!r} as a whole, "
            "with `--target` if it has several graphs."
        )
    task = choose_task(path, task=wanted.task, tokenizer=wanted.tokenizer)
    engine: EngineName = wanted.engine or "onnxruntime"
    check_engine(engine)
    runner = open_graph_file(
        path,
        task=task,
        engine=engine,
        provider=wanted.provider,
        input_names=wanted.input_names,
        skip_unknown_names=wanted.others,
    )
    beside = load_tokenizer_and_config(path, task=task, tokenizer=wanted.tokenizer, runner=runner)
    usual = TASKS[task].max_length or beside.max_length
    return _Subject(
        task=TASKS[task],
        engine=engine,
        target=None,
        runner=runner,
        tokenizer=beside.tokenizer,
        input_names=runner.input_names,
        id2label=beside.config.id2label,
        max_length=min(wanted.max_length or usual, beside.max_length),
        calibrated_on=frozenset(),
        notices=beside.notices,
        named=runner.matched_names,
    )


def _holds(folder: Path, graph: Path) -> bool:
    """Whether a graph is one of a quantized folder's."""
    if not is_artifact(folder):
        return False
    targets = open_artifact(folder).quantization["targets"].values()
    return any(folder / each["model"] == graph for each in targets)


def _load_artifact(directory: Path, wanted: _Wanted) -> _Subject:
    artifact = open_artifact(directory)
    engine, target = wanted.engine, wanted.target
    if wanted.task not in (None, artifact.task):
        raise UserInputError(
            f"`--task {wanted.task}` does not fit {str(directory)!r}, which was quantized for "
            f"`{artifact.task}`."
        )
    engines = artifact.engines if target is None else target_named(target).engines
    chosen = engine or ("onnxruntime" if wanted.provider or not engines else engines[0])
    check_engine(chosen)
    made_for = artifact.target_for(chosen, target)
    graph = artifact.model_for(chosen, made_for)
    return _Subject(
        task=TASKS[artifact.task],
        engine=chosen,
        target=made_for,
        runner=open_runner(chosen, graph, provider=wanted.provider),
        tokenizer=artifact.load_tokenizer(),
        input_names=artifact.input_names,
        id2label=artifact.load_config().id2label,
        max_length=min(wanted.max_length or artifact.max_length, artifact.max_length),
        calibrated_on=artifact.calibration_fingerprints,
    )
