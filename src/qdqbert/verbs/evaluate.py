"""`qdqbert evaluate`: a task's metric of a checkpoint or an INT8 folder on labelled data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qdqbert.artifact import is_artifact, open_artifact, read_training, write_json
from qdqbert.engines.runner import EngineName, Runner, check_engine, open_runner
from qdqbert.errors import UserInputError
from qdqbert.evidence.record import EvaluateReport
from qdqbert.graph.export import GraphBody
from qdqbert.models.loading import load_model
from qdqbert.progress import Progress, Silent
from qdqbert.targets import target_named
from qdqbert.tasks import TASKS
from qdqbert.tasks.data import Columns, fingerprint
from qdqbert.tasks.task import Metric, Rows, Task, TaskOptions
from qdqbert.verbs.inference import (
    EncodedExamples,
    TorchRunner,
    encode_examples,
    fidelity_of,
    rows_of,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Subject:
    """A loaded model, and what its inputs are.

    Attributes:
        task: What it is for.
        engine: What runs it.
        target: What its graph was made for; `None` for a checkpoint.
        runner: It, loaded.
        tokenizer: Its tokenizer.
        id2label: Its classes.
        max_length: Longest row in tokens.
        calibrated_on: Fingerprints of the examples that its ranges were taken from.
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


def evaluate(
    model: str | Path,
    data: str | Path,
    *,
    task: str | None = None,
    engine: EngineName | None = None,
    provider: str | None = None,
    target: str | None = None,
    reference: str | Path | None = None,
    columns: Columns | None = None,
    max_examples: int | None = None,
    max_length: int | None = None,
    batch_size: int = 8,
    options: Mapping[str, Any] | None = None,
    allow_leakage: bool = False,
    output: str | Path | None = None,
    progress: Progress | None = None,
) -> EvaluateReport:
    """Evaluates a float checkpoint, a QAT checkpoint or a quantized folder.

    Args:
        model: A folder that `quantize` wrote, or a checkpoint: a local folder or a hub id.
        data: Labelled examples, in a format of the task.
        task: A task name of transformers; inferred if `None`.
        engine: What runs a quantized folder, ONNX Runtime if `None` and it can. A checkpoint
            runs in PyTorch.
        provider: Which of ONNX Runtime's execution providers: `cpu`, `cuda`, `tensorrt` or
            `openvino`.
        target: Which graph of a folder that has several; the one made for the engine if `None`.
        reference: A float checkpoint to compare with, text by text.
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
    progress = progress or Silent()
    with progress.stage(f"Loading {Path(model).name}"):
        subject = _load(str(model), task, engine, max_length, provider, target)
    settings = dataclasses.replace(_options_of(Path(model)), **(options or {}))
    dataset = subject.task.read(str(data), columns=columns or Columns(), max_examples=max_examples)
    leaked = sum(fingerprint(each) in subject.calibrated_on for each in dataset.examples)
    check_leakage(leaked, len(dataset), str(data), allowed=allow_leakage)
    encoded, rows = _run(subject, dataset.examples, batch_size, settings, progress)
    notices = [*dataset.notices, *encoded.features.notices]
    if subject.target is not None and target_named(subject.target).stand_in:
        notices.append(f"{subject.engine} stands in for what {subject.target} is made for.")
    if leaked:
        notices.append(
            f"{leaked} of {len(dataset)} examples were calibrated on: the metrics flatter."
        )
    metrics = subject.task.metrics(rows, encoded.features, subject.id2label, settings)
    fidelity, of_reference = None, tuple[Metric, ...]()
    if reference is not None:
        with progress.stage(f"Loading {Path(reference).name}"):
            other = _load(str(reference), subject.task.name, None, subject.max_length)
        _, expected = _run(other, dataset.examples, batch_size, settings, progress)
        if expected[0].shape != rows[0].shape:
            raise UserInputError(
                f"`--reference {reference}` gives {expected[0].shape[-1]} numbers a text, the "
                f"model {rows[0].shape[-1]}; expected the checkpoint that was quantized."
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
) -> tuple[EncodedExamples, Rows]:
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
        return encoded, rows_of(subject.task, subject.runner, encoded, advance)


def _options_of(model: Path) -> TaskOptions:
    if is_artifact(model):
        return open_artifact(model).task_options
    return TaskOptions(**read_training(model).get("task_options", {}))


def _write_files(
    task: Task, rows: Rows, encoded: EncodedExamples, options: TaskOptions, output: Path
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


def _load(
    name: str,
    task: str | None,
    engine: EngineName | None,
    limit: int | None,
    provider: str | None = None,
    target: str | None = None,
) -> _Subject:
    """Loads a folder or a checkpoint, whose inputs are cut at `limit`."""
    if is_artifact(Path(name)):
        return _load_artifact(Path(name), task, engine, limit, provider, target)
    for option, value in (("provider", provider), ("engine", engine), ("target", target)):
        if value is not None:
            raise UserInputError(
                f"`--{option} {value}` is for quantized folders; {name!r} is a checkpoint, which "
                "runs in PyTorch."
            )
    checkpoint = load_model(name, task=task)
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
        max_length=min(limit or usual, checkpoint.max_length),
        calibrated_on=frozenset(trained.get("calibration", {}).get("fingerprints", ())),
    )


def _load_artifact(
    directory: Path,
    task: str | None,
    engine: EngineName | None,
    limit: int | None,
    provider: str | None,
    target: str | None,
) -> _Subject:
    artifact = open_artifact(directory)
    if task not in (None, artifact.task):
        raise UserInputError(
            f"`--task {task}` does not fit {str(directory)!r}, which was quantized for "
            f"`{artifact.task}`."
        )
    engines = artifact.engines if target is None else target_named(target).engines
    chosen = engine or ("onnxruntime" if provider or not engines else engines[0])
    check_engine(chosen)
    made_for = artifact.target_for(chosen, target)
    graph = artifact.model_for(chosen, made_for)
    return _Subject(
        task=TASKS[artifact.task],
        engine=chosen,
        target=made_for,
        runner=open_runner(chosen, graph, provider=provider),
        tokenizer=artifact.load_tokenizer(),
        input_names=artifact.input_names,
        id2label=artifact.load_config().id2label,
        max_length=min(limit or artifact.max_length, artifact.max_length),
        calibrated_on=artifact.calibration_fingerprints,
    )
