"""Compare predictions with the float model's, without labels."""

from __future__ import annotations

import dataclasses
import itertools
import math
import operator
from collections.abc import Callable, Hashable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qdqbert.encoders.task_kinds import Vectors
from qdqbert.evidence.intervals import Interval, bootstrap_interval, share_interval
from qdqbert.evidence.vector_recall import max_sim_recall
from qdqbert.evidence.word_agreement import WordAgreement, word_agreement
from qdqbert.tasks.logits import apply
from qdqbert.tasks.task import Decisions, Entities, Prediction, Predictions, identity

Keys = Sequence[Hashable]
"""A key for each text or answer; equal texts have equal ones."""

MANY_CHANGED_PERCENT = 5.0
"""Share of changed predictions from which a model is far from float."""

# With fewer texts, not even the median is likely to be among the values that were seen: all of n
# values are on one side of it with a probability of 2 / 2^n, which is at most 5 % from 6 on.
_FEWEST_TEXTS = 6


@dataclasses.dataclass(frozen=True, kw_only=True)
class EntityAgreement:
    """Agreement of a tagger with the float model on entities, of which users read a list.

    Attributes:
        entities: Number of entities that one of the models finds.
        changed_percent: Share of these that the other model does not find, with equal type, first
            and last word, %.
        changed_interval: Its 95 % interval.
        texts_percent: Share of texts whose entities differ, %.
        texts_interval: Its 95 % interval.
        largest_difference: Largest difference of the probability of an entity, for models that
            score spans; `None` for taggers.
    """

    entities: int
    changed_percent: float
    changed_interval: Interval
    texts_percent: float
    texts_interval: Interval
    largest_difference: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fidelity:
    """Agreement of predictions with the float model's, over held-out texts.

    Attributes:
        texts: Number of predictions that were compared.
        sqnr_db: Signal-to-quantization-noise ratio over all predictions, dB.
        sqnr_interval: Its 95 % interval over the choice of texts.
        cosine_mean: Mean over texts of the cosine to the float prediction, for embeddings only; for
            vectors of tokens, the mean over tokens.
        cosine_min: Lowest cosine of any text, or of any token.
        flips_percent: Share of decisions (classes, tags of words, spans of text) that differ, %.
            `None` for tasks without decisions.
        flips_interval: The 95 % interval of this share.
        decisions: Number of decisions that were compared. A text can have several, and several
            features can have one. `None` for tasks without decisions.
        words: Agreement on the words that have a weight, for sparse embeddings only.
        max_sim_recall: Recall@10 by MaxSim, for vectors of tokens only: see `max_sim_recall`.
        entities: Agreement on entities, for taggers of entities only.
    """

    texts: int
    sqnr_db: float
    sqnr_interval: Interval
    cosine_mean: float | None
    cosine_min: float | None
    flips_percent: float | None
    flips_interval: Interval | None = None
    decisions: int | None = None
    words: WordAgreement | None = None
    max_sim_recall: float | None = None
    entities: EntityAgreement | None = None


def compare(
    reference: Sequence[ArrayLike],
    candidate: Sequence[ArrayLike],
    *,
    vectors: Vectors | None = None,
    decisions: tuple[Decisions, Decisions] | None = None,
    entities: tuple[Entities, Entities] | None = None,
    signal: Callable[[Prediction], Prediction] = identity,
    text_keys: Keys | None = None,
    answer_keys: Keys | None = None,
) -> Fidelity:
    """Return the fidelity of `candidate` to `reference`.

    Args:
        reference: Predictions of the float model, each `(channels,)` or `(positions, channels)`.
        candidate: Predictions to compare, of the same shapes.
        vectors: What predictions are as embeddings, which are compared by cosine too: vectors of
            tokens are `(tokens, dimensions)`. "spans" are logits of spans; `None` for others.
        decisions: Decisions of the float model, and of the candidate.
        entities: Entities that the float model finds in each text, and the candidate.
        signal: Part of a prediction that SQNR is computed from.
        text_keys: A key for each prediction. By default, all are of different texts.
        answer_keys: A key for the decisions of each answer, in the same way.

    Raises:
        ValueError: The shapes or the numbers of decisions differ.
    """
    left = [np.asarray(row) for row in reference]
    right = [np.asarray(row) for row in candidate]
    if [row.shape for row in left] != [row.shape for row in right] or not left:
        raise ValueError(
            f"Predictions must have equal shapes, got {_shapes(left)} and {_shapes(right)}."
        )
    if left[0].ndim == 0:
        raise ValueError("Predictions must have equal shapes (channels,), got numbers.")
    cosines = None
    if vectors not in (None, "spans"):
        cosines = all_cosines(left, right)
    flips = flips_interval = None
    counts = np.zeros((0, 2))
    if decisions is not None:
        counts = changed_counts(*decisions)
        flips = changed_percent(counts)
        flips_interval = flips_interval_of(counts, answer_keys or range(len(counts)))
    powers = signals_and_noises(left, right, signal)
    agreement = None if entities is None else _entity_agreement(*entities, answer_keys)
    if agreement is not None and vectors == "spans":
        largest = max(
            float(np.abs(apply("sigmoid", own) - apply("sigmoid", other)).max(initial=0))
            for own, other in zip(left, right, strict=True)
        )
        agreement = dataclasses.replace(agreement, largest_difference=largest)
    return Fidelity(
        texts=len(left),
        sqnr_db=to_decibels(*powers.sum(axis=0)),
        sqnr_interval=sqnr_interval_of(powers, text_keys or range(len(powers))),
        cosine_mean=None if cosines is None else float(cosines.mean()),
        cosine_min=None if cosines is None else float(cosines.min()),
        flips_percent=flips,
        flips_interval=flips_interval,
        decisions=None if decisions is None else int(counts[:, 1].sum()),
        words=word_agreement(left, right) if vectors == "sparse" else None,
        max_sim_recall=max_sim_recall(left, right) if vectors == "tokens" else None,
        entities=agreement,
    )


