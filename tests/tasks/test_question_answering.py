from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, processors

from qdqbert.encoding import make_batches
from qdqbert.errors import DataFileError, UserInputError
from qdqbert.tasks import question_answering
from qdqbert.tasks.data import Columns, fingerprint
from qdqbert.tasks.question_answering import QUESTION_ANSWERING as TASK
from qdqbert.tasks.question_answering import Answer, QuestionExample, find_answer, question_of
from qdqbert.tasks.task import Features, TaskOptions

BERT_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
CONTEXT = "the cat was on the old tree . rain came down by the river"
OPTIONS = TaskOptions(doc_stride=2)
NONE_ASKED = Columns()
IGNORED = 10**6


@pytest.fixture(scope="module")
def tokenizer(checkpoints) -> Any:
    return transformers.AutoTokenizer.from_pretrained(checkpoints("bert"))


@pytest.fixture(scope="module")
def byte_tokenizer() -> Any:
    """As RoBERTa's: every byte is a token, and there are no `token_type_ids`."""
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
    options: TaskOptions = OPTIONS,
    input_names: Sequence[str] = BERT_INPUTS,
) -> Features:
    return TASK.encode(
        examples, tokenizer, input_names=input_names, max_length=max_length, options=options
    )


def squad(*questions: dict[str, Any], context: str = CONTEXT) -> str:
    paragraphs = [{"context": context, "qas": list(questions)}]
    return json.dumps({"version": "1.1", "data": [{"title": "Cats", "paragraphs": paragraphs}]})


def asked(id_: str, *answers: tuple[str, int], **changes: Any) -> dict[str, Any]:
    given = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": id_, "question": "who", "answers": given, **changes}


def hub_row(**changes: Any) -> dict[str, Any]:
    answers = {"text": ["cat", "the cat"], "answer_start": [4, 0]}
    row = {"id": "a", "title": "Cats", "question": "who", "context": CONTEXT, "answers": answers}
    return {**row, **changes}


def read(path: Path, max_examples: int | None = None) -> Any:
    return TASK.read(str(path), columns=NONE_ASKED, max_examples=max_examples)


# Reading


def test_squad_files_are_read(write_file) -> None:
    answered = asked("a", ("cat", 4), ("the cat", 0))
    empty = asked("b", is_impossible=True, plausible_answers=[])
    dataset = read(write_file("dev.json", squad(answered, empty)))
    assert dataset.examples == (
        QuestionExample(
            id="a",
            question="who",
            context=CONTEXT,
            title="Cats",
            answers=(Answer(text="cat", start=4), Answer(text="the cat", start=0)),
        ),
        QuestionExample(id="b", question="who", context=CONTEXT, title="Cats", is_impossible=True),
    )
    assert dataset.columns == Columns()
    assert dataset.notices == ()
    assert len(dataset.digest) == 64


def test_a_line_is_a_row_in_the_layout_of_the_hub(write_file) -> None:
    rows = [hub_row(), hub_row(id="b", answers={"text": [], "answer_start": []})]
    text = "\ufeff" + "\n\n".join(json.dumps(row) for row in rows)
    first, second = read(write_file("dev.jsonl", text)).examples
    assert first == question_of(hub_row(), "Row 1")
    assert (first.answers[1], first.title) == (Answer(text="the cat", start=0), "Cats")
    assert (second.answers, second.is_impossible) == ((), True)


def test_a_line_separator_in_a_text_does_not_end_a_line(write_file) -> None:
    row = hub_row(context="the\u2028cat")
    text = json.dumps(row, ensure_ascii=False) + "\r\n"
    assert read(write_file("dev.ndjson", text)).examples[0].context == "the\u2028cat"


def test_rows_of_the_hub_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(1, hub_row()), (2, hub_row(id="b")), (3, {"broken": True})]
    monkeypatch.setattr(question_answering, "hub_rows", lambda path: iter(rows))
    dataset = TASK.read("hub:squad@validation", columns=NONE_ASKED, max_examples=2)
    assert [example.id for example in dataset.examples] == ["a", "b"]
    with pytest.raises(DataFileError, match="Row 3 of `hub:squad@validation` must have `id`"):
        TASK.read("hub:squad@validation", columns=NONE_ASKED, max_examples=None)


