"""Tasks, one module each: examples -> features -> predictions -> metrics."""

from __future__ import annotations

from qdqbert.tasks.feature_extraction import FEATURE_EXTRACTION
from qdqbert.tasks.fill_mask import FILL_MASK
from qdqbert.tasks.multiple_choice import MULTIPLE_CHOICE
from qdqbert.tasks.next_sentence_prediction import NEXT_SENTENCE_PREDICTION
from qdqbert.tasks.question_answering import QUESTION_ANSWERING
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
        TEXT_CLASSIFICATION,
        TEXT_GENERATION,
        TOKEN_CLASSIFICATION,
    )
}
