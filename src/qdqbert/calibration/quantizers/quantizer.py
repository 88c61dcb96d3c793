"""Fake-quantize a tensor at one site, or run the action of a calibration or an export instead."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from qdqbert.calibration.quantizers.clip import Clip, clip
from qdqbert.calibration.quantizers.export import is_exporting, quantize_dequantize
from qdqbert.common.errors import CheckpointError, UncalibratedError
from qdqbert.encoders.stored import (
    BUFFERS,
    ENDS,
    TOOLKIT_DEFAULTS,
    problem_of,
    spec_of,
    wrong_range,
)
from qdqbert.quantization.numerics.affine import (
    affine_parameters,
    reduce_amax,
    round_trip,
    widened,
    within_limit,
)
from qdqbert.quantization.numerics.fake_quantization import Codes, fake_quantize_amax, reduced_axes
from qdqbert.quantization.spec import (
    DEAD_AMAX,
    DEAD_STEP,
    Range,
    Site,
    TensorSpec,
    is_residual_input,
)

Action = Callable[[Tensor], Tensor]
"""Replaces quantizing, for example by showing the tensor to an observer."""

_STATE = "quantizer"
_STATE_VERSION = 1


class Quantizer(nn.Module):
    """Quantize and dequantize a tensor at one site.

    Without a spec, a tensor passes unchanged. A symmetric quantizer without a range takes the
    largest magnitude of each tensor; an affine one refuses to quantize.

    Attributes:
        site: The place in the model. `None` outside of a model.
        moving: Share of each training batch in the running average that moves the range. `None`
            keeps the range fixed.
        action: Replaces all this while a context manager of `qdqbert.training.insert.sited` is
            active. These restore the previous action.
        clip: Clips to the learned ends of the range. `None` unless the range is learned.
        sizes: Shape of the weight that is quantized, or `(channels,)` of an activation. `None` if
            it is not known.
    """

    clip: Clip | None
    sizes: tuple[int, ...] | None = None

    def __init__(self, spec: TensorSpec | None = None, *, site: Site | None = None) -> None:
        """Create a quantizer without a range.

        Args:
            spec: How the tensor is quantized. `None` leaves it in float.
            site: The place in the model.
        """
        super().__init__()
        self.site = site
        self.moving: float | None = None
        self.action: Action | None = None
        self.clip = None
        # Kept while the quantizer is disabled, so that it is known which spec the range is for.
        self._spec = spec or TensorSpec()
        self._is_enabled = spec is not None

    @property
    def spec(self) -> TensorSpec | None:
        """How the tensor is quantized. `None` leaves it in float."""
        return self._spec if self._is_enabled else None

    @property
    def is_enabled(self) -> bool:
        """Whether the tensor is quantized."""
        return self._is_enabled

    @property
    def is_symmetric(self) -> bool:
        """Whether codes are symmetric around zero, so that the range is `amax`."""
        return self._spec.symmetric

    @property
    def is_learned(self) -> bool:
        """Whether the ends of the range are parameters."""
        return self.clip is not None

    def configure(self, spec: TensorSpec | None) -> None:
        """Change how the tensor is quantized. A range that no longer fits is dropped.

        Args:
            spec: The new spec. `None` leaves the tensor in float.
        """
        self._is_enabled = spec is not None
        if spec is None:
            return
        if (self._spec.symmetric, self._spec.axis) != (spec.symmetric, spec.axis):
            self.forget_range()
        self._spec = spec

    def set_precision(self, bits: int, axis: int | None) -> None:
        """Quantize, with other bits and another axis than before.

        Args:
            bits: Width of the codes, 2 to 8.
            axis: Axis that keeps one scale per index. `None` uses one scale.
        """
        self.configure(dataclasses.replace(self._spec, bits=bits, axis=axis))

    def disable(self) -> None:
        """Leave the tensor in float. The range is kept."""
        self._is_enabled = False

    # The range

    @property
    def amax(self) -> Tensor | None:
        """Largest magnitude of the range: `()`, or a shape that broadcasts along the axis.

        `None` if it is unknown.
        """
        return getattr(self, "_amax", None)

    @amax.setter
    def amax(self, value: Tensor | NDArray[Any] | float) -> None:
        self._set("_amax", value)

    @property
    def range(self) -> Tensor | None:
        """Lowest and highest value of affine codes, shape `(2,)`. `None` if it is unknown."""
        if self.is_symmetric:
            return None
        if self.clip is not None:
            low, high = self.clip.ends
            return torch.stack([low.clamp(max=0), high.clamp(min=0)])
        return getattr(self, "_range", None)

    @range.setter
    def range(self, value: Tensor | NDArray[Any] | tuple[float, float]) -> None:
        ends = torch.as_tensor(value)
        if ends.shape != (2,) or not float(ends[0]) <= 0 <= float(ends[1]):
            raise ValueError(
                f"`range` must be a low end <= 0 and a high end >= 0, got {value}.{self._where()}"
            )
        self._set("_range", ends)

    @property
    def pre_quant_scale(self) -> Tensor | None:
        """Factor of the tensor before it is quantized, shape `(channels,)`.

        Inputs of residual adds are divided by it again.
        """
        return getattr(self, "_pre_quant_scale", None)

    @pre_quant_scale.setter
    def pre_quant_scale(self, value: Tensor | NDArray[Any] | float) -> None:
        self._set("_pre_quant_scale", value)

    @property
    def used_amax(self) -> Tensor | None:
        """The largest magnitude that symmetric codes cover, learned or fixed. `None` if unknown."""
        return self._used_amax()

    # A method, as `torch.compile` reads no property of a base class.
    def _used_amax(self) -> Tensor | None:
        if self.clip is not None:
            low, high = self.clip.ends
            return torch.maximum(-low, high).detach()
        return self.amax

    def set_range(self, chosen: Tensor | Range) -> None:
        """Replace the range, whatever shape it had.

        Args:
            chosen: `amax`, or the two ranges that calibration chose.
        """
        self.forget_range()
        if not self.is_symmetric:
            assert isinstance(chosen, Range)
            self.range = (chosen.low, chosen.high)
        elif isinstance(chosen, Range):
            self.amax = torch.tensor(chosen.amax, dtype=torch.float32)
        else:
            self.amax = chosen

    def forget_range(self) -> None:
        """Drop the range."""
        for buffer in ("_amax", "_range"):
            if getattr(self, buffer, None) is not None:
                delattr(self, buffer)

    def forget_scale(self) -> None:
        """Drop the `pre_quant_scale`."""
        if self.pre_quant_scale is not None:
            del self._pre_quant_scale

    # The range in training

    def learn_range(self) -> None:
        """Make the ends of the range parameters.

        Raises:
            UncalibratedError: There is no range.
        """
        known = self.amax if self.is_symmetric else self.range
        if known is None:
            raise UncalibratedError(
                f"There is no range to learn from. Calibrate first.{self._where()}"
            )
        ends = torch.stack([-known.max(), known.max()]) if self.is_symmetric else known
        low, high = ends.tolist()
        self.clip = Clip(low, high, learn_min=True, learn_max=True).to(ends.device)

    def fix_range(self) -> None:
        """Stop learning and moving the range. It keeps its present values."""
        self.moving = None
        if self.clip is None:
            return
        low, high = (float(end.detach()) for end in self.clip.ends)
        self.clip = None
        if self.is_symmetric:
            self.amax = max(-low, high)
        else:
            self.range = (min(low, 0.0), max(high, 0.0))

    def _move(self, inputs: Tensor) -> None:
        """Move the range towards a batch's.

        Source: torch's `MovingAverageMinMaxObserver`, whose default is 0.01.
        """
        assert self.moving is not None
        with torch.no_grad():
            known = self.amax if self.is_symmetric else self.range
            if known is None:
                raise UncalibratedError(
                    f"There is no range to move. Calibrate first.{self._where()}"
                )
            if self.is_symmetric:
                now = self.own_amax(inputs).reshape(known.shape)
            else:
                now = torch.stack([inputs.amin().clamp(max=0), inputs.amax().clamp(min=0)])
            known.lerp_(now.to(known.dtype), self.moving)

    # Arithmetic

    def forward(self, inputs: Tensor) -> Tensor:
        """Quantize and dequantize a tensor of any shape. Keeps shape and dtype."""
        if self.action is not None:
            return self.action(inputs)
        scale = self.pre_quant_scale
        if scale is None:
            return self._quantize(inputs)
        made = self._quantize(inputs * scale)
        # No weight is multiplied by the inverse at a residual add.
        restores = self.site is not None and is_residual_input(self.site.name)
        # Scales are float32, whatever the dtype of the model.
        return (made * (1 / scale) if restores else made).to(inputs.dtype)

    def _quantize(self, inputs: Tensor) -> Tensor:
        return self._clip_and_round(inputs) if self._is_enabled else inputs

    def _clip_and_round(self, inputs: Tensor) -> Tensor:
        if self.clip is not None:
            # In float32, since an end rounded to half precision may lie half a step outside.
            low, high = self._codes_ends(self.clip)
            return self._round(clip(widened(inputs), low, high)).to(inputs.dtype)
        if self.moving is not None and self.training and not is_exporting():
            self._move(inputs)
        return self._round(inputs)

    def _codes_ends(self, learned: Clip) -> tuple[Tensor, Tensor]:
        """Return the ends of the codes for a learned range, with a gradient."""
        low, high = learned.ends
        if not self._spec.symmetric:
            return low, high
        # They reach the larger end on both sides.
        largest = torch.maximum(-low, high)
        return -largest, largest

    def _round(self, inputs: Tensor) -> Tensor:
        spec = self._spec
        if not spec.symmetric:
            return self._affine_round_trip(inputs, spec)
        amax = self.used_amax
        if is_exporting():
            if amax is None:
                raise uncalibrated_export(self._where())
            return quantize_dequantize(
                inputs,
                amax,
                qmin=spec.qmin,
                qmax=spec.qmax,
                unsigned=not spec.signed,
                axis=None if amax.numel() == 1 else spec.axis,
                clip=spec.narrow or spec.bits < 8,
            )
        amax = self.own_amax(inputs) if amax is None else amax
        if spec.adjacent_sum_limit is not None:
            inputs, amax = within_limit(inputs, spec, amax)
        return fake_quantize_amax(inputs, amax, Codes(qmin=spec.qmin, qmax=spec.qmax))

    def _affine_round_trip(self, inputs: Tensor, spec: TensorSpec) -> Tensor:
        ends = self.range
        if ends is None:
            raise UncalibratedError(
                f"A quantizer with affine codes needs a range. Calibrate first.{self._where()}"
            )
        if is_exporting():
            raise NotImplementedError(
                "`torch.onnx.export` cannot export affine quantizers. Save the model and call "
                f"`qdqbert.quantize` to write its graph.{self._where()}"
            )
        # Clipping passes gradients to learned ends, and the scale is a constant for rounding. The
        # code of an end may lie outside of the codes, which must not stop its gradient.
        low, high = ends.detach().unbind()
        parameters = affine_parameters(low, high, spec, check=False)
        return round_trip(
            inputs,
            torch.where(high - low <= DEAD_AMAX, DEAD_STEP, parameters.scale),
            spec.qmin,
            spec.qmax,
            zero_point=parameters.zero_point,
            low=low if self.is_learned else None,
            high=high if self.is_learned else None,
        )

    def own_amax(self, inputs: Tensor) -> Tensor:
        """Return the largest magnitude of a tensor, in the shape of `amax`."""
        return reduce_amax(inputs.detach(), axis=reduced_axes(self._spec.axis, inputs.dim()))

    def _set(self, buffer: str, value: Tensor | NDArray[Any] | float) -> None:
        new = torch.as_tensor(value).detach().clone()
        if not new.is_floating_point() or new.dtype == torch.float64:
            new = new.to(torch.float32)
        name = buffer.removeprefix("_")
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

    # Stored state

    def state(self) -> dict[str, Any]:
        """Return the settings that a checkpoint stores besides tensors, as plain values by name."""
        spec = self._spec
        return {
            "num_bits": spec.bits,
            "unsigned": spec.symmetric and not spec.signed,
            "narrow_range": spec.narrow,
            "symmetric": spec.symmetric,
            "axis": spec.axis,
            "adjacent_sum_limit": spec.adjacent_sum_limit,
            "moving": self.moving,
            "learn_amax": self.is_learned,
            "disabled": not self._is_enabled,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take the settings of a stored state. Ranges are loaded later.

        Raises:
            CheckpointError: The state is a toolkit quantizer's, without an equivalent here.
        """
        toolkit = TOOLKIT_DEFAULTS.items()
        unsupported = [name for name, only in toolkit if state.get(name, only) != only]
        bits, axis = state["num_bits"], state["axis"]
        if unsupported or not isinstance(bits, int) or not isinstance(axis, int | None):
            words = unsupported or ["num_bits" if not isinstance(bits, int) else "axis"]
            raise CheckpointError(
                f"A stored quantizer sets `{words[0]}`, which only QDQBERT models support."
                f"{self._where()}"
            )
        self._is_enabled = not state["disabled"]
        spec = spec_of({**state, "disabled": False})
        assert spec is not None
        self._spec = spec
        self.moving = state["moving"]
        if state.get("learn_amax"):
            self.clip = Clip(-1.0, 1.0, learn_min=True, learn_max=True)

    def expect(self, buffer: str, shape: tuple[int, ...]) -> None:
        """Register a buffer of a shape, which a checkpoint will fill."""
        self.register_buffer(buffer, torch.empty(shape))

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> Self:
        before = [each.data for each in self._tensors()]
        super()._apply(fn, *args, **kwargs)  # type: ignore[no-untyped-call]
        for old, new in zip(before, self._tensors(), strict=True):
            if new.dtype.itemsize < old.dtype.itemsize:
                # They stay float32 in a model of half precision: codes must not change.
                new.data = old.to(new.device)
        return self

    def _tensors(self) -> list[Tensor]:
        """Return ranges, scales, learned ends and their gradients."""
        ends = [] if self.clip is None else [*self.clip.ends]
        grads = [end.grad for end in ends if end.grad is not None]
        return [*self.buffers(recurse=False), *ends, *grads]

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        metadata = getattr(destination, "_metadata", None)
        if metadata is not None:
            stored = {"version": _STATE_VERSION, **self._stored_metadata()}
            metadata.setdefault(prefix[:-1], {})[_STATE] = stored

    def _stored_metadata(self) -> dict[str, Any]:
        """Return the state under the names of format 1. Learned ends are tensors."""
        state = self.state()
        return {f"_{name}": value for name, value in state.items() if name != "learn_amax"}

    def problems_of(self, tensors: Mapping[str, Tensor]) -> dict[str, str]:
        """Return what is wrong with stored tensors, by name, if the quantizer uses them."""
        if not self.is_enabled:
            return {}
        arrays = {
            name: x.detach().to("cpu", torch.float32).numpy()
            for name, x in tensors.items()
            if name in (*BUFFERS, *ENDS) and not x.is_meta
        }
        found = {name: problem_of(name, x, self._shapes_of(name)) for name, x in arrays.items()}
        ends = [arrays[name] for name in ENDS if name in arrays and found[name] is None]
        if len(ends) == len(ENDS):
            found[ENDS[0]] = problem_of("clip", np.stack([each.reshape(()) for each in ends]))
        return {name: problem for name, problem in found.items() if problem is not None}

    def _shapes_of(self, name: str) -> list[tuple[int, ...]]:
        """Return the shapes that a stored tensor may have; none if they are not known."""
        if name == "_range":
            return [(2,)]
        if name == "_pre_quant_scale":
            return [] if self.sizes is None else [self.sizes[-1:], ()]
        axis = self.state()["axis"]
        if name in ENDS or axis is None:
            return [()]
        if self.sizes is None or len(self.sizes) < 2:
            return []
        reduced = reduced_axes(axis, len(self.sizes)) or []
        return [tuple(1 if i in reduced else size for i, size in enumerate(self.sizes)), ()]

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        found = local_metadata.get(_STATE)
        if found is not None:
            state = {name.removeprefix("_"): value for name, value in found.items()}
            self.restore({**self.state(), **state, "learn_amax": False})
        names = (name for name in (*BUFFERS, *ENDS) if prefix + name in state_dict)
        stored = {name: state_dict[prefix + name] for name in names}
        problems = self.problems_of(stored)
        error_msgs += [
            wrong_range(prefix + name, problem, "the state dict")
            for name, problem in problems.items()
        ]
        if problems:
            return
        for buffer in BUFFERS:
            if buffer in stored and getattr(self, buffer, None) is None:
                empty = torch.empty_like(stored[buffer], device=self._device(stored[buffer]))
                self.register_buffer(buffer, empty)
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def _device(self, stored: Tensor) -> torch.device:
        return stored.device

    def extra_repr(self) -> str:
        """Show the spec, the range and its changes in training."""
        if not self._is_enabled:
            return "float"
        known = self.amax if self.is_symmetric else self.range
        words = [str(self._spec), "uncalibrated" if known is None else short_range(known)]
        words += ["pre_quant_scale"] if self.pre_quant_scale is not None else []
        words += ["learned"] if self.is_learned else []
        words += [] if self.moving is None else [f"moving={self.moving}"]
        return ", ".join(words)


def short_range(ends: Tensor) -> str:
    """Return the lowest and highest of some values, or the only one, with four decimals."""
    values = ends.detach().float().cpu().numpy()
    if values.size == 1:
        return f"{values.item():.4f}"
    return f"[{np.min(values):.4f}, {np.max(values):.4f}]"


def uncalibrated_export(where: str) -> UncalibratedError:
    """Return the error of an export that meets a quantizer without a range."""
    return UncalibratedError(
        "Quantizer has not been calibrated. ONNX export requires the quantizer to be "
        "calibrated. Calibrate and load amax before exporting to ONNX, or disable() it."
        f"{where}"
    )
