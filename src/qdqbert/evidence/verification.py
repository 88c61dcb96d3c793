"""Stored rows with float results, to measure fidelity again on another machine.

A row is one input and the outputs of the float model for it. Rows run alone and without padding.
Reading and running them needs numpy and an engine only.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qdqbert.common.files import write_bytes
from qdqbert.engines.runner import Runner
from qdqbert.evidence.fidelity import signal_and_noise, to_decibels

# SQNR of a correct engine varies with rounding ties: below half of the noise that was measured
# before, or above twice of it, something else is different.
_TOLERANCE_DB = 3.0
# Above it, results are equal but for the order of float sums, which differs between CPUs.
_EQUAL_DB = 40.0


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class VerificationRow:
    """An input and the results of the float model.

    Attributes:
        inputs: Inputs by name, `(1, seq)` or `(1, choices, seq)`, int64.
        outputs: Outputs by name, or the first values of their last axis, float32.
    """

    inputs: Mapping[str, NDArray[np.int64]]
    outputs: Mapping[str, NDArray[np.float32]]


def write_rows(rows: Sequence[VerificationRow], path: Path) -> None:
    """Write rows to a .npz file."""
    arrays = {
        f"{kind}/{index}/{name}": values
        for index, row in enumerate(rows)
        for kind, named in (("inputs", row.inputs), ("outputs", row.outputs))
        for name, values in named.items()
    }
    content = io.BytesIO()
    np.savez_compressed(content, allow_pickle=False, **arrays)
    write_bytes(path, content.getvalue())


def read_rows(path: Path) -> list[VerificationRow]:
    """Read the rows that `write_rows` wrote."""
    found: dict[int, dict[str, dict[str, NDArray[np.generic]]]] = {}
    with np.load(path, allow_pickle=False) as arrays:
        for key in arrays.files:
            kind, index, name = key.split("/", 2)
            row = found.setdefault(int(index), {"inputs": {}, "outputs": {}})
            row[kind][name] = arrays[key]
    return [
        VerificationRow(
            inputs={name: each.astype(np.int64) for name, each in row["inputs"].items()},
            outputs={name: each.astype(np.float32) for name, each in row["outputs"].items()},
        )
        for _, row in sorted(found.items())
    ]


def measure_rows(runner: Runner, rows: Sequence[VerificationRow]) -> float:
    """Return the SQNR of a model to the stored results, over all rows and outputs, in dB."""
    powers = np.zeros(2)
    for row in rows:
        outputs = runner.run({name: row.inputs[name] for name in runner.input_names})
        for name, expected in row.outputs.items():
            powers += signal_and_noise(expected, outputs[name][..., : expected.shape[-1]])
    return to_decibels(*powers)


def lowest_sqnr(stored_db: float) -> float:
    """Return the SQNR in dB that a graph should reach on any machine, given its stored SQNR.

    It is 3 dB lower, for rounding ties, and at most 37 dB.
    """
    return min(stored_db, _EQUAL_DB) - _TOLERANCE_DB
