from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from python_process import run_python
from qdqbert.common.errors import UserInputError
from qdqbert.common.objects import Rows, SavedModel, as_rows, saved

# Data.


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
        "import sys, qdqbert.common.objects; qdqbert.common.objects.as_rows([{}]);"
        "print({'pandas', 'datasets', 'numpy'} & set(sys.modules))"
    )
    assert run_python("-c", code) == "set()"


# Models.


class Part:
    """A model or a tokenizer that writes a file of its own."""

    def __init__(self, file: str, **attributes: object) -> None:
        self.file = file
        vars(self).update(attributes)

    def save_pretrained(self, folder: str) -> None:
        Path(folder).mkdir(exist_ok=True)
        (Path(folder) / self.file).touch()


class Sentence(Part):
    """A model that saves its tokenizer and a card, as those of sentence-transformers do."""

    tokenizer = Part("tokenizer.json")

    def save_pretrained(self, folder: str, create_model_card: bool = True) -> None:
        super().save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        if create_model_card:
            raise AssertionError("the card was not asked for")


def model(name: str = "") -> Part:
    return Part("model.safetensors", config=SimpleNamespace(_name_or_path=name))


BOTH = {"model.safetensors", "tokenizer.json"}


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ((model("owner/name"), Part("tokenizer.json")), "owner/name"),
        ((model(), Part("tokenizer.json")), "Part"),
        ((model("my-model/.."), Part("tokenizer.json")), "my-model/.."),
        (Part("x", model=model("/a/b c"), tokenizer=Part("tokenizer.json")), "/a/b c"),
        (Sentence("model.safetensors", model=None), "Sentence"),
        (Sentence("model.safetensors", transformers_model=model("owner/name")), "owner/name"),
    ],
    ids=[
        "pair",
        "pair-without-name",
        "pair-of-here",
        "pipeline",
        "cross-encoder",
        "sentence-transformer",
    ],
)
def test_a_model_is_in_a_folder_as_long_as_it_is_needed(value, name) -> None:
    with saved(value, "model") as found:
        assert isinstance(found, SavedModel)
        assert {each.name for each in Path(found).iterdir()} == BOTH
        assert (str(found), repr(found)) == (f"{name} (in memory)", f"'{name} (in memory)'")
        assert Path(found).name == Path(name).resolve().name
    assert not Path(found).parent.exists()


@pytest.mark.parametrize(
    "value",
    ["a", Path("a"), None, 3, ("a", "b"), (), (Part("x"), "b")],
    ids=["text", "path", "none", "number", "texts", "nothing", "no-tokenizer"],
)
def test_what_does_not_save_itself_is_left_alone(value) -> None:
    with saved(value, "model") as found:
        assert found is value


@pytest.mark.parametrize(
    "value", [model(), Part("x", model=model(), tokenizer=None)], ids=["model", "pipeline"]
)
def test_a_model_without_a_tokenizer_is_refused(value) -> None:
    with pytest.raises(UserInputError) as caught, saved(value, "path"):
        pass
    assert str(caught.value) == (
        "`path` is a Part without its tokenizer. Pass both: `path=(model, tokenizer)`."
    )
    assert caught.value.argument == "path"
