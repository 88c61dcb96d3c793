"""The quantizer: the one module of ours that stands at every site of a model."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from qdqbert.errors import UncalibratedError
from qdqbert.nn.clip import Clip
from qdqbert.nn.export import (
    is_exporting,
    on_real_tensors,
    quantize_dequantize,
    quantize_dequantize_e4m3,
    quiet_tracer,
)
from qdqbert.numerics.affine import affine_parameters, reduce_amax, round_trip, widened
from qdqbert.numerics.calibrators import (
    Calibrator,
    HistogramCalibrator,
    MaxCalibrator,
    reduced_axes,
)
from qdqbert.spec import Site, TensorSpec, is_residual_input
from qdqbert.tensor_quant import (
    E4M3,
    E4M3_MAX,
    NumBits,
    QuantDescriptor,
    check_unsigned,
    codes_of,
    fake_quantize_amax,
    scaled_e4m3,
    tensor_quant,
)

_LOG = logging.getLogger(__name__)

Action = Callable[[Tensor], Tensor]
"""What stands in for a quantizer's own behaviour: observe the tensor, mark it in a graph."""

_STATE = "quantizer"
_STATE_VERSION = 1
# Attributes that are stored beside the buffers, in the state dict's metadata.
_STORED = (
    "_num_bits",
    "_fake_quant",
    "_axis",
    "_unsigned",
    "_narrow_range",
    "_symmetric",
    "_moving",
    "_scale_amax",
    "_disabled",
    "_if_quant",
    "_if_clip",
    "_if_calib",
)


