"""All tasks by name."""

from __future__ import annotations

from typing import Any

from qdqbert.tasks.feature_extraction import FEATURE_EXTRACTION
from qdqbert.tasks.fill_mask import FILL_MASK
from qdqbert.tasks.multi_label_classification import MULTI_LABEL_CLASSIFICATION
from qdqbert.tasks.multiple_choice import MULTIPLE_CHOICE
from qdqbert.tasks.next_sentence_prediction import NEXT_SENTENCE_PREDICTION
from qdqbert.tasks.question_answering import QUESTION_ANSWERING
from qdqbert.tasks.reranking import RERANKING
from qdqbert.tasks.task import Task
from qdqbert.tasks.text_classification import TEXT_CLASSIFICATION
from qdqbert.tasks.text_generation import TEXT_GENERATION
from qdqbert.tasks.token_classification import TOKEN_CLASSIFICATION

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        FEATURE_EXTRACTION,
        FILL_MASK,
        MULTIPLE_CHOICE,
        NEXT_SENTENCE_PREDICTION,
        QUESTION_ANSWERING,
        RERANKING,
        TEXT_CLASSIFICATION,
        TEXT_GENERATION,
        TOKEN_CLASSIFICATION,
    )
}


def task_for(name: str, config: Any) -> Task:
    """Return the task of a model.

    Args:
        name: Name of the task.
        config: Config of the model, which says whether it is a multi-label classifier.
    """
    is_multi_label = getattr(config, "problem_type", None) == "multi_label_classification"
    if name == "text-classification" and is_multi_label:
        return MULTI_LABEL_CLASSIFICATION
    return TASKS[name]
