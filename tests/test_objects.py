from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from qdqbert.objects import Rows, as_rows


def kind_of(value: object) -> str | None:
    rows = as_rows(value)
    return None if rows is None else rows.kind


def test_lists_tuples_and_arrays_have_rows() -> None:
    assert kind_of(["a"]) == kind_of(("a",)) == kind_of([]) == "sequence"
    assert kind_of(np.array(["a", "b"])) == "sequence"


@pytest.mark.parametrize(
    "value",
    [
        "a.csv",
        b"a.csv",
        Path("a.csv"),
        None,
        3,
        {"text": ["a"]},
        {"a"},
        iter("a"),
        Rows([], "pandas"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_paths_and_what_has_no_order_have_none(value: object) -> None:
    assert as_rows(value) is None


def test_frames_and_series_of_pandas_have_rows() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"text": ["a", "b"]})
    assert kind_of(frame) == kind_of(frame["text"]) == "pandas"
    assert repr(as_rows(frame)) == "<DataFrame of 2 rows>"


def test_data_sets_have_rows_and_their_splits_have_none() -> None:
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"text": ["a"]})
    assert kind_of(data) == "dataset"
    assert str(as_rows(data)) == "<Dataset of 1 row>"
    assert kind_of(data["text"]) == "sequence"
    assert as_rows(datasets.DatasetDict(train=data)) is None
    assert as_rows(data.to_iterable_dataset()) is None


def test_looking_at_an_object_imports_neither_pandas_nor_datasets() -> None:
    code = (
        "import sys, qdqbert.objects; qdqbert.objects.as_rows([{}]);"
        "print({'pandas', 'datasets', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