class TensorQuantizer(nn.Module):
    """Quantizes a tensor, or watches it to find its range.

    A tensor passes through four stages, each of which can be switched: calibration collects
    (`enable_calib`), clipping learns (`enable_clip`), quantization rounds (`enable_quant`), and
    `disable` bypasses all three. Without a range (`amax`), quantization takes each tensor's own.

    Attributes:
        site: The name of the place where it stands, if it stands in a model of ours.
        symmetric: Whether codes are spread evenly around zero, as the toolkit's all are. If not,
            `range` takes the place of `amax`, and codes have a zero point.
        moving: Share of each training batch's own range in the running average that the range
            becomes; `None` keeps it as it was calibrated.
        action: What is done instead of all of the above while one of the context managers of
            `qdqbert.insert.sited` runs; they put back what was there before.
        use_fb_fake_quant: Class switch of pytorch-quantization 2.1: fake quantization by torch's
            own operators, for tools that look for them. In an ONNX export Q/DQ nodes are written
            with or without it.

    Source: pytorch-quantization's `TensorQuantizer`, 2.1 and 2.2. Mended: `narrow_range` is
    honoured on every device; the state holds bits, axis and flags (`state_dict` metadata); state
    loads on any device; a weight quantizer without `amax` takes the weight's own when exported,
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
        """Makes a quantizer.

        Args:
            quant_desc: Bits, axis and so on; 8 bits per tensor if `None`.
            disabled: Bypass it.
            if_quant: Quantize.
            if_clip: Clip to the learned range; needs `learn_amax`.
            if_calib: Collect.
            site: Where it stands.

        Raises:
            NotImplementedError: A histogram is asked for, and an axis.
        """
        super().__init__()
        desc = quant_desc or QuantDescriptor()
        self.site = site
        self.action: Action | None = None
        self._source: tuple[nn.Parameter] | None = None
        self._num_bits: NumBits = desc.num_bits
        self._fake_quant = desc.fake_quant
        self._axis = desc.axis
        self._scale_amax = desc.scale_amax
        self._learn_amax = desc.learn_amax
        self._unsigned = desc.unsigned
        self._narrow_range = desc.narrow_range
        self._symmetric = True
        self._moving: float | None = None
        self._scale: Tensor | float | None = None if not desc.fake_quant else 1.0
        self._disabled = disabled
        self._if_quant = if_quant
        self._if_clip = False
        self._if_calib = if_calib
        if desc.amax is not None:
            self.register_buffer("_amax", torch.tensor(desc.amax))
        if desc.learn_amax:
            self._first_amax = 1.0 if desc.amax is None else float(np.max(desc.amax))
            self.clip = Clip(-self._first_amax, self._first_amax, learn_min=True, learn_max=True)
            self.enable_clip()
        if if_clip:
            self.enable_clip()
        self._calibrator: Calibrator | None = (
            HistogramCalibrator(self._num_bits, self._axis, self._unsigned)
            if desc.calib_method == "histogram"
            else MaxCalibrator(self._num_bits, self._axis, self._unsigned)
        )

    # What it is

    @property
    def num_bits(self) -> NumBits:
        """Width of the codes, `(4, 3)` for E4M3."""
        return self._num_bits

    @num_bits.setter
    def num_bits(self, value: NumBits) -> None:
        self._num_bits = value
        self.sync_calibrator()

    @property
    def unsigned(self) -> bool:
        """Whether codes start at 0."""
        return self._unsigned

    @unsigned.setter
    def unsigned(self, value: bool) -> None:
        self._unsigned = value
        self.sync_calibrator()

    @property
    def narrow_range(self) -> bool:
        """Whether the lowest signed code is left out."""
        return self._narrow_range

    @narrow_range.setter
    def narrow_range(self, value: bool) -> None:
        self._narrow_range = value

    @property
    def axis(self) -> int | tuple[int, ...] | None:
        """Axes that keep one range per index."""
        return self._axis

    @property
    def fake_quant(self) -> bool:
        """Whether values come back as reals."""
        return self._fake_quant

    @property
    def maxbound(self) -> float:
        """What `amax` becomes: the highest code, 448 for E4M3."""
        return E4M3_MAX if self._num_bits == E4M3 else self._codes.qmax

    @property
    def step_size(self) -> Tensor | None:
        """Real value of a step: `amax / maxbound`; `None` while the range is dynamic."""
        amax = self._fixed_amax
        if amax is None:
            _LOG.error("step_size is undefined under dynamic amax mode!")
            return None
        return amax / self.maxbound

    @property
    def scale(self) -> Tensor | float | None:
        """What real quantization last multiplied by: `qmax / amax`."""
        if self._fake_quant:
            _LOG.error("Fake quantize mode doesn't use scale explicitly!")
        if self._scale is None:
            _LOG.critical("Accessing scale before quantizing any tensor!")
        return self._scale

    @property
    def amax(self) -> Tensor | None:
        """The range: a scalar, or a shape that broadcasts along `axis`. `None` while dynamic."""
        return self._fixed_amax

    @amax.setter
    def amax(self, value: Tensor | NDArray[Any] | float | None) -> None:
        if value is None:
            _LOG.error("Setting amax no None is meaningless.")
            return
        self._set("_amax", value, "amax")

    @property
    def symmetric(self) -> bool:
        """Whether codes are spread evenly around zero."""
        return self._symmetric

    @symmetric.setter
    def symmetric(self, value: bool) -> None:
        self._symmetric = value

    @property
    def moving(self) -> float | None:
        """Share of a training batch in the range."""
        return self._moving

    @moving.setter
    def moving(self, value: float | None) -> None:
        self._moving = value

    @property
    def range(self) -> Tensor | None:
        """Lowest and highest value of affine codes, shape `(2,)`; `None` while unknown."""
        if self._symmetric:
            return None
        if self._learn_amax:
            low, high = self._learned_ends()
            return torch.stack([low.clamp(max=0), high.clamp(min=0)])
        return getattr(self, "_range", None)

    @range.setter
    def range(self, value: Tensor | NDArray[Any] | tuple[float, float]) -> None:
        ends = torch.as_tensor(value)
        if ends.shape != (2,) or not float(ends[0]) <= 0 <= float(ends[1]):
            raise ValueError(
                f"`range` must be a low end <= 0 and a high end >= 0, got {value}.{self._where()}"
            )
        self._set("_range", ends, "range")

    @property
    def pre_quant_scale(self) -> Tensor | None:
        """Factor of the tensor before it is quantized; inputs of adds are divided by it again."""
        return getattr(self, "_pre_quant_scale", None)

    @pre_quant_scale.setter
    def pre_quant_scale(self, value: Tensor | NDArray[Any] | float) -> None:
        self._set("_pre_quant_scale", value, "pre_quant_scale")

    # What it does

    def disable(self) -> None:
        """Bypasses the quantizer."""
        self._disabled = True

    def enable(self) -> None:
        """Ends the bypass."""
        self._disabled = False

    def disable_clip(self) -> None:
        """Stops clipping to, and learning, the range.

        Raises:
            ValueError: The range is not learned.
        """
        if not self._learn_amax:
            raise ValueError("learn_amax is False. There is no clip to disable.")
        self._if_clip = False
        for end in self._learned_ends():
            end.requires_grad = False

    def enable_clip(self) -> None:
        """Clips to the learned range.

        Raises:
            ValueError: The range is not learned.
        """
        if not self._learn_amax:
            raise ValueError("learn_amax is False. Cannot enable clip.")
        for end in self._learned_ends():
            end.requires_grad = True
        self._if_clip = True

    def disable_calib(self) -> None:
        """Stops collecting."""
        self._if_calib = False

    def enable_calib(self) -> None:
        """Collects from here on.

        Raises:
            ValueError: There is no calibrator.
        """
        if self._calibrator is None:
            raise ValueError("Calibrator was not created, cannot enable calibration.")
        self._if_calib = True

    def disable_quant(self) -> None:
        """Stops rounding."""
        self._if_quant = False

    def enable_quant(self) -> None:
        """Rounds from here on."""
        self._if_quant = True

    def load_calib_amax(self, *args: Any, **kwargs: Any) -> None:
        """Takes the range from the calibrator.

        Args:
            args: For the calibrator's `compute_amax`: a method, for a histogram.
            kwargs: The same; and `strict`: whether having seen nothing is an error. Without it
                the range becomes NaN, and so does all that is quantized by it.

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
        old = self._fixed_amax
        if old is None or old.shape != amax.shape:
            self.register_buffer("_amax", amax.detach().clone())
        else:
            old.copy_(amax)

    def init_learn_amax(self) -> None:
        """Starts the learned range at the calibrated one.

        Raises:
            RuntimeError: The range is not learned, or there is none to start from.
        """
        if not self._learn_amax:
            raise RuntimeError("Called init_learn_amax with learn_amax=False.")
        if self._fixed_amax is None:
            raise RuntimeError("Called init_learn_amax before a range was calibrated or given.")
        self.start_learning(self._fixed_amax.max().item())

    def start_learning(self, amax: float | None = None) -> None:
        """Sets the learned range, to what its descriptor said if `amax` is `None`."""
        amax = self._first_amax if amax is None else amax
        self._set_learned(-amax, amax)

    def learn_range(self) -> None:
        """Makes the calibrated range a parameter.

        Raises:
            UncalibratedError: There is none.
        """
        ends = self._fixed_ends()
        self._learn_amax = True
        self.clip = Clip(-1.0, 1.0, learn_min=True, learn_max=True).to(ends.device)
        self._set_learned(float(ends[0]), float(ends[1]))

    def fix_range(self) -> None:
        """Ends learning and moving: the range stays what it has become."""
        self._moving = None
        if not self._learn_amax:
            return
        low, high = (float(end.detach()) for end in self._learned_ends())
        self._learn_amax, self._if_clip = False, False
        del self.clip
        if self._symmetric:
            self.amax = max(-low, high)
        else:
            self.range = (min(low, 0.0), max(high, 0.0))

    def _set_learned(self, lowest: float, highest: float) -> None:
        low, high = self._learned_ends()
        with torch.no_grad():
            low.fill_(lowest)
            high.fill_(highest)

    def _fixed_ends(self) -> Tensor:
        known = self._fixed_amax if self._symmetric else self.range
        if known is None:
            raise UncalibratedError(
                f"There is no range to learn from. Calibrate first.{self._where()}"
            )
        if not self._symmetric:
            return known
        amax = known.max()
        return torch.stack([-amax, amax])

    def sync_calibrator(self) -> None:
        """Gives the calibrator this quantizer's bits, sign and axis, where they were changed."""
        if isinstance(self._calibrator, Calibrator):
            self._calibrator._num_bits = self._num_bits
            self._calibrator._unsigned = self._unsigned
            self._calibrator._axis = self._axis

    def follow(self, weight: nn.Parameter | None) -> None:
        """Says which constant it stands on, so that an export can take the constant's own range.

        Fake tensors stand in for a model's parameters while dynamo exports it.
        """
        self._source = None if weight is None else (weight,)

    def forward(self, inputs: Tensor) -> Tensor:
        """The tensor as the stages leave it. Shape and dtype of `inputs`."""
        if self.action is not None:
            return self.action(inputs)
        scale = self.pre_quant_scale
        if scale is None:
            return self._stages(inputs)
        made = self._stages(inputs * scale)
        # Where no weight is divided by it.
        restores = self.site is not None and is_residual_input(self.site.name)
        # Scales are float32, whatever the model is.
        return (made * (1 / scale) if restores else made).to(inputs.dtype)

    def _stages(self, inputs: Tensor) -> Tensor:
        if self._disabled:
            return inputs
        if self._if_calib and not is_exporting():
            self._collect(inputs)
        if self._if_clip and not self._learn_amax:
            raise RuntimeError("Clip without learning amax is not implemented.")
        if self._if_clip and not self._if_quant:
            return self.clip(inputs)  # type: ignore[no-any-return]
        return self._quant_forward(inputs) if self._if_quant else inputs

    def _collect(self, inputs: Tensor) -> None:
        if self._calibrator is None:
            raise RuntimeError("Calibrator was not created.")
        try:
            self._calibrator.collect(inputs)
        except ValueError as error:
            raise ValueError(f"{error}; calibration met others.{self._where()}") from error

    def _quant_forward(self, inputs: Tensor) -> Tensor:
        if self._learn_amax:
            # In float32: a half's nearest value to an end may lie half a step beyond it.
            return self._round(self.clip(widened(inputs))).to(inputs.dtype)
        if self._moving is not None and self.training and not is_exporting():
            self._move(inputs)
        return self._round(inputs)

    def _round(self, inputs: Tensor) -> Tensor:
        if not self._symmetric:
            return self._affine_forward(inputs)
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
            return self._fb_fake_quant(inputs, amax)
        if self._unsigned and not torch.compiler.is_compiling():
            check_unsigned(inputs, self._unsigned)
        return fake_quantize_amax(inputs, amax, self._codes)

    def _affine_forward(self, inputs: Tensor) -> Tensor:
        ends = self.range
        if ends is None:
            raise UncalibratedError(
                f"Affine codes have no range of their own. Calibrate first.{self._where()}"
            )
        if is_exporting():
            raise NotImplementedError(
                "Affine quantizers are not exported by `torch.onnx.export`; `qdqbert.quantize` "
                f"writes their graph.{self._where()}"
            )
        assert isinstance(self._num_bits, int), "affine codes are integers"
        spec = TensorSpec(bits=self._num_bits, signed=False, symmetric=False)
        # Clipping passes gradients to learned ends; a scale is a constant for the rounding. The
        # code of an end may lie past the last one, which must not stop its gradient.
        low, high = ends.detach().unbind()
        parameters = affine_parameters(low, high, spec, check=False)
        return round_trip(
            inputs,
            parameters.scale,
            spec.qmin,
            spec.qmax,
            zero_point=parameters.zero_point,
            low=low if self._learn_amax else None,
            high=high if self._learn_amax else None,
        )

    def _move(self, inputs: Tensor) -> None:
        """Moves the range towards that of a batch.

        Source: torch's `MovingAverageMinMaxObserver`, whose default is 0.01.
        """
        assert self._moving is not None
        with torch.no_grad():
            known = self._fixed_amax if self._symmetric else self.range
            if known is None:
                raise UncalibratedError(
                    f"There is no range to move. Calibrate first.{self._where()}"
                )
            if self._symmetric:
                now = self._own_amax(inputs).reshape(known.shape)
            else:
                now = torch.stack([inputs.amin().clamp(max=0), inputs.amax().clamp(min=0)])
            known.lerp_(now.to(known.dtype), self._moving)

    def _get_amax(self, inputs: Tensor) -> Tensor:
        known = self._known_amax
        amax = self._own_amax(inputs) if known is None else known
        return amax if self._scale_amax is None else amax * self._scale_amax

    @property
    def _known_amax(self) -> Tensor | None:
        """The learned or the fixed range, if there is one."""
        if self._learn_amax:
            low, high = self._learned_ends()
            return torch.maximum(-low, high).detach()
        return self._fixed_amax

    def _learned_ends(self) -> tuple[nn.Parameter, nn.Parameter]:
        low, high = self.clip.clip_value_min, self.clip.clip_value_max
        assert isinstance(low, nn.Parameter)
        assert isinstance(high, nn.Parameter)
        return low, high

    def _own_amax(self, inputs: Tensor) -> Tensor:
        return reduce_amax(inputs.detach(), axis=reduced_axes(self._axis, inputs.dim()))

    def _fb_fake_quant(self, inputs: Tensor, amax: Tensor) -> Tensor:
        """Fake quantization by torch's own operators."""
        real = widened(inputs)
        codes = self._codes
        scale = (widened(amax) / codes.qmax).clamp_min(torch.finfo(torch.float32).tiny)
        axis = self._single_axis(real.dim(), amax)
        zeros = torch.zeros(scale.numel(), dtype=torch.int32, device=scale.device)
        if axis is None:
            outputs = torch.fake_quantize_per_tensor_affine(
                real, scale.float().reshape(1), zeros, codes.qmin, codes.qmax
            )
        else:
            outputs = torch.fake_quantize_per_channel_affine(
                real, scale.float().reshape(-1), zeros, axis, codes.qmin, codes.qmax
            )
        return outputs.to(inputs.dtype)

    def _export(self, inputs: Tensor) -> Tensor:
        amax = self._export_amax(inputs)
        if self._scale_amax is not None:
            amax = amax * self._scale_amax
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
        own = self._source is not None and self._fixed_amax is None and self._scale_amax is None
        return quantize_dequantize(
            inputs,
            amax,
            qmin=self._codes.qmin,
            qmax=self._codes.qmax,
            unsigned=self._unsigned,
            axis=self._single_axis(inputs.dim(), amax),
            # Of a weight's own range no code goes past +-qmax, so that there is nothing to clip.
            clip=not own and (self._narrow_range or self._num_bits < 8),
        )

    def _export_amax(self, inputs: Tensor) -> Tensor:
        if self._known_amax is not None:
            return self._known_amax
        source = self._source[0] if self._source is not None else inputs
        if self._source is None and not isinstance(inputs, nn.Parameter):
            raise UncalibratedError(
                "Quantizer has not been calibrated. ONNX export requires the quantizer to be "
                "calibrated. Calibrate and load amax before exporting to ONNX, or disable() it."
                f"{self._where()}"
            )
        with on_real_tensors():
            amax = self._own_amax(widened(source)).cpu().numpy()
        return torch.tensor(amax)

    @property
    def _fixed_amax(self) -> Tensor | None:
        return getattr(self, "_amax", None)

    @property
    def _codes(self) -> Any:
        if not isinstance(self._num_bits, int):
            raise TypeError(f"E4M3 has no integer codes.{self._where()}")
        return codes_of(self._num_bits, self._unsigned, self._narrow_range)

    def _single_axis(self, dims: int, amax: Tensor) -> int | None:
        """The one axis along which the range varies."""
        with quiet_tracer():
            sizes = [int(size) for size in amax.shape]
        if self._axis is None or math.prod(sizes) == 1:
            return None
        axes = (self._axis,) if isinstance(self._axis, int) else self._axis
        varying = [axis % dims for axis in axes]
        if len(varying) > 1:
            varying = [axis for axis in varying if sizes[axis] > 1]
        if len(varying) > 1:
            raise TypeError(
                "Pytorch's native quantization doesn't support multiple axes, nor does ONNX's: "
                f"axis={self._axis}.{self._where()}"
            )
        return varying[0]

    def _set(self, buffer: str, value: Tensor | NDArray[Any] | float, name: str) -> None:
        new = torch.as_tensor(value).detach().clone()
        new = new if new.is_floating_point() else new.to(torch.float32)
        if new.dtype == torch.float64:
            new = new.to(torch.float32)
        if name == "amax" and bool((new < 0).any()):
            raise ValueError(f"`amax` must not be negative, got {new.min()}.{self._where()}")
        old = getattr(self, buffer, None)
        if old is None:
            self.register_buffer(buffer, new)
        elif old.shape != new.shape:
            raise RuntimeError(
                f"Changing shape when setting {name} is not allowed: {tuple(old.shape)} to "
                f"{tuple(new.shape)}.{self._where()}"
            )
        else:
            old.copy_(new)

    def _where(self) -> str:
        return f" Quantizer: `{self.site.name}`." if self.site is not None else ""

    # What is kept

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> Self:
        before = {name: getattr(self, name, None) for name in ("_amax", "_range")}
        super()._apply(fn, *args, **kwargs)  # type: ignore[no-untyped-call]
        for name, old in before.items():
            new = getattr(self, name, None)
            if old is not None and new is not None and new.dtype.itemsize < old.dtype.itemsize:
                # A model in half precision has its ranges in float32: codes must not change.
                setattr(self, name, old.to(new.device))
        return self

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        metadata = getattr(destination, "_metadata", None)
        if metadata is not None:
            state = {name: getattr(self, name) for name in _STORED}
            metadata.setdefault(prefix[:-1], {})[_STATE] = {"version": _STATE_VERSION, **state}

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: Any, *args: Any, **kwargs: Any
    ) -> None:
        for buffer in ("_amax", "_range", "_pre_quant_scale"):
            stored = state_dict.get(prefix + buffer)
            if stored is None:
                if getattr(self, buffer, None) is not None:
                    _LOG.error("%s: No %s in state_dict.", prefix[:-1], buffer[1:])
                continue
            old = getattr(self, buffer, None)
            if old is None:
                device = self._device(stored)
                self.register_buffer(buffer, torch.empty_like(stored, device=device))
        for name, value in local_metadata.get(_STATE, {}).items():
            if name in _STORED:
                setattr(self, name, value)
        if _STATE in local_metadata:
            self.sync_calibrator()
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args, **kwargs)

    def _device(self, stored: Tensor) -> torch.device:
        return self._source[0].device if self._source is not None else stored.device

    def _short_amax(self, fmt: str = ".4f") -> str:
        amax = self._fixed_amax
        if amax is None:
            return "dynamic"
        if amax.numel() == 1:
            return f"{amax.item():{fmt}}"
        return f"[{amax.min().item():{fmt}}, {amax.max().item():{fmt}}]({amax.numel()})"

    def extra_repr(self) -> str:
        """Bits, axis, range and stages, in pytorch-quantization's words."""
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
            "learned" if self._learn_amax else "",
            calibrator,
            "" if self._symmetric else "affine",
            "" if self._moving is None else f"moving={self._moving}",
            "" if self._scale is None else f"scale={self._scale}",
            "quant" if self._if_quant else "",
            "clip" if self._if_clip else "",
            "calib" if self._if_calib else "",
        ]
        return " ".join(word for word in words if word)
