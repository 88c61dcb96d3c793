"""Calibrate a float model, and run it on held-out examples."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qdqbert.calibration.calibration import CalibrationResult
from qdqbert.common.errors import CheckpointError
from qdqbert.common.machine import release_memory
from qdqbert.common.progress import Progress
from qdqbert.data.tokenizing.encoding import Batch
from qdqbert.data.tokenizing.tokenizer import Tokenizer
from qdqbert.encoders.checkpoint.tokenizer import runtime_tokenizer
from qdqbert.encoders.task_kinds import TaskSettings
from qdqbert.engines.runner import Outputs
from qdqbert.graphs.targets.target import Plan, Target
from qdqbert.pipeline.calls import BatchCall
from qdqbert.pipeline.examples import ChosenExamples, Data, choose_examples
from qdqbert.pipeline.messages import limit_warnings
from qdqbert.pipeline.plans import Scheme, make_plans
from qdqbert.pipeline.predictions import (
    Baseline,
    EncodedExamples,
    encode_examples,
    predict,
    predict_batches,
    predictions_of,
    repeated_notices,
)
from qdqbert.pipeline.ranges import (
    RangeSource,
    choose_range_source,
    find_calibration,
    rounding_notices,
    training_notices,
)
from qdqbert.pipeline.settings import input_length, task_options_of
from qdqbert.pipeline.sited import SitedSource
from qdqbert.pipeline.source import Source
from qdqbert.quantization.search.units import int8_percent
from qdqbert.runtime.artifact import Artifact, rows_of
from qdqbert.tasks.small_vectors import VectorRanges
from qdqbert.tasks.task import Encode, Outcome, Prediction, Tokenization

_LOGGER = logging.getLogger(__name__)

# Texts that the float model runs for the ranges of embeddings, about, if no calibration runs it.
# More cost time, and change the ranges little.
_RANGE_TEXTS = 200


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inputs:
    """Examples of a call as inputs of the model.

    Attributes:
        calibration: Examples that ranges are taken from. If nothing is calibrated, the held-out
            ones.
        heldout: Other examples, to compare INT8 with float on.
        tokenizer: Tokenizer of the model.
        max_length: Longest input in tokens.
        task_options: Settings of the task.
        notices: Messages for the user.
    """

    calibration: EncodedExamples
    heldout: EncodedExamples
    tokenizer: Tokenizer
    max_length: int
    task_options: TaskSettings
    notices: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ready:
    """A calibrated model, before anything is quantized.

    Attributes:
        source: The float model.
        plans: One plan for each target that runs the model.
        refused: Why the other targets do not, by name of the target.
        inputs: The examples as inputs of the model.
        baseline: Results of the float model on the held-out examples.
        embedding_ranges: Ranges of the embeddings; `None` for other tasks.
    """

    source: Source
    scheme: Scheme
    data: Data
    ranges: RangeSource
    examples: ChosenExamples
    plans: Sequence[Plan]
    refused: Mapping[str, str]
    inputs: Inputs
    baseline: Baseline
    sited: SitedSource
    calibration: CalibrationResult
    embedding_ranges: VectorRanges | None = None

    @property
    def notices(self) -> tuple[str, ...]:
        """Messages for the user."""
        parts = (self.source, self.ranges, self.examples, self.inputs)
        return tuple(notice for part in parts for notice in part.notices)

    def int8_percent(self, plan: Plan) -> float | None:
        """Return the share of int8 multiplications under a plan; `None` for the float model."""
        if plan.target.quantizes == "nothing":
            return None
        return int8_percent(plan.specs, self.sited.weights())


def prepare(
    source: Source,
    targets: Sequence[Target],
    scheme: Scheme,
    data: Data,
    call: BatchCall,
    progress: Progress,
    *,
    earlier: Artifact | None = None,
    leaves_out: bool = False,
) -> Ready:
    """Calibrate a model, and run it in float.

    Raises:
        UserInputError: An argument or a file cannot be used, or a target does not run the model.
        CalibrationError: A site saw no usable value.
    """
    ranges = choose_range_source(source, scheme, earlier)
    trained = rows_of(source.training, "training")
    examples = choose_examples(data, source.task, source.config.id2label, ranges.known, trained)
    plans = make_plans(source, targets, scheme, leaves_out=leaves_out)
    inputs = encode_inputs(source, examples, call)
    baseline = run_float(source, inputs, progress)
    # Nothing can be computed of values that are not finite, which are refused below.
    is_finite = all(np.isfinite(prediction).all() for prediction in baseline.predictions)
    if is_finite:
        baseline = baseline if examples.labeled_data is None else baseline.with_scores()
        checks = baseline.check(baseline.predictions, data.limits)
        for warning in limit_warnings(checks, baseline.metrics):
            _LOGGER.warning(warning)
    # The model with sites takes the place of the float model in memory.
    sited = source.with_sites(plans.groups)
    vectors: dict[int, Prediction] = {}

    def keep(batch: Batch, outputs: Outputs) -> None:
        vectors.update(predictions_of(source.task, inputs.calibration.features, batch, outputs))

    is_embedding, batches = source.task.is_embedding, inputs.calibration.batches
    fits = _fits(source, inputs, call)
    calibration = find_calibration(
        ranges,
        source,
        sited,
        batches,
        plans.made,
        scheme,
        progress,
        keep if is_embedding or fits else None,
    )
    if fits and is_finite:
        inputs = _fitted(source, sited, inputs, vectors, progress)
        baseline = dataclasses.replace(baseline, options=inputs.task_options)
        baseline = baseline if examples.labeled_data is None else baseline.with_scores()
    embedding_ranges = None
    if vectors and is_embedding:
        embedding_ranges = VectorRanges.of([*vectors.values()])
    elif is_embedding:
        embedding_ranges = find_embedding_ranges(sited, inputs, baseline, ranges, progress)
    # Calibration names the site of a NaN, but does not see a head that stays in float.
    if not is_finite:
        raise CheckpointError(
            f"The float model {source.name!r} returns NaN or infinite values. Check its weights."
        )
    notices = (
        *ranges.notices,
        *rounding_notices(ranges, plans.made, calibration),
        *training_notices(ranges, source, plans.made, scheme),
    )
    return Ready(
        source=source,
        scheme=scheme,
        data=data,
        ranges=dataclasses.replace(ranges, notices=notices),
        examples=examples,
        plans=plans.made,
        refused=plans.refused,
        inputs=inputs,
        baseline=baseline,
        sited=sited,
        calibration=calibration,
        embedding_ranges=embedding_ranges,
    )


def _fits(source: Source, inputs: Inputs, call: BatchCall) -> bool:
    """Return whether examples of the calibration show a setting that the user does not name."""
    usual = TaskSettings().decision_temperature
    is_given = inputs.task_options.decision_temperature != usual or (
        call.task_options.decision_temperature is not None
    )
    is_calibrated = inputs.calibration is not inputs.heldout
    return source.task.fit is not None and is_calibrated and not is_given


def _fitted(
    source: Source,
    sited: SitedSource,
    inputs: Inputs,
    known: Mapping[int, Prediction],
    progress: Progress,
) -> Inputs:
    """Return the inputs with settings that the float model shows on the calibration data.

    `known` are its predictions by the index of the feature, if the calibration ran it.
    """
    encoded, task = inputs.calibration, source.task
    assert task.fit is not None, "checked before"
    found = dict(known)
    if not found:
        with progress.stage("Fitting the temperature", len(encoded.batches)) as advance:
            found = predict_batches(task, sited.runner, encoded.batches, encoded.features, advance)
    outcome = Outcome(
        [found[index] for index in range(encoded.texts)],
        encoded.features,
        source.config.id2label,
        inputs.task_options,
        inputs.tokenizer,
    )
    fitted = task.fit(outcome)
    if fitted is None:
        return inputs
    settings, notice = fitted
    return dataclasses.replace(inputs, task_options=settings, notices=(*inputs.notices, notice))


def find_embedding_ranges(
    sited: SitedSource, inputs: Inputs, baseline: Baseline, ranges: RangeSource, progress: Progress
) -> VectorRanges:
    """Return the ranges of the embeddings of the calibration data, which was not run here.

    If the ranges of this call come from an earlier call, so do these.
    """
    if ranges.earlier is not None:
        stored = ranges.earlier.embedding_ranges
        if stored is not None:
            return VectorRanges.of_json(stored)
    encoded, task = inputs.calibration, baseline.task
    if encoded is inputs.heldout:
        return VectorRanges.of(baseline.predictions)
    batches = encoded.batches[:: max(1, encoded.texts // _RANGE_TEXTS)]
    with progress.stage("Finding the ranges of embeddings", len(batches)) as advance:
        found = predict_batches(task, sited.runner, batches, encoded.features, advance)
    release_memory()
    return VectorRanges.of([*found.values()])


def encode_inputs(source: Source, examples: ChosenExamples, call: BatchCall) -> Inputs:
    """Tokenize the examples of a call, at the length and with the settings that apply."""
    task, trained = source.task, source.training
    max_length, notices = input_length(
        call.max_length, trained.get("max_length") or task.max_length, source.max_length
    )
    task_options = task_options_of(task, call.task_options, trained.get("task_options", {}))
    tokenizer = runtime_tokenizer(source.tokenizer, source.pair_template)

    how = Tokenization(
        tokenizer=tokenizer,
        input_names=source.input_names,
        max_length=max_length,
        settings=task_options,
    )

    def encoded(chosen: Sequence[Any], what: str, encode: Encode = task.encode) -> EncodedExamples:
        result = encode_examples(encode, chosen, how, batch_size=call.batch_size)
        notices.extend(f"In the {what} data: {notice}" for notice in result.features.notices)
        return result

    heldout = encoded(examples.heldout, "held-out")
    notices += repeated_notices(task, heldout.features)
    used = examples.calibration
    of_calibration = task.encode
    if task.encode_calibration is not None and source.head is not None:
        of_calibration = functools.partial(task.encode_calibration, source.head)
    return Inputs(
        calibration=encoded(used, "calibration", of_calibration) if used else heldout,
        heldout=heldout,
        tokenizer=tokenizer,
        max_length=max_length,
        task_options=task_options,
        notices=tuple(notices),
    )


def run_float(source: Source, inputs: Inputs, progress: Progress) -> Baseline:
    """Return the results of the float model on the held-out examples, without scores."""
    heldout = inputs.heldout
    with progress.stage("Running the float model", len(heldout.batches)) as advance:
        predictions = predict(source.task, source.runner(), heldout, advance)
    release_memory()
    return Baseline(
        task=source.task,
        encoded=heldout,
        predictions=predictions,
        tokenizer=inputs.tokenizer,
        id2label=source.config.id2label,
        options=inputs.task_options,
    )
