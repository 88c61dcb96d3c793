from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tokenizers
import transformers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, processors

from qdqbert.common.errors import DataFileError, UserInputError
from qdqbert.data.rows.data import Columns, Dataset
from qdqbert.data.tokenizing.encoding import make_batches
from qdqbert.encoders.task_kinds import TaskSettings
from qdqbert.tasks.question_answering import QUESTION_ANSWERING as TASK
from qdqbert.tasks.questions import Answer, QuestionExample, read_questions
from qdqbert.tasks.task import Features, Outcome
from task_features import NAMES, features_of

CONTEXT = "the cat was on the old tree . rain came down by the river"
OPTIONS = TaskSettings(doc_stride=2)


@pytest.fixture(scope="module")
def byte_tokenizer() -> Any:
    """A tokenizer like RoBERTa's: every byte is a token, and there are no `token_type_ids`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    vocab = {piece: index for index, piece in enumerate([*special, *alphabet])}
    inner = tokenizers.Tokenizer(models.BPE(vocab, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    names = ("bos_token", "pad_token", "eos_token", "unk_token", "mask_token")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner,
        **dict(zip(names, special, strict=True)),
        cls_token="<s>",
        sep_token="</s>",
        model_input_names=["input_ids", "attention_mask"],
    )


def question(
    context: str = CONTEXT, *answers: tuple[str, int], id_: str = "1", **changes: Any
) -> QuestionExample:
    made = QuestionExample(
        id=id_,
        question="where is it",
        context=context,
        answers=tuple(Answer(text=text, start=start) for text, start in answers),
    )
    return dataclasses.replace(made, **changes)


def impossible(context: str = CONTEXT, **changes: Any) -> QuestionExample:
    return question(context, is_impossible=True, **changes)


def encode(
    tokenizer: Any,
    *examples: QuestionExample,
    max_length: int = 64,
    options: TaskSettings = OPTIONS,
    input_names: Sequence[str] = NAMES,
) -> Features:
    return features_of(
        TASK, tokenizer, examples, max_length=max_length, names=input_names, settings=options
    )


# Windows


def test_windows_share_the_stride_and_cover_the_context(tokenizer) -> None:
    # [CLS] where is it [SEP] + 5 tokens of the context + [SEP]
    features = encode(tokenizer, question(), max_length=11)
    words = CONTEXT.split()
    whole = tokenizer(CONTEXT, add_special_tokens=False)["input_ids"]
    shown = [row["input_ids"][5:-1].tolist() for row in features.encoded.inputs]
    assert len(whole) == len(words)
    # Each window begins 5 - 2 tokens after the one before.
    assert shown == [whole[start : start + 5] for start in range(0, len(words) - 2, 3)]
    for window, start in zip(features.places, range(0, len(words), 3), strict=False):
        assert features.owners[start // 3] == 0
        assert (window[:5] == -1).all()
        assert (window[-1] == -1).all()
        texts = [CONTEXT[a:b] for a, b in window[5:-1].tolist()]
        assert texts == words[start : start + 5]
        assert window.dtype == np.int32


def test_features_are_the_tokenized_question_and_context(tokenizer) -> None:
    features = encode(tokenizer, question(), question("rain", id_="2"))
    for row, context in zip(features.encoded.inputs, (CONTEXT, "rain"), strict=True):
        expected = tokenizer("where is it", context)
        assert {name: value.tolist() for name, value in row.items()} == dict(expected)
    assert features.encoded.truncated == 0
    assert features.notices == ()


def test_tokenizers_without_token_types_work(byte_tokenizer) -> None:
    names = ("input_ids", "attention_mask")
    features = encode(byte_tokenizer, question(), max_length=200, input_names=names)
    assert list(features.encoded.inputs[0]) == list(names)
    assert features.encoded.padding == {"input_ids": 1, "attention_mask": 0}


def test_questions_keep_their_order_across_chunks(tokenizer) -> None:
    examples = [question("rain " * (1 + i % 12), id_=str(i)) for i in range(150)]
    features = encode(tokenizer, *examples, max_length=11)
    counts = np.bincount(features.owners)
    assert counts.tolist() == [max(1, -(-(1 + i % 12 - 2) // 3)) for i in range(150)]


def test_leading_spaces_of_a_question_are_stripped(byte_tokenizer) -> None:
    names = ("input_ids", "attention_mask")
    spaced = question(question=" \t\n where is it")
    predictions = [
        encode(byte_tokenizer, each, input_names=names, max_length=200).encoded.inputs[0][
            "input_ids"
        ]
        for each in (spaced, question())
    ]
    assert predictions[0].tolist() == predictions[1].tolist()


def test_truncated_questions_are_reported(tokenizer) -> None:
    long = question(question="cat " * 65, id_="2")
    features = encode(tokenizer, question(question="cat " * 64), long, max_length=100)
    first, second = (row["input_ids"].tolist() for row in features.encoded.inputs)
    assert first == second
    assert features.notices == ("1 of 2 questions was longer than 64 tokens and was cut.",)
    assert features.encoded.truncated == 1


def test_an_empty_context_makes_a_feature(tokenizer) -> None:
    features = encode(tokenizer, question(""))
    assert len(features.encoded.inputs) == 1
    assert (features.places[0] == -1).all()


@pytest.mark.parametrize(
    ("max_length", "stride", "fits"),
    [(9, 2, True), (8, 2, False), (7, 0, True), (6, 0, False), (3, 0, False), (2, 0, False)],
)
def test_windows_that_would_not_advance_are_refused(
    tokenizer, max_length: int, stride: int, fits: bool
) -> None:
    # Three tokens of the question and three special ones leave `max_length` - 6.
    options = TaskSettings(doc_stride=stride)
    if fits:
        assert len(encode(tokenizer, question(), max_length=max_length, options=options).places) > 1
        return
    message = f"`max_length={max_length}` leaves .* 3 of the question and 3 .*`doc_stride={stride}`"
    with pytest.raises(UserInputError, match=message):
        encode(tokenizer, question(), max_length=max_length, options=options)


def test_windows_share_half_of_them_at_most(tokenizer) -> None:
    examples = [question("the cat sat on the mat " * 20)]
    both = [
        encode(tokenizer, *examples, max_length=16, options=TaskSettings(doc_stride=stride))
        for stride in (8, 128)
    ]
    assert [len(each.places) for each in both] == [len(both[0].places)] * 2


# Labels


def labels_of(tokenizer: Any, *examples: QuestionExample, **settings: Any) -> list[tuple[int, int]]:
    made = TASK.labels(encode(tokenizer, *examples, **settings), {})
    assert {name for each in made for name in each} == {"start_positions", "end_positions"}
    return [(each["start_positions"], each["end_positions"]) for each in made]


def test_a_window_with_the_complete_answer_points_at_it_and_the_rest_at_cls(tokenizer) -> None:
    # Tokens 5 and 6 of the context.
    answer = ("old tree", CONTEXT.index("old tree"))
    positions = labels_of(tokenizer, question(CONTEXT, answer), max_length=11)
    # Windows of tokens 0-4, 3-7, 6-10 and 9-13.
    assert positions == [(0, 0), (5 + 2, 5 + 3), (0, 0), (0, 0)]


def test_without_an_answer_all_windows_point_at_cls(tokenizer) -> None:
    assert set(labels_of(tokenizer, impossible(), max_length=11)) == {(0, 0)}


def test_an_answer_that_no_window_contains_points_at_cls(tokenizer) -> None:
    assert set(labels_of(tokenizer, question(CONTEXT, (CONTEXT, 0)), max_length=11)) == {(0, 0)}


@pytest.mark.parametrize("text", ["dog", "", " "], ids=["elsewhere", "empty", "no-token"])
def test_windows_of_an_answer_that_is_not_found_have_no_labels(tokenizer, text: str) -> None:
    lost = question(CONTEXT, (text, 3), id_="lost")
    features = encode(tokenizer, question(CONTEXT, ("cat", 4)), lost, max_length=14)
    assert features.owners.count(1) > 1
    labels = TASK.labels(features, {})
    assert [each is None for each in labels] == [example == 1 for example in features.owners]


def test_the_first_answer_that_is_in_the_context_is_used(tokenizer) -> None:
    example = question(CONTEXT, ("dog", 4), ("cat", 4), ("tree", 23))
    assert labels_of(tokenizer, example) == [(6, 6)]


def test_questions_without_known_answers_cannot_be_scored_but_are_answered(tokenizer) -> None:
    examples = (question(), impossible(id_="2"))
    dataset = Dataset(path="dev.json", examples=examples, columns=Columns(), notices=())
    message = r"of `dev\.json` must have `answers`.* 1 of 2 .* among them question '1'"
    with pytest.raises(DataFileError, match=message):
        TASK.check_labels(dataset, {})
    features = encode(tokenizer, *examples)
    predictions = [np.zeros((len(w), 2), np.float32) for w in features.places]
    assert len(TASK.decisions(Outcome(predictions, features))) == 2


UNITS = ["the", "cat", "r", "rain", ".", "tree-house", "1990", "\U0001f600", "\U00020000", "é", "ß"]


@given(data=st.data())
def test_labels_lead_back_to_the_answer(tokenizer, data: st.DataObject) -> None:
    units = data.draw(st.lists(st.sampled_from(UNITS), min_size=1, max_size=30))
    context = data.draw(st.sampled_from(["", "  ", "\u00a0"])) + " ".join(units)
    first = data.draw(st.integers(0, len(units) - 1))
    last = data.draw(st.integers(first, len(units) - 1))
    start = len(context) - len(" ".join(units)) + len(" ".join([*units[:first], ""]))
    text = " ".join(units[first : last + 1])
    features = encode(tokenizer, question(context, (text, start)), max_length=40)
    labels = TASK.labels(features, {})
    for window, label in zip(features.places, labels, strict=True):
        begin, end = label["start_positions"], label["end_positions"]
        if begin:
            assert context[window[begin, 0] : window[end, 1]] == text
    if len(labels) == 1:
        assert labels[0]["start_positions"] > 0


@given(data=st.data())
def test_labels_of_byte_tokens_lead_back_to_the_answer(byte_tokenizer, data) -> None:
    # A character can be several tokens, which all have its offsets.
    letters = st.sampled_from("ab é\u0301ß中\U0001f600")
    context = data.draw(st.text(letters, min_size=1, max_size=12))
    start = data.draw(st.integers(0, len(context) - 1))
    text = context[start : data.draw(st.integers(start + 1, len(context)))]
    example = question(context, (text, start))
    names = ("input_ids", "attention_mask")
    features = encode(byte_tokenizer, example, max_length=100, input_names=names)
    (label,), (window,) = TASK.labels(features, {}), features.places
    if label is None:
        assert not text.strip()
        return
    begin, end = label["start_positions"], label["end_positions"]
    shown = context[window[begin, 0] : window[end, 1]]
    assert shown.strip() == text.strip()


@pytest.mark.parametrize(
    ("context", "text", "shown"),
    [
        # The tokenizer drops the combining mark, so it belongs to no token.
        ("the cafe\u0301", "cafe\u0301", "cafe"),
        ("the cat ", "cat ", "cat"),
        ("the  cat", " cat", "cat"),
        ("the \U0001f600 cat", "\U0001f600", "\U0001f600"),
        ("the \U0001f600\U0001f600 cat", "cat", "cat"),
        # The label of an answer inside a token is that token.
        ("the rain", "ai", "rain"),
    ],
    ids=["mark", "space-after", "space-before", "astral", "after-astral", "inside"],
)
def test_labels_are_the_tokens_that_an_answer_overlaps(
    tokenizer, context: str, text: str, shown: str
) -> None:
    features = encode(tokenizer, question(context, (text, context.index(text))))
    (label,), (window,) = TASK.labels(features, {}), features.places
    begin, end = label["start_positions"], label["end_positions"]
    assert begin > 0
    assert context[window[begin, 0] : window[end, 1]] == shown


# Answers


def scored(features: Features, *spans: dict[tuple[int, int], float]) -> list[np.ndarray]:
    """Return predictions of -9, with the scores of some starts and ends of windows replaced."""
    predictions = []
    for window, wanted in zip(features.places, spans, strict=True):
        scores = np.full((len(window), 2), -9, np.float32)
        for (start, end), value in wanted.items():
            scores[start, 0] = scores[end, 1] = value
        predictions.append(scores)
    return predictions


def values_of(
    predictions: Any, features: Features, options: TaskSettings = OPTIONS
) -> dict[str, float]:
    return {
        each.name: each.value for each in TASK.metrics(Outcome(predictions, features, {}, options))
    }


def test_predictions_are_logits_without_padding(tokenizer) -> None:
    features = encode(tokenizer, question("rain"), question(CONTEXT, id_="2"))
    (batch,) = make_batches(features.encoded, batch_size=2)
    assert batch.indices == (1, 0)
    start = np.arange(2 * batch.inputs["input_ids"].shape[1], dtype=np.float32).reshape(2, -1)
    long, short = TASK.predictions(
        features.results(batch, {"start_logits": start, "end_logits": -start})
    )
    assert (long.shape, short.shape) == ((20, 2), (7, 2))
    assert short[:, 0].tolist() == start[1, :7].tolist()
    assert short[:, 1].tolist() == (-start[1, :7]).tolist()
    assert long.dtype == np.float32


def test_v1_scores_the_best_span_of_all_windows(tokenizer) -> None:
    example = question(CONTEXT, ("old tree", 19))
    features = encode(tokenizer, example, max_length=11)
    predictions = scored(features, {(5, 6): 1.0}, {(7, 8): 3.0}, {}, {(0, 0): 9.0})
    assert TASK.decisions(Outcome(predictions, features)) == [("old tree",)]
    metrics = TASK.metrics(Outcome(predictions, features))
    assert [(each.name, each.value, each.examples) for each in metrics] == [
        ("f1", 100.0, 1),
        ("exact_match", 100.0, 1),
    ]
    assert "null_odds.json" not in TASK.files(Outcome(predictions, features))


def v2_features(tokenizer: Any) -> tuple[Features, list[np.ndarray]]:
    """Return an answered question (null scores 6 and 2, best span 5) and an impossible one."""
    answered = question("the cat was on the old tree", ("cat", 4))
    features = encode(tokenizer, answered, impossible("rain", id_="2"), max_length=11)
    spans = [{(0, 0): 3.0, (6, 6): 2.5}, {(0, 0): 1.0}, {(0, 0): 4.0, (5, 5): 1.5}]
    return features, scored(features, *spans)


def test_v2_compares_the_best_span_with_the_lowest_null_score(tokenizer) -> None:
    features, predictions = v2_features(tokenizer)
    files = TASK.files(Outcome(predictions, features))
    assert files["null_odds.json"] == {"1": 2 - 5, "2": 8 - 3}
    assert files["predictions.json"] == {"1": "cat", "2": ""}
    assert values_of(predictions, features) == dict.fromkeys(
        ("f1", "exact", "HasAns_f1", "HasAns_exact", "NoAns_f1", "NoAns_exact"), 100.0
    )


def test_v2_returns_no_answer_above_the_threshold(tokenizer) -> None:
    features, predictions = v2_features(tokenizer)
    options = dataclasses.replace(OPTIONS, null_score_diff_threshold=5.0)
    assert TASK.decisions(Outcome(predictions, features)) == [("cat",), ("",)]
    assert TASK.decisions(Outcome(predictions, features, {}, options)) == [("cat",), ("rain",)]


def test_v2_metrics_count_their_questions(tokenizer) -> None:
    features, predictions = v2_features(tokenizer)
    counts = {each.name: each.examples for each in TASK.metrics(Outcome(predictions, features))}
    assert counts["f1"] == 2
    assert counts["HasAns_f1"] == counts["NoAns_exact"] == 1


def test_n_best_are_written_for_each_question(tokenizer) -> None:
    features, predictions = v2_features(tokenizer)
    files = TASK.files(Outcome(predictions, features))
    assert list(files) == ["predictions.json", "nbest_predictions.json", "null_odds.json"]
    first, second = files["nbest_predictions.json"].values()
    assert [each["text"] for each in (first[0], second[0])] == ["cat", ""]


def test_decisions_are_the_predictions_in_the_order_of_the_questions(tokenizer) -> None:
    examples = [question("rain " * (1 + i % 12) + CONTEXT, id_=str(i)) for i in range(12)]
    features = encode(tokenizer, *examples, max_length=16)
    noise = np.random.default_rng(0)
    predictions = [noise.normal(size=window.shape).astype(np.float32) for window in features.places]
    answers = TASK.files(Outcome(predictions, features))["predictions.json"]
    assert list(answers) == [str(i) for i in range(12)]
    assert TASK.decisions(Outcome(predictions, features)) == [(each,) for each in answers.values()]
    assert len(set(answers.values())) > 3


def test_the_attributes_of_the_task() -> None:
    assert (TASK.name, TASK.max_length, TASK.is_embedding) == ("question-answering", 384, False)
    assert TASK.class_names is None
    assert TASK.read is read_questions
