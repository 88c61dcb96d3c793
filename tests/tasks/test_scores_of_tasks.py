"""Rules that the scores of all tasks obey, on random predictions."""

from __future__ import annotations

import numpy as np
import pytest

from qdqbert.encoding import Encoded
from qdqbert.evidence.intervals import difference_interval
from qdqbert.task_kinds import TaskSettings
from qdqbert.tasks.conll import TokenExample
from qdqbert.tasks.data import Example
from qdqbert.tasks.multi_label_classification import MULTI_LABEL_CLASSIFICATION
from qdqbert.tasks.regression import ONE_SCORE
from qdqbert.tasks.reranking import RERANKING, RankingExample
from qdqbert.tasks.task import Features, Score, Task, mean_score
from qdqbert.tasks.text_classification import TEXT_CLASSIFICATION
from qdqbert.tasks.token_classification import TOKEN_CLASSIFICATION
from qdqbert.tasks.tokens import token_scores

TAGS = {0: "O", 1: "B-PER", 2: "I-PER", 3: "B-LOC"}


def of_task(task: Task, examples, predictions, classes: int, places=()) -> list[Score]:
    features = Features(
        examples=tuple(examples),
        encoded=Encoded(inputs=(), padding={}, truncated=0),
        places=tuple(places),
    )
    id2label = {i: str(i) for i in range(classes)} if places == () else TAGS
    found = [np.asarray(each, np.float32) for each in predictions]
    return task.scores(found, features, id2label, TaskSettings())


def classified(random, count: int, classes: int) -> list[Score]:
    labels = [str(index % classes) for index in range(count)]
    examples = [Example(text=str(index), label=label) for index, label in enumerate(labels)]
    predictions = random.normal(size=(count, classes)) + 2 * np.eye(classes)[[*map(int, labels)]]
    return of_task(TEXT_CLASSIFICATION, examples, predictions, classes)


def correlated(random, count: int) -> list[Score]:
    examples = [Example(text="a", label=str(index % 5)) for index in range(count)]
    predictions = random.normal(size=(count, 1)) + [[index % 5] for index in range(count)]
    return of_task(ONE_SCORE, examples, predictions, 1)


def sets(random, count: int) -> list[Score]:
    labels = ["0", "1|2", "3", "0|3", ""]
    examples = [Example(text="a", label=labels[index % 5]) for index in range(count)]
    return of_task(MULTI_LABEL_CLASSIFICATION, examples, random.normal(size=(count, 4)), 4)


def pairs(random, count: int) -> list[Score]:
    examples = [
        RankingExample(text="q", text_pair="d", label=str(index % 2), group=str(index))
        for index in range(count)
    ]
    predictions = random.normal(size=(count, 1)).round(1) + [[index % 2] for index in range(count)]
    return of_task(RERANKING, examples, predictions, 1)


def rankings(random, count: int) -> list[Score]:
    examples = [
        RankingExample(text="q", text_pair="d", label=str(index % 3), group=str(index // 3))
        for index in range(3 * count)
    ]
    return of_task(RERANKING, examples, random.normal(size=(3 * count, 1)), 1)


def tagged(random, count: int) -> list[Score]:
    tags = [("B-PER", "I-PER", "O"), ("O", "B-LOC"), ("O",)]
    examples = [TokenExample(words=("a",) * 3, tags=tags[index % 3]) for index in range(count)]
    predictions = [random.normal(size=(len(each.tags), 4)) for each in examples]
    places = [np.arange(len(each.tags)) for each in examples]
    return of_task(TOKEN_CLASSIFICATION, examples, predictions, 4, places)


def masked(random, count: int) -> list[Score]:
    ids = [np.arange(1 + index % 3, dtype=np.int32) for index in range(count)]
    found = [np.stack([-random.random(len(x)), random.permutation(x)], axis=1) for x in ids]
    return token_scores(found, ids)


def answered(random, count: int) -> list[Score]:
    return [mean_score("f1", random.random(count))]


SCORES = {
    "two-classes": lambda random, count: classified(random, count, 2),
    "classes": lambda random, count: classified(random, count, 4),
    "correlations": correlated,
    "sets": sets,
    "pairs": pairs,
    "rankings": rankings,
    "entities": tagged,
    "tokens": masked,
    "answers": answered,
}
MADE = [pytest.param(make, id=name) for name, make in SCORES.items()]


@pytest.mark.parametrize("make", MADE)
def test_a_weight_counts_an_example_so_many_times(make) -> None:
    random = np.random.default_rng(0)
    weights = random.integers(1, 5, 30)
    for score in make(random, 30):
        expected = score.compute(np.repeat(score.rows, weights, axis=0), np.ones(weights.sum()))
        assert score.compute(score.rows, weights.astype(float)) == pytest.approx(expected)


@pytest.mark.parametrize("make", MADE)
def test_no_predictions_score_lower_or_higher_than_the_extremes(make) -> None:
    random = np.random.default_rng(1)
    for _ in range(5):
        for score in make(random, 30):
            value = score.metric().value
            low, high = (
                score.compute(rows, np.ones(len(rows))) for rows in score.extremes(score.rows)
            )
            # Correlations are highest for values that differ as the labels do.
            assert low < value < high or score.name in ("spearman", "pearson")
            if score.name not in ("spearman", "pearson", "auc", "perplexity", "mcc"):
                assert (low, high) == pytest.approx((0, 100))


def test_the_order_of_pairs_is_defined_whichever_examples_are_drawn() -> None:
    examples = [
        RankingExample(text="q", text_pair="d", label=str(int(index == 3)), group=str(index))
        for index in range(60)
    ]
    (score,) = of_task(RERANKING, examples, np.arange(60)[:, None], 1)
    # A third of all samples with replacement are without the only relevant pair.
    found = difference_interval(score, score, range(60))
    assert -100 < found.low < -1 < 1 < found.high < 100


@pytest.mark.parametrize("make", MADE)
def test_models_with_equal_predictions_may_differ_on_other_examples(make) -> None:
    score, *_ = make(np.random.default_rng(2), 60)
    few, many = (difference_interval(score, score, range(60), times=times) for times in (0.3, 100))
    # 18 examples show little, 6,000 a lot.
    assert few.high > 10 * many.high > 0
    assert few.low < 10 * many.low < 0
    # Of 18, one in six may change.
    assert few.low < -10 or score.is_error
