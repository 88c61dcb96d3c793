"""Answers to questions as spans of a context, as in SQuAD v1.1 and v2.0.

A question and its context make one row, or several where the context is long: windows that share
`doc_stride` tokens. A model scores each token as start and as end; the best pair of all windows of
a question is its answer.

Source: transformers' examples/pytorch/question-answering, `run_qa.py` and `utils_qa.py`, which
rows, answers and files are equal to.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from qdqbert.encoding import Batch, Encoded, padding_of
from qdqbert.errors import DataFileError, UserInputError
from qdqbert.tasks.data import Columns, Dataset
from qdqbert.tasks.hub import hub_rows, is_hub
from qdqbert.tasks.squad import score_v1, score_v2
from qdqbert.tasks.task import Features, Labels, Metric, Row, Rows, Task, TaskOptions

_LONGEST_QUESTION = 64  # tokens; `max_query_length` of the usual scripts
_CHUNK = 64  # questions tokenized at a time, see `encoding`
_NULL = 0  # the position of [CLS], which stands for "no answer"
# QA heads of transformers clamp positions to the length of the batch, and leave those that are
# equal to it out of the loss. Any position past the longest row will do; a negative one, even -100,
# would be clamped to 0 and teach "no answer".
_IGNORED = 10**6
_V2_NAMES = ("f1", "exact", "HasAns_f1", "HasAns_exact", "NoAns_f1", "NoAns_exact")
_KINDS = {str: "a string", int: "an integer", list: "a list"}

_Positions = tuple[int, int]
_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """A right answer and where its first character is in the context, as the file says."""

    text: str
    start: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuestionExample:
    """A question on a context.

    Attributes:
        id: Differs from all others of the data.
        question: As the file has it.
        context: What is searched for the answer.
        title: Of the article; may be empty.
        answers: Right answers, each as good as the others; none if there is no answer or it is not
            known.
        is_impossible: Whether it is known that the context has no answer.
    """

    id: str
    question: str
    context: str
    title: str = ""
    answers: tuple[Answer, ...] = ()
    is_impossible: bool = False

    @property
    def content(self) -> tuple[str, str]:
        """What a model is shown of it."""
        return self.question, self.context

    @property
    def span(self) -> _Positions | None:
        """First character, and the one after the last, of the first answer in the context."""
        for answer in self.answers:
            start = find_answer(self.context, answer)
            if start is not None:
                return start, start + len(answer.text)
        return None


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Prediction:
    """What a model answers to one question.

    Attributes:
        text: "" for no answer.
        n_best: The best spans, best first, with `start_logit`, `end_logit`, `text`, `probability`.
        null_odds: By how much the score of "no answer" is above that of the best other one; `None`
            where all questions have an answer.
    """

    text: str
    n_best: list[dict[str, Any]]
    null_odds: float | None


def find_answer(context: str, answer: Answer) -> int | None:
    """Where the text of an answer is in the context: the place nearest to the one in the file."""
    if not answer.text:
        return None
    if answer.start >= 0 and context.startswith(answer.text, answer.start):
        return answer.start
    places = []
    place = context.find(answer.text)
    while place >= 0:
        places.append(place)
        place = context.find(answer.text, place + 1)
    return min(places, key=lambda each: abs(each - answer.start), default=None)


def question_of(row: Mapping[str, object], where: str) -> QuestionExample:
    """The example of one row in the layout of Hugging Face's `squad` and `squad_v2`.

    The row has `id`, `question`, `context`, maybe `title`, and `answers`: a `text` and an
    `answer_start` with a list each, or a list of such pairs. Empty ones say that there is no
    answer; without `answers` it is not known.

    Args:
        row: Fields by name.
        where: What errors call the row: "Line 3 of `dev.jsonl`".

    Raises:
        DataFileError: A field is missing or of another kind.
    """
    given = row.get("answers")
    answers = () if given is None else _answers_of(given, where)
    claimed = row.get("is_impossible") or False
    if claimed and answers:
        raise DataFileError(
            f"{where} must have no `answers` where `is_impossible` is true, got {len(answers)}. "
            "Remove one or the other."
        )
    return QuestionExample(
        id=str(row["id"]) if type(row.get("id")) is int else _field(row, "id", str, where),
        question=_field(row, "question", str, where),
        context=_field(row, "context", str, where),
        title=str(row.get("title") or ""),
        answers=answers,
        is_impossible=bool(claimed) or (given is not None and not answers),
    )


def _answers_of(given: object, where: str) -> tuple[Answer, ...]:
    where = f"`answers` of {where[:1].lower()}{where[1:]}"
    if isinstance(given, Mapping):
        texts, starts = (_field(given, name, list, where) for name in ("text", "answer_start"))
        if len(texts) != len(starts):
            raise DataFileError(
                f"{where} must have as many `answer_start` as `text`, got {len(starts)} and "
                f"{len(texts)}. Add what is missing."
            )
        given = [
            {"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)
        ]
    if not isinstance(given, list):
        raise DataFileError(
            f"{where} must be an object with the lists `text` and `answer_start`, or a list of "
            f"objects, got {_kind(given)}. Change the layout."
        )
    return tuple(
        Answer(
            text=_field(each, "text", str, where), start=_field(each, "answer_start", int, where)
        )
        for each in given
    )


def _field(row: object, name: str, kind: type[_T], where: str) -> _T:
    """A field that must be there and of one kind."""
    value = row.get(name) if isinstance(row, Mapping) else None
    if isinstance(value, kind) and not isinstance(value, bool):
        return value
    there = _kind(value) if isinstance(row, Mapping) and name in row else "none"
    raise DataFileError(
        f"{where} must have `{name}`: {_KINDS[kind]}, got {there}. Expected SQuAD's layout in a "
        ".json file, or that of Hugging Face's `squad` in a .jsonl file or a data set of the hub."
    )


def _kind(value: object) -> str:
    return "null" if value is None else type(value).__name__


def read_questions(path: str, *, columns: Columns, max_examples: int | None) -> Dataset:
    """Reads SQuAD's .json, or rows in Hugging Face's layout: .jsonl, .ndjson or `hub:NAME@SPLIT`.

    Raises:
        DataFileError: The data cannot be read, is of another layout, has no question or two with
            one id; or a column was asked for, or `max_examples` is below 1.
    """
    for role, name in dataclasses.asdict(columns).items():
        if name is not None:
            raise DataFileError(
                f"Question answering reads `question`, `context` and `answers` by their names, got "
                f"`--{role.replace('_', '-')}-column {name!r}`. Leave the option out."
            )
    if max_examples is not None and max_examples < 1:
        raise DataFileError(f"`max_examples` must be at least 1, got {max_examples}.")
    rows = itertools.islice(_rows_of_data(path), max_examples)
    examples = tuple(question_of(row, where) for where, row in rows)
    if not examples:
        raise DataFileError(f"`{path}` must have at least one question, got none. Name other data.")
    counts = collections.Counter(example.id for example in examples)
    repeated = [id_ for id_, count in counts.items() if count > 1]
    if repeated:
        raise DataFileError(
            f"Each question of `{path}` must have an `id` of its own, got {len(repeated)} that "
            f"several have, such as {repeated[0]!r}. Change them."
        )
    return Dataset(
        path=path, examples=examples, columns=Columns(), notices=_notices_on_places(examples)
    )


def _rows_of_data(path: str) -> Iterator[tuple[str, Mapping[str, object]]]:
    """The questions, each with what errors call it."""
    if is_hub(path):
        return ((f"Row {number} of `{path}`", row) for number, row in hub_rows(path))
    file = Path(path)
    if not file.is_file():
        wrong = "is a directory, not a file" if file.is_dir() else "does not exist"
        raise DataFileError(f"Data file `{path}` {wrong}. Check the path.")
    suffix = file.suffix.lower()
    if suffix == ".json":
        return _squad_rows(_json(_text_of(file), f"File `{path}`"), path)
    if suffix in (".jsonl", ".ndjson"):
        # Not `splitlines`: a context may hold U+2028, which is no end of a line in JSON.
        lines = enumerate(_text_of(file).split("\n"), start=1)
        return _line_rows(((number, line) for number, line in lines if line.strip()), path)
    raise DataFileError(
        f"File `{path}` must end in one of .json, .jsonl, .ndjson, got {suffix!r}. Convert or "
        "rename it."
    )


def _text_of(file: Path) -> str:
    try:
        return file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataFileError(
            f"File `{file}` must be UTF-8, got byte 0x{error.object[error.start]:02x} at position "
            f"{error.start}. Save it as UTF-8."
        ) from error
    except OSError as error:
        raise DataFileError(f"File `{file}` cannot be read: {error}. Name another file.") from error


def _json(text: str, where: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataFileError(f"{where} is not JSON: {error}. Write it anew.") from error
    if isinstance(value, dict):
        return value
    raise DataFileError(f"{where} must be a JSON object, got {_kind(value)}. Change the layout.")


def _line_rows(
    lines: Iterator[tuple[int, str]], path: str
) -> Iterator[tuple[str, Mapping[str, object]]]:
    for number, line in lines:
        where = f"Line {number} of `{path}`"
        yield where, _json(line, where)


def _squad_rows(content: object, path: str) -> Iterator[tuple[str, Mapping[str, object]]]:
    """SQuAD's articles, paragraphs and questions as rows in Hugging Face's layout."""
    for i, article in enumerate(_field(content, "data", list, f"File `{path}`"), start=1):
        where = f"Article {i} of `{path}`"
        for j, paragraph in enumerate(_field(article, "paragraphs", list, where), start=1):
            where = f"Paragraph {j} of article {i} of `{path}`"
            context = _field(paragraph, "context", str, where)
            for k, question in enumerate(_field(paragraph, "qas", list, where), start=1):
                where = f"Question {k} of paragraph {j} of article {i} of `{path}`"
                row = question if isinstance(question, Mapping) else {}
                yield where, {**row, "context": context, "title": article.get("title")}


def _notices_on_places(examples: Sequence[QuestionExample]) -> tuple[str, ...]:
    """What a user is told of answers that are not where the file says."""
    moved = missing = unplaced = 0
    for example in examples:
        found = [find_answer(example.context, answer) for answer in example.answers]
        moved += any(
            place not in (None, answer.start)
            for place, answer in zip(found, example.answers, strict=True)
        )
        missing += None in found
        unplaced += bool(found) and example.span is None
    notices = []
    if moved:
        notices.append(
            f"{moved} of {len(examples)} questions have an answer that is not where the file says; "
            "it was found elsewhere in the context."
        )
    if missing:
        notices.append(
            f"{missing} of {len(examples)} questions have an answer that is not in the context; "
            f"{unplaced} have no other and are left out of training."
        )
    return tuple(notices)


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
) -> list[Row]:
    """For each row its tokens' scores as start and as end, `(tokens, 2)`, without padding."""
    logits = np.stack([outputs["start_logits"], outputs["end_logits"]], axis=-1)
    lengths = [len(features.places[index].offsets) for index in batch.indices]
    return [row[:length] for row, length in zip(logits, lengths, strict=True)]


