"""A float model that a student follows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from qdqbert.checkpoint.load import Checkpoint
from qdqbert.errors import UserInputError
from qdqbert.insert.sited import sited_model
from qdqbert.models.loading import load_model
from qdqbert.tasks.task import Task
from qdqbert.training.distillation import Distillation


class Teacher:
    """A float model that a student follows.

    Attributes:
        model: It, in evaluation mode, on the student's device.
        settings: How.
    """

    def __init__(self, model: nn.Module, settings: Distillation) -> None:
        self.model = model.eval().requires_grad_(False)
        self.settings = settings

    def outputs(self, inputs: Mapping[str, Tensor], *, hidden: bool) -> Any:
        """What it says of a batch."""
        with torch.no_grad():
            return self.model(**inputs, output_hidden_states=hidden)


def load_teacher(name: str, task: Task) -> Checkpoint:
    """Loads a float checkpoint with a head for the task.

    Raises:
        UserInputError: It cannot be loaded, or has quantizers.
    """
    loaded = load_model(name, task=task.name)
    if sited_model(loaded.model).quantizers:
        raise UserInputError(
            f"`--distill-from {name}` has quantizers; expected a float checkpoint."
        )
    return loaded


def check_teacher(task: Task, student: Checkpoint, teacher: Checkpoint) -> None:
    """Refuses a teacher that a student cannot follow.

    Raises:
        UserInputError: Its classes, its vocabulary or the width of its embeddings are others.
    """
    name = teacher.name
    ours, theirs = student.config, teacher.config
    if task.class_names(()) is not None and dict(ours.id2label) != dict(theirs.id2label):
        raise UserInputError(
            f"`--distill-from {name}` has the classes {list(theirs.id2label.values())[:10]}, "
            f"the student {list(ours.id2label.values())[:10]}; expected the same in the same "
            "order."
        )
    if student.tokenizer.get_vocab() != teacher.tokenizer.get_vocab():
        raise UserInputError(
            f"`--distill-from {name}` has another vocabulary than the student: it would read "
            "other words. Name a teacher with the same tokenizer."
        )
    if task.is_embedding and ours.hidden_size != theirs.hidden_size:
        raise UserInputError(
            f"`--distill-from {name}` makes embeddings of {theirs.hidden_size} numbers, the "
            f"student of {ours.hidden_size}; expected as many."
        )
