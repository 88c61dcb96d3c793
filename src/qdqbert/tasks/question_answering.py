"""Answers to questions as spans of a context, as in SQuAD v1.1 and v2.0.

A question and its context make one row, or several where the context is long: windows that share
`doc_stride` tokens. A model scores each token as start and as end; the best pair of all windows of
a question is its answer.

Source: transformers' examples/pytorch/question-answering, `run_qa.py` and `utils_qa.py`, which
rows, answers and files are equal to.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.encoding import Batch, Encoded, padding_of
from qdqbert.errors import DataFileError, UserInputError
from qdqbert.tasks.questions import QuestionExample, read_questions
from qdqbert.tasks.spans import NULL, SpanPrediction, predict
from qdqbert.tasks.squad import score_v1, score_v2
from qdqbert.tasks.task import Features, Labels, Metric, Prediction, Predictions, Task, TaskOptions

_LONGEST_QUESTION = 64  # tokens; `max_query_length` of the usual scripts
_CHUNK = 64  # questions tokenized at a time, see `encoding`
_V2_NAMES = ("f1", "exact", "HasAns_f1", "HasAns_exact", "NoAns_f1", "NoAns_exact")
_NO_ANSWER: Labels = {"start_positions": NULL, "end_positions": NULL}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Window:
    """The part of a context that one row shows.

    Attributes:
        example: Index of its example.
        offsets: First character of each token in the context and the one after its last, -1 for
            tokens of the question and special ones. Shape `(tokens, 2)`.
    """

    example: int
    offsets: NDArray[np.int32]


def encode_windows(
    examples: Sequence[QuestionExample],
    tokenizer: Any,
    *,
    input_names: Sequence[str],
    max_length: int,
    options: TaskOptions,
) -> Features:
    """Each question with each window of its context, at least one, as a row.

    Raises:
        UserInputError: `max_length` leaves no room for windows that share `doc_stride` tokens.
    """
    rows: list[dict[str, NDArray[np.int32]]] = []
    windows: list[Window] = []
    questions, cut = _cut_questions([example.question for example in examples], tokenizer)
    for start in range(0, len(examples), _CHUNK):
        chunk = questions[start : start + _CHUNK]
        _check_room(chunk, tokenizer, max_length=max_length, doc_stride=options.doc_stride)
        made = tokenizer(
            chunk,
            [example.context for example in examples[start : start + _CHUNK]],
            truncation="only_second",
            max_length=max_length,
            stride=options.doc_stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        for index, example in enumerate(made["overflow_to_sample_mapping"]):
            rows.append({name: np.array(made[name][index], np.int32) for name in input_names})
            windows.append(Window(example=start + example, offsets=_context_offsets(made, index)))
    notice = f"{cut} of {len(examples)} questions were longer than {_LONGEST_QUESTION} tokens"
    return Features(
        examples=tuple(examples),
        encoded=Encoded(
            rows=tuple(rows), padding=padding_of(tokenizer, input_names), truncated=cut
        ),
        places=tuple(windows),
        notices=(f"{notice} and were cut.",) if cut else (),
    )


def _cut_questions(questions: Sequence[str], tokenizer: Any) -> tuple[list[str], int]:
    """The questions without spaces before them and too many tokens; and how many were cut."""
    result: list[str] = []
    cut = 0
    for start in range(0, len(questions), _CHUNK):
        # The usual scripts strip them: some of SQuAD's questions begin with a lot of spaces.
        chunk = [question.lstrip() for question in questions[start : start + _CHUNK]]
        made = tokenizer(
            chunk, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        for question, offsets in zip(chunk, made["offset_mapping"], strict=True):
            is_long = len(offsets) > _LONGEST_QUESTION
            result.append(question[: offsets[_LONGEST_QUESTION - 1][1]] if is_long else question)
            cut += is_long
    return result, cut


def _check_room(
    questions: Sequence[str], tokenizer: Any, *, max_length: int, doc_stride: int
) -> None:
    """Refuses what tokenizers answer with a panic: windows that would not move on."""
    made = tokenizer(list(questions), add_special_tokens=False, verbose=False)
    longest = max(len(ids) for ids in made["input_ids"])
    special = tokenizer.num_special_tokens_to_add(pair=True)
    room = max_length - special - longest
    if room <= doc_stride:
        raise UserInputError(
            f"`--max-length {max_length}` leaves {max(room, 0)} tokens for a context beside a "
            f"question of {longest} and {special} special ones; windows that share `--doc-stride "
            f"{doc_stride}` tokens need more than those. Raise `--max-length` or lower "
            "`--doc-stride`."
        )


def _context_offsets(made: Any, index: int) -> NDArray[np.int32]:
    offsets = np.array(made["offset_mapping"][index], dtype=np.int32)
    offsets[[sequence != 1 for sequence in made.sequence_ids(index)]] = -1
    return offsets


def _rows(
    outputs: Mapping[str, NDArray[np.float32]], batch: Batch, features: Features
) -> list[Prediction]:
    """For each row its tokens' scores as start and as end, `(tokens, 2)`, without padding."""
    logits = np.stack([outputs["start_logits"], outputs["end_logits"]], axis=-1)
    lengths = [len(features.places[index].offsets) for index in batch.indices]
    return [row[:length] for row, length in zip(logits, lengths, strict=True)]


