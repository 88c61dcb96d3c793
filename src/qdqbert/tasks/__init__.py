"""What a head is for: examples -> model inputs -> rows of output -> metric, one file a task."""

from __future__ import annotations

from qdqbert.tasks.feature_extraction import FEATURE_EXTRACTION
from qdqbert.tasks.task import Task
from qdqbert.tasks.text_classification import TEXT_CLASSIFICATION

TASKS: dict[str, Task] = {task.name: task for task in (FEATURE_EXTRACTION, TEXT_CLASSIFICATION)}
