from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Sequence

import numpy as np
import pytest

from qdqbert.tasks.spans import predict
from qdqbert.tasks.task import TaskOptions

CONTEXT = "the cat was on the old tree . rain came down by the river"
OPTIONS = TaskOptions()
BEFORE = 5  # [CLS] where is it [SEP]


def offsets_of(context: str, first: int = 0, last: int | None = None) -> np.ndarray:
    """Of a window of some words of a context, each one a token, after a question, before [SEP]."""
    words = context.split(" ") if context else []
    starts = np.cumsum([0, *(len(word) + 1 for word in words)])[: len(words)]
    spans = [(start, start + len(word)) for start, word in zip(starts, words, strict=True)]
    return np.array([*[(-1, -1)] * BEFORE, *spans[first:last], (-1, -1)], np.int32)


def scored(offsets: np.ndarray, spans: dict[tuple[int, int], float]) -> np.ndarray:
    """A row of -9 with some starts and ends raised to a score."""
    row = np.full((len(offsets), 2), -9, np.float32)
    for (start, end), value in spans.items():
        row[start, 0] = row[end, 1] = value
    return row


def windows(context: str, *spans: dict[tuple[int, int], float]) -> list:
    """One window of five words for each, that share two."""
    offsets = [offsets_of(context, 3 * i, 3 * i + 5) for i in range(len(spans))]
    return [(scored(each, wanted), each) for each, wanted in zip(offsets, spans, strict=True)]


def test_the_best_span_of_all_windows_is_the_answer() -> None:
    shown = windows(CONTEXT, {(5, 6): 1.0}, {(7, 8): 3.0}, {}, {(0, 0): 9.0})
    prediction = predict(shown, CONTEXT, OPTIONS, has_null=False)
    assert (prediction.text, prediction.null_odds) == ("old tree", None)


def test_spans_outside_of_the_context_backwards_or_too_long_are_no_answers() -> None:
    offsets = offsets_of(CONTEXT)
    row = scored(offsets, {(0, 0): 8.0, (2, 3): 7.0, (19, 19): 6.0})
    row[10, 0] = row[6, 1] = 5.0  # backwards
    row[6, 0] = 4.0  # with the end at 6: one token
    row[17, 1] = 4.5
    options = dataclasses.replace(OPTIONS, max_answer_length=5)
    assert predict([(row, offsets)], CONTEXT, options, has_null=False).text == "cat"
    # 10 to 17 is the better span as soon as eight tokens are allowed.
    options = dataclasses.replace(OPTIONS, max_answer_length=8)
    answer = predict([(row, offsets)], CONTEXT, options, has_null=False).text
    assert answer == "old tree . rain came down by the"


def test_the_usual_word_stands_where_no_span_is_possible() -> None:
    prediction = predict(windows("", {}), "", OPTIONS, has_null=False)
    assert prediction.text == "empty"
    assert prediction.n_best == [
        {"start_logit": 0.0, "end_logit": 0.0, "text": "empty", "probability": 1.0}
    ]


TREE = "the cat was on the old tree"
# Null scores 2 x 3 and 2 x 1 of two windows, and a best span of 2 x 2.5.
ANSWERED = ({(0, 0): 3.0, (6, 6): 2.5}, {(0, 0): 1.0})
RAIN = {(0, 0): 4.0, (5, 5): 1.5}


def test_the_best_span_is_compared_with_the_least_null_score() -> None:
    prediction = predict(windows(TREE, *ANSWERED), TREE, OPTIONS, has_null=True)
    assert (prediction.text, prediction.null_odds) == ("cat", 2 - 5)
    prediction = predict(windows("rain", RAIN), "rain", OPTIONS, has_null=True)
    assert (prediction.text, prediction.null_odds) == ("", 8 - 3)


@pytest.mark.parametrize(
    ("threshold", "expected"),
    [(-3.5, ["", ""]), (-3.0, ["cat", ""]), (4.5, ["cat", ""]), (5.0, ["cat", "rain"])],
)
def test_nothing_is_answered_above_the_threshold(threshold: float, expected: list[str]) -> None:
    options = dataclasses.replace(OPTIONS, null_score_diff_threshold=threshold)
    shown = {TREE: windows(TREE, *ANSWERED), "rain": windows("rain", RAIN)}
    answers = [predict(each, text, options, has_null=True).text for text, each in shown.items()]
    assert answers == expected


def test_n_best_are_spans_with_probabilities_and_the_null_score() -> None:
    options = dataclasses.replace(OPTIONS, n_best_size=2)
    shown = windows(TREE, *ANSWERED)
    shown[0][0][5:8] = 4.0
    first = predict(shown, TREE, options, has_null=True).n_best
    second = predict(windows("rain", RAIN), "rain", options, has_null=True).n_best
    # Two spans are better than "no answer", which is put after them all the same.
    assert [each["text"] for each in first] == ["was", "cat was", ""]
    assert (first[2]["start_logit"], first[2]["end_logit"]) == (1.0, 1.0)
    assert [each["text"] for each in second] == ["", "rain"]
    powers = np.exp([8.0 - 8.0, 3.0 - 8.0])
    assert [each["probability"] for each in second] == pytest.approx(list(powers / powers.sum()))
    json.dumps([first, second], allow_nan=False)


def reference_answer(
    shown: Sequence[tuple[np.ndarray, np.ndarray]],
    context: str,
    options: TaskOptions,
    *,
    has_null: bool,
) -> str:
    """The rules of `utils_qa.py` in plain loops; without its n-best, which only cuts the search."""
    spans, nulls = [], []
    for row, offsets in shown:
        nulls.append(row[0, 0] + row[0, 1])
        for start in range(len(row)):
            for end in range(start, min(len(row), start + options.max_answer_length)):
                if offsets[start, 0] >= 0 and offsets[end, 0] >= 0:
                    text = context[offsets[start, 0] : offsets[end, 1]]
                    spans.append((row[start, 0] + row[end, 1], text))
    score, text = max(spans)
    if has_null and min(nulls) - score > options.null_score_diff_threshold:
        return ""
    return text


@pytest.mark.parametrize("has_null", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_answers_are_those_of_plain_loops(has_null: bool, seed: int) -> None:
    rng = random.Random(seed)
    noise = np.random.default_rng(seed)
    options = TaskOptions(n_best_size=1000, max_answer_length=4, null_score_diff_threshold=-1.0)
    answers = set()
    for _ in range(12):
        count = rng.randint(1, 30)
        context = " ".join(rng.choices(CONTEXT.split(), k=count))
        offsets = [offsets_of(context, i, i + 10) for i in range(0, max(1, count - 2), 8)]
        shown = [(noise.normal(size=each.shape).astype(np.float32), each) for each in offsets]
        expected = reference_answer(shown, context, options, has_null=has_null)
        assert predict(shown, context, options, has_null=has_null).text == expected
        answers.add(expected)
    assert len(answers - {""}) > 3