def _metrics(
    rows: Rows, features: Features, id2label: Mapping[int, str], options: TaskOptions
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


def _decisions(rows: Rows, features: Features, options: TaskOptions) -> Sequence[Hashable]:
    """The answer to each question."""
    return list(_texts(rows, features, options).values())


def _texts(rows: Rows, features: Features, options: TaskOptions) -> dict[str, str]:
    return {id_: each.text for id_, each in _predictions(rows, features, options)}


def _files(rows: Rows, features: Features, options: TaskOptions) -> dict[str, Any]:
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
    rows: Rows, features: Features, options: TaskOptions
) -> Iterator[tuple[str, _Prediction]]:
    """Ids and what is answered, in the order of the examples."""
    has_null = _has_null(features)
    for example, indices in zip(features.examples, _rows_by_example(features), strict=True):
        shown = [(rows[index], features.places[index].offsets) for index in indices]
        yield example.id, _predict(shown, example.context, options, has_null=has_null)


def _rows_by_example(features: Features) -> list[list[int]]:
    result: list[list[int]] = [[] for _ in features.examples]
    for index, window in enumerate(features.places):
        result[window.example].append(index)
    return result


def _predict(
    shown: Sequence[tuple[Row, NDArray[np.int32]]],
    context: str,
    options: TaskOptions,
    *,
    has_null: bool,
) -> _Prediction:
    """The answer that the windows of one context give, as rows and their offsets."""
    parts = [_spans(row, offsets, options) for row, offsets in shown]
    # "No answer" must suit all windows, so the one where it is least likely counts.
    null = min((row[_NULL] for row, _ in shown), key=lambda each: float(each[0] + each[1]))
    if has_null:
        parts.append((np.zeros((1, 2), np.int32), null[None]))
    spans, logits = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    scores = logits[:, 0] + logits[:, 1]
    best = np.argsort(-scores, kind="stable")[: options.n_best_size]
    if has_null and spans[best].any(axis=1).all():
        best = np.append(best, len(scores) - 1)
    spans, logits, scores = spans[best], logits[best], scores[best]
    texts = [context[start:end] for start, end in spans.tolist()]
    if not any(texts[:1]) and len(texts) < 2:
        # Not one span: the usual scripts answer with this word.
        texts = ["empty", *texts]
        logits = np.concatenate([np.zeros((1, 2), np.float32), logits])
        scores = np.append(0.0, scores)
    n_best = _n_best(texts, logits, scores)
    if not has_null:
        return _Prediction(text=texts[0], n_best=n_best, null_odds=None)
    first = next((index for index, text in enumerate(texts) if text), 0)
    odds = null[0] + null[1] - logits[first, 0] - logits[first, 1]
    text = "" if odds > options.null_score_diff_threshold else texts[first]
    return _Prediction(text=text, n_best=n_best, null_odds=float(odds))


