"""Names of tasks."""

from qdqbert.task_kinds import TASK_NAMES
from qdqbert.tasks.registry import TASKS


def test_every_task_name_has_a_task() -> None:
    assert tuple(TASKS) == TASK_NAMES
