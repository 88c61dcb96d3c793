"""Names and options of tasks."""

import pytest

from qdqbert.choices import TASK_NAMES
from qdqbert.errors import UserInputError
from qdqbert.tasks import TASKS
from qdqbert.tasks.task import TaskOptions


def test_every_task_name_has_a_task() -> None:
    assert tuple(TASKS) == TASK_NAMES


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"doc_stride": -1}, "`doc_stride` must be at least 0, got -1"),
        ({"n_best_size": 0}, "`n_best_size` must be at least 1, got 0"),
        ({"max_answer_length": 0}, "`max_answer_length` must be at least 1, got 0"),
        ({"mlm_probability": 1.0}, "`mlm_probability` must be between 0 and 1, got 1.0"),
    ],
    ids=str,
)
def test_options_out_of_range_are_refused(changes, message) -> None:
    with pytest.raises(UserInputError, match=message) as caught:
        TaskOptions(**changes)
    assert [caught.value.argument] == list(changes)
