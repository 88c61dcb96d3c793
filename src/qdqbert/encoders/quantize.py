"""Quantize an `EncoderModel` with numpy alone: by specs and a calibration, or without data."""

from __future__ import annotations

import dataclasses
import functools
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.common.errors import CalibrationError, GraphError
from qdqbert.encoders.affine import Bools, clipped, parameters_of, quantize_weight, rounding_shift
from qdqbert.encoders.model import (
    Codes,
    Embeddings,
    EncoderModel,
    Floats,
    Head,
    Layer,
    Linear,
    Residual,
    RoundTrip,
    Table,
)
from qdqbert.encoders.shared_table import joined, rest_of
from qdqbert.encoders.sites import (
    linear_layers_of,
    module_parameters,
    modules_of,
    parent_of,
    sites_of,
    tables_of,
)
from qdqbert.quantization.recipes import TOKENS, WEIGHT
from qdqbert.quantization.spec import (
    LOCAL,
    RESIDUAL,
    SAFE_ADJACENT_SUM_LIMIT,
    Range,
    TensorSpec,
    is_linear_input,
    is_weight,
    table_site,
)

# Values of a table that are rounded together.
_TOGETHER = 2**22

Specs = Mapping[str, TensorSpec | None]
"""Spec of every site by name; `None` is float."""


def _round_to_nearest(site: str, width: int) -> Bools | None:
    del site, width
    return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choices:
    """Results of a calibration besides the specs, by name of the site.

    Attributes:
        ranges: Ranges of activations. If the site has a scale, it is the range of the activation
            times the scale.
        scales: Factors of inputs before they are quantized, `(channels,)`.
        weight_amax: Largest magnitude of weights that do not use their own, `()` or `(channels,)`.
        means: Mean of the inputs of linear layers whose biases are corrected, before any
            multiplication, `(channels,)`.
        rounds_up: Returns whether each value of a weight becomes the code above it, given its site
            and its number of inputs; `None` rounds to the nearest code.
    """

    ranges: Mapping[str, Range] = dataclasses.field(default_factory=dict)
    scales: Mapping[str, Floats] = dataclasses.field(default_factory=dict)
    weight_amax: Mapping[str, Floats] = dataclasses.field(default_factory=dict)
    means: Mapping[str, Floats] = dataclasses.field(default_factory=dict)
    rounds_up: Callable[[str, int], Bools | None] = _round_to_nearest


def dynamic_specs(model: EncoderModel) -> Specs:
    """Return specs for dynamic quantization of linear layers."""
    return {
        site.name: dataclasses.replace(
            WEIGHT if is_weight(site.name) else TOKENS, hadamard=site.hadamard
        )
        for site in sites_of(model)
        if site.group == "layer" and (is_weight(site.name) or is_linear_input(site.name))
    }


def round_encoder(
    model: EncoderModel,
    specs: Specs | None = None,
    choices: Choices | None = None,
    *,
    limits_pairs: bool = False,
    threads: int = 1,
) -> EncoderModel:
    """Quantize a model and its table of words to INT8, without any data.

    Weights are rounded to the nearest codes.

    Args:
        model: The model in float. It is not changed.
        specs: Specs of the sites of its layers; by default the `dynamic_specs`. Of tables, that
            of the words is INT8 and that of others float, where there is none.
        choices: Ranges and so on, where specs need some.
        limits_pairs: Whether sums of two adjacent codes are limited, so that AVX2's fast kernel is
            exact. It costs about 0.5 dB. Weights whose specs have a limit keep their scales.
        threads: Number of layers that are rounded at the same time.
    """
    specs = dynamic_specs(model) if specs is None else specs
    trains_pairs = any(spec is not None and spec.adjacent_sum_limit for spec in specs.values())
    tables = {table.module: table_site(table.module) for table in tables_of(model)}
    words = tables[model.embeddings.words.module]
    if limits_pairs:
        linear = {*filter(is_weight, specs)} - {site.name for site in tables.values()}
        specs = {name: _limited(spec) if name in linear else spec for name, spec in specs.items()}
    # Rows whose mean is the result differ much in length: frequent words have small ones.
    axis = words.channel_axis if model.layers else 0
    return quantize_encoder(
        model,
        {words.name: dataclasses.replace(WEIGHT, axis=axis), **specs},
        choices or Choices(),
        fits_closely=not trains_pairs,
        threads=threads,
    )


