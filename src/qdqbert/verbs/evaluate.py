"""`qdqbert evaluate`: a task's metric of a checkpoint or an INT8 folder on labelled data."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from qdqbert.artifact import is_artifact, open_artifact
from qdqbert.checkpoint.load import load_checkpoint
from qdqbert.engines.runner import EngineName, Runner, check_engine, open_runner
from qdqbert.errors import UserInputError
from qdqbert.evidence.fidelity import compare
from qdqbert.evidence.record import EvaluateReport
from qdqbert.graph.export import GraphBody
from qdqbert.models.modeling import register
from qdqbert.progress import Progress, Silent
from qdqbert.tasks import TASKS
from qdqbert.tasks.data import Columns, Example, read_dataset
from qdqbert.tasks.task import Rows, Task
from qdqbert.verbs.inference import EncodedExamples, TorchRunner, encode_examples, rows_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Subject:
    """A loaded model with what is needed to feed and judge it."""

    task: Task
    engine: str
    runner: Runner
    encoded: EncodedExamples
    id2label: dict[int, str]
    max_length: int


def evaluate(
    model: str | Path,
    data: str | Path,
    *,
    task: str | None = None,
    engine: EngineName | None = None,
    reference: str | Path | None = None,
    columns: Columns | None = None,
    max_examples: int | None = None,
    batch_size: int = 8,
    progress: Progress | None = None,
) -> EvaluateReport:
    """Evaluates a float checkpoint or a quantized folder.

    Args:
        model: A folder that `quantize` wrote, or a checkpoint: a local folder or a hub id.
        data: Labelled examples, .csv, .tsv or .jsonl.
        task: A task name of transformers; inferred if `None`.
        engine: What runs a quantized folder, ONNX Runtime if `None` and it can. A checkpoint
            runs in PyTorch.
        reference: A float checkpoint to compare with, text by text.
        columns: Which columns to read; guessed if `None`.
        max_examples: Read no more rows than this.
        batch_size: Texts at once; they are bucketed by length.
        progress: Shows stages; silent if `None`.

    Raises:
        UserInputError: Something that was named cannot be used.
    """
    if batch_size < 1:
        raise UserInputError(f"`--batch-size` must be at least 1, got {batch_size}.")
    progress = progress or Silent()
    dataset = read_dataset(data, columns=columns or Columns(), max_examples=max_examples)
    notices = list(dataset.notices)

    def rows(
        name: str | Path, task: str | None, engine: EngineName | None, limit: int | None
    ) -> tuple[_Subject, Rows]:
        with progress.stage(f"Loading {Path(name).name}"):
            subject = _load(str(name), task, engine, dataset.examples, batch_size, limit)
        with progress.stage("Evaluating", len(subject.encoded.batches)) as advance:
            return subject, rows_of(subject.task, subject.runner, subject.encoded, advance)

    subject, made = rows(model, task, engine, None)
    if subject.encoded.truncated:
        notices.append(
            f"{subject.encoded.truncated} of {subject.encoded.texts} texts were longer than "
            f"{subject.max_length} tokens and were cut."
        )
    metrics = subject.task.metrics(made, dataset.examples, subject.id2label)
    fidelity = None
    if reference is not None:
        _, expected = rows(reference, subject.task.name, None, subject.max_length)
        if expected.shape != made.shape:
            raise UserInputError(
                f"`--reference {reference}` gives {expected.shape[1]} numbers a text, the model "
                f"{made.shape[1]}; expected the checkpoint that was quantized."
            )
        fidelity = compare(expected, made, kind=subject.task.kind(expected))
    return EvaluateReport(
        model=str(model),
        task=subject.task.name,
        engine=subject.engine,
        data=str(data),
        examples=len(dataset.examples),
        metrics=tuple(metrics),
        fidelity=fidelity,
        notices=tuple(notices),
    )


def _load(
    name: str,
    task: str | None,
    engine: EngineName | None,
    examples: Sequence[Example],
    batch_size: int,
    limit: int | None,
) -> _Subject:
    """Loads a folder or a checkpoint; `limit` cuts a checkpoint's inputs as a folder's are."""
    if is_artifact(Path(name)):
        return _load_artifact(Path(name), task, engine, examples, batch_size)
    if engine is not None:
        raise UserInputError(
            f"`--engine {engine}` is for quantized folders; {name!r} is a checkpoint, which runs "
            "in PyTorch."
        )
    register()
    checkpoint = load_checkpoint(name, task=task)
    body = GraphBody.of(checkpoint)
    max_length = min(checkpoint.max_length, limit or checkpoint.max_length)
    return _Subject(
        task=TASKS[checkpoint.task],
        engine="pytorch",
        runner=TorchRunner(body, checkpoint.input_names),
        encoded=encode_examples(
            TASKS[checkpoint.task],
            checkpoint.tokenizer,
            examples,
            input_names=checkpoint.input_names,
            max_length=max_length,
            batch_size=batch_size,
        ),
        id2label=checkpoint.config.id2label,
        max_length=max_length,
    )


def _load_artifact(
    directory: Path,
    task: str | None,
    engine: EngineName | None,
    examples: Sequence[Example],
    batch_size: int,
) -> _Subject:
    artifact = open_artifact(directory)
    if task not in (None, artifact.task):
        raise UserInputError(
            f"`--task {task}` does not fit {str(directory)!r}, which was quantized for "
            f"`{artifact.task}`."
        )
    chosen = engine or artifact.engines[0]
    check_engine(chosen)
    return _Subject(
        task=TASKS[artifact.task],
        engine=chosen,
        runner=open_runner(chosen, artifact.model_for(chosen)),
        encoded=encode_examples(
            TASKS[artifact.task],
            artifact.load_tokenizer(),
            examples,
            input_names=artifact.input_names,
            max_length=artifact.max_length,
            batch_size=batch_size,
        ),
        id2label=artifact.load_config().id2label,
        max_length=artifact.max_length,
    )
