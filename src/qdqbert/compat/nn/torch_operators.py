"""torch's own fake quantization, for the toolkit's `use_fb_fake_quant`."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from qdqbert.calibration.quantizers.export import quiet_tracer
from qdqbert.quantization.numerics.affine import widened
from qdqbert.quantization.numerics.fake_quantization import Axis, Codes


def torch_fake_quantize(inputs: Tensor, amax: Tensor, codes: Codes, axis: int | None) -> Tensor:
    """Quantize and dequantize with torch's own operators."""
    real = widened(inputs)
    scale = (widened(amax) / codes.qmax).clamp_min(torch.finfo(torch.float32).tiny)
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


def varying_axis(kept: Axis, dims: int, amax: Tensor, where: str) -> int | None:
    """Return the one axis along which a range varies. `None` if it has one value.

    `kept` are the axes that keep one range per index, and `where` is the end of the error's
    message.

    Raises:
        TypeError: The range varies along several axes.
    """
    with quiet_tracer():
        sizes = [int(size) for size in amax.shape]
    if kept is None or math.prod(sizes) == 1:
        return None
    axes = (kept,) if isinstance(kept, int) else kept
    varying = [axis % dims for axis in axes]
    if len(varying) > 1:
        varying = [axis for axis in varying if sizes[axis] > 1]
    if len(varying) > 1:
        raise TypeError(
            "Pytorch's native quantization doesn't support multiple axes, nor does ONNX's: "
            f"axis={kept}.{where}"
        )
    return varying[0]
