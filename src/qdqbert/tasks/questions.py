"""Questions with contexts and answers: SQuAD's files and Hugging Face's rows → examples."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from qdqbert.errors import DataFileError
from qdqbert.tasks.data import Columns, Dataset
from qdqbert.tasks.hub import hub_rows, is_hub
from qdqbert.tasks.lines import existing_file, json_object, json_rows, kind_of, read_lines

_KINDS = {str: "a string", int: "an integer", list: "a list"}

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
    def span(self) -> tuple[int, int] | None:
        """First character, and the one after the last, of the first answer in the context."""
        for answer in self.answers:
            start = find_answer(self.context, answer)
            if start is not None:
                return start, start + len(answer.text)
        return None


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
    suffix = existing_file(path).suffix.lower()
    if suffix == ".json":
        text = "".join(line for _, line in read_lines(path))
        return _squad_rows(json_object(text, path), path)
    if suffix in (".jsonl", ".ndjson"):
        return json_rows(path)
    raise DataFileError(
        f"File `{path}` must end in one of .json, .jsonl, .ndjson, got {suffix!r}. Convert or "
        "rename it."
    )


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
            f"objects, got {kind_of(given)}. Change the layout."
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
    there = kind_of(value) if isinstance(row, Mapping) and name in row else "none"
    raise DataFileError(
        f"{where} must have `{name}`: {_KINDS[kind]}, got {there}. Expected SQuAD's layout in a "
        ".json file, or that of Hugging Face's `squad` in a .jsonl file or a data set of the hub."
    )


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
