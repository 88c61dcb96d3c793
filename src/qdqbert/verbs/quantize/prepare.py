"""Load a float model, run it, and calibrate it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qdqbert.artifact import Artifact, read_training
from qdqbert.calibration.calibration import CalibrationResult
from qdqbert.checkpoint.demo import demo_checkpoint
from qdqbert.checkpoint.load import describe_checkpoint
from qdqbert.checkpoint.tokenizer import runtime_tokenizer
from qdqbert.choices import ENGINE_NAMES, TargetName, WeightsFor
from qdqbert.engines.runner import is_installed
from qdqbert.errors import CheckpointError, UserInputError, naming
from qdqbert.machine import release_memory
from qdqbert.progress import Progress
from qdqbert.spec import Site, SiteGroup
from qdqbert.targets import target_named
from qdqbert.targets.files import check_encoder
from qdqbert.targets.target import Plan, Target, make_plan, recipe_for
from qdqbert.task_kinds import TaskSettings
from qdqbert.tasks.registry import TASKS, task_for
from qdqbert.tasks.task import Predictions
from qdqbert.tokenizing.tokenizer import Tokenizer
from qdqbert.verbs.inference import Baseline, EncodedExamples, encode_examples, predict
from qdqbert.verbs.quantize.examples import ChosenExamples, choose_examples
from qdqbert.verbs.quantize.options import QuantizeOptions
from qdqbert.verbs.quantize.ranges import (
    RangeSource,
    choose_range_source,
    effective_quantizer_options,
    find_calibration,
    rounding_notices,
)
from qdqbert.verbs.quantize.source import ModelSource
from qdqbert.verbs.quantize.source.checkpoint import read_float
from qdqbert.verbs.quantize.source.onnx import OnnxSource
from qdqbert.verbs.quantize.source.sited import SitedSource
from qdqbert.verbs.settings import changes_of, input_length, task_options_of


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
        ranges: Where its ranges come from.
        examples: Examples of the call.
        plans: One plan for each target that runs the model.
        refused: Why the other targets do not, by name of the target.
        inputs: The examples as inputs of the model.
        baseline: Results of the float model on the held-out examples.
        sited: The model with sites.
        calibration: The ranges.
    """

    source: ModelSource
    ranges: RangeSource
    examples: ChosenExamples
    plans: Sequence[Plan]
    refused: Mapping[str, str]
    inputs: Inputs
    baseline: Baseline
    sited: SitedSource
    calibration: CalibrationResult


def prepare(
    source: ModelSource,
    options: QuantizeOptions,
    targets: Sequence[Target],
    earlier: Artifact | None,
    progress: Progress,
    *,
    max_heldout: int | None = None,
    leaves_out: bool = False,
) -> Ready:
    """Calibrate a model, and run it in float.

    Args:
        source: The float model.
        options: Options of the call.
        targets: Targets of the call.
        earlier: Folder whose ranges are used, if there is one.
        progress: Receives the stages.
        max_heldout: Number of held-out examples at most; all if `None`.
        leaves_out: Leave out targets that do not run the model, as long as one does.

    Raises:
        UserInputError: An argument or a file cannot be used, or a target does not run the model.
        CalibrationError: A site saw no usable value.
    """
    ranges = choose_range_source(source, options, earlier)
    task = task_for(source.task, source.config)
    examples = choose_examples(task, options, id2label=source.config.id2label, known=ranges.known)
    if max_heldout is not None:
        examples = dataclasses.replace(examples, heldout=examples.heldout[:max_heldout])
    groups = site_groups(options, targets)
    refused: dict[str, UserInputError] = {}
    plans = make_plans(
        source, source.sites(groups), targets, options, refused if leaves_out else None
    )
    _check_any(plans, refused)
    inputs = encode_inputs(source, examples, options)
    with progress.stage("Running the float model", len(inputs.heldout.batches)) as advance:
        predictions = predict(task, source.runner(), inputs.heldout, advance)
    release_memory()
    sited = source.with_sites(groups)
    plans = check_models(sited, plans, refused if leaves_out else None)
    _check_any(plans, refused)
    batches = inputs.calibration.batches
    calibration = find_calibration(ranges, source, sited, batches, plans, options, progress)
    notices = (*ranges.notices, *rounding_notices(ranges, plans, calibration))
    check_finite(source, predictions)
    baseline = make_baseline(
        source, inputs, predictions, is_labeled=examples.labeled_data is not None
    )
    return Ready(
        source=source,
        ranges=dataclasses.replace(ranges, notices=notices),
        examples=examples,
        plans=plans,
        refused={name: str(error) for name, error in refused.items()},
        inputs=inputs,
        baseline=baseline,
        sited=sited,
        calibration=calibration,
    )


