"""Choosing the best of several endings: SWAG, and question answering with given answers.

An example has a context, a prompt that all endings start with, and the endings. The model reads the
context as first text, and prompt and ending, separated by a space, as second text of each choice.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypedDict, overload

import numpy as np
from numpy.typing import NDArray

from qdqbert.common.errors import DataFileError, UserInputError
from qdqbert.common.keywords import suggest_keywords
from qdqbert.common.objects import Rows
from qdqbert.data.rows.data import Columns, Dataset, Example, check_each, open_table, refuse_columns
from qdqbert.data.rows.lines import counted, row_name, source_name
from qdqbert.data.tables.rows import Column
from qdqbert.data.tokenizing.encoding import stack_padded
from qdqbert.runtime.batches import Results
from qdqbert.runtime.inputs import described, is_text, listed
from qdqbert.runtime.model import Model, TextEncoder
from qdqbert.runtime.routes import TaskRoute
from qdqbert.runtime.rows import SCORE, RowFormat, always
from qdqbert.runtime.scheduler import EncodedItem
from qdqbert.tasks.logits import (
    accuracy_scores,
    apply,
    class_answers,
    logit_predictions,
    most_likely_classes,
)
from qdqbert.tasks.task import Features, Predictions, Task, Tokenization

_LAYOUT = (
    "`sent1`, `sent2`, `ending0`, `ending1`, ... as in SWAG, or `context` or `question` with a "
    "list `endings` or `choices`"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChoiceExample:
    """A context and at least two endings, one of which is right.

    Attributes:
        context: The text before the endings; never blank.
        prompt: The start of every ending; may be empty.
        endings: The endings, none of them blank.
        label: Index of the right ending; `None` if the data do not have it.
        row: Number of the row. Not compared.
    """

    context: str
    prompt: str
    endings: tuple[str, ...]
    label: int | None = None
    row: int = dataclasses.field(default=0, compare=False)

    @property
    def content(self) -> tuple[str, ...]:
        """The texts that a model reads."""
        return (self.context, self.prompt, *self.endings)

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The number of the right ending; `None` if the data do not have it."""
        return None if self.label is None else (str(self.label),)

    @property
    def given(self) -> dict[str, Any]:
        """The example by names of columns."""
        return {"row": self.row, **vars(self), "endings": list(self.endings)}


def read_choices(data: str | Rows, *, columns: Columns, max_examples: int | None) -> Dataset:
    """Read a .csv, .tsv, .jsonl or .parquet file, a hub data set or objects, with fixed columns.

    Raises:
        DataFileError: The data cannot be read, fields are missing, examples have different numbers
            of endings, or a column is requested.
    """
    refuse_columns(columns, layout=f"{_LAYOUT}, and `label`")
    # A header without `label`, as in test sets, is recognized by `sent1`.
    table = open_table(data, Columns(text="sent1"))
    examples = tuple(itertools.islice(_examples(table.path, table.rows), max_examples))
    if not examples:
        raise DataFileError(
            f"{source_name(table.path)} contains no examples: expected rows with {_LAYOUT}, got "
            "none. Add rows."
        )
    return Dataset(
        path=table.path, examples=examples, columns=Columns(), notices=tuple(table.notices)
    )


def _examples(path: str, rows: Iterator[tuple[int, dict[str, object]]]) -> Iterator[ChoiceExample]:
    expected = None
    for number, row in rows:
        where = row_name(path, number)
        example = choice_example(where, row, number)
        expected = expected or len(example.endings)
        if len(example.endings) != expected:
            raise DataFileError(
                f"{where} must have {expected} endings like the rows before, got "
                f"{len(example.endings)}. Put rows with other numbers of endings into another file."
            )
        yield example


