"""Decisions: one of several options with a probability, or none of them.

Questions and answers have the form of transformers' pipeline "decision" (System One): a `choice`
among named options, a `score` on levels, and a `noul`, which is whether something is so. What
transformers asks a generator is asked here of a model that reads labels: an option is its
description, or else its name. A temperature that examples show makes probabilities true.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NotRequired, TypedDict, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qdqbert.common.errors import UserInputError
from qdqbert.runtime.inputs import described, is_text, listed_labels
from qdqbert.runtime.scheduler import EncodedItem
from qdqbert.tasks.hypotheses import LabelJob, LabelLogits
from qdqbert.tasks.logits import apply, probabilities

Kind = Literal["choice", "score", "noul"]
_NOUL = ("true", "false")

# The smallest temperature of a call.
_COLDEST_GIVEN = 0.01
# Bounds of a fitted temperature, and steps of the search in them.
_COLDEST, _HOTTEST, _STEPS = 0.05, 20.0, 80
# As in Guo et al., "On Calibration of Modern Neural Networks" (2017).
_BINS = 15


class Decision(TypedDict):
    """The answer to a question: the fields of its `type` in transformers.

    `choice` is `None` if no option is as probable as the threshold of the call.
    """

    type: Kind
    choice: NotRequired[str | None]
    score: NotRequired[float]
    noul: NotRequired[float]
    legend: NotRequired[dict[str, str]]
    confidence: NotRequired[float]
    probabilities: NotRequired[dict[str, float]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Question:
    """A question about a text.

    Attributes:
        kind: Its `type`.
        options: Names of the options, levels, or "true".
        texts: What is said of the text if an option is right.
    """

    kind: Kind
    options: Sequence[str]
    texts: Sequence[str]

    def answer(self, logits: LabelLogits, temperature: float, threshold: float | None) -> Decision:
        """Return the answer, from what the model says about the options."""
        if self.kind == "noul":
            return {"type": "noul", "noul": float(apply("sigmoid", logits.alone)[0])}
        found = probabilities(logits.own / temperature)
        by_option = dict(zip(self.options, found.tolist(), strict=True))
        best, count = int(found.argmax()), len(found)
        if self.kind == "choice":
            is_sure = threshold is None or found[best] >= threshold
            share = 1 / count
            sure = 1.0 if count == 1 else max(0.0, float(found[best] - share) / (1 - share))
            return {
                "type": "choice",
                "choice": self.options[best] if is_sure else None,
                "confidence": sure,
                "probabilities": by_option,
            }
        levels = np.arange(count)
        uniform = float(np.abs(levels - (count - 1) / 2).mean())
        distance = float(found @ np.abs(levels - best))
        return {
            "type": "score",
            "score": float(found @ levels),
            "legend": dict(zip(self.options, self.texts, strict=True)),
            "confidence": 1.0 if count == 1 else max(0.0, 1 - distance / uniform),
            "probabilities": by_option,
        }


def choice_of(options: Any, argument: str = "options") -> Question:
    """Return the choice among options: a list of names, or names with descriptions or `None`.

    `argument` is the one of the call that has them.

    Raises:
        UserInputError: There are no options, or one is no text.
    """
    names = texts = listed_labels(options, argument)
    if isinstance(options, Mapping):
        texts = [_said(options[name], name, argument) for name in names]
    return Question(kind="choice", options=names, texts=texts)


def read_questions(questions: Any) -> dict[str, Question]:
    """Return questions by name, given as in transformers: `{"type": ..., "criteria": ...}` each.

    Raises:
        UserInputError: One of them is not as in transformers.
    """
    if not isinstance(questions, Mapping) or not questions:
        raise UserInputError(
            "`questions` maps names to questions, as {'tone': {'type': 'choice', 'criteria': "
            f"{{'calm': None, 'angry': None}}}}}}, got {described(questions)}.",
            argument="questions",
        )
    for name in questions:
        if not is_text(name) or not name.strip():
            raise UserInputError(
                f"`questions`: names have to be texts, got {described(name)}.", argument="questions"
            )
    return {name: _question(name, each) for name, each in questions.items()}


def _question(name: str, given: Any) -> Question:
    fields = given if isinstance(given, Mapping) else {}
    kind, criteria = fields.get("type"), fields.get("criteria")
    unknown = sorted(map(str, fields.keys() - {"type", "criteria", "instructions"}))
    if kind not in get_args(Kind) or unknown:
        got = f"the field {unknown[0]!r}" if unknown else described(given)
        raise UserInputError(
            f"`questions`: {name!r} has to be an object with `type` ({', '.join(get_args(Kind))}), "
            f"`criteria` and at most `instructions`, got {got}.",
            argument="questions",
        )
    if kind == "choice" and isinstance(criteria, Mapping) and criteria:
        return choice_of(criteria, "questions")
    if kind == "score" and isinstance(criteria, Sequence) and not isinstance(criteria, str):
        levels = listed_labels(criteria, "questions")
        return Question(
            kind="score", options=[str(each) for each in range(len(levels))], texts=levels
        )
    if kind == "noul" and isinstance(criteria, Mapping) and is_text(criteria.get("true")):
        said = _said(criteria["true"], name, "questions")
        return Question(kind="noul", options=_NOUL[:1], texts=[said])
    wanted = {
        "choice": "options with their descriptions or null",
        "score": "a list of levels, the lowest first",
        "noul": "what is said of the text if it is so, as {'true': 'a refund is requested'}: the "
        "model reads statements, and no `instructions`",
    }[str(kind)]
    raise UserInputError(
        f"`questions`: `criteria` of {name!r} has to be {wanted}; got {described(criteria)}.",
        argument="questions",
    )


def _said(text: Any, name: str, argument: str) -> str:
    if text is None:
        return name
    if not is_text(text) or not text.strip():
        raise UserInputError(
            f"`{argument}`: the description of {name!r} has to be None or a text that is not "
            f"blank, got {described(text)}.",
            argument=argument,
        )
    return str(text)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decide(LabelJob):
    """The job whose answer is a `Decision` on each text, or several by name.

    Its reader reads what the questions' options say, one question after the other.

    Attributes:
        questions: The questions by name; a single one without a name is "".
        temperature: Divides logits of options.
        threshold: Least probability of an option that is chosen; `None` for any.
    """

    questions: Mapping[str, Question]
    temperature: float
    threshold: float | None

    def answer(self, _: str, encoded: EncodedItem, values: Sequence[Any], /) -> Any:
        """Return the decisions."""
        logits, start = self.reader.logits(encoded, values), 0
        found: dict[str, Decision] = {}
        for name, question in self.questions.items():
            end = start + len(question.texts)
            own = LabelLogits(logits.own[start:end], logits.alone[start:end])
            found[name] = question.answer(own, self.temperature, self.threshold)
            start = end
        return found.get("") or found


def texts_of(questions: Mapping[str, Question]) -> list[str]:
    """Return what all options say, one question after the other."""
    return [text for each in questions.values() for text in each.texts]


def check_decision(temperature: float | None, threshold: float | None) -> None:
    """Refuse a temperature or a threshold that is no such number."""
    if not (temperature is None or (_is_number(temperature) and temperature >= _COLDEST_GIVEN)):
        raise UserInputError(
            f"`temperature` has to be a number of at least {_COLDEST_GIVEN:g}, got "
            f"{described(temperature)}.",
            argument="temperature",
        )
    if not (threshold is None or (_is_number(threshold) and 0 <= threshold <= 1)):
        raise UserInputError(
            f"`threshold` has to be a number from 0 to 1, got {described(threshold)}.",
            argument="threshold",
        )


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value)


def fitted_temperature(logits: Sequence[ArrayLike], right: Sequence[int]) -> float:
    """Return the temperature under which right options are most probable.

    Args:
        logits: Logits of the options of each example, `(options,)`.
        right: Index of the right option of each example.
    """
    values = [np.asarray(each, np.float64) for each in logits]
    starts = np.cumsum([0, *map(len, values)])[:-1]
    every = np.concatenate(values)
    chosen = every[starts + np.asarray(right)]

    def loss(inverse: float) -> float:
        sums = np.logaddexp.reduceat(every * inverse, starts)
        return float(np.mean(sums - chosen * inverse))

    # The loss is convex in the inverse of the temperature, whose logarithm keeps one minimum.
    low, high = np.log(1 / _HOTTEST), np.log(1 / _COLDEST)
    ratio = (np.sqrt(5) - 1) / 2
    for _ in range(_STEPS):
        first, second = high - ratio * (high - low), low + ratio * (high - low)
        if loss(np.exp(first)) < loss(np.exp(second)):
            high = second
        else:
            low = first
    return float(np.exp(-(low + high) / 2))


def calibration_error(
    rows: NDArray[np.float64], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the expected calibration error in percent, in 15 bins of equal width.

    Args:
        rows: The probability of the option that was chosen, and whether it is right, 0 or 1. Shape
            `(examples, 2)`.
        weights: Weights of the examples, `(samples, examples)`.
    """
    bins = np.clip(np.ceil(rows[:, 0] * _BINS).astype(np.int64) - 1, 0, _BINS - 1)
    gaps = (rows[:, 1] - rows[:, 0])[:, None] * (bins[:, None] == np.arange(_BINS))
    return np.asarray(100.0 * np.abs(weights @ gaps).sum(axis=-1) / weights.sum(axis=-1))


def rows_of_decisions(
    logits: Iterable[ArrayLike], right: Iterable[int], temperature: float
) -> NDArray[np.float64]:
    """Return the rows of `calibration_error` at a temperature."""
    found = []
    for each, index in zip(logits, right, strict=True):
        shares = probabilities(np.asarray(each, np.float64) / temperature)
        found.append((shares.max(), float(shares.argmax() == index)))
    return np.array(found, np.float64)
