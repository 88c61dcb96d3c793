from __future__ import annotations

import json

import numpy as np
import pytest

from qdqbert.common.errors import DataFileError
from qdqbert.data.rows.data import Columns, Example
from qdqbert.data.tokenizing.encoding import Encoded
from qdqbert.runtime.batches import Results
from qdqbert.tasks.feature_extraction import FEATURE_EXTRACTION as TASK
from qdqbert.tasks.task import Features, Outcome
from task_features import features_of

PAIRS = [
    Example(text="a", text_pair="b", label="5"),
    Example(text="c", text_pair="d", label="0.5"),
    Example(text="e", text_pair="f", label="3"),
]


def features(examples: list[Example], count: int = 0) -> Features:
    encoded = Encoded(inputs=({},) * count, padding={}, truncated=0)
    return Features(examples=tuple(examples), encoded=encoded)


def results(mask: list[list[int]], outputs: dict[str, np.ndarray]) -> Results:
    return Results(
        outputs=outputs, inputs={"attention_mask": np.array(mask)}, features=(), places=()
    )


def test_texts_and_scores_are_read_from_a_table(write_file) -> None:
    path = write_file("pairs.csv", "sentence1,sentence2,score\na,b,5\nc,d,0.5\ne,f,3\n")
    dataset = TASK.read(str(path), columns=Columns(), max_examples=2)
    assert dataset.examples == tuple(PAIRS[:2])


@pytest.mark.parametrize(
    ("examples", "texts"),
    [(PAIRS, "acebdf"), ([Example(text="a")], "a")],
    ids=["pairs", "one-text"],
)
def test_each_text_of_a_pair_is_embedded_alone(tokenizer, examples, texts) -> None:
    made = features_of(TASK, tokenizer, examples, names=("input_ids",))
    assert [row["input_ids"].tolist() for row in made.encoded.inputs] == [
        tokenizer(text)["input_ids"] for text in texts
    ]
    assert (made.examples, made.notices) == (tuple(examples), ())


def test_both_texts_of_a_pair_count_as_truncated(tokenizer) -> None:
    examples = [Example(text="cat " * 9, text_pair="dog " * 9), Example(text="a", text_pair="b")]
    made = features_of(TASK, tokenizer, examples, max_length=5, names=("input_ids",))
    assert made.notices == ("2 of 4 texts were longer than 5 tokens and were cut.",)


def test_the_sentence_embedding_is_the_prediction_if_there_is_one() -> None:
    embedding = np.arange(6, dtype=np.float32).reshape(2, 3)
    outputs = {
        "last_hidden_state": np.zeros((2, 4, 3), np.float32),
        "sentence_embedding": embedding,
    }
    made = TASK.predictions(results([[1] * 4] * 2, outputs))
    assert [each.tolist() for each in made] == embedding.tolist()


def test_the_prediction_of_a_plain_encoder_is_the_mean_over_text() -> None:
    states = np.array([[[1, 2], [3, 4], [100, 100]], [[5, 6], [100, 100], [100, 100]]], np.float32)
    made = TASK.predictions(results([[1, 1, 0], [1, 0, 0]], {"last_hidden_state": states}))
    assert [each.tolist() for each in made] == [[2, 3], [5, 6]]
    assert {each.dtype for each in made} == {np.dtype(np.float32)}


def test_correlations_of_cosines_by_hand() -> None:
    # The cosines are 1, 0 and 0.6, the scores 5, 0.5 and 3.
    predictions = list(np.array([[2, 0], [1, 0], [1, 0], [1, 0], [0, 3], [3, 4]], np.float32))
    spearman, pearson = TASK.metrics(Outcome(predictions, features(PAIRS)))
    assert (spearman.name, spearman.examples) == ("spearman", 3)
    # The tolerance is that of float64.
    assert spearman.value == pytest.approx(100, abs=1e-9)
    expected = 100 * np.corrcoef([1, 0, 0.6], [5, 0.5, 3])[0, 1]
    assert pearson.value == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("text,label\na,1\n", "one text per row, .*`text_pair_column`"),
        (
            "text,text2\na,b\n",
            "known to hold labels, got columns 'text', 'text2'. Pass `label_column`",
        ),
        ("text,text2,label\na,b,1\na,b, \n", "^Line 3 of .*, column 'label': The label is blank"),
        ("text,text2,label\na,b,good\n", "^Line 2 of .*: Label 'good' is not a finite number"),
        ("text,text2,label\na,b,nan\n", "^Line 2 of .*: Label 'nan' is not a finite number"),
    ],
    ids=["no-pair", "no-score", "blank", "word", "nan"],
)
def test_data_without_scored_pairs_are_refused(write_file, content, message) -> None:
    dataset = TASK.read(str(write_file("a.csv", content)), columns=Columns(), max_examples=None)
    with pytest.raises(DataFileError, match=message):
        TASK.check_labels(dataset, {})


def test_scored_pairs_are_accepted(write_file) -> None:
    path = write_file("pairs.csv", "sentence1,sentence2,score\na,b,5\nc,d,0.5\n")
    TASK.check_labels(TASK.read(str(path), columns=Columns(), max_examples=None), {})


def test_predictions_are_embeddings_not_decisions() -> None:
    assert TASK.is_embedding
    assert TASK.decisions(Outcome([np.ones(3, np.float32)] * 6, features(PAIRS))) is None


def test_labels_are_scores_from_0_to_1() -> None:
    scores = (min(0.0, *(float(each.label) for each in PAIRS)), *(float(x.label) for x in PAIRS))
    highest = max(1.0, *scores)
    found = [each["scores"] for each in TASK.labels(features(PAIRS, count=6), {})]
    assert found == pytest.approx([(x - scores[0]) / (highest - scores[0]) for x in scores[1:]])
    assert TASK.class_names is None


@pytest.mark.parametrize(
    ("header", "texts"),
    [
        ("anchor,positive", ("a", "b")),
        ("positive,anchor", ("b", "a")),
        ("query,document,answer", ("a", "b")),
        ("question,answer", ("a", "b")),
        ("text,positive", ("a",)),
        ("Anchor,Positive,Negative", ("a", "b", "c")),
        ("anchor,positive,hard_negative", ("a", "b", "c")),
        ("anchor,positive,negative_1,negative_2", ("a", "b", "c", "d")),
        ("sentence1,sentence2,negative2,negative1", ("a", "b", "c", "d")),
        ("text,negative", ("a",)),
    ],
)
def test_texts_that_belong_together_are_found_by_their_columns(write_file, header, texts) -> None:
    columns = header.split(",")
    path = write_file("a.csv", f"{header}\n{','.join('abcd'[: len(columns)])}\n")
    (example,) = TASK.read(str(path), columns=Columns(), max_examples=None).examples
    assert example.content == texts


def test_negatives_may_be_lists_of_one_length(write_file) -> None:
    rows = [{"query": "a", "positive": "b", "negatives": [*"cd"]} for _ in range(2)]
    path = write_file("a.jsonl", "\n".join(map(json.dumps, rows)))
    dataset = TASK.read(str(path), columns=Columns(), max_examples=None)
    assert dataset.examples[1].content == ("a", "b", "c", "d")
    for odd in (["c"], ["c", ""], None, ["c", 1]):
        rows[1]["negatives"] = odd
        path.write_text("\n".join(map(json.dumps, rows)))
        with pytest.raises(DataFileError, match=r"^Line 2 of .* must have 2 texts in 'negatives'"):
            TASK.read(str(path), columns=Columns(), max_examples=None)
