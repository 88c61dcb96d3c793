"""Quantize an `EncoderModel` as a plan says, for the native engine.

The codes, scales and biases are those that `graph.qdq` writes for the same plan.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from qdqbert.calibration.calibration import Calibration
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
from qdqbert.encoders.sites import linear_layers_of, parent_of
from qdqbert.engines.native.shared_table import joined, rest_of
from qdqbert.errors import CalibrationError, UserInputError
from qdqbert.numerics.affine import parameters_of, quantize_weight, rounding_shift
from qdqbert.numerics.weight_rounding import rounding_of
from qdqbert.spec import LOCAL, RESIDUAL, Range, TensorSpec


def quantize_encoder(
    model: EncoderModel, specs: Mapping[str, TensorSpec | None], calibration: Calibration
) -> EncoderModel:
    """Return a model in INT8.

    Args:
        model: The model in float. It is not changed.
        specs: Spec of every site by name.
        calibration: The ranges, and how weights are scaled and rounded, for the recipe of `specs`.

    Raises:
        CalibrationError: An activation has a spec and no range.
        UserInputError: The engine has no such codes.
    """
    quantizer = _Quantizer(specs, calibration)
    words = quantizer.table(model.embeddings.words)
    return dataclasses.replace(
        model,
        embeddings=quantizer.embeddings(model.embeddings, words),
        layers=tuple(quantizer.layer(layer) for layer in model.layers),
        heads=tuple(_with_words(head, model.embeddings.words, words) for head in model.heads),
    )


class _Quantizer:
    def __init__(self, specs: Mapping[str, TensorSpec | None], calibration: Calibration) -> None:
        self._specs, self._calibration = specs, calibration

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
        codes, scale = _codes_of(np.asarray(table.rows, np.float32), spec, None, None)
        scales = np.broadcast_to(scale, codes.shape[1:])
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
        """Return the fake quantization at a site, whose input is multiplied by a factor there."""
        spec = self._specs.get(site)
        if spec is None:
            return None
        _check_bits(site, spec)
        found = parameters_of(self._range(site), spec)
        scale = self._calibration.scales.get(site)
        return RoundTrip(
            scale=float(found.scale) / factor,
            zero_point=int(found.zero_point),
            low=spec.qmin,
            high=spec.qmax,
            pre_quant_scale=None if scale is None else scale.numpy(),
        )

    def _range(self, site: str) -> Range:
        if site not in self._calibration.ranges:
            raise CalibrationError(f"Site `{site}` has no calibrated range. Calibrate it first.")
        return self._calibration.ranges[site]

    def _linears(self, linears: Sequence[Linear]) -> list[Linear]:
        """Return the linear layers of an encoder layer in INT8."""
        by_module: dict[str, list[Linear]] = {}
        for linear in linears:
            by_module.setdefault(linear.module, []).append(linear)
        made: dict[int, Linear] = {}
        for parts in by_module.values():
            parts.sort(key=lambda each: each.first)
            made.update(zip(map(id, parts), self._module(parts), strict=True))
        return [made[id(linear)] for linear in linears]

    def _module(self, parts: Sequence[Linear]) -> list[Linear]:
        """Return the layers of a module in INT8, which share one weight quantizer."""
        site = f"{parts[0].module}._input_quantizer"
        weight_site = f"{parts[0].module}._weight_quantizer"
        spec, weight_spec = self._specs[site], self._specs[weight_site]
        if spec is None or weight_spec is None:
            raise UserInputError(
                f"The native engine runs all linear layers in int8, and `{parts[0].module}` is in "
                "float.",
                argument="targets",
            )
        calibration = self._calibration
        scale, mean = calibration.scales.get(site), calibration.means.get(site)
        weight = np.concatenate([np.asarray(each.weight, np.float32) for each in parts])
        if scale is not None:
            weight = weight * (1 / scale.numpy())
            mean = None if mean is None else mean * scale
        codes, steps = _codes_of(
            weight,
            weight_spec,
            calibration.weight_amax.get(weight_site),
            rounding_of(calibration.roundings, weight_site, weight.shape[1], self._specs),
        )
        steps = np.ascontiguousarray(np.broadcast_to(steps, len(codes)))
        bias = np.concatenate([each.bias for each in parts])
        if mean is not None:
            rounded = torch.from_numpy(codes * steps[:, None])
            bias = bias + rounding_shift(torch.from_numpy(weight), rounded, mean).numpy()
        inputs = self._codes(site, spec, None if scale is None else scale.numpy())
        return [
            dataclasses.replace(
                each,
                weight=codes[place],
                weight_scale=steps[place],
                bias=bias[place],
                codes=inputs,
            )
            for each, place in zip(parts, _places(parts), strict=True)
        ]

    def _codes(self, site: str, spec: TensorSpec, scale: Floats | None) -> Codes:
        """Return the codes of the input of a linear layer."""
        _check_bits(site, spec)
        by = np.ones((), np.float32) if scale is None else scale
        if spec.dynamic:
            return Codes(scale=1.0, zero_point=0, multiplier=by, dynamic=True)
        found = parameters_of(self._range(site), spec)
        return Codes(
            scale=float(found.scale),
            # The engine's codes are unsigned.
            zero_point=int(found.zero_point) - spec.qmin,
            multiplier=(by.astype(np.float64) / float(found.scale)).astype(np.float32),
        )


def _check_bits(site: str, spec: TensorSpec) -> None:
    if spec.qmax - spec.qmin != 255:
        raise UserInputError(
            f"The native engine uses all 256 codes of 8 bits, and `{site}` has the codes "
            f"{spec.qmin} to {spec.qmax}. Choose other `targets`.",
            argument="targets",
        )


def _codes_of(
    weight: Floats,
    spec: TensorSpec,
    amax: torch.Tensor | None,
    rounds_up: torch.Tensor | None,
) -> tuple[NDArray[np.int8], Floats]:
    """Return the codes of a weight, and their scale, `()` or `(channels,)`."""
    codes, parameters = quantize_weight(torch.from_numpy(weight), spec, amax, rounds_up)
    return codes.numpy().astype(np.int8), parameters.scale.numpy()


def _places(parts: Sequence[Linear]) -> list[slice]:
    ends = np.cumsum([len(each.bias) for each in parts]).tolist()
    return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def _with_words(head: Head, words: Table, rounded: Table) -> Head:
    """Return a head whose decoder has the table of words in two parts of 8 bits; see `joined`."""
    if rounded.scale is None:
        return head
    codes, scale = rounded.rows.astype(np.int8, copy=False), rounded.scale
    steps = []
    for step in head.steps:
        if isinstance(step, Linear) and step.weight is words.rows:
            weight = joined(codes, rest_of(words.rows.astype(np.float32), codes, scale), scale)
            step = dataclasses.replace(step, weight=weight)
        steps.append(step)
    return dataclasses.replace(head, steps=tuple(steps))
