"""Checkpoints of transformers, in PyTorch."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor

from qdqbert.calibration.calibrate import as_tensors, run_observed
from qdqbert.calibration.calibration import Calibration
from qdqbert.calibration.encoder_run import EncoderRun
from qdqbert.calibration.passes import Run
from qdqbert.checkpoint.load import Checkpoint
from qdqbert.encoders.model import EncoderModel
from qdqbert.encoders.sites import sites_of
from qdqbert.encoding import Batch
from qdqbert.engines.runner import Runner
from qdqbert.evidence.lowering import Reference, make_references
from qdqbert.evidence.saturation import SaturationCheck
from qdqbert.graph.export import GraphBody, trace_decoder
from qdqbert.graph.of_checkpoint import encoder_of
from qdqbert.graph.sited_graph import sited_graph
from qdqbert.insert.outputs import check_outputs
from qdqbert.insert.sited import (
    encoder_layers,
    insert_quantizers_,
    linear_weights,
    quantizing,
    sited_model,
)
from qdqbert.insert.sited_encoder import SitedEncoder
from qdqbert.models.configuration import recipe_of
from qdqbert.models.state import stored_calibration, stored_specs
from qdqbert.spec import Site, SiteGroup
from qdqbert.targets.target import Plan
from qdqbert.verbs.inference import TorchRunner
from qdqbert.verbs.quantize.source import Advance, StoredQuantizers


class CheckpointSource:
    """A checkpoint in PyTorch; see `ModelSource`."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Read the quantizers of the checkpoint, if it has some, and disable them."""
        self._checkpoint = checkpoint
        self._body = GraphBody.of(checkpoint)
        self.name, self.task = checkpoint.name, str(checkpoint.task)
        self.model_type: str | None = checkpoint.family.model_type
        self.config, self.tokenizer = checkpoint.config, checkpoint.tokenizer
        is_generator = self.task == "text-generation"
        self.generation_config = checkpoint.model.generation_config if is_generator else None
        self.head, self.cross_encoder = checkpoint.head, checkpoint.cross_encoder
        self.max_length = checkpoint.max_length
        if self._encoder is not None:
            self.max_length = min(self.max_length, self._encoder.limit)
        self.input_names, self.output_names = checkpoint.input_names, self._body.output_names
        self.notices: tuple[str, ...] = checkpoint.notices
        self.stored = _take_stored_quantizers_(checkpoint)

    def runner(self) -> Runner:
        """Return the float model, ready to run."""
        return TorchRunner(self._body, self.input_names)

    def sites(self, groups: Collection[SiteGroup]) -> tuple[Site, ...]:
        """Return the sites of some groups."""
        encoder = self._encoder
        if encoder is not None:
            if "output" in groups:
                check_outputs(self._checkpoint.family)
            return sites_of(encoder, self._with_stored(encoder, groups))
        float_class: Any = type(self._checkpoint.model)
        with torch.device("meta"):
            trial = float_class(copy.deepcopy(self.config))
        return insert_quantizers_(trial, self._checkpoint.family, groups).sites

    def with_sites(self, groups: Collection[SiteGroup]) -> SitedCheckpoint:
        """Return the model with the sites of some groups."""
        if self._encoder is not None:
            groups = self._with_stored(self._encoder, groups)
        return SitedCheckpoint(self._checkpoint, self._encoder, groups)

    def _with_stored(
        self, encoder: EncoderModel, groups: Collection[SiteGroup]
    ) -> Collection[SiteGroup]:
        """Return groups of sites, and those of the checkpoint's own quantizers."""
        if self.stored is None:
            return groups
        every = sites_of(encoder, ("layer", "table", "output"))
        return {*groups, *(site.group for site in every if site.name in self.stored.specs)}

    @functools.cached_property
    def _encoder(self) -> EncoderModel | None:
        is_decoder = self.task == "text-generation"
        return None if is_decoder else encoder_of(self._checkpoint)


class SitedCheckpoint:
    """A checkpoint with sites; see `SitedSource`.

    An encoder runs as data. A decoder runs with quantizers in its own modules, and is traced.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        encoder: EncoderModel | None,
        groups: Collection[SiteGroup],
    ) -> None:
        """Make what runs the model, with quantizers that stay disabled.

        Args:
            checkpoint: The checkpoint. The model of a decoder is changed in place.
            encoder: Its model as data; `None` for a decoder.
            groups: Groups of sites.
        """
        self._checkpoint, self._encoder = checkpoint, encoder
        self._body: GraphBody | SitedEncoder
        if encoder is None:
            self._sited = insert_quantizers_(checkpoint.model, checkpoint.family, groups)
            self._body = GraphBody.of(checkpoint)
            self._layers = encoder_layers(checkpoint.model, checkpoint.family)
        else:
            self._body = SitedEncoder(encoder, groups)
            self._sited, self._layers = self._body.sited, list(self._body.layer_paths)
        self._groups = groups
        self._graph: ir.Model | None = None
        self.sites = self._sited.sites

    def observed_run(
        self, names: Collection[str], batches: Sequence[Batch], advance: Advance
    ) -> Run:
        """Return what runs the model and shows its activations; see `SitedSource`."""
        del names
        inputs = as_tensors(batches)
        if isinstance(self._body, SitedEncoder):
            return EncoderRun(self._body, inputs, advance=advance)
        return functools.partial(run_observed, self._sited, self._forward, inputs, advance=advance)

    def weights(self) -> Mapping[str, Tensor]:
        """Return the weight of each linear layer; see `SitedSource`."""
        return linear_weights(self._sited)

    def check_saturation(self, check: SaturationCheck, batches: Sequence[Batch]) -> None:
        """Show the inputs of the linear layers to a check; see `SitedSource`."""
        run_observed(self._sited, self._forward, as_tensors(batches), check, check.scales)

    def graph(self) -> ir.Model:
        """Return the float graph with a node at every site. It is made once."""
        if self._graph is None:
            encoder = self._encoder
            self._graph = (
                trace_decoder(self._sited, self._checkpoint)
                if encoder is None
                else sited_graph(encoder, self._groups)
            )
        return self._graph

    def encoder(self) -> EncoderModel | None:
        """Return the model as data; `None` for decoders."""
        return self._encoder

    @contextlib.contextmanager
    def quantized_runner(self, plan: Plan, calibration: Calibration) -> Iterator[Runner]:
        """Yield the model with fake quantization; see `SitedSource`."""
        with self._quantizing(plan, calibration):
            yield TorchRunner(self._body, self._checkpoint.input_names)

    def references(
        self, plan: Plan, calibration: Calibration, batches: Sequence[Batch]
    ) -> list[Reference]:
        """Return what PyTorch's fake quantization computes; see `SitedSource`."""
        with self._quantizing(plan, calibration):
            return make_references(
                self._sited,
                self._body,
                self.graph(),
                self._layers,
                batches,
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


def _take_stored_quantizers_(checkpoint: Checkpoint) -> StoredQuantizers | None:
    sited = sited_model(checkpoint.model)
    if not sited.quantizers:
        return None
    stored = StoredQuantizers(
        specs=stored_specs(sited),
        calibration=stored_calibration(sited),
        recipe=recipe_of(checkpoint.config),
    )
    for quantizer in sited.quantizers.values():
        quantizer.disable()
    return stored
