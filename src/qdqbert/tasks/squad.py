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

from qdqbert.errors import DataFileError

Golds = Mapping[str, Sequence[str]]
"""The right answers by id of the question; empty if the question has no answer."""

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_Scores = dict[str, float]


def normalize(text: str) -> str:
    """Return the text in lower case, without punctuation, English articles and extra spaces."""
    # Punctuation first: "the." is an article, and "a.m." becomes "am", which is not.
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def score_v1(golds: Golds, predictions: Mapping[str, str]) -> dict[str, float]:
    """Score answers to questions that all have an answer.

    Args:
        golds: Right answers, at least one for each question.
        predictions: Predicted answers by id, one for each question.

    Returns:
        `exact_match` and `f1`, in percent.

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
    exact = f1 = 0.0
    for id_, texts in golds.items():
        exact += max(_exact(predictions[id_], text) for text in texts)
        f1 += max(_f1_v1(predictions[id_], text) for text in texts)
    return {"exact_match": 100.0 * exact / len(golds), "f1": 100.0 * f1 / len(golds)}


def score_v2(golds: Golds, predictions: Mapping[str, str]) -> dict[str, float]:
    """Score answers to questions of which some have no answer; for these "" is right.

    Args:
        golds: Right answers; empty for a question without an answer.
        predictions: Predicted answers by id; "" for no answer.

    Returns:
        `exact` and `f1`, in percent, and `total`; the same as `HasAns_…` and `NoAns_…` over the
        questions with and without an answer, if there are any.

    Raises:
        DataFileError: There is no question.
    """
    _check_some(golds)
    exact = _best_of(golds, predictions, _exact)
    f1 = _best_of(golds, predictions, _f1_v2)
    result = _means(exact, f1, list(golds))
    for prefix, is_answered in (("HasAns", True), ("NoAns", False)):
        ids = [id_ for id_, texts in golds.items() if bool(texts) is is_answered]
        if ids:
            means = _means(exact, f1, ids)
            result |= {f"{prefix}_{name}": value for name, value in means.items()}
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
) -> _Scores:
    """Return the score of each prediction, compared with the right answer that it fits best."""
    return {
        # Right answers that consist of articles and punctuation only are left out.
        id_: max(score(predictions[id_], each) for each in list(filter(normalize, texts)) or [""])
        for id_, texts in golds.items()
    }


def _means(exact: _Scores, f1: _Scores, ids: Sequence[str]) -> dict[str, float]:
    return {
        "exact": 100.0 * sum(exact[id_] for id_ in ids) / len(ids),
        "f1": 100.0 * sum(f1[id_] for id_ in ids) / len(ids),
        "total": len(ids),
    }
