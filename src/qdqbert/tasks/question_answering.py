"""Answering questions with a span of a context, as in SQuAD v1.1 and v2.0.

A question and its context make one feature, or several if the context is long: one for each window
of the context. Consecutive windows share `doc_stride` tokens. A model scores each token as start
and as end of the answer; the best pair of all windows of a question is its answer.

Source: transformers' examples/pytorch/question-answering, `run_qa.py` and `utils_qa.py`. Features,
answers and files are equal to theirs. The model has the interface of transformers 4's pipeline
"question-answering".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypedDict, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from qdqbert.encoding import Encoded, padding_of
from qdqbert.errors import DataFileError, UserInputError
from qdqbert.keywords import suggest_keywords
from qdqbert.runtime.batches import Results
from qdqbert.runtime.inputs import (
    check_whole,
    described,
    is_text,
    listed,
    listed_texts,
)
from qdqbert.runtime.model import Model
from qdqbert.runtime.options import AnswerOptions
from qdqbert.runtime.routes import TaskRoute
from qdqbert.runtime.rows import RowFormat, is_one
from qdqbert.runtime.scheduler import EncodedItem
from qdqbert.tables.rows import Column, Kind
from qdqbert.task_kinds import TaskSettings
from qdqbert.tasks.data import Dataset
from qdqbert.tasks.lines import counted
from qdqbert.tasks.logits import probabilities
from qdqbert.tasks.questions import QuestionExample, read_questions
from qdqbert.tasks.spans import NULL, SpanPrediction, predict, span_logits
from qdqbert.tasks.squad import scores_v1, scores_v2
from qdqbert.tasks.task import (
    Answer,
    Decisions,
    Features,
    Labels,
    Prediction,
    Predictions,
    Score,
    Task,
    mean_score,
)
from qdqbert.tasks.windows import Windows, usual_stride
from qdqbert.tokenizing.chunks import in_chunks
from qdqbert.tokenizing.tokenizer import Tokenizer

_NO_ANSWER: Labels = {"start_positions": NULL, "end_positions": NULL}


def encode_windows(
    examples: Sequence[QuestionExample],
    tokenizer: Tokenizer,
    *,
    input_names: Sequence[str],
    max_length: int,
    options: TaskSettings,
) -> Features:
    """Make one feature of each question and each window of its context.

    An item of `places` holds, for each token, the position in the context of its first character
    and of the character after its last one; -1 for special tokens and tokens of the question. Shape
    `(tokens, 2)`.

    Raises:
        UserInputError: `max_length` leaves no room for windows that share `doc_stride` tokens.
    """
    inputs: list[dict[str, NDArray[np.int32]]] = []
    places: list[NDArray[np.int32]] = []
    owners: list[int] = []
    cut = 0
    windows = Windows(tokenizer, max_length, usual_stride(options.doc_stride, max_length))
    numbered = list(enumerate(examples))
    for chunk in in_chunks(numbered):
        asked = windows.encode([(example.question, example.context) for _, example in chunk])
        for (index, _), each in zip(chunk, asked, strict=True):
            if each.error is not None:
                raise each.error
            inputs += each.features(input_names)
            places += each.offsets
            owners += [index] * len(each.offsets)
            cut += each.is_cut
    verb = "was" if cut == 1 else "were"
    notice = (
        f"{cut} of {counted(len(examples), 'question')} {verb} longer than "
        f"{windows.max_question_length} tokens and {verb} cut."
    )
    return Features(
        examples=tuple(examples),
        encoded=Encoded(
            inputs=tuple(inputs), padding=padding_of(tokenizer, input_names), truncated=cut
        ),
        places=tuple(places),
        owners=tuple(owners),
        notices=(notice,) if cut else (),
    )


def _scores(
    predictions: Predictions,
    features: Features,
    id2label: Mapping[int, str],
    options: TaskSettings,
) -> list[Score]:
    del id2label
    golds = {
        example.id: [answer.text for answer in example.answers] for example in features.examples
    }
    texts = _texts(predictions, features, options)
    found = scores_v2(golds, texts) if _has_null(features) else scores_v1(golds, texts)
    # Names such as `HasAns_f1` are of the questions with an answer only.
    are_answered = [bool(each) for each in golds.values()]
    of_some = {
        prefix: [index for index, each in enumerate(are_answered) if each is is_answered]
        for prefix, is_answered in (("HasAns", True), ("NoAns", False))
    }
    return [mean_score(name, each, of_some.get(name.split("_")[0])) for name, each in found.items()]


def _check_labels(dataset: Dataset, id2label: Mapping[int, str]) -> None:
    del id2label
    unknown = [each.id for each in dataset.examples if not each.answers and not each.is_impossible]
    if unknown:
        raise DataFileError(
            f"Each question of `{dataset.path}` must have `answers`, an empty list if there is no "
            f"answer; {len(unknown)} of {len(dataset)} have no such field, among them question "
            f"{unknown[0]!r}. Name data with answers."
        )


def _decisions(predictions: Predictions, features: Features, options: TaskSettings) -> Decisions:
    """Return the answer to each question."""
    return [(text,) for text in _texts(predictions, features, options).values()]


def _texts(predictions: Predictions, features: Features, options: TaskSettings) -> dict[str, str]:
    return {id_: each.text for id_, each in _answers(predictions, features, options)}


def _question_answers(
    predictions: Predictions,
    features: Features,
    *,
    tokenizer: Any,
    id2label: Mapping[int, str],
    options: TaskSettings,
) -> list[Answer]:
    """Return the answer to each question and its probability among the best spans.

    Two models are compared by the probability of each token to be the start and the end.
    """
    del tokenizer, id2label
    answers = []
    for example, indices, (_, answer) in zip(
        features.examples,
        features.by_example(),
        _answers(predictions, features, options),
        strict=True,
    ):
        known = [each.text for each in example.answers]
        score = next(each["probability"] for each in answer.n_best if each["text"] == answer.text)
        answers.append(
            Answer(
                given={"id": example.id, "question": example.question, "labels": known},
                found={"prediction": answer.text, "score": score},
                numbers=np.concatenate([probabilities(predictions[each].T).T for each in indices]),
            )
        )
    return answers


def _files(predictions: Predictions, features: Features, options: TaskSettings) -> dict[str, Any]:
    """Return the files of the usual scripts: answers, best spans and, for v2.0, null odds."""
    answers = dict(_answers(predictions, features, options))
    files: dict[str, Any] = {
        "predictions.json": {id_: each.text for id_, each in answers.items()},
        "nbest_predictions.json": {id_: each.n_best for id_, each in answers.items()},
    }
    if _has_null(features):
        files["null_odds.json"] = {id_: each.null_odds for id_, each in answers.items()}
    return files


def _has_null(features: Features) -> bool:
    """Return whether "no answer" is right for at least one question, as in v2.0."""
    return any(example.is_impossible for example in features.examples)


def _answers(
    predictions: Predictions, features: Features, options: TaskSettings
) -> Iterator[tuple[str, SpanPrediction]]:
    """Yield the id of each question and its answer, in the order of the examples."""
    has_null = _has_null(features)
    for example, indices in zip(features.examples, features.by_example(), strict=True):
        windows = [(predictions[index], features.places[index]) for index in indices]
        yield example.id, predict(windows, example.context, options, has_null=has_null)


def _labels(features: Features, id2label: Mapping[int, str]) -> list[Labels | None]:
    """Return the first and last token of the answer in each window.

    [CLS] stands for no answer, also if a part of the answer is outside the window. The labels are
    `None` for all windows of a question whose answer is not found in the context.
    """
    del id2label
    labels: list[Labels | None] = [_NO_ANSWER] * len(features.places)
    for example, indices in zip(features.examples, features.by_example(), strict=True):
        if not example.is_impossible:
            offsets = [features.places[index] for index in indices]
            for index, each in zip(indices, _positions(example.span, offsets), strict=True):
                labels[index] = each
    return labels


def _positions(
    span: tuple[int, int] | None, windows: Sequence[NDArray[np.int32]]
) -> Sequence[Labels | None]:
    """Return the first and last token of a span of characters in each window of its context."""
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
    # The tokenizer drops all characters of the span.
    if not edges:
        return [None] * len(windows)
    # The ends of the span itself would not do: a token can extend beyond them, and a character at
    # an end can belong to no token.
    first, last = min(start for start, _ in edges), max(end for _, end in edges)
    return [
        {"start_positions": int(inside[0]), "end_positions": int(inside[-1])}
        if len(inside) and offsets[inside[0], 0] == first and offsets[inside[-1], 1] == last
        else _NO_ANSWER
        for inside, offsets in zip(tokens, windows, strict=True)
    ]


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
        windows: Cuts contexts.
        input_names: Inputs of the graph.
        options: Settings of the choice of spans.
        has_null: Whether "no answer" is a possible answer.
        top_k: Number of answers to return.
        align_to_words: Whether answers are widened to whole words.
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
        changes = {"doc_stride": doc_stride, "max_answer_length": max_answer_len}
        artifact = self._loaded.artifact
        if handle_impossible_answer is None:
            handle_impossible_answer = bool(artifact.quantization.get("unanswerable"))
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
        del max_length
        return f"{truncated} of {items} questions were longer than `max_question_len` and were cut."


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


QUESTION_ANSWERING = Task(
    name="question-answering",
    read=read_questions,
    encode=encode_windows,
    check_labels=_check_labels,
    predictions=span_logits,
    scores=_scores,
    decided="question",
    decisions=_decisions,
    settings=("doc_stride", "n_best_size", "max_answer_length", "null_score_diff_threshold"),
    labels=_labels,
    answers=_question_answers,
    max_length=384,
    reads_texts=False,
    files=_files,
    model=QuestionAnswerer,
    route=TaskRoute(
        inputs=(QuestionWithContext,),
        example={"question": "Where is the cat?", "context": "The cat is on the book."},
        parameters={
            "top_k": 1,
            "doc_stride": None,
            "max_answer_len": None,
            "max_seq_len": None,
            "max_question_len": 64,
            "handle_impossible_answer": None,
            "align_to_words": False,
        },
        answer=lambda answer, parameters: answer[0] if parameters["top_k"] == 1 else answer,
    ),
)
