"""A packed model as a list of kernel launches, for up to a number of tokens."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import triton
from numpy.typing import NDArray

from qdqbert.engines.cuda import kernels
from qdqbert.engines.cuda.tiles import ATTENTION, FLOAT_TILE, Tile, attention_of, tile_of
from qdqbert.engines.cuda.weights import (
    LayerTensors,
    LinearTensors,
    NormTensors,
    Spread,
    Tensors,
    spread_of,
)
from qdqbert.engines.native.memory import padded

# Texts have on average this number of tokens or more, or a chunk of texts ends before it is full.
_FEW_TOKENS = 16
# Texts that fit with any number of tokens.
_FEW_TEXTS = 4
# Rows of tiles that are computed together, as they read the same weights.
_TOGETHER = 8
# Tokens and blocks there are, and room up to a multiple of 16 bytes.
_SIZES = 4
_BLOCKS = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chunk:
    """Texts without padding, and the blocks of their queries, as int32 arrays.

    Attributes:
        ids, positions, types: `(tokens,)`.
        factors: `(tokens,)` float32, factors of the rows of words; `None` without.
        starts: `(texts + 1,)`, index of the first token of each text, and of the end.
        attended: `(texts,)`, how many tokens at the start of each text are attended to.
    """

    ids: NDArray[np.int32]
    positions: NDArray[np.int32]
    types: NDArray[np.int32]
    factors: NDArray[np.float32] | None
    starts: NDArray[np.int32]
    attended: NDArray[np.int32]

    @functools.cached_property
    def blocks(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """The text of each block of queries, and its first query in the text."""
        counts = -(-np.diff(self.starts) // ATTENTION.queries)
        texts = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        before = np.repeat(np.cumsum(counts) - counts, counts)
        firsts = (np.arange(len(texts)) - before) * ATTENTION.queries
        return texts, firsts.astype(np.int32)


def capacity_of_blocks(tokens: int) -> int:
    """Return the number of blocks of queries, and of texts, that fit with a number of tokens."""
    return tokens // _FEW_TOKENS + _FEW_TEXTS


@functools.cache
def _places(tokens: int) -> Mapping[str, slice]:
    """Return where the parts of `Numbers` are."""
    blocks = capacity_of_blocks(tokens)
    lengths = {
        "sizes": _SIZES,
        **dict.fromkeys(("ids", "positions", "types", "factors"), tokens),
        "starts": blocks + 1,
        **dict.fromkeys(("ends", "block_texts", "block_firsts"), blocks),
    }
    ends = itertools.accumulate(lengths.values())
    return {
        name: slice(end - length, end)
        for (name, length), end in zip(lengths.items(), ends, strict=True)
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Numbers:
    """The inputs of a program as one int32 array, so that there is one copy to the device.

    Attributes:
        array: The array.
        tokens: Most tokens.
    """

    array: Any
    tokens: int

    @staticmethod
    def size(tokens: int) -> int:
        """Return the length of the array."""
        return max(int(place.stop) for place in _places(tokens).values())

    def part(self, name: str) -> Any:
        """Return a part of the array."""
        return self.array[_places(self.tokens)[name]]

    def write(self, chunk: Chunk) -> None:
        """Write the numbers of some texts, which have to fit."""
        texts, firsts = chunk.blocks
        sizes = (len(chunk.ids), len(texts))
        values = {
            "sizes": np.array(sizes, np.int32),
            "ids": chunk.ids,
            "positions": chunk.positions,
            "types": chunk.types,
            "starts": chunk.starts,
            "ends": chunk.starts[:-1] + chunk.attended,
            "block_texts": texts,
            "block_firsts": firsts,
        }
        if chunk.factors is not None:
            values["factors"] = chunk.factors.view(np.int32)
        for name, value in values.items():
            place = self.part(name)
            place[: len(value)] = value
            # A block or a token that is not there reads a row that is.
            place[len(value) :] = 0


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """The launches of a forward pass up to the last hidden states.

    Attributes:
        numbers: The inputs, on the device.
        launches: The launches, in order.
        states: `(tokens, hidden)` float32, the last hidden states, with padding of channels.
    """

    numbers: Numbers
    launches: Sequence[Launch]
    states: torch.Tensor

    def run(self) -> None:
        """Run the launches on the current stream."""
        for launch in self.launches:
            launch()


class Model:
    """The tensors of a packed model, and what makes programs of them.

    Attributes:
        tensors: The tensors.
        hidden: Number of channels of states, with padding.
        vocabulary: Rows of the table of words.
        type_count: Rows of the table of token types.
    """

    def __init__(self, tensors: Tensors, capability: int) -> None:
        """Copy the arrays to the device; `capability` is the GPU's, times 10."""
        settings, features = tensors.settings, tensors.features
        self.tensors, self._capability = tensors, capability
        self.hidden = padded(settings["hidden"])
        self._embeddings = settings["embeddings"]
        self._words = tensors.of("words")
        self._positions, self._types = tensors.of("positions"), tensors.of("token_types")
        self.vocabulary, self.type_count = len(self._words), len(self._types)
        self._word_scale = tensors.none()
        if self._embeddings["int8"]:
            self._word_scale = tensors.of("word_scale")
        self._embedding_norm = tensors.norm("embedding_norm", self._embeddings["norm"])
        self._projection: LinearTensors | None = None
        if (projection := self._embeddings["projection"]) is not None:
            self._projection = tensors.float_linear("projection", projection)
        self.layers = [tensors.layer(each) for each in range(len(settings["layers"]))]
        self._rotations = [tensors.of(f"rotations.{n}") for n in range(settings["rotations"])]
        self._final_norm = tensors.norm("final_norm", settings["final_norm"])
        device, heads = tensors.device, settings["heads"] * settings["head_size"]
        self._of_states = spread_of(settings["hidden"], features.spread_states, device)
        self._of_inner = spread_of(settings["inner"], features.spread_inner, device)
        self._of_contexts = spread_of(heads, None, device)

    def program(self, tokens: int) -> Program:
        """Return a program for up to a number of tokens."""
        return _Builder(self, tokens).build()


