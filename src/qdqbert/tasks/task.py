"""What evaluation knows of a task."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from qdqbert.tasks.data import Example

Rows = NDArray[np.float32]
"""One row a text: `(texts, features)`."""

RowKind = Literal["embedding", "classes", "score"]
"""What a row is: a vector, one number a class whose largest is the answer, or one number."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Metric:
    """A number with its name and the number of examples that it is taken over.

    Attributes:
        name: For people and for JSON: `accuracy`, `spearman`.
        value: On the scale that its literature uses; percent here.
        examples: How many were scored.
    """

    name: str
    value: float
    examples: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """One task.

    Attributes:
        name: transformers' name.
        texts: The texts to feed, and their second texts if the model reads both at once.
        rows: From outputs `(batch, ...)` by name and inputs by name to one row a text.
        metrics: From rows, examples and the config's `id2label` to the task's metrics; raises
            `DataFileError` if the examples have no labels or ones that the model does not know.
        kind: What such rows are.
    """

    name: str
    texts: Callable[[Sequence[Example]], tuple[list[str], list[str] | None]]
    rows: Callable[[Mapping[str, NDArray[np.float32]], Mapping[str, NDArray[np.int64]]], Rows]
    metrics: Callable[[Rows, Sequence[Example], Mapping[int, str]], list[Metric]]
    kind: Callable[[Rows], RowKind]
