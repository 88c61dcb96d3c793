"""JSON files from outside: every fault is an error that names the file and the setting."""

from __future__ import annotations

from pathlib import Path

import pytest

from qdqbert.common import json_files
from qdqbert.common.errors import CheckpointError
from qdqbert.common.json_files import Fields, parse_json, read_json


def fields(**values: object) -> Fields:
    return Fields(values, CheckpointError)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not JSON"),
        (b'{"a": 1', "not JSON"),
        (b"[]", "object"),
        (b"null", "object"),
        (b"\xff", "UTF-8"),
        (b"[" * 100_000, "deeply"),
        (b'{"a": ' * 100_000, "deeply"),
        (b'{"a": {"b": 1, "b": 2}}', "'b' is there twice"),
        (b'{"a": "\\ud800"}', "no character"),
        (b'{"a": 1' + b"0" * 5000 + b"}", "not JSON"),
    ],
)
def test_what_is_not_a_json_object_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=reason) as caught:
        read_json(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(CheckpointError, match=path.name):
            read_json(path)


def test_a_file_that_is_too_large_is_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(json_files, "_LARGEST_FILE", 10)
    path = tmp_path / "config.json"
    path.write_text('{"a": 123456}')
    with pytest.raises(CheckpointError, match="larger"):
        read_json(path)


def test_equal_names_can_be_allowed() -> None:
    assert parse_json('{"a": 1, "a": 2}', "tokenizer.json", unique=False) == {"a": 2}


def test_escaped_characters_of_two_units_are_read() -> None:
    assert parse_json('{"a": "\\ud83d\\ude00"}', "a.json") == {"a": "\U0001f600"}


@pytest.mark.parametrize("value", [None, True, "1", 1.0, 0, 10**400, [], {}])
def test_only_integers_in_the_limits_are_integers(value: object) -> None:
    with pytest.raises(CheckpointError, match="setting 'a' is"):
        fields(a=value).integer("a", 1, 10)


@pytest.mark.parametrize("value", [None, True, "1", float("nan"), float("inf"), 10**400, -1])
def test_only_finite_numbers_in_the_limits_are_numbers(value: object) -> None:
    with pytest.raises(CheckpointError, match="setting 'a' is"):
        fields(a=value).number("a", 0)


def test_errors_name_the_whole_path_of_a_setting() -> None:
    inner = fields(a=[{"b": {"c": 1}}])
    with pytest.raises(CheckpointError, match=r"setting 'a\.0\.b\.c' is 1 and has to be a text"):
        inner.children("a")[0].child("b").text("c")
    with pytest.raises(CheckpointError, match=r"setting 'a\.0\.b\.d' is missing"):
        inner.children("a")[0].child("b").get("d")


def test_long_values_are_cut_in_errors() -> None:
    with pytest.raises(CheckpointError) as caught:
        fields(a="x" * 1000).truth("a")
    assert len(str(caught.value)) < 200
