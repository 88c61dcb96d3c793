"""Names and number of classes: what transformers makes of every pair of fields, or a refusal."""

from __future__ import annotations

import pytest
import transformers

from qdqbert.common.errors import CheckpointError, UserInputError
from qdqbert.encoders.config import Config
from qdqbert.encoders.task_kinds import check_classes

ABSENT = object()
NAMES = {
    "absent": ABSENT,
    "null": None,
    "empty": {},
    "list": ["a", "b"],
    "text": "ab",
    "number": 2,
    "one": {"0": "a"},
    "two": {"0": "a", "1": "b"},
    "three": {"0": "a", "1": "b", "2": "c"},
    "gap": {"0": "a", "2": "b"},
    "from one": {"1": "a", "2": "b"},
    "negative": {"-1": "a", "0": "b"},
    "same name": {"0": "a", "1": "a"},
    "same number": {"0": "a", "00": "b"},
    "spaces": {" 0": "a", "1": "b"},
    "inverted": {"a": 0, "b": 1},
    "fractions": {"0.0": "a", "1.0": "b"},
    "numbers": {"0": 0, "1": 1.5},
    "truth": {"0": False, "1": True},
    "blank": {"0": "", "1": "b"},
    "null name": {"0": None, "1": "b"},
    "list name": {"0": ["a"], "1": "b"},
}
# More names than fit in memory.
MANY = 10**12
COUNTS = (ABSENT, None, -1, 0, 1, 2, 3, "2", 2.0, [2], MANY)
# Names that transformers takes, and nothing could report.
REFUSED_HERE = ("null name", "list name")


@pytest.mark.parametrize("names", NAMES)
def test_classes_are_those_of_transformers_or_are_refused(names) -> None:
    for count in COUNTS:
        values = {"id2label": NAMES[names], "num_labels": count, "label2id": {"z": 7}}
        values = {name: value for name, value in values.items() if value is not ABSENT}
        try:
            expected = transformers.BertConfig(**values).id2label if count != MANY else None
        except (AttributeError, TypeError, ValueError):
            expected = None
        config = Config(values=values, path="a/config.json")
        if expected is None or names in REFUSED_HERE or count == -1:
            with pytest.raises(
                CheckpointError, match=r"`(id2label|num_labels)=.* in a/config\.json"
            ):
                config.class_names()
        else:
            expected = {number: str(name) for number, name in expected.items()}
            assert config.class_names() == expected, count


@pytest.mark.parametrize("problem", ["other", "", 3, ["regression"]])
def test_a_wrong_problem_type_is_refused(problem) -> None:
    with pytest.raises(CheckpointError, match=r"`problem_type=.* in a/config\.json"):
        Config(values={"problem_type": problem}, path="a/config.json").class_names()


def test_one_class_is_no_choice() -> None:
    values = {"problem_type": "single_label_classification", "num_labels": 1}
    with pytest.raises(ValueError, match="num_labels"):
        transformers.BertConfig(**values)
    with pytest.raises(CheckpointError, match="there is one class"):
        Config(values=values).class_names()


@pytest.mark.parametrize(
    ("task", "names", "outputs", "reason"),
    [
        ("text-classification", {}, None, "classes none"),
        ("text-classification", {0: "a", 2: "b"}, 2, "classes 0, 2"),
        ("token-classification", {1: "a", 2: "b"}, 2, "classes 1, 2"),
        ("text-classification", {0: "a", 1: "b"}, 3, "is 2 .* head is 3"),
        ("token-classification", {0: "a", 1: "b"}, 1, "is 2 .* head is 1"),
        ("reranking", {0: "a"}, 2, "is 1 .* head is 2"),
        ("reranking", {0: "a", 1: "b"}, 1, "needs a model with one output"),
        ("reranking", {}, None, "is 0 .* head is 1"),
        ("question-answering", {0: "a"}, None, "is 1 .* head is 2"),
        ("question-answering", {0: "a", 1: "b"}, 3, "is 2 .* head is 3"),
        ("multiple-choice", {0: "a", 1: "b"}, 2, "head is 2, and .* has to be 1"),
        ("next-sentence-prediction", {0: "a"}, 1, "head is 1, and .* has to be 2"),
    ],
)
def test_classes_that_a_task_or_a_head_does_not_have_are_refused(
    task, names, outputs, reason
) -> None:
    with pytest.raises(UserInputError, match=reason):
        check_classes(task, names, where="a/config.json", outputs=outputs)


@pytest.mark.parametrize(
    ("task", "names", "outputs"),
    [
        ("text-classification", {0: "a", 1: "a"}, 2),
        ("token-classification", {1: "b", 0: "a"}, None),
        ("reranking", {0: "a"}, 1),
        # The number of classes says nothing about these.
        ("fill-mask", {0: "a", 2: "b"}, None),
        ("feature-extraction", {}, None),
        ("multiple-choice", {0: "a", 1: "b"}, 1),
        ("next-sentence-prediction", {0: "a"}, 2),
    ],
)
def test_other_classes_are_accepted(task, names, outputs) -> None:
    check_classes(task, names, where="a/config.json", outputs=outputs)
