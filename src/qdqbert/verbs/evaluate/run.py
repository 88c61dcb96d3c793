"""Compute the metrics of a model, and its fidelity to a reference."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qdqbert.artifact import REPORT_PAGE, is_artifact
from qdqbert.errors import UserInputError, naming
from qdqbert.evidence.limits import check_limits
from qdqbert.evidence.predictions import (
    CHANGED,
    PREDICTIONS,
    changed_rows,
    prediction_rows,
)
from qdqbert.files import json_bytes, write_bytes
from qdqbert.graph.imported.input_output_names import INPUTS, task_outputs
from qdqbert.machine import cpu_features, cpu_name, usable_cores
from qdqbert.options import command_line, is_onnx_file
from qdqbert.progress import Progress
from qdqbert.reporting.evaluate import EvaluateReport
from qdqbert.reporting.page import page
from qdqbert.runtime.scheduler import Scheduler
from qdqbert.tables.outputs import write_objects
from qdqbert.task_kinds import TaskSettings
from qdqbert.tasks.data import Dataset, fingerprint
from qdqbert.tasks.task import Answer, Predictions
from qdqbert.verbs.evaluate.options import EvaluateOptions
from qdqbert.verbs.evaluate.streams import predict_in_streams
from qdqbert.verbs.evaluate.subject import (
    Subject,
    load_subject,
    request_of_model,
    request_of_reference,
)
from qdqbert.verbs.inference import (
    Baseline,
    EncodedExamples,
    decisions_of,
    encode_examples,
    predict,
)
from qdqbert.verbs.settings import task_options_of
from qdqbert.verbs.versions import versions


@dataclasses.dataclass(frozen=True, kw_only=True)
class Models:
    """The model to evaluate, and its reference.

    Attributes:
        subject: The model.
        reference: The reference, if there is one. Scored with the task and labels of the model.
        notices: Messages about both.
    """

    subject: Subject
    reference: Subject | None
    notices: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
    """Predictions of a model, and its reference.

    Attributes:
        subject: The model.
        encoded: The examples as the model read them.
        predictions: Its predictions.
        baseline: Results of the reference, if there is one.
    """

    subject: Subject
    encoded: EncodedExamples
    predictions: Predictions
    baseline: Baseline | None


def run(options: EvaluateOptions, progress: Progress) -> EvaluateReport:
    """Evaluate a model.

    Raises:
        UserInputError: An argument or a file cannot be used, or the model was calibrated on some
            of the examples.
    """
    models = load_models(options, progress)
    subject = models.subject
    task_options = task_options_of(options.task_options, subject.stored_task_options)
    with naming("data"):
        dataset = subject.task.read(
            options.data, columns=options.columns, max_examples=options.max_examples
        )
        dataset = subject.task.read_labels(dataset, subject.id2label)
        subject.task.check_metrics(dataset, subject.id2label)
    leaked = count_leaked(subject, dataset, options)
    encoded = _encode(subject, dataset.examples, options, task_options, progress)
    predictions = _predict(subject, encoded, progress)
    baseline = comparison = None
    if models.reference is not None:
        theirs = _predict_reference(models.reference, encoded, options, task_options, progress)
        _check_outputs(theirs, predictions, options)
        baseline = _baseline(models.reference, theirs, encoded, task_options)
        with progress.stage("Computing intervals"):
            comparison = baseline.compare(predictions)
        metrics = comparison.metrics
    else:
        metrics = tuple(
            subject.task.metrics(predictions, encoded.features, subject.id2label, task_options)
        )
    report = EvaluateReport(
        model=str(options.model),
        task=subject.task.name,
        engine=subject.engine,
        target=subject.target,
        reference=None if options.reference is None else str(options.reference),
        data=str(options.data),
        examples=len(dataset.examples),
        metrics=metrics,
        reference_metrics=() if baseline is None else baseline.metrics,
        differences=() if comparison is None else comparison.differences,
        fidelity=None if comparison is None else comparison.fidelity,
        limits=(
            ()
            if comparison is None
            else check_limits(options.limits, comparison.fidelity, comparison.differences)
        ),
        leaked_examples=leaked,
        cpu=cpu_name(),
        cpu_features=cpu_features(),
        cores=usable_cores(),
        versions=versions(),
        command=command_line("evaluate", options),
        notices=(
            *models.notices,
            *dataset.notices,
            *encoded.features.notices,
            *_leak_notices(leaked, dataset),
        ),
    )
    if options.output is None:
        return report
    found = Found(subject=subject, encoded=encoded, predictions=predictions, baseline=baseline)
    return _write_files(report, found, task_options, Path(options.output))


def load_models(options: EvaluateOptions, progress: Progress) -> Models:
    """Load the model and the reference, and check the options that need them.

    Raises:
        UserInputError: One of them cannot be used, or an option does not fit.
    """
    _check_pooling(options)
    with progress.stage(f"Loading {Path(options.model).name}"):
        subject = load_subject(os.fspath(options.model), request_of_model(options))
    notices = [*subject.notices]
    if subject.is_proxy:
        notices.append(
            f"{subject.engine} runs the graph as a proxy for the runtime of {subject.target}."
        )
    if options.reference is None:
        return Models(subject=subject, reference=None, notices=tuple(notices))
    with progress.stage(f"Loading {Path(options.reference).name}"):
        reference = load_subject(
            os.fspath(options.reference), request_of_reference(options, subject)
        )
    _check_names(options, subject, reference)
    notices += [f"Reference: {notice}" for notice in reference.notices]
    if reference.max_length < subject.max_length:
        notices.append(
            f"Texts are truncated at {reference.max_length} tokens, the limit of the reference."
        )
        subject = dataclasses.replace(subject, max_length=reference.max_length)
    reference = dataclasses.replace(reference, id2label=subject.id2label, task=subject.task)
    return Models(subject=subject, reference=reference, notices=tuple(notices))


def _check_pooling(options: EvaluateOptions) -> None:
    """Refuse a pooling that neither the model nor the reference reads."""
    # The native engine runs a checkpoint with the pooling that `load` reads from it.
    model = None if options.engine == "native" else options.model
    models = [each for each in (model, options.reference) if each is not None]
    has_checkpoint = not all(is_artifact(Path(each)) or is_onnx_file(each) for each in models)
    if options.task_options.pooling is not None and not has_checkpoint:
        raise UserInputError(
            f"`pooling={options.task_options.pooling!r}` applies to checkpoints in PyTorch only. "
            f"The outputs of `model={options.model!r}` are fixed. Leave `pooling` out.",
            argument="pooling",
        )


def count_leaked(subject: Subject, dataset: Dataset, options: EvaluateOptions) -> int:
    """Count the examples that the model was calibrated on.

    Raises:
        UserInputError: There are some, and they are not allowed.
    """
    leaked = sum(fingerprint(example) in subject.calibrated_on for example in dataset.examples)
    if leaked and not options.allow_leakage:
        raise UserInputError(
            f"The model was calibrated on {leaked} of {len(dataset)} examples of "
            f"`data={options.data!r}`, so its metrics would be inflated. Pass other data, or "
            "`allow_leakage=True` to score them; the report then has their number.",
            argument="data",
        )
    return leaked


def _leak_notices(leaked: int, dataset: Dataset) -> tuple[str, ...]:
    if not leaked:
        return ()
    return (
        f"The model was calibrated on {leaked} of {len(dataset)} examples, so the metrics are "
        "inflated.",
    )


def _check_names(options: EvaluateOptions, subject: Subject, reference: Subject) -> None:
    """Refuse names of inputs and outputs that neither the model nor the reference has."""
    matched = subject.matched_names | reference.matched_names
    for parameter, known in (
        ("input_names", INPUTS),
        ("output_names", task_outputs(subject.task.name)),
    ):
        given = getattr(options.onnx, parameter) or {}
        unused = sorted(set(given) - matched)
        if unused:
            raise UserInputError(
                f"`{parameter}`: neither graph has {given[unused[0]]!r} to be used as "
                f"{unused[0]!r}. Map one of {', '.join(known)} to a name in the graph.",
                argument=parameter,
            )


def _encode(
    subject: Subject,
    examples: Sequence[Any],
    options: EvaluateOptions,
    task_options: TaskSettings,
    progress: Progress,
) -> EncodedExamples:
    with progress.stage(f"Tokenizing for {subject.name}"):
        return encode_examples(
            subject.task,
            subject.tokenizer,
            examples,
            input_names=subject.input_names,
            max_length=subject.max_length,
            batch_size=options.batch_size,
            options=task_options,
        )


def _predict(subject: Subject, encoded: EncodedExamples, progress: Progress) -> Predictions:
    label, runner = f"Evaluating {subject.name}", subject.runner
    if isinstance(runner, Scheduler):
        with progress.stage(label, encoded.texts) as advance:
            return predict_in_streams(subject.task, runner, encoded.features, advance)
    with progress.stage(label, len(encoded.batches)) as advance:
        return predict(subject.task, runner, encoded, advance)


def _predict_reference(
    reference: Subject,
    encoded: EncodedExamples,
    options: EvaluateOptions,
    task_options: TaskSettings,
    progress: Progress,
) -> Predictions:
    """Run the reference on the examples of the model, with its own tokenizer."""
    examples = encoded.features.examples
    own = _encode(reference, examples, options, task_options, progress)
    return _predict(reference, own, progress)


def _check_outputs(
    expected: Predictions, predictions: Predictions, options: EvaluateOptions
) -> None:
    """Refuse a reference whose outputs have another shape than the model's."""
    if expected[0].shape != predictions[0].shape:
        raise UserInputError(
            f"`reference={options.reference!r}` returns {expected[0].shape[-1]} values for a text, "
            f"and the model {predictions[0].shape[-1]}. Pass the model that was quantized.",
            argument="reference",
        )


