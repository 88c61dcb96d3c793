"""The result of a calibration: ranges, and the factors that smooth channels."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from torch import Tensor

from qdqbert.quantization.numerics.weight_rounding import Roundings
from qdqbert.quantization.spec import Range, Recipe


@dataclasses.dataclass(frozen=True, kw_only=True)
class CalibrationResult:
    """Result of a calibration.

    Attributes:
        ranges: Range of each activation, by site name. If the site has a scale, the range is that
            of the activation after multiplication by the scale.
        scales: `pre_quant_scale` by site name. Shape `(channels,)`, float32.
        weight_amax: Largest magnitude of weights that do not use their own: weights that share
            one, or were trained with a fixed one. By site name, `()` or `(channels,)`, float32.
        means: Mean of the inputs of linear layers whose biases are corrected, before any
            multiplication. By site name, `(channels,)`, float32. See
            `quantization.numerics.affine.rounding_shift`.
        roundings: How the weights of linear layers are rounded, where it is not to the nearest
            code. See `quantization.numerics.weight_rounding`.
        without_smoothing: The same without any `pre_quant_scale`, for recipes that do not smooth.
            `None` if no recipe needs it.
    """

    ranges: Mapping[str, Range] = dataclasses.field(default_factory=dict)
    scales: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)
    weight_amax: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)
    means: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)
    roundings: Roundings = dataclasses.field(default_factory=dict)
    without_smoothing: CalibrationResult | None = None

    def for_recipe(self, recipe: Recipe) -> CalibrationResult:
        """Return the ranges that a recipe uses."""
        if self.without_smoothing is not None and recipe.smoothing is None:
            return self.without_smoothing
        return self
