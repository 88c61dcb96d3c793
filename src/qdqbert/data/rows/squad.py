"""SQuAD's metrics, with exactly the results of the official evaluators of v1.1 and v2.0.

Both convert answers to lower case and remove punctuation, then articles, then extra spaces, before
they compare words. They differ if nothing is left: in v1.1 two empty answers share no word, so F1
is 0 although they match exactly; in v2.0 they agree.

Source: evaluate-v1.1.py and evaluate-v2.0.py, https://rajpurkar.github.io/SQuAD-explorer/.
"""

from __future__ import annotations

import collections
import re
import string
from collections.abc import Callable, Mapping, Sequence

from qdqbert.common.errors import DataFileError

Golds = Mapping[str, Sequence[str]]
"""The right answers by id of the question; empty if the question has no answer."""

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")

QuestionScores = dict[str, list[float]]
"""Scores of single questions, 0 to 1, by the name of the metric."""


def normalize(text: str) -> str:
    """Return the text in lower case, without punctuation, English articles and extra spaces."""
    # Punctuation first: "the." is an article, and "a.m." becomes "am", which is not.
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def scores_v1(golds: Golds, predictions: Mapping[str, str]) -> QuestionScores:
    """Score answers to questions that all have an answer.

    Args:
        golds: Right answers, at least one for each question.
        predictions: Predicted answers by id, one for each question.

    Returns:
        `f1` and `exact_match`.

    Raises:
        DataFileError: There is no question, or a question has no right answer.
    """
    _check_some(golds)
    unanswerable = next((id_ for id_, texts in golds.items() if not texts), None)
    if unanswerable is not None:
        raise DataFileError(
            f"Question {unanswerable!r} must have an answer, because SQuAD v1.1 has no questions "
            "without one. Score the questions as v2.0."
        )
    return {
        name: [max(score(predictions[id_], text) for text in texts) for id_, texts in golds.items()]
        for name, score in (("f1", _f1_v1), ("exact_match", _exact))
    }


def scores_v2(golds: Golds, predictions: Mapping[str, str]) -> QuestionScores:
    """Score answers to questions of which some have no answer; for these "" is right.

    Args:
        golds: Right answers; empty for a question without an answer.
        predictions: Predicted answers by id; "" for no answer.

    Returns:
        `f1` and `exact`; the same as `HasAns_…` and `NoAns_…` for the questions with and without
        an answer, if there are any.

    Raises:
        DataFileError: There is no question.
    """
    _check_some(golds)
    scores = {
        "f1": _best_of(golds, predictions, _f1_v2),
        "exact": _best_of(golds, predictions, _exact),
    }
    result = {name: list(each.values()) for name, each in scores.items()}
    for prefix, is_answered in (("HasAns", True), ("NoAns", False)):
        ids = [id_ for id_, texts in golds.items() if bool(texts) is is_answered]
        if ids:
            result |= {
                f"{prefix}_{name}": [each[id_] for id_ in ids] for name, each in scores.items()
            }
    return result


def _check_some(golds: Golds) -> None:
    if not golds:
        raise DataFileError("There must be at least one question to score, got none.")


def _exact(prediction: str, gold: str) -> int:
    return int(normalize(prediction) == normalize(gold))


def _f1_v1(prediction: str, gold: str) -> float:
    return _overlap(normalize(prediction).split(), normalize(gold).split())


def _f1_v2(prediction: str, gold: str) -> float:
    words = normalize(prediction).split(), normalize(gold).split()
    return _overlap(*words) if all(words) else float(words[0] == words[1])


def _overlap(prediction: list[str], gold: list[str]) -> float:
    """Return the F1 score of two multisets of words; 0 if they share none."""
    same = (collections.Counter(prediction) & collections.Counter(gold)).total()
    if not same:
        return 0.0
    precision, recall = same / len(prediction), same / len(gold)
    return (2 * precision * recall) / (precision + recall)


def _best_of(
    golds: Golds, predictions: Mapping[str, str], score: Callable[[str, str], float]
) -> dict[str, float]:
    """Return the score of each prediction, compared with the right answer that it fits best."""
    return {
        # Right answers that consist of articles and punctuation only are left out.
        id_: max(score(predictions[id_], each) for each in list(filter(normalize, texts)) or [""])
        for id_, texts in golds.items()
    }