def _spans(
    row: Row, offsets: NDArray[np.int32], options: TaskOptions
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Characters and start and end logit of the possible answers in one window, `(spans, 2)` each.

    They are the pairs of the best starts with the best ends that make a span of the context.
    """
    starts, ends = (
        np.argsort(column, kind="stable")[: -options.n_best_size - 1 : -1] for column in row.T
    )
    starts, ends = np.repeat(starts, len(ends)), np.tile(ends, len(starts))
    lengths = ends - starts + 1
    fits = (lengths >= 1) & (lengths <= options.max_answer_length)
    fits &= (offsets[starts, 0] >= 0) & (offsets[ends, 0] >= 0)
    starts, ends = starts[fits], ends[fits]
    return (
        np.stack([offsets[starts, 0], offsets[ends, 1]], axis=-1),
        np.stack([row[starts, 0], row[ends, 1]], axis=-1),
    )


def _n_best(
    texts: Sequence[str], logits: NDArray[np.float32], scores: NDArray[Any]
) -> list[dict[str, Any]]:
    powers = np.exp(scores - scores.max())
    return [
        {"start_logit": start, "end_logit": end, "text": text, "probability": probability}
        for (start, end), text, probability in zip(
            logits.tolist(), texts, (powers / powers.sum()).tolist(), strict=True
        )
    ]


def _labels(features: Features, id2label: Mapping[int, str]) -> list[Labels]:
    """First and last token of the answer; [CLS] where there is none or the window lacks a part.

    Rows of a question whose answer is nowhere in the context have positions that the loss leaves
    out; a batch of nothing else would have a loss of NaN.
    """
    del id2label
    _check_answers(features.examples)
    positions: list[_Positions] = [(_NULL, _NULL)] * len(features.places)
    for example, indices in zip(features.examples, _rows_by_example(features), strict=True):
        if not example.is_impossible:
            offsets = [features.places[index].offsets for index in indices]
            found = _positions(example.span, offsets)
            for index, each in zip(indices, found, strict=True):
                positions[index] = each
    return [{"start_positions": start, "end_positions": end} for start, end in positions]


def _positions(
    span: _Positions | None, windows: Sequence[NDArray[np.int32]]
) -> Sequence[_Positions]:
    """First and last token of a span of characters, in each window of its context."""
    if span is None:
        return [(_IGNORED, _IGNORED)] * len(windows)
    tokens = [
        np.flatnonzero((offsets[:, 0] < span[1]) & (offsets[:, 1] > span[0])) for offsets in windows
    ]
    edges = [
        (int(offsets[inside[0], 0]), int(offsets[inside[-1], 1]))
        for inside, offsets in zip(tokens, windows, strict=True)
        if len(inside)
    ]
    if not edges:  # a span of nothing but what the tokenizer drops
        return [(_IGNORED, _IGNORED)] * len(windows)
    # Not the span's own ends: a token may reach past them, and a mark or space at an end may
    # belong to no token.
    first, last = min(start for start, _ in edges), max(end for _, end in edges)
    return [
        (int(inside[0]), int(inside[-1]))
        if len(inside) and offsets[inside[0], 0] == first and offsets[inside[-1], 1] == last
        else (_NULL, _NULL)
        for inside, offsets in zip(tokens, windows, strict=True)
    ]


def _class_names(examples: Sequence[Any]) -> list[str] | None:
    del examples
    return None


QUESTION_ANSWERING = Task(
    name="question-answering",
    read=read_questions,
    encode=encode_windows,
    rows=_rows,
    metrics=_metrics,
    decisions=_decisions,
    labels=_labels,
    class_names=_class_names,
    max_length=384,
    reads_texts=False,
    files=_files,
)