def test_no_more_questions_than_asked_are_read(write_file) -> None:
    path = write_file("dev.json", squad(asked("a", ("cat", 4)), asked("b", ("cat", 4))))
    assert [example.id for example in read(path, 1).examples] == ["a"]
    with pytest.raises(DataFileError, match="`max_examples` must be at least 1, got 0"):
        read(path, 0)


def test_ids_may_be_numbers() -> None:
    assert question_of(hub_row(id=7), "Row 1").id == "7"


@pytest.mark.parametrize("answers", [None, "none"], ids=["null", "missing"])
def test_without_answers_it_is_not_known_whether_there_is_one(answers: str | None) -> None:
    row = hub_row(answers=None)
    if answers is not None:
        del row["answers"]
    example = question_of(row, "Row 1")
    assert (example.answers, example.is_impossible) == ((), False)


def test_leaks_are_found_by_question_and_context() -> None:
    first, second = question(), question("THE cat  " + CONTEXT[8:], ("cat", 4), id_="2")
    assert first.content == ("where is it", CONTEXT)
    assert fingerprint(first) == fingerprint(second)
    assert fingerprint(first) != fingerprint(question("another"))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "", r"must end in one of \.json, \.jsonl, \.ndjson, got '\.txt'"),
        ("a.json", "{", r"File `.*a\.json` is not JSON"),
        ("a.json", "[" * 100_000, r"File `.*a\.json` is not JSON"),
        ("a.json", "[]", r"must be a JSON object, got list"),
        ("a.json", "{}", r"File `.*` must have `data`: a list, got none\. Expected SQuAD's"),
        ("a.json", '{"data": [1]}', r"Article 1 of .* must have `paragraphs`: a list, got none"),
        ("a.json", '{"data": []}', r"must have at least one question, got none"),
        ("a.jsonl", "\n\n", r"must have at least one question, got none"),
        ("a.jsonl", "\n{", r"Line 2 of `.*a\.jsonl` is not JSON"),
        ("a.jsonl", "3", r"Line 1 of .* must be a JSON object, got int"),
    ],
)
def test_other_files_are_refused(write_file, name: str, text: str, message: str) -> None:
    with pytest.raises(DataFileError, match=message):
        read(write_file(name, text))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"question": 3}, r"Line 1 of .* must have `question`: a string, got int"),
        ({"context": None}, r"must have `context`: a string, got null"),
        ({"id": True}, r"must have `id`: a string, got bool"),
        ({"answers": "cat"}, r"`answers` of line 1 of .* a list of objects, got str"),
        ({"answers": ["cat"]}, r"`answers` of line 1 of .* must have `text`: a string"),
        ({"answers": {"text": ["cat"]}}, r"must have `answer_start`: a list, got none"),
        ({"answers": {"text": ["cat"], "answer_start": []}}, r"as many .* got 0 and 1"),
        ({"answers": {"text": ["a"], "answer_start": ["0"]}}, r"an integer, got str"),
        ({"is_impossible": True}, r"no `answers` where `is_impossible` is true, got 2"),
    ],
)
def test_other_rows_are_refused(write_file, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataFileError, match=message):
        read(write_file("dev.jsonl", json.dumps(hub_row(**changes))))


def test_a_question_that_is_no_object_is_named(write_file) -> None:
    content = {"data": [{"paragraphs": [{"context": CONTEXT, "qas": ["who"]}]}]}
    with pytest.raises(DataFileError, match="Question 1 of paragraph 1 of article 1 of"):
        read(write_file("dev.json", json.dumps(content)))


def test_a_file_that_is_not_there_or_not_utf8_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataFileError, match=r"`.*none\.json` does not exist"):
        read(tmp_path / "none.json")
    with pytest.raises(DataFileError, match="is a directory"):
        read(tmp_path)
    (tmp_path / "latin.json").write_bytes(b'{"data": "\xe9"}')
    with pytest.raises(DataFileError, match="must be UTF-8, got byte 0xe9 at position 10"):
        read(tmp_path / "latin.json")


