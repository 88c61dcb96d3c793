"""Run an existing ONNX model and pass what its sites read to an observer."""

from __future__ import annotations

import gc
import math
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qdqbert.calibration.statistics import Observer
from qdqbert.encoding import Batch
from qdqbert.engines.onnxruntime import OnnxRuntimeRunner
from qdqbert.graph.check import save_graph
from qdqbert.graph.edit import add_outputs
from qdqbert.graph.imported.sites import SitedGraph
from qdqbert.graph.qdq import float_graph
from qdqbert.numerics.threads import one_torch_thread
from qdqbert.spec import RESIDUAL, Site

# Size of all observed tensors of a part together: 100 MB of float32, for each part in flight.
_ELEMENTS_AT_ONCE = 25_000_000
# Parts that the engine computes at once, each on its share of the cores. With one part, the
# engine's threads would wait for the observer, too.
_IN_FLIGHT = 2

# A part's mask, and the observed tensors by name of value.
_Observed = tuple[Tensor, Mapping[str, NDArray[np.float32]]]


class ObservedGraph:
    """The float graph, with every tensor that a site reads as an output.

    Attributes:
        path: The file that it was written to.
    """

    def __init__(self, sited: SitedGraph, path: Path, *, sites: Collection[str]) -> None:
        """Write the graph to `path` and load it.

        Args:
            sited: The graph with sites.
            path: The file to write.
            sites: Names of the sites to observe. Residuals are always observed.
        """
        self.path = path
        self._sites: dict[str, list[Site]] = {}
        for site in sited.sites:
            wanted = site.name in sites or site.name.endswith(RESIDUAL)
            if site.kind == "activation" and wanted:
                self._sites.setdefault(sited.sources[site.name], []).append(site)
        model = float_graph(sited.graph)
        add_outputs(model, list(self._sites))
        save_graph(model, path, temporary=True)
        # The copy has reference cycles, and transposed weights.
        del model
        gc.collect()
        # The arena would keep the largest tensors of every shape, and texts have many lengths.
        threads = math.ceil(torch.get_num_threads() / _IN_FLIGHT)
        self._runner = OnnxRuntimeRunner(path, threads=threads, low_memory=True)
        self._elements_a_token = 0

    def run(
        self,
        batches: Sequence[Batch],
        observer: Observer,
        scales: Mapping[str, Tensor],
        advance: Callable[[], None] = lambda: None,
    ) -> None:
        """Pass the activations of all batches to an observer.

        A batch is run in several parts where it takes much memory. Statistics do not depend on
        how it is divided.

        Args:
            batches: Inputs by name, each `(batch, seq)`.
            observer: Gets each part's mask, then each site and its values, float32. Sites that read
                one tensor with one scale get the same object.
            scales: `pre_quant_scale` by site name, `(channels,)`. Values are multiplied by it.
            advance: Called after each batch.
        """
        # The engine computes parts while earlier ones are observed, which takes half as long. So it
        # gets the cores.
        with one_torch_thread(), ThreadPoolExecutor(max_workers=_IN_FLIGHT) as engine:
            running: deque[Future[_Observed]] = deque()
            for batch in batches:
                for inputs in self._parts(batch.inputs):
                    running.append(engine.submit(self._run, inputs))
                    if len(running) > _IN_FLIGHT:
                        self._pass_on(running.popleft().result(), observer, scales)
                advance()
            while running:
                self._pass_on(running.popleft().result(), observer, scales)

    def _run(self, inputs: Mapping[str, NDArray[Any]]) -> _Observed:
        mask = torch.from_numpy(np.ascontiguousarray(inputs["attention_mask"]))
        outputs = self._runner.run(inputs)
        observed = {name: outputs[name] for name in self._sites}
        size = sum(each.size for each in observed.values())
        self._elements_a_token = max(self._elements_a_token, size // mask.numel())
        return mask, observed

    def _pass_on(
        self, observed: _Observed, observer: Observer, scales: Mapping[str, Tensor]
    ) -> None:
        mask, outputs = observed
        observer.start_batch(mask.flatten(0, -2))
        for name, values in outputs.items():
            _observe(self._sites[name], _as_states(values, mask), observer, scales)

    def _parts(self, inputs: Mapping[str, NDArray[Any]]) -> Iterator[dict[str, NDArray[Any]]]:
        rows, tokens = inputs["attention_mask"].shape[0], inputs["attention_mask"][0].size
        start = 0
        while start < rows:
            each = tokens * self._elements_a_token
            # The first row shows how many elements there are.
            count = max(1, _ELEMENTS_AT_ONCE // each) if each else 1
            part = slice(start, start + count)
            yield {name: inputs[name][part] for name in self._runner.input_names}
            start += count


def _observe(
    sites: Sequence[Site], values: Tensor, observer: Observer, scales: Mapping[str, Tensor]
) -> None:
    last: tuple[Tensor, Tensor] | None = None
    for site in sites:
        scale = scales.get(site.name)
        if scale is None:
            observer.observe(site, values)
            continue
        if last is None or not torch.equal(last[0], scale):
            last = (scale, values * scale)
        observer.observe(site, last[1])


def _as_states(values: NDArray[np.float32], mask: Tensor) -> Tensor:
    """Reshape `(batch * seq, hidden)`, as some exporters keep states, to `(batch, seq, hidden)`."""
    tensor = torch.from_numpy(values)
    if tensor.dim() == 2 and tensor.shape[0] == mask.numel():
        return tensor.view(*mask.flatten(0, -2).shape, -1)
    return tensor
