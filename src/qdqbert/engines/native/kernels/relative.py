"""Disentangled attention: scores between content and relative positions.

    score[i, j] += query[i] @ relative_keys[r] + key[j] @ relative_queries[r]

with the row `r = relative_rows[j - i]`. Queries and keys are multiplied by a panel of rows at a
time, and only by the rows between the smallest and the largest distance in a text.
"""

from __future__ import annotations

import dataclasses

from qdqbert.engines.native.features import Features
from qdqbert.engines.native.ir import F32, I32, I64, Function, Module, Value
from qdqbert.engines.native.kernels.dot import PANEL
from qdqbert.engines.native.records import LAYER, MODEL, THREAD


@dataclasses.dataclass(frozen=True)
class RelativeScores:
    """Scores of relative positions for one head of one text, as values of the kernel.

    Attributes:
        function: The function that is written, with `f.model`, `f.layer` and `f.thread`.
        features: The parts of the model.
        size: Channels of the head.
        length: Tokens of the text.
        zeros: Sums that products start from.
        panel: First panel of the tables that a distance in the text needs.
        offset: Where the first panel of this head is in a table, in bytes.
    """

    function: Function
    features: Features
    size: Value
    length: Value
    zeros: Value
    panel: Value
    panels: Value
    offset: Value

    @property
    def _stride(self) -> Value:
        """Bytes from the products of a query or key to the next."""
        return self.panels * (4 * PANEL)

    def multiply_queries(self, queries: Value, stride: Value, rows: Value) -> None:
        """Multiply some queries by the table of keys, if there is one."""
        if self.features.relative_keys:
            self._multiply("relative_keys", queries, stride, rows, "query_positions")

    def multiply_keys(self, keys: Value, stride: Value) -> None:
        """Multiply all keys by the table of queries, if there is one."""
        if self.features.relative_queries:
            self._multiply("relative_queries", keys, stride, self.length, "key_positions")

    def add(self, query: Value, rows: Value, start: Value, end: Value, stride: Value) -> None:
        """Add the products to the scores of some queries and of the keys between two."""
        f = self.function
        scores = (stride, start, end)
        f.call("add_positions", f.model, f.thread, query, rows, *scores, self.panel, self._stride)

    def _multiply(self, table: str, x: Value, stride: Value, rows: Value, out: str) -> None:
        f = self.function
        weights = LAYER.read(f.layer, table) + self.offset
        found = THREAD.read(f.thread, out)
        f.call(
            "product",
            x=x,
            stride=stride,
            rows=rows,
            weights=weights,
            panel=self.size * (4 * PANEL),
            panels=self.panels,
            out=found,
            out_stride=self._stride,
            depth=self.size,
            start=self.zeros,
            start_panel=0,
        )


def relative_positions(
    f: Function, features: Features, head: Value, size: Value, length: Value, zeros: Value
) -> RelativeScores:
    """Return the relative scores of a head; see `RelativeScores`."""
    limit, panels = MODEL.each(f.model, "limit", "relative_panels")
    middle = MODEL.read(f.model, "relative_rows") + (limit - 1) * 4
    first, last = (
        f.load(I32, middle + distance * 4).cast("zext", I64) // PANEL
        for distance in (1 - length, length - 1)
    )
    return RelativeScores(
        function=f,
        features=features,
        size=size,
        length=length,
        zeros=zeros,
        panel=first,
        panels=last - first + 1,
        offset=(head * panels + first) * size * (4 * PANEL),
    )


def emit_add_positions(module: Module, features: Features) -> None:
    """Write `add_positions`, which adds products with positions to scores.

    Its arguments are `MODEL` and `THREAD` records, the first query and the number of queries, the
    bytes from the scores of a query to the next, the first key and the end of the keys, the first
    panel of the products, and the bytes from the products of a query or key to the next.
    """
    with module.function(
        "add_positions", "model*, thread*, query, rows, score_stride, start, end, panel, stride"
    ) as f:
        middle = MODEL.read(f.model, "relative_rows") + (MODEL.read(f.model, "limit") - 1) * 4
        scores, of_queries, of_keys = THREAD.each(
            f.thread, "scores", "query_positions", "key_positions"
        )
        shift = f.panel * (4 * PANEL)
        with f.loop(0, f.rows) as row:
            by_key = middle + (f.query + row) * -4
            own = scores + row * f.score_stride
            products = of_queries + row * f.stride
            with f.loop(f.start, f.end) as key:
                place = own + (key - f.start) * 4
                column = f.load(I32, by_key + key * 4).cast("zext", I64) * 4 - shift
                total = f.load(F32, place)
                if features.relative_keys:
                    total = total + f.load(F32, products + column)
                if features.relative_queries:
                    total = total + f.load(F32, of_keys + (key * f.stride + column))
                f.store(total, place)
