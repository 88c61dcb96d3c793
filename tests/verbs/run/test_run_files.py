"""Answers of `run` are those of the loaded model, in all formats."""

from __future__ import annotations

import gzip
import io
import json
import logging
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qdqbert
from qdqbert.common.errors import OutputExistsError, UserInputError
from qdqbert.data.tables.inputs import open_source
from qdqbert.data.tables.parquet import import_pyarrow
from qdqbert.runtime.rows import RowFormat
from qdqbert.tasks.registry import TASKS
from qdqbert.verbs.run import parts


def texts_of(path: Path) -> list[str]:
    return [row.values["text"] for row in open_source(str(path)).rows()]


def is_close(found: Any, expected: Any) -> bool:
    return found == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    "name", ["a.jsonl", "a.jsonl.gz", "a.csv", "a.tsv.gz", "a.parquet", "folder/"]
)
def test_answers_are_those_of_the_model(classifier, reviews, tmp_path, name) -> None:
    report = qdqbert.run(classifier, reviews, f"{tmp_path}/{name}")
    expected = qdqbert.load(classifier, engine="onnxruntime")(texts_of(reviews))
    rows = [dict(row.values) for row in open_source(f"{tmp_path}/{name}").rows()]
    assert [int(row["id"]) for row in rows] == list(range(11))
    assert [row["text"] for row in rows] == texts_of(reviews)
    assert [row["label"] for row in rows] == [each["label"] for each in expected]
    assert is_close([float(row["score"]) for row in rows], [each["score"] for each in expected])
    assert (report.rows, report.skipped, report.truncated, report.resumed_rows) == (11, 0, 0, 0)
    assert report.tokens > 11 * 3
    assert report.rows_per_second == pytest.approx(11 / report.seconds)
    assert report.notices == ()
    left = {path.name for path in tmp_path.iterdir()}
    made = name.rstrip("/")
    assert left == {"rows.jsonl", made, f".{made}.run.json"}
    if name == "folder/":
        files = sorted(path.name for path in (tmp_path / "folder").iterdir())
        assert files == [f"part-0000{index}.parquet" for index in range(3)]


def test_all_classes_of_pairs(classifier, write_objects, tmp_path, read_objects) -> None:
    rows = [{"sentence1": "the cat", "sentence2": f"a dog {index}"} for index in range(3)]
    qdqbert.run(classifier, write_objects(rows), tmp_path / "a.jsonl", top_k=9)
    pairs = [{"text": row["sentence1"], "text_pair": row["sentence2"]} for row in rows]
    expected = qdqbert.load(classifier, engine="onnxruntime")(pairs, top_k=None)
    for row, answer in zip(read_objects(tmp_path / "a.jsonl"), expected, strict=True):
        assert row["labels"] == [each["label"] for each in answer]
        assert is_close(row["scores"], [each["score"] for each in answer])


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet"])
def test_all_classes_above_a_threshold(classifier, reviews, tmp_path, name) -> None:
    answers = qdqbert.load(classifier, engine="onnxruntime")(texts_of(reviews), top_k=None)
    scores = sorted(each["score"] for answer in answers for each in answer)
    # Between two scores, so that some texts have no class.
    threshold = (scores[-4] + scores[-5]) / 2
    qdqbert.run(classifier, reviews, tmp_path / name, threshold=threshold)
    rows = [row.values for row in open_source(str(tmp_path / name)).rows()]
    found = [row["labels"] if name != "a.csv" else json.loads(row["labels"]) for row in rows]
    expected = [[each for each in answer if each["score"] > threshold] for answer in answers]
    assert found == [[each["label"] for each in answer] for answer in expected]
    assert [] in found
    assert sum(map(len, found)) == 4


@pytest.mark.parametrize("name", ["a.npy", "a.parquet", "a.jsonl"])
def test_embeddings(embedder, reviews, tmp_path, name) -> None:
    options = {"normalize": True, "truncate_dim": 4, "prompt": "query "}
    qdqbert.run(embedder, reviews, tmp_path / name, **options)
    expected = qdqbert.load(embedder, engine="onnxruntime").encode(
        texts_of(reviews), normalize_embeddings=True, truncate_dim=4, prompt="query "
    )
    path = tmp_path / name
    found = (
        np.load(path)
        if name == "a.npy"
        else [row.values["embedding"] for row in open_source(str(path)).rows()]
    )
    np.testing.assert_allclose(np.array(found, dtype=np.float32), expected, atol=1e-5)


