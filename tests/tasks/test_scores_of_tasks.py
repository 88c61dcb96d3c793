"""Rules that the scores of all tasks obey, on random predictions."""

from __future__ import annotations

import numpy as np
import pytest

from qdqbert.data.rows.conll import TokenExample
from qdqbert.data.rows.data import Example
from qdqbert.data.tokenizing.encoding import Encoded
from qdqbert.evidence.intervals import difference_interval
from qdqbert.tasks.multi_label_classification import MULTI_LABEL_CLASSIFICATION
from qdqbert.tasks.regression import ONE_SCORE
from qdqbert.tasks.reranking import RERANKING, RankingExample
from qdqbert.tasks.task import Features, Outcome, Score, Task, mean_score
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
    return task.scores(Outcome(found, features, id2label))


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
        expected = score.compute(
            np.repeat(score.rows, weights, axis=0), np.ones((1, weights.sum()))
        )
        assert score.compute(score.rows, weights[None].astype(float)) == pytest.approx(expected)


@pytest.mark.parametrize("make", MADE)
def test_one_more_example_scores_lowest_and_highest_with_the_extremes(make) -> None:
    random = np.random.default_rng(1)
    for score in make(random, 30):
        low, high = (
            [
                score.compute(np.vstack([score.rows, row]), np.ones((1, 31)))[0]
                for row in kinds[:, 0]
            ]
            for kinds in score.extremes(score.rows)
        )
        assert min(low) < score.metric().value < max(high)


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


def lists(count: int, first: str, rest: str) -> list[str]:
    return [first, *[rest] * (count - 1)]


# Labels of data that a metric is undefined for, or that a single example decides.
CLASSES = {
    "one-class": ["1"] * 40,
    "other-class": ["0"] * 40,
    "one-example-of-a-class": lists(40, "1", "0"),
    "one-row": ["1"],
}
SETS = {
    "no-class": [""] * 40,
    "one-class-of-one-example": lists(40, "1", ""),
    "most-classes-of-one-example": lists(40, "0|1|2", ""),
    "all-classes": ["0|1|2|3"] * 40,
    "one-row": ["2"],
    "one-row-without-class": [""],
}
ENTITIES = {
    "none": [("O", "O")] * 40,
    "one": [("B-PER", "O"), *[("O", "O")] * 39],
    "most-in-one-sentence": [("B-PER",) * 20, *[("B-LOC", "O")] * 39],
    "one-row": [("B-PER", "O")],
    "one-row-without": [("O",)],
}
RELEVANCES = {"one": lists(40, "1", "0"), "all-but-one": lists(40, "0", "1"), "two": ["0", "1"]}
LOGITS = {"0": [3.0, -3.0], "1": [-3.0, 3.0]}


def right_and_wrong(kind: str, name: str) -> tuple[list[Score], list[list[Score]]]:
    """Return scores of right answers, and the same with one of the answers wrong."""
    if kind == "classes":
        labels = CLASSES[name]
        examples = [Example(text=str(i), label=each) for i, each in enumerate(labels)]
        right, task, classes, places = [LOGITS[x] for x in labels], TEXT_CLASSIFICATION, 2, ()
    elif kind == "sets":
        labels = SETS[name]
        examples = [Example(text=str(i), label=each) for i, each in enumerate(labels)]
        right = [[3.0 if str(i) in each else -3.0 for i in range(4)] for each in labels]
        task, classes, places = MULTI_LABEL_CLASSIFICATION, 4, ()
    elif kind == "entities":
        tags = ENTITIES[name]
        examples = [TokenExample(words=("a",) * len(each), tags=each) for each in tags]
        right = [[[3.0 if own == tag else 0 for own in TAGS.values()] for tag in x] for x in tags]
        task, classes = TOKEN_CLASSIFICATION, 4
        places = [np.arange(len(each)) for each in tags]
    else:
        labels = RELEVANCES[name]
        examples = [
            RankingExample(text="q", text_pair="d", label=each, group=str(i))
            for i, each in enumerate(labels)
        ]
        # Beyond all others, where it is wrong.
        right, classes, places = [[float(each) - 0.5] for each in labels], 1, ()
        task = RERANKING if kind == "pairs" else ONE_SCORE
    wrong = [
        [*right[:i], (-3 * np.array(each)).tolist(), *right[i + 1 :]]
        for i, each in enumerate(right[:2])
    ]
    made = [of_task(task, examples, each, classes, places) for each in (right, *wrong)]
    return made[0], made[1:]


DATA = [
    pytest.param(kind, name, id=f"{kind}-{name}")
    for kind, data in (
        ("classes", CLASSES),
        ("sets", SETS),
        ("entities", ENTITIES),
        ("pairs", RELEVANCES),
        ("numbers", RELEVANCES),
    )
    for name in data
]


@pytest.mark.parametrize(("kind", "name"), DATA)
# The first metric is the one of `max_drop`.
@pytest.mark.parametrize("which", [slice(1), pytest.param(slice(1, None), marks=pytest.mark.slow)])
@pytest.mark.usual("which0-*-one*", "which0-*-all-but-one")
def test_no_limit_is_met_that_one_changed_answer_would_miss(kind, name, which) -> None:
    right, changed = right_and_wrong(kind, name)
    for score, others in [*zip(right, zip(*changed, strict=True), strict=True)][which]:
        found = difference_interval(score, score, range(len(score.rows)))
        lost = max(score.metric().value - each.metric().value for each in others)
        # Where an answer decides everything, another one cannot decide quite as much.
        assert -found.low > max(2, 0.8 * min(lost, 100))
        assert found.high == pytest.approx(-found.low)


@pytest.mark.parametrize(("count", "probability"), [(1, 1.0), (1, 0.001), (40, 1.0), (40, 0.001)])
def test_texts_with_equal_probabilities_may_be_followed_by_others(count, probability) -> None:
    ids = [np.arange(2, dtype=np.int32)] * count
    found = [np.stack([np.full(2, np.log(probability)), each], axis=1) for each in ids]
    for score in token_scores(found, ids):
        interval = difference_interval(score, score, range(count))
        # A twelfth of the texts may have other tokens.
        assert interval.low < -0.05 * score.metric().value
        assert interval.high > 0.05 * score.metric().value


def test_outputs_that_are_all_equal_may_be_followed_by_others() -> None:
    examples = [Example(text="a", label=str(index % 2)) for index in range(40)]
    for score in of_task(ONE_SCORE, examples, np.full((40, 1), 0.3), 1):
        found = difference_interval(score, score, range(40))
        assert found.low < -5
        assert found.high > 5
