"""The reader that `load` returns, with the interface of transformers 4's pipeline for questions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack, overload

from qdqbert.common.errors import UserInputError
from qdqbert.common.keywords import suggest_keywords
from qdqbert.data.rows.lines import counted, cut_notice
from qdqbert.data.tables.rows import Column, Kind
from qdqbert.encoders.task_kinds import TaskSettings
from qdqbert.runtime.batches import Results
from qdqbert.runtime.inputs import check_whole, described, is_text, listed, listed_texts
from qdqbert.runtime.model import Model
from qdqbert.runtime.options import AnswerOptions
from qdqbert.runtime.rows import RowFormat, is_one
from qdqbert.runtime.scheduler import EncodedItem
from qdqbert.tasks.spans import SpanPrediction, predict, span_logits
from qdqbert.tasks.task import Prediction
from qdqbert.tasks.windows import Windows, usual_stride

Question = Mapping[str, str]
"""A question as `{"question": ..., "context": ...}`."""


class SpanAnswer(TypedDict):
    """An answer: `context[start:end]`, or "" for no answer, with its probability."""

    score: float
    start: int
    end: int
    answer: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Ask:
    """The job whose answer is the best spans of each context; see `Job`.

    Attributes:
        options: Settings of the choice of spans.
        has_null: Whether "no answer" is a possible answer.
    """

    windows: Windows
    input_names: Sequence[str]
    options: TaskSettings
    has_null: bool
    top_k: int
    align_to_words: bool = False

    def encode(self, items: Sequence[Question]) -> list[EncodedItem]:
        """Return the model inputs of each window of each context."""
        return [
            EncodedItem(
                features=each.features(self.input_names),
                places=each.offsets,
                truncated=each.is_cut,
                error=each.error,
            )
            for each in self.windows.encode([_checked(item) for item in items])
        ]

    def split(self, results: Results) -> Sequence[Prediction]:
        """Return each token's scores as start and as end, `(tokens, 2)`."""
        return span_logits(results)

    def answer(
        self, item: Question, encoded: EncodedItem, values: Sequence[Prediction]
    ) -> list[SpanAnswer]:
        """Return the best answers, the chosen one first."""
        windows = list(zip(values, encoded.places, strict=True))
        found = predict(windows, item["context"], self.options, has_null=self.has_null)
        answers = _span_answers(found)[: self.top_k]
        if self.align_to_words:
            answers = [_of_words(each, item["context"]) for each in answers]
        return answers


def _of_words(found: SpanAnswer, context: str) -> SpanAnswer:
    """Return an answer with the rest of the words at its ends, which are letters and digits."""
    start, end = found["start"], found["end"]
    if start == end:
        return found
    while start > 0 and context[start - 1].isalnum() and context[start].isalnum():
        start -= 1
    while end < len(context) and context[end].isalnum() and context[end - 1].isalnum():
        end += 1
    return {"score": found["score"], "start": start, "end": end, "answer": context[start:end]}


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuestionWithContext:
    """A question about a text."""

    question: str
    context: str