def choice_example(where: str, row: Mapping[str, object], number: int) -> ChoiceExample:
    """Return the example of a row with SWAG's columns, or with a list of endings.

    `where` is how messages refer to the row.
    """
    texts = [row[name] for name in ("sent1", "context", "question") if row.get(name)]
    prompt = row.get("sent2") or (texts[1] if len(texts) > 1 else "")
    endings = _endings(row)
    if not texts or len(endings) < 2:
        got = ", ".join(f"`{name}`" for name in row)
        raise DataFileError(
            f"{where} must have {_LAYOUT}, with at least two endings; got {got}, with "
            f"{counted(len(endings), 'ending')}. Rename the fields, or add what is missing."
        )
    for text in (texts[0], prompt, *endings):
        if not isinstance(text, str):
            raise DataFileError(
                f"{where} must have strings as context and endings, got {type(text).__name__}. "
                "Change the value."
            )
    if not all(ending.strip() for ending in (str(texts[0]), *endings)):
        raise DataFileError(
            f"{where} must not have a blank context or ending. Fill it in, or remove the row."
        )
    return ChoiceExample(
        context=str(texts[0]),
        prompt=str(prompt),
        endings=tuple(endings),
        label=_parse_label(where, row.get("label"), len(endings)),
        row=number,
    )


def _endings(row: Mapping[str, object]) -> list[Any]:
    for name in ("endings", "choices"):
        listed = row.get(name)
        if isinstance(listed, list):
            return listed
    numbered = itertools.takewhile(
        lambda name: row.get(name) is not None, (f"ending{i}" for i in itertools.count())
    )
    return [row[name] for name in numbered]


def _parse_label(where: str, value: object, endings: int) -> int | None:
    if value is None or value == "":
        return None
    if str(value).strip().isdecimal() and int(str(value)) < endings:
        return int(str(value))
    raise DataFileError(
        f"{where} must have the number of an ending, 0 to {endings - 1}, as `label`, got "
        f"{value!r}. Change the value."
    )


def _encode(examples: Sequence[Any], how: Tokenization) -> Features:
    """Make one feature of each example: its choices, padded to the longest of them."""
    pairs = [_pairs_of_example(example) for example in examples]
    flat = [pair for each in pairs for pair in each]
    seconds = [second for _, second in flat if second is not None]
    encoded = how.encode([first for first, _ in flat], seconds or None)
    choices = iter(encoded.inputs)
    stacked = (
        _stack(list(itertools.islice(choices, len(each))), encoded.padding) for each in pairs
    )
    encoded = dataclasses.replace(encoded, inputs=tuple(stacked))
    return how.features(examples, encoded, len(flat))


def _pairs(context: str, prompt: str, endings: Sequence[str]) -> list[tuple[str, str]]:
    """Return both texts of each choice."""
    start = f"{prompt} " if prompt else ""
    return [(context, f"{start}{ending}") for ending in endings]


def _pairs_of_example(example: ChoiceExample | Example) -> Sequence[tuple[str, str | None]]:
    """Return both texts of each choice; a plain text, used for calibration, is the only choice."""
    if isinstance(example, Example):
        return [(example.text, example.text_pair)]
    return _pairs(example.context, example.prompt, example.endings)


def _stack(
    choices: Sequence[Mapping[str, NDArray[np.int32]]], padding: Mapping[str, int]
) -> dict[str, NDArray[np.int32]]:
    return {
        name: stack_padded([each[name] for each in choices], filler).astype(np.int32)
        for name, filler in padding.items()
    }


def _check_labels(dataset: Dataset, _: Mapping[int, str]) -> None:
    check_each(dataset, _label_of)


def _label_of(example: ChoiceExample | Example) -> int:
    if not isinstance(example.label, int):
        raise DataFileError("The right ending is missing. Add its number as `label`, from 0.")
    return example.label


