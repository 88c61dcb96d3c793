"""The teacher of a distillation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from qdqbert.calibration.reference.sited_model import sited_model
from qdqbert.common.errors import UserInputError
from qdqbert.encoders.checkpoint.load import Checkpoint
from qdqbert.tasks.registry import task_for
from qdqbert.tasks.task import Task
from qdqbert.training.models.quantized import load_model
from qdqbert.training.trainer.distillation import Distillation
from qdqbert.training.trainer.losses import refuse_after_pooling


class Teacher:
    """A float model that a student learns from.

    Attributes:
        model: The model, in evaluation mode, on the student's device.
    """

    def __init__(self, model: nn.Module, settings: Distillation) -> None:
        self.model = model.eval().requires_grad_(False)
        self.settings = settings

    def outputs(self, inputs: Mapping[str, Tensor], *, hidden: bool) -> Any:
        """Return the outputs for a batch, with the states of all layers if `hidden`."""
        with torch.no_grad():
            return self.model(**inputs, output_hidden_states=hidden)


def load_teacher(name: str, task: Task) -> Checkpoint:
    """Load a float checkpoint with a head for the task.

    Raises:
        UserInputError: The checkpoint cannot be loaded, or has quantizers or modules after the
            pooling.
    """
    loaded = load_model(name, task=task.name)
    refuse_after_pooling(loaded, "distill_from")
    if sited_model(loaded.model).quantizers:
        raise UserInputError(
            f"`distill_from={name!r}` has quantizers; expected a float checkpoint.",
            argument="distill_from",
        )
    return loaded


def check_teacher(task: Task, student: Checkpoint, teacher: Checkpoint) -> None:
    """Check that a student can learn from a teacher."""
    name = teacher.name
    ours, theirs = student.config, teacher.config
    kinds = [getattr(config, "problem_type", None) for config in (theirs, ours)]
    classes = [list(config.id2label.values())[:10] for config in (theirs, ours)]
    has_other_classes = dict(ours.id2label) != dict(theirs.id2label)
    teacher_is = f"of `distill_from={name!r}`"
    problems = {
        f"The classes {teacher_is} are {classes[0]}, the student's {classes[1]}; expected equal "
        "classes in equal order.": task.class_names is not None and has_other_classes,
        f"`problem_type` {teacher_is} is {kinds[0]!r}, the student's {kinds[1]!r}: their "
        "outputs are not of one kind: classes of which one is right, independent classes, or "
        "numbers. Name a teacher of the same kind, or change the student's config.json.": (
            task_for(task.name, ours) is not task_for(task.name, theirs)
        ),
        f"The vocabulary {teacher_is} differs from the student's, so it would read other words. "
        "Name a teacher with the same tokenizer.": (
            student.tokenizer.get_vocab() != teacher.tokenizer.get_vocab()
        ),
        f"The embeddings {teacher_is} have size {theirs.hidden_size}, the student's "
        f"{ours.hidden_size}; expected equal sizes.": (
            task.is_embedding and ours.hidden_size != theirs.hidden_size
        ),
    }
    for problem, is_there in problems.items():
        if is_there:
            raise UserInputError(problem, argument="distill_from")
