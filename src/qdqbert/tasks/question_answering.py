"""Answering questions with a span of a context, as in SQuAD v1.1 and v2.0.

A question and its context make one feature, or several if the context is long: one for each window
of the context. Consecutive windows share `doc_stride` tokens. A model scores each token as start
and as end of the answer; the best pair of all windows of a question is its answer.

Source: transformers' examples/pytorch/question-answering, `run_qa.py` and `utils_qa.py`. Features,
answers and files are equal to theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.common.errors import DataFileError
from qdqbert.data.rows.data import Dataset
from qdqbert.data.rows.lines import cut_notice
from qdqbert.data.rows.squad import scores_v1, scores_v2
from qdqbert.data.tokenizing.chunks import in_chunks
from qdqbert.runtime.routes import TaskRoute
from qdqbert.tasks.logits import probabilities
from qdqbert.tasks.question_answerer import QuestionAnswerer, QuestionWithContext
from qdqbert.tasks.questions import QuestionExample, read_questions
from qdqbert.tasks.spans import NULL, SpanPrediction, predict, span_logits
from qdqbert.tasks.task import (
    Answer,
    Decisions,
    Features,
    Labels,
    Outcome,
    Score,
    Task,
    Tokenization,
    mean_score,
)
from qdqbert.tasks.windows import Windows, usual_stride

_NO_ANSWER: Labels = {"start_positions": NULL, "end_positions": NULL}


def encode_windows(examples: Sequence[QuestionExample], how: Tokenization) -> Features:
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
    stride = usual_stride(how.settings.doc_stride, how.max_length)
    windows = Windows(how.tokenizer, how.max_length, stride)
    numbered = list(enumerate(examples))
    for chunk in in_chunks(numbered):
        asked = windows.encode([(example.question, example.context) for _, example in chunk])
        for (index, _), each in zip(chunk, asked, strict=True):
            if each.error is not None:
                raise each.error
            inputs += each.features(how.input_names)
            places += each.offsets
            owners += [index] * len(each.offsets)
            cut += each.is_cut
    limit = f"{windows.max_question_length} tokens"
    return Features(
        examples=tuple(examples),
        encoded=how.encoded(inputs, cut),
        places=tuple(places),
        owners=tuple(owners),
        notices=(cut_notice(cut, len(examples), "question", limit),) if cut else (),
    )


def _scores(outcome: Outcome) -> list[Score]:
    golds = {each.id: [answer.text for answer in each.answers] for each in outcome.examples}
    texts = _texts(outcome)
    found = scores_v2(golds, texts) if _has_null(outcome.features) else scores_v1(golds, texts)
    # Names such as `HasAns_f1` are of the questions with an answer only.
    are_answered = [bool(each) for each in golds.values()]
    of_some = {
        prefix: [index for index, each in enumerate(are_answered) if each is is_answered]
        for prefix, is_answered in (("HasAns", True), ("NoAns", False))
    }
    return [mean_score(name, each, of_some.get(name.split("_")[0])) for name, each in found.items()]


def _check_labels(dataset: Dataset, _: Mapping[int, str]) -> None:
    unknown = [each.id for each in dataset.examples if not each.answers and not each.is_impossible]
    if unknown:
        raise DataFileError(
            f"Each question of `{dataset.path}` must have `answers`, an empty list if there is no "
            f"answer; {len(unknown)} of {len(dataset)} have no such field, among them question "
            f"{unknown[0]!r}. Name data with answers."
        )


def _decisions(outcome: Outcome) -> Decisions:
    """Return the answer to each question."""
    return [(text,) for text in _texts(outcome).values()]


def _texts(outcome: Outcome) -> dict[str, str]:
    return {id_: each.text for id_, each in _answers(outcome)}


def _question_answers(outcome: Outcome) -> list[Answer]:
    """Return the answer to each question and its probability among the best spans.

    Two models are compared by the probability of each token to be the start and the end.
    """
    answers = []
    for example, indices, (_, answer) in zip(
        outcome.examples, outcome.features.by_example(), _answers(outcome), strict=True
    ):
        known = [each.text for each in example.answers]
        score = next(each["probability"] for each in answer.n_best if each["text"] == answer.text)
        answers.append(
            Answer(
                given={"id": example.id, "question": example.question, "labels": known},
                found={"prediction": answer.text, "score": score},
                numbers=np.concatenate(
                    [probabilities(outcome.predictions[each].T).T for each in indices]
                ),
            )
        )
    return answers


def _files(outcome: Outcome) -> dict[str, Any]:
    """Return the files of the usual scripts: answers, best spans and, for v2.0, null odds."""
    answers = dict(_answers(outcome))
    files: dict[str, Any] = {
        "predictions.json": {id_: each.text for id_, each in answers.items()},
        "nbest_predictions.json": {id_: each.n_best for id_, each in answers.items()},
    }
    if _has_null(outcome.features):
        files["null_odds.json"] = {id_: each.null_odds for id_, each in answers.items()}
    return files


def _has_null(features: Features) -> bool:
    """Return whether "no answer" is right for at least one question, as in v2.0."""
    return any(example.is_impossible for example in features.examples)


def _answers(outcome: Outcome) -> Iterator[tuple[str, SpanPrediction]]:
    """Yield the id of each question and its answer, in the order of the examples."""
    features, has_null = outcome.features, _has_null(outcome.features)
    for example, indices in zip(features.examples, features.by_example(), strict=True):
        windows = [(outcome.predictions[index], features.places[index]) for index in indices]
        yield example.id, predict(windows, example.context, outcome.settings, has_null=has_null)


def _labels(features: Features, _: Mapping[int, str]) -> list[Labels | None]:
    """Return the first and last token of the answer in each window.

    [CLS] stands for no answer, also if a part of the answer is outside the window. The labels are
    `None` for all windows of a question whose answer is not found in the context.
    """
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
