"""Compute the metrics of a model, and its fidelity to a reference."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qdqbert.common.errors import DataFileError, UserInputError, naming
from qdqbert.common.files import is_within, json_bytes, name_of
from qdqbert.common.machine import cpu_features, cpu_name, usable_cores
from qdqbert.common.objects import Downloaded
from qdqbert.common.options.columns import Columns
from qdqbert.common.options.declared import command_line, overwrites
from qdqbert.common.options.onnx import is_onnx_file
from qdqbert.common.progress import Progress
from qdqbert.common.storage import Place, place_of, write_place
from qdqbert.data.rows.data import Dataset, fingerprint, read_data, without_rows
from qdqbert.data.tables.outputs import write_objects
from qdqbert.data.texts import heldout_examples
from qdqbert.encoders.task_kinds import TaskSettings
from qdqbert.evidence.limits import check_limits_apply
from qdqbert.evidence.predictions import CHANGED, PREDICTIONS, prediction_rows
from qdqbert.evidence.reporting.evaluate import EvaluateReport
from qdqbert.evidence.reporting.page import page
from qdqbert.graphs.encoder.probe import INPUTS
from qdqbert.graphs.imported.input_output_names import task_outputs
from qdqbert.pipeline.predictions import (
    Baseline,
    EncodedExamples,
    encode_examples,
    predict,
    repeated_notices,
)
from qdqbert.pipeline.settings import task_options_of
from qdqbert.pipeline.versions import versions
from qdqbert.runtime.artifact import REPORT_PAGE, is_artifact
from qdqbert.runtime.scheduler import Scheduler
from qdqbert.tasks.task import Predictions, Tokenization
from qdqbert.verbs.evaluate.faults import find_storage
from qdqbert.verbs.evaluate.options import EvaluateOptions
from qdqbert.verbs.evaluate.speed import time_both
from qdqbert.verbs.evaluate.streams import predict_in_streams
from qdqbert.verbs.evaluate.subject import Subject, load_subject, reference_request, request_of


def run(options: EvaluateOptions, progress: Progress) -> EvaluateReport:
    """Evaluate a model."""
    subject, reference, notices = load_models(options, progress)
    task_options = task_options_of(subject.task, options.task_options, subject.stored_task_options)
    dataset, has_labels = read_examples(subject, options)
    leaked = count_leaked(subject, dataset, options)
    if leaked:
        notices.append(
            f"The model was calibrated or trained on {leaked} of {len(dataset)} examples, so the "
            "metrics are inflated."
        )
    if not options.allow_leakage:
        dataset = without_trained(subject, dataset, options, notices)
    baseline, ours = run_models(subject, reference, dataset, task_options, options, progress)
    if has_labels:
        baseline = baseline.with_scores()
    comparison = None
    if reference is not None:
        with progress.stage("Computing intervals"):
            comparison = baseline.compare(ours)
    encoded = baseline.encoded
    longest = max(encoded.batches, key=lambda batch: batch.inputs["input_ids"].size)
    storage = find_storage(options, subject.task.name, longest)
    latency = time_both(options, subject, progress) if options.benchmark else ()
    report = EvaluateReport(
        model=str(options.model),
        task=subject.task.name,
        engine=subject.engine,
        target=subject.target,
        reference=None if options.reference is None else str(options.reference),
        data=dataset.path,
        examples=len(dataset.examples),
        metrics=baseline.metrics if comparison is None else comparison.metrics,
        reference_metrics=() if comparison is None else baseline.metrics,
        differences=() if comparison is None else comparison.differences,
        fidelity=None if comparison is None else comparison.fidelity,
        limits=() if comparison is None else baseline.check(ours, options.limits),
        leaked_examples=leaked,
        storage=storage,
        latency=latency,
        size_bytes=subject.size_bytes,
        reference_bytes=None if reference is None else reference.size_bytes,
        changed=() if comparison is None else baseline.changed(ours),
        cpu=cpu_name(),
        cpu_features=cpu_features(),
        cores=usable_cores(),
        versions=versions(),
        command=command_line("evaluate", options),
        notices=(
            *notices,
            *dataset.notices,
            *encoded.features.notices,
            *repeated_notices(subject.task, encoded.features),
        ),
    )
    if options.output is None:
        return report
    files = {PREDICTIONS: write_objects(prediction_rows(baseline.answers(ours)))}
    if comparison is not None:
        files[CHANGED] = write_objects(baseline.changed_rows(ours))
    contents = subject.task.files(baseline.outcome(ours))
    files |= {name: json_bytes(content) for name, content in contents.items()}
    return _write_files(report, files, place_of(options.output), options.data)


def load_models(
    options: EvaluateOptions, progress: Progress
) -> tuple[Subject, Subject | None, list[str]]:
    """Load the model and the reference, and check the options that need them.

    Returns:
        The model, the reference with the task of the model, and messages about both.
    """
    _check_options_of_checkpoints(options)
    with progress.stage(f"Loading {name_of(options.model)}"):
        request = request_of(options)
        subject = load_subject(os.fspath(options.model), request)
    check_limits_apply(options.limits, is_embedding=subject.task.is_embedding)
    notices = list(subject.notices)
    if subject.is_proxy:
        notices.append(
            f"{subject.engine} runs the graph as a proxy for the runtime of {subject.target}."
        )
    if options.reference is None:
        return subject, None, notices
    with progress.stage(f"Loading {name_of(options.reference)}"):
        reference = load_subject(
            os.fspath(options.reference), reference_request(options, request, subject)
        )
    _check_names(options, subject, reference)
    notices += [f"Reference: {notice}" for notice in reference.notices]
    if reference.max_length < subject.max_length:
        notices.append(
            f"Texts are truncated at {reference.max_length} tokens, the limit of the reference."
        )
        subject = dataclasses.replace(subject, max_length=reference.max_length)
    reference = dataclasses.replace(reference, task=subject.task)
    return subject, reference, notices


def run_models(
    subject: Subject,
    reference: Subject | None,
    dataset: Dataset,
    task_options: TaskSettings,
    options: EvaluateOptions,
    progress: Progress,
) -> tuple[Baseline, Predictions]:
    """Return the results of the reference, or else of the model itself, and the model's."""
    batch_size = options.batch_size
    encoded, ours = _predict(subject, dataset.examples, task_options, batch_size, progress)
    theirs = ours
    if reference is not None:
        examples = encoded.features.examples
        _, theirs = _predict(reference, examples, task_options, batch_size, progress)
        _check_outputs(theirs, ours, options.reference)
    baseline = Baseline(
        task=subject.task,
        encoded=encoded,
        predictions=theirs,
        tokenizer=subject.tokenizer,
        id2label=subject.id2label,
        options=task_options,
    )
    return baseline, ours


