"""Misspelled keywords are refused with the nearest parameter."""

from __future__ import annotations

import inspect

import pytest

import qdqbert
from qdqbert.common.keywords import nearest, suggest_keywords
from qdqbert.integrations.ray import Predictor
from qdqbert.runtime.model import Model
from qdqbert.tasks.registry import TASKS


@suggest_keywords
def shift(values: list[int], *, offset: int) -> list[int]:
    """Shift values."""
    return [value + offset for value in values]


def test_a_call_without_mistakes_is_not_changed() -> None:
    assert shift([1, 2], offset=3) == [4, 5]
    assert shift.__doc__ == "Shift values."
    assert str(inspect.signature(shift)) == "(values: 'list[int]', *, offset: 'int') -> 'list[int]'"


def test_old_names_of_sentence_transformers_are_read() -> None:
    @suggest_keywords
    def encode(inputs: str) -> str:
        return inputs

    assert encode(sentences="a") == "a"  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="multiple values for argument 'inputs'"):
        encode("a", sentences="b")  # type: ignore[call-arg]


def test_keywords_of_older_versions_are_refused_with_what_replaces_them() -> None:
    @suggest_keywords
    def tag(text: str, top_k: int | None = 1, aggregation_strategy: str = "none") -> str:
        return text

    for keyword, replacement in (
        ("return_all_scores", "top_k=None"),
        ("grouped_entities", "aggregation_strategy='simple'"),
    ):
        with pytest.raises(TypeError, match=f"Did you mean `{replacement}`"):
            tag("a", **{keyword: True})
    with pytest.raises(TypeError, match=r"'grouped_entities'\.$"):
        shift([1], offset=1, grouped_entities=True)  # type: ignore[call-arg]


def test_keywords_that_change_no_result_are_taken() -> None:
    @suggest_keywords
    def encode(inputs: str, chunk_size: int = 0) -> tuple[str, int]:
        return inputs, chunk_size

    assert encode("a", padding=True, num_workers=2, pool=None) == ("a", 0)  # type: ignore[call-arg]
    assert encode("a", chunk_size=3) == ("a", 3)
    with pytest.raises(TypeError, match="unexpected keyword argument 'padding'"):
        shift([1], offset=1, padding=True)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: shift([1], ofset=1),
            "shift() got an unexpected keyword argument 'ofset'. Did you mean `offset`?",
        ),
        (lambda: shift([1], xyz=1), "shift() got an unexpected keyword argument 'xyz'."),
        (
            lambda: qdqbert.load("m", taks="reranking"),
            "load() got an unexpected keyword argument 'taks'. Did you mean `task`?",
        ),
        (
            lambda: qdqbert.Limits(maxdrop=1),
            "Limits() got an unexpected keyword argument 'maxdrop'. Did you mean `max_drop`?",
        ),
        (
            lambda: qdqbert.Optimization(epoch=1),
            "Optimization() got an unexpected keyword argument 'epoch'. Did you mean `epochs`?",
        ),
        (
            lambda: Predictor("m", thread=1),
            "Predictor() got an unexpected keyword argument 'thread'. Did you mean `threads`?",
        ),
    ],
)
def test_a_misspelled_keyword_is_refused_with_the_nearest_one(call, message) -> None:
    with pytest.raises(TypeError) as caught:
        call()
    assert str(caught.value) == message


METHODS = [
    method
    for model in sorted({task.model for task in TASKS.values() if task.model}, key=str)
    for name, method in inspect.getmembers(model, inspect.isfunction)
    if (name == "__call__" or not name.startswith("_"))
    and "job" not in name
    and name not in vars(Model)
    and any(
        each.kind is each.KEYWORD_ONLY for each in inspect.signature(method).parameters.values()
    )
]


@pytest.mark.parametrize("method", METHODS, ids=lambda each: each.__qualname__)
def test_methods_of_models_name_the_nearest_keyword(method) -> None:
    *_, last = inspect.signature(method).parameters
    with pytest.raises(TypeError, match=f"'{last}x'. Did you mean `{last}`"):
        method(None, **{f"{last}x": 1})


def test_the_nearest_name_is_similar() -> None:
    assert nearest("max_dorp", ["max_drop", "min_sqnr"]) == "max_drop"
    assert nearest("engine", ["max_drop", "min_sqnr"]) is None
