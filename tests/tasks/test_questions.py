from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from qdqbert.common.errors import DataFileError
from qdqbert.data.rows import in_memory
from qdqbert.data.rows.data import Columns, fingerprint
from qdqbert.tasks.questions import (
    Answer,
    QuestionExample,
    find_answer,
    parse_question,
    read_questions,
)

CONTEXT = "the cat was on the old tree . rain came down by the river"
NONE_ASKED = Columns()


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
    return read_questions(str(path), columns=NONE_ASKED, max_examples=max_examples)


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


def test_lines_have_the_layout_of_hub_rows(write_file) -> None:
    rows = [hub_row(), hub_row(id="b", answers={"text": [], "answer_start": []})]
    text = "\ufeff" + "\n\n".join(json.dumps(row) for row in rows)
    first, second = read(write_file("dev.jsonl", text)).examples
    assert first == parse_question(hub_row(), "Row 1")
    assert (first.answers[1], first.title) == (Answer(text="the cat", start=0), "Cats")
    assert (second.answers, second.is_impossible) == ((), True)


def test_a_line_separator_in_a_text_does_not_end_a_line(write_file) -> None:
    row = hub_row(context="the\u2028cat")
    text = json.dumps(row, ensure_ascii=False) + "\r\n"
    assert read(write_file("dev.ndjson", text)).examples[0].context == "the\u2028cat"


def test_rows_of_the_hub_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(1, hub_row()), (2, hub_row(id="b")), (3, {"broken": True})]
    monkeypatch.setattr(in_memory, "hub_rows", lambda path: iter(rows))
    dataset = read_questions("hub:squad@validation", columns=NONE_ASKED, max_examples=2)
    assert [example.id for example in dataset.examples] == ["a", "b"]
    with pytest.raises(DataFileError, match="Row 3 of `hub:squad@validation` must have `id`"):
        read_questions("hub:squad@validation", columns=NONE_ASKED, max_examples=None)


def test_max_examples_limits_what_is_read(write_file) -> None:
    path = write_file("dev.json", squad(asked("a", ("cat", 4)), asked("b", ("cat", 4))))
    assert [example.id for example in read(path, 1).examples] == ["a"]


def test_ids_may_be_numbers() -> None:
    assert parse_question(hub_row(id=7), "Row 1").id == "7"


@pytest.mark.parametrize("answers", [None, "none"], ids=["null", "missing"])
def test_without_answers_it_is_not_known_whether_there_is_one(answers: str | None) -> None:
    row = hub_row(answers=None)
    if answers is not None:
        del row["answers"]
    example = parse_question(row, "Row 1")
    assert (example.answers, example.is_impossible) == ((), False)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "", r"must end in one of \.json, \.jsonl, \.ndjson, \.parquet, got '\.txt'"),
        ("a.json", "{", r"File `.*a\.json`: it is not JSON"),
        ("a.json", "[" * 100_000, r"File `.*a\.json`: it is not JSON"),
        ("a.json", "[]", r"must be a JSON object, got list"),
        ("a.json", "{}", r"File `.*` must have `data`: a list, got none\. Expected SQuAD's"),
        ("a.json", '{"data": [1]}', r"Article 1 of .* must have `paragraphs`: a list, got none"),
        ("a.json", '{"data": []}', r"must have at least one question, got none"),
        ("a.jsonl", "\n\n", r"must have at least one question, got none"),
        ("a.jsonl", "\n{", r"Line 2 of `.*a\.jsonl`: it is not JSON"),
        ("a.jsonl", "3", r"Line 1 of .*: it must be a JSON object, got int"),
    ],
)
def test_malformed_files_are_refused(write_file, name: str, text: str, message: str) -> None:
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
        ({"answers": {"text": ["cat"], "answer_start": []}}, r"equal numbers .* got 0 and 1"),
        ({"answers": {"text": ["a"], "answer_start": ["0"]}}, r"an integer, got str"),
        ({"is_impossible": True}, r"no `answers` where `is_impossible` is true, got 2"),
    ],
)
def test_malformed_rows_are_refused(write_file, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataFileError, match=message):
        read(write_file("dev.jsonl", json.dumps(hub_row(**changes))))


def test_a_question_that_is_not_an_object_is_named(write_file) -> None:
    content = {"data": [{"paragraphs": [{"context": CONTEXT, "qas": ["who"]}]}]}
    with pytest.raises(DataFileError, match="Question 1 of paragraph 1 of article 1 of"):
        read(write_file("dev.json", json.dumps(content)))


def test_a_missing_file_and_another_encoding_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataFileError, match=r"`.*none\.json` does not exist"):
        read(tmp_path / "none.json")
    with pytest.raises(DataFileError, match="is a directory"):
        read(tmp_path)
    (tmp_path / "latin.json").write_bytes(b'{"data": "\xe9"}')
    with pytest.raises(DataFileError, match="it is not UTF-8: byte 0xe9 at column 11"):
        read(tmp_path / "latin.json")


def test_repeated_ids_are_refused(write_file) -> None:
    path = write_file("dev.json", squad(asked("a"), asked("b"), asked("b")))
    with pytest.raises(DataFileError, match="a different `id`, got 1 repeated id, among them 'b'"):
        read(path)


@pytest.mark.parametrize(
    ("columns", "option"),
    [
        (Columns(text="q"), "text_column='q'"),
        (Columns(text_pair="c"), "text_pair_column='c'"),
        (Columns(label="a"), "label_column='a'"),
    ],
)
def test_requested_columns_are_refused(columns: Columns, option: str) -> None:
    with pytest.raises(DataFileError, match=f"^`{option}` cannot be used"):
        read_questions("dev.json", columns=columns, max_examples=None)


def test_leaks_are_found_by_question_and_context() -> None:
    first = parse_question(hub_row(answers=None), "Row 1")
    second = parse_question(hub_row(id="2", context="THE cat  " + CONTEXT[8:]), "Row 2")
    assert first.content == ("who", CONTEXT)
    assert fingerprint(first) == fingerprint(second)
    assert fingerprint(first) != fingerprint(dataclasses.replace(first, context="another"))


@pytest.mark.parametrize("name", ["dev.jsonl", "dev.json"])
def test_half_of_a_surrogate_pair_is_refused(write_file, name: str) -> None:
    row = json.dumps(hub_row(context="the \ud800 cat"))
    text = f"{json.dumps(hub_row())}\n{row}" if name == "dev.jsonl" else f'{{"data":\n[{row}]}}'
    with pytest.raises(DataFileError, match=r"(Line 2 of .*|at line 2, .*)") as caught:
        read(write_file(name, text))
    assert "it contains half of a surrogate pair" in str(caught.value)


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
def test_an_answer_is_found_at_the_nearest_position(answer: Answer, expected: int | None) -> None:
    assert find_answer(CONTEXT, answer) == expected


def test_answers_at_another_position_are_reported(write_file) -> None:
    questions = [
        asked("right", ("cat", 4)),
        asked("moved", ("cat", 5), ("cat", 6)),
        asked("lost", ("dog", 0)),
        asked("half lost", ("dog", 0), ("tree", 1)),
        asked("none", is_impossible=True),
    ]
    dataset = read(write_file("dev.json", squad(*questions)))
    assert dataset.notices == (
        "In 2 of 5 questions an answer is not at the position given by the data; it was found "
        "elsewhere in the context.",
        "In 2 of 5 questions an answer is not in the context. Questions without another answer, "
        "which training leaves out: 1.",
    )
    assert dataset.examples[3].span == (CONTEXT.index("tree"), CONTEXT.index("tree") + 4)
