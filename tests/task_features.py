"""Features that a task makes of examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qdqbert.encoders.checkpoint.tokenizer import runtime_tokenizer
from qdqbert.encoders.task_kinds import TaskSettings
from qdqbert.tasks.task import Features, Task, Tokenization

NAMES = ("input_ids", "attention_mask", "token_type_ids")
USUAL = TaskSettings()


def features_of(
    task: Task,
    tokenizer: Any,
    examples: Sequence[Any],
    *,
    max_length: int = 64,
    names: Sequence[str] = NAMES,
    settings: TaskSettings = USUAL,
) -> Features:
    """Return the features of examples, given a tokenizer of transformers."""
    how = Tokenization(
        tokenizer=runtime_tokenizer(tokenizer),
        input_names=names,
        max_length=max_length,
        settings=settings,
    )
    return task.encode(examples, how)
