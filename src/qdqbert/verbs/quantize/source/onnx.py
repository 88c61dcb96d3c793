"""Existing ONNX models, on ONNX Runtime."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import onnx_ir as ir
import torch
from torch import Tensor

from qdqbert.calibration.calibration import Calibration
from qdqbert.calibration.passes import Run
from qdqbert.calibration.statistics import Observer
from qdqbert.checkpoint.sentence import SentenceHead
from qdqbert.encoding import Batch
from qdqbert.engines.onnxruntime import OnnxRuntimeRunner
from qdqbert.engines.runner import Runner
from qdqbert.errors import UserInputError
from qdqbert.evidence.lowering import Reference, make_graph_references
from qdqbert.evidence.saturation import SaturationCheck
from qdqbert.graph.check import save_graph
from qdqbert.graph.edit import keep_outputs
from qdqbert.graph.imported.graph_runner import GraphRunner, check_token_ids, engine_errors
from qdqbert.graph.imported.imported_model import import_onnx
from qdqbert.graph.imported.observed_graph import ObservedGraph
from qdqbert.graph.imported.sites import SitedGraph
from qdqbert.graph.imported.tokenizer_and_config import choose_task, load_tokenizer_and_config
from qdqbert.graph.qdq import insert_qdq
from qdqbert.spec import Site, SiteGroup
from qdqbert.targets.target import Plan
from qdqbert.verbs.quantize.source import Advance, StoredQuantizers

# Groups of sites that are found in a graph.
_GROUPS: frozenset[SiteGroup] = frozenset({"layer", "table"})


class OnnxSource:
    """An .onnx file; see `ModelSource`."""

    head: SentenceHead | None = None
    stored: StoredQuantizers | None = None

    def __init__(
        self,
        path: Path,
        *,
        task: str | None,
        tokenizer: str | None,
        input_names: Mapping[str, str],
        output_names: Mapping[str, str],
        scratch: Path,
    ) -> None:
        """Read a model and find its layers.

        Args:
            path: The .onnx file.
            task: Name of its task. Inferred from the config next to the tokenizer if `None`.
            tokenizer: Folder or hub id of its tokenizer and config; the file's folder if `None`.
            input_names: Names of its inputs by transformers' names, where they differ.
            output_names: Names of its outputs by transformers' names, where they differ.
            scratch: Folder for temporary graphs.

        Raises:
            UserInputError: The file cannot be read, its architecture is not supported, or the
                tokenizer is missing.
        """
        self.name = str(path)
        chosen = choose_task(path, task=task, tokenizer=tokenizer)
        self.task: str = chosen
        imported = import_onnx(
            path,
            task=chosen,
            input_names=input_names,
            output_names=output_names,
            scratch=scratch,
        )
        self._float = imported.runner
        found = load_tokenizer_and_config(
            path, task=chosen, tokenizer=tokenizer, runner=self._float
        )
        self._path, self._scratch, self._sited = path, scratch, imported.sited
        self.input_names, self.output_names = imported.input_names, imported.output_names
        self.notices: tuple[str, ...] = (*imported.notices, *found.notices)
        self.model_type, self.config = found.model_type, found.config
        self.generation_config = found.generation_config
        self.cross_encoder = found.cross_encoder
        self.tokenizer, self.max_length = found.tokenizer, found.max_length

    def runner(self) -> Runner:
        """Return the float model on ONNX Runtime."""
        return self._float

    def sites(self, groups: Collection[SiteGroup]) -> tuple[Site, ...]:
        """Return the sites.

        Raises:
            UserInputError: A group consists of sites that are found in checkpoints only.
        """
        unsupported = sorted(set(groups) - _GROUPS)
        if unsupported:
            raise UserInputError(
                "The recipe requires a checkpoint: it quantizes sites of the group "
                f"{unsupported[0]!r}, which are not found in existing ONNX models. Pass another "
                "`recipe`, or other `targets`.",
                argument="recipe",
            )
        return self._sited.sites

    def with_sites(self, groups: Collection[SiteGroup]) -> SitedOnnx:
        """Return the graph with its sites."""
        self.sites(groups)
        return SitedOnnx(
            self._sited, self._float, self._path, self._scratch, output_names=self.output_names
        )


class SitedOnnx:
    """An .onnx file with sites; see `SitedSource`."""

    def __init__(
        self,
        sited: SitedGraph,
        runner: GraphRunner,
        path: Path,
        scratch: Path,
        *,
        output_names: tuple[str, ...],
    ) -> None:
        """Keep what calibration and references need, and free the session of the float model."""
        # It would hold the weights a second time.
        runner.release()
        self._sited, self._vocabulary_size = sited, runner.vocabulary_size
        self._output_names = output_names
        self._path, self._scratch = path, scratch
        self.sites = sited.sites

    def observed_run(
        self, names: Collection[str], batches: Sequence[Batch], advance: Advance
    ) -> Run:
        """Return what runs the model and shows its activations; see `SitedSource`."""
        path = self._scratch / "observed.onnx"
        observed = ObservedGraph(self._sited, path, sites=set(names))
        for batch in batches:
            check_token_ids(batch.inputs, self._path, self._vocabulary_size)

        def run(observer: Observer, scales: Mapping[str, Tensor]) -> None:
            with engine_errors(self._path):
                observed.run(batches, observer, scales, advance)

        return run

    def weights(self) -> Mapping[str, Tensor]:
        """Return the weight of each linear layer; see `SitedSource`."""
        return {name: torch.from_numpy(weight) for name, weight in self._sited.weights.items()}

    def check_saturation(self, check: SaturationCheck, batches: Sequence[Batch]) -> None:
        """Show the inputs of the linear layers to a check; see `SitedSource`."""
        path = self._scratch / "checked.onnx"
        observed = ObservedGraph(self._sited, path, sites=frozenset(self._sited.weights))
        observed.run(batches, check, check.scales)

    def graph(self) -> ir.Model:
        """Return the float graph with a node at every site."""
        return self._sited.graph

    def encoder(self) -> None:
        """Return `None`: only the graph is known."""

    @contextlib.contextmanager
    def quantized_runner(self, plan: Plan, calibration: Calibration) -> Iterator[Runner]:
        """Yield the graph with Q/DQ pairs on ONNX Runtime; see `SitedSource`."""
        path = self._scratch / "planned.onnx"
        save_graph(self._with_pairs(plan, calibration), path, temporary=True)
        yield OnnxRuntimeRunner(path)

    def references(
        self, plan: Plan, calibration: Calibration, batches: Sequence[Batch]
    ) -> list[Reference]:
        """Return what the Q/DQ pairs compute, without any graph optimization."""
        return make_graph_references(
            self._with_pairs(plan, calibration),
            self._sited.starts,
            batches,
            scratch=self._scratch,
            last_bits=plan.target.last_bits,
        )

    def _with_pairs(self, plan: Plan, calibration: Calibration) -> ir.Model:
        model = insert_qdq(
            self._sited.graph,
            plan.specs,
            calibration.ranges,
            scales={name: scale.numpy() for name, scale in calibration.scales.items()},
            weight_amax=calibration.weight_amax,
            means=calibration.means,
            roundings=calibration.roundings,
        )
        keep_outputs(model, self._output_names)
        return model
