"""All tasks by name.

The file of a task has its name, and so has the `Task` in it: "fill-mask" is `FILL_MASK` in
`fill_mask.py`. It is imported when it is first needed, as `load` runs one task.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

from qdqbert.task_kinds import TASK_NAMES
from qdqbert.tasks.task import Task


class _Tasks(Mapping[str, Task]):
    """Imports tasks."""

    def __getitem__(self, name: str) -> Task:
        if name not in TASK_NAMES:
            raise KeyError(name)
        return _imported(name)

    def __iter__(self) -> Iterator[str]:
        return iter(TASK_NAMES)

    def __len__(self) -> int:
        return len(TASK_NAMES)


def _imported(name: str) -> Task:
    file = name.replace("-", "_")
    task: Task = getattr(importlib.import_module(f"qdqbert.tasks.{file}"), file.upper())
    return task


TASKS: Mapping[str, Task] = _Tasks()


def task_for(name: str, config: Any) -> Task:
    """Return the task of a model.

    Args:
        name: Name of the task.
        config: Config of the model, which says whether it is a multi-label classifier.
    """
    is_multi_label = getattr(config, "problem_type", None) == "multi_label_classification"
    if name == "text-classification" and is_multi_label:
        return _imported("multi-label-classification")
    return TASKS[name]


def loaded_task(name: str, *, classes: int) -> str:
    """Return the task that `load` runs a model for: one with a single class scores pairs.

    Args:
        name: Name of the task.
        classes: Number of outputs of a classifier.
    """
    return "reranking" if name == "text-classification" and classes == 1 else name
