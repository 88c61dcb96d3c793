"""What training minimises: the task's own loss, and the distance to a teacher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from qdqbert.checkpoint.sentence import SentenceHead
from qdqbert.errors import UserInputError
from qdqbert.graph.export import pool
from qdqbert.tasks.task import IGNORED

MEAN = SentenceHead(pooling="mean", normalize=False, max_length=None)
"""How a plain encoder's states become one vector."""


def embed(outputs: Any, inputs: Mapping[str, Tensor], head: SentenceHead | None) -> Tensor:
    """Sentence embeddings `(batch, hidden)` of an encoder's outputs."""
    return pool(outputs["last_hidden_state"], inputs["attention_mask"], head or MEAN)


def similarity_loss(embeddings: Tensor, scores: Tensor) -> Tensor:
    """Mean squared difference of the cosine of pairs and their score.

    Args:
        embeddings: First texts, then second ones, `(2 * pairs, hidden)`.
        scores: From 0 to 1, `(pairs,)`.

    Source: Reimers and Gurevych 2019, arXiv:1908.10084, section 3, regression objective.
    """
    first, second = embeddings.chunk(2)
    return functional.mse_loss(functional.cosine_similarity(first, second), scores)


def embedding_distance(student: Tensor, teacher: Tensor) -> Tensor:
    """Mean of 1 - cosine, `(batch, hidden)` both: what counts of an embedding is its direction."""
    return (1 - functional.cosine_similarity(student, teacher, dim=-1)).mean()


def logits_distance(
    student: Any,
    teacher: Any,
    inputs: Mapping[str, Tensor],
    names: Sequence[str],
    *,
    temperature: float,
) -> Tensor:
    """Kullback-Leibler divergence of the teacher's probabilities from the student's.

    Args:
        student: Outputs by name.
        teacher: The same of the teacher.
        inputs: The batch, for what is padding.
        names: Which outputs are logits; their losses are averaged. `(batch, classes)`,
            `(batch, seq, classes)`, or `(batch, seq)` where positions are the classes.
        temperature: Divides logits; the loss is multiplied by its square, so that gradients keep
            their size. A single output is a number: the mean squared difference is taken.

    Source: Hinton et al. 2015, arXiv:1503.02531, section 2.
    """
    losses = [
        _divergence(student[name], teacher[name], inputs, temperature, spans=len(names) > 1)
        for name in names
    ]
    return torch.stack(losses).mean()


def states_distance(student: Any, teacher: Any, inputs: Mapping[str, Tensor]) -> Tensor:
    """Mean squared distance of the states of all layers `(batch, seq, hidden)`, text only.

    Raises:
        UserInputError: The models have other numbers of layers or other widths.
    """
    ours, theirs = student["hidden_states"][1:], teacher["hidden_states"][1:]
    if len(ours) != len(theirs) or ours[0].shape[-1] != theirs[0].shape[-1]:
        raise UserInputError(
            f"`--distill-hidden` needs a teacher of {len(ours)} layers of {ours[0].shape[-1]}, got "
            f"{len(theirs)} of {theirs[0].shape[-1]}. Leave it out to follow the logits only."
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
        # No answer starts or ends in padding; the lowest float would make NaN of 0 x inf.
        student, teacher = (x.masked_fill(~mask, -1e4) for x in (student, teacher))
    elif student.dim() == 3:
        labels = inputs.get("labels")
        if labels is not None and labels.shape == mask.shape and student.size(-1) > _VOCABULARY:
            # Of a language model's logits only those are compared that it is asked for.
            mask = labels != IGNORED
        student, teacher = student[mask], teacher[mask]
    if student.size(-1) == 1:
        return functional.mse_loss(student, teacher)
    ours = functional.log_softmax(student.float() / temperature, dim=-1)
    theirs = functional.log_softmax(teacher.float() / temperature, dim=-1)
    divergence = functional.kl_div(ours, theirs, log_target=True, reduction="batchmean")
    return divergence * temperature**2


_VOCABULARY = 500
# More outputs a position than any set of tags has.