def _limited(spec: TensorSpec | None) -> TensorSpec | None:
    return spec and dataclasses.replace(spec, adjacent_sum_limit=SAFE_ADJACENT_SUM_LIMIT)


def quantize_encoder(
    model: EncoderModel,
    specs: Specs,
    choices: Choices,
    *,
    fits_closely: bool = False,
    threads: int = 1,
) -> EncoderModel:
    """Return a model in INT8. Heads stay in float.

    The codes, scales and biases are those that `graphs.qdq` writes for the same specs.

    Tables without a spec stay in float. Layers are quantized when they are asked for, so that few
    are in memory; in a loop over all, `threads` of them at the same time. For `fits_closely`, see
    `affine.quantize_weight`. What is raised for a layer is raised then.

    Raises:
        CalibrationError: An activation has a spec and no range.
        GraphError: The engine has no such codes.
    """
    quantizer = _Quantizer(specs, choices, fits_closely, max(threads, 1))
    words = quantizer.table(model.embeddings.words)
    return dataclasses.replace(
        model,
        embeddings=quantizer.embeddings(model.embeddings, words),
        layers=_Rounded(model.layers, quantizer.layer, max(threads, 1)),
        heads=tuple(_with_words(head, model.embeddings.words, words) for head in model.heads),
    )


class _Rounded(Sequence[Layer]):
    """Layers that are rounded each time they are asked for."""

    def __init__(
        self, layers: Sequence[Layer], change: Callable[[Layer], Layer], threads: int
    ) -> None:
        self._layers, self._change, self._threads = layers, change, threads

    def __len__(self) -> int:
        return len(self._layers)

    def __getitem__(self, index: Any) -> Any:
        return self._change(self._layers[index])

    def __iter__(self) -> Iterator[Layer]:
        coming: deque[Future[Layer]] = deque()
        with ThreadPoolExecutor(self._threads) as pool:
            for layer in self._layers:
                coming.append(pool.submit(self._change, layer))
                if len(coming) >= self._threads:
                    yield coming.popleft().result()
            while coming:
                yield coming.popleft().result()


