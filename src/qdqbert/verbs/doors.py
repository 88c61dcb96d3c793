"""The two doors of `quantize`: a checkpoint of transformers, or a ready .onnx file.

They differ in how sites are found, how values are watched and what the float model is run by.
Everything behind them is one road.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import onnx_ir as ir
import torch
from torch import Tensor

from qdqbert.calibration.calibrate import calibrate, run_observed, run_passes
from qdqbert.calibration.calibration import Calibration
from qdqbert.calibration.passes import CalibrationPlan
from qdqbert.calibration.statistics import Observer
from qdqbert.checkpoint.load import Checkpoint
from qdqbert.checkpoint.sentence import SentenceHead
from qdqbert.encoding import Batch
from qdqbert.engines.runner import Runner
from qdqbert.errors import UserInputError
from qdqbert.evidence.lowering import Reference, make_graph_references, make_references
from qdqbert.evidence.saturation import SaturationCheck
from qdqbert.graph.edit import keep_outputs
from qdqbert.graph.export import GraphBody, example_inputs, export_sited
from qdqbert.graph.imported.graph_runner import check_token_ids, engine_errors
from qdqbert.graph.imported.imported_model import import_onnx
from qdqbert.graph.imported.observed_graph import ObservedGraph
from qdqbert.graph.imported.tokenizer_and_config import choose_task, load_tokenizer_and_config
from qdqbert.graph.qdq import insert_qdq
from qdqbert.insert.sited import (
    encoder_layers,
    insert_quantizers_,
    linear_weights,
    quantizing,
    sited_model,
)
from qdqbert.models.state import stored_calibration, stored_specs
from qdqbert.numerics.ranges import Calibrator
from qdqbert.recipes import QuantizerOptions
from qdqbert.spec import Site, SiteGroup, Smoothing, TensorSpec
from qdqbert.targets.target import Plan
from qdqbert.verbs.inference import TorchRunner

Advance = Callable[[], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stored:
    """What a checkpoint with quantizers says of them.

    Attributes:
        specs: How they quantize, by site name.
        calibration: What they were calibrated, or trained, with.
    """

    specs: Mapping[str, TensorSpec | None]
    calibration: Calibration


class Door(Protocol):
    """A float model on its way in.

    Attributes:
        name: As the user gave it.
        task: What its head is for.
        model_type: transformers' name of its family; `None` if it is not known.
        config: Its config, or as much of one as is known.
        tokenizer: Its tokenizer.
        head: Pooling and normalisation of sentence-transformers folders.
        max_length: Longest input in tokens.
        input_names: Inputs of the model.
        output_names: Outputs of the model.
        stored: Of a checkpoint that has quantizers of its own.
        sites: Where it can be quantized, after `open_sites`.
        notices: What the user should know.
    """

    name: str
    task: str
    model_type: str | None
    config: Any
    tokenizer: Any
    head: SentenceHead | None
    max_length: int
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    stored: Stored | None
    sites: tuple[Site, ...]
    notices: tuple[str, ...]

    def runner(self) -> Runner:
        """The float model."""
        ...

    def open_sites(self, groups: Collection[SiteGroup]) -> None:
        """Puts sites in; `groups` as in `insert_quantizers_`."""
        ...

    def calibrate(
        self,
        batches: Sequence[Batch],
        *,
        sites: Sequence[str],
        calibrator: Calibrator,
        smoothing: Smoothing | None,
        unsmoothed_sites: Collection[str],
        clips_residuals: bool,
        quantizer_options: QuantizerOptions,
        advance: Advance,
    ) -> Calibration:
        """Chooses ranges, see `calibration.calibrate.calibrate`."""
        ...

    def graph(self) -> ir.Model:
        """The float graph with a node at every site."""
        ...

    def check_saturation(self, check: SaturationCheck, batches: Sequence[Batch]) -> None:
        """Shows what linears read to a check, `pre_quant_scale` and all."""
        ...

    def weights(self) -> Mapping[str, Tensor]:
        """Weight `(out, in)` of each linear, by the name of its input's site."""
        ...

    def references(
        self, plan: Plan, calibration: Calibration, batches: Sequence[Batch]
    ) -> list[Reference]:
        """What the model computes under a plan, exactly."""
        ...


