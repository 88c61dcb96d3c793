from __future__ import annotations

from pathlib import Path

import pytest

from qdqbert.common.errors import DataFileError
from qdqbert.data.rows.data import Columns, read_dataset


@pytest.fixture
def imdb(tmp_path: Path) -> Path:
    """A folder as IMDB's `aclImdb`."""
    for name, text in {
        "train/pos/0_9.txt": "Good.<br /><br />Very good.",
        "train/pos/1_7.txt": "Fine,\nall in all.",
        "train/pos/10_8.txt": "Nice.",
        "train/neg/0_1.txt": "Bad.",
        "train/unsup/0_0.txt": "So so.",
        "test/pos/0_10.txt": "Great.",
        "imdb.vocab": "the",
    }.items():
        path = tmp_path / "aclImdb" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path / "aclImdb"


def test_a_file_is_a_text_and_its_folder_the_label(imdb: Path) -> None:
    dataset = read_dataset(imdb / "train")
    assert [(example.text, example.label) for example in dataset.examples] == [
        ("Bad.", "neg"),
        ("Good.<br /><br />Very good.", "pos"),
        ("Nice.", "pos"),
        ("Fine,\nall in all.", "pos"),
    ]
    assert dataset.columns == Columns(text="text", label="label")


def test_first_examples_are_of_all_classes(imdb: Path) -> None:
    labels = [example.label for example in read_dataset(imdb / "train", max_examples=2).examples]
    assert sorted(labels) == ["neg", "pos"]


def test_texts_without_a_class_are_left_out(imdb: Path) -> None:
    assert read_dataset(imdb / "train").notices == (
        "Took neg, pos as labels: the names of the sub-folders.",
        "Left out 1 text without a label: `unsup`.",
    )


def test_error_for_the_root_names_the_folders_with_classes(imdb: Path) -> None:
    expected = rf"Name `{imdb}/test` or `{imdb}/train`, which has them\."
    with pytest.raises(DataFileError, match=expected):
        read_dataset(imdb)


def test_folder_without_classes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(DataFileError, match=r"is a directory, not a file; expected .* got none"):
        read_dataset(tmp_path)


def test_blank_files_are_skipped_and_line_ends_are_normalized(imdb: Path) -> None:
    (imdb / "train" / "neg" / "5_1.txt").write_text(" \n")
    (imdb / "train" / "neg" / "6_1.txt").write_bytes(b"a\r\nb")
    dataset = read_dataset(imdb / "train")
    assert len(dataset) == 5
    assert "a\nb" in [example.text for example in dataset.examples]
    assert "1 row with a blank text: skipped" in dataset.notices[-1]


def test_file_in_another_encoding_is_refused(imdb: Path) -> None:
    (imdb / "train" / "neg" / "5_1.txt").write_bytes(b"caf\xe9")
    with pytest.raises(DataFileError, match=r"5_1\.txt`: it is not UTF-8: byte 0xe9 at column 4"):
        read_dataset(imdb / "train")
