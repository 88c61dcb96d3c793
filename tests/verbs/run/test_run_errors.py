"""Rows that cannot be used: they stop a run with their place, or are skipped and collected."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

import qdqbert
from qdqbert.common.errors import DataFileError, UserInputError
from qdqbert.common.progress import Silent
from qdqbert.common.storage import place_of, remove_tree
from qdqbert.data.tables.inputs import Source
from qdqbert.data.tables.parquet import import_pyarrow
from qdqbert.verbs.run import pipeline

BAD = [
    (b'{"id": 1}', "it has no value in column 'text'"),
    (b'{"text": null}', "it has no value in column 'text'"),
    (b'{"text": 5}', "column 'text' must be a text, got int"),
    (b'{"text": " \\t"}', "column 'text' is blank"),
    (b'{"text": "a\xff"}', "it is not UTF-8: byte 0xff at column 12"),
    (b'{"text": "a"', "it is not JSON: Expecting ',' delimiter at character 13"),
    (b"[]", "it must be a JSON object or a string, got list"),
]
GOOD = b'{"text": "the cat"}'


@pytest.fixture
def bad_rows(tmp_path) -> Path:
    """A file of bad rows, with a good row before each of them."""
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\n".join(line for bad, _ in BAD for line in (GOOD, bad)))
    return path


@pytest.mark.parametrize(("line", "reason"), BAD)
def test_a_bad_row_stops_the_run(classifier, tmp_path, line, reason) -> None:
    path = tmp_path / "in.jsonl"
    # It is found while columns are inferred, or later.
    for before in (2, 150):
        path.write_bytes(b"\n".join([*[GOOD] * before, line, GOOD]))
        with pytest.raises(DataFileError) as caught:
            qdqbert.run(classifier, path, tmp_path / f"{before}.jsonl")
        message = str(caught.value)
        hint = "Correct the row, or pass `on_error='skip'` to leave such rows out."
        assert message.startswith(f"Line {before + 1} of `{path}`: {reason}. {hint}")


def test_bad_rows_are_skipped_and_collected(classifier, bad_rows, tmp_path, read_objects) -> None:
    output = tmp_path / "a.jsonl"
    report = qdqbert.run(classifier, bad_rows, output, on_error="skip")
    assert (report.rows, report.skipped) == (len(BAD), len(BAD))
    assert report.notices == (f"{len(BAD)} rows were skipped: see {output}.errors.jsonl.",)
    assert len(read_objects(output)) == len(BAD)
    assert read_objects(tmp_path / "a.jsonl.errors.jsonl") == [
        {"file": str(bad_rows), "row": 2 * index + 2, "reason": reason}
        for index, (_, reason) in enumerate(BAD)
    ]
    # A later run without errors leaves no old file.
    bad_rows.write_bytes(GOOD)
    qdqbert.run(classifier, bad_rows, output, overwrite=True)
    assert not (tmp_path / "a.jsonl.errors.jsonl").exists()


def test_only_bad_rows_give_an_empty_output(classifier, tmp_path, read_objects) -> None:
    (tmp_path / "in.txt").write_text("\n" * 9)
    report = qdqbert.run(classifier, tmp_path / "in.txt", tmp_path / "a.csv", on_error="skip")
    assert (report.rows, report.skipped) == (0, 9)
    assert (tmp_path / "a.csv").read_text() == "text,label,score\n"
    assert len(read_objects(tmp_path / "a.csv.errors.jsonl")) == 9


def test_more_rows_are_skipped_than_are_allowed(classifier, tmp_path, read_objects) -> None:
    path, output = tmp_path / "in.txt", tmp_path / "a.jsonl"
    path.write_text("the cat\n\na dog\nbooks\n\nthe cat\na dog\n\nbooks\n")
    skip: dict[str, Any] = {"on_error": "skip"}
    message = (
        r"^`max_errors=1`: 2 rows cannot be used. The last one: Line 5 of `.*in.txt`: column "
        r"'text' is blank. Correct such rows, or pass a larger number. Finished parts are kept"
    )
    with pytest.raises(DataFileError, match=message):
        qdqbert.run(classifier, path, output, max_errors=1, **skip)
    # A window was finished. Its row counts in a run that goes on.
    with pytest.raises(DataFileError, match=r"^`max_errors=0`: 1 row cannot be used. Correct"):
        qdqbert.run(classifier, path, output, max_errors=0, resume=True, **skip)
    with pytest.raises(DataFileError, match=r"`max_errors=2`: 3 rows .* one: Line 8 of"):
        qdqbert.run(classifier, path, output, max_errors=2, resume=True, **skip)
    report = qdqbert.run(classifier, path, output, max_errors=3, resume=True, **skip)
    assert (report.rows, report.skipped, report.resumed_rows) == (6, 3, 4)
    assert [each["row"] for each in read_objects(tmp_path / "a.jsonl.errors.jsonl")] == [2, 5, 8]


@pytest.mark.parametrize("place", ["a.jsonl", "folder/", "memory://errors/{}/a.jsonl"])
@pytest.mark.parametrize("lost", ["output", "errors", "nothing"])
@pytest.mark.parametrize("has_bad", [True, False])
def test_the_file_of_errors_is_replaced_as_the_output_is(
    classifier, tmp_path, place, lost, has_bad
) -> None:
    name = place.format(tmp_path.name) if "://" in place else f"{tmp_path}/{place}"
    (tmp_path / "in.txt").write_text("the cat\n\n")
    options: dict[str, Any] = {"on_error": "skip"}
    qdqbert.run(classifier, tmp_path / "in.txt", name, **options)
    output, errors = place_of(name), place_of(f"{name.rstrip('/')}.errors.jsonl")
    before = errors.read_bytes()
    if lost == "output":
        remove_tree(output)
    if lost == "errors":
        errors.unlink()
    (tmp_path / "other.txt").write_text("books\n\n\n" if has_bad else "books\n")
    for choice in ({}, {"resume": True}):
        with pytest.raises(UserInputError, match=r"already exists|was another one"):
            qdqbert.run(classifier, tmp_path / "other.txt", name, **options, **choice)
        assert errors.exists() == (lost != "errors")
        assert lost == "errors" or errors.read_bytes() == before
    qdqbert.run(classifier, tmp_path / "other.txt", name, overwrite=True, **options)
    found = errors.read_bytes().splitlines() if errors.exists() else []
    assert len(found) == (2 if has_bad else 0)


def test_a_folder_in_the_place_of_the_errors_is_named_before_the_run(classifier, tmp_path) -> None:
    (tmp_path / "in.txt").write_text("the cat\n")
    (tmp_path / "a.jsonl.errors.jsonl").mkdir()
    with pytest.raises(UserInputError, match=r"errors\.jsonl' is a folder, .* Move it away"):
        qdqbert.run(classifier, tmp_path / "in.txt", tmp_path / "a.jsonl", overwrite=True)


def test_a_file_with_other_columns_is_skipped_and_listed(
    classifier, tmp_path, read_objects
) -> None:
    pa = import_pyarrow()
    (tmp_path / "in").mkdir()
    for name, values in (("a", ["the cat"] * 5), ("b", [1, 2, 3]), ("c", ["a dog"] * 5)):
        pa.parquet.write_table(pa.table({"text": values}), tmp_path / f"in/{name}.parquet")
    with pytest.raises(DataFileError, match=r"`.*b\.parquet` column 'text' is int64"):
        qdqbert.run(classifier, tmp_path / "in", tmp_path / "a.jsonl")
    report = qdqbert.run(classifier, tmp_path / "in", tmp_path / "a.jsonl", on_error="skip")
    assert (report.rows, report.skipped) == (10, 3)
    (error,) = read_objects(tmp_path / "a.jsonl.errors.jsonl")
    reason = f"column 'text' is int64, and string in `{tmp_path}/in/a.parquet`"
    assert error == {
        "file": f"{tmp_path}/in/b.parquet",
        "row": 1,
        "last": 3,
        "rows": 3,
        "reason": reason,
    }


def test_a_number_of_errors_needs_rows_that_are_skipped() -> None:
    with pytest.raises(UserInputError, match=r"`max_errors=3` is for .* Pass `on_error='skip'`"):
        qdqbert.run("model", "in.txt", "out.jsonl", max_errors=3)


def test_rows_of_parquet_are_counted(classifier, tmp_path) -> None:
    pa = import_pyarrow()
    pa.parquet.write_table(pa.table({"text": ["the cat", None]}), tmp_path / "in.parquet")
    with pytest.raises(DataFileError, match=r"^Row 2 of `.*in.parquet`: it has no value"):
        qdqbert.run(classifier, tmp_path / "in.parquet", tmp_path / "a.jsonl")


@pytest.mark.parametrize(
    ("row", "suffix", "reason"),
    [
        ({"text": "the cat", "label": "x"}, "jsonl", "a field 'label', which is the name of an"),
        ({"text": "the cat", "extra": "x"}, "csv", "a field 'extra' that the first rows do not"),
    ],
)
def test_fields_that_the_first_rows_do_not_have(
    classifier, write_objects, tmp_path, row, suffix, reason
) -> None:
    path = write_objects([*[{"text": "the cat"}] * 120, row])
    with pytest.raises(DataFileError, match=f"Line 121 .*{reason}"):
        qdqbert.run(classifier, path, tmp_path / f"a.{suffix}")


def test_rows_that_are_skipped_on_the_way_to_stdout_are_in_the_log(
    classifier, bad_rows, monkeypatch, caplog
) -> None:
    stdout = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(sys, "stdout", stdout)
    caplog.set_level(logging.WARNING, "qdqbert")
    report = qdqbert.run(classifier, bad_rows, "-", on_error="skip")
    assert report.notices == (f"{len(BAD)} rows were skipped.",)
    assert f"Skipped Line 2 of `{bad_rows}`: {BAD[0][1]}." in caplog.messages


class Ahead(Silent):
    """Counts the answers of a run."""

    def __init__(self) -> None:
        self.rows = 0
        self.positions: list[int] = []

    def throughput(self, title: str, total: int | None = None) -> Any:
        def advance(*, rows: int, tokens: int, position: int, written: int = 0) -> None:
            self.rows += rows
            self.positions.append(position)

        return contextlib.nullcontext(advance)


@pytest.mark.parametrize("bad", [0, 2, 95])
def test_the_reader_is_at_most_a_few_windows_ahead(
    classifier, write_objects, tmp_path, monkeypatch, bad
) -> None:
    progress = Ahead()
    read: list[int] = []
    start = Source.start

    def counted(source: Any, *given: Any) -> Any:
        found = start(source, *given)
        return dataclasses.replace(found, rows=noted(found.rows))

    def noted(rows: Any) -> Any:
        for row in rows:
            read.append(progress.rows)
            yield row

    monkeypatch.setattr(Source, "start", counted)
    monkeypatch.setattr(pipeline, "_HEAD_ROWS", 1)
    # Bad rows are no reason to keep more rows in memory.
    path = write_objects(["" if index < bad else f"the cat {index}" for index in range(100)])
    qdqbert.run(classifier, path, tmp_path / "a.jsonl", on_error="skip", progress=progress)
    ahead = [index + 1 - done for index, done in enumerate(read)]
    assert len(ahead) == 100
    # Three chunks of 4 in the scheduler, and one that is being written.
    assert max(ahead) <= 16
    assert progress.rows == 100
    assert progress.positions == sorted(progress.positions)
    assert progress.positions[-1] == path.stat().st_size


def test_two_choices_of_the_prompt_are_refused() -> None:
    with pytest.raises(UserInputError, match="`prompt='a'` and `prompt_name='b'` both choose"):
        qdqbert.run("model", "in.txt", "out.jsonl", prompt="a", prompt_name="b")