def _check_options_of_checkpoints(options: EvaluateOptions) -> None:
    """Refuse a pooling and an adapter that neither the model nor the reference reads."""
    # The native engine runs a checkpoint with the pooling that `load` reads from it.
    model = None if options.engine == "native" else options.model
    models = [each for each in (model, options.reference) if each is not None]
    has_checkpoint = not all(is_artifact(Path(each)) or is_onnx_file(each) for each in models)
    for name in () if has_checkpoint else ("pooling", "adapter"):
        value = getattr(options.task_options, name)
        is_fixed = is_artifact(Path(options.model)) or is_onnx_file(options.model)
        if value is not None and (name == "pooling" or is_fixed):
            raise UserInputError(
                f"`{name}={value!r}` applies to checkpoints in PyTorch only. The outputs of "
                f"`model={options.model!r}` are fixed. Leave `{name}` out.",
                argument=name,
            )


def read_examples(subject: Subject, options: EvaluateOptions) -> tuple[Dataset, bool]:
    """Return the examples, and whether they have labels, which only the metrics need.

    Raises:
        UserInputError: They cannot be used, or labels are needed and missing.
    """
    task, needs_labels = subject.task, options.reference is None
    with naming("data"):
        if options.data is None:
            dataset = _built_in(subject, options.max_examples)
        else:
            dataset = read_data(task.read, options.data, options.columns, options.max_examples)
        try:
            dataset = task.read_labels(dataset, subject.id2label)
        except DataFileError as error:
            # Labels that are there and cannot be used are a mistake.
            if needs_labels or dataset.has_labels:
                raise
            if options.limits.max_drop is not None:
                raise UserInputError(
                    f"`max_drop={options.limits.max_drop:g}` compares metrics, which need labels. "
                    "Pass labeled examples as `data`.",
                    argument="max_drop",
                ) from error
            return dataset, False
        task.check_metrics(dataset, subject.id2label)
    return dataset, True


