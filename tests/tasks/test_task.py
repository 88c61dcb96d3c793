"""Names of tasks, and what they run."""

from qdqbert.task_kinds import TASK_NAMES
from qdqbert.tasks.registry import TASKS, loaded_task


def test_a_task_stands_in_the_file_of_its_name() -> None:
    assert {name: task.name for name, task in TASKS.items()} == {name: name for name in TASK_NAMES}


def test_a_classifier_with_one_output_scores_pairs() -> None:
    assert loaded_task("text-classification", classes=1) == "reranking"
    assert loaded_task("text-classification", classes=2) == "text-classification"
    assert loaded_task("token-classification", classes=1) == "token-classification"
