from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Sequence

import numpy as np
import pytest

from qdqbert.encoders.task_kinds import TaskSettings
from qdqbert.tasks.spans import predict

CONTEXT = "the cat was on the old tree . rain came down by the river"
OPTIONS = TaskSettings()
# Number of tokens of: [CLS] where is it [SEP].
BEFORE = 5


def offsets_of(context: str, first: int = 0, last: int | None = None) -> np.ndarray:
    """Return the offsets of a window of words, each one token, after a question."""
    words = context.split(" ") if context else []
    starts = np.cumsum([0, *(len(word) + 1 for word in words)])[: len(words)]
    spans = [(start, start + len(word)) for start, word in zip(starts, words, strict=True)]
    return np.array([*[(-1, -1)] * BEFORE, *spans[first:last], (-1, -1)], np.int32)


def scored(offsets: np.ndarray, spans: dict[tuple[int, int], float]) -> np.ndarray:
    """Return scores of -9, with those of some starts and ends replaced."""
    scores = np.full((len(offsets), 2), -9, np.float32)
    for (start, end), value in spans.items():
        scores[start, 0] = scores[end, 1] = value
    return scores


def windows(context: str, *spans: dict[tuple[int, int], float]) -> list:
    """Return a window of five words for each item; consecutive windows share two words."""
    offsets = [offsets_of(context, 3 * i, 3 * i + 5) for i in range(len(spans))]
    return [(scored(each, wanted), each) for each, wanted in zip(offsets, spans, strict=True)]


def test_the_best_span_of_all_windows_is_the_answer() -> None:
    shown = windows(CONTEXT, {(5, 6): 1.0}, {(7, 8): 3.0}, {}, {(0, 0): 9.0})
    prediction = predict(shown, CONTEXT, OPTIONS, has_null=False)
    assert (prediction.text, prediction.null_odds) == ("old tree", None)


def test_spans_outside_the_context_reversed_or_too_long_are_ignored() -> None:
    offsets = offsets_of(CONTEXT)
    scores = scored(offsets, {(0, 0): 8.0, (2, 3): 7.0, (19, 19): 6.0})
    # The best start is after the best end.
    scores[10, 0] = scores[6, 1] = 5.0
    # With the end at 6, a span of one token.
    scores[6, 0] = 4.0
    scores[17, 1] = 4.5
    options = dataclasses.replace(OPTIONS, max_answer_length=5)
    assert predict([(scores, offsets)], CONTEXT, options, has_null=False).text == "cat"
    # The span from 10 to 17 is better if eight tokens are allowed.
    options = dataclasses.replace(OPTIONS, max_answer_length=8)
    answer = predict([(scores, offsets)], CONTEXT, options, has_null=False).text
    assert answer == "old tree . rain came down by the"


def test_the_answer_is_empty_if_no_span_is_possible() -> None:
    prediction = predict(windows("", {}), "", OPTIONS, has_null=False)
    assert prediction.text == "empty"
    assert prediction.n_best == [
        {"start_logit": 0.0, "end_logit": 0.0, "text": "empty", "probability": 1.0}
    ]


TREE = "the cat was on the old tree"
# Two windows with null scores 2 x 3 and 2 x 1, and a best span with score 2 x 2.5.
ANSWERED = ({(0, 0): 3.0, (6, 6): 2.5}, {(0, 0): 1.0})
RAIN = {(0, 0): 4.0, (5, 5): 1.5}


def test_the_best_span_is_compared_with_the_lowest_null_score() -> None:
    prediction = predict(windows(TREE, *ANSWERED), TREE, OPTIONS, has_null=True)
    assert (prediction.text, prediction.null_odds) == ("cat", 2 - 5)
    prediction = predict(windows("rain", RAIN), "rain", OPTIONS, has_null=True)
    assert (prediction.text, prediction.null_odds) == ("", 8 - 3)


@pytest.mark.parametrize(
    ("threshold", "expected"),
    [(-3.5, ["", ""]), (-3.0, ["cat", ""]), (4.5, ["cat", ""]), (5.0, ["cat", "rain"])],
)
def test_no_answer_is_returned_above_the_threshold(threshold: float, expected: list[str]) -> None:
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
    # "No answer" is always listed, also if more than `n_best_size` spans are better.
    assert [each["text"] for each in first] == ["was", "cat was", ""]
    assert (first[2]["start_logit"], first[2]["end_logit"]) == (1.0, 1.0)
    assert [each["text"] for each in second] == ["", "rain"]
    powers = np.exp([8.0 - 8.0, 3.0 - 8.0])
    assert [each["probability"] for each in second] == pytest.approx(list(powers / powers.sum()))
    json.dumps([first, second], allow_nan=False)


def reference_answer(
    shown: Sequence[tuple[np.ndarray, np.ndarray]],
    context: str,
    options: TaskSettings,
    *,
    has_null: bool,
) -> str:
    """Apply the rules of `utils_qa.py` in plain loops, to all spans instead of the n best."""
    spans, nulls = [], []
    for scores, offsets in shown:
        nulls.append(scores[0, 0] + scores[0, 1])
        for start in range(len(scores)):
            for end in range(start, min(len(scores), start + options.max_answer_length)):
                if offsets[start, 0] >= 0 and offsets[end, 0] >= 0:
                    text = context[offsets[start, 0] : offsets[end, 1]]
                    spans.append((scores[start, 0] + scores[end, 1], text))
    score, text = max(spans)
    if has_null and min(nulls) - score > options.null_score_diff_threshold:
        return ""
    return text


@pytest.mark.parametrize("has_null", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_answers_equal_those_of_plain_loops(has_null: bool, seed: int) -> None:
    rng = random.Random(seed)
    noise = np.random.default_rng(seed)
    options = TaskSettings(n_best_size=1000, max_answer_length=4, null_score_diff_threshold=-1.0)
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
