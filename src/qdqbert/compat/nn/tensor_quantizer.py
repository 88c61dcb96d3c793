"""pytorch-quantization's `TensorQuantizer`, as an adapter of this package's quantizer."""

from __future__ import annotations

import logging
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from qdqbert.calibration.quantizers.clip import Clip
from qdqbert.calibration.quantizers.export import (
    is_exporting,
    on_real_tensors,
    quantize_dequantize,
    quantize_dequantize_e4m3,
)
from qdqbert.calibration.quantizers.quantizer import short_range, uncalibrated_export
from qdqbert.common.errors import UncalibratedError
from qdqbert.compat.calibrators import Calibrator, HistogramCalibrator, MaxCalibrator
from qdqbert.compat.nn.described_quantizer import DescribedQuantizer
from qdqbert.compat.nn.torch_operators import torch_fake_quantize, varying_axis
from qdqbert.compat.tensor_quant import (
    E4M3,
    NumBits,
    QuantDescriptor,
    check_unsigned,
    scaled_e4m3,
    tensor_quant,
)
from qdqbert.quantization.numerics.affine import widened
from qdqbert.quantization.numerics.fake_quantization import E4M3_MAX, fake_quantize_amax
from qdqbert.quantization.spec import Site, TensorSpec

_LOG = logging.getLogger(__name__)


