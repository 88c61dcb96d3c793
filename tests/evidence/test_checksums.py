"""Checksums of folders."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from qdqbert.common.errors import CheckpointError
from qdqbert.evidence.checksums import CHECKSUMS, check_files, require_intact, write_checksums

CONTENT = {"model.onnx": b"graph", "1_Pooling/config.json": b"{}", "README.md": b"card"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in CONTENT.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    write_checksums(tmp_path, leave_out={"README.md"})
    return tmp_path


def verdicts(folder: Path) -> dict[str, str]:
    return {each.name: each.verdict for each in check_files(folder)}


def test_the_file_has_the_lines_of_sha256sum(folder) -> None:
    names = ("1_Pooling/config.json", "model.onnx")
    expected = [f"{hashlib.sha256(CONTENT[name]).hexdigest()}  {name}" for name in names]
    assert (folder / CHECKSUMS).read_text().splitlines() == expected


def test_an_unchanged_folder_is_intact(folder) -> None:
    (folder / "README.md").write_text("another card")
    (folder / "notes.txt").write_text("not written by quantize")
    assert verdicts(folder) == {"1_Pooling/config.json": "intact", "model.onnx": "intact"}


def test_changed_and_missing_files_are_named(folder) -> None:
    (folder / "model.onnx").write_bytes(b"grapH")
    (folder / "1_Pooling" / "config.json").unlink()
    assert verdicts(folder) == {"1_Pooling/config.json": "missing", "model.onnx": "changed"}


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"no checksum"])
def test_damaged_checksums_are_a_changed_file(folder, content) -> None:
    (folder / CHECKSUMS).write_bytes(content)
    assert verdicts(folder) == {CHECKSUMS: "changed"}


def test_one_damaged_line_does_not_hide_the_others(folder) -> None:
    path = folder / CHECKSUMS
    path.write_text(path.read_text().replace("  1_P", "1_P"))
    assert verdicts(folder) == {"model.onnx": "intact", CHECKSUMS: "changed"}


def test_a_folder_without_checksums_cannot_be_checked(tmp_path) -> None:
    assert check_files(tmp_path) is None


def test_a_file_that_cannot_be_read_is_not_called_damaged(folder, monkeypatch) -> None:
    name = check_files(folder)[0].name

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("qdqbert.evidence.checksums.digest_of", refuse)
    with pytest.raises(CheckpointError, match=f"{name}' cannot be read: Permission denied"):
        require_intact(folder, [name])
