"""The part of a layer after attention: output, residual, LayerNorm, feed-forward part.

A thread computes all columns of its rows, or its own columns of all rows. With few rows, a linear
layer takes as long as reading its weights. Threads that divide columns therefore read only their
own part of the weights, and compute everything else for all rows, with the hidden states in a
buffer of each thread. They wait for each other after every linear layer. Every number is computed
in the same way, so that results have the same bits.
"""

from __future__ import annotations

from qdqbert.engines.native.features import Features
from qdqbert.engines.native.instruction_set import InstructionSet
from qdqbert.engines.native.ir import F32, PTR, Function, Module, Value, vector
from qdqbert.engines.native.kernels.dot import PANEL, bytes_of_codes
from qdqbert.engines.native.kernels.norm import quantize_input, quantize_rows
from qdqbert.engines.native.kernels.weights import weights_of
from qdqbert.engines.native.records import JOB, LAYER, LINEAR, MODEL, RECORDS, ROW_SCALE, THREAD

COLUMNS = {"output": "hidden", "up": "inner", "down": "hidden"}
"""Contents of the columns of a linear layer."""

_READ_NEXT = {"output": "up", "up": "down"}


def emit_feed_forward(module: Module, isa: InstructionSet, features: Features) -> None:
    """Write `feed_forward`, for all columns, and `feed_forward_columns`, for a thread's columns.

    Their arguments are the records, the layer that reads the states, the first row and the number
    of rows, their contexts, and the weights that are read next.
    """
    _emit_add_rows(module, isa.lanes)
    if features.adds_twice:
        _emit_keep_rows(module, isa.lanes)
    for name, by_columns in (("feed_forward", False), ("feed_forward_columns", True)):
        arguments = "reader*, row, rows, context*, following*"
        with module.function(name, f"{RECORDS}, {arguments}") as f:
            FeedForward(f, features, by_columns=by_columns).write()