class TensorQuantizer(DescribedQuantizer):
    """Quantize a tensor, or observe it to find its range.

    A tensor passes through four stages, each of which can be switched: calibration collects
    (`enable_calib`), clipping learns (`enable_clip`), quantization rounds (`enable_quant`), and
    `disable` bypasses all three. Without a range (`amax`), quantization uses the range of each
    tensor.

    Attributes:
        use_fb_fake_quant: Class switch of pytorch-quantization 2.1: fake-quantize with torch's own
            operators, for tools that look for them. An ONNX export writes Q/DQ nodes with or
            without it.

    Source: pytorch-quantization's `TensorQuantizer`, 2.1 and 2.2. Differs from upstream:
    `narrow_range` is honored on every device; a state dict keeps bits, axis and switches; state
    loads on any device; an exported weight quantizer without `amax` uses the range of its weight,
    and an activation quantizer without one refuses to be exported.
    """

    use_fb_fake_quant: ClassVar[bool] = False
    _enable_onnx_export: ClassVar[bool] = False

    def __init__(
        self,
        quant_desc: QuantDescriptor | None = None,
        disabled: bool = False,
        if_quant: bool = True,
        if_clip: bool = False,
        if_calib: bool = False,
        *,
        site: Site | None = None,
    ) -> None:
        """Create a quantizer.

        Args:
            quant_desc: Bits, axis and so on. 8 bits per tensor if `None`.
            disabled: Bypass the quantizer.
            if_quant: Quantize.
            if_clip: Clip to the learned range. Needs `learn_amax`.
            if_calib: Collect.
            site: The place in the model.

        Raises:
            NotImplementedError: The descriptor asks for a histogram with an axis.
        """
        super().__init__(site=site)
        desc = quant_desc or QuantDescriptor()
        self._source: tuple[nn.Parameter] | None = None
        self._num_bits: NumBits = desc.num_bits
        self._fake_quant = desc.fake_quant
        self._axis = desc.axis
        self._scale_amax = desc.scale_amax
        self._unsigned = desc.unsigned
        self._narrow_range = desc.narrow_range
        self._symmetric = True
        self._scale: Tensor | float | None = None if not desc.fake_quant else 1.0
        self._disabled = disabled
        self._if_quant = if_quant
        self._if_clip = False
        self._if_calib = if_calib
        self._first_amax = desc.amax
        if desc.learn_amax:
            self.clip = Clip(-1.0, 1.0, learn_min=True, learn_max=True)
            self.enable_clip()
        self.restart()
        if if_clip:
            self.enable_clip()
        self._calibrator: Calibrator | None = None
        self.use_calibrator(histogram=desc.calib_method == "histogram")

    # Switches

    def disable(self) -> None:
        """Bypass the quantizer."""
        self._disabled = True

    def enable(self) -> None:
        """End the bypass."""
        self._disabled = False

    def disable_clip(self) -> None:
        """Stop clipping to the learned range, and stop learning it.

        Raises:
            ValueError: The range is not learned.
        """
        if self.clip is None:
            raise ValueError("learn_amax is False. There is no clip to disable.")
        self._if_clip = False
        for end in self.clip.ends:
            end.requires_grad = False

    def enable_clip(self) -> None:
        """Clip to the learned range.

        Raises:
            ValueError: The range is not learned.
        """
        if self.clip is None:
            raise ValueError("learn_amax is False. Cannot enable clip.")
        for end in self.clip.ends:
            end.requires_grad = True
        self._if_clip = True

    def disable_calib(self) -> None:
        """Stop collecting."""
        self._if_calib = False

    def enable_calib(self) -> None:
        """Start collecting.

        Raises:
            ValueError: There is no calibrator.
        """
        if self._calibrator is None:
            raise ValueError("Calibrator was not created, cannot enable calibration.")
        self._if_calib = True

    def disable_quant(self) -> None:
        """Stop rounding."""
        self._if_quant = False

    def enable_quant(self) -> None:
        """Start rounding."""
        self._if_quant = True

    # Calibration

    def use_calibrator(self, *, histogram: bool) -> None:
        """Replace the calibrator by an empty one.

        Args:
            histogram: Use a `HistogramCalibrator` instead of a `MaxCalibrator`.

        Raises:
            NotImplementedError: A histogram is wanted, and the quantizer has an axis.
        """
        kind = HistogramCalibrator if histogram else MaxCalibrator
        self._calibrator = kind(self._num_bits, self._axis, self._unsigned)

    def load_calib_amax(self, *args: Any, **kwargs: Any) -> None:
        """Take the range from the calibrator.

        Args:
            args: Arguments of the calibrator's `compute_amax`: a method, for a histogram.
            kwargs: The same, and `strict`: raise an error if the calibrator has seen nothing. If
                `strict` is false, the range becomes NaN, and so does everything it quantizes.

        Raises:
            RuntimeError: There is no calibrator, or it has seen nothing.
        """
        strict = kwargs.pop("strict", True)
        if self._calibrator is None:
            raise RuntimeError("Calibrator not created.")
        amax = self._calibrator.compute_amax(*args, **kwargs)
        if amax is None:
            message = (
                "Calibrator returned None. This usually happens when calibrator hasn't seen any "
                "tensor."
            )
            if strict:
                raise UncalibratedError(
                    f"{message} Passing 'strict=False' to `load_calib_amax()` will ignore the "
                    f"error.{self._where()}"
                )
            _LOG.warning("%s Set amax to NaN!", message)
            amax = torch.tensor(torch.nan)
        _LOG.info("Load calibrated amax, shape=%s.", tuple(amax.shape))
        old = self.amax
        if old is None or old.shape != amax.shape:
            self.register_buffer("_amax", amax.detach().clone())
        else:
            old.copy_(amax)

    def init_learn_amax(self) -> None:
        """Start the learned range at the calibrated one.

        Raises:
            RuntimeError: The range is not learned, or there is none to start from.
        """
        if self.clip is None:
            raise RuntimeError("Called init_learn_amax with learn_amax=False.")
        if self.amax is None:
            raise RuntimeError("Called init_learn_amax before a range was calibrated or given.")
        self.start_learning(self.amax.max().item())

    def restart(self) -> None:
        """Set the ranges of the descriptor, which are lost where a model is built on meta tensors.

        A learned range starts at 1 without one.
        """
        if self._first_amax is not None:
            self.register_buffer("_amax", torch.tensor(self._first_amax))
        if self.clip is not None:
            if self.clip.ends[0].is_meta and not torch.empty(0).is_meta:
                self.clip.to_empty(device="cpu")
            self.start_learning(
                1.0 if self._first_amax is None else float(np.max(self._first_amax))
            )

    def start_learning(self, amax: float) -> None:
        """Set the learned range."""
        assert self.clip is not None
        low, high = self.clip.ends
        with torch.no_grad():
            low.fill_(-amax)
            high.fill_(amax)

    def fix_range(self) -> None:
        """Stop learning and moving the range. It keeps its present values."""
        super().fix_range()
        self._if_clip = False

    # Arithmetic

    def follow(self, weight: nn.Parameter | None) -> None:
        """Set the weight that is quantized, so that an export can read its values.

        While dynamo exports a model, its parameters are fake tensors without values.
        """
        self._source = None if weight is None else (weight,)
        self.sizes = None if weight is None else tuple(weight.shape)

    def _quantize(self, inputs: Tensor) -> Tensor:
        if self._disabled:
            return inputs
        if self._if_calib and not is_exporting():
            self._collect(inputs)
        if self._if_clip and self.clip is None:
            raise RuntimeError("Clip without learning amax is not implemented.")
        if self._if_clip and not self._if_quant:
            assert self.clip is not None
            return self.clip(inputs)  # type: ignore[no-any-return]
        return self._clip_and_round(inputs) if self._if_quant else inputs

    def _codes_ends(self, learned: Clip) -> tuple[Tensor, Tensor]:
        # The toolkit clips at both learned ends, whatever its codes are.
        return learned.ends

    def _collect(self, inputs: Tensor) -> None:
        if self._calibrator is None:
            raise RuntimeError("Calibrator was not created.")
        try:
            self._calibrator.collect(inputs)
        except ValueError as error:
            raise ValueError(
                f"{error}; got NaN or infinity during calibration.{self._where()}"
            ) from error

    def _round(self, inputs: Tensor) -> Tensor:
        if not self._symmetric:
            assert isinstance(self._num_bits, int), "affine codes are integers"
            spec = TensorSpec(bits=self._num_bits, signed=False, symmetric=False)
            return self._affine_round_trip(inputs, spec)
        if is_exporting():
            return self._export(inputs)
        if self._enable_onnx_export:
            self._export_amax(inputs)
        amax = self._get_amax(inputs)
        if not self._fake_quant:
            assert isinstance(self._num_bits, int), "real quantization has integer codes"
            outputs, self._scale = tensor_quant(
                inputs, amax, self._num_bits, self._unsigned, self._narrow_range
            )
            return outputs
        if self._num_bits == E4M3:
            return scaled_e4m3(inputs, amax)
        if TensorQuantizer.use_fb_fake_quant:
            axis = varying_axis(self._axis, inputs.dim(), amax, self._where())
            return torch_fake_quantize(inputs, amax, self._codes, axis)
        if self._unsigned and not torch.compiler.is_compiling():
            check_unsigned(inputs, self._unsigned)
        return fake_quantize_amax(inputs, amax, self._codes)

    def _get_amax(self, inputs: Tensor) -> Tensor:
        known = self.used_amax
        if known is not None:
            return known
        amax = self.own_amax(inputs)
        return amax if self._scale_amax is None else amax * self._scale_amax

    def _export(self, inputs: Tensor) -> Tensor:
        amax = self._export_amax(inputs)
        if not self._fake_quant:
            raise NotImplementedError(
                f"A quantizer with fake_quant=False cannot be exported.{self._where()}"
            )
        if self._num_bits == E4M3:
            if self._axis is not None:
                raise NotImplementedError(
                    f"E4M3 quantizers are exported per tensor only.{self._where()}"
                )
            return quantize_dequantize_e4m3(inputs, amax / E4M3_MAX)
        assert isinstance(self._num_bits, int)
        if self._num_bits > 8:
            raise NotImplementedError(
                f"Codes of {self._num_bits} bits have no ONNX type here; 2 to 8 do.{self._where()}"
            )
        if self._codes.qmax < 1:
            raise NotImplementedError(
                f"A quantizer of {self._num_bits} bits has no code but 0.{self._where()}"
            )
        own = self._source is not None and self.amax is None and self._scale_amax is None
        return quantize_dequantize(
            inputs,
            amax,
            qmin=self._codes.qmin,
            qmax=self._codes.qmax,
            unsigned=self._unsigned,
            axis=varying_axis(self._axis, inputs.dim(), amax, self._where()),
            # No code of a weight's own range exceeds qmax, so there is nothing to clip.
            clip=not own and (self._narrow_range or self._num_bits < 8),
        )

    def _export_amax(self, inputs: Tensor) -> Tensor:
        known = self.used_amax
        if known is not None:
            return known
        source = self._source[0] if self._source is not None else inputs
        if self._source is None and not isinstance(inputs, nn.Parameter):
            raise uncalibrated_export(self._where())
        with on_real_tensors():
            found = self.own_amax(widened(source)).cpu().numpy()
        amax = torch.tensor(found)
        return amax if self._scale_amax is None else amax * self._scale_amax

    def _short_amax(self) -> str:
        amax = self.amax
        if amax is None:
            return "dynamic"
        return short_range(amax) + (f"({amax.numel()})" if amax.numel() > 1 else "")

    def extra_repr(self) -> str:
        """Show bits, axis, range and switches in pytorch-quantization's words."""
        if self._disabled:
            return "disabled"
        calibrator = self._calibrator and f"calibrator={type(self._calibrator).__name__}"
        words = [
            ("unsigned " if self._unsigned else "") + f"{self._num_bits}bit",
            "narrow" if self._narrow_range else "",
            "fake" if self._fake_quant else "",
            "per-tensor" if self._axis is None else f"axis={self._axis}",
            f"amax={self._short_amax()}",
            f"*{self._scale_amax}" if self._scale_amax else "",
            "pre_quant_scale" if self.pre_quant_scale is not None else "",
            "learned" if self.is_learned else "",
            calibrator,
            "" if self._symmetric else "affine",
            "" if self.moving is None else f"moving={self.moving}",
            "" if self._scale is None else f"scale={self._scale}",
            "quant" if self._if_quant else "",
            "clip" if self._if_clip else "",
            "calib" if self._if_calib else "",
        ]
        return " ".join(word for word in words if word)
