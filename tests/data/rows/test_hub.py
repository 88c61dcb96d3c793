from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from qdqbert.common.errors import DataFileError, MissingExtraError
from qdqbert.data.rows.data import Columns, read_dataset
from qdqbert.data.rows.hub import HubName, hub_rows, is_hub, parse_hub

datasets = pytest.importorskip("datasets", reason="datasets is not installed")
parquet = pytest.importorskip("pyarrow.parquet")

Save = Callable[..., Path]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `datasets` keeps of a test goes with the test."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Saves one split of a data set with its kinds of columns to a folder."""

    def write(split: str, columns: dict[str, list[object]], **features: object) -> Path:
        kinds = datasets.Features(features)
        folder = tmp_path / "set"
        folder.mkdir(exist_ok=True)
        made = datasets.Dataset.from_dict(columns, features=kinds)
        parquet.write_table(made.data.table, folder / f"{split}.parquet")
        return folder

    return write


def text() -> object:
    return datasets.Value("string")


def test_paths_of_files_are_not_hub_names() -> None:
    assert is_hub("hub:imdb@test")
    assert not is_hub("hub.csv")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("hub:imdb@test", HubName(name="imdb", config=None, split="test")),
        (
            "hub:nyu-mll/glue:sst2@train[:10]",
            HubName(name="nyu-mll/glue", config="sst2", split="train[:10]"),
        ),
        ("hub:/a@b/c@train", HubName(name="/a@b/c", config=None, split="train")),
    ],
    ids=["name", "config", "at-sign-in-folder"],
)
def test_names_are_split_into_their_parts(path: str, expected: HubName) -> None:
    assert parse_hub(path) == expected


def test_colon_in_an_existing_folder_does_not_start_a_config(tmp_path: Path) -> None:
    folder = tmp_path / "a:b"
    folder.mkdir()
    assert parse_hub(f"hub:{folder}@train").name == str(folder)


@pytest.mark.parametrize("path", ["hub:imdb", "hub:@train", "hub:imdb@", "hub:"])
def test_error_for_a_missing_part_shows_the_syntax(path: str) -> None:
    with pytest.raises(DataFileError, match="must be written `hub:NAME@SPLIT`"):
        parse_hub(path)


def test_classes_become_names_and_hidden_ones_none(save: Save) -> None:
    folder = save(
        "train",
        {"text": ["a", "b"], "label": [1, -1]},
        text=text(),
        label=datasets.ClassLabel(names=["neg", "pos"]),
    )
    assert list(hub_rows(f"hub:{folder}@train")) == [
        (1, {"text": "a", "label": "pos"}),
        (2, {"text": "b", "label": None}),
    ]


def test_classes_in_lists_become_names(save: Save) -> None:
    folder = save(
        "test",
        {"tokens": [["a", "b"]], "ner_tags": [[1, 0]]},
        tokens=datasets.List(text()),
        ner_tags=datasets.List(datasets.ClassLabel(names=["O", "B-PER"])),
    )
    rows = hub_rows(f"hub:{folder}@test")
    assert next(rows) == (1, {"tokens": ["a", "b"], "ner_tags": ["B-PER", "O"]})


def test_nested_and_missing_values_are_kept(save: Save) -> None:
    answers = {
        "text": datasets.List(text()),
        "answer_start": datasets.List(datasets.Value("int32")),
    }
    folder = save(
        "train",
        {"answers": [{"text": ["x"], "answer_start": [3]}, None]},
        answers=answers,
    )
    rows = [row for _, row in hub_rows(f"hub:{folder}@train")]
    assert rows[0] == {"answers": {"text": ["x"], "answer_start": [3]}}
    assert rows[1]["answers"] in (None, {"text": None, "answer_start": None})


def test_columns_of_hub_data_are_inferred(save: Save) -> None:
    folder = save(
        "train",
        {"sentence1": ["a", "b"], "sentence2": ["c", "d"], "label": [0, 1], "idx": [0, 1]},
        sentence1=text(),
        sentence2=text(),
        label=datasets.ClassLabel(names=["no", "yes"]),
        idx=datasets.Value("int32"),
    )
    path = f"hub:{folder}@train"
    dataset = read_dataset(path)
    assert dataset.path == path
    assert dataset.columns == Columns(text="sentence1", text_pair="sentence2", label="label")
    assert [(e.text, e.text_pair, e.label) for e in dataset.examples] == [
        ("a", "c", "no"),
        ("b", "d", "yes"),
    ]
    assert len(read_dataset(path, max_examples=1)) == 1


def test_slice_of_a_split_is_read(save: Save) -> None:
    folder = save("train", {"text": ["a", "b", "c"]}, text=text())
    rows = hub_rows(f"hub:{folder}@train[1:2]")
    assert [row["text"] for _, row in rows] == ["b"]


def test_unknown_split_names_the_known_ones(save: Save) -> None:
    folder = save("train", {"text": ["a"]}, text=text())
    with pytest.raises(DataFileError, match=r"Unknown split \"tes\".*'train'") as caught:
        next(hub_rows(f"hub:{folder}@tes"))
    assert "\n" not in str(caught.value)


def test_unknown_config_names_the_known_ones(save: Save) -> None:
    folder = save("train", {"text": ["a"]}, text=text())
    with pytest.raises(DataFileError, match=r"'zz' not found\. Available: \['default'\]"):
        next(hub_rows(f"hub:{folder}:zz@train"))


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataFileError, match=r"cannot be read: .*none"):
        next(hub_rows(f"hub:{tmp_path}/none@train"))


def test_unreachable_hub_is_a_data_file_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise ConnectionError("Couldn't reach 'imdb' on the Hub")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(DataFileError, match="Couldn't reach 'imdb' on the Hub"):
        next(hub_rows("hub:imdb@test"))


def test_progress_bars_are_disabled_and_restored(
    save: Save, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = save("train", {"text": ["a"]}, text=text())
    before = datasets.are_progress_bars_disabled()
    list(hub_rows(f"hub:{folder}@train"))
    assert datasets.are_progress_bars_disabled() == before
    assert capfd.readouterr() == ("", "")


def test_error_for_a_missing_library_shows_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'qdqbert\[datasets\]'"):
        next(hub_rows("hub:imdb@test"))
