"""Answers to questions, with the interface of transformers 4's pipeline "question-answering".

A long context makes several features, one for each window. The answer is chosen as `evaluate` does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from qdqbert.encoding import feature_of
from qdqbert.errors import UserInputError
from qdqbert.runtime.batches import Results
from qdqbert.runtime.inputs import check_batch_size, described, is_text, listed, listed_texts
from qdqbert.runtime.model import Model
from qdqbert.runtime.options import AnswerOptions
from qdqbert.runtime.rows import RowFormat, is_one
from qdqbert.runtime.scheduler import Encoded
from qdqbert.tables.rows import Column, Kind
from qdqbert.task_kinds import TaskSettings
from qdqbert.tasks.lines import counted
from qdqbert.tasks.spans import SpanPrediction, predict, span_logits
from qdqbert.tasks.task import Prediction
from qdqbert.tasks.windows import Windows, context_offsets

Question = Mapping[str, str]
"""A question as `{"question": ..., "context": ...}`."""


class Answer(TypedDict):
    """An answer: `context[start:end]`, or "" for no answer, with its probability."""

    score: float
    start: int
    end: int
    answer: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Ask:
    """The job whose answer is the best spans of each context; see `Job`.

    Attributes:
        windows: Cuts contexts.
        input_names: Inputs of the graph.
        options: Settings of the choice of spans.
        has_null: Whether "no answer" is a possible answer.
        top_k: Number of answers to return.
    """

    windows: Windows
    input_names: Sequence[str]
    options: TaskSettings
    has_null: bool
    top_k: int

    def encode(self, items: Sequence[Question]) -> list[Encoded]:
        """Return the model inputs of each window of each context."""
        return [
            Encoded(
                features=tuple(feature_of(part, self.input_names) for part in each.windows),
                places=[context_offsets(part) for part in each.windows],
                truncated=each.is_cut,
                error=each.error,
            )
            for each in self.windows.encode([_checked(item) for item in items])
        ]

    def split(self, results: Results) -> Sequence[Prediction]:
        """Return each token's scores as start and as end, `(tokens, 2)`."""
        return span_logits(results)

    def answer(
        self, item: Question, encoded: Encoded, values: Sequence[Prediction]
    ) -> list[Answer]:
        """Return the best answers, the chosen one first."""
        windows = list(zip(values, encoded.places, strict=True))
        found = predict(windows, item["context"], self.options, has_null=self.has_null)
        return _answers(found)[: self.top_k]


_ANSWER_FIELDS: tuple[tuple[str, Kind], ...] = (
    ("answer", "text"),
    ("score", "number"),
    ("start", "integer"),
    ("end", "integer"),
)


def _answer_columns(options: AnswerOptions) -> tuple[Column, ...]:
    if is_one(options):
        return tuple(Column(name=name, kind=kind) for name, kind in _ANSWER_FIELDS)
    return (Column(name="answers", kind="records", fields=_ANSWER_FIELDS),)


def _answer_values(found: Any, options: AnswerOptions) -> tuple[Any, ...]:
    if is_one(options):
        return tuple(found[0][name] for name, _ in _ANSWER_FIELDS)
    return (found,)


