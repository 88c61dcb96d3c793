"""Names of the tasks, importable without torch and transformers."""

from __future__ import annotations

from typing import Literal, get_args

TaskName = Literal[
    "feature-extraction",
    "fill-mask",
    "multiple-choice",
    "next-sentence-prediction",
    "question-answering",
    "text-classification",
    "text-generation",
    "token-classification",
]
"""transformers' names of the tasks that the heads of an encoder serve."""

TASK_NAMES: tuple[TaskName, ...] = get_args(TaskName)
