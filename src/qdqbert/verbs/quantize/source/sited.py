"""A float model with its sites: what is calibrated, and what graphs and references are made of."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from qdqbert.calibration.calibrate import as_tensors, run_observed
from qdqbert.calibration.calibration import Calibration
from qdqbert.calibration.encoder_run import EncoderRun
from qdqbert.calibration.passes import Run
from qdqbert.encoders.model import EncoderModel, Tail
from qdqbert.encoding import Batch
from qdqbert.engines.onnxruntime import load_graph
from qdqbert.engines.runner import Runner
from qdqbert.errors import UserInputError
from qdqbert.evidence.lowering import Reference, make_references
from qdqbert.evidence.saturation import SaturationCheck
from qdqbert.graph.sited_graph import sited_graph
from qdqbert.machine import release_memory
from qdqbert.reference.sited_encoder import RunTail, SitedEncoder
from qdqbert.reference.sited_model import linear_weights, quantizing
from qdqbert.spec import SiteGroup
from qdqbert.targets.target import Plan
from qdqbert.verbs.inference import TorchRunner

Advance = Callable[[], None]


class SitedSource:
    """A float model with named sites.

    Attributes:
        encoder: The model as data.
        sites: Places that can be quantized, in order.
    """

    def __init__(
        self,
        encoder: EncoderModel,
        groups: Collection[SiteGroup],
        *,
        output_names: Sequence[str],
    ) -> None:
        """Make what runs the model, with quantizers that stay disabled.

        Args:
            encoder: The model as data.
            groups: Groups of sites.
            output_names: Names of the outputs that the task reads.
        """
        self.encoder, self._groups = encoder, groups
        self._output_names = tuple(output_names)
        run_tail = None if encoder.tail is None else _open_tail(encoder.tail)
        self._body = SitedEncoder(encoder, groups, run_tail)
        self._sited = self._body.sited
        self.sites = self._sited.sites

    def observed_run(
        self, names: Collection[str], batches: Sequence[Batch], advance: Advance
    ) -> Run:
        """Return what runs the model over all batches and shows its activations.

        Args:
            names: Sites that are observed.
            batches: The inputs.
            advance: Called after each batch.

        Raises:
            UserInputError: A token id has no embedding.
        """
        del names
        _check_token_ids(self.encoder, batches)
        return EncoderRun(self._body, as_tensors(batches), advance=advance)

    def weights(self) -> Mapping[str, Tensor]:
        """Return the weight `(out, in)` of each linear layer, by the site of its input."""
        return linear_weights(self._sited)

    def check_saturation(self, check: SaturationCheck, batches: Sequence[Batch]) -> None:
        """Show the inputs of the linear layers to a check, scaled for smoothing."""
        run_observed(self._sited, self._forward, as_tensors(batches), check, check.scales)

    @functools.cached_property
    def graph(self) -> ir.Model:
        """The float graph with a node at every site. It is made once."""
        return sited_graph(self.encoder, self._groups)

    @contextlib.contextmanager
    def quantized_runner(self, plan: Plan, calibration: Calibration) -> Iterator[Runner]:
        """Yield what computes the outputs under a plan, with fake quantization.

        Used to compare plans. It is near to what the graph of a target computes, not equal.
        """
        with self._quantizing(plan, calibration):
            yield TorchRunner(self._body, self.encoder.input_names)

    def references(
        self, plan: Plan, calibration: Calibration, batches: Sequence[Batch]
    ) -> list[Reference]:
        """Return what PyTorch's fake quantization computes under a plan."""
        with self._quantizing(plan, calibration):
            # Rounding all weights leaves about as much memory as it needs.
            release_memory()
            return make_references(
                self._sited,
                self._body,
                self.graph,
                list(self._body.layer_paths),
                batches,
                outputs=self._output_names,
                last_bits=plan.target.last_bits,
            )

    def _quantizing(
        self, plan: Plan, calibration: Calibration
    ) -> contextlib.AbstractContextManager[None]:
        return quantizing(
            self._sited,
            plan.specs,
            calibration.ranges,
            calibration.scales,
            calibration.weight_amax,
            calibration.means,
            calibration.roundings,
        )

    def _forward(self, inputs: Mapping[str, Tensor]) -> object:
        return self._body(**inputs)


def _open_tail(tail: Tail) -> RunTail:
    """Return what computes the outputs of a tail on ONNX Runtime."""
    run = load_graph(tail.graph)

    def computed(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        made = run({name: value.numpy() for name, value in inputs.items()})
        return {name: torch.from_numpy(value) for name, value in made.items()}

    return computed


def _check_token_ids(encoder: EncoderModel, batches: Sequence[Batch]) -> None:
    rows = len(encoder.embeddings.words.rows)
    largest = max((int(np.max(batch.inputs["input_ids"])) for batch in batches), default=0)
    if largest >= rows:
        raise UserInputError(
            f"The model has embeddings for {rows} token ids, and the tokenizer returned id "
            f"{largest}. Pass the `tokenizer` of this model.",
            argument="tokenizer",
        )
