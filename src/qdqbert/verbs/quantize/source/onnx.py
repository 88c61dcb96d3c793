"""Existing ONNX models, on ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor

from qdqbert.calibration.calibrate import run_passes
from qdqbert.calibration.calibration import Calibration
from qdqbert.calibration.passes import CalibrationPlan
from qdqbert.calibration.statistics import Observer
from qdqbert.checkpoint.sentence import SentenceHead
from qdqbert.encoding import Batch
from qdqbert.engines.runner import Runner
from qdqbert.errors import UserInputError
from qdqbert.evidence.lowering import Reference, make_graph_references
from qdqbert.evidence.saturation import SaturationCheck
from qdqbert.graph.imported.imported_model import import_onnx
from qdqbert.graph.imported.observed_graph import ObservedGraph
from qdqbert.graph.imported.sites import SitedGraph
from qdqbert.graph.qdq import insert_qdq
from qdqbert.spec import Recipe
from qdqbert.targets.target import Plan
from qdqbert.verbs.graph_files import GraphRunner, check_task, check_words, read_companions, running
from qdqbert.verbs.quantize.source import Advance, StoredQuantizers


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
        scratch: Path,
    ) -> None:
        """Read a model and find its layers.

        Args:
            path: The .onnx file.
            task: Name of its task.
            tokenizer: Folder or hub id of its tokenizer and config; the file's folder if `None`.
            input_names: Names of its inputs by transformers' names, where they differ.
            scratch: Folder for temporary graphs.

        Raises:
            UserInputError: The file cannot be read, its architecture is not supported, or the
                tokenizer is missing.
        """
        self.name, self.task = str(path), check_task(task)
        imported = import_onnx(path, task=self.task, input_names=input_names, scratch=scratch)
        self._float = GraphRunner(imported.runner, path, vocabulary=imported.vocabulary)
        companions = read_companions(path, task=self.task, tokenizer=tokenizer, runner=self._float)
        self._path, self._scratch, self._sited = path, scratch, imported.sited
        self.input_names, self.output_names = imported.input_names, imported.output_names
        counts = ", ".join(f"{name} {count}" for name, count in imported.sited.roles.items())
        self.notices: tuple[str, ...] = (f"Found in the graph: {counts}.", *companions.notices)
        self.model_type, self.config = companions.model_type, companions.config
        self.tokenizer, self.max_length = companions.tokenizer, companions.max_length

    def runner(self) -> Runner:
        """Return the float model on ONNX Runtime."""
        return self._float

    def with_sites(self, recipes: Sequence[Recipe]) -> SitedOnnx:
        """Return the graph with its sites.

        Raises:
            UserInputError: A recipe needs sites that are found in checkpoints only.
        """
        unsupported = [recipe.name for recipe in recipes if recipe.outputs]
        if unsupported:
            raise UserInputError(
                f"Recipe {unsupported[0]!r} requires a checkpoint: it quantizes outputs, which are "
                "not found in existing ONNX models. Pass another `recipe`, and a target other than "
                f"{unsupported[0]!r}.",
                argument="recipe",
            )
        return SitedOnnx(self._sited, self._float, self._path, self._scratch)


class SitedOnnx:
    """An .onnx file with sites; see `SitedSource`."""

    def __init__(self, sited: SitedGraph, runner: GraphRunner, path: Path, scratch: Path) -> None:
        """Keep what calibration and references need."""
        self._sited, self._runner = sited, runner
        self._path, self._scratch = path, scratch
        self.sites = sited.sites

    def calibrate(
        self,
        batches: Sequence[Batch],
        *,
        sites: Sequence[str],
        advance: Advance,
        **settings: Any,
    ) -> Calibration:
        """Choose ranges; see `SitedSource`."""
        path = self._scratch / "observed.onnx"
        observed = ObservedGraph(self._sited, path, sites=frozenset(sites))
        for batch in batches:
            check_words(batch.inputs, self._path, self._runner.vocabulary)

        def run(observer: Observer, scales: Mapping[str, Tensor]) -> None:
            with running(self._path):
                observed.run(batches, observer, scales, advance)

        plan = CalibrationPlan(
            sites=[site for site in self.sites if site.name in set(sites)],
            all_sites=self.sites,
            weights=self.weights(),
            **settings,
        )
        return run_passes(run, plan)

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

    def references(
        self, plan: Plan, calibration: Calibration, batches: Sequence[Batch]
    ) -> list[Reference]:
        """Return what the Q/DQ pairs compute, without any graph optimization."""
        scales = {name: scale.numpy() for name, scale in calibration.scales.items()}
        model = insert_qdq(
            self._sited.graph,
            plan.specs,
            calibration.ranges,
            scales=scales,
            weight_amax=calibration.weight_amax,
        )
        return make_graph_references(
            model, self._sited.starts, batches, last_bits=plan.target.last_bits
        )
