"""Nodes that quantizers leave in a graph that is being exported.

Both exporters of `torch.onnx.export` are served: dynamo's by `torch.onnx.ops.symbolic`,
TorchScript's by an autograd function with a `symbolic`.
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

from qdqbert.numerics.affine import widened
from qdqbert.numerics.fake_quantization import DEAD_AMAX, E4M3_MAX

PER_CHANNEL_OPSET = 13
"""First opset whose QuantizeLinear has an axis."""

CODE_TYPES = {True: torch.uint8, False: torch.int8}


def is_exporting() -> bool:
    """Whether a call is being turned into an ONNX graph."""
    # When a first attempt fails, torch tries again in a way that takes its own function for False;
    # a refusal of ours would then become a graph without Q/DQ.
    return torch.onnx.is_in_onnx_export() or _flags._is_onnx_exporting


def is_tracing() -> bool:
    """Whether TorchScript's tracer records, as opposed to dynamo's."""
    return torch._C._get_tracing_state() is not None


def mark(x: Tensor, name: str) -> Tensor:
    """Passes `x` on; in an exported graph, a `qdqbert::Site` node stands there and tells the name.

    Only for use under `torch.onnx.export(dynamo=True)`.
    """
    marked = torch.onnx.ops.symbolic(
        "qdqbert::Site", (x,), {"site": name}, dtype=x.dtype, shape=x.shape, version=1
    )
    assert isinstance(marked, Tensor)
    return marked


@contextlib.contextmanager
def on_real_tensors() -> Iterator[None]:
    """Computes now, on values, though a call is being exported."""
    with _disable_current_modes(), torch.no_grad(), quiet_tracer():
        yield


@contextlib.contextmanager
def quiet_tracer() -> Iterator[None]:
    """Where values are meant to become constants, TorchScript's tracer need not warn of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TracerWarning)
        yield


def quantize_dequantize(
    x: Tensor,
    amax: Tensor,
    *,
    qmin: int,
    qmax: int,
    unsigned: bool,
    axis: int | None,
    clip: bool,
) -> Tensor:
    """`DequantizeLinear(QuantizeLinear(x))`, in float32 whatever the dtype of `x`.

    Scales of half precision need opset 19, so half precisions are cast and cast back.

    Args:
        x: Any shape.
        amax: Largest magnitude of the codes, with one value or one per index of `axis`.
        qmin: Lowest code.
        qmax: Highest code.
        unsigned: uint8 codes instead of int8.
        axis: Axis of the scales; `None` for one scale.
        clip: Clip to what `qmin` and `qmax` stand for first, since QuantizeLinear keeps to the
            limits of its type: for fewer than 8 bits, or a narrow range that can be exceeded.
    """
    real = widened(x)
    bound = widened(amax.detach())
    # A dead range becomes a step so small that all of it is 0 but for 6e-8, and still readable.
    scale = bound.clamp_min(DEAD_AMAX) / qmax
    scale = scale.reshape(()) if axis is None else scale.reshape(-1)
    if clip:
        real = _clipped(real, scale * qmin, scale * qmax, axis)
    zero_point = torch.zeros(scale.shape, dtype=CODE_TYPES[unsigned])
    return _pair(real, scale, zero_point, axis, x.dtype)


def _clipped(x: Tensor, low: Tensor, high: Tensor, axis: int | None) -> Tensor:
    if axis is None and not is_tracing():
        # Torch's exporter names the ends after `x`, and several quantizers can read one tensor.
        clipped = torch.onnx.ops.symbolic("Clip", (x, low, high), dtype=x.dtype, shape=x.shape)
        assert isinstance(clipped, Tensor)
        return clipped
    along = [] if axis is None else [1] * axis + [-1] + [1] * (x.dim() - axis - 1)
    return torch.minimum(torch.maximum(x, low.reshape(along)), high.reshape(along))


def quantize_dequantize_e4m3(x: Tensor, scale: Tensor) -> Tensor:
    """The same with float8 codes. `scale` has one value: `amax / 448`.

    Dynamo's graph has ONNX's own nodes, of opset 19; TorchScript's, which knows no float8, has
    TensorRT's `trt::TRT_FP8QuantizeLinear`, as upstream.
    """
    limit = widened(scale.detach()).reshape(())
    return _pair(widened(x), limit, torch.zeros((), dtype=torch.float8_e4m3fn), None, x.dtype)


def _pair(
    x: Tensor, scale: Tensor, zero_point: Tensor, axis: int | None, dtype: torch.dtype
) -> Tensor:
    if is_tracing():
        # The tracer would record how the scale came about; engines want it constant.
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
    """The pair for the TorchScript exporter, which asks `symbolic` for nodes."""

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
