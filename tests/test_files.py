"""Folders for temporary files."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

import qdqbert
from qdqbert.errors import UserInputError
from qdqbert.files import temporary_folder


def no_folder() -> str:
    raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")


@pytest.mark.parametrize("has_folder", [True, False])
def test_a_verb_names_the_variable_that_libraries_miss(monkeypatch, has_folder) -> None:
    def fail(*arguments: object) -> None:
        raise FileNotFoundError(2, "a message of a library")

    if not has_folder:
        monkeypatch.setattr(tempfile, "gettempdir", no_folder)
    monkeypatch.setattr("qdqbert.verbs.serve.run.run", fail)
    with pytest.raises(FileNotFoundError if has_folder else UserInputError) as failed:
        qdqbert.serve("model")
    assert ("TMPDIR" in str(failed.value)) is not has_folder


def test_without_a_folder_of_the_system_memory_is_used(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", no_folder)
    monkeypatch.setattr("qdqbert.files.MEMORY", tmp_path)
    with temporary_folder() as folder:
        assert folder.parent == tmp_path
    assert not list(tmp_path.iterdir())


def test_without_any_place_the_variable_is_named(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", no_folder)
    monkeypatch.setattr("qdqbert.files.MEMORY", tmp_path / "missing")
    with (
        pytest.raises(UserInputError, match=r"found in .* Set the environment variable TMPDIR"),
        temporary_folder(),
    ):
        pass


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [
        ("run", {"input": "texts.txt", "output": "{}.jsonl"}),
        ("run", {"input": "texts.txt", "output": "{}/"}),
        ("quantize", {"output": "{}", "calibration_data": "texts.txt"}),
        ("train", {"output": "{}", "train_data": "texts.txt"}),
        ("export", {"output": "{}", "to": "triton"}),
    ],
)
@pytest.mark.parametrize("reason", ["File name too long", "embedded null", "Permission den"])
def test_an_output_that_no_system_can_hold_is_refused_by_name(
    tmp_path, monkeypatch, quantized, verb, arguments, reason
) -> None:
    name = {"File name too long": 300 * "x", "embedded null": "a\0b"}.get(reason, "denied")
    texts = tmp_path / "texts.txt"
    texts.write_text("a text\n")
    known = Path.stat

    def denied(path: Path, **options: bool) -> object:
        if "denied" in path.name:
            raise PermissionError(13, "Permission denied")
        return known(path, **options)

    monkeypatch.setattr(Path, "stat", denied)
    values = {key: value.format(tmp_path / name) for key, value in arguments.items()}
    values |= {key: str(texts) for key in values if values[key] == "texts.txt"}
    with pytest.raises(UserInputError, match=f"cannot be written: .*{reason}") as refused:
        getattr(qdqbert, verb)(quantized("sentence").directory, **values)
    assert refused.value.argument == "output"