class AskOptions(TypedDict, total=False):
    """Options of a call that do not change the type of its result."""

    doc_stride: int | None
    max_answer_len: int | None
    max_seq_len: int | None
    max_question_len: int
    handle_impossible_answer: bool | None
    align_to_words: bool
    batch_size: int | None


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

    @overload
    def __call__(self, inputs: Question, **options: Unpack[AskOptions]) -> SpanAnswer: ...

    @overload
    def __call__(
        self, inputs: Sequence[Question], **options: Unpack[AskOptions]
    ) -> list[SpanAnswer]: ...

    @overload
    def __call__(
        self, *, question: str, context: str, **options: Unpack[AskOptions]
    ) -> SpanAnswer: ...

    @overload
    def __call__(self, inputs: str, context: str, **options: Unpack[AskOptions]) -> SpanAnswer: ...

    @overload
    def __call__(
        self,
        inputs: Question | Sequence[Question] | str | None = None,
        context: str | Sequence[str] | None = None,
        *,
        question: str | Sequence[str] | None = None,
        top_k: int = 1,
        **options: Unpack[AskOptions],
    ) -> Any: ...

    @suggest_keywords
    def __call__(
        self,
        inputs: Question | Sequence[Question] | str | None = None,
        context: str | Sequence[str] | None = None,
        *,
        question: str | Sequence[str] | None = None,
        top_k: int = 1,
        doc_stride: int | None = None,
        max_answer_len: int | None = None,
        max_seq_len: int | None = None,
        max_question_len: int = 64,
        handle_impossible_answer: bool | None = None,
        align_to_words: bool = False,
        batch_size: int | None = None,
    ) -> Any:
        """Answer questions, as transformers 4's pipeline "question-answering" does.

        A long context is read in windows, and the best span of all windows is the answer. It is
        the one that `evaluate` scores.

        Args:
            inputs: Questions as `{"question": ..., "context": ...}`, or a list of them, instead of
                `question` and `context`. A text is a question, too: `model(question, context)`.
            context: The text that is searched, one for all questions or one for each.
            question: A question, or a list of questions.
            top_k: Number of answers to each question, of at most `n_best_size` that are compared.
            doc_stride: Number of tokens that neighboring windows share. The folder's by default, or
                half a window if that is less.
            max_answer_len: Longest answer in tokens. The folder's by default.
            max_seq_len: Longest window in tokens, the question included. The folder's
                `max_length` by default, which is also the limit.
            max_question_len: Longest question in tokens. The rest of it is cut off.
            handle_impossible_answer: Whether "no answer" is a possible answer. By default, if the
                model was quantized with examples that have no answer.
            align_to_words: Whether an answer that begins or ends within a word is widened to the
                whole word. The pipeline's default is True; `evaluate` scores tokens.
            batch_size: Has no effect. It is there for code that passes it to transformers.

        Returns:
            `{"score": ..., "start": ..., "end": ..., "answer": ...}` for each question. `start` and
            `end` are positions in the context: `context[start:end] == answer`. The answer is "" if
            there is none. `score` is the probability among the spans that were compared. With
            `top_k` above 1, a list of such answers for each question: first the chosen one, then
            the rest by score.

        Raises:
            UserInputError: A question or a context is not a text or is blank, an option has a wrong
                value, or `doc_stride` is too long for the window.

        Example:
            >>> model(question="Who sat on the mat?", context="A cat sat on the mat.")
            {'score': 0.91, 'start': 0, 'end': 5, 'answer': 'A cat'}
        """
        check_whole("batch_size", batch_size, at_least=1)
        if isinstance(inputs, str) and question is None:
            inputs, question = None, inputs
        items, is_one = _items(inputs, question, context)
        job = self.job(
            top_k=top_k,
            doc_stride=doc_stride,
            max_answer_len=max_answer_len,
            max_seq_len=max_seq_len,
            max_question_len=max_question_len,
            handle_impossible_answer=handle_impossible_answer,
            align_to_words=align_to_words,
        )
        answers = self._all(job, items)
        found = [each[0] for each in answers] if top_k == 1 else answers
        return found[0] if is_one else found

    @suggest_keywords
    def job(
        self,
        *,
        top_k: int = 1,
        doc_stride: int | None = None,
        max_answer_len: int | None = None,
        max_seq_len: int | None = None,
        max_question_len: int = 64,
        handle_impossible_answer: bool | None = None,
        align_to_words: bool = False,
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
            check_whole(name, value, at_least=0 if name == "doc_stride" else 1)
        changes: dict[str, Any] = {"doc_stride": doc_stride, "max_answer_length": max_answer_len}
        artifact = self._loaded.artifact
        if handle_impossible_answer is None:
            handle_impossible_answer = artifact.unanswerable
        options = dataclasses.replace(
            artifact.task_options,
            **{name: value for name, value in changes.items() if value is not None},
        )
        longest = min(max_seq_len or self.max_length, self.max_length)
        usual = usual_stride(options.doc_stride, longest)
        windows = Windows(
            tokenizer=self._loaded.tokenizer,
            max_length=longest,
            doc_stride=usual if doc_stride is None else doc_stride,
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
            align_to_words=align_to_words,
        )

    def describe_truncation(self, truncated: int, items: int, max_length: int) -> str:
        """Return a sentence about truncated questions."""
        return cut_notice(truncated, items, "question", "`max_question_len`")


def _span_answers(found: SpanPrediction) -> list[SpanAnswer]:
    """Return all spans of a prediction as answers, the chosen one first."""
    answers = [
        SpanAnswer(
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
    """Return the question and the context of an item.

    Raises:
        UserInputError: One of them is no text, or is empty or blank. transformers refuses empty
            ones, too: the best span of no text is "", with probability 1.
    """
    texts = (item.get("question"), item.get("context")) if isinstance(item, Mapping) else ()
    if len(texts) != 2 or not all(map(is_text, texts)):
        raise UserInputError(
            "Each input has to be a question with its context, as {'question': ..., 'context': "
            f"...}}; got {described(item)}."
        )
    for name, text in zip(("question", "context"), texts, strict=True):
        if not str(text).strip():
            raise UserInputError(
                f"The `{name}` of an input is {text!r:.60}, and must have text. Leave the input "
                "out.",
                argument=name,
            )
    return str(texts[0]), str(texts[1])
