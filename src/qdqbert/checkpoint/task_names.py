"""Tasks of checkpoints by the architecture in their config, without torch or transformers."""

from __future__ import annotations

from typing import Any

from qdqbert.choices import TaskName
from qdqbert.errors import UserInputError

AUTO_CLASSES: dict[TaskName, str] = {
    "feature-extraction": "AutoModel",
    "fill-mask": "AutoModelForMaskedLM",
    "multiple-choice": "AutoModelForMultipleChoice",
    "next-sentence-prediction": "AutoModelForNextSentencePrediction",
    "question-answering": "AutoModelForQuestionAnswering",
    "reranking": "AutoModelForSequenceClassification",
    "text-classification": "AutoModelForSequenceClassification",
    "text-generation": "AutoModelForCausalLM",
    "token-classification": "AutoModelForTokenClassification",
}
"""transformers' auto class of each task."""

# Tasks by the end of an architecture's name. The first match counts, so `Model` comes
# after `LMHeadModel`.
_TASKS_BY_SUFFIX: dict[str, TaskName] = {
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForMaskedLM": "fill-mask",
    "ForMultipleChoice": "multiple-choice",
    "ForNextSentencePrediction": "next-sentence-prediction",
    "LMHeadModel": "text-generation",
    "ForCausalLM": "text-generation",
    "Model": "feature-extraction",
    "GenerationEncoder": "feature-extraction",
    # DPR's classes.
    "ContextEncoder": "feature-extraction",
    "QuestionEncoder": "feature-extraction",
}


def head_of(task: TaskName) -> TaskName:
    """Return the task under which `tasks_of` names the head of a task.

    Rerankers have the head of text classifiers, with one output.
    """
    return "text-classification" if task == "reranking" else task


def check_outputs(task: str, outputs: int) -> None:
    """Refuse a model with several outputs for reranking.

    Raises:
        UserInputError: The task is "reranking", and there are several outputs.
    """
    if task == "reranking" and outputs != 1:
        raise UserInputError(
            f"`task='reranking'` needs a model with one output, the score of a pair; this one has "
            f"{outputs} classes. Pass task `text-classification`.",
            argument="task",
        )


def tasks_of(config: Any) -> list[TaskName | None]:
    """Return the task of each architecture in a config, `None` for an unknown architecture.

    Args:
        config: A config of transformers. Without `architectures` it counts as an encoder's.
    """
    architectures = getattr(config, "architectures", None) or ["Model"]
    return [task_of_architecture(architecture) for architecture in architectures]


def task_of_architecture(architecture: str) -> TaskName | None:
    """Return the task of a class such as `BertForMaskedLM`; `None` for an unknown one."""
    return next(
        (task for suffix, task in _TASKS_BY_SUFFIX.items() if architecture.endswith(suffix)), None
    )