def _built_in(subject: Subject, max_examples: int | None) -> Dataset:
    if not subject.task.reads_texts:
        raise UserInputError(
            f"`data` is missing. Task {subject.task.name!r} cannot be compared on the built-in "
            "sentences. Pass examples of the task.",
            argument="data",
        )
    return Dataset(
        path="built-in sentences",
        examples=heldout_examples()[:max_examples],
        columns=Columns(),
        notices=("Pass texts of your own as `data`: the built-in ones are English sentences.",),
    )


def count_leaked(subject: Subject, dataset: Dataset, options: EvaluateOptions) -> int:
    """Count the examples that the model was calibrated on; or trained on, if they are scored."""
    known = subject.calibrated_on
    if options.allow_leakage:
        known |= subject.trained_on
    leaked = sum(fingerprint(example) in known for example in dataset.examples)
    if leaked and not options.allow_leakage:
        raise UserInputError(
            f"The model was calibrated on {leaked} of {len(dataset)} examples of "
            f"`data={options.data!r}`, so its metrics would be inflated. Pass other data, or "
            "`allow_leakage=True` to score them; the report then has their number.",
            argument="data",
        )
    return leaked


def without_trained(
    subject: Subject, dataset: Dataset, options: EvaluateOptions, notices: list[str]
) -> Dataset:
    """Leave out the examples that the model was trained on, and say how many."""
    kept = without_rows(dataset.examples, subject.trained_on)
    left_out = len(dataset) - len(kept)
    if not kept:
        raise UserInputError(
            f"The model was trained on all {left_out} examples of `data={options.data!r}`, so its "
            "metrics would be inflated. Pass other data, or `allow_leakage=True` to score them; "
            "the report then has their number.",
            argument="data",
        )
    if left_out:
        notices.append(
            f"{left_out} of {len(dataset)} examples of `data` are left out: the model was trained "
            "on them."
        )
    return dataclasses.replace(dataset, examples=tuple(kept))


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


def _predict(
    subject: Subject,
    examples: Sequence[Any],
    options: TaskSettings,
    batch_size: int,
    progress: Progress,
) -> tuple[EncodedExamples, Predictions]:
    """Run a model on examples, with its own tokenizer."""
    with progress.stage(f"Tokenizing for {subject.name}"):
        how = Tokenization(
            tokenizer=subject.tokenizer,
            input_names=subject.input_names,
            max_length=subject.max_length,
            settings=options,
        )
        encoded = encode_examples(subject.task.encode, examples, how, batch_size=batch_size)
    label, runner = f"Evaluating {subject.name}", subject.runner
    if isinstance(runner, Scheduler):
        with progress.stage(label, encoded.texts) as advance:
            return encoded, predict_in_streams(subject.task, runner, encoded.features, advance)
    with progress.stage(label, len(encoded.batches)) as advance:
        return encoded, predict(subject.task, runner, encoded, advance)


def _check_outputs(expected: Predictions, predictions: Predictions, reference: object) -> None:
    """Refuse a reference whose outputs have another shape than the model's."""
    if expected[0].shape != predictions[0].shape:
        raise UserInputError(
            f"`reference={reference!r}` returns {expected[0].shape[-1]} values for a text, "
            f"and the model {predictions[0].shape[-1]}. Pass the model that was quantized.",
            argument="reference",
        )


def _write_files(
    report: EvaluateReport, files: Mapping[str, bytes], output: Place, data: object
) -> EvaluateReport:
    """Write files and the report to a folder, and return the report."""
    given = place_of(str(data)) if isinstance(data, str | Downloaded) else None
    if any(_is_same(given, output / name) for name in files):
        raise overwrites("output", str(output), f"`data={data!r}`")
    report = dataclasses.replace(report, directory=str(output), files=(*files, REPORT_PAGE))
    try:
        output.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            write_place(output / name, content)
        write_place(output / REPORT_PAGE, page(report).encode())
    except OSError as error:
        raise UserInputError(
            f"`output={str(output)!r}` cannot be written: {error.strerror or error}. Pass another "
            "folder.",
            argument="output",
        ) from error
    return report


def _is_same(data: Place | None, file: Place) -> bool:
    if isinstance(data, Path) and isinstance(file, Path):
        return is_within(data, file)
    return data == file
