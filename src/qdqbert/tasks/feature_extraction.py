"""Embeddings, scored by how well the cosine of two texts agrees with human scores."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.common.errors import DataFileError
from qdqbert.common.objects import Rows
from qdqbert.data.rows.columns import Row, quoted, resolve_columns
from qdqbert.data.rows.data import Columns, Dataset, Example, check_each, open_table, read_table
from qdqbert.data.rows.lines import counted, row_name
from qdqbert.tasks.embedder import Embedder
from qdqbert.tasks.embedding_jobs import sentence_vectors
from qdqbert.tasks.logits import pair_answers
from qdqbert.tasks.prompts import Prompted, encode_in_turn, prompts_of
from qdqbert.tasks.scores import check_scores_differ, correlations, scaled_scores, score_of
from qdqbert.tasks.task import Features, Labels, Outcome, Score, Task, Tokenization
from qdqbert.tasks.texts import check_label_column, require_pairs

# Names of columns of second texts, next to those of first ones. Other tasks use them for labels.
_POSITIVES = ("positive", "answer", "response")
_ANCHORS = ("anchor", "query", "question")
# Names of columns of texts that do not belong to the first one.
_NEGATIVE = re.compile(r"(hard_)?negatives?(_?[0-9]+)?")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ContrastExample(Example):
    """A text, one that belongs to it, and others that do not.

    Attributes:
        negatives: The others, equally many for each example of a data set.
    """

    negatives: tuple[str, ...]

    @property
    def content(self) -> tuple[str, ...]:
        """The texts that a model reads."""
        return (*super().content, *self.negatives)


def read_pairs(data: str | Rows, *, columns: Columns, max_examples: int | None) -> Dataset:
    """Read texts, pairs of texts, or pairs with negatives; see `read_dataset`.

    Raises:
        DataFileError: As `read_dataset`, or a negative is blank.
    """
    table = open_table(data, columns)
    known = {name.strip().lower(): name for name in table.names}
    positive = next((known[name] for name in _POSITIVES if name in known), None)
    if positive is not None and not known.keys().isdisjoint(_ANCHORS):
        resolved, _ = resolve_columns(table, columns)
        if resolved.text_pair is None and positive not in (resolved.text, resolved.label):
            columns = dataclasses.replace(columns, text_pair=positive)
    names = [name for name in table.names if _NEGATIVE.fullmatch(name.strip().lower())]
    found: dict[int, tuple[str, ...]] = {}
    if names:
        table.rows = _with_negatives(table.rows, table.path, names, found)
    dataset = read_table(table, columns, max_examples=max_examples)
    if not names or dataset.columns.text_pair is None:
        return dataset
    examples = tuple(
        ContrastExample(
            text=each.text,
            text_pair=each.text_pair,
            label=each.label,
            row=each.row,
            negatives=found[each.row],
        )
        for each in dataset.examples
    )
    return dataclasses.replace(dataset, examples=examples)


def _with_negatives(
    rows: Iterator[Row], path: str, names: Sequence[str], found: dict[int, tuple[str, ...]]
) -> Iterator[Row]:
    """Yield rows, and record their negatives by the number of the row."""
    count = None
    for number, fields in rows:
        values = [fields.get(name) for name in names]
        listed = [x for each in values for x in (each if isinstance(each, list) else [each])]
        texts = tuple(each for each in listed if isinstance(each, str) and each.strip())
        count = len(listed) if count is None else count
        if len(texts) != count or len(listed) != count:
            raise DataFileError(
                f"{row_name(path, number)} must have {counted(count, 'text')} in "
                f"{quoted(names)}, as the first row, got {len(texts)}. Fill it in, or remove the "
                "row."
            )
        found[number] = texts
        yield number, fields


def _check_labels(dataset: Dataset, _: Mapping[int, str]) -> None:
    require_pairs(dataset, "the score of an embedder")
    check_label_column(dataset)
    check_each(dataset, score_of)


def _encode(examples: Sequence[Example], how: Tokenization) -> Features:
    """Make a feature of each text: of all first texts, then of all second ones."""
    texts = _texts_of(examples)
    return how.features(examples, how.encode(texts), len(texts))


def _calibration_jobs(head: Any, how: Tokenization) -> list[Prompted]:
    """Return a job for each prompt of the model."""
    cutting = how.tokenizer.cutting(how.max_length)
    return [
        Prompted(tokenizer=cutting, input_names=how.input_names, prompt=prompt)
        for prompt in prompts_of(head.settings)
    ]


def by_jobs_in_turn(
    jobs_of: Callable[[Any, Tokenization], Sequence[Prompted]],
) -> Callable[[Any, Sequence[Example], Tokenization], Features]:
    """Return a function that makes a feature of each text, by the jobs for a head in turn.

    See `encode_in_turn`.
    """

    def encode_calibration(head: Any, examples: Sequence[Example], how: Tokenization) -> Features:
        texts, jobs = _texts_of(examples), jobs_of(head, how)
        features, truncated = encode_in_turn(texts, jobs, max_length=how.max_length)
        return how.features(examples, how.encoded(map(dict, features), truncated), len(texts))

    return encode_calibration


def _texts_of(examples: Sequence[Example]) -> list[str]:
    """Return all first texts, then all second ones, and so on."""
    columns = zip(*(example.content for example in examples), strict=True)
    return list(itertools.chain.from_iterable(columns))


def _scores(outcome: Outcome) -> list[Score]:
    """Return the correlations of cosine and score, x 100, as in STS benchmarks."""
    return correlations(_cosines(outcome), list(map(score_of, outcome.examples)))


def _cosines(outcome: Outcome) -> NDArray[np.float64]:
    """Return the cosine of both texts of each example."""
    stacked = np.stack(outcome.predictions).astype(np.float64)
    count = len(outcome.examples)
    first, second = stacked[:count], stacked[count:]
    cosines: NDArray[np.float64] = (first * second).sum(axis=1) / (
        np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    )
    return cosines


def _labels(features: Features, _: Mapping[int, str]) -> list[Labels]:
    """Return the score of each pair, scaled to 0 to 1 if it is not in that range."""
    return [{"scores": score} for score in scaled_scores(features.examples)]


FEATURE_EXTRACTION = Task(
    name="feature-extraction",
    read=read_pairs,
    encode=_encode,
    encode_calibration=by_jobs_in_turn(_calibration_jobs),
    check_labels=_check_labels,
    check_metrics=lambda dataset, id2label: check_scores_differ(dataset),
    predictions=lambda results: list(sentence_vectors(results)),
    scores=_scores,
    labels=_labels,
    answers=lambda outcome: pair_answers(outcome, "cosine", _cosines),
    model=Embedder,
)
