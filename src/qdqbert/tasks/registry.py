"""All tasks by name.

The file of a task has its name, and so has the `Task` in it: "reranking" is `RERANKING` in
`reranking.py`. It is imported when it is first needed, as `load` runs one task.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

from qdqbert.encoders.checkpoint.own_layers import package_of, task_of_config
from qdqbert.encoders.task_kinds import LABELS, TASK_NAMES, is_use_of
from qdqbert.runtime.model import Model
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


def _imported(name: str, file: str | None = None) -> Task:
    name = name.replace("-", "_")
    task: Task = getattr(importlib.import_module(f"qdqbert.tasks.{file or name}"), name.upper())
    return task


TASKS: Mapping[str, Task] = _Tasks()


def task_for(name: str, config: Any) -> Task:
    """Return the task of a model.

    `config` says what the outputs of a text classifier are.
    """
    if name != "text-classification":
        return TASKS[name]
    problem = getattr(config, "problem_type", None)
    if problem == "multi_label_classification":
        return _imported("multi-label-classification")
    if problem == "regression":
        return _imported("regression")
    return _imported("one-score", "regression") if config.num_labels == 1 else TASKS[name]


def model_for(
    name: str, config: Mapping[str, Any], *, wanted: str | None = None
) -> tuple[str, type[Model] | None]:
    """Return the task that `load` runs a model for, and the class of it.

    One output of a text classifier is the score of a pair, or a number if it is a regression.

    Args:
        name: Name of the task.
        config: Content of its config.json, with a name for each class.
        wanted: The task that was asked for. A regression can be a reranker, too, and a classifier
            choose among labels of a call, as models of gliner2 can.
    """
    name = task_of_config(name, config)
    if (package := package_of(config)) is not None and name in TASKS:
        is_other = package == "gliner2" and LABELS in (name, wanted)
        task = _imported(f"{package}-labels" if is_other else package, package)
        return task.name, task.model
    if wanted is not None and is_use_of(wanted, name):
        return wanted, TASKS[wanted].model
    if name == "text-classification" and len(config["id2label"]) == 1:
        if config.get("problem_type") == "regression" and wanted != "reranking":
            return name, _imported("regression").model
        name = "reranking"
    return name, TASKS[name].model if name in TASKS else None
