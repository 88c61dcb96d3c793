"""Find linear layers whose int8 sums would saturate on x86 CPUs without VNNI.

Such CPUs add two adjacent products of an unsigned and a signed code in 16 bits, with saturation
(`vpmaddubsw`). Weights with an `adjacent_sum_limit` cannot saturate. Weights for VNNI can,
depending on the inputs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from qdqbert.calibration.calibration import CalibrationResult
from qdqbert.calibration.statistics import TokenObserver
from qdqbert.quantization.numerics.affine import (
    dynamic_parameters,
    parameters_of,
    quantize,
    quantize_weight,
    spread_weight,
)
from qdqbert.quantization.numerics.weight_rounding import rounding_of
from qdqbert.quantization.spec import Site, TensorSpec, weight_site_of

# Tokens that are emulated for each linear layer. They make tens of millions of sums, enough to find
# one that saturates among a hundred thousand.
_TOKENS = 256
# Outputs that are emulated at a time, to save memory.
_BLOCK = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class Overflow:
    """Saturation of one linear layer.

    Attributes:
        site: Name of the site of its input.
        percent: Share of the sums of two products that do not fit in 16 bits, %.
    """

    site: str
    percent: float


def overflow_percent(inputs: Tensor, weights: Tensor) -> float:
    """Return the share of the sums of two adjacent products that do not fit in 16 bits, %.

    `inputs` are unsigned codes `(tokens, in)`, and `weights` signed codes `(out, in)`.

    Source: Intel 64 manual, VPMADDUBSW: adjacent products are added with signed saturation.
    """
    tokens, width = inputs.shape
    # A single last product always fits: 255 * 127 < 32767.
    even = width - width % 2
    x = inputs[:, :even].to(torch.int32).view(tokens, 1, -1, 2)
    w = weights[:, :even].to(torch.int32).view(1, weights.shape[0], -1, 2)
    beyond = 0
    for part in torch.split(w, _BLOCK, dim=1):
        sums = x[..., 0] * part[..., 0] + x[..., 1] * part[..., 1]
        beyond += int(((sums > 32767) | (sums < -32768)).sum())
    return 100 * beyond / (tokens * weights.shape[0] * max(even // 2, 1))


class SaturationCheck(TokenObserver):
    """An observer of inputs of linear layers that emulates 16-bit sums of products.

    Attributes:
        calibration: The calibration that it was made with.
    """

    def __init__(
        self,
        specs: Mapping[str, TensorSpec | None],
        calibration: CalibrationResult,
        weights: Mapping[str, Tensor],
    ) -> None:
        """Keep how the linear layers are quantized.

        Specs are by site name, and weights `(out, in)` by the name of their input's site.
        """
        self._specs, self.calibration, self._weights = specs, calibration, weights
        super().__init__()
        self._seen: dict[str, int] = {}
        self._beyond: dict[str, float] = {}

    def observe(self, site: Site, x: Tensor) -> None:
        """Emulate the sums of an input `(batch, seq, in)`, already multiplied by its scale."""
        name, weight_name = site.name, weight_site_of(site.name)
        weight_spec = self._specs.get(weight_name)
        spec = self._specs.get(name)
        left = _TOKENS - self._seen.get(name, 0)
        if name not in self._weights or spec is None or weight_spec is None or left <= 0:
            return
        tokens = self.tokens(site, x)[:left]
        if not len(tokens):
            return
        if spec.hadamard is not None:
            tokens = spec.hadamard.spread(tokens)
        parameters = (
            dynamic_parameters(tokens, spec)
            if spec.dynamic
            else parameters_of(self.calibration.ranges[name], spec)
        )
        codes = quantize(tokens, parameters, spec)
        if spec.signed:
            codes = codes + 128
        weight = self._weights[name]
        if name in self.calibration.scales:
            weight = weight * (1 / self.calibration.scales[name])
        amax, roundings = self.calibration.weight_amax.get(weight_name), self.calibration.roundings
        rounds_up = rounding_of(roundings, weight_name, weight.shape[1], self._specs)
        weight, amax = spread_weight(weight, weight_spec, amax)
        weight_codes, _ = quantize_weight(weight, weight_spec, amax, rounds_up)
        self._beyond[name] = self._beyond.get(name, 0.0) + len(tokens) * overflow_percent(
            codes, weight_codes
        )
        self._seen[name] = self._seen.get(name, 0) + len(tokens)

    @property
    def overflows(self) -> Sequence[Overflow]:
        """Linear layers with a sum that does not fit, worst first."""
        found = [
            Overflow(site=name, percent=beyond / self._seen[name])
            for name, beyond in self._beyond.items()
            if beyond
        ]
        return sorted(found, key=lambda each: -each.percent)