def test_long_texts_can_be_embedded_in_chunks(embedder, write_objects, tmp_path) -> None:
    texts = ["the cat", "in the night and the dog " * 30]
    path = write_objects(texts)
    report = qdqbert.run(embedder, path, tmp_path / "a.npy", chunk_overlap=4)
    expected = qdqbert.load(embedder, engine="onnxruntime").encode(texts, chunk_overlap=4)
    np.testing.assert_allclose(np.load(tmp_path / "a.npy"), expected, atol=1e-5)
    assert (report.truncated, report.notices) == (0, ())


@pytest.mark.parametrize("dtype", ["int8", "uint8", "binary", "ubinary"])
def test_small_vectors_are_written_as_they_are(embedder, write_objects, tmp_path, dtype) -> None:
    texts = ["the cat", "in the night and the dog", "music"]
    path = write_objects(texts)
    # A value at the border of two codes could get another one in another batch.
    with qdqbert.load(embedder, engine="onnxruntime", batch_invariant=True) as model:
        expected = model.encode(texts, output_dtype=dtype, truncate_dim=16)
    options = {"output_dtype": dtype, "truncate_dim": 16, "batch_invariant": True}
    for name in ("a.npy", "a.parquet"):
        qdqbert.run(embedder, path, tmp_path / name, **options)
    found = np.load(tmp_path / "a.npy")
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
    rows = open_source(str(tmp_path / "a.parquet")).rows()
    assert [row.values["embedding"] for row in rows] == expected.tolist()


@pytest.mark.slow
def test_scores_of_a_reranker(quantized, load_once, write_objects, tmp_path, read_objects) -> None:
    reranker = quantized("reranker").directory
    rows = [{"query": "the cat", "passage": f"a dog {index}"} for index in range(5)]
    qdqbert.run(reranker, write_objects(rows), tmp_path / "a.jsonl")
    expected = qdqbert.load(reranker, engine="onnxruntime").predict(
        [(row["query"], row["passage"]) for row in rows]
    )
    found = [row["score"] for row in read_objects(tmp_path / "a.jsonl")]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    with pytest.raises(UserInputError, match="reads two texts per row") as caught:
        qdqbert.run(reranker, write_objects(["one text"]), tmp_path / "b.jsonl")
    assert caught.value.argument == "text_pair_column"


def test_types_of_parquet_are_passed_through(classifier, tmp_path) -> None:
    pa = import_pyarrow()
    ids = pa.array(range(6), pa.int16())
    table = pa.table({"id": ids, "text": ["the cat"] * 6, "tags": [["a"], [], None] * 2})
    pa.parquet.write_table(table, tmp_path / "in.parquet", row_group_size=3)
    qdqbert.run(classifier, tmp_path / "in.parquet", tmp_path / "out.parquet")
    found = pa.parquet.read_table(tmp_path / "out.parquet")
    assert found.drop_columns(["label", "score"]) == table
    assert found.schema.types[3:] == [pa.string(), pa.float64()]


def test_a_column_of_the_input_with_the_name_of_an_answer_is_kept(
    classifier, write_objects, tmp_path, read_objects
) -> None:
    rows = [{"text": "the cat", "label": "gold"}]
    qdqbert.run(classifier, write_objects(rows), tmp_path / "a.jsonl")
    (found,) = read_objects(tmp_path / "a.jsonl")
    assert list(found) == ["text", "label", "predicted_label", "score"]
    rows = [{"text": "the cat", "label": "gold", "predicted_label": "x"}]
    with pytest.raises(UserInputError, match="has the columns 'label' and 'predicted_label'"):
        qdqbert.run(classifier, write_objects(rows), tmp_path / "b.jsonl")