class CheckpointDoor:
    """A checkpoint of transformers in PyTorch. See `Door`."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._body = GraphBody.of(checkpoint)
        self._graph: ir.Model | None = None
        self.notices: tuple[str, ...] = checkpoint.notices
        self.name, self.task = checkpoint.name, str(checkpoint.task)
        self.model_type: str | None = checkpoint.family.model_type
        self.config, self.tokenizer = checkpoint.config, checkpoint.tokenizer
        self.head, self.max_length = checkpoint.head, checkpoint.max_length
        self.input_names, self.output_names = checkpoint.input_names, self._body.output_names
        self.stored = self._read_stored()
        self.sites: tuple[Site, ...] = ()

    def _read_stored(self) -> Stored | None:
        """What the quantizers of a QDQBERT checkpoint are; they are put to rest."""
        sited = sited_model(self._checkpoint.model)
        if not sited.quantizers:
            return None
        stored = Stored(specs=stored_specs(sited), calibration=stored_calibration(sited))
        for quantizer in sited.quantizers.values():
            quantizer.disable()
        return stored

    def runner(self) -> Runner:
        """See `Door`."""
        return TorchRunner(self._body, self.input_names)

    def open_sites(self, groups: Collection[SiteGroup]) -> None:
        """See `Door`."""
        self._sited = insert_quantizers_(self._checkpoint.model, self._checkpoint.family, groups)
        self.sites = self._sited.sites

    def calibrate(
        self, batches: Sequence[Batch], *, sites: Sequence[str], **settings: Any
    ) -> Calibration:
        """See `Door`."""
        return calibrate(
            self._sited, lambda inputs: self._body(**inputs), batches, sites=sites, **settings
        )

    def weights(self) -> Mapping[str, Tensor]:
        """See `Door`."""
        return linear_weights(self._sited)

    def check_saturation(self, check: SaturationCheck, batches: Sequence[Batch]) -> None:
        """See `Door`."""
        run_observed(
            self._sited,
            lambda inputs: self._body(**inputs),
            batches,
            check,
            check.scales,
        )

    def graph(self) -> ir.Model:
        """See `Door`."""
        if self._graph is None:
            example = example_inputs(self.input_names, self.task)
            self._graph = export_sited(self._sited, self._body, example)
        return self._graph

    def references(
        self, plan: Plan, calibration: Calibration, batches: Sequence[Batch]
    ) -> list[Reference]:
        """See `Door`."""
        layers = encoder_layers(self._checkpoint.model, self._checkpoint.family)
        with quantizing(
            self._sited,
            plan.specs,
            calibration.ranges,
            calibration.scales,
            calibration.weight_amax,
        ):
            return make_references(
                self._sited,
                self._body,
                self.graph(),
                layers,
                batches,
                last_bits=plan.target.last_bits,
            )


class GraphDoor:
    """A ready .onnx file on ONNX Runtime. See `Door`."""

    head: SentenceHead | None = None
    stored: Stored | None = None

    def __init__(
        self,
        path: Path,
        *,
        task: str | None,
        tokenizer: str | None,
        input_names: Mapping[str, str],
        scratch: Path,
        output_names: Mapping[str, str] | None = None,
    ) -> None:
        """Reads a graph and finds its parts.

        Args:
            path: The .onnx file.
            task: What it is for; inferred from the config next to the tokenizer if `None`.
            tokenizer: Folder or hub id of its tokenizer, and config if there is one; the file's own
                folder if `None`.
            input_names: Names of its inputs by transformers' names, where they are others.
            scratch: A folder for graphs that are run.
            output_names: Maps transformers' names to names of the graph's outputs, for outputs
                with unusual names.

        Raises:
            UserInputError: It cannot be read, is not of BERT's shape, or something is missing.
        """
        self.name = str(path)
        self.task: str = choose_task(path, task=task, tokenizer=tokenizer)
        opened = import_onnx(
            path,
            task=self.task,
            input_names=input_names,
            output_names=output_names or {},
            scratch=scratch,
        )
        self._path = path
        self._float = opened.runner
        beside = load_tokenizer_and_config(
            path, task=self.task, tokenizer=tokenizer, runner=self._float
        )
        self.input_names, self.output_names = opened.input_names, opened.output_names
        self._scratch = scratch
        self._ready = opened.sited
        self.sites = self._ready.sites
        self.notices: tuple[str, ...] = (*opened.notices, *beside.notices)
        self.model_type, self.config = beside.model_type, beside.config
        self.tokenizer, self.max_length = beside.tokenizer, beside.max_length

    def runner(self) -> Runner:
        """See `Door`."""
        return self._float

    def open_sites(self, groups: Collection[SiteGroup]) -> None:
        """See `Door`.

        Raises:
            UserInputError: Sites on outputs are wanted, which are found in checkpoints only.
        """
        if not {"layer", "table"}.issuperset(groups):
            raise UserInputError(
                "Recipe `qordered`, which target `qordered` has too, needs a checkpoint of "
                "transformers: a ready graph has no quantizers on outputs. Pass another one."
            )

    def calibrate(
        self,
        batches: Sequence[Batch],
        *,
        sites: Sequence[str],
        advance: Advance,
        **settings: Any,
    ) -> Calibration:
        """See `Door`."""
        # The float model's session would hold its weights a second time.
        self._float.release()
        observed = ObservedGraph(
            self._ready, self._scratch / "observed.onnx", sites=frozenset(sites)
        )
        for batch in batches:
            check_token_ids(batch.inputs, self._path, self._float.vocabulary_size)

        def show(observer: Observer, scales: Mapping[str, Tensor]) -> None:
            with engine_errors(self._path):
                observed.run(batches, observer, scales, advance)

        plan = CalibrationPlan(
            sites=[site for site in self.sites if site.name in set(sites)],
            all_sites=self.sites,
            weights=self.weights(),
            **settings,
        )
        return run_passes(show, plan)

    def weights(self) -> Mapping[str, Tensor]:
        """See `Door`."""
        return {name: torch.from_numpy(weight) for name, weight in self._ready.weights.items()}

    def check_saturation(self, check: SaturationCheck, batches: Sequence[Batch]) -> None:
        """See `Door`."""
        path = self._scratch / "checked.onnx"
        observed = ObservedGraph(self._ready, path, sites=frozenset(self._ready.weights))
        observed.run(batches, check, check.scales)

    def graph(self) -> ir.Model:
        """See `Door`."""
        return self._ready.graph

    def references(
        self, plan: Plan, calibration: Calibration, batches: Sequence[Batch]
    ) -> list[Reference]:
        """See `Door`; the Q/DQ pairs as they are, run without any optimization."""
        scales = {name: scale.numpy() for name, scale in calibration.scales.items()}
        model = insert_qdq(
            self._ready.graph,
            plan.specs,
            calibration.ranges,
            scales=scales,
            weight_amax=calibration.weight_amax,
        )
        keep_outputs(model, self.output_names)
        return make_graph_references(
            model, self._ready.starts, batches, last_bits=plan.target.last_bits
        )
