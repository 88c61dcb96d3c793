from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from qdqbert.common.errors import UserInputError
from qdqbert.encoders.checkpoint.sentence import SentenceHead
from qdqbert.tasks.task import IGNORED
from qdqbert.training.trainer.losses import (
    embed,
    embedding_distance,
    logits_distance,
    similarity_loss,
    states_distance,
)

MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
# float32 sums of some dozens of terms of about 1.
NEAR = {"rtol": 1e-5, "atol": 1e-6}

Array = NDArray[np.float64]


def draw(*shape: int, seed: int = 0) -> Array:
    return 3 * np.random.default_rng(seed).standard_normal(shape)


def tensor(array: Any) -> torch.Tensor:
    return torch.from_numpy(np.asarray(array, dtype=np.float32))


def inputs_of(mask: NDArray[Any] = MASK, **more: Any) -> dict[str, torch.Tensor]:
    return {"attention_mask": torch.from_numpy(mask)} | more


def log_softmax(x: Array) -> Array:
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def divergence(student: Array, teacher: Array, temperature: float) -> float:
    """Mean of KL(teacher | student) over the first axis, times the squared temperature."""
    ours, theirs = (log_softmax(x / temperature) for x in (student, teacher))
    return float((np.exp(theirs) * (theirs - ours)).sum(axis=-1).mean()) * temperature**2


def distance(
    student: dict[str, Array], teacher: dict[str, Array], inputs: Any, temperature: float = 2.0
) -> float:
    sides = ({name: tensor(x) for name, x in side.items()} for side in (student, teacher))
    return float(logits_distance(*sides, inputs, tuple(student), temperature=temperature))


@pytest.mark.parametrize("temperature", [1.0, 2.0, 5.5])
def test_classes_are_compared_by_the_divergence_of_softened_probabilities(temperature) -> None:
    student, teacher = draw(2, 3), draw(2, 3, seed=1)
    found = distance({"logits": student}, {"logits": teacher}, inputs_of(), temperature)
    np.testing.assert_allclose(found, divergence(student, teacher, temperature), **NEAR)


def test_independent_classes_are_compared_one_by_one() -> None:
    student, teacher = draw(4, 3), draw(4, 3, seed=1)
    # A class is a choice between its logit and 0.
    expected = sum(
        divergence(*(np.stack([x[:, each], 0 * x[:, each]], -1) for x in (student, teacher)), 2.0)
        for each in range(3)
    )
    sides = ({"logits": tensor(x)} for x in (student, teacher))
    found = logits_distance(
        *sides, inputs_of(), ("logits",), temperature=2.0, problem="multi_label_classification"
    )
    np.testing.assert_allclose(float(found), expected, **NEAR)


def test_numbers_of_a_regression_are_compared_by_squared_difference() -> None:
    student, teacher = draw(4, 3), draw(4, 3, seed=1)
    sides = ({"logits": tensor(x)} for x in (student, teacher))
    found = logits_distance(*sides, inputs_of(), ("logits",), temperature=2.0, problem="regression")
    np.testing.assert_allclose(float(found), np.square(student - teacher).mean(), **NEAR)


def test_the_size_of_the_gradient_does_not_depend_on_the_temperature() -> None:
    teacher = tensor(0.01 * draw(2, 3, seed=1))
    sizes = []
    for temperature in (1.0, 8.0):
        student = tensor(0.01 * draw(2, 3)).requires_grad_()
        pair = ({"logits": each} for each in (student, teacher))
        logits_distance(*pair, inputs_of(), ("logits",), temperature=temperature).backward()
        sizes.append(float(student.grad.norm()))
    # Near zero the softmax is linear: to first order the gradient does not depend on it.
    assert sizes[0] == pytest.approx(sizes[1], rel=0.02)


def test_single_outputs_are_compared_by_squared_difference() -> None:
    student, teacher = draw(2, 1), draw(2, 1, seed=1)
    found = distance({"logits": student}, {"logits": teacher}, inputs_of())
    np.testing.assert_allclose(found, ((student - teacher) ** 2).mean(), **NEAR)


def test_spans_are_compared_without_padding_and_both_ends_count_equally() -> None:
    names = ("start_logits", "end_logits")
    student = {name: draw(2, 5, seed=index) for index, name in enumerate(names)}
    teacher = {name: draw(2, 5, seed=index) for index, name in enumerate(names, start=5)}
    expected = [
        divergence(student[name][i][MASK[i] == 1], teacher[name][i][MASK[i] == 1], 2.0)
        for name in names
        for i in range(2)
    ]
    for filler in (0.0, 50.0, -3e38):
        for side in (student, teacher):
            for logits in side.values():
                logits[MASK == 0] = filler
        found = distance(student, teacher, inputs_of())
        np.testing.assert_allclose(found, np.mean(expected), **NEAR)


