"""Create the quantizers of QDQBERT models, which have pytorch-quantization's interface."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from qdqbert.calibration.quantizers.quantizer import Quantizer
from qdqbert.calibration.reference.factory import QuantizerFactory
from qdqbert.common.choices import CalibratorName
from qdqbert.compat.nn.linear import QuantLinear
from qdqbert.compat.nn.tensor_quantizer import TensorQuantizer
from qdqbert.quantization.spec import Site


class ToolkitFactory(QuantizerFactory):
    """Creates quantizers from the default descriptors of `QuantLinear`, as QDQBERT does."""

    def activation(self, site: Site) -> TensorQuantizer:
        """Return an activation quantizer, described like the inputs of linear layers."""
        return TensorQuantizer(QuantLinear.default_quant_desc_input, site=site)

    def linear(self, linear: nn.Linear) -> QuantLinear:
        """Return a `QuantLinear` that shares the parameters of `linear`."""
        return QuantLinear.from_float(linear)

    def enable(self, quantizers: Iterable[Quantizer]) -> None:
        """Let quantizers quantize as their descriptors specify."""
        for quantizer in quantizers:
            assert isinstance(quantizer, TensorQuantizer)
            quantizer.enable()

    def choose_calibrators(
        self, quantizers: Iterable[Quantizer], calibrator: CalibratorName
    ) -> None:
        """Give quantizers a histogram, unless they need the largest magnitude only."""
        for quantizer in quantizers:
            assert isinstance(quantizer, TensorQuantizer)
            is_weight = quantizer.site is not None and quantizer.site.kind == "weight"
            if quantizer.is_enabled:
                quantizer.use_calibrator(histogram=not is_weight and calibrator != "max")

    def finish_loading(self, quantizers: Iterable[Quantizer]) -> None:
        """Give quantizers the descriptors' ranges."""
        # A model is built on the meta device, where numbers are lost.
        for quantizer in quantizers:
            assert isinstance(quantizer, TensorQuantizer)
            quantizer.restart()
