"""Names of tasks, and what they run."""

from qdqbert.task_kinds import TASK_NAMES
from qdqbert.tasks.registry import TASKS, model_class
from qdqbert.tasks.reranking import Reranker
from qdqbert.tasks.text_classification import TextClassifier
from qdqbert.tasks.token_classification import TokenClassifier


def test_a_task_stands_in_the_file_of_its_name() -> None:
    assert {name: task.name for name, task in TASKS.items()} == {name: name for name in TASK_NAMES}


def test_a_classifier_with_one_output_scores_pairs() -> None:
    assert model_class("text-classification", classes=1) is Reranker
    assert model_class("text-classification", classes=2) is TextClassifier
    assert model_class("token-classification", classes=1) is TokenClassifier
    assert model_class("text-generation", classes=2) is None
    assert model_class("translation", classes=2) is None
