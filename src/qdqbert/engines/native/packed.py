"""The arrays of a model in the layout that kernels read.

Channels are padded with zeros: hidden states and the feed-forward part to a multiple of 64, heads
to a multiple of 16. Columns of linear layers are in panels of 16; see `kernels.dot`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.common.choices import Precision
from qdqbert.common.errors import GraphError
from qdqbert.encoders.model import (
    TAIL_STATES,
    EncoderModel,
    Experts,
    Floats,
    Head,
    HeadOutput,
    Layer,
    Linear,
    Norm,
    RelativePositions,
    Rotary,
    RoundTrip,
    Table,
)
from qdqbert.encoders.shared_table import joined, rest_of
from qdqbert.engines.native.computed import check_codes, check_layer, same_codes
from qdqbert.engines.native.kernels.dot import PANEL, pack
from qdqbert.engines.native.kernels.product import pack_floats
from qdqbert.engines.native.memory import LINE, padded, with_zeros, zeros
from qdqbert.engines.native.schema import (
    LINEARS,
    NORMS,
    ROUNDINGS,
    LinearPart,
    NormPart,
    Place,
    Size,
    sizes,
    with_gate,
)
from qdqbert.engines.native.static import pack_static
from qdqbert.engines.native.storage import Keep, Packed, save_packed, write_packed
from qdqbert.engines.native.value_bounds import value_bounds

Array = NDArray[Any]


def pack_model(model: EncoderModel, *, precision: Precision = "int8") -> Packed:
    """Return a model in the layout of the kernels, whose linear layers have a precision.

    Raises:
        GraphError: The kernels do not compute a part of the model, or linear layers have another
            precision.
    """
    if not model.layers:
        return pack_static(model)
    arrays: dict[str, Array] = {}
    settings = _Packer(model, precision, arrays.__setitem__).pack()
    return Packed(arrays=arrays, settings=settings)


def write_model(model: EncoderModel, path: Path, *, precision: Precision = "int8") -> None:
    """Write a model as `pack_model` packs it, without keeping it in memory.

    Each layer is asked for once, in order.

    Raises:
        GraphError: As in `pack_model`.
        OSError: The file cannot be written. An existing file is unchanged.
    """
    if not model.layers:
        save_packed(pack_static(model), path)
        return
    write_packed(path, lambda keep: _Packer(model, precision, keep).pack())


class _Packer:
    """Passes on the arrays of one model, and returns its settings."""

    def __init__(self, model: EncoderModel, precision: Precision, keep: Keep) -> None:
        if model.tail is not None and TAIL_STATES in model.tail.inputs:
            states = Head(poolings=("none",), steps=(), outputs=(HeadOutput(name=TAIL_STATES),))
            model = dataclasses.replace(model, heads=(*model.heads, states))
        self._model, self._precision, self._keep = model, precision, keep
        self._fits_16_bits, self._has_rest = True, False
        # Each layer may be made when it is asked for.
        self._layers = iter(model.layers)
        self._first = first = next(self._layers)
        self._hidden = len(first.down.bias) // first.parts
        self._inner = len(first.up.bias) // first.parts
        self._rotations: list[Rotary] = []
        self._bounds: list[Floats] | None = []
        # Tables of relative positions of the layers, with the factors of their scores.
        self._tables: list[tuple[RelativePositions | None, float]] = []
        self._heads = first.attention.heads
        self._head = len(first.attention.query.bias) // self._heads
        # Both halves of a rotated head are whole panels.
        is_rotated = first.attention.rotary is not None
        self._size = size = padded(self._head, 2 * PANEL if is_rotated else PANEL)
        head, channel = np.divmod(np.arange(self._heads * self._head), self._head)
        gap = (size - self._head) // 2 if is_rotated else 0
        spread, gated = head * size + channel, first.gate is not None
        self._sizes_of = functools.partial(
            sizes,
            hidden=self._hidden,
            inner=self._inner,
            heads=self._heads,
            head_size=size,
            norms_each_head=first.attention.norms_each_head,
            gated=gated,
        )
        self._sizes = self._sizes_of()
        self._places: dict[Place, NDArray[np.intp]] = {
            "heads": spread,
            "halves of heads": spread + gap * (2 * channel >= self._head),
        }

    def pack(self) -> dict[str, Any]:
        model, first = self._model, self._first
        attention = first.attention
        layers = self._pack_layers()
        for index, bounds in enumerate(self._bounds or ()):
            name, width = f"layers.{index}.value_bounds", self._sizes["width"]
            self._keep(name, _placed(bounds, self._places["heads"], width))
        return {
            "floats": first.up.codes is None,
            "dynamic": first.up.codes is not None and first.up.codes.dynamic,
            "spread_states": _matrix(first.up),
            "spread_inner": _matrix(first.down),
            "activation": first.activation,
            "norms_first": first.residual.norm is None,
            "adds_twice": first.attention_residual.again is not None,
            "norms_parts": first.residual.local_norm is not None,
            "normalizes_heads": attention.query_norm is not None,
            "norms_each_head": attention.query_norm is not None and attention.norms_each_head,
            "gated": first.gate is not None,
            "final_norm": self._optional_norm("final_norm", model.final_norm),
            "hidden": self._hidden,
            "inner": self._inner,
            "heads": self._heads,
            "head_size": self._size,
            "score_scale": attention.scale * math.log2(math.e),
            "causal": attention.causal,
            "bounds_values": self._bounds is not None,
            "fits_16_bits": self._fits_16_bits,
            "limit": model.limit,
            "input_names": list(model.input_names),
            "has_choices": model.has_choices,
            "padding_id": model.embeddings.padding_id,
            "dropped_id": model.embeddings.dropped_id,
            "expansion_id": model.expansion_id,
            "filled_id": model.filled_id,
            "embeddings": self._embeddings(),
            "convolution": self._convolution(),
            "layers": layers,
            "rotations": len(self._rotations),
            "relative": self._relative(),
            "tail": self._tail(),
            "heads_of_model": [
                self._head_of_model(f"heads.{index}", index) for index in range(len(model.heads))
            ],
        }

    def _pack_layers(self) -> list[dict[str, Any]]:
        """Add the layers, and return their settings."""
        settings = []
        before = None
        for index, layer in enumerate(itertools.chain([self._first], self._layers)):
            check_layer(self._model, layer, index, self._first)
            check_codes(layer, index, self._first, self._precision)
            if self._bounds is not None:
                bounds = value_bounds(self._model, layer, before)
                self._bounds = None if bounds is None else [*self._bounds, bounds]
            self._tables.append((layer.attention.relative, layer.attention.scale))
            settings.append(self._layer(f"layers.{index}", layer))
            before = layer
        return settings

    def _embeddings(self) -> dict[str, Any]:
        tables = self._model.embeddings
        scale, factor = tables.words.scale, np.float32(tables.factor)
        rows: Array = np.asarray(tables.words.rows, np.float32 if scale is None else np.int8)
        width = padded(rows.shape[1])
        if scale is not None:
            self._keep("word_scale", _wide(scale * factor, width))
        elif factor != 1:
            rows = rows * factor
        self._keep("words", _wide(rows, width))
        # The first row is for padding tokens inside texts.
        first = tables.first_position
        used = slice(first, first + self._model.limit + (tables.padding_id is not None))
        for name, table in (("positions", tables.positions), ("token_types", tables.token_types)):
            rows = _in_float(table)[used] if name == "positions" else _in_float(table)
            self._keep(name, _wide(rows, width))
        return {
            "norm": self._optional_norm("embedding_norm", tables.norm),
            "width": tables.words.rows.shape[1],
            "projection": None
            if tables.projection is None
            else self._float_linear("projection", tables.projection),
            "int8": tables.words.scale is not None,
            "has_positions": tables.positions is not None,
            "has_types": tables.token_types is not None,
        }

    def _tail(self) -> dict[str, Any] | None:
        if (tail := self._model.tail) is None:
            return None
        graph = np.frombuffer(tail.graph, np.int8)
        self._keep("tail", _wide(graph, padded(len(graph), LINE)))
        return {"bytes": len(graph), "inputs": list(tail.inputs), "outputs": list(tail.outputs)}

    def _convolution(self) -> dict[str, Any] | None:
        """Add the convolution, with the padded channels of the states."""
        if (found := self._model.convolution) is None:
            return None
        by_token = found.linear.weight[:].reshape(self._hidden, -1, self._hidden)
        wide = _wide(by_token, padded(self._hidden)).reshape(self._hidden, -1)
        return {
            "tokens": by_token.shape[1],
            "activation": found.activation,
            "linear": self._float_linear(
                "convolution", dataclasses.replace(found.linear, weight=wide)
            ),
            "norm": self._norm("convolution_norm", found.norm),
        }

    def _layer(self, name: str, layer: Layer) -> dict[str, Any]:
        attention = layer.attention
        if attention.position_bias is not None:
            bias = attention.position_bias * np.float32(math.log2(math.e))
            # Kernels read whole vectors of keys.
            spare = padded(bias.size + PANEL, PANEL) - bias.size
            self._keep(f"{name}.position_bias", np.append(bias, np.zeros(spare, np.float32)))
        settings: dict[str, Any] = {"experts": self._experts(name, layer.experts)}
        counts = self._sizes_of(experts=layer.parts if layer.experts else None)
        layer = with_gate(layer)
        for part, linear in LINEARS.items():
            settings[part] = self._linear(f"{name}.{part}", linear.of(layer), linear, counts)
        for part, norm in NORMS.items():
            settings[part] = self._layer_norm(f"{name}.{part}", norm.of(layer), norm)
        for part, each in ROUNDINGS.items():
            width = self._sizes[each.channels]
            settings[part] = self._rounding(f"{name}.{part}", each.of(layer), width)
        settings["shares_codes"] = same_codes((attention.query, attention.key, attention.value))
        settings["window"] = attention.window
        settings["rotation"] = self._rotation(attention.rotary)
        return settings

    def _rounding(self, name: str, rounding: RoundTrip | None, width: int) -> dict[str, Any] | None:
        if rounding is None:
            return None
        by = rounding.pre_quant_scale
        by = np.ones(width, np.float32) if by is None else _wide(by, width)
        scale = np.float64(rounding.scale)
        self._keep(f"{name}.multiplier", (by / scale).astype(np.float32))
        # Channels that are padding stay zero.
        step = np.divide(scale, by, where=by != 0, out=np.zeros(width))
        self._keep(f"{name}.step", step.astype(np.float32))
        return {"zero_point": rounding.zero_point, "low": rounding.low, "high": rounding.high}

    def _relative(self) -> dict[str, Any] | None:
        """Add the tables of relative positions of all layers."""
        first = self._tables[0][0]
        if first is None:
            return None
        rows = first.rows
        falls = rows[0] > rows[-1]
        count = 0
        for index, (tables, scale) in enumerate(self._tables):
            for name in ("keys", "queries"):
                table = getattr(tables, name)
                if table is not None:
                    count = table.shape[1]
                    scaled = table * np.float32(scale * math.log2(math.e))
                    made = self._table_of_heads(scaled[:, ::-1] if falls else scaled)
                    self._keep(f"layers.{index}.relative_{name}", made)
        stored = np.zeros(padded(rows.size, PANEL), np.int32)
        stored[: rows.size] = count - 1 - rows if falls else rows
        self._keep("relative_rows", stored)
        return {
            "rows": count,
            "keys": first.keys is not None,
            "queries": first.queries is not None,
        }

    def _table_of_heads(self, table: Floats) -> Floats:
        """Return `(heads, rows, head size)` in panels, `(heads, panels, head size, 16)`."""
        wide = np.zeros((*table.shape[:2], self._size), np.float32)
        wide[:, :, self._places["halves of heads"][: self._head]] = table
        return np.stack([pack_floats(each, self._size) for each in wide])

    def _rotation(self, rotary: Rotary | None) -> int | None:
        """Return the index of a rotation. Add its table if it is new."""
        if rotary is None:
            return None
        for index, known in enumerate(self._rotations):
            if np.array_equal(known.cos, rotary.cos) and np.array_equal(known.sin, rotary.sin):
                return index
        index = len(self._rotations)
        self._rotations.append(rotary)
        # The sines follow the cosines of each position.
        both = np.stack([rotary.cos, rotary.sin], axis=1)
        self._keep(f"rotations.{index}", _wide(both.astype(np.float32), self._size // 2))
        return index

    def _experts(self, name: str, experts: Experts | None) -> dict[str, Any] | None:
        """Add what chooses the experts of a layer, and return its settings."""
        if experts is None:
            return None
        self._keep(f"{name}.experts_bias", _wide(experts.bias, self._sizes["hidden"]))
        bias = np.zeros(len(experts.router), np.float32)
        router = self._float_linear(f"{name}.router", Linear(weight=experts.router, bias=bias))
        return {"chosen": experts.chosen, "router": router}

    def _places_of(self, place: Place, count: int) -> NDArray[np.intp]:
        """Return where channels or columns go."""
        if place in self._places:
            return self._places[place]
        # A gate, and each expert, start with padding before them.
        own = {"inner parts": self._inner, "hidden parts": self._hidden}.get(place, count)
        starts = np.arange(count // own) * padded(own)
        return np.add.outer(starts, np.arange(own)).ravel()

    def _linear(
        self, name: str, linear: Linear, part: LinearPart, counts: Mapping[Size, int]
    ) -> dict[str, Any]:
        """Add the arrays of a linear layer, and return its settings."""
        rows, depth = linear.weight.shape
        columns = self._places_of(part.columns_at, rows)
        channels = self._places_of(part.channels_at, depth)
        count, deep = counts[part.columns], counts[part.depth]
        if linear.codes is None:
            floats = np.asarray(linear.weight, np.float32)
            floats = _at(floats, columns, channels, (count, deep))
            self._keep(f"{name}.weights", pack_floats(floats, deep))
            self._keep(f"{name}.bias", _placed(linear.bias, columns, count))
            return {"depth": deep, "columns": count}
        assert linear.weight_scale is not None
        weight = _at(np.asarray(linear.weight, np.int8), columns, channels, (count, deep))
        self._fits_16_bits &= _fits_16_bits(weight)
        sums = weight.sum(axis=1, dtype=np.int32)
        codes = linear.codes
        scale = linear.weight_scale * np.float32(codes.scale)
        multiplier = np.broadcast_to(codes.multiplier, depth)
        self._keep(f"{name}.weights", pack(weight, deep))
        self._keep(f"{name}.start", (-codes.zero_point * sums).astype(np.int32))
        self._keep(f"{name}.factor", _placed(scale, columns, count))
        self._keep(f"{name}.bias", _placed(linear.bias, columns, count))
        self._keep(f"{name}.multiplier", _placed(multiplier, channels, deep))
        return {"depth": deep, "columns": count, "zero_point": codes.zero_point}

    def _norm(self, name: str, norm: Norm) -> dict[str, Any]:
        width = padded(len(norm.weight))
        self._keep(f"{name}.weight", _wide(norm.weight, width))
        self._keep(f"{name}.bias", _wide(norm.bias, width))
        return {
            "epsilon": norm.epsilon,
            "width": len(norm.weight),
            "subtracts_mean": norm.subtracts_mean,
        }

    def _layer_norm(self, name: str, norm: Norm | None, part: NormPart) -> dict[str, Any] | None:
        """Add a norm of a layer. That of heads is over the channels of one or all, with padding."""
        if norm is None or part.width != "normed":
            return self._optional_norm(name, norm)
        count = self._sizes["normed"]
        # The mean square is over all channels, and padding is 0.
        share = len(norm.weight) / count
        weight = norm.weight * np.float32(math.sqrt(share))
        places = self._places["halves of heads"][: len(norm.weight)]
        return self._norm(
            name,
            dataclasses.replace(
                norm,
                weight=_placed(weight, places, count),
                bias=_placed(norm.bias, places, count),
                epsilon=norm.epsilon * share,
            ),
        )

    def _optional_norm(self, name: str, norm: Norm | None) -> dict[str, Any] | None:
        return None if norm is None else self._norm(name, norm)

    def _head_of_model(self, name: str, index: int) -> dict[str, Any]:
        head = self._model.heads[index]
        steps: list[dict[str, Any]] = []
        for number, step in enumerate(head.steps):
            own = f"{name}.{number}"
            if isinstance(step, Norm):
                steps.append({"kind": "norm", **self._norm(own, step)})
            elif isinstance(step, Linear):
                steps.append({"kind": "linear", **self._float_linear(own, step)})
            else:
                steps.append({"kind": "function", "name": step})
        outputs = [{"name": each.name, "column": each.column} for each in head.outputs]
        return {
            "poolings": list(head.poolings),
            "token_steps": head.token_steps,
            "steps": steps,
            "outputs": outputs,
        }

    def _shares_words(self, weight: Floats) -> bool:
        """Return whether weights equal the table of words, and add the rest of its codes."""
        words = self._model.embeddings.words
        if self._model.embeddings.factor != 1 or words.rows.shape != weight.shape:
            return False
        if words.scale is None:
            return np.array_equal(words.rows, weight)
        rest = rest_of(weight, codes := np.asarray(words.rows, np.int8), words.scale)
        is_tied = np.array_equal(joined(codes, rest, words.scale), weight)
        if is_tied and not self._has_rest:
            self._keep("word_rest", _wide(rest, padded(weight.shape[1])))
            self._has_rest = True
        return is_tied

    def _float_linear(self, name: str, linear: Linear) -> dict[str, Any]:
        if linear.codes is not None:
            raise GraphError(
                "The native engine computes the projection of embeddings, and heads, in float only."
            )
        weight = np.asarray(linear.weight, np.float32)
        rows, depth = weight.shape
        deep, count = padded(depth), padded(rows, PANEL)
        is_tied = self._shares_words(weight)
        if not is_tied:
            self._keep(f"{name}.weights", pack_floats(weight, deep))
        self._keep(f"{name}.bias", _wide(linear.bias, count))
        return {"depth": deep, "columns": count, "width": rows, "tied": is_tied}


def _matrix(linear: Linear) -> dict[str, int] | None:
    matrix = linear.codes and linear.codes.hadamard
    return dataclasses.asdict(matrix) if matrix else None


def _fits_16_bits(weight: NDArray[np.int8]) -> bool:
    """Return whether sums of two adjacent products fit into 16 bits, as AVX2 needs."""
    sides = np.maximum(weight, 0), np.negative(np.minimum(weight, 0))
    # Two adjacent bytes are one number. The magnitude of -128 has the bits of 128.
    pairs = [np.ascontiguousarray(each).view(np.uint16) for each in sides]
    most, least = (int(((each & 255) + (each >> 8)).max(initial=0)) for each in pairs)
    return 255 * most < 2**15 and 255 * least <= 2**15


def _in_float(table: Table | None) -> Floats:
    if table is None:
        return np.zeros((1, 1), np.float32)
    rows = np.asarray(table.rows, np.float32)
    return rows if table.scale is None else rows * table.scale


def _wide(array: Array, width: int) -> Array:
    """Return an array with its last axis padded with zeros."""
    return np.ascontiguousarray(with_zeros(array, (*array.shape[:-1], width)))


def _at(
    weight: Array, rows: NDArray[np.intp], channels: NDArray[np.intp], shape: tuple[int, int]
) -> Array:
    """Return a weight with its rows and channels at their places, and zeros elsewhere."""
    places = zip((rows, channels), shape, strict=True)
    if all(np.array_equal(each, np.arange(count)) for each, count in places):
        return weight
    found = zeros(shape, weight.dtype)
    found[np.ix_(rows, channels)] = weight
    return found


def _placed(values: Floats, places: NDArray[np.intp], count: int) -> Floats:
    found = np.zeros(count, np.float32)
    found[places] = values
    return found
