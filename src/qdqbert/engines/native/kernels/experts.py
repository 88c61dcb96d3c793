"""Experts: feed-forward parts of which each token takes a few.

For each expert, the codes of its tokens are moved together, so that the kernels of rows compute
them. A token adds its experts in their order, so that its result depends on no other token.
"""

from __future__ import annotations

import contextlib

from qdqbert.engines.native.features import Features
from qdqbert.engines.native.functions import exp
from qdqbert.engines.native.instruction_set import InstructionSet
from qdqbert.engines.native.ir import F32, I8, I64, Function, Module, Value, vector
from qdqbert.engines.native.kernels.blocks import row_blocks
from qdqbert.engines.native.kernels.dot import PANEL
from qdqbert.engines.native.kernels.feed_forward import COLUMNS, FeedForward
from qdqbert.engines.native.memory import LINE
from qdqbert.engines.native.records import JOB, LAYER, MODEL, RECORDS, ROW_SCALE, THREAD

_BYTES = vector(I8, LINE)


def emit_experts(module: Module, isa: InstructionSet, features: Features) -> None:
    """Write `run_experts`: the part of a layer with experts after attention.

    It takes the arguments of `feed_forward`, for any number of rows, so that the weights of an
    expert are read once for all of them.
    """
    with (
        module.function("choose_experts", "scores*, stride, rows, experts, chosen") as f,
        f.loop(0, f.rows) as row,
    ):
        _choose(f, f.scores + row * f.stride)
    with module.function("expert", f"{RECORDS}, row, rows, following*, expert") as f:
        _Expert(f, features).write()
    with module.function("attended", f"{RECORDS}, row, rows, context*, following*") as f:
        places = _codes_of(f, features, f.row)
        FeedForward(f, features).attended(places)
    with module.function("add_experts", f"{RECORDS}, row, rows, following*") as f:
        _add_experts(f, isa.lanes, features)
    arguments = "reader*, row, rows, context*, following*"
    with module.function("run_experts", f"{RECORDS}, {arguments}") as f:
        width, records = MODEL.read(f.model, "width"), f.own(RECORDS)
        start, following = f.constant(I64, 0), f.following
        with row_blocks(f, start, f.rows) as (row, rows):
            context = f.context + row * (width * 4)
            own = {"row": f.row + row, "rows": rows, "following": following}
            f.call("attended", **records, **own, context=context)
        f.call("add_experts", **records, row=f.row, rows=f.rows, following=following)
        with row_blocks(f, start, f.rows) as (row, rows):
            f.call("end_layer", **records, reader=f.reader, row=f.row + row, rows=rows)


def _codes_of(f: Function, features: Features, row: Value) -> tuple[Value, Value]:
    """Return the places of the codes of a row and of its scale.

    They are those that the layer has projected before, and that the next one will.
    """
    codes, scales = JOB.each(f.job, "codes", "row_scales")
    stride = features.bytes_of_row(MODEL.read(f.model, "hidden"))
    return codes + row * stride, scales + row * ROW_SCALE


def _choose(f: Function, scores: Value) -> None:
    """Turn the scores of a token into weights of its experts, and zeros for the others."""
    type, least = vector(F32, PANEL), f.constant(F32, float("-inf"))

    def each() -> contextlib.AbstractContextManager[Value]:
        return f.loop(0, f.experts)

    highest, total = f.variable(least), f.variable(f.constant(F32, 0.0))
    with each() as expert:
        highest.set(highest.get().maximum(f.load(F32, scores + expert * 4)))
    with f.loop(0, f.experts, PANEL) as expert:
        place = scores + expert * 4
        f.store(exp(f, f.load(type, place) - f.splat(highest.get(), PANEL)), place)
    with each() as expert:
        total.set(total.get() + f.load(F32, scores + expert * 4))
    # The weights that are chosen become negative.
    with f.loop(0, f.chosen):
        best, at = f.variable(least), f.variable(f.constant(I64, 0))
        with each() as expert:
            weight = f.load(F32, scores + expert * 4)
            is_better = weight > best.get()
            best.set(is_better.select(weight, best.get()))
            at.set(is_better.select(expert, at.get()))
        f.store(best.get() * -1.0, scores + at.get() * 4)
    with each() as expert:
        weight = (f.load(F32, scores + expert * 4) * -1.0).maximum(0.0)
        f.store(weight / total.get(), scores + expert * 4)


