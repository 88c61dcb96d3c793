"""Create the quantizers that are inserted into a model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from qdqbert.calibration.quantizers.quantizer import Quantizer
from qdqbert.calibration.reference.modules import QuantizedLinear
from qdqbert.common.choices import CalibratorName
from qdqbert.quantization.spec import Site


class QuantizerFactory:
    """Creates quantizers of the core class. They stay in float until a recipe sets their spec.

    Subclasses create other quantizers, and initialize them.
    """

    def activation(self, site: Site) -> Quantizer:
        """Return the quantizer of an activation that is not the input of a linear layer."""
        return Quantizer(site=site)

    def linear(self, linear: nn.Linear) -> Any:
        """Return a layer with an `_input_quantizer` and a `_weight_quantizer`.

        It shares the parameters of `linear`. Its quantizers have no site yet.
        """
        return QuantizedLinear.from_float(linear)

    def enable(self, quantizers: Iterable[Quantizer]) -> None:
        """Enable new quantizers that no recipe configures."""

    def choose_calibrators(
        self, quantizers: Iterable[Quantizer], calibrator: CalibratorName
    ) -> None:
        """Set the calibrator of quantizers that collect statistics themselves."""

    def finish_loading(self, quantizers: Iterable[Quantizer]) -> None:
        """Initialize parameters of quantizers that a float checkpoint does not have."""


PLAIN = QuantizerFactory()