@pytest.mark.parametrize("with_labels", [True, False], ids=["labels", "no-labels"])
def test_tags_are_compared_without_padding(with_labels: bool) -> None:
    student, teacher = draw(2, 5, 4), draw(2, 5, 4, seed=1)
    more = {"labels": torch.full((2, 5), IGNORED)} if with_labels else {}
    expected = divergence(student[MASK == 1], teacher[MASK == 1], 2.0)
    student[MASK == 0] = 99
    found = distance({"logits": student}, {"logits": teacher}, inputs_of(**more))
    np.testing.assert_allclose(found, expected, **NEAR)


def test_tokens_are_compared_where_they_are_predicted() -> None:
    student, teacher = draw(2, 5, 1000), draw(2, 5, 1000, seed=1)
    labels = np.full((2, 5), IGNORED)
    labels[0, 3], labels[1, 1] = 17, 5
    asked = labels != IGNORED
    expected = divergence(student[asked], teacher[asked], 2.0)
    student[~asked] = 99
    inputs = inputs_of(labels=torch.from_numpy(labels))
    found = distance({"logits": student}, {"logits": teacher}, inputs)
    # 1000 terms of about 1e-3, whose logarithms reach 20 in float32.
    np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.parametrize("choices", [False, True], ids=["texts", "choices"])
def test_states_are_compared_without_padding_and_embeddings(choices: bool) -> None:
    student, teacher = draw(3, 2, 5, 8), draw(3, 2, 5, 8, seed=1)
    expected = np.mean(
        [((a - b)[MASK == 1] ** 2).mean() for a, b in zip(student[1:], teacher[1:], strict=True)]
    )
    for states in (student, teacher):
        states[:, MASK == 0] = np.random.default_rng(3).standard_normal(8)
    student[:, MASK == 0] += 9
    sides = ({"hidden_states": tuple(map(tensor, states))} for states in (student, teacher))
    found = states_distance(*sides, inputs_of(MASK[None] if choices else MASK))
    np.testing.assert_allclose(float(found), expected, **NEAR)


@pytest.mark.parametrize(
    ("layers", "width", "message"),
    [
        (3, 8, "the student's 2 layers of hidden size 8, got 3 layers of hidden size 8"),
        (2, 4, "got 2 layers of hidden size 4"),
    ],
    ids=["layers", "width"],
)
def test_states_of_different_shapes_are_refused(layers, width, message) -> None:
    sides = (
        {"hidden_states": tuple(map(tensor, draw(count + 1, 2, 5, size)))}
        for count, size in ((2, 8), (layers, width))
    )
    with pytest.raises(UserInputError, match=message):
        states_distance(*sides, inputs_of())


def cosines(a: Array, b: Array) -> Array:
    return (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


def test_similarity_is_the_squared_difference_of_cosine_and_score() -> None:
    vectors, scores = draw(6, 8), np.array([0.0, 0.5, 1.0])
    expected = ((cosines(vectors[:3], vectors[3:]) - scores) ** 2).mean()
    found = similarity_loss(tensor(vectors), tensor(scores))
    np.testing.assert_allclose(float(found), expected, **NEAR)


def test_embeddings_are_compared_by_their_direction() -> None:
    student, teacher = draw(4, 8), draw(4, 8, seed=1)
    expected = (1 - cosines(student, teacher)).mean()
    for scale in (1, 20):
        found = embedding_distance(tensor(scale * student), tensor(teacher))
        np.testing.assert_allclose(float(found), expected, **NEAR)


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (None, lambda states: states[1, :3].mean(axis=0)),
        (
            SentenceHead(poolings=("cls",), normalize=True, max_length=None),
            lambda states: states[1, 0] / np.linalg.norm(states[1, 0]),
        ),
    ],
    ids=["plain-encoder", "sentence-head"],
)
def test_embeddings_are_pooled_by_the_head_or_by_their_mean(head, expected) -> None:
    states = draw(2, 5, 8)
    found = embed({"last_hidden_state": tensor(states)}, inputs_of(), head)
    np.testing.assert_allclose(found[1].numpy(), expected(states), **NEAR)