def _baseline(
    reference: Subject,
    predictions: Predictions,
    encoded: EncodedExamples,
    task_options: TaskSettings,
) -> Baseline:
    """Return the results of the reference."""
    scores = reference.task.scores(predictions, encoded.features, reference.id2label, task_options)
    return Baseline(
        task=reference.task,
        encoded=encoded,
        predictions=predictions,
        scores=tuple(scores),
        id2label=reference.id2label,
        options=task_options,
    )


def _write_files(
    report: EvaluateReport, found: Found, task_options: TaskSettings, output: Path
) -> EvaluateReport:
    """Write the predictions, the files of the task and the report, and return the report.

    Raises:
        UserInputError: The folder cannot be written.
    """
    files = _prediction_files(found, task_options)
    report = dataclasses.replace(report, directory=str(output), files=(*files, REPORT_PAGE))
    try:
        output.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            write_bytes(output / name, content)
        write_bytes(output / REPORT_PAGE, page(report).encode())
    except OSError as error:
        raise UserInputError(
            f"`output={str(output)!r}` cannot be written: {error.strerror}. Pass another folder.",
            argument="output",
        ) from error
    return report


def _prediction_files(found: Found, options: TaskSettings) -> dict[str, bytes]:
    """Return the contents of the files by name."""
    subject, features, baseline = found.subject, found.encoded.features, found.baseline
    task, ours = subject.task, found.predictions

    def answers_of(predictions: Predictions) -> Sequence[Answer]:
        return task.answers(
            predictions,
            features,
            tokenizer=subject.tokenizer,
            id2label=subject.id2label,
            options=options,
        )

    answers = answers_of(ours)
    files = {PREDICTIONS: write_objects(prediction_rows(answers))}
    if baseline is not None:
        theirs = baseline.predictions
        decisions = decisions_of(task, theirs, ours, features, options)
        rows = changed_rows(answers, answers_of(theirs), decisions)
        files[CHANGED] = write_objects(rows)
    if task.files is not None:
        contents = task.files(ours, features, options)
        files |= {name: json_bytes(content) for name, content in contents.items()}
    return files