class Choice(TypedDict):
    """The best choice: its index, its probability, and the probabilities of all choices."""

    label: int
    score: float
    scores: list[float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Choose(TextEncoder):
    """The job whose answer is the best choice; see `Job`."""

    def encode(self, items: Sequence[Any]) -> list[EncodedItem]:
        """Return one feature for each choice, whose arrays are `(1, tokens)`.

        The score of a choice does not depend on the other choices. As features of their own,
        choices are padded less, and items can have different numbers of them.
        """
        pairs = [_pairs_of_item(item) for item in items]
        made = iter(super().encode([pair for each in pairs for pair in each]))
        encoded = []
        for each in pairs:
            kept = [next(made) for _ in each]
            features = (feature for part in kept for feature in part.features)
            encoded.append(
                EncodedItem(
                    features=tuple(
                        {k: array[None] for k, array in each.items()} for each in features
                    ),
                    truncated=any(part.truncated for part in kept),
                )
            )
        return encoded

    def split(self, results: Results) -> Predictions:
        """Return the logit of each choice, `(1,)`."""
        return logit_predictions(results)

    def answer(self, _: Any, __: EncodedItem, values: Predictions) -> Choice:
        """Return the best choice."""
        logits = np.concatenate(values)
        scores = apply("softmax", logits)
        best = int(logits.argmax())
        return Choice(label=best, score=float(scores[best]), scores=scores.tolist())


def _read_choices(fields: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in fields.items() if name != "label"}
    example = choice_example("it", given, 0)
    return {"context": example.context, "prompt": example.prompt, "choices": example.endings}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choices:
    """Endings, of which one fits."""

    context: str
    prompt: str | None = None
    choices: list[str]


class ChoiceSelector(Model):
    """Selects the best of several choices: endings of a text, answers to a question."""

    rows = RowFormat(
        name="a model for multiple choice",
        columns=always(
            Column(name="label", kind="integer"), SCORE, Column(name="scores", kind="numbers")
        ),
        read=_read_choices,
        job=lambda model, _: model.job(),
        values=lambda answer, _: (answer["label"], answer["score"], answer["scores"]),
    )

    @overload
    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, Any]: ...

    @overload
    def __call__(self, inputs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]: ...

    @overload
    def __call__(
        self, *, context: str, choices: Sequence[str], prompt: str = ""
    ) -> dict[str, Any]: ...

    @suggest_keywords
    def __call__(
        self,
        inputs: Any = None,
        *,
        context: str | None = None,
        choices: Sequence[str] | None = None,
        prompt: str = "",
    ) -> Any:
        """Select the best choice.

        Args:
            inputs: A question as `{"context": ..., "choices": [...]}`, with a "prompt" if there is
                one, or a list of them, instead of the other arguments.
            context: The text, or question, that the model reads before each choice.
            choices: The choices, one or more.
            prompt: Start of all choices, as `sent2` in SWAG.

        Returns:
            `{"label": ..., "score": ..., "scores": [...]}` for each question: the index of the best
            choice, its probability, and the probabilities of all choices.

        Raises:
            UserInputError: A question is not as described.

        Example:
            >>> model(context="The cat is tired.", choices=["It sleeps.", "It is a river."])
            {'label': 0, 'score': 0.97, 'scores': [0.97, 0.03]}
        """
        if inputs is None:
            inputs = {"context": context, "choices": choices, "prompt": prompt}
        elif context is not None or choices is not None:
            raise UserInputError(
                "`inputs` was given together with `context` or `choices`. Leave it out.",
                argument="inputs",
            )
        is_one = isinstance(inputs, Mapping)
        wanted = "a text with choices or a list of them"
        answers = self._all(self.job(), [inputs] if is_one else listed(inputs, "inputs", wanted))
        return answers[0] if is_one else answers

    def job(self) -> _Choose:
        """Return the job of a call, for `stream`. Its inputs are mappings as in `inputs`."""
        return _Choose(
            tokenizer=self._loaded.tokenizer, input_names=self._loaded.artifact.input_names
        )


def _pairs_of_item(item: Any) -> list[tuple[str, str]]:
    """Return both texts of each choice of a question; raise `UserInputError` if it is malformed."""
    fields = item if isinstance(item, Mapping) else {}
    context, choices, prompt = (fields.get(name) for name in ("context", "choices", "prompt"))
    endings = []
    if isinstance(choices, Sequence) and not isinstance(choices, str):
        endings = list(choices)
    if not endings or not all(map(is_text, (context, prompt or "", *endings))):
        raise UserInputError(
            "Each input has to be a text with choices, as {'context': ..., 'choices': [...]}, "
            f"optionally with a 'prompt'; got {described(item)}."
        )
    return _pairs(str(context), prompt or "", endings)


MULTIPLE_CHOICE = Task(
    name="multiple-choice",
    read=read_choices,
    encode=_encode,
    check_labels=_check_labels,
    predictions=logit_predictions,
    scores=lambda outcome: accuracy_scores(outcome, _label_of),
    decided="question",
    decisions=most_likely_classes,
    labels=lambda features, _: [{"labels": _label_of(each)} for each in features.examples],
    answers=lambda outcome: class_answers(outcome, range(len(outcome.predictions[0]))),
    model=ChoiceSelector,
    route=TaskRoute(
        inputs=(Choices,),
        example={"context": "It rains.", "choices": ["The street is wet.", "It is a cat."]},
    ),
)