def _metrics(
    rows: Predictions, features: Features, id2label: Mapping[int, str], options: TaskOptions
) -> list[Metric]:
    del id2label
    _check_answers(features.examples)
    golds = {
        example.id: [answer.text for answer in example.answers] for example in features.examples
    }
    texts = _texts(rows, features, options)
    if not _has_null(features):
        scores = score_v1(golds, texts)
        return [
            Metric(name=name, value=scores[name], examples=len(golds))
            for name in ("f1", "exact_match")
        ]
    scores = score_v2(golds, texts)
    return [
        Metric(name=name, value=scores[name], examples=int(scores[_total_of(name)]))
        for name in _V2_NAMES
        if name in scores
    ]


def _total_of(name: str) -> str:
    """`HasAns_f1` → `HasAns_total`, `f1` → `total`."""
    prefix, underscore, _ = name.rpartition("_")
    return f"{prefix}{underscore}total"


def _check_answers(examples: Sequence[QuestionExample]) -> None:
    unknown = [each.id for each in examples if not each.answers and not each.is_impossible]
    if unknown:
        raise DataFileError(
            f"Each question must have `answers`, an empty list where there is none, to compare "
            f"with; {len(unknown)} of {len(examples)} have no such field, such as {unknown[0]!r}. "
            "Name data with answers."
        )


def _decisions(rows: Predictions, features: Features, options: TaskOptions) -> Sequence[Hashable]:
    """The answer to each question."""
    return list(_texts(rows, features, options).values())


def _texts(rows: Predictions, features: Features, options: TaskOptions) -> dict[str, str]:
    return {id_: each.text for id_, each in _predictions(rows, features, options)}


def _files(rows: Predictions, features: Features, options: TaskOptions) -> dict[str, Any]:
    """What the usual scripts write: answers, best spans and, as in v2.0, odds of no answer."""
    predictions = dict(_predictions(rows, features, options))
    files: dict[str, Any] = {
        "predictions.json": {id_: each.text for id_, each in predictions.items()},
        "nbest_predictions.json": {id_: each.n_best for id_, each in predictions.items()},
    }
    if _has_null(features):
        files["null_odds.json"] = {id_: each.null_odds for id_, each in predictions.items()}
    return files


def _has_null(features: Features) -> bool:
    """Whether "no answer" is an answer, as in v2.0: it is to one question at least."""
    return any(example.is_impossible for example in features.examples)


def _predictions(
    rows: Predictions, features: Features, options: TaskOptions
) -> Iterator[tuple[str, SpanPrediction]]:
    """Ids and what is answered, in the order of the examples."""
    has_null = _has_null(features)
    for example, indices in zip(features.examples, _rows_by_example(features), strict=True):
        shown = [(rows[index], features.places[index].offsets) for index in indices]
        yield example.id, predict(shown, example.context, options, has_null=has_null)


def _rows_by_example(features: Features) -> list[list[int]]:
    result: list[list[int]] = [[] for _ in features.examples]
    for index, window in enumerate(features.places):
        result[window.example].append(index)
    return result


def _labels(features: Features, id2label: Mapping[int, str]) -> list[Labels | None]:
    """First and last token of the answer; [CLS] where there is none or the window lacks a part.

    `None` for all rows of a question whose answer is nowhere in the context.
    """
    del id2label
    _check_answers(features.examples)
    labels: list[Labels | None] = [_NO_ANSWER] * len(features.places)
    for example, indices in zip(features.examples, _rows_by_example(features), strict=True):
        if not example.is_impossible:
            offsets = [features.places[index].offsets for index in indices]
            for index, each in zip(indices, _positions(example.span, offsets), strict=True):
                labels[index] = each
    return labels


def _positions(
    span: tuple[int, int] | None, windows: Sequence[NDArray[np.int32]]
) -> Sequence[Labels | None]:
    """First and last token of a span of characters, in each window of its context."""
    if span is None:
        return [None] * len(windows)
    tokens = [
        np.flatnonzero((offsets[:, 0] < span[1]) & (offsets[:, 1] > span[0])) for offsets in windows
    ]
    edges = [
        (int(offsets[inside[0], 0]), int(offsets[inside[-1], 1]))
        for inside, offsets in zip(tokens, windows, strict=True)
        if len(inside)
    ]
    if not edges:  # a span of nothing but what the tokenizer drops
        return [None] * len(windows)
    # Not the span's own ends: a token may reach past them, and a mark or space at an end may
    # belong to no token.
    first, last = min(start for start, _ in edges), max(end for _, end in edges)
    return [
        {"start_positions": int(inside[0]), "end_positions": int(inside[-1])}
        if len(inside) and offsets[inside[0], 0] == first and offsets[inside[-1], 1] == last
        else _NO_ANSWER
        for inside, offsets in zip(tokens, windows, strict=True)
    ]


QUESTION_ANSWERING = Task(
    name="question-answering",
    read=read_questions,
    encode=encode_windows,
    rows=_rows,
    metrics=_metrics,
    decisions=_decisions,
    labels=_labels,
    max_length=384,
    reads_texts=False,
    files=_files,
)
