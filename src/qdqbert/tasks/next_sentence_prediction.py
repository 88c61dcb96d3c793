"""Whether a second text follows the first. As in BERT, class 0 says that it does, 1 that not."""

from __future__ import annotations

from collections.abc import Mapping

from qdqbert.errors import DataFileError
from qdqbert.tasks.data import Columns, Dataset
from qdqbert.tasks.logits import accuracy_of, largest, logit_rows
from qdqbert.tasks.task import Features, Labels, Metric, Predictions, Task, TaskOptions
from qdqbert.tasks.texts import encode_together, label_of, read_texts

_CLASSES = {
    **dict.fromkeys(("0", "next", "is_next", "isnext", "true"), 0),
    **dict.fromkeys(("1", "random", "not_next", "notnext", "false"), 1),
}


def read_pairs(path: str, *, columns: Columns, max_examples: int | None) -> Dataset:
    """Pairs of texts with their labels, see `read_dataset`.

    Raises:
        DataFileError: As `read_dataset`, or there is no column of second texts.
    """
    dataset = read_texts(path, columns=columns, max_examples=max_examples)
    if dataset.examples[0].text_pair is None:
        raise DataFileError(
            f"Data `{path}` has one text a row, and next-sentence-prediction reads two. Name the "
            "second with `--text-pair-column`."
        )
    return dataset


def _metrics(
    rows: Predictions, features: Features, id2label: Mapping[int, str], options: TaskOptions
) -> list[Metric]:
    del id2label, options
    return [accuracy_of(rows, _classes(features))]


def _labels(features: Features, id2label: Mapping[int, str]) -> list[Labels]:
    del id2label
    return [{"labels": label} for label in _classes(features)]


def _classes(features: Features) -> list[int]:
    """Classes of the head, which its config does not name."""
    labels = [label_of(example) for example in features.examples]
    for label in labels:
        if label.lower().removesuffix(".0") not in _CLASSES:
            raise DataFileError(
                f"Label {label!r} must be 0, 'next' or 'true' where the second text follows the "
                "first, and 1, 'random' or 'false' where not. Name the labels' column with "
                "`--label-column`, or change them."
            )
    return [_CLASSES[label.lower().removesuffix(".0")] for label in labels]


NEXT_SENTENCE_PREDICTION = Task(
    name="next-sentence-prediction",
    read=read_pairs,
    encode=encode_together,
    rows=logit_rows,
    metrics=_metrics,
    decisions=largest,
    labels=_labels,
)
