"""A float model with its sites: what is calibrated, and what graphs and references are made of."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import numpy as np
from torch import Tensor

from qdqbert.calibration.calibrate import as_tensors, run_observed
from qdqbert.calibration.calibration import CalibrationResult
from qdqbert.calibration.encoder_run import EncoderRun
from qdqbert.calibration.passes import Run
from qdqbert.calibration.reference.body import to_numpy
from qdqbert.calibration.reference.sited_encoder import SitedEncoder
from qdqbert.calibration.reference.sited_model import linear_weights, quantizing
from qdqbert.common.machine import release_memory
from qdqbert.data.tokenizing.encoding import Batch
from qdqbert.encoders.model import EncoderModel
from qdqbert.encoders.sites import linear_layers_of
from qdqbert.engines.runner import Outputs, Runner
from qdqbert.evidence.lowering import Reference, make_references
from qdqbert.evidence.saturation import SaturationCheck
from qdqbert.graphs.edit import constant_array
from qdqbert.graphs.imported.graph_runner import check_token_ids
from qdqbert.graphs.tail import open_tail
from qdqbert.graphs.targets.target import Plan
from qdqbert.graphs.writer import make_graph
from qdqbert.pipeline.predictions import TorchRunner
from qdqbert.quantization.spec import SiteGroup

Advance = Callable[[], None]
OnOutputs = Callable[[Batch, Outputs], None]
"""Receives a batch and the outputs for it."""


class SitedSource:
    """A float model with named sites.

    Attributes:
        sites: Places that can be quantized, in order.
    """

    def __init__(
        self, encoder: EncoderModel, groups: Collection[SiteGroup], *, output_names: Sequence[str]
    ) -> None:
        """Make the model in PyTorch, with quantizers that stay disabled."""
        self.encoder = encoder
        self._output_names = tuple(output_names)
        self._body = SitedEncoder(encoder, groups, open_tail(encoder))
        self._sited = self._body.sited
        self.sites = self._sited.sites

    def observed_run(
        self, batches: Sequence[Batch], advance: Advance, on_outputs: OnOutputs | None = None
    ) -> Run:
        """Return the function that runs the model over all batches and shows its activations.

        `advance` is called after each batch, of the model or of a layer, and `on_outputs` with the
        outputs for each batch, in float, once or more.

        Raises:
            UserInputError: A token id has no embedding.
        """
        rows = len(self.encoder.embeddings.words.rows)
        for batch in batches:
            check_token_ids(batch.inputs, "The model", rows)

        def show(position: int, outputs: tuple[Tensor, ...]) -> None:
            assert on_outputs is not None
            on_outputs(batches[position], to_numpy(outputs, self._body.output_names))

        shown = None if on_outputs is None else show
        return EncoderRun(self._body, as_tensors(batches), advance=advance, on_outputs=shown)

    def weights(self) -> Mapping[str, Tensor]:
        """Return the weight `(out, in)` of each linear layer, by the site of its input."""
        return linear_weights(self._sited)

    def check_saturation(self, check: SaturationCheck, batches: Sequence[Batch]) -> None:
        """Show the inputs of the linear layers to a check, scaled for smoothing."""
        run_observed(
            self._sited,
            lambda inputs: self._body(**inputs),
            as_tensors(batches),
            check,
            check.calibration.scales,
        )

    @functools.cached_property
    def parameters_sha256(self) -> str:
        """The SHA-256 of the parameters of the float graph, whatever their names are.

        Two models have the same digest if ranges of one fit the other.
        """
        linears = itertools.chain.from_iterable(map(linear_layers_of, self.encoder.layers))
        turned = {f"{linear.module}.weight" for linear, _ in linears}
        digests = []
        for name, value in make_graph(self.encoder).graph.initializers.items():
            array = constant_array(value)
            if array is not None and array.dtype == np.float32 and array.size > 1:
                # As checkpoints store it.
                array = np.ascontiguousarray(array.T if name in turned else array)
                digests.append(hashlib.sha256(array.data).digest())
        return hashlib.sha256(b"".join(sorted(digests))).hexdigest()

    @property
    def runner(self) -> Runner:
        """Runner of the float model."""
        return TorchRunner(self._body, self.encoder.input_names)

    @contextlib.contextmanager
    def quantized_runner(self, plan: Plan, calibration: CalibrationResult) -> Iterator[Runner]:
        """Yield a runner of the model with the fake quantization of a plan.

        Used to compare plans. Its outputs are close to a target's graph, but not equal.
        """
        with quantizing(self._sited, plan.specs, calibration):
            yield self.runner

    def references(
        self, plan: Plan, calibration: CalibrationResult, batches: Sequence[Batch]
    ) -> list[Reference]:
        """Return the results of PyTorch's fake quantization under a plan."""
        with quantizing(self._sited, plan.specs, calibration):
            # Rounding all weights leaves about as much memory as it needs.
            release_memory()
            return make_references(
                self._sited,
                self._body,
                list(self._body.layer_paths),
                batches,
                outputs=self._output_names,
                last_bits=plan.target.last_bits,
            )
