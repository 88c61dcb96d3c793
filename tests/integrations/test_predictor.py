"""Batches of numpy arrays, DataFrames and Tables get the columns of the model's answers."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import qdqbert
from python_process import run_python
from qdqbert.common.errors import DataFileError, UserInputError
from qdqbert.data.tables.rows import Column
from qdqbert.integrations.batches import kind_of, rounded_columns
from qdqbert.integrations.ray import Predictor

TEXTS = [
    f"{'music and the river was good at night ' * (index % 3)}dog {index}" for index in range(9)
]
MAKE = {
    "numpy": lambda columns: {name: np.array(each, object) for name, each in columns.items()},
    "pandas": lambda columns: pd.DataFrame(columns, index=range(5, 5 + len(columns["id"]))),
    "pyarrow": pa.table,
    "record batch": pa.RecordBatch.from_pydict,
}
TABLES = (pa.Table, pa.RecordBatch)


def column(batch: Any, name: str) -> list[Any]:
    values = batch[name]
    return values.to_pylist() if isinstance(batch, TABLES) else list(values)


@pytest.fixture(scope="module")
def classifier(quantized) -> Path:
    return Path(quantized("classifier").directory)


@pytest.fixture(scope="module")
def predict(classifier) -> Predictor:
    return Predictor(classifier, engine="onnxruntime", threads=2)


@pytest.fixture(scope="module")
def embed(quantized) -> Predictor:
    folder = quantized("sentence").directory
    return Predictor(folder, engine="onnxruntime", threads=2, normalize=True)


@pytest.mark.parametrize("kind", MAKE)
def test_answers_are_those_of_the_model_in_order(predict, classifier, kind) -> None:
    batch = MAKE[kind]({"id": list(range(9)), "text": TEXTS, "score": [0.5] * 9})
    answered = predict(batch)
    assert type(answered) is type(batch)
    assert column(answered, "id") == list(range(9))
    assert column(answered, "text") == TEXTS
    # The batch has a column of that name.
    assert column(answered, "score") == [0.5] * 9
    with qdqbert.load(classifier, engine="onnxruntime", threads=2) as model:
        expected = model(TEXTS)
    assert column(answered, "label") == [each["label"] for each in expected]
    assert column(answered, "predicted_score") == [each["score"] for each in expected]
    if kind == "pandas":
        assert list(answered.index) == list(batch.index)


@pytest.mark.parametrize("kind", MAKE)
def test_embeddings_are_float32_vectors(embed, kind) -> None:
    answered = embed(MAKE[kind]({"id": [1, 2], "text": TEXTS[:2]}))
    vectors = column(answered, "embedding")
    assert np.linalg.norm(np.array(vectors), axis=1) == pytest.approx([1, 1])
    if kind == "numpy":
        assert (answered["embedding"].shape, answered["embedding"].dtype) == ((2, 32), np.float32)
    elif kind == "pandas":
        assert [vector.dtype for vector in vectors] == [np.float32] * 2
    else:
        assert answered.schema.field("embedding").type == pa.list_(pa.float32())


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("dtype", ["uint8", "binary"])
def test_small_vectors_keep_their_type(quantized, kind, dtype) -> None:
    folder = quantized("sentence").directory
    options = {"engine": "onnxruntime", "threads": 1, "batch_invariant": True}
    predict = Predictor(folder, output_dtype=dtype, **options)
    answered = predict(MAKE[kind]({"id": [1, 2], "text": TEXTS[:2]}))
    with qdqbert.load(folder, **options) as model:
        expected = model.encode(TEXTS[:2], output_dtype=dtype)
    found = column(answered, "embedding")
    np.testing.assert_array_equal(np.array(found, expected.dtype), expected)
    if kind == "numpy":
        assert answered["embedding"].dtype == expected.dtype
    elif kind == "pandas":
        assert [vector.dtype for vector in found] == [expected.dtype] * 2
    else:
        wanted = pa.int8() if dtype == "binary" else pa.uint8()
        assert answered.schema.field("embedding").type == pa.list_(wanted)


def types(batch: Any) -> dict[str, Any]:
    """Return the types of the columns, and the shapes of the rows of arrays."""
    if isinstance(batch, TABLES):
        return dict(zip(batch.column_names, batch.schema.types, strict=True))
    return {name: (batch[name].dtype, batch[name].shape[1:]) for name in batch}


@pytest.mark.parametrize("kind", MAKE)
def test_an_empty_batch_gets_the_types_that_rows_have(embed, predict, kind) -> None:
    for each in (embed, predict):
        full = each(MAKE[kind]({"id": [1], "text": ["a"]}))
        empty = each(full[:0] if kind == "pandas" else MAKE[kind]({"id": [], "text": []}))
        added = types(full).keys() - {"id", "text"}
        assert added
        assert {name: types(empty)[name] for name in added} == {
            name: types(full)[name] for name in added
        }


def test_lists_of_answers(classifier) -> None:
    predict = Predictor(classifier, engine="onnxruntime", top_k=2)
    answered = predict({"text": np.array(TEXTS[:2], object)})
    assert [len(each) for each in answered["labels"]] == [2, 2]
    # Rows can have different numbers of classes, and an array of lists does not depend on them.
    assert [each.shape for each in answered["scores"]] == [(2,), (2,)]


def test_a_pickled_predictor_loads_the_model_again(predict) -> None:
    frame = pd.DataFrame({"text": TEXTS})
    expected = predict(frame)
    again = pickle.loads(pickle.dumps(predict))
    first, second = again.map_in_pandas(iter([frame[:4], frame[4:]]))
    pd.testing.assert_frame_equal(pd.concat([first, second]), expected)


@pytest.mark.parametrize("kind", MAKE)
def test_a_row_without_a_text_is_refused(predict, kind) -> None:
    batch = MAKE[kind]({"id": [0, 1], "text": ["a", None]})
    with pytest.raises(DataFileError, match="Row 2 of the batch: it has no value in column"):
        predict(batch)


def missing(value: Any) -> bool:
    """Return whether a value of a batch is missing."""
    if isinstance(value, np.ndarray):
        return bool(np.isnan(value).all())
    return value is None or value is pd.NA or (isinstance(value, float) and np.isnan(value))


# A value of each kind of column that tasks add.
VALUES = {
    "text": (Column(name="x", kind="text"), "good"),
    "number": (Column(name="x", kind="number"), 0.5),
    "integer": (Column(name="x", kind="integer"), 2**60 + 1),
    "texts": (Column(name="x", kind="texts"), ["a", "b"]),
    "numbers": (Column(name="x", kind="numbers"), np.float32([0.5])),
    "vector": (Column(name="x", kind="numbers", length=2), np.float32([0.5, 2])),
    "codes": (Column(name="x", kind="numbers", dtype="int8", length=2), np.int8([0, -128])),
    "vectors": (Column(name="x", kind="vectors"), np.zeros((3, 2), np.float32)),
    "records": (Column(name="x", kind="records", fields=(("word", "text"),)), [{"word": "a"}]),
    "record lists": (
        Column(name="x", kind="record_lists", fields=(("word", "text"),)),
        [[{"word": "a"}], []],
    ),
}


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize(("added", "value"), VALUES.values(), ids=VALUES)
def test_an_answer_that_is_missing_changes_no_other_one(kind, added, value) -> None:
    batch = MAKE[kind]({"id": [0, 1, 2]})
    extend = kind_of(batch).extended
    found = column(extend(batch, [(added, [None, value, None])]), "x")
    full = extend(batch, [(added, [value] * 3)])
    assert [missing(each) for each in found] == [True, False, True]
    np.testing.assert_equal(found[1], column(full, "x")[1])
    if isinstance(full, TABLES):
        nothing = extend(batch, [(added, [None] * 3)])
        assert nothing.schema == full.schema
        assert nothing["x"].null_count == 3


@pytest.mark.parametrize("kind", MAKE)
def test_rows_that_are_skipped_stay_without_answers(classifier, embed, kind) -> None:
    options = {**dataclasses.asdict(embed._options), "on_error": "skip", "error_column": "why"}
    embed = Predictor(**options)
    predict = Predictor(**{**options, "model": classifier, "normalize": False})
    columns: dict[str, Any] = {"id": [0, 1, 2, 3], "text": ["the cat", None, " ", "a dog"]}
    for each, names in ((predict, ("label", "score")), (embed, ("embedding",))):
        answered = each(MAKE[kind](columns))
        alone = each(MAKE[kind]({"id": [0, 3], "text": ["the cat", "a dog"]}))
        assert column(answered, "id") == [0, 1, 2, 3]
        for name in names:
            found = column(answered, name)
            assert [missing(value) for value in found] == [False, True, True, False]
            np.testing.assert_equal([found[0], found[3]], column(alone, name))
        reasons = [value for value in column(answered, "why") if not missing(value)]
        assert reasons == ["it has no value in column 'text'", "column 'text' is blank"]
        assert each.skipped_rows == 2


# pandas finds the type of texts from the texts.
@pytest.mark.parametrize("kind", sorted(MAKE.keys() - {"pandas"}))
def test_a_batch_without_any_answer_keeps_its_types(embed, predict, kind) -> None:
    for each in (embed, predict):
        options = {**dataclasses.asdict(each._options), "on_error": "skip"}
        skipping = Predictor(**options)
        full, empty = (skipping(MAKE[kind]({"id": [1], "text": [text]})) for text in ("a", None))
        assert types(empty).keys() == types(full).keys()
        added = types(full).keys() - {"id", "text"}
        assert {name: types(empty)[name] for name in added} == {
            name: types(full)[name] for name in added
        }


def test_missing_values_of_numpy_and_pandas() -> None:
    """Integers and bytes have no NaN."""
    number, integer, codes, vector = (
        VALUES[name][0] for name in ("number", "integer", "codes", "vector")
    )
    frame = pd.DataFrame({"id": [0, 1]})
    extended = kind_of(frame).extended(frame, [(integer, [2**60 + 1, None])])
    assert (extended["x"].dtype, extended["x"][0]) == ("Int64", 2**60 + 1)
    assert kind_of(frame).extended(frame, [(number, [1, None])])["x"].dtype == "float64"
    arrays: dict[str, Any] = {"id": np.arange(2)}
    extend = kind_of(arrays).extended
    for each, values in ((integer, [1, None]), (codes, [np.int8([1, 2]), None])):
        assert extend(arrays, [(each, values)])["x"].dtype == object
    found = extend(arrays, [(vector, [np.float32([1, 2]), None])])["x"]
    assert (found.shape, found.dtype) == ((2, 2), np.float32)


def test_rows_that_are_skipped_are_logged_once(classifier, caplog) -> None:
    predict = Predictor(classifier, engine="onnxruntime", threads=1, on_error="skip")
    frame = pd.DataFrame({"text": ["a", None, " "]})
    for answered in predict.map_in_pandas(iter([frame[:1], frame, frame])):
        assert "why" not in answered
    assert predict.skipped_rows == 4
    (message,) = [each for each in caplog.messages if "no answers" in each]
    assert message.startswith(
        "2 of 3 rows of a batch have no answers. The first one is row 2: it has no value in column "
        "'text'. This is logged once"
    )
    assert pickle.loads(pickle.dumps(predict))(frame)["label"].isna().tolist() == [0, 1, 1]


def test_a_column_of_errors_that_cannot_be_added_is_refused(classifier) -> None:
    with pytest.raises(UserInputError, match="`error_column='why'` is for rows that are skipped"):
        Predictor(classifier, error_column="why")
    for name in ("id", "label"):
        predict = Predictor(classifier, engine="onnxruntime", on_error="skip", error_column=name)
        with pytest.raises(UserInputError, match=f"`error_column='{name}'`: the batch or the"):
            predict(pa.table({"id": [1], "text": ["a"]}))


def test_arguments_that_cannot_be_used_are_refused(predict, classifier) -> None:
    for batch in (TEXTS, pd.Series(TEXTS, name="text"), pa.array(TEXTS)):
        with pytest.raises(UserInputError, match=rf"pyarrow Table, got {type(batch).__name__}"):
            predict(batch)
    with pytest.raises(DataFileError, match="`batch` has no column whose name is known"):
        predict({"x": np.array(TEXTS)})
    with pytest.raises(UserInputError, match="`threads` must be at least 1"):
        Predictor(classifier, threads=0)
    with pytest.raises(TypeError, match=r"^Predictor\(\) .*'engin'. Did you mean `engine`?"):
        Predictor(classifier, engin="native")
    with pytest.raises(UserInputError, match="`normalize=True` does not apply to a classifier"):
        Predictor(classifier, normalize=True)({"text": np.array(TEXTS)})


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["text", "text"], "`batch` has the columns 'text' and 'text', and each of them"),
        (["Text", "TEXT"], "'Text' and 'TEXT', and each of them could be meant"),
        ([0, "text"], "Names of columns have to be texts, and `batch` has 0"),
        ([("x", "id"), ("x", "text")], r"Names of columns have to be texts, and `batch` has \('x'"),
    ],
)
def test_names_that_leave_open_what_is_meant_are_refused(predict, names, message) -> None:
    frame = pd.DataFrame([["a", "b"]])
    frame.columns = pd.MultiIndex.from_tuples(names) if isinstance(names[0], tuple) else names
    with pytest.raises(DataFileError, match=message):
        predict(frame)


LARGE = float(2**60)


@pytest.mark.parametrize("kind", ["numpy", "pandas"])
@pytest.mark.parametrize(
    ("values", "warns"),
    [
        ([LARGE, float("nan")], True),
        ([-LARGE, float("nan")], True),
        ([LARGE, 1.0], False),
        ([2.0**52, float("nan")], False),
        ([LARGE, 0.5, float("nan")], False),
        ([LARGE, float("inf"), float("nan")], False),
        ([float("nan"), float("nan")], False),
        (np.array([LARGE, np.nan], np.float32), False),
        ([[LARGE], [float("nan")]], False),
        ([2**60 + 1, None], False),
    ],
)
def test_floats_that_may_be_rounded_integers(kind, values, warns) -> None:
    is_object = any(each is None for each in values)
    column = np.array(values, object if is_object else None)
    if kind == "pandas" and column.ndim == 2:
        column = list(column)
    batch = {"id": column, "more": [0.5] * len(values)}
    found = rounded_columns(pd.DataFrame(batch) if kind == "pandas" else batch)
    assert found == (["id"] if warns else [])


def test_integers_that_were_rounded_are_warned_of_once(classifier, caplog) -> None:
    predict = Predictor(classifier, engine="onnxruntime", threads=2)
    batch = {"id": np.array([LARGE, np.nan]), "text": TEXTS[:2]}
    predict(batch)
    predict(batch)
    (message,) = [each.getMessage() for each in caplog.records if "2**53" in each.getMessage()]
    assert message.startswith("The columns 'id' of the batch have missing values")


def test_other_columns_of_a_table_are_not_copied(predict) -> None:
    table = pa.table({"id": [2**60 + 1, None, 3], "text": TEXTS[:3], "more": [[1], [2], None]})
    answered = predict(table)
    assert answered["id"].to_pylist() == [2**60 + 1, None, 3]
    for name in table.column_names:
        (given,), (found,) = table[name].chunks, answered[name].chunks
        places = [[each and each.address for each in chunk.buffers()] for chunk in (given, found)]
        assert places[0] == places[1]


def test_ray_is_not_imported() -> None:
    code = "import sys, qdqbert.integrations.ray; print('ray' in sys.modules)"
    assert run_python("-c", code) == "False"


@pytest.mark.slow
def test_tables_of_polars_get_the_columns_of_arrow(predict, embed) -> None:
    pl = pytest.importorskip("polars")
    columns = {"id": [3, None, 5], "text": TEXTS[:3], "score": [0.5, float("nan"), None]}
    frame = pl.DataFrame(columns)
    for each in (predict, embed):
        expected = pl.DataFrame(each(pa.table(columns)))
        assert each(frame).equals(expected)
        assert each(frame[:0]).schema == expected.schema
        lazy = each(frame.lazy())
        assert isinstance(lazy, pl.LazyFrame)
        assert lazy.collect().equals(expected)
        mapped = frame.lazy().map_batches(each, schema=expected.schema)
        assert mapped.collect().equals(expected)
        series = each(frame["text"])
        added = [name for name in expected.columns if name not in columns]
        assert series.name == "text"
        assert series.struct.unnest()[:, 1:].rows() == each(frame[["text"]])[:, 1:].rows()
        assert len(series.struct.fields) == 1 + len(added)


@pytest.mark.slow
def test_rows_of_polars_without_a_text_are_refused(predict) -> None:
    pl = pytest.importorskip("polars")
    with pytest.raises(DataFileError, match="Row 2 of the batch: it has no value in column"):
        predict(pl.DataFrame({"text": ["a", None]}))
    with pytest.raises(DataFileError, match="`batch` has no column whose name is known"):
        predict(pl.Series("x", ["a"]))


@pytest.mark.slow
def test_a_series_of_polars_is_a_list_of_texts(classifier) -> None:
    pl = pytest.importorskip("polars")
    with qdqbert.load(classifier, engine="onnxruntime", threads=2) as model:
        assert model(pl.Series(TEXTS)) == model(TEXTS)
        for table in (pl.DataFrame({"text": TEXTS}), pl.LazyFrame({"text": TEXTS})):
            with pytest.raises(UserInputError, match="Pass one of its columns"):
                model(table)


@pytest.mark.parametrize(
    "row",
    [
        {"id": 7, "text": "good"},
        {"text": "good"},
        {"text": np.str_("good"), "vector": np.zeros(3)},
        {"text": np.array("good")},
        {"tokens": ["a", "b"], "id": np.int64(7)},
        {"text": ["good"], "extra": None},
        {"text": ["good"], "extra": {"a": 1}},
    ],
)
def test_a_single_row_is_refused(predict, row) -> None:
    """Its letters or numbers would be taken for rows: Ray's `map` calls with rows."""
    with pytest.raises(
        UserInputError, match=r"got a row: .* call `map_batches` instead.* `batched=True`"
    ):
        predict(row)


def test_columns_of_different_lengths_are_refused(predict) -> None:
    with pytest.raises(UserInputError, match="same length: 'id' has 2, 'text' has 1"):
        predict({"id": np.arange(2), "text": np.array(["a"])})


def test_what_is_masked_is_missing(predict) -> None:
    texts = np.ma.array(["good", "secret"], mask=[False, True])
    with pytest.raises(DataFileError, match="Row 2 of the batch: it has no value in column 'text'"):
        predict({"text": texts})
    batch = {"text": texts[:1], "n": np.ma.array([1], mask=[True])}
    answered = predict(batch)
    assert list(answered["label"]) == list(predict({"text": np.array(["good"])})["label"])
    assert answered["n"] is batch["n"]
