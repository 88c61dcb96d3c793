"""Nodes that quantizers write into a graph that is being exported.

Both exporters of `torch.onnx.export` are supported: dynamo's through `torch.onnx.ops.symbolic`,
TorchScript's through an autograd function with a `symbolic` method.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.jit._trace import TracerWarning
from torch.onnx._internal.exporter import _flags
from torch.utils._python_dispatch import _disable_current_modes

from qdqbert.quantization.numerics.affine import widened
from qdqbert.quantization.numerics.fake_quantization import E4M3_MAX
from qdqbert.quantization.spec import DEAD_AMAX

PER_CHANNEL_OPSET = 13
"""First opset whose QuantizeLinear has an axis."""

CODE_TYPES = {True: torch.uint8, False: torch.int8}


def is_exporting() -> bool:
    """Return whether the current call is being exported to ONNX."""
    # When torch's first attempt fails, `is_in_onnx_export` is False in the second one. A quantizer
    # that refused to be exported would then become a graph without Q/DQ nodes.
    return torch.onnx.is_in_onnx_export() or _flags._is_onnx_exporting


def is_tracing() -> bool:
    """Return whether TorchScript's tracer is recording, as opposed to dynamo's."""
    return torch._C._get_tracing_state() is not None


@contextlib.contextmanager
def on_real_tensors() -> Iterator[None]:
    """Compute with real values inside an export."""
    with _disable_current_modes(), torch.no_grad(), quiet_tracer():
        yield


@contextlib.contextmanager
def quiet_tracer() -> Iterator[None]:
    """Silence TorchScript's tracer where values shall become constants."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TracerWarning)
        yield


def quantize_dequantize(
    x: Tensor, amax: Tensor, *, qmin: int, qmax: int, unsigned: bool, axis: int | None, clip: bool
) -> Tensor:
    """Write `DequantizeLinear(QuantizeLinear(x))` in float32.

    Scales in half precision need opset 19, so a tensor in half precision is cast to float32 and
    back.

    Args:
        x: Any shape.
        amax: Largest magnitude to cover: one value, or one per index of `axis`.
        qmin: Lowest code.
        qmax: Highest code.
        unsigned: Use uint8 codes instead of int8.
        axis: Axis of the scales. `None` for one scale.
        clip: First clip to the values of `qmin` and `qmax`. QuantizeLinear only saturates at the
            limits of its type, so fewer than 8 bits or a narrow range need this.
    """
    real = widened(x)
    bound = widened(amax.detach())
    # A range of 0 gets a step so small that all values become 0 to within 6e-8.
    scale = bound.clamp_min(DEAD_AMAX) / qmax
    scale = scale.reshape(()) if axis is None else scale.reshape(-1)
    if clip:
        real = _clipped(real, scale * qmin, scale * qmax, axis)
    zero_point = torch.zeros(scale.shape, dtype=CODE_TYPES[unsigned])
    return _pair(real, scale, zero_point, axis, x.dtype)


def _clipped(x: Tensor, low: Tensor, high: Tensor, axis: int | None) -> Tensor:
    if axis is None and not is_tracing():
        # torch's exporter names the ends after `x`, but several quantizers can read one tensor.
        clipped = torch.onnx.ops.symbolic("Clip", (x, low, high), dtype=x.dtype, shape=x.shape)
        assert isinstance(clipped, Tensor)
        return clipped
    along = [] if axis is None else [1] * axis + [-1] + [1] * (x.dim() - axis - 1)
    return torch.minimum(torch.maximum(x, low.reshape(along)), high.reshape(along))


def quantize_dequantize_e4m3(x: Tensor, scale: Tensor) -> Tensor:
    """Write the same nodes with float8 codes. `scale` has one value: `amax / 448`.

    Dynamo's graph has ONNX's own nodes, of opset 19. TorchScript's exporter does not support
    float8, so its graph has TensorRT's `trt::TRT_FP8QuantizeLinear`, as upstream.
    """
    limit = widened(scale.detach()).reshape(())
    return _pair(widened(x), limit, torch.zeros((), dtype=torch.float8_e4m3fn), None, x.dtype)


def _pair(
    x: Tensor, scale: Tensor, zero_point: Tensor, axis: int | None, dtype: torch.dtype
) -> Tensor:
    if is_tracing():
        # The tracer would record how the scale was computed, but engines need a constant.
        with quiet_tracer():
            constants = scale.cpu().numpy(), zero_point.dtype
        reals = _TorchScriptPair.apply(x, *constants, axis)  # type: ignore[no-untyped-call]
    else:
        attributes: dict[str, Any] = {} if axis is None else {"axis": axis}
        codes = torch.onnx.ops.symbolic(
            "QuantizeLinear",
            (x, scale, zero_point),
            attributes,
            dtype=zero_point.dtype,
            shape=x.shape,
        )
        reals = torch.onnx.ops.symbolic(
            "DequantizeLinear", (codes, scale, zero_point), attributes, dtype=x.dtype, shape=x.shape
        )
    assert isinstance(reals, Tensor)
    return reals if reals.dtype == dtype else reals.to(dtype)


class _TorchScriptPair(torch.autograd.Function):
    """The Q/DQ pair for TorchScript's exporter, which calls `symbolic` for nodes."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, scale: NDArray[Any], kind: torch.dtype, axis: int | None
    ) -> Tensor:
        del ctx
        with quiet_tracer():
            step = torch.from_numpy(scale).to(x.device)
        if axis is not None:
            step = step.view([-1] + [1] * (x.dim() - axis - 1))
        if kind == torch.float8_e4m3fn:
            return (x / step).clamp(-E4M3_MAX, E4M3_MAX).to(kind).to(x.dtype) * step
        limits = torch.iinfo(kind)
        return torch.round(x / step).clamp(limits.min, limits.max) * step

    @staticmethod
    def symbolic(g: Any, x: Any, scale: NDArray[Any], kind: torch.dtype, axis: int | None) -> Any:
        step = g.op("Constant", value_t=torch.from_numpy(scale))
        if kind == torch.float8_e4m3fn:
            codes = g.op("trt::TRT_FP8QuantizeLinear", x, step)
            codes.setType(x.type().with_dtype(torch.uint8))
            return g.op("trt::TRT_FP8DequantizeLinear", codes, step).setType(x.type())
        zero_point = g.op("Constant", value_t=torch.zeros(scale.shape, dtype=kind))
        if axis is not None and g.opset < PER_CHANNEL_OPSET:
            raise ValueError(
                f"Per-channel Q/DQ needs opset_version >= {PER_CHANNEL_OPSET}, got {g.opset}. "
                "Export with a newer one, or quantize weights per tensor."
            )
        attributes = {} if axis is None else {"axis_i": axis}
        codes = g.op("QuantizeLinear", x, step, zero_point, **attributes)
        return g.op("DequantizeLinear", codes, step, zero_point, **attributes).setType(x.type())