class _Quantizer:
    def __init__(self, specs: Specs, choices: Choices, fits_closely: bool, threads: int) -> None:
        self._specs, self._choices, self._fits_closely = specs, choices, fits_closely
        self._threads = threads

    def embeddings(self, embeddings: Embeddings, words: Table) -> Embeddings:
        return dataclasses.replace(
            embeddings,
            words=words,
            positions=embeddings.positions and self.table(embeddings.positions),
            token_types=embeddings.token_types and self.table(embeddings.token_types),
        )

    def table(self, table: Table) -> Table:
        spec = self._specs.get(f"{table.module}._weight_quantizer")
        if spec is None:
            return table
        amax = self._choices.weight_amax.get(f"{table.module}._weight_quantizer")
        count, width = table.rows.shape
        # A large table is read in blocks of rows. Some scales depend on more than largest values.
        is_whole = spec.axis == 0 or spec.adjacent_sum_limit is not None
        step = count if is_whole else max(1, _TOGETHER // width)
        places = [slice(start, start + step) for start in range(0, count, step)]

        def rows(place: slice) -> Floats:
            return np.asarray(table.rows[place], np.float32)

        def magnitudes(place: slice) -> Floats:
            found: Floats = np.abs(rows(place)).max(axis=None if spec.axis is None else 0)
            return found

        def rounded(place: slice) -> tuple[NDArray[np.int8], Floats]:
            return quantize_weight(rows(place), spec, amax)

        codes = np.empty((count, width), np.int8)
        with ThreadPoolExecutor(self._threads) as pool:
            if amax is None and len(places) > 1:
                amax = functools.reduce(np.maximum, pool.map(magnitudes, places))
            for place, (made, scale) in zip(places, pool.map(rounded, places), strict=True):
                codes[place], steps = made, scale
        scales = steps[:, None] if spec.axis == 0 else np.broadcast_to(steps, (width,))
        return dataclasses.replace(table, rows=codes, scale=np.ascontiguousarray(scales))

    def layer(self, layer: Layer) -> Layer:
        attention = layer.attention
        linears = [linear for linear, _ in linear_layers_of(layer)]
        made = {id(each): new for each, new in zip(linears, self._linears(linears), strict=True)}
        path = parent_of(attention.query)

        def matmul(letter: str, factor: float = 1.0) -> RoundTrip | None:
            return self._round_trip(f"{path}.matmul_{letter}_input_quantizer", factor)

        return dataclasses.replace(
            layer,
            attention=dataclasses.replace(
                attention,
                query=made[id(attention.query)],
                key=made[id(attention.key)],
                value=made[id(attention.value)],
                output=made[id(attention.output)],
                query_codes=matmul("q"),
                # The engine rounds keys before it scales the scores.
                key_codes=matmul("k", attention.scale if attention.scales_keys else 1.0),
                probability_codes=matmul("a"),
                value_codes=matmul("v"),
            ),
            attention_residual=self._residual(
                layer.attention_residual, parent_of(attention.output)
            ),
            up=made[id(layer.up)],
            gate=None if layer.gate is None else made[id(layer.gate)],
            down=made[id(layer.down)],
            residual=self._residual(layer.residual, parent_of(layer.down)),
        )

    def _residual(self, residual: Residual, path: str) -> Residual:
        return dataclasses.replace(
            residual,
            local_codes=self._round_trip(f"{path}{LOCAL}"),
            residual_codes=self._round_trip(f"{path}{RESIDUAL}"),
        )

    def _round_trip(self, site: str, factor: float = 1.0) -> RoundTrip | None:
        """Return the fake quantization at a site, with a factor of its input."""
        spec = self._specs.get(site)
        if spec is None:
            return None
        _check_bits(site, spec)
        scale, zero_point = parameters_of(range_of(site, self._choices), spec)
        return RoundTrip(
            scale=scale / factor,
            zero_point=zero_point,
            low=spec.qmin,
            high=spec.qmax,
            pre_quant_scale=self._choices.scales.get(site),
        )

    def _linears(self, linears: Sequence[Linear]) -> list[Linear]:
        """Return the linear layers of an encoder layer in INT8."""
        made: dict[int, Linear] = {}
        for parts in modules_of(linears):
            made.update(zip(map(id, parts), self._module(parts), strict=True))
        return [made[id(linear)] for linear in linears]

    def _module(self, parts: Sequence[Linear]) -> list[Linear]:
        """Return the linear layers of a module in INT8, with one weight quantizer for all."""
        site, weight_site = _sites_of(parts)
        spec = self._specs[site]
        if spec is None or self._specs[weight_site] is None:
            missing = site if spec is None else weight_site
            raise GraphError(
                f"The native engine runs all linear layers in int8, and `{missing}` is in float."
            )
        made = round_module(parts, self._specs, self._choices, fits_closely=self._fits_closely)
        assert made.scale is not None
        steps = np.ascontiguousarray(np.broadcast_to(made.scale, len(made.weight)))
        inputs = self._codes(site, spec, self._choices.scales.get(site))
        places = [slice(each.first, each.first + len(each.bias)) for each in parts]
        return [
            dataclasses.replace(
                each,
                weight=made.weight[place],
                weight_scale=steps[place],
                bias=made.bias[place],
                codes=inputs,
            )
            for each, place in zip(parts, places, strict=True)
        ]

    def _codes(self, site: str, spec: TensorSpec, scale: Floats | None) -> Codes:
        """Return the codes of the input of a linear layer."""
        _check_bits(site, spec)
        by = np.ones((), np.float32) if scale is None else scale
        if spec.dynamic:
            return Codes(
                scale=1.0, zero_point=128, multiplier=by, dynamic=True, hadamard=spec.hadamard
            )
        step, zero_point = parameters_of(range_of(site, self._choices), spec)
        return Codes(
            scale=step,
            # The engine's codes are unsigned.
            zero_point=zero_point - spec.qmin,
            multiplier=(by.astype(np.float64) / step).astype(np.float32),
        )


def range_of(site: str, choices: Choices) -> Range:
    """Return the calibrated range of an activation."""
    if site not in choices.ranges:
        raise CalibrationError(f"Site `{site}` has no calibrated range. Calibrate it first.")
    return choices.ranges[site]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RoundedModule:
    """Weight and bias of a module that is one or several linear layers.

    Attributes:
        weight: Codes, or floats, `(out, in)`, of the weight divided by the scale of its input.
        scale: Scale of the codes, `()` or `(out,)`; `None` for floats.
        bias: `(out,)`, which corrects the mean error of rounding.
    """

    weight: NDArray[np.int8] | Floats
    scale: Floats | None
    bias: Floats


def round_module(
    parts: Sequence[Linear], specs: Specs, choices: Choices, *, fits_closely: bool = False
) -> RoundedModule:
    """Round the weight of a module, if its site has a spec.

    `parts` are in the order of the module's outputs. For `fits_closely`, see
    `affine.quantize_weight`.
    """
    site, weight_site = _sites_of(parts)
    weight, bias = module_parameters(parts)
    mean = choices.means.get(site)
    # If the input is multiplied, its weight is divided, whether the weight is rounded or not.
    scale = None if specs.get(site) is None else choices.scales.get(site)
    if scale is not None:
        weight = weight * (np.float32(1) / scale)
        mean = None if mean is None else mean * scale
    spec = specs.get(weight_site)
    if spec is None:
        return RoundedModule(weight=weight, scale=None, bias=bias)
    amax = choices.weight_amax.get(weight_site)
    if spec.hadamard is not None:
        # The range is of the weight as it is.
        weight, amax = spec.hadamard.spread_weight(clipped(weight, spec, amax)), None
        mean = None if mean is None else spec.hadamard.spread(mean)
    codes, steps = quantize_weight(
        weight,
        spec,
        amax,
        choices.rounds_up(weight_site, weight.shape[1]),
        fits_closely=fits_closely,
    )
    if mean is not None:
        rounded = codes * (steps if steps.ndim == 0 else steps[:, None])
        bias = bias + rounding_shift(weight, rounded, mean)
    return RoundedModule(weight=codes, scale=steps, bias=bias)


def _sites_of(parts: Sequence[Linear]) -> tuple[str, str]:
    """Return the sites of the input and of the weight of a module."""
    path = parts[0].module
    return f"{path}._input_quantizer", f"{path}._weight_quantizer"


def _check_bits(site: str, spec: TensorSpec) -> None:
    if spec.bits != 8 or (not spec.dynamic and spec.qmax - spec.qmin != 255):
        raise GraphError(
            f"The native engine uses all 256 codes of 8 bits, and `{site}` has the codes "
            f"{spec.qmin} to {spec.qmax}."
        )


def _with_words(head: Head, words: Table, rounded: Table) -> Head:
    """Return a head whose decoder has the table of words with 16-bit codes; see `joined`."""
    if rounded.scale is None:
        return head
    codes, scale = np.asarray(rounded.rows, np.int8), rounded.scale
    steps = []
    for step in head.steps:
        if isinstance(step, Linear) and step.weight is words.rows:
            weight = joined(codes, rest_of(np.asarray(words.rows, np.float32), codes, scale), scale)
            step = dataclasses.replace(step, weight=weight)
        steps.append(step)
    return dataclasses.replace(head, steps=tuple(steps))
