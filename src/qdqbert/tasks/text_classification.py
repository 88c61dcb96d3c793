"""Classes of texts or pairs of texts; with one output, scores of pairs (rerankers, regression)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from qdqbert.errors import DataFileError
from qdqbert.tasks.data import Example
from qdqbert.tasks.metrics import accuracy
from qdqbert.tasks.scores import correlations
from qdqbert.tasks.task import Metric, Rows, Task


def _texts(examples: Sequence[Example]) -> tuple[list[str], list[str] | None]:
    """Pairs are read together."""
    pairs = [example.text_pair for example in examples if example.text_pair is not None]
    return [example.text for example in examples], pairs or None


def _rows(
    outputs: Mapping[str, NDArray[np.float32]], inputs: Mapping[str, NDArray[np.int64]]
) -> Rows:
    del inputs
    return outputs["logits"]


def _metrics(rows: Rows, examples: Sequence[Example], id2label: Mapping[int, str]) -> list[Metric]:
    if rows.shape[1] == 1:
        return correlations(rows[:, 0], examples)
    labels = [_class_of(example, id2label) for example in examples]
    return [
        Metric(name="accuracy", value=accuracy(rows.argmax(axis=1), labels), examples=len(labels))
    ]


def _class_of(example: Example, id2label: Mapping[int, str]) -> int:
    """The class of a label: its name in the config, in any case, or its number."""
    if example.label is None:
        raise DataFileError(
            "The data has no labels to compare with. Name their column with `--label-column`."
        )
    wanted = example.label.strip().lower()
    for index, name in id2label.items():
        if wanted == name.lower():
            return index
    if wanted.removesuffix(".0").isdigit() and int(wanted.removesuffix(".0")) in id2label:
        return int(wanted.removesuffix(".0"))
    known = ", ".join(f"{index} or {name!r}" for index, name in sorted(id2label.items())[:20])
    raise DataFileError(
        f"Label {example.label!r} is not one of the model's: {known}. Name the labels' column "
        "with `--label-column`, or set `id2label` in the checkpoint's config.json."
    )


TEXT_CLASSIFICATION = Task(
    name="text-classification",
    texts=_texts,
    rows=_rows,
    metrics=_metrics,
    kind=lambda rows: "classes" if rows.shape[1] > 1 else "score",
)
