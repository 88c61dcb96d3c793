"""The settings of a toolkit quantizer: the terms of a descriptor, and switches."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from qdqbert.calibration.quantizers.clip import Clip
from qdqbert.calibration.quantizers.quantizer import Quantizer
from qdqbert.compat.calibrators import Calibrator
from qdqbert.compat.tensor_quant import E4M3, NumBits, codes_of
from qdqbert.encoders.stored import BUFFERS, STATE_DEFAULTS, spec_of
from qdqbert.quantization.numerics.affine import reduce_amax
from qdqbert.quantization.numerics.fake_quantization import E4M3_MAX, Axis, Codes, reduced_axes
from qdqbert.quantization.spec import Range, TensorSpec

_LOG = logging.getLogger(__name__)

# Attributes that are stored, and their names in a stored state.
_FLAGS = (*(name for name in STATE_DEFAULTS if name != "learn_amax"), "axis")


class DescribedQuantizer(Quantizer):
    """A quantizer with the terms of a `QuantDescriptor` in place of a `TensorSpec`.

    They are wider than a `TensorSpec`: any number of bits, several axes, E4M3, codes that are not
    turned back into reals.
    """

    _num_bits: NumBits
    _axis: Axis
    _fake_quant: bool
    _unsigned: bool
    _narrow_range: bool
    _symmetric: bool
    _scale_amax: float | None
    _scale: Tensor | float | None
    _disabled: bool
    _if_quant: bool
    _if_clip: bool
    _if_calib: bool
    _calibrator: Calibrator | None
    _source: tuple[nn.Parameter] | None

    @property
    def num_bits(self) -> NumBits:
        """Width of the codes. `(4, 3)` is E4M3."""
        return self._num_bits

    @num_bits.setter
    def num_bits(self, value: NumBits) -> None:
        self._num_bits = value
        self._sync_calibrator()

    @property
    def unsigned(self) -> bool:
        """Whether codes start at 0."""
        return self._unsigned

    @unsigned.setter
    def unsigned(self, value: bool) -> None:
        self._unsigned = value
        self._sync_calibrator()

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
        """Whether codes are turned back into reals."""
        return self._fake_quant

    @property
    def symmetric(self) -> bool:
        """Whether codes are symmetric around zero, as all codes of the toolkit are."""
        return self._symmetric

    @symmetric.setter
    def symmetric(self, value: bool) -> None:
        self._symmetric = value

    @property
    def maxbound(self) -> float:
        """The code that `amax` becomes: the highest one, 448 for E4M3."""
        return E4M3_MAX if self._num_bits == E4M3 else self._codes.qmax

    @property
    def step_size(self) -> Tensor | None:
        """Real value of one step: `amax / maxbound`. `None` while the range is dynamic."""
        amax = self.amax
        if amax is None:
            _LOG.error("step_size is undefined under dynamic amax mode!")
            return None
        return amax / self.maxbound

    @property
    def scale(self) -> Tensor | float | None:
        """The factor of the last real quantization: `qmax / amax`."""
        if self._fake_quant:
            _LOG.error("Fake quantize mode doesn't use scale explicitly!")
        if self._scale is None:
            _LOG.critical("Accessing scale before quantizing any tensor!")
        return self._scale

    @property
    def amax(self) -> Tensor | None:
        """The range: a scalar, or a shape that broadcasts along `axis`. `None` while dynamic."""
        return getattr(self, "_amax", None)

    @amax.setter
    def amax(self, value: Tensor | NDArray[Any] | float | None) -> None:
        if value is None:
            _LOG.error("Setting amax no None is meaningless.")
            return
        self._set("_amax", value)

    # The interface of `Quantizer`

    @property
    def spec(self) -> TensorSpec | None:
        """How the tensor is quantized. `None` if it is not.

        Raises:
            SpecError: No `TensorSpec` describes it.
        """
        return spec_of(self.state())

    @property
    def is_enabled(self) -> bool:
        """Whether the quantizer is not bypassed."""
        return not self._disabled

    @property
    def is_symmetric(self) -> bool:
        """Whether the range is `amax`."""
        return self._symmetric

    def _used_amax(self) -> Tensor | None:
        known = super()._used_amax()
        return known if known is None or self._scale_amax is None else known * self._scale_amax

    def configure(self, spec: TensorSpec | None) -> None:
        """Change how the tensor is quantized. A range that no longer fits is dropped."""
        if spec is None:
            self._disabled = True
            return
        self._disabled = False
        if (self._symmetric, self._axis) != (spec.symmetric, spec.axis):
            self.forget_range()
        self._num_bits, self._axis = spec.bits, spec.axis
        self._symmetric, self._narrow_range = spec.symmetric, spec.narrow
        self._unsigned = spec.symmetric and not spec.signed
        self._sync_calibrator()

    def set_precision(self, bits: int, axis: int | None) -> None:
        """Quantize, with other bits and another axis than before."""
        self._disabled = False
        if self._axis != axis:
            self.forget_range()
        self._num_bits, self._axis = bits, axis
        self._sync_calibrator()

    def set_range(self, chosen: Tensor | Range) -> None:
        """Replace the range and quantize with it from now on."""
        super().set_range(chosen)
        self._if_quant, self._if_calib = True, False

    def own_amax(self, inputs: Tensor) -> Tensor:
        """Return the largest magnitude of a tensor, in the shape of `amax`."""
        return reduce_amax(inputs.detach(), axis=reduced_axes(self._axis, inputs.dim()))

    @property
    def _codes(self) -> Codes:
        if not isinstance(self._num_bits, int):
            raise TypeError(f"E4M3 has no integer codes.{self._where()}")
        return codes_of(self._num_bits, self._unsigned, self._narrow_range)

    def _sync_calibrator(self) -> None:
        """Pass changed bits, sign and axis on to the calibrator."""
        if isinstance(self._calibrator, Calibrator):
            self._calibrator.describe(self._num_bits, self._axis, self._unsigned)

    # Stored state

    def state(self) -> dict[str, Any]:
        """Return the settings that a checkpoint stores besides tensors, as plain values by name."""
        stored = {name: getattr(self, name if name == "moving" else f"_{name}") for name in _FLAGS}
        return {**stored, "learn_amax": self.is_learned}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take the settings of a stored state. Ranges are loaded later."""
        for name in _FLAGS:
            if name in state:
                value = state[name]
                value = tuple(value) if isinstance(value, list) else value
                setattr(self, name if name == "moving" else f"_{name}", value)
        self._if_calib = bool(state.get("if_calib", self._if_calib))
        self._sync_calibrator()
        if state.get("learn_amax"):
            self.clip = Clip(-1.0, 1.0, learn_min=True, learn_max=True)

    def _stored_metadata(self) -> dict[str, Any]:
        return {**super()._stored_metadata(), "_if_calib": self._if_calib}

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: Any, *args: Any, **kwargs: Any
    ) -> None:
        for buffer in BUFFERS:
            if getattr(self, buffer, None) is not None and prefix + buffer not in state_dict:
                _LOG.error("%s: No %s in state_dict.", prefix[:-1], buffer[1:])
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args, **kwargs)

    def _device(self, stored: Tensor) -> torch.device:
        return self._source[0].device if self._source is not None else stored.device
