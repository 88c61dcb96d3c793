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
from qdqbert.engines.native.features import features_of
from qdqbert.engines.native.functions import ACTIVATIONS, shift_of
from qdqbert.engines.native.instruction_set import InstructionSet
from qdqbert.engines.native.kernels.dot import PANEL, bytes_of_codes, first_sums, pack
from qdqbert.engines.native.kernels.forward import (
    SPARE_ROWS,
    build_module,
)
from qdqbert.engines.native.kernels.pooling import POOLINGS
from qdqbert.engines.native.kernels.product import Table, pack_table, table_blocks
from qdqbert.engines.native.kernels.split import DEPTH
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
)
from qdqbert.engines.native.schedule import PART_ROWS
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
        settings: Settings of the model.
        arrays: Its arrays by name.
        hidden: Channels of a hidden state with padding.
        features: The features of the kernels.
        block: Rows that are computed together at most.
        part_rows: Rows of texts that a thread computes together at most.
        products: Number of products of codes and weights for each token.
        vocabulary: Number of token ids.
        type_count: Number of token types.
    """

    def __init__(self, packed: Packed, isa: InstructionSet) -> None:
        """Compile the kernels and bind the arrays.

        Args:
            packed: The model. Its arrays are used in place.
            isa: The instruction set of the kernels.

        Raises:
            CheckpointError: An array has another dtype or shape than the settings need.
        """
        check_packed(packed)
        self.settings = packed.settings
        # Slower, and right for weights without the adjacent sum limit.
        isa = isa if self.settings["fits_16_bits"] else isa.exact()
        self.hidden = padded(self.settings["hidden"])
        self.width = padded(self.settings["heads"] * self.settings["head_size"])
        self.inner = padded(self.settings["inner"])
        self.limit = padded(self.settings["limit"], DEPTH)
        self.isa = isa
        # States in float32, codes of them and codes of the feed-forward part.
        self.block = isa.tiles.block(5 * self.hidden + self.inner)
        self.part_rows = max(PART_ROWS, self.block * 2 // 3)
        self.arrays = {name: aligned(each) for name, each in packed.arrays.items()}
        # Records have addresses of arrays, which have to be kept.
        self._kept: list[Array] = []
        self.features = features_of(self.settings)
        # Columns of the first linear layer of the feed-forward part.
        self.up_columns = 2 * self.inner if self.features.gated else self.inner
        # Rows of the tables of relative positions with padding.
        relative = self.settings["relative"]
        self.relative_columns = 0 if relative is None else padded(relative["rows"], PANEL)
        source = f"{own_code()}\n{self.features}"
        kernels = compiled(source, functools.partial(build_module, isa, self.features), isa)
        self._library = Library(kernels, isa)
        self.functions: dict[str, Callable[..., None]] = {
            name: self._library.function(name) for name in _CALLED if self._library.has(name)
        }
        self.products = sum(
            layer[part]["depth"] * layer[part]["columns"]
            for layer in self.settings["layers"]
            for part in LINEARS
        )
        self.vocabulary = len(self.arrays["words"])
        self.type_count = len(self.arrays["token_types"])
        self.model = self._model()

    def _keep(self, array: Array) -> Array:
        self._kept.append(array)
        return array

    def _model(self) -> Array:
        settings, size = self.settings, self.settings["head_size"]
        arrays, embeddings = self.arrays, settings["embeddings"]
        layers = [
            self._layer(f"layers.{index}", each) for index, each in enumerate(settings["layers"])
        ]
        return self._keep(
            MODEL.make(
                {
                    "layers": self._keep(np.concatenate(layers)),
                    "layer_count": len(layers),
                    "hidden": self.hidden,
                    "heads": settings["heads"],
                    "head_size": settings["head_size"],
                    "width": self.width,
                    "group": settings["heads"]
                    if self.features.normalizes_heads
                    else min(max(1, _GROUP_COLUMNS // size), settings["heads"]),
                    "block": self.block,
                    "inner": self.inner,
                    "score_scale": settings["score_scale"],
                    "limit": settings["limit"],
                    "causal": int(settings["causal"]),
                    "relative_rows": arrays.get("relative_rows", 0),
                    "relative_panels": self.relative_columns // PANEL,
                    "embedding_width": padded(embeddings["width"]),
                    "words": arrays["words"],
                    "word_scale": arrays["word_scale"] if embeddings["int8"] else 0,
                    "positions": arrays["positions"],
                    "token_types": arrays["token_types"],
                    "embedding_norm": 0
                    if embeddings["norm"] is None
                    else self.norm("embedding_norm", embeddings["norm"]),
                    "projection": 0
                    if embeddings["projection"] is None
                    else self.float_linear("projection", embeddings["projection"]),
                    "embeds": 1,
                }
            )
        )

    def states(self, tokens: int) -> dict[str, Any]:
        """Return the fields of a job for hidden states, and for their codes."""
        rows = tokens + SPARE_ROWS
        shares_codes = all(layer["shares_codes"] for layer in self.settings["layers"])
        copies = 1 if shares_codes else 3
        return {
            "x": zeros((rows, self.hidden), np.float32),
            "codes": zeros((copies * rows, bytes_of_codes(self.hidden)), np.uint8),
            "row_scales": zeros((copies * rows, 2), np.float32),
            "code_rows": rows,
        }

    def part(self, layers: range, *, embeds: bool) -> Array:
        """Return the record of some layers.

        Args:
            layers: The layers.
            embeds: Whether the first one reads embeddings; otherwise it reads `Job.x`.
        """
        fields, record = list(MODEL.fields), self.model.copy()
        record[fields.index("layers")] += layers.start * LAYER.size
        record[fields.index("layer_count")] = len(layers)
        record[fields.index("embeds")] = int(embeds)
        return record

    def _layer(self, name: str, layer: Mapping[str, Any]) -> Array:
        parts = ("query", "key", "value")
        linears = [self._linear(f"{name}.{part}", layer[part]) for part in parts]
        codes = [self._codes(f"{name}.{part}", layer[part]) for part in parts]
        bias = self.arrays.get(f"{name}.position_bias")
        return LAYER.make(
            {
                "projections": self._keep(np.concatenate(linears)),
                "projection_codes": self._keep(np.concatenate(codes)),
                "shares_codes": int(layer["shares_codes"]),
                "context_codes": self._codes(f"{name}.output", layer["output"]),
                "output": self._linear(f"{name}.output", layer["output"]),
                **{
                    part: 0 if layer[part] is None else self.norm(f"{name}.{part}", layer[part])
                    for part in NORMS
                },
                "up_codes": self._codes(f"{name}.up", layer["up"]),
                "up": self._linear(f"{name}.up", layer["up"]),
                "down_codes": self._codes(f"{name}.down", layer["down"]),
                "down": self._linear(f"{name}.down", layer["down"]),
                "position_bias": 0 if bias is None else bias,
                **{
                    part: self.arrays.get(f"{name}.{part}", 0)
                    for part in ("relative_keys", "relative_queries")
                },
                "window": self.settings["limit"] if layer["window"] is None else layer["window"],
                "rotation": 0
                if layer["rotation"] is None
                else self.arrays[f"rotations.{layer['rotation']}"],
                **self._roundings(name, layer),
            }
        )

    def _roundings(self, name: str, layer: Mapping[str, Any]) -> dict[str, Array | int]:
        """Return the fields of a layer's record for fake quantization."""

        def record(part: str, channels: int) -> Array:
            return self._round_trip(f"{name}.{part}_rounding", layer[f"{part}_rounding"], channels)

        heads = [
            0 if layer[f"{part}_rounding"] is None else record(part, self.width).ctypes.data
            for part in ("query", "key", "value")
        ]
        adds = {
            f"{start}add": self._keep(
                np.concatenate(
                    [record(f"{start}{part}", self.hidden) for part in ("local", "states")]
                )
            )
            for start in ("attention_", "")
        }
        return {
            "roundings": self._keep(np.array(heads, np.int64)),
            "probability_rounding": record("probability", PANEL),
            **adds,
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
        return self._keep(ROUND_TRIP.make({**arrays, **limits, "is_kept": int(settings is None)}))

    def _linear(self, name: str, settings: Mapping[str, Any]) -> Array:
        weights, start = (self.arrays[f"{name}.{part}"] for part in ("weights", "start"))
        factor, bias = (self.arrays[f"{name}.{part}"] for part in ("factor", "bias"))
        return self._linear_record(weights, start, factor, bias, settings)

    def _linear_record(
        self,
        weights: Array,
        start: Array,
        factor: Array,
        bias: Array,
        settings: Mapping[str, Any],
        margin: Array | int = 0,
    ) -> Array:
        first = first_sums(weights, start, is_signed=self.isa.dot.is_signed) + margin
        return self._keep(
            LINEAR.make(
                {
                    "weights": weights,
                    "panel": 16 * settings["depth"],
                    "panels": settings["columns"] // 16,
                    "steps": settings["depth"] // 4,
                    "start": start,
                    "first_sums": self._keep(first),
                    "factor": factor,
                    "bias": bias,
                }
            )
        )

    def weights_by_row(self, name: str, settings: Mapping[str, Any]) -> Table:
        """Return the weights of a linear layer in float with the rows one after another."""
        if settings["tied"]:
            rest, scale = (self.arrays.get(part) for part in ("word_rest", "word_scale"))
            return self.arrays["words"], rest, scale
        panels = self.arrays[f"{name}.weights"]
        rows = np.ascontiguousarray(panels.transpose(0, 2, 1)).reshape(-1, settings["depth"])
        return self._keep(rows), None, None

    def words(self, name: str, settings: Mapping[str, Any], table: Table) -> Array:
        """Return the record for estimates in int8 of the scores of a layer that is stored in float.

        Its weights get the nearest codes, and its input has dynamic scales. Sums start from two
        standard deviations of their rounding error, so that few estimates are too low. For this
        margin, the codes of inputs count as large as the codes of weights.

        Args:
            name: Start of the names of its arrays.
            settings: Its settings.
            table: Its weights.
        """
        depth, columns = settings["depth"], settings["columns"]
        limit = None if self.isa.is_exact else SAFE_ADJACENT_SUM_LIMIT
        spec = dataclasses.replace(WEIGHT, adjacent_sum_limit=limit)
        weights = self._keep(zeros((columns // PANEL, depth // 4, PANEL, 4), np.int8))
        start = self._keep(zeros(columns, np.int32))
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
        return self._linear_record(weights, start, factor, bias, settings, margin)

    def _codes(self, name: str, settings: Mapping[str, Any]) -> Array:
        return self._keep(
            CODES.make(
                {
                    "multiplier": self.arrays[f"{name}.multiplier"],
                    "shift": shift_of(settings["zero_point"]),
                }
            )
        )

    def norm(self, name: str, settings: Mapping[str, Any]) -> Array:
        """Return the record of a LayerNorm."""
        return self._keep(
            NORM.make(
                {
                    "weight": self.arrays[f"{name}.weight"],
                    "bias": self.arrays[f"{name}.bias"],
                    "epsilon": settings["epsilon"],
                    "width": settings["width"],
                    "subtracts_mean": float(settings["subtracts_mean"]),
                }
            )
        )

    def float_linear(self, name: str, settings: Mapping[str, Any]) -> Array:
        """Return the record of a linear layer in float."""
        if settings["tied"]:
            rest, scale = (self.arrays.get(part) for part in ("word_rest", "word_scale"))
            weights = self._keep(pack_table(self.arrays["words"], rest, scale))
        else:
            weights = self.arrays[f"{name}.weights"]
        return self._keep(
            FLOAT_LINEAR.make(
                {
                    "weights": weights,
                    "panel": 64 * settings["depth"],
                    "panels": settings["columns"] // 16,
                    "depth": settings["depth"],
                    "bias": self.arrays[f"{name}.bias"],
                }
            )
        )