def _entity_agreement(
    reference: Entities, candidate: Entities, keys: Keys | None
) -> EntityAgreement:
    rows = [(len(a ^ b), len(a | b), a != b, 1) for a, b in zip(reference, candidate, strict=True)]
    counts = np.array(rows, dtype=np.float64).reshape(-1, 4)
    of_entities, of_texts = counts[:, :2], counts[:, 2:]
    known = keys or range(len(counts))
    return EntityAgreement(
        entities=int(of_entities[:, 1].sum()),
        changed_percent=changed_percent(of_entities),
        changed_interval=flips_interval_of(of_entities, known),
        texts_percent=changed_percent(of_texts),
        texts_interval=flips_interval_of(of_texts, known),
    )


def changed_counts(reference: Decisions, candidate: Decisions) -> NDArray[np.float64]:
    """Return how many decisions of each answer differ, and how many there are, `(answers, 2)`."""
    sizes = [[len(each) for each in side] for side in (reference, candidate)]
    if sizes[0] != sizes[1]:
        raise ValueError(f"Got {sum(sizes[0])} and {sum(sizes[1])} decisions; expected as many.")
    rows = [
        (sum(map(operator.ne, *pair)), len(pair[0]))
        for pair in zip(reference, candidate, strict=True)
    ]
    return np.array(rows, dtype=np.float64).reshape(-1, 2)


def changed_percent(counts: NDArray[np.float64]) -> float:
    """Return the share of decisions that differ, in percent; see `changed_counts`."""
    changed, total = counts.sum(axis=0)
    return 100 * float(changed) / max(float(total), 1)


def flips_interval_of(counts: NDArray[np.float64], keys: Keys, *, times: float = 1.0) -> Interval:
    """Return the interval of this share, for so many times as many answers."""
    share = share_interval(counts, keys, times=times)
    return Interval(low=100 * share.low, high=100 * share.high)


def signals_and_noises(
    reference: Predictions,
    candidate: Predictions,
    signal: Callable[[Prediction], Prediction] = identity,
) -> NDArray[np.float64]:
    """Return `signal_and_noise` of the signal of each prediction. Shape `(predictions, 2)`."""
    pairs = zip(reference, candidate, strict=True)
    return np.array([signal_and_noise(*map(signal, pair)) for pair in pairs])


def sqnr_interval_of(powers: NDArray[np.float64], keys: Keys, *, times: float = 1.0) -> Interval:
    """Return the interval of the SQNR over all predictions, for so many times as many.

    No text is expected to be farther from float than the farthest one of them. Nothing is known
    with fewer than six.
    """
    if len(set(keys)) * times < _FEWEST_TEXTS:
        return Interval(low=-math.inf, high=math.inf)
    order = np.argsort(powers[:, 1] / np.maximum(powers[:, 0], np.finfo(np.float64).tiny))
    best, worst = (powers[order[end]][None, None] for end in (0, -1))
    return bootstrap_interval(
        powers,
        lambda rows, weights: np.array(
            list(itertools.starmap(to_decibels, (weights @ rows).tolist()))
        ),
        (worst, best),
        keys,
        times=times,
    )


def sqnr_db(reference: ArrayLike, candidate: ArrayLike) -> float:
    """Return `10 log10(sum reference^2 / sum (candidate - reference)^2)`; `inf` if equal."""
    return to_decibels(*signal_and_noise(reference, candidate))


def signal_and_noise(reference: ArrayLike, candidate: ArrayLike) -> tuple[float, float]:
    """Return `sum reference^2` and `sum (candidate - reference)^2`."""
    a, b = _float64(reference), _float64(candidate)
    return float((a**2).sum()), float(((b - a) ** 2).sum())


def to_decibels(signal: float, noise: float) -> float:
    """Return `10 log10(signal / noise)`; `inf` without noise, `-inf` if the noise is not finite."""
    if noise == 0:
        return math.inf
    ratio = signal / noise
    return 10 * math.log10(ratio) if ratio > 0 else -math.inf


def all_cosines(reference: Predictions, candidate: Predictions) -> NDArray[np.float64]:
    """Return the cosines of the vectors of two models, one for each text or token."""
    return np.concatenate([*map(_cosines, reference, candidate)])


def _cosines(left: ArrayLike, right: ArrayLike) -> NDArray[np.float64]:
    """Return the cosines of the rows of two predictions, `(rows,)`; a vector is one row."""
    a, b = (np.atleast_2d(_float64(each)) for each in (left, right))
    lengths = np.linalg.norm(a, axis=1), np.linalg.norm(b, axis=1)
    products = (a * b).sum(axis=1) / np.maximum(lengths[0] * lengths[1], np.finfo(np.float64).tiny)
    # No word of a sparse embedding may have a weight.
    found: NDArray[np.float64] = np.where(lengths[0] + lengths[1] == 0, 1.0, products)
    return found


def _shapes(rows: Sequence[NDArray[np.generic]]) -> str:
    return str(sorted({row.shape for row in rows})[:3])


def _float64(values: ArrayLike | Sequence[ArrayLike]) -> NDArray[np.float64]:
    return np.asarray(values, dtype=np.float64)
