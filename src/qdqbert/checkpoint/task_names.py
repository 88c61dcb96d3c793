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

_ARCHITECTURES: dict[str, TaskName] = {
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForMaskedLM": "fill-mask",
    "ForMultipleChoice": "multiple-choice",
    "ForNextSentencePrediction": "next-sentence-prediction",
    "LMHeadModel": "text-generation",
    "ForCausalLM": "text-generation",
    "Model": "feature-extraction",
}


def task_of_architecture(architecture: str) -> TaskName | None:
    """Return the task of a transformers class such as `BertForMaskedLM`, `None` if unknown."""
    return next((task for end, task in _ARCHITECTURES.items() if architecture.endswith(end)), None)