class _Builder:
    """Makes the launches of one program."""

    def __init__(self, model: Model, tokens: int) -> None:
        self._model, self._tokens = model, tokens
        self._device = model.tensors.device
        self._launches: list[Launch] = []
        settings, features = model.tensors.settings, model.tensors.features
        self._settings, self._features = settings, features
        size = Numbers.size(tokens)
        self._numbers = Numbers(array=self._buffer(size, dtype=torch.int32), tokens=tokens)
        self._counts = self._numbers.part("sizes")
        codes = torch.float16 if features.floats else torch.int8
        # Sums of normalized parts stay small. Others grow from layer to layer, beyond float16.
        kind = torch.float32 if features.norms_first else torch.float16
        hidden, inner = model.hidden, padded(settings["inner"])
        self._width = len(model.layers[0].projections.bias) // 3
        self._states = self._buffer(tokens, hidden, dtype=kind)
        self._codes = self._buffer(tokens, hidden, dtype=codes)
        self._projected = self._buffer(tokens, 3 * self._width, dtype=torch.float16)
        self._contexts = self._buffer(tokens, self._width, dtype=torch.float16)
        self._local = self._buffer(tokens, hidden, dtype=torch.float16)
        self._inner = self._buffer(tokens, inner, dtype=torch.float16)
        self._last = self._buffer(tokens, hidden, dtype=torch.float32)
        self._scales = self._buffer(tokens, dtype=torch.float32)
        self._context_codes = self._codes_of(self._contexts)
        self._inner_codes = self._codes_of(self._inner)
        self._none = model.tensors.none()

    def _buffer(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        # Channels that are padding are read, and never written.
        return torch.zeros(shape, dtype=dtype, device=self._device)

    def _codes_of(self, rows: torch.Tensor) -> torch.Tensor:
        if self._features.floats:
            return rows
        return self._buffer(*rows.shape, dtype=torch.int8)

    def build(self) -> Program:
        model = self._model
        self._embed()
        first = model.layers[0]
        norm = first.norms.get("attention_input_norm")
        self._add_norm(first.projections, norm=norm, adds=False, keeps_sum=norm is not None)
        for index, layer in enumerate(model.layers):
            self._attend(layer)
            following = model.layers[index + 1] if index + 1 < len(model.layers) else None
            self._feed_forward(layer, following)
        return Program(numbers=self._numbers, launches=self._launches, states=self._last)

    def _add(self, kernel: Any, grid: tuple[int, ...], **arguments: Any) -> None:
        self._launches.append(Launch(kernel=kernel, grid=grid, arguments=arguments))

    def _embed(self) -> None:
        model, settings = self._model, self._model._embeddings
        norm, projection = model._embedding_norm, model._projection
        stride = model._words.shape[1]
        states = self._states
        if projection is not None:
            states = self._buffer(self._tokens, stride, dtype=torch.float32)
        self._add(
            kernels.embed,
            (self._tokens,),
            count=self._counts,
            **{name: self._numbers.part(name) for name in ("ids", "positions", "types")},
            factors=self._numbers.part("factors").view(torch.float32),
            words=model._words,
            word_scale=model._word_scale,
            position_rows=model._positions,
            type_rows=model._types,
            states=states,
            width=settings["width"],
            stride=stride,
            has_positions=settings["has_positions"],
            has_factors=self._settings["dropped_id"] is not None,
            has_norm=norm is not None,
            size=triton.next_power_of_2(settings["width"]),
            **self._of_norm(norm),
        )
        if projection is not None:
            self._linear(projection, states, self._states, None, tile=FLOAT_TILE)

    def _of_norm(self, norm: NormTensors | None) -> dict[str, Any]:
        if norm is None:
            norm = NormTensors(
                weight=self._none, bias=self._none, epsilon=0.0, subtracts_mean=False
            )
        return norm.arguments

    def _add_norm(
        self,
        reader: LinearTensors | None,
        *,
        norm: NormTensors | None,
        local_norm: NormTensors | None = None,
        again: NormTensors | None = None,
        adds: bool = True,
        keeps_sum: bool = False,
        is_last: bool = False,
    ) -> None:
        """Add a part's output to the states, and write the codes that a linear layer reads."""
        spread = self._model._of_states
        self._add(
            kernels.add_norm,
            (self._tokens,),
            count=self._counts,
            states=self._states,
            local=self._local,
            local_weight=self._none if local_norm is None else local_norm.weight,
            local_bias=self._none if local_norm is None else local_norm.bias,
            local_epsilon=0.0 if local_norm is None else local_norm.epsilon,
            normalizes_local=local_norm is not None,
            local_subtracts_mean=local_norm is not None and local_norm.subtracts_mean,
            again_weight=self._none if again is None else again.weight,
            again_bias=self._none if again is None else again.bias,
            again_epsilon=0.0 if again is None else again.epsilon,
            multiplier=self._none if reader is None else reader.multiplier,
            matrix=self._none if spread.matrix is None else spread.matrix,
            sums=self._last if is_last else self._states,
            codes=self._codes,
            scales=self._scales,
            width=spread.width,
            stride=self._model.hidden,
            adds=adds,
            normalizes=norm is not None,
            adds_again=again is not None,
            keeps_sum=keeps_sum,
            writes_states=is_last or adds or not keeps_sum,
            writes_codes=reader is not None,
            **self._of_norm(norm),
            **self._constants(spread),
        )

    def _constants(self, spread: Spread) -> dict[str, Any]:
        constants = spread.constants
        return {**constants, "spread": constants["spread"] and not self._features.floats}

    def _quantize(
        self, rows: torch.Tensor, codes: torch.Tensor, reader: LinearTensors, spread: Spread
    ) -> None:
        if rows is codes:
            return
        self._add(
            kernels.quantize,
            (self._tokens,),
            count=self._counts,
            rows=rows,
            multiplier=reader.multiplier,
            matrix=self._none if spread.matrix is None else spread.matrix,
            codes=codes,
            scales=self._scales,
            width=spread.width,
            stride=rows.shape[1],
            **self._constants(spread),
        )

    def _linear(
        self,
        linear: LinearTensors,
        rows: torch.Tensor,
        out: torch.Tensor,
        activation: str | None,
        *,
        gated: bool = False,
        tile: Tile | None = None,
    ) -> None:
        self._launches.append(
            linear_launch(
                linear,
                rows,
                out,
                count=self._counts,
                scales=self._scales,
                activation=activation,
                gated=gated,
                tile=tile
                or tile_of(
                    self._model._capability,
                    self._tokens,
                    activation=activation,
                    gated=gated,
                    bytes_of_code=rows.element_size(),
                ),
            )
        )

    def _attend(self, layer: LayerTensors) -> None:
        self._linear(layer.projections, self._codes, self._projected, None)
        self._rotate(layer)
        self._attention(layer)
        contexts = self._context_codes
        self._quantize(self._contexts, contexts, layer.output, self._model._of_contexts)
        self._linear(layer.output, contexts, self._local, None)
        norms = layer.norms
        self._add_norm(
            layer.up,
            norm=norms["up_input_norm" if self._features.norms_first else "attention_norm"],
            local_norm=norms.get("attention_local_norm"),
            again=norms.get("attention_again"),
            keeps_sum=self._features.norms_first,
        )

    def _feed_forward(self, layer: LayerTensors, following: LayerTensors | None) -> None:
        codes, gated = self._inner_codes, self._features.gated
        self._linear(layer.up, self._codes, self._inner, self._features.activation, gated=gated)
        self._quantize(self._inner, codes, layer.down, self._model._of_inner)
        self._linear(layer.down, codes, self._local, None)
        is_last = following is None
        if self._features.norms_first:
            norm = (
                self._model._final_norm
                if following is None
                else following.norms["attention_input_norm"]
            )
        else:
            norm = layer.norms["norm"]
        self._add_norm(
            None if following is None else following.projections,
            norm=norm,
            local_norm=layer.norms.get("local_norm"),
            keeps_sum=self._features.norms_first and not is_last,
            is_last=is_last,
        )

    def _rotate(self, layer: LayerTensors) -> None:
        rotates, normalizes = layer.rotation is not None, self._features.normalizes_heads
        if not rotates and not normalizes:
            return
        half = self._settings["head_size"] // 2
        query, key = (layer.norms.get(each) for each in ("query_norm", "key_norm"))
        self._add(
            kernels.rotate,
            (self._tokens, 2),
            count=self._counts,
            places=self._numbers.part("positions"),
            table=self._none if layer.rotation is None else self._model._rotations[layer.rotation],
            weights=self._none if layer.head_norms is None else layer.head_norms,
            states=self._projected,
            width=self._width,
            stride=3 * self._width,
            query_epsilon=0.0 if query is None else query.epsilon,
            key_epsilon=0.0 if key is None else key.epsilon,
            heads=self._settings["heads"],
            normalizes=normalizes,
            norms_each_head=self._features.norms_each_head,
            rotates=rotates,
            half=half,
            half_size=triton.next_power_of_2(half),
            head_count=triton.next_power_of_2(self._settings["heads"]),
        )

    def _attention(self, layer: LayerTensors) -> None:
        parts = ("starts", "ends", "block_texts", "block_firsts")
        size = self._settings["head_size"]
        block = attention_of(size)
        self._add(
            kernels.attention,
            (capacity_of_blocks(self._tokens), self._settings["heads"]),
            count=self._counts[_BLOCKS:],
            states=self._projected,
            out=self._contexts,
            **{name: self._numbers.part(name) for name in parts},
            bias=self._none if layer.position_bias is None else layer.position_bias,
            scale=self._settings["score_scale"],
            width=self._width,
            stride=3 * self._width,
            out_stride=self._width,
            limit=self._settings["limit"],
            window=0 if layer.window is None else layer.window,
            size=size,
            wide=triton.next_power_of_2(size),
            causal=self._settings["causal"],
            windowed=layer.window is not None,
            biased=layer.position_bias is not None,
            queries=block.queries,
            keys=block.keys,
            num_warps=block.warps,
            num_stages=block.stages,
        )


def linear_launch(
    linear: LinearTensors,
    rows: torch.Tensor,
    out: torch.Tensor,
    *,
    count: torch.Tensor,
    scales: torch.Tensor,
    tile: Tile,
    activation: str | None = None,
    gated: bool = False,
) -> Launch:
    """Return the launch of a linear layer.

    Args:
        linear: The layer.
        rows: `(rows, channels)`, codes or floats of the dtype of its weights.
        out: `(rows, columns)`, with any padding of columns.
        count: Its first number is the number of rows there are.
        scales: Scales of rows of codes, `(rows,)`.
        tile: The tile.
        activation: Activation function of the result; `None` without.
        gated: Whether the layer has a gate.
    """
    down, across = (
        triton.cdiv(*each) for each in ((len(rows), tile.rows), (linear.columns, tile.columns))
    )
    arguments: dict[str, Any] = {
        "count": count,
        "rows": rows,
        "weights": linear.weights,
        "row_scales": scales,
        "factors": linear.factors,
        "bias": linear.bias,
        "out": out,
        "columns": linear.columns,
        "depth": linear.weights.shape[1],
        "rows_stride": rows.shape[1],
        "out_stride": out.shape[1],
        "activation": activation or "",
        "gate": gated,
        "tile_rows": tile.rows,
        "tile_columns": tile.columns,
        "step": tile.step,
        "together": _TOGETHER,
        "num_warps": tile.warps,
        "num_stages": tile.stages,
    }
    return Launch(kernel=kernels.linear, grid=(down * across,), arguments=arguments)
