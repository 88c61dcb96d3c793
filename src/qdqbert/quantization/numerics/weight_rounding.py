"""Round weights to minimize the error of the layer's outputs, as GPTQ does.

Rounding each weight to the nearest code minimizes the errors of the weights. But the outputs of the
layer count. Its inputs are correlated, so the errors of some weights can cancel the errors of
others. With `D = W - W'`, the mean squared error of the outputs is `tr(D H D^T)`, where `H` are the
second moments of the input around its mean. The mean itself does not count, since the bias takes it
back; see `affine.rounding_shift`.

Each weight becomes one of the two codes next to it, which one bit stores. Columns are rounded one
after another. Each is moved first, to compensate the errors of the columns before it best:

    H = U diag(d) U^T                       U is upper triangular with ones on its diagonal
    tr(D H D^T) = sum_k d_k |(D U)_k|^2     column k depends on the errors of columns 0 .. k only
    W'_k = round(W_k + sum_(j < k) D_j U_jk)

Source: GPTQ, Frantar et al. 2022, arXiv:2210.17323, in the form of LDLQ, Chee et al. 2023,
arXiv:2307.13304, which is equal and inverts no matrix.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from qdqbert.quantization.numerics.affine import (
    adjacent_codes,
    clipped,
    quantize,
    weight_parameters,
)
from qdqbert.quantization.numerics.threads import one_torch_thread
from qdqbert.quantization.spec import TensorSpec, input_site_of

Roundings = Mapping[tuple[str, TensorSpec], Tensor]
"""How weights are rounded, by the name of their site and their spec. See `pack`."""

# Added to the diagonal of the moments, as a share of its mean, as in GPTQ. Directions in which the
# calibration data hardly varies are not free to take all errors.
_DAMPING = 0.01
# Columns between two matrix products. Even, so that adjacent codes are in the same block.
_BLOCK = 64
# Columns of a triangular matrix that are multiplied at a time.
_COLUMNS = 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class UnroundedWeight:
    """A weight and the codes that it can have.

    Attributes:
        weight: The weight of a linear layer, `(out, in)`.
        amax: Its range, `()` or `(out,)`, if it does not use its own; see `weight_parameters`.
    """

    weight: Tensor
    spec: TensorSpec
    amax: Tensor | None = None


def choose_rounding(weights: Sequence[UnroundedWeight], moments: Tensor) -> list[Tensor]:
    """Choose the weights to round up, for linear layers with the same input.

    The error `d H d^T` of a row is never larger than with the nearest codes.

    `moments` are second moments of the input around its mean, up to a factor: `(in, in)`, symmetric
    and positive semidefinite.

    Returns:
        For each weight, `(out, in)` of booleans: whether a weight becomes the higher one of the two
        codes next to it. `affine.quantize_weight` makes codes of them.
    """
    # One column of all weights at a time, in memory one row.
    parts = [_candidates(each) for each in weights]
    values, lower, upper, nearest = (torch.cat(each, dim=1) for each in zip(*parts, strict=True))
    limits = torch.cat([_limits(each) for each in weights]).to(values.device)
    factor, variances, damping = (each.to(values) for each in _factors(moments))
    # Thousands of products of one column each, which take longer on several threads.
    with one_torch_thread():
        codes = _rounded(values, lower, upper, limits, factor)
    chosen, plain = (
        _errors(values - each, factor, variances, damping) for each in (codes, nearest)
    )
    codes = torch.where(chosen > plain, nearest, codes)
    rounds_up = (codes != lower).T.contiguous()
    return list(torch.split(rounds_up, [len(each.weight) for each in weights]))


def pack(rounds_up: Tensor) -> Tensor:
    """Return booleans `(out, in)` as bits, uint8 `(out, ceil(in / 8))`, the first one highest."""
    return torch.from_numpy(np.packbits(rounds_up.cpu().numpy(), axis=1))


def rounding_of(
    roundings: Roundings | None, name: str, width: int, specs: Mapping[str, TensorSpec | None]
) -> Tensor | None:
    """Return whether each value of a weight is rounded up; `None` rounds to the nearest code.

    The weight has `width` inputs. One whose input is left in float is rounded to the nearest code,
    because the rounding was chosen for the quantized and smoothed input.
    """
    spec = specs[name]
    if not roundings or spec is None or specs.get(input_site_of(name)) is None:
        return None
    bits = roundings.get((name, spec))
    if bits is None:
        return None
    return torch.from_numpy(np.unpackbits(bits.numpy(), axis=1, count=width)).bool()


def _candidates(each: UnroundedWeight) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return a weight in steps, the codes below and above it, and the nearest; each `(in, out)`."""
    weight = clipped(each.weight.detach().to(torch.float32), each.amax, each.spec.axis)
    parameters = weight_parameters(weight, each.spec, amax=each.amax)
    scale = parameters.scale if each.spec.axis is None else parameters.scale[:, None]
    below, above = adjacent_codes(weight, parameters, each.spec)
    tensors = (weight / scale, below, above, quantize(weight, parameters, each.spec))
    steps, below, above, nearest = (tensor.T.contiguous() for tensor in tensors)
    return steps, below, above, nearest


def _limits(each: UnroundedWeight) -> Tensor:
    limit = each.spec.adjacent_sum_limit
    # No sum of two codes of 8 bits reaches 256.
    return torch.full((len(each.weight),), 256.0 if limit is None else float(limit))


def _factors(moments: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the upper triangular `U` and `d` with `H = U diag(d) U^T`, and the damping of `H`."""
    damping = _DAMPING * moments.diagonal().mean()
    if damping <= 0:
        # The input is constant, and no error counts.
        return torch.eye(len(moments)), torch.zeros(len(moments)), torch.zeros(())
    # Cholesky's factor of the reversed matrix is lower triangular, so this one is upper triangular.
    # In place, since new memory takes as long as the arithmetic.
    factor = moments.double().flip(0, 1)
    factor.diagonal().add_(damping)
    factor = torch.linalg.cholesky(factor).flip(0, 1)
    diagonal = factor.diagonal().clone()
    return factor.div_(diagonal), diagonal.square(), damping


def _rounded(
    values: Tensor, lower: Tensor, upper: Tensor, limits: Tensor, factor: Tensor
) -> Tensor:
    """Return codes between `lower` and `upper`; all are `(in, out)`."""
    errors, codes = torch.empty_like(values), torch.empty_like(values)
    for start in range(0, len(values), _BLOCK):
        stop = min(start + _BLOCK, len(values))
        # The values, compensated for the errors of earlier blocks.
        wanted = torch.addmm(values[start:stop], factor[:start, start:stop].T, errors[:start])
        for i in range(start, stop):
            column = torch.addmv(wanted[i - start], errors[start:i].T, factor[start:i, i])
            low, high = lower[i], upper[i]
            if i % 2:
                low = torch.maximum(low, -limits - codes[i - 1])
                high = torch.minimum(high, limits - codes[i - 1])
            codes[i] = torch.minimum(torch.maximum(column.round(), low), high)
            errors[i] = values[i] - codes[i]
    return codes


def _errors(errors: Tensor, factor: Tensor, variances: Tensor, damping: Tensor) -> Tensor:
    """Return `d H d^T` of the errors of each output, `(in, out)` to `(out,)`.

    It is `sum_k d_k |(D U)_k|^2` without the damping of `H`.
    """
    total = -damping * errors.square().sum(dim=0)
    for start in range(0, len(errors), _COLUMNS):
        stop = min(start + _COLUMNS, len(errors))
        left = factor[:stop, start:stop].T @ errors[:stop]
        total += variances[start:stop] @ left.square_()
    return total
