"""Losses of training: of scores, of pairs without scores, and the distance to a teacher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from qdqbert.common.errors import UserInputError
from qdqbert.encoders.checkpoint.layout import PooledHead
from qdqbert.encoders.checkpoint.load import Checkpoint
from qdqbert.encoders.checkpoint.sentence import SentenceHead
from qdqbert.tasks.task import IGNORED
from qdqbert.training.body import pool

Objective = Literal["labels", "relevance", "similarity", "in-batch"]
"""What a model learns: transformers' loss of labels, or one of the losses below."""

# As in sentence-transformers: cosines are multiplied by it before the softmax.
_SCALE = 20.0

MEAN = SentenceHead(poolings=("mean",), normalize=False, max_length=None)
"""The pooling of a plain encoder."""

# Outputs per position above which logits are a language model's, not of tags.
_MOST_TAGS = 500


def refuse_after_pooling(checkpoint: Checkpoint, argument: str) -> None:
    """Refuse a model with modules after the pooling, which `embed` does not compute.

    `argument` is the parameter that named it.

    Raises:
        UserInputError: It has some.
    """
    head = checkpoint.head
    if isinstance(head, PooledHead) and head.after_pooling:
        raise UserInputError(
            f"`{argument}={checkpoint.name!r}` has {', '.join(head.after_pooling)} after the "
            "pooling, which `train` does not compute. Train it with sentence-transformers, and "
            "quantize the result.",
            argument=argument,
        )


def embed(outputs: Any, inputs: Mapping[str, Tensor], head: SentenceHead | None) -> Tensor:
    """Return the sentence embeddings of an encoder's outputs. Shape `(batch, hidden)`."""
    head = head or MEAN
    return pool(outputs["last_hidden_state"], inputs["attention_mask"], head, head.last_steps)


def similarity_loss(embeddings: Tensor, scores: Tensor) -> Tensor:
    """Return the mean squared difference of the cosine of pairs and their score. Shape `()`.

    Args:
        embeddings: Embeddings of all first texts, then of all second ones. Shape
            `(2 * pairs, hidden)`.
        scores: Scores from 0 to 1. Shape `(pairs,)`.

    Source: Reimers and Gurevych 2019, arXiv:1908.10084, section 3, regression objective.
    """
    first, second = embeddings.chunk(2)
    return functional.mse_loss(functional.cosine_similarity(first, second), scores)


def relevance_loss(logits: Tensor, scores: Tensor) -> Tensor:
    """Return the binary cross-entropy of the sigmoid of one output and a score. Shape `()`.

    `logits` are `(pairs, 1)`, and `scores` from 0 to 1 `(pairs,)`.

    Source: the default loss of sentence-transformers' `CrossEncoder` with one output.
    """
    return functional.binary_cross_entropy_with_logits(logits.flatten(), scores)


def in_batch_loss(embeddings: Tensor, texts: int) -> Tensor:
    """Return how well anchors find their positives among all other texts of a batch. Shape `()`.

    It is the cross-entropy of the cosines of an anchor to the positives and negatives of all
    examples, where its own positive is the right one.

    Args:
        embeddings: Embeddings of all anchors, then of all positives, then of all first negatives
            and so on. Shape `(texts * examples, hidden)`.
        texts: Number of texts of an example, at least 2.

    Source: `MultipleNegativesRankingLoss` of sentence-transformers; Henderson et al. 2017,
    arXiv:1705.00652, section 4.4.
    """
    anchors, *others = functional.normalize(embeddings).chunk(texts)
    right = torch.arange(len(anchors), device=anchors.device)
    return functional.cross_entropy(_SCALE * anchors @ torch.cat(others).T, right)