def choose_targets(options: QuantizeOptions, task: str) -> list[Target]:
    """Return the targets of a call, as they are for the CPUs that weights are encoded for.

    Args:
        options: Options of the call.
        task: Task of the model, for the targets of a call that names none.
    """
    names = dict.fromkeys(options.targets or _default_targets(task))
    return [for_cpus(target_named(name), options.quantizers.weights_for) for name in names]


def _default_targets(task: str) -> list[TargetName]:
    """Return a target for each engine that is installed, so that `load` can take the fastest."""
    if TASKS[task].model is None:
        # `load` does not run it, so that any runtime may.
        return ["portable"]
    return [name for name in ENGINE_NAMES if is_installed(name)]


def for_cpus(target: Target, weights_for: WeightsFor) -> Target:
    """Return a target as it is for the CPUs that weights are encoded for."""
    if weights_for == "vnni":
        recipe = target.vnni_recipe or target.recipe
        return dataclasses.replace(target, adjacent_sum_limit=None, recipe=recipe)
    return target


def open_source(options: QuantizeOptions, scratch: Path, progress: Progress) -> ModelSource:
    """Load the checkpoint, or read the .onnx file.

    Raises:
        UserInputError: It cannot be used.
    """
    if options.is_onnx:
        with progress.stage("Reading the graph"), naming("model"):
            source: ModelSource = OnnxSource(
                Path(options.model or ""),
                task=options.task,
                tokenizer=options.onnx.tokenizer,
                input_names=options.onnx.input_names or {},
                output_names=options.onnx.output_names or {},
                scratch=scratch,
            )
        _check_timed(options, source.task)
    else:
        with progress.stage("Loading the checkpoint"), naming("model"):
            name = os.fspath(demo_checkpoint() if options.model is None else options.model)
            source = _open_checkpoint(name, options)
    return source


def _open_checkpoint(name: str, options: QuantizeOptions) -> ModelSource:
    found = describe_checkpoint(name, task=options.task, pooling=options.task_options.pooling)
    _check_timed(options, str(found.task))
    if getattr(found.config, "quantizers", None) is None:
        return read_float(found)
    # The classes that trained its quantizers read them, and load transformers' models.
    from qdqbert.verbs.quantize.source.stored import read_stored

    return read_stored(found)


def _check_timed(options: QuantizeOptions, task: str) -> None:
    """Refuse the target `auto` for a task that `load` does not run."""
    if options.is_auto and TASKS[task].model is None:
        raise UserInputError(
            "`targets=['auto']` times a model as `load` runs it, and `load` does not run task "
            f"{task!r}. Pass other `targets`, such as 'portable'.",
            argument="targets",
        )


def encode_inputs(
    source: ModelSource, examples: ChosenExamples, options: QuantizeOptions
) -> Inputs:
    """Tokenize the examples of a call, at the length and with the settings that apply."""
    trained = read_training(Path(options.model)) if options.model is not None else {}
    task = task_for(source.task, source.config)
    max_length, notices = input_length(
        options.max_length, trained.get("max_length") or task.max_length, source.max_length
    )
    task_options = task_options_of(options.task_options, trained.get("task_options", {}))

    tokenizer = runtime_tokenizer(source.tokenizer)

    def encoded(chosen: Sequence[Any], what: str) -> EncodedExamples:
        result = encode_examples(
            task,
            tokenizer,
            chosen,
            input_names=source.input_names,
            max_length=max_length,
            batch_size=options.batch_size,
            options=task_options,
        )
        notices.extend(f"In the {what} data: {notice}" for notice in result.features.notices)
        return result

    heldout = encoded(examples.heldout, "held-out")
    used = examples.calibration
    return Inputs(
        calibration=encoded(used, "calibration") if used else heldout,
        heldout=heldout,
        tokenizer=tokenizer,
        max_length=max_length,
        task_options=task_options,
        notices=tuple(notices),
    )


