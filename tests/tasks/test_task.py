"""Names of tasks, and what they run."""

import pytest

from qdqbert.common.errors import DataFileError
from qdqbert.data.rows.conll import TokenExample
from qdqbert.data.rows.data import Columns, Dataset, Example
from qdqbert.encoders.task_kinds import TASK_NAMES
from qdqbert.tasks.multi_label_classification import MULTI_LABEL_CLASSIFICATION
from qdqbert.tasks.multiple_choice import ChoiceExample
from qdqbert.tasks.questions import Answer as QuestionAnswer
from qdqbert.tasks.questions import QuestionExample
from qdqbert.tasks.registry import TASKS, model_for
from qdqbert.tasks.reranking import RankingExample


def test_a_task_stands_in_the_file_of_its_name() -> None:
    assert {name: task.name for name, task in TASKS.items()} == {name: name for name in TASK_NAMES}


def test_a_classifier_with_one_output_scores_pairs() -> None:
    one, two = ({"id2label": dict.fromkeys(range(count), "a")} for count in (1, 2))
    assert model_for("text-classification", one)[0] == "reranking"
    assert model_for("text-classification", two)[0] == "text-classification"
    assert model_for("token-classification", one)[0] == "token-classification"


CASES = {
    "text-classification": [Example(text="a", label=each) for each in ("0", " ", "1", None)],
    "feature-extraction": [
        Example(text="a", text_pair="b", label=each) for each in ("1", "", "0.5", None)
    ],
    "reranking": [
        RankingExample(text="q", text_pair="d", label=each, group="q") for each in "1 0 "
    ],
    "token-classification": [
        TokenExample(words=("a", "b"), tags=each) for each in (("0", "1"), None, ("0", "0"), None)
    ],
    "multiple-choice": [
        ChoiceExample(context="a", prompt="", endings=("b", "c"), label=each)
        for each in (0, None, 1, None)
    ],
    "next-sentence-prediction": [
        Example(text="a", text_pair="b", label=each) for each in ("0", None, "1", " ")
    ],
    "question-answering": [
        QuestionExample(id=str(id(each)), question="q", context="c", **each)
        for each in (
            {"answers": (QuestionAnswer(text="c", start=0),)},
            {},
            {"is_impossible": True},
            {"answers": ()},
        )
    ],
}


def dataset_of(task: str, examples: list[object]) -> Dataset:
    columns = Columns(text="a", text_pair="b", label="label")
    return Dataset(path="a.csv", examples=tuple(examples), columns=columns, notices=("Read.",))


@pytest.mark.parametrize("task", CASES)
def test_examples_without_a_label_are_left_out_if_others_have_one(task) -> None:
    classes = {0: "0"} if task in ("feature-extraction", "reranking") else {0: "0", 1: "1"}
    some, unlabeled = CASES[task], [each for each in CASES[task] if each.labels is None]
    found = TASKS[task].read_labels(dataset_of(task, some), classes)
    assert [each.labels for each in found.examples] == [
        each.labels for each in some if each.labels is not None
    ]
    count = "2 of 4 examples have" if len(unlabeled) == 2 else "1 of 4 examples has"
    assert f"{count} no label" in found.notices[1]
    with pytest.raises(DataFileError):
        TASKS[task].read_labels(dataset_of(task, unlabeled), classes)


def test_a_text_without_a_label_may_have_no_class_and_be_filled() -> None:
    examples = [Example(text="a", label="0"), Example(text="b", label=None)]
    for task in (MULTI_LABEL_CLASSIFICATION, TASKS["fill-mask"]):
        assert task.read_labels(dataset_of(task.name, examples), {0: "0", 1: "1"}).notices == (
            "Read.",
        )


@pytest.mark.parametrize(
    ("task", "examples"),
    [
        ("text-classification", [Example(text=each, label="1") for each in "ab"]),
        ("token-classification", [TokenExample(words=("a", "b"), tags=("1", "1"))] * 2),
    ],
)
def test_data_with_one_label_get_a_note(task, examples) -> None:
    _, notice = TASKS[task].read_labels(dataset_of(task, examples), {0: "0", 1: "1"}).notices
    assert notice.startswith("All labels of `a.csv`, column 'label' are '1', and metrics of one")
