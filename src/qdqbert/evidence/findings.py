"""Find what is wrong with the way a quantized .onnx file stores its weights.

Almost everything is computed from the file: a code is off by up to half a step, whose square is
1/12 of a step's on average, so that codes alone tell how much noise rounding adds. Inputs of the
layers, if there are some, tell what is cut off.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qdqbert.evidence.saturation import overflow_percent
from qdqbert.evidence.stored_weights import StoredInput, StoredWeight, StoredWeights
from qdqbert.quantization.spec import SAFE_ADJACENT_SUM_LIMIT

FindingKind = Literal[
    "clipped weights",
    "clipped inputs",
    "saturating sums",
    "one scale per tensor",
    "zero points of weights",
    "few bits",
    "inputs in float",
    "layers in float",
    "attention products in INT8",
    "tables in float",
]

# Below these, a finding would only distract: dB of noise, % of codes, % of weights, and % of all
# bytes.
_WORTH_DB = 3.0
_WORTH_CLIPPED = 1.0
_WORTH_FLOAT = 5.0
_WORTH_TABLE = 10.0
# With fewer codes in use, many values are at the ends, and with fewer values, a few are many.
_FEWEST_CODES = 64
_FEWEST_CLIPPED = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong, over all layers that have it.

    Attributes:
        kind: Its kind.
        count: Number of layers, tables or products that have it.
        total: Number of them in the graph.
        worst: Name of the one that has most of it.
        amount: How much of it that one has. `clipped weights`: share of its codes at the ends, %.
            `clipped inputs`: share of its inputs that are beyond the range of the codes, %.
            `saturating sums`: share of the pairs of adjacent codes whose products can exceed 16
            bits, %. `one scale per tensor`: dB of SQNR that a scale per channel would add.
            `zero points of weights`: distance of its zero point to the middle, in codes.
            `few bits`: SQNR of the rounded weight, dB. `inputs in float` and `layers in float`:
            share of the weights of all linear layers that these layers have, %. `tables in float`:
            bytes of all of them. `None` for `attention products in INT8`.
        seen_percent: Largest share of the sums of a layer that exceeded 16 bits on the texts of the
            call, %. `None` for other findings than `saturating sums`, and without texts.
    """

    kind: FindingKind
    count: int
    total: int
    worst: str
    amount: float | None
    seen_percent: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Storage:
    """How a quantized graph stores its weights.

    Attributes:
        linear_layers: Number of its linear layers.
        int8_percent: Share of the weights of its linear layers that are stored in 8 bits or
            fewer, %.
        findings: The faults.
    """

    linear_layers: int
    int8_percent: float
    findings: tuple[Finding, ...]


