"""Which examples count as one."""

from __future__ import annotations

import numpy as np
import pytest

from qdqbert.data.rows.conll import TokenExample
from qdqbert.data.rows.data import Example
from qdqbert.data.tokenizing.encoding import Encoded
from qdqbert.pipeline.predictions import answer_keys, repeated_notices
from qdqbert.tasks.multiple_choice import ChoiceExample
from qdqbert.tasks.questions import QuestionExample
from qdqbert.tasks.registry import TASKS
from qdqbert.tasks.reranking import RankingExample
from qdqbert.tasks.task import Features


def features_of(examples, ids, owners=()) -> Features:
    """Return features whose tokens are the characters of `ids`."""
    inputs = tuple({"input_ids": np.array([*each.encode()], np.int32)} for each in ids)
    encoded = Encoded(inputs=inputs, padding={"input_ids": 0}, truncated=0)
    return Features(examples=tuple(examples), encoded=encoded, owners=owners)


def groups(keys) -> list[list[int]]:
    """Return the indices of the examples that count as one."""
    return [[i for i, key in enumerate(keys) if key == each] for each in dict.fromkeys(keys)]


# Of each task: two that differ in spacing and case, one that differs in its text, and another.
EXAMPLES = {
    "text-classification": [Example(text=each) for each in ("The cat", "the  cat ", "dog", "sun")],
    "fill-mask": [Example(text=each) for each in ("The cat", "the  cat ", "dog", "sun")],
    "next-sentence-prediction": [
        Example(text=each, text_pair="a") for each in ("The cat", "the  cat ", "dog", "sun")
    ],
    "token-classification": [
        TokenExample(words=each) for each in (("The", "cat"), ("the", "cat"), ("dog",), ("sun",))
    ],
    "multiple-choice": [
        ChoiceExample(context=each, prompt="", endings=("b", "c"))
        for each in ("The cat", "the  cat ", "dog", "sun")
    ],
    "question-answering": [
        QuestionExample(id=each, question=each, context="c")
        for each in ("The cat", "the  cat ", "dog", "sun")
    ],
}


@pytest.mark.parametrize("task", EXAMPLES)
def test_examples_count_once_if_their_texts_or_the_tokens_that_are_read_are_equal(task) -> None:
    found = {
        "apart": features_of(EXAMPLES[task], "abcd"),
        # The third one is cut after the tokens that it shares with the second one.
        "cut": features_of(EXAMPLES[task], "abbd"),
    }
    assert groups(answer_keys(TASKS[task], found["apart"])) == [[0, 1], [2], [3]]
    assert groups(answer_keys(TASKS[task], found["cut"])) == [[0, 1, 2], [3]]
    (notice,) = repeated_notices(TASKS[task], found["cut"])
    assert notice.startswith("2 of 4 examples repeat the text of an earlier one, or the tokens")


def test_questions_count_once_if_all_of_their_windows_are_equal() -> None:
    examples = [QuestionExample(id=each, question=each, context="c") for each in "pqr"]
    features = features_of(examples, "abaca", owners=(0, 0, 1, 1, 2))
    assert groups(answer_keys(TASKS["question-answering"], features)) == [[0], [1], [2]]
    features = features_of(examples, "ababa", owners=(0, 0, 1, 1, 2))
    assert groups(answer_keys(TASKS["question-answering"], features)) == [[0, 1], [2]]


def test_pairs_to_embed_count_once_if_both_texts_are_equal() -> None:
    examples = [Example(text=each, text_pair=f"{each} b") for each in "pqr"]
    features = features_of(examples, "aaa" + "bcb")
    assert groups(answer_keys(TASKS["feature-extraction"], features)) == [[0, 2], [1]]


def test_queries_count_once_if_their_documents_are_equal_whatever_their_id() -> None:
    examples = [
        RankingExample(text="q" + " " * group, text_pair=each, group=str(group))
        for group in range(3)
        for each in ("d", " D ", "e")[: 3 - group % 2]
    ]
    ids = [str(each.text_pair).strip().lower() for each in examples]
    task = TASKS["reranking"]
    # The second query has no document "e".
    assert groups(answer_keys(task, features_of(examples, ids))) == [[0, 2], [1]]
    (notice,) = repeated_notices(task, features_of(examples, ids))
    assert notice.startswith("1 of 3 queries repeats ")