def test_files_of_a_folder_have_a_limited_size(classifier, reviews, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(parts, "FOLDER_ROWS", 1000)
    for limit, files in ((1 << 20, 1), (1, 3)):
        monkeypatch.setattr(parts, "FOLDER_BYTES", limit)
        qdqbert.run(classifier, reviews, f"{tmp_path}/{files}/")
        rows = list(open_source(str(tmp_path / str(files))).rows())
        assert [row.values["id"] for row in rows] == list(range(11))
        assert len(list((tmp_path / str(files)).iterdir())) == files


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ([[None] * 4, [1, 2, None, 4]], [None] * 4 + [1, 2, None, 4]),
        ([[1] * 4, [None] * 4, [0.5] * 4], [1.0] * 4 + [None] * 4 + [0.5] * 4),
        ([[None] * 4, [[1], [], None, [2]]], [None] * 4 + [[1], [], None, [2]]),
        (
            [[None] * 4, [1] * 4, ["x", None, "y", "z"]],
            [None] * 4 + ["1"] * 4 + ["x", None, "y", "z"],
        ),
        ([[None] * 4, ["", "x", None, "y"]], [None] * 4 + ["", "x", None, "y"]),
        ([[None] * 4, [None] * 4], [None] * 8),
        ([[None] * 4, [[1]] * 4, [[0.5]] * 4], [None] * 4 + [[1.0]] * 4 + [[0.5]] * 4),
    ],
)
def test_files_without_values_of_a_column_take_the_type_of_others(
    classifier, write_objects, tmp_path, files, expected
) -> None:
    values = [value for file in files for value in file]
    source = write_objects([{"text": "the cat", "k": value} for value in values])
    pa = import_pyarrow()
    qdqbert.run(classifier, source, f"{tmp_path}/out/")
    qdqbert.run(classifier, source, tmp_path / "one.parquet")
    tables = [pa.parquet.read_table(each) for each in sorted((tmp_path / "out").iterdir())]
    assert len(tables) == len(files)
    one = pa.parquet.read_table(tmp_path / "one.parquet")
    assert {each.schema.field("k").type for each in tables} == {one.schema.field("k").type}
    assert pa.concat_tables(tables).column("k").to_pylist() == expected
    assert one.column("k").to_pylist() == expected


def test_columns_can_be_named_or_counted(classifier, tmp_path, read_objects, caplog) -> None:
    (tmp_path / "in.tsv").write_text("id\treview\n1\tthe cat\n2\ta dog\n")
    caplog.set_level(logging.INFO, "qdqbert")
    for column in ("review", 1):
        qdqbert.run(
            classifier, tmp_path / "in.tsv", tmp_path / f"{column}.jsonl", text_column=column
        )
        found = read_objects(tmp_path / f"{column}.jsonl")
        assert [row["review"] for row in found] == ["the cat", "a dog"]
    assert "Reading column 'review'." in caplog.messages


@pytest.mark.parametrize("column", [None, 0])
def test_files_without_a_header(classifier, tmp_path, column, read_objects) -> None:
    path = tmp_path / "in.csv"
    path.write_text("the cat,fine\na dog,dull\n")
    with pytest.raises(UserInputError, match="`header=False`") as caught:
        qdqbert.run(classifier, path, tmp_path / "a.jsonl", text_column=column)
    assert caught.value.argument == "text_column"
    qdqbert.run(classifier, path, tmp_path / "a.jsonl", text_column=column, header=False)
    found = read_objects(tmp_path / "a.jsonl")
    assert [(row["0"], row["1"]) for row in found] == [("the cat", "fine"), ("a dog", "dull")]
    answers = qdqbert.load(classifier, engine="onnxruntime")(["the cat", "a dog"])
    assert [row["label"] for row in found] == [each["label"] for each in answers]


def test_an_empty_input_gives_an_empty_output(classifier, tmp_path) -> None:
    (tmp_path / "in.jsonl").write_text("")
    for suffix, content in (("jsonl", ""), ("csv", "label,score\n")):
        report = qdqbert.run(classifier, tmp_path / "in.jsonl", tmp_path / f"a.{suffix}")
        assert (report.rows, report.notices) == (0, ("The input has no rows.",))
        assert (tmp_path / f"a.{suffix}").read_text() == content
    qdqbert.run(classifier, tmp_path / "in.jsonl", tmp_path / "a.parquet")
    assert import_pyarrow().parquet.read_table(tmp_path / "a.parquet").num_rows == 0


NO_ROWS = {
    "in.csv": b"id,text\n",
    "in.tsv": b"id\ttext\n",
    "in.txt": b"",
    "in.parquet": None,
}