def test_ids_that_several_questions_have_are_refused(write_file) -> None:
    path = write_file("dev.json", squad(asked("a"), asked("b"), asked("b")))
    with pytest.raises(
        DataFileError, match="`id` of its own, got 1 that several have, such as 'b'"
    ):
        read(path)


@pytest.mark.parametrize(
    ("columns", "option"),
    [
        (Columns(text="q"), "--text-column 'q'"),
        (Columns(text_pair="c"), "--text-pair-column 'c'"),
        (Columns(label="a"), "--label-column 'a'"),
    ],
)
def test_options_for_columns_are_refused(columns: Columns, option: str) -> None:
    with pytest.raises(DataFileError, match=f"got `{option}`. Leave the option out"):
        TASK.read("dev.json", columns=columns, max_examples=None)


# Places of answers


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Answer(text="the", start=0), 0),
        (Answer(text="the", start=15), 15),
        (Answer(text="the", start=13), 15),
        (Answer(text="the", start=-1), 0),
        (Answer(text="the", start=999), CONTEXT.rindex("the")),
        (Answer(text="dog", start=0), None),
        (Answer(text="", start=3), None),
    ],
)
def test_an_answer_is_found_at_the_nearest_place(answer: Answer, expected: int | None) -> None:
    assert find_answer(CONTEXT, answer) == expected


def test_answers_that_are_not_where_the_file_says_are_told(write_file) -> None:
    questions = [
        asked("right", ("cat", 4)),
        asked("moved", ("cat", 5), ("cat", 6)),
        asked("lost", ("dog", 0)),
        asked("half lost", ("dog", 0), ("tree", 1)),
        asked("none", is_impossible=True),
    ]
    dataset = read(write_file("dev.json", squad(*questions)))
    assert dataset.notices == (
        "2 of 5 questions have an answer that is not where the file says; it was found elsewhere "
        "in the context.",
        "2 of 5 questions have an answer that is not in the context; 1 have no other and are left "
        "out of training.",
    )
    assert dataset.examples[3].span == (CONTEXT.index("tree"), CONTEXT.index("tree") + 4)


# Windows


def test_windows_share_the_stride_and_cover_the_context(tokenizer) -> None:
    # [CLS] where is it [SEP] + 5 tokens of the context + [SEP]
    features = encode(tokenizer, question(), max_length=11)
    words = CONTEXT.split()
    whole = tokenizer(CONTEXT, add_special_tokens=False)["input_ids"]
    shown = [row["input_ids"][5:-1].tolist() for row in features.encoded.rows]
    assert len(whole) == len(words)
    # Each begins 5 - 2 tokens after the one before.
    assert shown == [whole[start : start + 5] for start in range(0, len(words) - 2, 3)]
    for window, start in zip(features.places, range(0, len(words), 3), strict=False):
        assert window.example == 0
        assert (window.offsets[:5] == -1).all()
        assert (window.offsets[-1] == -1).all()
        texts = [CONTEXT[a:b] for a, b in window.offsets[5:-1].tolist()]
        assert texts == words[start : start + 5]
        assert window.offsets.dtype == np.int32


def test_rows_are_what_the_tokenizer_makes_of_question_and_context(tokenizer) -> None:
    features = encode(tokenizer, question(), question("rain", id_="2"))
    for row, context in zip(features.encoded.rows, (CONTEXT, "rain"), strict=True):
        expected = tokenizer("where is it", context)
        assert {name: value.tolist() for name, value in row.items()} == dict(expected)
    assert features.encoded.truncated == 0
    assert features.notices == ()


def test_tokenizers_without_token_types_work(byte_tokenizer) -> None:
    names = ("input_ids", "attention_mask")
    features = encode(byte_tokenizer, question(), max_length=200, input_names=names)
    assert list(features.encoded.rows[0]) == list(names)
    assert features.encoded.padding == {"input_ids": 1, "attention_mask": 0}


