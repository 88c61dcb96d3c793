"""Run an encoder for its calibration, at once or a layer at a time.

A whole model runs once for each pass, because the tensors inside of it do not fit into memory. The
tensors of one layer that several passes need do fit. So each layer runs once over all batches, and
the passes after the first one read the recorded tensors.

Decoders, existing ONNX models, models in your own loop and nodes of a Ray cluster run the whole
model once for each pass. The results are equal, bit for bit.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from qdqbert.calibration.calibrate import NoBatchesError, Stage, run_observed
from qdqbert.calibration.passes import CalibrationPlan
from qdqbert.calibration.reference.sited_encoder import Masks, SitedEncoder
from qdqbert.calibration.reference.sited_model import observing, scaled
from qdqbert.calibration.statistics import Observer
from qdqbert.common.machine import release_memory
from qdqbert.quantization.spec import Site

# Memory of the tensors that are recorded while a layer runs: 18,000 tokens in BERT-base. Batches
# that exceed it run through the layer again for each pass.
_RECORDED_BYTES = 384_000_000
# Memory of the states before and after a layer. More data runs through the whole model instead.
_STATE_BYTES = 512_000_000


OnOutputs = Callable[[int, tuple[Tensor, ...]], None]
"""Receives the position of a batch and the outputs for it; see `SitedEncoder.forward`."""


class EncoderRun:
    """Runs an encoder over all batches; see `StagedRun`."""

    def __init__(
        self,
        encoder: SitedEncoder,
        batches: Sequence[Mapping[str, Tensor]],
        *,
        advance: Callable[[], None] = lambda: None,
        on_outputs: OnOutputs | None = None,
    ) -> None:
        """Set the model and its data.

        Args:
            encoder: The model.
            batches: Its inputs.
            advance: Called after each batch, of the model or of a layer.
            on_outputs: Called with the outputs for each batch, in float; again if the whole model
                runs again.
        """
        self._encoder, self._batches, self._advance = encoder, batches, advance
        self._on_outputs = on_outputs

    def __call__(self, observer: Observer, scales: Mapping[str, Tensor]) -> None:
        """Run the whole model; see `Run`."""
        positions = itertools.count()

        def forward(inputs: Mapping[str, Tensor]) -> None:
            outputs = self._encoder(**inputs)
            if self._on_outputs is not None:
                self._on_outputs(next(positions), outputs)

        run_observed(
            self._encoder.sited,
            forward,
            self._batches,
            observer,
            scales,
            advance=self._advance,
            mask_of=lambda inputs: self._encoder.with_states(**inputs),
        )

    def parts(self, plan: CalibrationPlan) -> list[Collection[str]]:
        """Return the names of the sites of each layer, or of the whole model if it is not divided.

        Layers behind the last one that has a pass are left out.
        """
        if not self._is_divided:
            return [self._encoder.quantizers.keys()]
        parts = list(self._encoder.layer_sites)
        while parts and not plan.passes(parts[-1]):
            parts.pop()
        return [*parts]

    def stages(self, plan: CalibrationPlan) -> Iterator[Stage]:
        """Yield the layers, or the whole model if it is not divided."""
        if not self._batches:
            raise NoBatchesError
        parts = self.parts(plan)
        if not self._is_divided:
            yield Stage(names=parts[0], run=self)
            return
        with torch.no_grad():
            pairs = [self._encoder.embed(**inputs) for inputs in self._batches]
        states, masks = [x for x, _ in pairs], [mask for _, mask in pairs]
        counted = [self._encoder.with_states(**inputs) for inputs in self._batches]
        del pairs
        for index, names in enumerate(parts):
            layer = _LayerRun(
                self._encoder,
                index,
                states,
                masks,
                counted,
                recorded=plan.observed_again.intersection(names),
                passes=len(plan.passes(names)),
                advance=self._advance,
            )
            yield Stage(names=names, run=layer)
            states = layer.outputs()
            release_memory()
        if self._on_outputs is not None:
            self._finish(len(parts), states, masks)

    def _finish(self, layer: int, states: Sequence[Tensor], masks: Sequence[Tensor]) -> None:
        """Run the rest of the model, from a layer on, and show its outputs."""
        assert self._on_outputs is not None
        for position, (x, mask) in enumerate(zip(states, masks, strict=True)):
            with torch.no_grad():
                for index in range(layer, len(self._encoder.layer_sites)):
                    x = self._encoder.run_layer(index, x, Masks(mask))
                outputs = self._encoder.finish(x, **self._batches[position])
            self._on_outputs(position, outputs)

    @property
    def _is_divided(self) -> bool:
        layers = self._encoder.layer_sites
        # A module that several layers share is calibrated on its inputs in all of them.
        is_shared = sum(map(len, layers)) > len(frozenset().union(*layers))
        tokens = sum(inputs["input_ids"].numel() for inputs in self._batches)
        return not is_shared and 2 * 4 * tokens * self._encoder.hidden_size <= _STATE_BYTES


class _LayerRun:
    """Runs a layer over all batches; see `Run`. Later calls show the recorded tensors."""

    def __init__(
        self,
        encoder: SitedEncoder,
        index: int,
        states: Sequence[Tensor],
        masks: Sequence[Tensor],
        counted: Sequence[Tensor],
        *,
        recorded: Collection[str],
        passes: int,
        advance: Callable[[], None],
    ) -> None:
        """Set the model and its data.

        Args:
            encoder: The model.
            index: Position of the layer.
            states: The states before the layer, for each batch, `(texts, seq, hidden)`.
            masks: Masks of the texts, for each batch, `(texts, seq)`.
            counted: Masks of the tokens whose states are needed, for each batch, `(texts, seq)`.
            recorded: Names of the sites that later calls show.
            passes: Number of calls, after which the recorded tensors are dropped.
            advance: Called after each batch.
        """
        self._encoder, self._index, self._states, self._masks = encoder, index, states, masks
        self._counted = counted
        self._wanted, self._left_passes, self._advance = recorded, passes, advance
        self._outputs: list[Tensor] = []
        # Recorded tensors of the first batches, as far as memory allows.
        self._recorded: list[list[tuple[Site, Tensor]]] = []
        self._left = _RECORDED_BYTES

    def __call__(self, observer: Observer, scales: Mapping[str, Tensor]) -> None:
        """Show the activations of the layer."""
        show = scaled(observer.observe, scales)
        is_first = not self._outputs
        for batch, counted in enumerate(self._counted):
            observer.start_batch(counted)
            if is_first:
                self._run_and_record(batch, show)
            elif batch < len(self._recorded):
                for site, x in self._recorded[batch]:
                    show(site, x)
            else:
                self._run(batch, show)
            self._advance()
        self._left_passes -= 1
        if self._left_passes <= 0:
            # The last results are computed without the recorded tensors.
            self._recorded = []
            release_memory()

    def outputs(self) -> list[Tensor]:
        """Return the states after the layer, for each batch."""
        if not self._outputs:
            self._outputs = [self._run(batch, _ignore) for batch in range(len(self._masks))]
        return self._outputs

    def _run(self, batch: int, show: Callable[[Site, Tensor], None]) -> Tensor:
        with observing(self._encoder.sited, show), torch.no_grad():
            masks = Masks(self._masks[batch])
            return self._encoder.run_layer(self._index, self._states[batch], masks)

    def _run_and_record(self, batch: int, show: Callable[[Site, Tensor], None]) -> None:
        seen: list[tuple[Site, Tensor]] = []

        def record(site: Site, x: Tensor) -> None:
            if site.name in self._wanted:
                seen.append((site, x))
            show(site, x)

        self._outputs.append(self._run(batch, record))
        # Query, key and value read one tensor.
        self._left -= sum({id(x): x.nbytes for _, x in seen}.values())
        if self._left >= 0:
            self._recorded.append(seen)


def _ignore(site: Site, x: Tensor) -> None:
    del site, x