@pytest.mark.parametrize("name", NO_ROWS)
def test_an_output_without_rows_has_the_columns_that_rows_would_have(
    classifier, tmp_path, name
) -> None:
    pa = import_pyarrow()
    source = tmp_path / name
    if NO_ROWS[name] is None:
        schema = pa.schema([("id", pa.int8()), ("text", pa.string()), ("at", pa.timestamp("ns"))])
        pa.parquet.write_table(schema.empty_table(), source)
    else:
        source.write_bytes(NO_ROWS[name])
        kept = ["text"] if name == "in.txt" else ["id", "text"]
        schema = pa.schema([(each, pa.string()) for each in kept])
    answers = [pa.field("label", pa.string()), pa.field("score", pa.float64())]
    qdqbert.run(classifier, source, tmp_path / "a.parquet")
    found = pa.parquet.read_table(tmp_path / "a.parquet")
    assert (found.num_rows, found.schema) == (0, pa.schema([*schema, *answers]))
    qdqbert.run(classifier, source, tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_text() == f"{','.join([*schema.names, 'label', 'score'])}\n"


@pytest.mark.parametrize(("dtype", "length"), [("float32", 7), ("binary", 1), ("int8", 7)])
def test_embeddings_of_no_rows_have_their_dimensions(quantized, tmp_path, dtype, length) -> None:
    (tmp_path / "in.csv").write_text("text\n")
    options = {"truncate_dim": 7, "output_dtype": dtype}
    qdqbert.run(quantized("sentence").directory, tmp_path / "in.csv", tmp_path / "a.npy", **options)
    found = np.load(tmp_path / "a.npy")
    expected = "int8" if dtype == "binary" else dtype
    assert (found.shape, found.dtype) == ((0, length), np.dtype(expected))


def test_fields_that_an_object_has_twice_are_refused_before_rows_run(classifier, tmp_path) -> None:
    pa = import_pyarrow()
    kind = pa.struct([pa.field("a", pa.int8()), pa.field("a", pa.int8())])
    schema = pa.schema([("text", pa.string()), ("odd", kind)])
    pa.parquet.write_table(schema.empty_table(), tmp_path / "in.parquet")
    with pytest.raises(UserInputError, match=r"Column 'odd' of .* has two fields 'a'"):
        qdqbert.run(classifier, tmp_path / "in.parquet", tmp_path / "a.jsonl")


def test_a_single_row_without_a_header_is_explained(classifier, tmp_path) -> None:
    (tmp_path / "in.csv").write_text("the cat\n")
    with pytest.raises(UserInputError, match=r"first row is not a header, pass `header=False`"):
        qdqbert.run(classifier, tmp_path / "in.csv", tmp_path / "a.jsonl")
    (tmp_path / "in.csv").write_text("title\n")
    report = qdqbert.run(classifier, tmp_path / "in.csv", tmp_path / "a.jsonl")
    hint = "The first row is the header; pass `header=False` if it has a text."
    assert report.notices == (f"The input has no rows. {hint}",)


def test_stdin_and_stdout(classifier, monkeypatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the cat\na dog\n")))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO()))
    report = qdqbert.run(classifier, "-", "-", input_format="txt")
    printed = sys.stdout.buffer.getvalue().decode()  # type: ignore[attr-defined]
    assert [json.loads(line)["text"] for line in printed.splitlines()] == ["the cat", "a dog"]
    assert report.rows == 2


def test_long_texts_are_counted(classifier, write_objects, tmp_path) -> None:
    limit = qdqbert.load(classifier, engine="onnxruntime").max_length
    texts = ["the cat", "the cat " * limit, "a dog"]
    report = qdqbert.run(classifier, write_objects(texts), tmp_path / "a.jsonl")
    assert report.truncated == 1
    assert report.notices == (f"1 of 3 inputs was longer than {limit} tokens and was cut.",)


def test_an_existing_output_is_replaced_only_on_demand(classifier, reviews, tmp_path) -> None:
    output = tmp_path / "a.csv"
    output.write_text("mine")
    with pytest.raises(OutputExistsError, match=r"`overwrite=True`"):
        qdqbert.run(classifier, reviews, output)
    assert output.read_text() == "mine"
    qdqbert.run(classifier, reviews, output, overwrite=True)
    assert output.read_text().startswith("id,text,label,score\n")


def test_only_folders_of_parts_are_replaced(classifier, reviews, tmp_path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for _ in range(2):
        qdqbert.run(classifier, reviews, folder, output_format="csv", overwrite=True)
        assert len(list(folder.iterdir())) == 3
    (folder / "part-mine").mkdir()
    with pytest.raises(OutputExistsError, match="contains files that `run` did not write"):
        qdqbert.run(classifier, reviews, folder, overwrite=True)
    (folder / "part-mine").rmdir()
    (folder / "mine.csv").write_text("")
    with pytest.raises(OutputExistsError, match="contains files that `run` did not write"):
        qdqbert.run(classifier, reviews, folder, overwrite=True)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", "/"])
def test_an_output_is_written_through_a_link(classifier, reviews, tmp_path, suffix) -> None:
    target, link = tmp_path / "other" / "target", Path(f"{tmp_path}/link{suffix}")
    target.parent.mkdir()
    if suffix == "/":
        target.mkdir()
    link.symlink_to(target)
    for _ in range(2):
        qdqbert.run(classifier, reviews, f"{tmp_path}/link{suffix}", overwrite=True)
        assert link.is_symlink()
        assert target.is_dir() == (suffix == "/")
        assert target.stat().st_size


def test_a_pipe_in_the_place_of_skipped_rows_is_refused(classifier, reviews, tmp_path) -> None:
    os.mkfifo(tmp_path / "a.jsonl.errors.jsonl")
    with pytest.raises(UserInputError, match=r"errors\.jsonl'` cannot be written: it is neither"):
        qdqbert.run(classifier, reviews, tmp_path / "a.jsonl")


@pytest.mark.parametrize("output", [".", "./", "..", "../here"])
def test_the_current_folder_is_not_replaced(
    classifier, reviews, tmp_path, monkeypatch, output
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(UserInputError, match=r"is the current folder or|would overwrite"):
        qdqbert.run(classifier, reviews, output)


@pytest.mark.parametrize("mode", ["overwrite", "resume"])
@pytest.mark.parametrize(
    ("pattern", "output"),
    [
        ("here/", "here/"),
        ("here/*", "here/"),
        ("link/part-*", "away/../here"),
        ("here/part-0.jsonl", "link/part-0.jsonl"),
        # Where skipped rows are written.
        ("here/a.jsonl.errors.jsonl", "here/a.jsonl"),
    ],
)
def test_no_file_of_the_input_is_overwritten(
    classifier, reviews, tmp_path, monkeypatch, pattern, output, mode
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("here", "away"):
        Path(name).mkdir()
    os.symlink("here", "link")
    for name in ("part-0.jsonl", "a.jsonl.errors.jsonl"):
        shutil.copy(reviews, f"here/{name}")
    with pytest.raises(OutputExistsError, match=r"would overwrite (the input file '|`input=')"):
        qdqbert.run(classifier, pattern, output, **{mode: True})
    assert len(os.listdir("here")) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"normalize": True}, "`normalize=True` does not apply to a classifier"),
        ({"prompt": "a"}, "`prompt='a'` does not apply to a classifier"),
        ({"output_dtype": "int8"}, "`output_dtype='int8'` does not apply to a classifier"),
        ({"chunk_overlap": 0}, "`chunk_overlap=0` does not apply to a classifier"),
        ({"threshold": 0.5, "top_k": 2}, "`threshold=0.5` writes all classes above it, and"),
        ({"threshold": 1.0}, "`threshold` must be at least 0 and below 1, got 1.0"),
        ({"output": "a.npy"}, ".npy files are for embeddings"),
        ({"output": "a.txt"}, "a .txt file cannot hold"),
        (
            {"output": "rows.jsonl", "overwrite": True},
            "`output='rows.jsonl'` would overwrite `input='rows.jsonl'`",
        ),
        ({"text_column": "missing"}, "must be a column of"),
        ({"input": "missing.csv"}, "does not exist"),
        ({"resume": True, "overwrite": True}, "Pass one of them"),
        ({"resume": True, "output": "-"}, "stdout cannot be written again"),
    ],
)
def test_options_that_cannot_be_used_are_refused(
    classifier, reviews, tmp_path, monkeypatch, options, message
) -> None:
    monkeypatch.chdir(tmp_path)
    usual = {"input": reviews.name, "output": "a.jsonl"}
    with pytest.raises(UserInputError, match=message) as caught:
        qdqbert.run(classifier, **{**usual, **options})
    assert caught.value.argument is not None
    assert {path.name for path in tmp_path.iterdir()} == {"rows.jsonl"}


def test_options_of_classifiers_do_not_apply_to_embedders(embedder, reviews, tmp_path) -> None:
    for option in ({"top_k": 2}, {"threshold": 0.5}, {"text_pair_column": "id"}):
        with pytest.raises(UserInputError, match="does not apply to an embedder"):
            qdqbert.run(embedder, reviews, tmp_path / "a.jsonl", **option)


def test_gzip_does_not_hold_the_time(classifier, reviews, tmp_path) -> None:
    qdqbert.run(classifier, reviews, tmp_path / "a.jsonl.gz")
    content = (tmp_path / "a.jsonl.gz").read_bytes()
    assert content[4:8] == bytes(4)
    assert len(gzip.decompress(content).splitlines()) == 11


@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if task.model])
def test_every_model_that_can_be_loaded_says_what_it_does_with_rows(name) -> None:
    assert isinstance(vars(TASKS[name].model)["rows"], RowFormat)
