"""Read questions with contexts and answers from SQuAD's files or rows in Hugging Face's layout."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from qdqbert.common.errors import DataFileError
from qdqbert.common.objects import Rows
from qdqbert.data.rows.data import Columns, Dataset, refuse_columns
from qdqbert.data.rows.hub import is_hub
from qdqbert.data.rows.in_memory import records
from qdqbert.data.rows.lines import (
    RECORD_SUFFIXES,
    counted,
    existing_file,
    json_object,
    read_text,
    row_name,
)
from qdqbert.data.tables.lines import kind_of

_KINDS = {str: "a string", int: "an integer", list: "a list"}

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """A right answer, and the position of its first character in the context, as in the data."""

    text: str
    start: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuestionExample:
    """A question on a context.

    Attributes:
        id: Unique in the data.
        context: The text that is searched for the answer.
        title: Title of the article; may be empty.
        answers: Equally right answers; empty if there is no answer or it is not known.
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
        """The texts that a model reads."""
        return self.question, self.context

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The right answers, none of an unanswerable question; `None` if they are not known."""
        known = tuple(each.text for each in self.answers)
        return known if known or self.is_impossible else None

    @property
    def span(self) -> tuple[int, int] | None:
        """Start and end, in characters, of the first answer that is found in the context."""
        for answer in self.answers:
            start = find_answer(self.context, answer)
            if start is not None:
                return start, start + len(answer.text)
        return None


def read_questions(data: str | Rows, *, columns: Columns, max_examples: int | None) -> Dataset:
    """Read SQuAD's .json, or rows in Hugging Face's layout: files, the hub, or objects.

    Raises:
        DataFileError: The data cannot be read, have another layout, have no question, or an id
            twice; or a column is requested, or `max_examples` is below 1.
    """
    refuse_columns(columns, layout="`question`, `context` and `answers`")
    rows = itertools.islice(_rows_of_data(data), max_examples)
    examples = tuple(parse_question(row, where) for where, row in rows)
    if not examples:
        raise DataFileError(f"`{data}` must have at least one question, got none. Name other data.")
    counts = collections.Counter(example.id for example in examples)
    repeated = [id_ for id_, count in counts.items() if count > 1]
    if repeated:
        raise DataFileError(
            f"Each question of `{data}` must have a different `id`, got "
            f"{counted(len(repeated), 'repeated id')}, among them {repeated[0]!r}. Change them."
        )
    return Dataset(
        path=str(data), examples=examples, columns=Columns(), notices=_position_notices(examples)
    )


def _rows_of_data(data: str | Rows) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Return an iterator over the questions, each with how messages refer to it."""
    if isinstance(data, str) and not is_hub(data):
        suffix = existing_file(data).suffix.lower()
        if suffix == ".json":
            return _squad_rows(json_object(read_text(data), data), data)
        if suffix not in RECORD_SUFFIXES:
            raise DataFileError(
                f"File `{data}` must end in one of .json, {', '.join(RECORD_SUFFIXES)}, got "
                f"{suffix!r}. Convert or rename it."
            )
    return ((row_name(str(data), number), row) for number, row in records(data))


def _squad_rows(content: object, path: str) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield SQuAD's articles, paragraphs and questions as rows in Hugging Face's layout."""
    for i, article in enumerate(_field(content, "data", list, f"File `{path}`"), start=1):
        where = f"Article {i} of `{path}`"
        for j, paragraph in enumerate(_field(article, "paragraphs", list, where), start=1):
            where = f"Paragraph {j} of article {i} of `{path}`"
            context = _field(paragraph, "context", str, where)
            for k, question in enumerate(_field(paragraph, "qas", list, where), start=1):
                where = f"Question {k} of paragraph {j} of article {i} of `{path}`"
                row = question if isinstance(question, Mapping) else {}
                yield where, {**row, "context": context, "title": article.get("title")}


def _position_notices(examples: Sequence[QuestionExample]) -> tuple[str, ...]:
    """Return notices on answers that are not at the position given by the data."""
    moved = missing = unusable = 0
    for example in examples:
        found = [find_answer(example.context, answer) for answer in example.answers]
        moved += any(
            place not in (None, answer.start)
            for place, answer in zip(found, example.answers, strict=True)
        )
        missing += None in found
        unusable += bool(found) and example.span is None
    questions = counted(len(examples), "question")
    notices = []
    if moved:
        notices.append(
            f"In {moved} of {questions} an answer is not at the position given by the data; it was "
            "found elsewhere in the context."
        )
    if missing:
        notices.append(
            f"In {missing} of {questions} an answer is not in the context. Questions without "
            f"another answer, which training leaves out: {unusable}."
        )
    return tuple(notices)


def parse_question(row: Mapping[str, object], where: str) -> QuestionExample:
    """Make an example from one row in the layout of Hugging Face's `squad` and `squad_v2`.

    The row has `id`, `question`, `context`, optionally `title`, and `answers`: an object of the
    lists `text` and `answer_start`, or a list of objects with these fields. If they are empty there
    is no answer; without `answers` it is not known.

    `where` is how messages refer to the row: "Line 3 of `dev.jsonl`".

    Raises:
        DataFileError: A field is missing or has another type.
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
                f"{where} must have equal numbers of `answer_start` and `text`, got {len(starts)} "
                f"and {len(texts)}. Add what is missing."
            )
        given = [
            {"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)
        ]
    if not isinstance(given, list):
        raise DataFileError(
            f"{where} must be an object with the lists `text` and `answer_start`, or a list of "
            f"objects, got {kind_of(given)}. Change the layout."
        )
    return tuple(
        Answer(
            text=_field(each, "text", str, where), start=_field(each, "answer_start", int, where)
        )
        for each in given
    )


def _field(row: object, name: str, kind: type[_T], where: str) -> _T:
    """Return a required field, which must have the given type."""
    value = row.get(name) if isinstance(row, Mapping) else None
    if isinstance(value, kind) and not isinstance(value, bool):
        return value
    got = kind_of(value) if isinstance(row, Mapping) and name in row else "none"
    raise DataFileError(
        f"{where} must have `{name}`: {_KINDS[kind]}, got {got}. Expected SQuAD's layout in a "
        ".json file, or the layout of Hugging Face's `squad` in a .jsonl file, a data set or dicts."
    )


def find_answer(context: str, answer: Answer) -> int | None:
    """Return the position of an answer in the context, the nearest to the one given by the data.

    `None` if the context does not contain the answer.
    """
    if not answer.text:
        return None
    if answer.start >= 0 and context.startswith(answer.text, answer.start):
        return answer.start
    positions = []
    position = context.find(answer.text)
    while position >= 0:
        positions.append(position)
        position = context.find(answer.text, position + 1)
    return min(positions, key=lambda each: abs(each - answer.start), default=None)
