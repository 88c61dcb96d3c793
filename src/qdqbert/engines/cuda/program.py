"""A packed model as a list of kernel launches, for up to a number of tokens."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import triton

from qdqbert.engines.cuda import kernels
from qdqbert.engines.cuda.texts import parts_of, size_of
from qdqbert.engines.cuda.tiles import FLOAT_TILE, Tile, attention_of, tile_of
from qdqbert.engines.cuda.weights import Layer, Linear, Model, Norm, Spread
from qdqbert.engines.native.memory import padded


@dataclasses.dataclass(frozen=True, kw_only=True)
class Launch:
    """A kernel with its arguments.

    Attributes:
        kernel: The kernel.
        grid: Number of programs on each axis.
        arguments: Arguments by name.
    """

    kernel: Any
    grid: tuple[int, ...]
    arguments: dict[str, Any]

    def __call__(self) -> None:
        """Run the kernel on the current stream."""
        # Products and sums are fused whatever a version of Triton does by default.
        self.kernel[self.grid](**self.arguments, enable_fp_fusion=True)


def linear_launch(
    linear: Linear,
    rows: torch.Tensor,
    out: torch.Tensor,
    *,
    count: torch.Tensor,
    tile: Tile,
    scales: torch.Tensor | None = None,
    activation: str | None = None,
) -> Launch:
    """Return the launch of a linear layer.

    Args:
        linear: The layer.
        rows: `(rows, depth)`, codes or floats of the dtype of its weights.
        out: `(rows, columns)`, with any padding of columns.
        count: Its first number is the number of rows there are.
        tile: The tile.
        scales: Scales of rows of codes, `(rows,)`; `None` for floats.
        activation: Activation function of the result; `None` without.
    """
    down, across = triton.cdiv(len(rows), tile.rows), triton.cdiv(linear.columns, tile.columns)
    arguments = {
        "count": count,
        "rows": rows,
        "scales": scales,
        "weights": linear.weights,
        "factors": linear.factors,
        "bias": linear.bias,
        "out": out,
        "columns": linear.columns,
        "depth": linear.weights.shape[1],
        "out_stride": out.shape[1],
        "activation": activation or "",
        "gate": linear.is_gated,
        "tile_rows": tile.rows,
        "tile_columns": tile.columns,
        "step": tile.step,
        "num_warps": tile.warps,
        "num_stages": tile.stages,
    }
    return Launch(kernel=kernels.linear, grid=(down * across,), arguments=arguments)


def rows_launch(
    rows: torch.Tensor,
    spread: Spread,
    *,
    count: torch.Tensor,
    local: torch.Tensor | None = None,
    local_norm: Norm | None = None,
    norm: Norm | None = None,
    again: Norm | None = None,
    sums: torch.Tensor | None = None,
    keeps_sum: bool = False,
    codes: torch.Tensor | None = None,
    scales: torch.Tensor | None = None,
    multiplier: torch.Tensor | None = None,
) -> Launch:
    """Return the launch that adds to rows, normalizes them, and makes codes of them.

    Args:
        rows: `(rows, channels)`, floats.
        spread: How their channels become codes.
        count: Its first number is the number of rows there are.
        local: What is added, of the same shape; `None` for nothing.
        local_norm: Norm of what is added; `None` without.
        norm: Norm of the sum; `None` without.
        again: Norm after the rows are added a second time; `None` without.
        sums: Receives the result, of the same shape; `None` if it is not needed.
        keeps_sum: Whether the result is the sum before `norm`, and only the codes are normalized.
        codes: Receives the codes, or floats, of the same shape; `None` if they are not needed.
        scales: Receives the scales of codes, `(rows,)`.
        multiplier: As in `Linear`.
    """
    arguments = {
        "count": count,
        "states": rows,
        "local": local,
        "local_norm": local_norm and local_norm.values,
        "norm": norm and norm.values,
        "again": again and again.values,
        "sums": sums,
        "multiplier": multiplier,
        "codes": codes,
        "scales": scales,
        "stride": rows.shape[1],
        "local_subtracts_mean": local_norm is not None and local_norm.subtracts_mean,
        "subtracts_mean": norm is not None and norm.subtracts_mean,
        "keeps_sum": keeps_sum,
        **vars(spread),
    }
    return Launch(kernel=kernels.add_norm, grid=(len(rows),), arguments=arguments)


Buffers = Mapping[str, torch.Tensor]
"""Rows of tokens between kernels, by name. The zeros of channels that are padding stay zeros."""


def buffers_of(model: Model, tokens: int) -> Buffers:
    """Return buffers for up to a number of tokens, which programs that take turns can share."""
    width, inner, hidden = model.width, padded(model.settings["inner"]), model.hidden
    features, half = model.features, torch.float16
    # Sums of normalized parts stay small. Others grow from layer to layer, beyond float16, by parts
    # that are beyond it.
    wide = torch.float32 if features.norms_first else half
    channels = {
        # Before the projection, if there is one.
        "embedded": (model.words.shape[1] if model.projection else 0, torch.float32),
        "states": (hidden, wide),
        "codes of states": (hidden, half if features.floats else torch.int8),
        # Queries, keys and values.
        "projected": (3 * width, half),
        "contexts": (width, half),
        # What is added to the states.
        "local": (hidden, wide),
        "inner": (inner, half),
        "last": (hidden, torch.float32),
        # Of the codes that are read next.
        "scales": (1, torch.float32),
    }
    if not features.floats:
        channels |= {
            "codes of contexts": (width, torch.int8),
            "codes of inner": (inner, torch.int8),
        }
    return {
        name: torch.zeros((tokens, count), dtype=dtype, device=model.device)
        for name, (count, dtype) in channels.items()
    }


class Program:
    """The launches of a forward pass up to the last hidden states, for up to a number of tokens.

    Attributes:
        numbers: Those of the texts, int32 on the device; see `texts.parts_of`.
        starts: Their part with the first token of each text, and the end.
        launches: The launches, in order.
        states: `(tokens, hidden)` float32, the last hidden states, with padding of channels.
        graph: The launches as a graph, once they were captured.
    """

    def __init__(self, model: Model, buffers: Buffers, tokens: int) -> None:
        """Make the launches, which use the first rows of the buffers."""
        self._model, self._tokens = model, tokens
        self._rows = {name: rows[:tokens] for name, rows in buffers.items()}
        self.numbers = torch.zeros(size_of(tokens), dtype=torch.int32, device=model.device)
        self._count, self._places, self._blocks, self.starts = parts_of(self.numbers, tokens)
        self.states = self._rows["last"]
        self.launches = tuple(self._launches())
        self.graph: torch.cuda.CUDAGraph | None = None

    def run(self) -> None:
        """Run the launches on the current stream."""
        if self.graph is not None:
            self.graph.replay()
            return
        for launch in self.launches:
            launch()

    def capture(self, stream: torch.cuda.Stream) -> None:
        """Make a graph of the launches, whose kernels were compiled."""
        graph = torch.cuda.CUDAGraph()
        # Other modes refuse to destroy another graph meanwhile, which Python's garbage can have.
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="relaxed"):
            self.run()
        self.graph = graph

    def _launches(self) -> Iterator[Launch]:
        layers = self._model.layers
        yield from self._embed()
        norm = layers[0].norms.get("attention_input_norm")
        yield self._change("states", layers[0].projections, norm=norm)
        for layer, following in itertools.zip_longest(layers, layers[1:]):
            yield from self._attend(layer)
            yield from self._feed_forward(layer, following)

    def _launch(self, kernel: Any, *axes: int, **arguments: Any) -> Launch:
        """Return the launch of a kernel, each of whose programs has a token."""
        arguments = {"count": self._count, **arguments}
        return Launch(kernel=kernel, grid=(self._tokens, *axes), arguments=arguments)

    def _embed(self) -> Iterator[Launch]:
        model, rows, count = self._model, self._rows, self._count
        settings, norm = model.settings["embeddings"], model.embedding_norm
        ids, positions, types, factors = self._places
        has_factors = model.settings["dropped_id"] is not None
        yield self._launch(
            kernels.embed,
            ids=ids,
            positions=positions,
            types=types,
            factors=factors.view(torch.float32) if has_factors else None,
            words=model.words,
            word_scale=model.word_scale,
            position_rows=model.positions,
            type_rows=model.types,
            norm=norm and norm.values,
            states=rows["embedded" if model.projection else "states"],
            width=settings["width"],
            stride=model.words.shape[1],
            subtracts_mean=norm is not None and norm.subtracts_mean,
            size=triton.next_power_of_2(settings["width"]),
        )
        if model.projection is not None:
            yield linear_launch(
                model.projection, rows["embedded"], rows["states"], count=count, tile=FLOAT_TILE
            )

    def _codes(self, name: str) -> torch.Tensor:
        """Return what linear layers read of rows: codes, or in float the rows."""
        return self._rows.get(f"codes of {name}", self._rows[name])

    def _change(self, name: str, reader: Linear | None, **changes: Any) -> Launch:
        """Return the launch that changes rows, and makes codes of them for a reader, if any."""
        return rows_launch(
            self._rows[name],
            self._model.spreads[name],
            count=self._count,
            codes=None if reader is None else self._codes(name),
            scales=self._rows["scales"],
            multiplier=None if reader is None else reader.multiplier,
            **changes,
        )

    def _linear(
        self, linear: Linear, name: str, out: str, *, activation: str | None = None
    ) -> Launch:
        rows = self._codes(name)
        tile = tile_of(
            self._model.capability,
            self._tokens,
            activation=activation,
            gated=linear.is_gated,
            bytes_of_code=rows.element_size(),
        )
        return linear_launch(
            linear,
            rows,
            self._rows[out],
            count=self._count,
            tile=tile,
            scales=None if linear.factors is None else self._rows["scales"],
            activation=activation,
        )

    def _attend(self, layer: Layer) -> Iterator[Launch]:
        features, norms = self._model.features, layer.norms
        yield self._linear(layer.projections, "states", "projected")
        if layer.rotation is not None or layer.head_norms is not None:
            yield self._rotate(layer)
        yield self._attention(layer)
        if not features.floats:
            yield self._change("contexts", layer.output)
        yield self._linear(layer.output, "contexts", "local")
        yield self._change(
            "states",
            layer.up,
            local=self._rows["local"],
            local_norm=norms.get("attention_local_norm"),
            norm=norms["up_input_norm" if features.norms_first else "attention_norm"],
            again=norms.get("attention_again"),
            sums=self._rows["states"],
            keeps_sum=features.norms_first,
        )

    def _feed_forward(self, layer: Layer, following: Layer | None) -> Iterator[Launch]:
        features, norm = self._model.features, layer.norms.get("norm")
        yield self._linear(layer.up, "states", "inner", activation=features.activation)
        if not features.floats:
            yield self._change("inner", layer.down)
        yield self._linear(layer.down, "inner", "local")
        if features.norms_first:
            norm = following.norms["attention_input_norm"] if following else self._model.final_norm
        yield self._change(
            "states",
            following.projections if following else None,
            local=self._rows["local"],
            local_norm=layer.norms.get("local_norm"),
            norm=norm,
            sums=self._rows["states" if following else "last"],
            keeps_sum=features.norms_first and following is not None,
        )

    def _rotate(self, layer: Layer) -> Launch:
        settings = self._model.settings
        half, heads = settings["head_size"] // 2, settings["heads"]
        return self._launch(
            kernels.rotate,
            2,
            places=self._places[1],
            table=layer.rotation,
            norms=layer.head_norms,
            states=self._rows["projected"],
            width=self._model.width,
            heads=heads,
            norms_each_head=self._model.features.norms_each_head,
            half=half,
            half_size=triton.next_power_of_2(half),
            head_count=triton.next_power_of_2(heads),
        )

    def _attention(self, layer: Layer) -> Launch:
        settings, rows = self._model.settings, self._rows
        size, heads = settings["head_size"], settings["heads"]
        arguments = {
            "states": rows["projected"],
            "blocks": self._blocks,
            "bias": layer.position_bias,
            "out": rows["contexts"],
            "scale": settings["score_scale"],
            "width": self._model.width,
            "limit": settings["limit"],
            "window": layer.window,
            "size": size,
            "wide": triton.next_power_of_2(size),
            "causal": settings["causal"],
            **attention_of(size),
        }
        grid = (len(self._blocks), heads)
        return Launch(kernel=kernels.attention, grid=grid, arguments=arguments)
