"""Describe the faults of a quantized model file in words."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

from qdqbert.evidence.findings import Finding, FindingKind, Storage
from qdqbert.evidence.reporting.document import MEGABYTE, Section, Table, counted


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Words:
    """Words for a kind of finding.

    Attributes:
        problem: The fault.
        amount: How much of it the worst has; `{:...}` stands for the number.
        advice: The remedy.
        noun: Noun for the parts that have the fault.
        divisor: Divisor of the amount.
    """

    problem: str
    amount: str
    advice: str
    noun: str = "linear layer"
    divisor: float = 1


_WORDS: Mapping[FindingKind, _Words] = {
    "clipped weights": _Words(
        problem="Large weights are cut off",
        amount="{:.1f} % of its codes are at the ends",
        advice="take the range from the largest weight",
    ),
    "clipped inputs": _Words(
        problem="Large inputs are cut off",
        amount="{:.1f} % of its inputs are beyond the range",
        advice="calibrate on more texts, or with a wider range",
    ),
    "saturating sums": _Words(
        problem="Sums can exceed 16 bits on x86 CPUs without VNNI, which cuts them off",
        amount="{:.2f} % of its pairs of weights can",
        advice="weights of 7 bits (`reduce_range=True`)",
    ),
    "one scale per tensor": _Words(
        problem="All channels share one scale",
        amount="a scale for each channel has {:.1f} dB less noise",
        advice="a scale for each channel (`per_channel=True`)",
    ),
    "zero points of weights": _Words(
        problem="Weights have zero points, which TensorRT refuses",
        amount="{:.0f} codes off the middle",
        advice="symmetric codes (`QuantType.QInt8`)",
    ),
    "few bits": _Words(
        problem="Weights have fewer than 8 bits",
        amount="SQNR of {:.1f} dB",
        advice="8 bits: each bit adds 6 dB",
    ),
    "inputs in float": _Words(
        problem="Only weights are quantized, and computed with in float",
        amount="these layers have {:.1f} % of all weights",
        advice="quantize the inputs, too",
    ),
    "layers in float": _Words(
        problem="Layers are left in float",
        amount="these layers have {:.1f} % of all weights",
        advice="quantize the largest",
    ),
    "attention products in INT8": _Words(
        problem="Products of attention are in INT8",
        amount="",
        advice="exclude them (`nodes_to_exclude`), and compare again",
        noun="product",
    ),
    "tables in float": _Words(
        problem="Tables of embeddings are left in float",
        amount="{:.1f} MB in all",
        advice="quantize them (`Gather`)",
        noun="table",
        divisor=MEGABYTE,
    ),
}
# Words before the number of a layer in a name.
_BEFORE_LAYER = re.compile(r"^.*?(?=[a-z]+[./]\d+[./])")


def findings_sections(storage: Storage | None, cpu_features: Sequence[str]) -> list[Section]:
    """Show what is wrong with a file, a line for each finding; nothing for other models.

    The model ran on a CPU with these features.
    """
    if storage is None:
        return []
    text = (
        f"{counted(storage.linear_layers, 'linear layer')}, {storage.int8_percent:.1f} % of whose "
        "weights have 8 bits or fewer."
    )
    if any("vnni" in each for each in cpu_features):
        text += " This CPU has VNNI, so no sum was cut off in the measurements."
    title, rows = "What is wrong with the file?", [_row(each) for each in storage.findings]
    if not rows:
        return [Section(title, f"Nothing was found. {text}")]
    return [Section(title, text, Table("what | where | the worst | what to do", rows))]


def _row(finding: Finding) -> tuple[str, str, str, str]:
    words = _WORDS[finding.kind]
    where = f"{finding.count} of {counted(finding.total, words.noun)}"
    amount = words.amount.format((finding.amount or 0) / words.divisor)
    if finding.seen_percent is not None:
        amount += f"; on these texts, up to {finding.seen_percent:.3f} % of a layer's sums did"
    name = _BEFORE_LAYER.sub("", finding.worst)
    worst = f"{name}: {amount}" if amount else name
    return words.problem, where, worst, words.advice