def make_baseline(
    source: ModelSource, inputs: Inputs, predictions: Predictions, *, is_labeled: bool
) -> Baseline:
    """Return the results of the float model, which INT8 is compared with.

    Args:
        source: The float model.
        inputs: Inputs of the call.
        predictions: Its predictions for the held-out examples.
        is_labeled: Whether these examples have labels.
    """
    task, heldout = task_for(source.task, source.config), inputs.heldout
    labels, options = source.config.id2label, inputs.task_options
    scores = task.scores(predictions, heldout.features, labels, options) if is_labeled else ()
    return Baseline(
        task=task,
        encoded=heldout,
        predictions=predictions,
        scores=tuple(scores),
        id2label=labels,
        options=options,
    )


def site_groups(options: QuantizeOptions, targets: Sequence[Target]) -> set[SiteGroup]:
    """Return the groups of sites that the recipes of a call place."""
    recipes = [recipe_for(each, options.recipe, options.quantizers.embeddings) for each in targets]
    return {group for recipe in recipes for group in recipe.groups}


def make_plans(
    source: ModelSource,
    sites: Sequence[Site],
    targets: Sequence[Target],
    options: QuantizeOptions,
    refused: dict[str, UserInputError] | None = None,
) -> list[Plan]:
    """Resolve the recipe of each target on the sites of the model.

    Args:
        source: The float model.
        sites: Its sites.
        targets: Targets of the call.
        options: Options of the call.
        refused: Receives the errors of targets that are left out, by name. If it is `None`, none
            is left out.

    Raises:
        UserInputError: A target cannot run the recipe.
        UnmatchedRuleError: A rule of a recipe or a pattern matches no site.
    """
    changes = changes_of(options.quantizers)
    stored = source.stored
    plans = []
    for target in targets:
        with _leaving_out(target, refused):
            plan = make_plan(
                target,
                sites,
                recipe=options.recipe,
                embeddings=options.quantizers.embeddings,
                # Without changes, quantizers of a checkpoint keep their own bits.
                quantizer_options=effective_quantizer_options(options) if changes else None,
                stored=None if stored is None else stored.specs,
                placed_by=None if stored is None else stored.recipe,
                dedicated_pairs=options.quantizers.dedicated_qdq_pairs,
            )
            plans.append(plan)
    return plans


def check_models(
    sited: SitedSource, plans: Sequence[Plan], refused: dict[str, UserInputError] | None = None
) -> list[Plan]:
    """Return the plans of the targets that run the model.

    Args:
        sited: The model with its sites.
        plans: One plan for each target.
        refused: As in `make_plans`.

    Raises:
        UserInputError: A target does not run the model.
    """
    kept = []
    for plan in plans:
        with _leaving_out(plan.target, refused):
            check_encoder(plan.target, sited.encoder)
            kept.append(plan)
    return kept


@contextlib.contextmanager
def _leaving_out(target: Target, refused: dict[str, UserInputError] | None) -> Iterator[None]:
    """Store the error that a target cannot be used, instead of raising it."""
    try:
        yield
    except UserInputError as error:
        if refused is None:
            raise
        refused[target.name] = error


def _check_any(plans: Sequence[Plan], refused: Mapping[str, UserInputError]) -> None:
    """Raise the first error if every target is left out."""
    if not plans:
        raise next(iter(refused.values()))


def check_finite(source: ModelSource, predictions: Predictions) -> None:
    """Refuse a float model whose outputs are not finite.

    Calibration looks at quantized sites only, and so does not see a head that stays in float.

    Raises:
        CheckpointError: There is a NaN or infinite value.
    """
    if not all(np.isfinite(prediction).all() for prediction in predictions):
        raise CheckpointError(
            f"The float model {source.name!r} returns NaN or infinite values. Check its weights."
        )