class _Expert(FeedForward):
    """Writes `expert`: the tokens of one expert, without the residual add."""

    def __init__(self, f: Function, features: Features) -> None:
        super().__init__(f, features)
        self.codes, self.scales = THREAD.each(f.thread, "expert_codes", "expert_scales")

    def write(self) -> None:
        self.both((THREAD.read(self.f.thread, "local"), self.stride))

    def panels(self, name: str) -> Value:
        return (self.inner if COLUMNS[name] == "inner" else self.hidden) // PANEL

    def first_panel(self, name: str) -> Value:
        return self.f.expert * self.panels(name)


def _add_experts(f: Function, lanes: int, features: Features) -> None:
    """Add the experts of rows to hidden states."""
    hidden, columns, most = MODEL.each(f.model, "hidden", "expert_columns", "block")
    stride, weights_stride = hidden * 4, columns * 4
    x = JOB.read(f.job, "x") + f.row * stride
    experts, chosen, router, bias = LAYER.each(
        f.layer, "experts", "chosen", "router", "experts_bias"
    )
    weights = JOB.read(f.job, "expert_weights") + f.row * weights_stride
    numbers = JOB.read(f.job, "expert_rows") + f.row * 8
    local = THREAD.read(f.thread, "local")
    f.call("float_linear", router, x, stride, f.rows, weights, weights_stride)
    f.call("choose_experts", weights, weights_stride, f.rows, experts, chosen)
    floats = vector(F32, lanes)

    def add(row: Value, factor: float | Value, other: Value) -> None:
        """Add other numbers to a row, times a factor."""
        by = f.splat(factor, lanes) if isinstance(factor, Value) else f.constant(floats, factor)
        with f.loop(0, hidden, lanes) as channel:
            place = x + (row * stride + channel * 4)
            sums = f.fma(f.load(floats, other + channel * 4), by, f.load(floats, place))
            f.store(sums, place)

    with f.loop(0, f.rows) as row:
        add(row, 1.0, bias)
    with f.loop(0, experts) as expert:

        def weight_of(row: Value, expert: Value = expert) -> Value:
            return f.load(F32, weights + (row * weights_stride + expert * 4))

        count = f.variable(f.constant(I64, 0))
        with f.loop(0, f.rows) as row, f.when(weight_of(row) > 0.0):
            f.store(row, numbers + count.get() * 8)
            count.set(count.get() + 1)
        with f.loop(0, count.get(), most) as first:
            some = (count.get() - first).minimum(most)
            with f.loop(0, some) as place:
                row = f.load(I64, numbers + (first + place) * 8)
                _gather(f, features, f.row + row, place)
            own = f.own(f"{RECORDS}, row, following")
            f.call("expert", **own, rows=some, expert=expert)
            with f.loop(0, some) as place:
                row = f.load(I64, numbers + (first + place) * 8)
                add(row, weight_of(row), local + place * stride)


def _gather(f: Function, features: Features, row: Value, place: Value) -> None:
    """Copy the codes of a row, and its scale, to their place among those of an expert."""
    codes, scale = _codes_of(f, features, row)
    own_codes, own_scales = THREAD.each(f.thread, "expert_codes", "expert_scales")
    stride = features.bytes_of_row(MODEL.read(f.model, "hidden"))
    f.store(f.load(F32, scale), own_scales + place * ROW_SCALE)
    with f.loop(0, stride, LINE) as byte:
        f.store(f.load(_BYTES, codes + byte), own_codes + (place * stride + byte))