def test_more_questions_than_are_tokenized_at_a_time_keep_their_order(tokenizer) -> None:
    examples = [question("rain " * (1 + i % 12), id_=str(i)) for i in range(150)]
    features = encode(tokenizer, *examples, max_length=11)
    counts = np.bincount([window.example for window in features.places])
    assert counts.tolist() == [max(1, -(-(1 + i % 12 - 2) // 3)) for i in range(150)]


def test_spaces_before_a_question_are_left_out(byte_tokenizer) -> None:
    names = ("input_ids", "attention_mask")
    spaced = question(question=" \t\n where is it")
    rows = [
        encode(byte_tokenizer, each, input_names=names, max_length=200).encoded.rows[0]["input_ids"]
        for each in (spaced, question())
    ]
    assert rows[0].tolist() == rows[1].tolist()


def test_long_questions_are_cut_and_told(tokenizer) -> None:
    long = question(question="cat " * 65, id_="2")
    features = encode(tokenizer, question(question="cat " * 64), long, max_length=100)
    first, second = (row["input_ids"].tolist() for row in features.encoded.rows)
    assert first == second
    assert features.notices == ("1 of 2 questions were longer than 64 tokens and were cut.",)
    assert features.encoded.truncated == 1


def test_an_empty_context_still_makes_a_row(tokenizer) -> None:
    features = encode(tokenizer, question(""))
    assert len(features.encoded.rows) == 1
    assert (features.places[0].offsets == -1).all()


@pytest.mark.parametrize(
    ("max_length", "stride", "fits"),
    [(9, 2, True), (8, 2, False), (7, 0, True), (6, 0, False), (3, 0, False), (2, 128, False)],
)
def test_windows_that_cannot_move_on_are_refused(
    tokenizer, max_length: int, stride: int, fits: bool
) -> None:
    """Three tokens of a question and three special ones leave `max_length` - 6."""
    options = TaskOptions(doc_stride=stride)
    if fits:
        assert len(encode(tokenizer, question(), max_length=max_length, options=options).places) > 1
        return
    message = f"`--max-length {max_length}` leaves .* question of 3 and 3 .*`--doc-stride {stride}`"
    with pytest.raises(UserInputError, match=message):
        encode(tokenizer, question(), max_length=max_length, options=options)


# Labels


def labels_of(tokenizer: Any, *examples: QuestionExample, **settings: Any) -> list[tuple[int, int]]:
    made = TASK.labels(encode(tokenizer, *examples, **settings), {})
    assert {name for each in made for name in each} == {"start_positions", "end_positions"}
    return [(each["start_positions"], each["end_positions"]) for each in made]


def test_a_window_with_the_whole_answer_points_at_it_and_others_at_cls(tokenizer) -> None:
    answer = ("old tree", CONTEXT.index("old tree"))  # tokens 5 and 6 of the context
    positions = labels_of(tokenizer, question(CONTEXT, answer), max_length=11)
    # Windows of tokens 0-4, 3-7, 6-10 and 9-13.
    assert positions == [(0, 0), (5 + 2, 5 + 3), (0, 0), (0, 0)]


def test_without_an_answer_all_windows_point_at_cls(tokenizer) -> None:
    assert set(labels_of(tokenizer, impossible(), max_length=11)) == {(0, 0)}


def test_an_answer_that_no_window_holds_points_at_cls(tokenizer) -> None:
    assert set(labels_of(tokenizer, question(CONTEXT, (CONTEXT, 0)), max_length=11)) == {(0, 0)}


@pytest.mark.parametrize("text", ["dog", "", " "], ids=["elsewhere", "empty", "no-token"])
def test_answers_without_a_place_are_left_out_of_the_loss(tokenizer, make_model, text) -> None:
    lost = question(CONTEXT, (text, 3), id_="lost")
    features = encode(tokenizer, lost, question(CONTEXT, ("cat", 4)))
    labels = TASK.labels(features, {})
    assert labels[0] == {"start_positions": IGNORED, "end_positions": IGNORED}
    model = make_model("bert", transformers.AutoModelForQuestionAnswering)

    def loss(indices: list[int]) -> float:
        rows = [{**features.encoded.rows[index], **labels[index]} for index in indices]
        inputs = {name: torch.tensor(np.stack([row[name] for row in rows])) for name in rows[0]}
        return float(model(**{name: x.long() for name, x in inputs.items()}).loss.detach())

    assert loss([0, 1]) == pytest.approx(loss([1]), rel=1e-5)  # float32


def test_the_first_answer_that_is_in_the_context_is_taken(tokenizer) -> None:
    example = question(CONTEXT, ("dog", 4), ("cat", 4), ("tree", 23))
    assert labels_of(tokenizer, example) == [(6, 6)]


def test_questions_without_known_answers_cannot_be_scored_or_trained_on(tokenizer) -> None:
    features = encode(tokenizer, question(), impossible(id_="2"))
    rows = [np.zeros((len(w.offsets), 2), np.float32) for w in features.places]
    for call in (
        lambda: TASK.labels(features, {}),
        lambda: TASK.metrics(rows, features, {}, OPTIONS),
    ):
        with pytest.raises(DataFileError, match="1 of 2 have no such field, such as '1'"):
            call()
    assert len(TASK.decisions(rows, features, OPTIONS)) == 2


UNITS = ["the", "cat", "r", "rain", ".", "tree-house", "1990", "\U0001f600", "\U00020000", "é", "ß"]


@settings(deadline=None)
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
            assert context[window.offsets[begin, 0] : window.offsets[end, 1]] == text
    if len(labels) == 1:
        assert labels[0]["start_positions"] > 0


@settings(deadline=None)
@given(data=st.data())
def test_labels_of_byte_tokens_lead_back_to_the_answer(byte_tokenizer, data) -> None:
    """A character may be several tokens here, all of them with its offsets."""
    letters = st.sampled_from("ab é\u0301ß中\U0001f600")
    context = data.draw(st.text(letters, min_size=1, max_size=12))
    start = data.draw(st.integers(0, len(context) - 1))
    text = context[start : data.draw(st.integers(start + 1, len(context)))]
    example = question(context, (text, start))
    names = ("input_ids", "attention_mask")
    features = encode(byte_tokenizer, example, max_length=100, input_names=names)
    (label,), (window,) = TASK.labels(features, {}), features.places
    begin, end = label["start_positions"], label["end_positions"]
    if begin == IGNORED:
        assert not text.strip()
        return
    shown = context[window.offsets[begin, 0] : window.offsets[end, 1]]
    assert shown.strip() == text.strip()


@pytest.mark.parametrize(
    ("context", "text", "shown"),
    [
        # A mark that the tokenizer drops belongs to no token.
        ("the cafe\u0301", "cafe\u0301", "cafe"),
        ("the cat ", "cat ", "cat"),
        ("the  cat", " cat", "cat"),
        ("the \U0001f600 cat", "\U0001f600", "\U0001f600"),
        ("the \U0001f600\U0001f600 cat", "cat", "cat"),
        # An answer inside of a token is that token.
        ("the rain", "ai", "rain"),
    ],
    ids=["mark", "space-after", "space-before", "astral", "after-astral", "inside"],
)
def test_answers_that_are_not_whole_tokens_have_the_tokens_they_touch(
    tokenizer, context: str, text: str, shown: str
) -> None:
    features = encode(tokenizer, question(context, (text, context.index(text))))
    (label,), (window,) = TASK.labels(features, {}), features.places
    begin, end = label["start_positions"], label["end_positions"]
    assert begin > 0
    assert context[window.offsets[begin, 0] : window.offsets[end, 1]] == shown


# Answers


def scored(features: Features, *spans: dict[tuple[int, int], float]) -> list[np.ndarray]:
    """Rows of -9 with some starts and ends of windows, from 0 at the context, raised to a score."""
    rows = []
    for window, wanted in zip(features.places, spans, strict=True):
        row = np.full((len(window.offsets), 2), -9, np.float32)
        for (start, end), value in wanted.items():
            row[start, 0] = row[end, 1] = value
        rows.append(row)
    return rows


def values_of(rows: Any, features: Features, options: TaskOptions = OPTIONS) -> dict[str, float]:
    return {each.name: each.value for each in TASK.metrics(rows, features, {}, options)}


def test_rows_are_logits_without_padding(tokenizer) -> None:
    features = encode(tokenizer, question("rain"), question(CONTEXT, id_="2"))
    (batch,) = make_batches(features.encoded, batch_size=2)
    assert batch.indices == (1, 0)
    start = np.arange(2 * batch.inputs["input_ids"].shape[1], dtype=np.float32).reshape(2, -1)
    long, short = TASK.rows({"start_logits": start, "end_logits": -start}, batch, features)
    assert (long.shape, short.shape) == ((20, 2), (7, 2))
    assert short[:, 0].tolist() == start[1, :7].tolist()
    assert short[:, 1].tolist() == (-start[1, :7]).tolist()
    assert long.dtype == np.float32


def test_v1_scores_the_best_span_of_all_windows(tokenizer) -> None:
    example = question(CONTEXT, ("old tree", 19))
    features = encode(tokenizer, example, max_length=11)
    rows = scored(features, {(5, 6): 1.0}, {(7, 8): 3.0}, {}, {(0, 0): 9.0})
    assert TASK.decisions(rows, features, OPTIONS) == ["old tree"]
    metrics = TASK.metrics(rows, features, {}, OPTIONS)
    assert [(each.name, each.value, each.examples) for each in metrics] == [
        ("f1", 100.0, 1),
        ("exact_match", 100.0, 1),
    ]
    assert "null_odds.json" not in TASK.files(rows, features, OPTIONS)


def test_spans_outside_of_the_context_backwards_or_too_long_are_no_answers(tokenizer) -> None:
    features = encode(tokenizer, question(CONTEXT, ("cat", 4)))
    (row,) = scored(features, {(0, 0): 8.0, (2, 3): 7.0, (19, 19): 6.0})
    row[10, 0] = row[6, 1] = 5.0  # backwards
    row[6, 0] = 4.0  # with the end at 6: one token
    row[17, 1] = 4.5
    options = dataclasses.replace(OPTIONS, max_answer_length=5)
    assert TASK.decisions([row], features, options) == ["cat"]
    # 10 to 17 is the better span as soon as eight tokens are allowed.
    options = dataclasses.replace(OPTIONS, max_answer_length=8)
    assert TASK.decisions([row], features, options) == ["old tree . rain came down by the"]


def test_the_usual_word_stands_where_no_span_is_possible(tokenizer) -> None:
    features = encode(tokenizer, question("", ("cat", 4)))
    rows = scored(features, {})
    assert TASK.decisions(rows, features, OPTIONS) == ["empty"]
    files = TASK.files(rows, features, OPTIONS)
    assert files["nbest_predictions.json"]["1"] == [
        {"start_logit": 0.0, "end_logit": 0.0, "text": "empty", "probability": 1.0}
    ]


def v2_features(tokenizer: Any) -> tuple[Features, list[np.ndarray]]:
    """Null scores 2 x 3 and 2 x 1 of two windows, and a best span of 2 x 2.5; then none at all."""
    answered = question("the cat was on the old tree", ("cat", 4))
    features = encode(tokenizer, answered, impossible("rain", id_="2"), max_length=11)
    spans = [{(0, 0): 3.0, (6, 6): 2.5}, {(0, 0): 1.0}, {(0, 0): 4.0, (5, 5): 1.5}]
    return features, scored(features, *spans)


def test_v2_compares_the_best_span_with_the_least_null_score(tokenizer) -> None:
    features, rows = v2_features(tokenizer)
    files = TASK.files(rows, features, OPTIONS)
    assert files["null_odds.json"] == {"1": 2 - 5, "2": 8 - 3}
    assert files["predictions.json"] == {"1": "cat", "2": ""}
    assert values_of(rows, features) == dict.fromkeys(
        ("f1", "exact", "HasAns_f1", "HasAns_exact", "NoAns_f1", "NoAns_exact"), 100.0
    )


@pytest.mark.parametrize(
    ("threshold", "expected"),
    [(-3.5, ["", ""]), (-3.0, ["cat", ""]), (4.5, ["cat", ""]), (5.0, ["cat", "rain"])],
)
def test_v2_answers_nothing_above_the_threshold(
    tokenizer, threshold: float, expected: list[str]
) -> None:
    features, rows = v2_features(tokenizer)
    options = dataclasses.replace(OPTIONS, null_score_diff_threshold=threshold)
    assert TASK.decisions(rows, features, options) == expected


def test_v2_metrics_say_over_how_many_questions_they_are(tokenizer) -> None:
    features, rows = v2_features(tokenizer)
    counts = {each.name: each.examples for each in TASK.metrics(rows, features, {}, OPTIONS)}
    assert counts["f1"] == 2
    assert counts["HasAns_f1"] == counts["NoAns_exact"] == 1


def test_n_best_are_spans_with_probabilities_and_the_null_score(tokenizer) -> None:
    features, rows = v2_features(tokenizer)
    rows[0][5:8] = 4.0
    rows[0][5:8] = 4.0
    options = dataclasses.replace(OPTIONS, n_best_size=2)
    first, second = TASK.files(rows, features, options)["nbest_predictions.json"].values()
    # Two spans are better than "no answer", which is put after them all the same.
    assert [each["text"] for each in first] == ["was", "cat was", ""]
    assert (first[2]["start_logit"], first[2]["end_logit"]) == (1.0, 1.0)
    assert [each["text"] for each in second] == ["", "rain"]
    powers = np.exp([8.0 - 8.0, 3.0 - 8.0])
    assert [each["probability"] for each in second] == pytest.approx(list(powers / powers.sum()))
    json.dumps([first, second], allow_nan=False)


def reference_answers(
    features: Features, rows: list[np.ndarray], options: TaskOptions, *, has_null: bool
) -> dict[str, str]:
    """The rules of `utils_qa.py` in plain loops; without its n-best, which only cuts the search."""
    answers = {}
    for index, example in enumerate(features.examples):
        spans, nulls = [], []
        for row, window in zip(rows, features.places, strict=True):
            if window.example != index:
                continue
            nulls.append(row[0, 0] + row[0, 1])
            for start in range(len(row)):
                for end in range(start, min(len(row), start + options.max_answer_length)):
                    if window.offsets[start, 0] >= 0 and window.offsets[end, 0] >= 0:
                        text = example.context[window.offsets[start, 0] : window.offsets[end, 1]]
                        spans.append((row[start, 0] + row[end, 1], text))
        score, text = max(spans)
        if has_null and min(nulls) - score > options.null_score_diff_threshold:
            text = ""
        answers[example.id] = text
    return answers


@pytest.mark.parametrize("has_null", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_answers_are_those_of_plain_loops(tokenizer, has_null: bool, seed: int) -> None:
    rng = random.Random(seed)
    examples = [
        question(" ".join(rng.choices(CONTEXT.split(), k=rng.randint(1, 30))), id_=str(i))
        for i in range(12)
    ]
    if has_null:
        examples.append(impossible(id_="none"))
    features = encode(tokenizer, *examples, max_length=16)
    noise = np.random.default_rng(seed)
    rows = [
        noise.normal(size=(len(window.offsets), 2)).astype(np.float32) for window in features.places
    ]
    options = TaskOptions(n_best_size=1000, max_answer_length=4, null_score_diff_threshold=-1.0)
    expected = reference_answers(features, rows, options, has_null=has_null)
    assert TASK.files(rows, features, options)["predictions.json"] == expected
    assert TASK.decisions(rows, features, options) == list(expected.values())
    assert len({"", *expected.values()} - {""}) > 3


def test_the_task_says_what_it_is() -> None:
    assert (TASK.name, TASK.max_length, TASK.is_embedding) == ("question-answering", 384, False)
    assert TASK.class_names([question()]) is None