def find_faults(
    weights: StoredWeights, inputs: Mapping[str, NDArray[np.float32]] | None = None
) -> Storage | None:
    """Return how a graph stores its weights, and what is wrong; `None` for a float graph.

    `inputs` are those of linear layers that were recorded, `(tokens, in)`, by the name of the
    value.
    """
    inputs = inputs or {}
    if not weights.are_quantized:
        return None
    linears = weights.linears
    stored = [each for each in linears if not each.is_float]
    in_float = [each for each in linears if each.is_float]
    total = sum(each.size for each in linears)
    measures = [
        _measure(each, None if each.input is None else inputs.get(each.input.name))
        for each in stored
    ]
    findings = [
        _worst("clipped weights", linears, stored, [each.clipped for each in measures]),
        _worst("clipped inputs", linears, stored, [each.clipped_inputs for each in measures]),
        _saturation(linears, stored, measures),
        _worst("one scale per tensor", linears, stored, [each.gain_db for each in measures]),
        _worst("zero points of weights", linears, stored, [each.offset for each in measures]),
        _worst("few bits", linears, stored, [each.few_bits_db for each in measures], sign=-1),
        _share("inputs in float", linears, [each for each in stored if not each.reads_codes]),
        _share("layers in float", linears, in_float),
    ]
    if weights.products_in_int8:
        findings.append(
            Finding(
                kind="attention products in INT8",
                count=len(weights.products_in_int8),
                total=len(weights.products),
                worst=weights.products_in_int8[0],
                amount=None,
            )
        )
    tables = [each for each in weights.tables if each.is_float]
    table_bytes = sum(each.size * each.bits // 8 for each in tables)
    if 100 * table_bytes >= _WORTH_TABLE * weights.size_bytes:
        largest = max(tables, key=lambda each: each.size)
        findings.append(
            Finding(
                kind="tables in float",
                count=len(tables),
                total=len(weights.tables),
                worst=largest.name,
                amount=float(table_bytes),
            )
        )
    return Storage(
        linear_layers=len(linears),
        int8_percent=100 * sum(each.size for each in stored) / max(total, 1),
        findings=tuple(each for each in findings if each is not None),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Measures:
    """Faults of one weight. `None` for a fault that it does not have."""

    clipped: float | None
    clipped_inputs: float | None
    seen: float | None
    saturating: float | None
    gain_db: float | None
    offset: float | None
    few_bits_db: float | None


def _measure(weight: StoredWeight, inputs: NDArray[np.float32] | None) -> _Measures:
    assert weight.load is not None
    raw, zero = weight.load()
    codes = raw - zero
    is_8_bit = weight.bits == 8
    middle = 0 if weight.is_signed else 2 ** (weight.bits - 1)
    offset = float(np.abs(zero - np.int16(middle)).max(initial=0))
    clipped = _clipped(codes, per_channel=weight.scales == "channel") if is_8_bit else 0.0
    can_saturate = is_8_bit and weight.is_signed and weight.reads_codes
    saturating = _saturating(raw) if can_saturate else 0.0
    clipped_inputs, seen = 0.0, None
    if inputs is not None and weight.input is not None:
        x, clipped_inputs = _input_codes(inputs, weight.input)
        seen = overflow_percent(x, torch.from_numpy(raw.T.copy())) if saturating else None
    gain = _gain_db(codes) if weight.scales == "tensor" else 0.0
    return _Measures(
        clipped=clipped if clipped >= _WORTH_CLIPPED else None,
        clipped_inputs=clipped_inputs if clipped_inputs >= _WORTH_CLIPPED else None,
        seen=seen,
        saturating=saturating or None,
        gain_db=gain if gain >= _WORTH_DB else None,
        offset=offset or None,
        few_bits_db=_rounding_db(codes) if weight.bits < 8 else None,
    )


def _input_codes(inputs: NDArray[np.float32], stored: StoredInput) -> tuple[Tensor, float]:
    """Return unsigned codes of inputs, and the share of the inputs beyond their range, %."""
    low, high = (-128, 127) if stored.is_signed else (0, 255)
    scale, zero = stored.scale, float(stored.zero)
    if scale is None:
        # As DynamicQuantizeLinear does.
        least, most = min(float(inputs.min()), 0.0), max(float(inputs.max()), 0.0)
        scale = (most - least) / 255 or 1.0
        zero = float(np.clip(np.rint(-least / scale), 0, 255))
    codes = np.rint(inputs / np.float32(scale)) + zero
    beyond = 100 * float(((codes < low) | (codes > high)).mean())
    kept = np.clip(codes, low, high).astype(np.int16) - low
    return torch.from_numpy(kept), beyond if stored.scale is not None else 0.0


def _saturation(
    linears: Sequence[StoredWeight], stored: Sequence[StoredWeight], measures: Sequence[_Measures]
) -> Finding | None:
    """Return a finding about sums that can exceed 16 bits, and how many of them did."""
    found = _worst("saturating sums", linears, stored, [each.saturating for each in measures])
    seen = [each.seen for each in measures if each.seen is not None]
    if found is None or not seen:
        return found
    return dataclasses.replace(found, seen_percent=max(seen))


def _clipped(codes: np.ndarray, *, per_channel: bool) -> float:
    """Return the share of codes at the ends, %, without the two that set the range."""
    axis = 0 if per_channel else None
    low, high = (pick(codes, axis=axis, keepdims=True) for pick in (np.min, np.max))
    at_ends = np.asarray(((codes == low) | (codes == high)).sum(axis=axis))
    beyond = np.maximum(at_ends - 2, 0) * ((high - low).reshape(at_ends.shape) >= _FEWEST_CODES)
    return 100 * float(beyond.sum()) / codes.size if beyond.sum() >= _FEWEST_CLIPPED else 0.0


def _saturating(raw: np.ndarray) -> float:
    """Return the share of pairs of adjacent codes that inputs can make exceed 16 bits, %.

    Inputs are unsigned: the largest sum has 255 wherever a code is positive, and 0 elsewhere.
    """
    pairs = raw[: len(raw) // 2 * 2].reshape(-1, 2, raw.shape[1])
    above, below = np.maximum(pairs, 0).sum(axis=1), np.maximum(-pairs, 0).sum(axis=1)
    beyond = np.maximum(above, below) > SAFE_ADJACENT_SUM_LIMIT
    return 100 * float(beyond.mean()) if beyond.size else 0.0


def _gain_db(codes: np.ndarray) -> float:
    """Return how much less noise one scale for each channel would have than one for all, dB."""
    largest = np.abs(codes).max(axis=0).astype(np.float64)
    noise = float((largest**2).mean())
    return 10 * math.log10(float(largest.max()) ** 2 / noise) if noise else 0.0


def _rounding_db(codes: np.ndarray) -> float:
    """Return the SQNR of a weight whose values were rounded to the nearest codes, dB."""
    power = float((codes.astype(np.float64) ** 2).mean())
    return 10 * math.log10(12 * power) if power else 0.0


def _worst(
    kind: FindingKind,
    linears: Sequence[StoredWeight],
    stored: Sequence[StoredWeight],
    amounts: Sequence[float | None],
    *,
    sign: int = 1,
) -> Finding | None:
    """Return a finding about the layers with an amount, the largest of which is the worst."""
    found = [(each, value) for each, value in zip(stored, amounts, strict=True) if value]
    if not found:
        return None
    worst, amount = max(found, key=lambda pair: sign * pair[1])
    return Finding(kind=kind, count=len(found), total=len(linears), worst=worst.name, amount=amount)


def _share(
    kind: FindingKind, linears: Sequence[StoredWeight], found: Sequence[StoredWeight]
) -> Finding | None:
    """Return a finding about layers that have a share of all weights worth naming."""
    share = 100 * sum(each.size for each in found) / max(sum(each.size for each in linears), 1)
    if share < _WORTH_FLOAT:
        return None
    largest = max(found, key=lambda each: each.size)
    return Finding(
        kind=kind, count=len(found), total=len(linears), worst=largest.name, amount=share
    )
