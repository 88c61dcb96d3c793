"""Calibrate a model: run it over batches and choose ranges and `pre_quant_scale`s."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from qdqbert.calibration.calibration import CalibrationResult
from qdqbert.calibration.passes import CalibrationPlan, Run, with_shared_weights
from qdqbert.calibration.processes import count_over_processes
from qdqbert.calibration.reference.sited_model import SitedModel, observing
from qdqbert.calibration.statistics import MergeableObserver, Observer
from qdqbert.common.errors import CalibrationError
from qdqbert.data.tokenizing.encoding import Batch
from qdqbert.quantization.numerics.threads import usable_torch_threads

Forward = Callable[[Mapping[str, Any]], object]
"""Runs a model on inputs by name, such as `(batch, seq)` tensors."""


class NoBatchesError(CalibrationError):
    """A calibration has no data."""

    def __init__(self) -> None:
        super().__init__(
            "`batches` is empty, so no quantizer saw data. Pass at least one batch.",
            argument="batches",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
    """A part of a model. All of its passes come before the passes of the next part.

    Attributes:
        names: Names of its sites; see `CalibrationPlan.passes`.
        run: Runs it over all batches. Its first call shows all of its sites, later ones at least
            the sites of `CalibrationPlan.observed_again`.
    """

    names: Collection[str]
    run: Run


@runtime_checkable
class StagedRun(Protocol):
    """A `Run` whose model can also run a part at a time."""

    def parts(self, plan: CalibrationPlan) -> Sequence[Collection[str]]:
        """Return the names of the sites of each stage."""

    def stages(self, plan: CalibrationPlan) -> Iterator[Stage]:
        """Yield the stages, in order. Each has run once the next one is asked for."""


def run_passes(run: Run, plan: CalibrationPlan) -> CalibrationResult:
    """Calibrate anything that can be run and observed.

    The model runs once for each pass, unless `run` is a `StagedRun`.

    Raises:
        CalibrationError: A site saw no value, or one that is not finite; or another process that
            calibrates with this one failed.
    """
    if plan.shared_on is not None:
        run = functools.partial(_run_with_others, run, plan.shared_on)
    whole = Stage(names=plan.names, run=run)
    found = CalibrationResult()
    with usable_torch_threads():
        for stage in run.stages(plan) if isinstance(run, StagedRun) else [whole]:
            for each in plan.passes(stage.names):
                found = each(stage.run, plan, found)
    # In the order of the sites, however the model was divided.
    ranges = {site.name: found.ranges[site.name] for site in plan.sites}
    return with_shared_weights(dataclasses.replace(found, ranges=ranges), plan)


def _run_with_others(
    run: Run, device: torch.device, observer: MergeableObserver, scales: Mapping[str, Tensor]
) -> None:
    """Run in each process, and fail in all if one fails: the others would wait for it for ever.

    A process without batches adds nothing, if another one has some.
    """
    error: Exception | None = None
    is_empty = False
    try:
        run(observer, scales)
    except NoBatchesError:
        is_empty = True
    except Exception as caught:
        error = caught
    failed, seen = count_over_processes(error is not None, not is_empty, device=device)
    if error is not None:
        raise error
    if failed:
        raise CalibrationError(
            "Another process that calibrates with this one failed. Its own error says why."
        )
    if not seen:
        raise NoBatchesError


def count_passes(run: Run, plan: CalibrationPlan) -> int:
    """Return the number of passes of `run_passes` over all batches, by the model or its parts."""
    parts = run.parts(plan) if isinstance(run, StagedRun) else [plan.names]
    return sum(len(plan.passes(names)) for names in parts)


def as_tensors(batches: Sequence[Batch]) -> list[dict[str, Tensor]]:
    """Return the inputs of batches as tensors that share their memory."""
    return [
        {name: torch.from_numpy(array) for name, array in batch.inputs.items()} for batch in batches
    ]


def run_observed(
    sited: SitedModel,
    forward: Forward,
    batches: Iterable[Mapping[str, Any]],
    observer: Observer,
    scales: Mapping[str, Tensor],
    *,
    advance: Callable[[], None] = lambda: None,
    mask_of: Callable[[Mapping[str, Any]], Tensor] | None = None,
) -> None:
    """Run a model over all batches and show its activations to an observer. See `Run`.

    The model runs in evaluation mode, without gradients and on its own device. `mask_of` returns
    the mask of the tokens that count; by default those that are attended to.
    """
    model = sited.model
    training, device = model.training, next(model.parameters()).device
    seen = 0
    model.eval()
    try:
        # Tensors of inference mode that a model keeps could not be trained with afterwards.
        with observing(sited, observer.observe, scales), torch.no_grad():
            for batch in batches:
                inputs = {name: _moved(value, device) for name, value in batch.items()}
                observer.start_batch((mask_of or _mask_of)(inputs))
                forward(inputs)
                seen += 1
                advance()
    finally:
        model.train(training)
    if not seen:
        raise NoBatchesError


def _moved(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, Tensor) else value


def _mask_of(inputs: Mapping[str, Any]) -> Tensor:
    mask = inputs.get("attention_mask")
    if isinstance(mask, Tensor):
        # A multiple choice model folds the axis of choices into the batch.
        return mask.flatten(0, -2) if mask.dim() > 2 else mask
    first = next(value for value in inputs.values() if isinstance(value, Tensor))
    return torch.ones(first.shape[:2], dtype=torch.int64, device=first.device)
