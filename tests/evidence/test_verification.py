"""Rows with results of the float model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qdqbert.evidence.verification import (
    VerificationRow,
    lowest_sqnr,
    measure_rows,
    read_rows,
    write_rows,
)


def rows_of(count: int) -> list[VerificationRow]:
    random = np.random.default_rng(0)
    return [
        VerificationRow(
            inputs={"input_ids": random.integers(0, 99, (1, 3 + index))},
            outputs={
                "logits": random.standard_normal((1, 5), np.float32),
                "last_hidden_state": random.standard_normal((1, 3 + index, 2), np.float32),
            },
        )
        for index in range(count)
    ]


def runner_of(answers: Mapping[int, Mapping[str, np.ndarray]]) -> Any:
    """Return what answers by the number of tokens."""
    return SimpleNamespace(
        input_names=("input_ids",), run=lambda inputs: answers[inputs["input_ids"].shape[1]]
    )


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    # More than ten, as their numbers are parts of names.
    rows = rows_of(12)
    write_rows(rows, tmp_path / "rows.npz")
    found = read_rows(tmp_path / "rows.npz")
    assert len(found) == 12
    for row, expected in zip(found, rows, strict=True):
        for ours, theirs in ((row.inputs, expected.inputs), (row.outputs, expected.outputs)):
            assert list(ours) == list(theirs)
            for name in ours:
                assert ours[name].dtype == theirs[name].dtype
                np.testing.assert_array_equal(ours[name], theirs[name])


def test_files_of_equal_rows_are_equal(tmp_path: Path) -> None:
    paths = tmp_path / "a.npz", tmp_path / "b.npz"
    for path in paths:
        write_rows(rows_of(2), path)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_the_sqnr_is_that_of_all_values_together() -> None:
    rows = rows_of(3)
    noise = np.random.default_rng(1)
    answers = {}
    signal = error = 0.0
    for row in rows:
        made = {}
        for name, values in row.outputs.items():
            change = noise.standard_normal(values.shape) * 0.1
            made[name] = np.concatenate([values + change, values], axis=-1)
            signal += (values.astype(np.float64) ** 2).sum()
            error += (change**2).sum()
        answers[row.inputs["input_ids"].shape[1]] = made
    # The model has more values than are stored.
    found = measure_rows(runner_of(answers), rows)
    # Rounding to float32 of the stored values.
    assert found == pytest.approx(10 * np.log10(signal / error), abs=1e-4)


def test_an_equal_model_has_no_noise() -> None:
    rows = rows_of(2)
    runner = runner_of({row.inputs["input_ids"].shape[1]: row.outputs for row in rows})
    assert measure_rows(runner, rows) == math.inf


@pytest.mark.parametrize(("stored", "lowest"), [(25.0, 22.0), (60.0, 37.0), (math.inf, 37.0)])
def test_float_results_may_differ_in_their_last_bits(stored, lowest) -> None:
    assert lowest_sqnr(stored) == lowest