def embedding_distance(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the mean of 1 - cosine of two embeddings `(batch, hidden)`: only directions matter."""
    return (1 - functional.cosine_similarity(student, teacher, dim=-1)).mean()


def logits_distance(
    student: Any,
    teacher: Any,
    inputs: Mapping[str, Tensor],
    names: Sequence[str],
    *,
    temperature: float,
    problem: str | None = None,
) -> Tensor:
    """Return the Kullback-Leibler divergence of the student's probabilities from the teacher's.

    A single output is a number, not a class, and so are those of a regression; their mean squared
    difference is returned.

    Args:
        student: Outputs of the student by name.
        teacher: Outputs of the teacher by name.
        inputs: The batch, whose padding is ignored.
        names: Names of the outputs that are logits; their losses are averaged. Shape
            `(batch, classes)`, `(batch, seq, classes)`, or `(batch, seq)` if positions are the
            classes.
        temperature: The logits are divided by it. The loss is multiplied by its square, so that
            the size of gradients does not depend on it.
        problem: The config's `problem_type`. Outputs of a regression are numbers. Classes of a
            multi-label classifier are independent: each has a probability of its own, the sigmoid
            of its logit, and their divergences are added.

    Source: Hinton et al. 2015, arXiv:1503.02531, section 2.
    """
    if problem == "regression":
        return functional.mse_loss(student["logits"], teacher["logits"])
    if problem == "multi_label_classification":
        return _sigmoid_divergence(student["logits"], teacher["logits"], temperature)
    losses = [
        _divergence(student[name], teacher[name], inputs, temperature, spans=len(names) > 1)
        for name in names
    ]
    return torch.stack(losses).mean()


def states_distance(student: Any, teacher: Any, inputs: Mapping[str, Tensor]) -> Tensor:
    """Return the mean squared difference of the states of all layers, without padding. Shape `()`.

    Args:
        student: Outputs of the student, with `hidden_states`, each `(batch, seq, hidden)`.
        teacher: Outputs of the teacher.
        inputs: The batch, whose padding is ignored.

    Raises:
        UserInputError: The models differ in the number of layers or the hidden size.
    """
    ours, theirs = student["hidden_states"][1:], teacher["hidden_states"][1:]
    if len(ours) != len(theirs) or ours[0].shape[-1] != theirs[0].shape[-1]:
        raise UserInputError(
            f"`distill_hidden` needs a teacher with the student's {len(ours)} layers of hidden "
            f"size {ours[0].shape[-1]}, got {len(theirs)} layers of hidden size "
            f"{theirs[0].shape[-1]}. Leave it out to follow the logits only.",
            argument="distill_hidden",
        )
    mask = inputs["attention_mask"].flatten(0, -2).bool()
    pairs = zip(ours, theirs, strict=True)
    return torch.stack([functional.mse_loss(a[mask], b[mask]) for a, b in pairs]).mean()


def _divergence(
    student: Tensor,
    teacher: Tensor,
    inputs: Mapping[str, Tensor],
    temperature: float,
    *,
    spans: bool,
) -> Tensor:
    mask = inputs["attention_mask"].bool()
    if spans:
        # Answers never start or end in padding. The lowest float would give NaN as 0 x inf.
        student, teacher = (x.masked_fill(~mask, -1e4) for x in (student, teacher))
    elif student.dim() == 3:
        labels = inputs.get("labels")
        if labels is not None and labels.shape == mask.shape and student.size(-1) > _MOST_TAGS:
            # A language model's logits are compared only at the positions that it predicts.
            mask = labels != IGNORED
        student, teacher = student[mask], teacher[mask]
    if student.size(-1) == 1:
        return functional.mse_loss(student, teacher)
    ours = functional.log_softmax(student.float() / temperature, dim=-1)
    theirs = functional.log_softmax(teacher.float() / temperature, dim=-1)
    divergence = functional.kl_div(ours, theirs, log_target=True, reduction="batchmean")
    return divergence * temperature**2


def _sigmoid_divergence(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Return the divergence of independent classes, `(batch, classes)`, averaged over the batch."""
    # Probabilities of a class, and of its absence.
    ours, theirs = (
        functional.logsigmoid(torch.stack([x, -x]).float() / temperature)
        for x in (student, teacher)
    )
    divergence = functional.kl_div(ours, theirs, log_target=True, reduction="sum")
    return divergence / len(student) * temperature**2