class QuestionAnswerer(Model):
    """Answers questions with spans of a context."""

    rows = RowFormat(
        name="a model for question answering",
        pair="required",
        options=("top_k",),
        columns=_answer_columns,
        item=lambda texts: {"question": texts[0], "context": texts[1]},
        job=lambda model, options: model.job(top_k=options.top_k or 1),
        values=_answer_values,
    )

    reads_windows = True

    def __call__(
        self,
        inputs: Question | Sequence[Question] | None = None,
        *,
        question: str | Sequence[str] | None = None,
        context: str | Sequence[str] | None = None,
        top_k: int = 1,
        doc_stride: int | None = None,
        max_answer_len: int | None = None,
        max_seq_len: int | None = None,
        max_question_len: int = 64,
        handle_impossible_answer: bool | None = None,
        batch_size: int | None = None,
    ) -> Any:
        """Answer questions, as transformers 4's pipeline "question-answering" does.

        A long context is read in windows, and the best span of all windows is the answer. It is
        the one that `evaluate` scores.

        Args:
            inputs: Questions as `{"question": ..., "context": ...}`, or a list of them, instead of
                `question` and `context`.
            question: A question, or a list of questions.
            context: The text that is searched, one for all questions or one for each.
            top_k: Number of answers to each question, of at most `n_best_size` that are compared.
            doc_stride: Number of tokens that neighboring windows share. The folder's by default.
            max_answer_len: Longest answer in tokens. The folder's by default.
            max_seq_len: Longest window in tokens, the question included. The folder's
                `max_length` by default, which is also the limit.
            max_question_len: Longest question in tokens. The rest of it is cut off.
            handle_impossible_answer: Whether "no answer" is a possible answer. By default, if the
                model was quantized with examples that have no answer.
            batch_size: Has no effect. It is there for code that passes it to transformers.

        Returns:
            `{"score": ..., "start": ..., "end": ..., "answer": ...}` for each question. `start` and
            `end` are positions in the context: `context[start:end] == answer`. The answer is "" if
            there is none. `score` is the probability among the spans that were compared. With
            `top_k` above 1, a list of such answers for each question: first the chosen one, then
            the rest by score.

        Raises:
            UserInputError: A question or a context is not a text, an option has a wrong value, or
                `doc_stride` is too long for the window.

        Example:
            >>> model(question="Who sat on the mat?", context="A cat sat on the mat.")
            {'score': 0.91, 'start': 0, 'end': 5, 'answer': 'A cat'}
        """
        check_batch_size(batch_size)
        items, is_one = _items(inputs, question, context)
        job = self.job(
            top_k=top_k,
            doc_stride=doc_stride,
            max_answer_len=max_answer_len,
            max_seq_len=max_seq_len,
            max_question_len=max_question_len,
            handle_impossible_answer=handle_impossible_answer,
        )
        answers = self._all(job, items)
        found = [each[0] for each in answers] if top_k == 1 else answers
        return found[0] if is_one else found

    def job(
        self,
        *,
        top_k: int = 1,
        doc_stride: int | None = None,
        max_answer_len: int | None = None,
        max_seq_len: int | None = None,
        max_question_len: int = 64,
        handle_impossible_answer: bool | None = None,
    ) -> _Ask:
        """Return the job of a call with these options, for `stream`.

        Its inputs are `{"question": ..., "context": ...}`, and its answers lists, also for
        `top_k=1`.
        """
        given = {
            "top_k": top_k,
            "max_answer_len": max_answer_len,
            "max_seq_len": max_seq_len,
            "max_question_len": max_question_len,
            "doc_stride": doc_stride,
        }
        for name, value in given.items():
            least = 0 if name == "doc_stride" else 1
            if value is not None and value < least:
                raise UserInputError(
                    f"`{name}` must be at least {least}, got {value}.", argument=name
                )
        changes = {"doc_stride": doc_stride, "max_answer_length": max_answer_len}
        artifact = self._loaded.artifact
        if handle_impossible_answer is None:
            handle_impossible_answer = bool(artifact.quantization.get("unanswerable"))
        options = dataclasses.replace(
            artifact.task_options,
            **{name: value for name, value in changes.items() if value is not None},
        )
        windows = Windows(
            tokenizer=self._loaded.tokenizer,
            max_length=min(max_seq_len or artifact.max_length, artifact.max_length),
            doc_stride=options.doc_stride,
            max_question_length=max_question_len,
            limit="max_seq_len",
        )
        error = windows.room_error(0)
        if error is not None:
            raise error
        return _Ask(
            windows=windows,
            input_names=artifact.input_names,
            options=options,
            has_null=handle_impossible_answer,
            top_k=top_k,
        )

    def describe_truncation(self, truncated: int, items: int, max_length: int) -> str:
        """Return a sentence about truncated questions."""
        del max_length
        return f"{truncated} of {items} questions were longer than `max_question_len` and were cut."


def _answers(found: SpanPrediction) -> list[Answer]:
    """Return all spans of a prediction as answers, the chosen one first."""
    answers = [
        Answer(
            score=each["probability"],
            start=start,
            end=end,
            # Without any span, `evaluate` writes "empty", as the usual scripts do.
            answer=each["text"] if (start, end) != (0, 0) else "",
        )
        for each, (start, end) in zip(found.n_best, found.spans, strict=True)
    ]
    texts = [each["text"] for each in found.n_best]
    chosen = texts.index(found.text) if found.text in texts else 0
    return [answers[chosen], *answers[:chosen], *answers[chosen + 1 :]]


def _items(inputs: Any, question: Any, context: Any) -> tuple[Sequence[Question], bool]:
    """Return the questions of a call, and whether it is a single one."""
    if inputs is not None:
        if question is not None or context is not None:
            raise UserInputError(
                "`inputs` was given together with `question` or `context`. Leave it out.",
                argument="inputs",
            )
        is_one = isinstance(inputs, Mapping)
        wanted = "a question with its context or a list of them"
        return [inputs] if is_one else listed(inputs, "inputs", wanted), is_one
    for name, value in (("question", question), ("context", context)):
        if value is None:
            raise UserInputError(f"`{name}` is missing.", argument=name)
    if isinstance(question, str) and isinstance(context, str):
        return [{"question": question, "context": context}], True
    questions, contexts = listed_texts(question, "question"), listed_texts(context, "context")
    if isinstance(question, str):
        questions *= len(contexts)
    elif isinstance(context, str):
        contexts *= len(questions)
    if len(questions) != len(contexts):
        raise UserInputError(
            f"There are {counted(len(questions), 'question')} and "
            f"{counted(len(contexts), 'context')}. Pass one context, or one for each question.",
            argument="context",
        )
    return [{"question": q, "context": c} for q, c in zip(questions, contexts, strict=True)], False


def _checked(item: Question) -> tuple[str, str]:
    """Return the question and the context of an item; raise `UserInputError` if one is no text."""
    texts = (item.get("question"), item.get("context")) if isinstance(item, Mapping) else ()
    if len(texts) != 2 or not all(map(is_text, texts)):
        raise UserInputError(
            "Each input has to be a question with its context, as {'question': ..., 'context': "
            f"...}}; got {described(item)}."
        )
    return str(texts[0]), str(texts[1])
