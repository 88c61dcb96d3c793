"""A packed model, bound to compiled kernels and ready to run."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.encoders.affine import quantize_weight
from qdqbert.engines.native.cache import compiled, own_code
from qdqbert.engines.native.checks import check_packed
from qdqbert.engines.native.compiler import Library
from qdqbert.engines.native.functions import ACTIVATIONS, shift_of
from qdqbert.engines.native.instruction_set import InstructionSet
from qdqbert.engines.native.instruction_sets.floats import in_float
from qdqbert.engines.native.kernels.dot import PANEL, first_sums, pack
from qdqbert.engines.native.kernels.forward import SPARE_ROWS, build_module
from qdqbert.engines.native.kernels.packing import DEPTH
from qdqbert.engines.native.kernels.pooling import POOLINGS
from qdqbert.engines.native.kernels.product import Table, pack_table, table_blocks
from qdqbert.engines.native.memory import aligned, padded, zeros
from qdqbert.engines.native.records import (
    CODES,
    FLOAT_LINEAR,
    FUNCTIONS,
    LAYER,
    LINEAR,
    MODEL,
    NORM,
    ROUND_TRIP,
    Record,
)
from qdqbert.engines.native.schedule import EXPERT_ROWS, PART_ROWS
from qdqbert.engines.native.schema import LINEARS, NORMS
from qdqbert.engines.native.storage import Packed
from qdqbert.quantization.recipes import WEIGHT
from qdqbert.quantization.spec import SAFE_ADJACENT_SUM_LIMIT

Array = NDArray[Any]

# Heads with this number of columns are computed together.
_GROUP_COLUMNS = 128

_CALLED = (
    *FUNCTIONS,
    "post",
    "serve",
    "finish",
    "float_linear",
    "layer_norm",
    "remove_padding",
    "restore_padding",
    *(f"apply_{name}" for name in ACTIVATIONS),
    *(f"pool_{name}" for name in POOLINGS),
    "quantize_tokens",
)


class Program:
    """Records of a model, and the functions that read them. Nothing changes while it runs.

    Attributes:
        hidden: Channels of a hidden state with padding.
        features: The features of the kernels.
        block: Rows that are computed together at most.
        float_rows: Rows of the feed-forward part that are in float32 at most.
        part_rows: Rows of texts that a thread computes together at most.
        products: Number of products of codes and weights for each token. A product of floats takes
            the time of four.
        vocabulary: Number of token ids.
        type_count: Number of token types.
    """

    def __init__(self, packed: Packed, isa: InstructionSet) -> None:
        """Compile the kernels and bind the arrays, which are used in place.

        Raises:
            CheckpointError: An array has another dtype or shape than the settings need.
        """
        self.features = check_packed(packed)
        self.settings = packed.settings
        if self.features.floats:
            isa = in_float(isa)
        elif not self.settings["fits_16_bits"]:
            # Slower, and right for weights without the adjacent sum limit.
            isa = isa.exact()
        if self.features.dynamic:
            isa = isa.dynamic()
        self.hidden = padded(self.settings["hidden"])
        self.width = padded(self.settings["heads"] * self.settings["head_size"])
        self.inner = padded(self.settings["inner"])
        self.limit = padded(self.settings["limit"], DEPTH)
        self.isa = isa
        # States in float32, codes of them and codes of the feed-forward part.
        self.block = isa.tiles.block(5 * self.hidden + self.inner)
        # The weights of experts are read for each part.
        least = EXPERT_ROWS if self.features.has_experts else PART_ROWS
        self.part_rows = max(least, self.block * 2 // 3)
        self.arrays = {name: aligned(each) for name, each in packed.arrays.items()}
        # Records have addresses of arrays, which have to be kept.
        self._kept: list[Array] = []
        # Columns of the first linear layer of the feed-forward part.
        self.up_columns = 2 * self.inner if self.features.gated else self.inner
        weights = self.hidden * self.up_columns
        self.float_rows = isa.tiles.float_rows(weights, 4 * self.up_columns)
        # Rows of the tables of relative positions with padding.
        relative = self.settings["relative"]
        self.relative_columns = 0 if relative is None else padded(relative["rows"], PANEL)
        source = f"{own_code()}\n{self.features}"
        kernels = compiled(source, functools.partial(build_module, isa, self.features), isa)
        self._library = Library(kernels, isa)
        self.functions: dict[str, Callable[..., None]] = {
            name: self._library.function(name) for name in _CALLED if self._library.has(name)
        }
        self.products = sum(map(_products, self.settings["layers"])) * (
            4 if self.features.floats else 1
        )
        # Scores of experts of a token, with padding.
        experts = (each["experts"] for each in self.settings["layers"])
        self.expert_columns = max(
            (each["router"]["columns"] for each in experts if each), default=0
        )
        self.vocabulary = len(self.arrays["words"])
        self.type_count = len(self.arrays["token_types"])
        self.model = self._model()

    def _keep(self, array: Array) -> Array:
        self._kept.append(array)
        return array

    def _record(self, record: Record, **values: Any) -> Array:
        return self._keep(record.make(**values))

    def _model(self) -> Array:
        settings, size = self.settings, self.settings["head_size"]
        arrays, embeddings = self.arrays, settings["embeddings"]
        layers = [
            self._layer(f"layers.{index}", each) for index, each in enumerate(settings["layers"])
        ]
        return self._record(
            MODEL,
            layers=self._keep(np.concatenate(layers)),
            layer_count=len(layers),
            hidden=self.hidden,
            heads=settings["heads"],
            head_size=settings["head_size"],
            width=self.width,
            group=settings["heads"]
            if self.features.joins_heads
            else min(max(1, _GROUP_COLUMNS // size), settings["heads"]),
            block=self.block,
            float_rows=self.float_rows,
            inner=self.inner,
            expert_columns=self.expert_columns,
            score_scale=settings["score_scale"],
            limit=settings["limit"],
            causal=int(settings["causal"]),
            relative_rows=arrays.get("relative_rows"),
            relative_panels=self.relative_columns // PANEL,
            embedding_width=padded(embeddings["width"]),
            words=arrays["words"],
            word_scale=arrays.get("word_scale"),
            positions=arrays["positions"],
            token_types=arrays["token_types"],
            embedding_norm=embeddings["norm"] and self.norm("embedding_norm", embeddings["norm"]),
            projection=embeddings["projection"]
            and self.float_linear("projection", embeddings["projection"]),
            embeds=1,
        )

    def states(self, tokens: int) -> dict[str, Any]:
        """Return the fields of a job for hidden states, and for their codes."""
        rows = tokens + SPARE_ROWS
        shares_codes = all(layer["shares_codes"] for layer in self.settings["layers"])
        copies = 1 if shares_codes else 3
        return {
            "x": zeros((rows, self.hidden), np.float32),
            "codes": zeros((copies * rows, self.features.bytes_of_row(self.hidden)), np.uint8),
            "row_scales": zeros(copies * rows, np.float32),
            "code_rows": rows,
        }

    def part(self, layers: range, *, embeds: bool) -> Array:
        """Return the record of some layers, of which the first reads `Job.x` unless it `embeds`."""
        record = self.model.copy()
        record[MODEL.index("layers")] += layers.start * LAYER.size
        record[MODEL.index("layer_count")] = len(layers)
        record[MODEL.index("embeds")] = int(embeds)
        return record

    def _layer(self, name: str, layer: Mapping[str, Any]) -> Array:
        parts = ("query", "key", "value")
        linears = {part: self._linear(f"{name}.{part}", layer[part]) for part in LINEARS}
        codes = {part: self._codes(name, part, layer[part]) for part in LINEARS}
        optional = ("position_bias", "relative_keys", "relative_queries", "value_bounds")
        return LAYER.make(
            index=int(name.rpartition(".")[2]),
            projections=self._keep(np.concatenate([linears.pop(part) for part in parts])),
            projection_codes=self._keep(np.concatenate([codes[part] for part in parts])),
            shares_codes=int(layer["shares_codes"]),
            context_codes=codes["output"],
            up_codes=codes["up"],
            down_codes=codes["down"],
            **linears,
            **{part: layer[part] and self.norm(f"{name}.{part}", layer[part]) for part in NORMS},
            **{part: self.arrays.get(f"{name}.{part}") for part in optional},
            window=self.settings["limit"] if layer["window"] is None else layer["window"],
            rotation=self.arrays.get(f"rotations.{layer['rotation']}"),
            **self._roundings(name, layer),
            **self._experts(name, layer["experts"]),
        )

    def _experts(self, name: str, settings: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the fields of a layer's record for experts."""
        if settings is None:
            return {}
        return {
            "experts": settings["router"]["width"],
            "chosen": settings["chosen"],
            "router": self.float_linear(f"{name}.router", settings["router"]),
            "experts_bias": self.arrays[f"{name}.experts_bias"],
        }

    def _roundings(self, name: str, layer: Mapping[str, Any]) -> dict[str, Array]:
        """Return the fields of a layer's record for fake quantization."""

        def record(part: str, channels: int) -> Array:
            return self._round_trip(f"{name}.{part}_rounding", layer[f"{part}_rounding"], channels)

        def add(start: str) -> Array:
            parts = (record(f"{start}{part}", self.hidden) for part in ("local", "states"))
            return self._keep(np.concatenate(list(parts)))

        heads = [
            0 if layer[f"{part}_rounding"] is None else record(part, self.width).ctypes.data
            for part in ("query", "key", "value")
        ]
        return {
            "roundings": self._keep(np.array(heads, np.int64)),
            "probability_rounding": record("probability", PANEL),
            "attention_add": add("attention_"),
            "add": add(""),
        }

    def _round_trip(self, name: str, settings: Mapping[str, Any] | None, channels: int) -> Array:
        """Return a record of fake quantization; without settings, it keeps values."""
        if settings is None:
            nothing = self._keep(zeros(channels, np.float32))
            arrays, codes = {"multiplier": nothing, "step": nothing}, (0, 0, 0)
        else:
            arrays = {part: self.arrays[f"{name}.{part}"] for part in ("multiplier", "step")}
            codes = (settings["zero_point"], settings["low"], settings["high"])
        limits = dict(zip(("shift", "low", "high"), map(shift_of, codes), strict=True))
        return self._record(ROUND_TRIP, **arrays, **limits, is_kept=int(settings is None))

    def _linear(self, name: str, settings: Mapping[str, Any]) -> Array:
        if self.features.floats:
            weights, bias = (self.arrays[f"{name}.{part}"] for part in ("weights", "bias"))
            panel, panels, steps = 64 * settings["depth"], len(weights), settings["depth"]
            places = {"weights": weights, "first_sums": bias}
            return self._record(LINEAR, **places, panel=panel, panels=panels, steps=steps)
        parts = ("weights", "start", "factor", "bias")
        return self._linear_record(settings, *(self.arrays[f"{name}.{part}"] for part in parts))

    def _linear_record(
        self,
        settings: Mapping[str, Any],
        weights: Array,
        start: Array,
        factor: Array,
        bias: Array,
        margin: Array | int = 0,
    ) -> Array:
        first = first_sums(weights, start, is_signed=self.isa.is_signed) + margin
        return self._record(
            LINEAR,
            weights=weights,
            panel=16 * settings["depth"],
            panels=settings["columns"] // 16,
            steps=settings["depth"] // 4,
            first_sums=self._keep(first),
            factor=factor,
            bias=bias,
        )

    def _table(self) -> Table:
        rest, scale = (self.arrays.get(part) for part in ("word_rest", "word_scale"))
        return self.arrays["words"], rest, scale

    def weights_by_row(self, name: str, settings: Mapping[str, Any]) -> Table:
        """Return the weights of a linear layer in float with the rows one after another."""
        if settings["tied"]:
            return self._table()
        panels = self.arrays[f"{name}.weights"]
        rows = np.ascontiguousarray(panels.transpose(0, 2, 1)).reshape(-1, settings["depth"])
        return self._keep(rows), None, None

    def words(self, name: str, settings: Mapping[str, Any], table: Table) -> Array:
        """Return the record for estimates in int8 of the scores of a layer that is stored in float.

        Its weights get the nearest codes, and its input has dynamic scales. Sums start from two
        standard deviations of their rounding error, so that few estimates are too low. For this
        margin, the codes of inputs count as large as the codes of weights.
        """
        depth, columns = settings["depth"], settings["columns"]
        # For all CPUs, so that the same words have a weight.
        spec = dataclasses.replace(WEIGHT, adjacent_sum_limit=SAFE_ADJACENT_SUM_LIMIT)
        weights = self._keep(zeros((columns // PANEL, depth // 4, PANEL, 4), np.int8))
        start = zeros(columns, np.int32)
        factor, margin = self._keep(np.ones(columns, np.float32)), np.zeros(columns, np.int32)
        bias = self._keep(zeros(columns, np.float32))
        # Padding has to have the score 0: it has no weights in a table of words.
        bias[: settings["width"]] = self.arrays[f"{name}.bias"][: settings["width"]]
        for first, floats in table_blocks(*table):
            codes, scales = quantize_weight(floats, spec, fits_closely=True)
            some = slice(first, first + len(codes))
            start[some], factor[some] = -128 * codes.sum(axis=1, dtype=np.int32), scales
            # Each product has two errors of up to half a code, with the variance 1 / 12.
            variance = np.square(codes, dtype=np.float32).sum(axis=1) * (2 / 12)
            margin[some] = np.rint(2 * np.sqrt(variance))
            made = pack(codes, depth)
            weights[first // PANEL : first // PANEL + len(made)] = made
        return self._linear_record(settings, weights, start, factor, bias, margin)

    def multiplied(self, record: Array, rows: Array, columns: int) -> Array:
        """Return rows after a linear layer in float, with padded columns."""
        out = zeros((len(rows), padded(columns)), np.float32)
        self.functions["float_linear"](
            *(record.ctypes.data, rows.ctypes.data, rows.strides[0], len(rows)),
            *(out.ctypes.data, out.strides[0]),
        )
        return out

    def normalize_(self, record: Array, rows: Array) -> None:
        """Normalize rows in place."""
        self.functions["layer_norm"](
            record.ctypes.data, rows.ctypes.data, rows.strides[0], len(rows)
        )

    def activate_(self, name: str, rows: Array, width: int) -> None:
        """Apply an activation function to the first channels of rows in place."""
        self.functions[f"apply_{name}"](rows.ctypes.data, rows.size)
        # Functions of zero may differ from zero, and padding has to stay zero.
        rows[:, width:] = 0

    def _codes(self, name: str, part: str, settings: Mapping[str, Any]) -> Array:
        if self.features.floats:
            return self._record(CODES)
        channels, matrix = {
            "hidden": (self.settings["hidden"], self.features.spread_states),
            "inner": (self.settings["inner"], self.features.spread_inner),
        }.get(LINEARS[part].depth, (0, None))
        return self._record(
            CODES,
            multiplier=self.arrays[f"{name}.{part}.multiplier"],
            shift=shift_of(settings["zero_point"]),
            step=0 if matrix is None else 4 * channels // matrix.members,
        )

    def norm(self, name: str, settings: Mapping[str, Any]) -> Array:
        """Return the record of a LayerNorm."""
        return self._record(
            NORM,
            weight=self.arrays[f"{name}.weight"],
            bias=self.arrays[f"{name}.bias"],
            epsilon=settings["epsilon"],
            width=settings["width"],
            subtracts_mean=float(settings["subtracts_mean"]),
        )

    def float_linear(self, name: str, settings: Mapping[str, Any]) -> Array:
        """Return the record of a linear layer in float."""
        is_tied = settings["tied"]
        return self._record(
            FLOAT_LINEAR,
            weights=self._keep(pack_table(*self._table()))
            if is_tied
            else self.arrays[f"{name}.weights"],
            panel=64 * settings["depth"],
            panels=settings["columns"] // 16,
            depth=settings["depth"],
            bias=self.arrays[f"{name}.bias"],
        )


def _products(layer: Mapping[str, Any]) -> int:
    """Return the number of products of a layer for each token."""
    total = 0
    for part, linear in LINEARS.items():
        products: int = layer[part]["depth"] * layer[part]["columns"]
        if layer["experts"] and linear.of_experts:
            products = products * layer["experts"]["chosen"] // layer["experts"]["router"]["width"]
        total += products
    return total