class FeedForward:
    """Writes the body of one of the two functions: its values, and its steps in order.

    `kernels.experts` writes the function of an expert with some of the steps.
    """

    def __init__(self, f: Function, features: Features, *, by_columns: bool = False) -> None:
        self.f, self.features, self.by_columns = f, features, by_columns
        self.hidden, self.width, self.inner = MODEL.each(f.model, "hidden", "width", "inner")
        self.record = {name: LAYER.read(f.layer, name) for name in LAYER.fields}
        self.codes, self.inner_codes, self.scales = THREAD.each(
            f.thread, "codes", "inner", "row_scales"
        )
        # Results of linear layers that all threads read.
        sums, self.shared = JOB.each(f.job, "sums", "inner")
        self.sums_of = {"output": sums, "down": sums + f.rows * self.hidden * 4}
        self.x = JOB.read(f.job, "x") + f.row * self.hidden * 4
        self.stride = self.hidden * 4
        self.codes_stride = features.bytes_of_row(self.hidden)
        self.inner_stride = features.bytes_of_row(self.inner)
        self.following = {name: self.weights(after) for name, after in _READ_NEXT.items()}
        self.following["down"] = f.following

    def write(self) -> None:
        """Write all steps."""
        f = self.f
        self.attended()
        self.add("down", self.up(), self.record["add"], self.record["local_norm"])
        f.call("end_layer", **f.own(f"{RECORDS}, reader, row, rows"))

    def attended(self, codes: tuple[Value, Value] | None = None) -> None:
        """Write the last linear layer of an attention, its residual add, and the codes for `up`.

        `codes` are the places of these codes and of their scales; by default the thread's own.
        """
        f, features = self.f, self.features
        context = (f.context, self.width * (4 if features.floats else 1))
        if features.dynamic:
            context = (self.inner_codes, bytes_of_codes(self.width))
            place, read = (f.rows, *context, self.scales), (f.context, self.width * 4, self.width)
            f.call("quantize_rows", self.record["context_codes"], *read, *place)
        if features.adds_twice:
            kept = THREAD.read(f.thread, "kept")
            f.call("keep_rows", kept, self.x, f.rows * self.hidden)
        norm = self.record["attention_local_norm"]
        self.add("output", context, self.record["attention_add"], norm)
        if codes is not None:
            self.codes, self.scales = codes
        self.normalize()

    def both(self, out: tuple[Value, Value]) -> None:
        """Write both linear layers, without the residual add."""
        self.linear("linear_float", "down", self.up(), out)

    def up(self) -> tuple[Value, Value]:
        """Write the first linear layer; return its results, and the bytes of a row of them."""
        in_float = self.features.dynamic or self.features.gated
        return (self.up_in_float() if in_float else self.up_in_codes()), self.inner_stride

    def normalize(self) -> None:
        """Write the LayerNorms of states after an attention was added, and the codes for `up`."""
        f, codes = self.f, self.record["up_codes"]
        source = (self.x, self.stride, self.hidden, f.rows)
        states = (*source, self.codes, self.codes_stride, self.scales)
        if self.features.norms_first:
            quantize_input(f, self.features, self.record["up_input_norm"], codes, *states)
            return
        norm = self.record["attention_norm"]
        if self.features.adds_twice:
            f.call("layer_norm", norm, self.x, self.stride, f.rows)
            kept = THREAD.read(f.thread, "kept")
            f.call("add_rows", self.x, kept, f.rows * self.hidden)
            norm = self.record["attention_again"]
        f.call("layer_norm_codes", codes, *states, THREAD.read(f.thread, "spread"), norm)

    def up_in_codes(self) -> Value:
        """Write the first linear layer with codes as results, and return their place."""
        place, floats = self.shared if self.by_columns else self.inner_codes, self.features.floats
        self.linear(
            f"linear_{'' if floats else 'codes_'}{self.features.activation}",
            "up",
            (self.codes, self.codes_stride),
            (place, self.inner_stride),
            extra=self.record["down_codes"],
            element=4 if floats else 1,
        )
        self.wait()
        return place

    def up_in_float(self) -> Value:
        """Write the first linear layer, a block of rows at a time, and the codes of its results.

        Return the place of the codes.
        """
        f, features, gated = self.f, self.features, self.features.gated
        columns = self.inner * 2 if gated else self.inner
        kernel = "linear_float" if gated else f"linear_{self.features.activation}"
        codes, stride = (self.codes, self.codes_stride), columns * 4
        if self.by_columns:
            self.linear(kernel, "up", codes, (self.shared, stride))
            self.wait()
        most = MODEL.read(f.model, "float_rows")
        with f.loop(0, f.rows, most) as row:
            count = (f.rows - row).minimum(most)
            place = self.scales + row * ROW_SCALE
            buffer = THREAD.read(f.thread, "inner_float")
            floats = self.shared + row * stride if self.by_columns else buffer
            if not self.by_columns:
                self.linear(
                    kernel,
                    "up",
                    (self.codes + row * self.codes_stride, self.codes_stride),
                    (floats, stride),
                    rows=count,
                    row_scales=place,
                    after=(row + count < f.rows).select(self.weights("up"), self.weights("down")),
                )
            codes_place = (self.inner_codes + row * self.inner_stride, self.inner_stride)
            if gated:
                gated_place = codes_place if features.floats else (buffer, stride)
                f.call("gate_rows", floats, stride, count, self.inner, *gated_place)
                floats = buffer
            if not features.floats:
                read = (self.record["down_codes"], floats, stride, self.inner)
                out = (count, *codes_place, place)
                spread = THREAD.read(f.thread, "spread")
                quantize_rows(f, "inner", features.spread_inner, spread, *read, *out)
        return self.inner_codes

    def add(self, name: str, source: tuple[Value, Value], rounding: Value, norm: Value) -> None:
        """Write a linear layer and its residual add, before which `norm` may be."""
        f, rounds, norms = self.f, self.features.rounds_adds, self.features.norms_parts
        if not self.by_columns and not norms:
            kernel = "linear_add_rounded" if rounds else "linear_add"
            self.linear(kernel, name, source, (self.x, self.stride), extra=rounding)
            return
        sums = self.sums_of[name] if self.by_columns else THREAD.read(f.thread, "local")
        self.linear("linear_float", name, source, (sums, self.stride))
        self.wait()
        if norms:
            f.call("add_normed_rows", norm, self.x, sums, self.hidden, f.rows, rounding)
        elif rounds:
            f.call("add_rounded_rows", rounding, self.x, sums, self.hidden, f.rows)
        else:
            f.call("add_rows", self.x, sums, f.rows * self.hidden)

    def linear(
        self,
        kernel: str,
        name: str,
        source: tuple[Value, Value],
        out: tuple[Value, Value],
        *,
        extra: Value | None = None,
        element: int = 4,
        rows: Value | None = None,
        row_scales: Value | None = None,
        after: Value | None = None,
    ) -> None:
        """Write a linear layer: all columns, or the thread's own."""
        f, record, first = self.f, self.record[name], self.first_panel(name)
        f.call(
            kernel,
            linear=record,
            first=first,
            panels=self.panels(name),
            codes=source[0],
            code_stride=source[1],
            rows=f.rows if rows is None else rows,
            out=out[0] + first * (PANEL * element) if self.by_columns else out[0],
            out_stride=out[1],
            row_scales=self.scales if row_scales is None else row_scales,
            extra=f.constant(PTR, 0) if extra is None else extra,
            following=self.following[name] if after is None else after,
        )

    def wait(self) -> None:
        """Wait for the columns of the other threads."""
        if self.by_columns:
            self.f.call("wait", self.f.job)

    def first_panel(self, name: str) -> Value | int:
        """Return the first panel of weights that the function reads."""
        if not self.by_columns:
            return 0
        return THREAD.read(self.f.thread, f"first_{COLUMNS[name]}")

    def panels(self, name: str) -> Value:
        """Return the number of panels of weights that the function reads."""
        if self.by_columns:
            return THREAD.read(self.f.thread, f"own_{COLUMNS[name]}")
        return LINEAR.read(self.record[name], "panels")

    def weights(self, name: str) -> Value:
        """Return the address of the first weights that the function reads."""
        return weights_of(self.record[name], self.first_panel(name))


def weights_after_attention(f: Function, panel: Value | int = 0) -> Value:
    """Return the address of the weights of `f.layer` that are read first after attention."""
    return weights_of(LAYER.read(f.layer, "output"), panel)


def _emit_add_rows(module: Module, lanes: int) -> None:
    """Write `add_rows`, which adds some float32 to as many others, a multiple of 64."""
    floats = vector(F32, lanes)
    with module.function("add_rows", "x*, other*, count") as f, f.loop(0, f.count, lanes) as each:
        place = f.x + each * 4
        f.store(f.load(floats, place) + f.load(floats, f.other + each * 4), place)


def _emit_keep_rows(module: Module, lanes: int) -> None:
    """Write `keep_rows`, which copies some float32, a multiple of 64, to be added again."""
    with module.function("keep_rows", "kept*, x*, count") as f, f.loop(0, f.count, lanes) as each:
        f.store(f.load(vector(F32, lanes), f.x + each * 4), f.kept + each * 4)
