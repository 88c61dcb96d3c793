from __future__ import annotations

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast, RobertaTokenizer

from qdqbert.common.errors import DataFileError
from qdqbert.data.rows.conll import TokenExample, read_sentences
from qdqbert.data.rows.data import Columns, Dataset
from qdqbert.data.tokenizing.encoding import Batch, Encoded, make_batches
from qdqbert.tasks.task import Features, Outcome
from qdqbert.tasks.token_classification import TOKEN_CLASSIFICATION as TASK
from task_features import NAMES, features_of

ID2LABEL = {0: "O", 1: "B-PER", 2: "I-PER", 3: "B-LOC", 4: "I-LOC"}
CAT = TokenExample(words=("the", "cat", "sat"), tags=("O", "B-PER", "O"))
RAIN = TokenExample(words=("rain",), tags=("B-LOC",))


def encode(examples, tokenizer, max_length: int = 64, names=NAMES) -> Features:
    return features_of(TASK, tokenizer, examples, max_length=max_length, names=names)


def features(*examples: TokenExample, places: list[list[int]] | None = None) -> Features:
    """Features in which each word is one token after [CLS], unless places are given."""
    if places is None:
        places = [list(range(1, 1 + len(example.words))) for example in examples]
    inputs = tuple({"input_ids": np.zeros(12, np.int32)} for _ in examples)
    return Features(
        examples=examples,
        encoded=Encoded(inputs=inputs, padding={"input_ids": 0}, truncated=0),
        places=tuple(np.array(each, np.int32) for each in places),
    )


def read(path) -> Dataset:
    return TASK.read(str(path), columns=Columns(), max_examples=None)


def predicting(*classes: list[int]) -> list[np.ndarray]:
    return [np.eye(len(ID2LABEL), dtype=np.float32)[each] for each in classes]


def values(predictions, made: Features, id2label=None) -> dict[str, float]:
    metrics = TASK.metrics(Outcome(predictions, made, ID2LABEL if id2label is None else id2label))
    assert {metric.examples for metric in metrics} == {len(made.examples)}
    return {metric.name: metric.value for metric in metrics}


def test_the_place_of_a_word_is_its_first_token(tokenizer) -> None:
    # "xyz" makes three tokens: x, ##y, ##z.
    made = encode([TokenExample(words=("the", "xyz", "cat."))], tokenizer)
    (inputs,), (places,) = made.encoded.inputs, made.places
    tokens = tokenizer.convert_ids_to_tokens(inputs["input_ids"])
    assert tokens == ["[CLS]", "the", "x", "##y", "##z", "cat", ".", "[SEP]"]
    assert places.dtype == np.int32
    assert places.tolist() == [1, 2, 5]
    assert set(inputs) == set(made.encoded.padding) == set(NAMES)
    assert made.notices == ()


def test_words_of_plain_text_are_tokenized_as_the_text(tokenizer) -> None:
    examples = [TokenExample(words=("the", "cat") * (1 + index % 5)) for index in range(70)]
    made = encode(examples, tokenizer, names=("input_ids",))
    for inputs, example in zip(made.encoded.inputs, examples, strict=True):
        assert inputs["input_ids"].tolist() == tokenizer(*example.content)["input_ids"]


@pytest.mark.parametrize("nothing", ["", " ", "\u200b", "\x00"])
def test_words_without_tokens_do_not_shift_later_ones(tokenizer, nothing) -> None:
    made = encode([TokenExample(words=(nothing, "the", nothing, nothing, "cat"))], tokenizer)
    assert made.places[0].tolist() == [-1, 1, -1, -1, 2]
    # They do not count as beyond the end.
    assert made.notices == ()


def test_words_beyond_the_end_are_counted(tokenizer) -> None:
    # Two of the four tokens are special. A part of "xyz" fits: its first token.
    examples = [
        TokenExample(words=("the", "cat", "sat", "", "on")),
        TokenExample(words=("the", "xyz")),
        TokenExample(words=("xyz", "the")),
        TokenExample(words=("rain",)),
    ]
    made = encode(examples, tokenizer, max_length=4)
    assert [places.tolist() for places in made.places] == [[1, 2, -1, -1, -1], [1, 2], [1, -1], [1]]
    assert made.encoded.truncated == 3
    assert made.encoded.lengths == [4, 4, 4, 3]
    assert made.notices == (
        "3 of 10 words are beyond the first 4 tokens: tag O is predicted there.",
    )


@pytest.mark.parametrize("has_own_class", [True, False])
def test_byte_level_tokenizers_get_a_space_before_each_word(has_own_class) -> None:
    vocab = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<mask>": 4, "a": 5, "\u0120": 6}
    plain = RobertaTokenizer(vocab=vocab | {"\u0120a": 7}, merges=[("\u0120", "a")])
    if not has_own_class:
        plain = PreTrainedTokenizerFast(tokenizer_object=plain.backend_tokenizer)
    made = encode([TokenExample(words=("a", "a"))], plain, names=("input_ids",))
    assert made.encoded.inputs[0]["input_ids"].tolist() == [0, 7, 7, 2]
    assert made.places[0].tolist() == [1, 2]
    # The caller's tokenizer is unchanged.
    assert plain("aa")["input_ids"] == [0, 5, 5, 2]


def test_predictions_are_the_logits_of_first_tokens(tokenizer) -> None:
    examples = [RAIN, TokenExample(words=("xyz", "", "cat", "sat", "on"))]
    made = encode(examples, tokenizer, max_length=6)
    (batch,) = make_batches(made.encoded, batch_size=2)
    assert batch.indices == (1, 0)
    logits = np.arange(2 * 6 * 5, dtype=np.float32).reshape(2, 6, 5)
    long, short = TASK.predictions(made.results(batch, {"logits": logits}))
    assert short.tolist() == [logits[1, 1].tolist()]
    zeros = [0.0] * 5
    assert long.tolist() == [logits[0, 1].tolist(), zeros, logits[0, 4].tolist(), zeros, zeros]
    assert {long.dtype, short.dtype} == {np.dtype(np.float32)}


def test_predictions_of_a_later_batch_use_its_own_places() -> None:
    made = features(CAT, RAIN)
    logits = np.arange(40, dtype=np.float32).reshape(1, 8, 5)
    (prediction,) = TASK.predictions(
        made.results(Batch(indices=(1,), inputs={}), {"logits": logits})
    )
    assert prediction.tolist() == [logits[0, 1].tolist()]


def test_decisions_leave_out_words_without_a_token() -> None:
    made = features(CAT, RAIN, places=[[1, -1, 2], [1]])
    assert TASK.decisions(Outcome(predicting([0, 4, 2], [3]), made)) == [(0, 2), (3,)]


def test_entities_are_those_that_tags_mark() -> None:
    made = features(CAT, RAIN)
    found = TASK.entities(Outcome(predicting([0, 1, 2], [3]), made, ID2LABEL))
    assert found == [{("PER", 1, 2)}, {("LOC", 0, 0)}]
    # Parts of speech mark none.
    names = {index: str(index) for index in ID2LABEL}
    assert TASK.entities(Outcome(predicting([0, 1, 2], [3]), made, names)) is None


def test_entities_are_scored_by_hand() -> None:
    examples = [
        TokenExample(words=("a",) * 4, tags=("B-PER", "I-PER", "O", "B-LOC")),
        TokenExample(words=("a",) * 2, tags=("B-LOC", "O")),
    ]
    # The person is found, the first location is cut off, and the second one is too long.
    made = features(*examples, places=[[1, 2, 3, -1], [1, 2]])
    found = values(predicting([1, 2, 0, 3], [3, 4]), made)
    assert list(found) == ["f1", "precision", "recall", "accuracy"]
    assert found["precision"] == 50
    assert found["recall"] == pytest.approx(100 / 3)
    assert found["f1"] == pytest.approx(40)
    assert found["accuracy"] == pytest.approx(100 * 4 / 6)


@pytest.mark.parametrize(
    "tags", [("o", "b-per", "O"), ("0", "1", "0")], ids=["any-case", "numbers"]
)
def test_tags_may_be_in_any_case_or_numbers(tags) -> None:
    made = features(TokenExample(words=CAT.words, tags=tags))
    assert values(predicting([0, 1, 0]), made)["f1"] == 100
    assert TASK.labels(made, ID2LABEL)[0]["labels"].tolist()[:5] == [-100, 0, 1, 0, -100]


def test_the_name_of_a_tag_comes_before_its_number_and_case() -> None:
    made = features(TokenExample(words=("a", "b", "c"), tags=("1", "x", "X")))
    (labels,) = TASK.labels(made, {0: "1", 1: "X", 2: "x"})
    assert labels["labels"].tolist()[1:4] == [0, 2, 1]


def test_parts_of_speech_are_scored_by_accuracy_only() -> None:
    made = features(TokenExample(words=("the", "cat"), tags=("DET", "NOUN")))
    id2label = {0: "DET", 1: "NOUN", 2: "VERB", 3: "X", 4: "SYM"}
    assert values(predicting([0, 2]), made, id2label) == {"accuracy": 50}


def test_bare_letters_are_tags_of_entities() -> None:
    made = features(TokenExample(words=("the", "cat"), tags=("O", "B")))
    assert values(predicting([0, 1]), made, {0: "O", 1: "B", 2: "I", 3: "E", 4: "S"})["f1"] == 100


def test_labels_are_at_first_tokens_only(tokenizer) -> None:
    example = TokenExample(words=("xyz", "", "cat", "sat"), tags=("B-PER", "O", "I-PER", "B-LOC"))
    made = encode([example], tokenizer, max_length=6)
    (labels,) = TASK.labels(made, ID2LABEL)
    assert set(labels) == {"labels"}
    assert labels["labels"].dtype == np.int64
    assert labels["labels"].tolist() == [-100, 1, -100, -100, 2, -100]


def test_an_unknown_tag_is_reported_with_its_line_and_the_classes(write_file) -> None:
    dataset = read(write_file("a.conll", "the\tO\n\na\tO\nb\tB-ORG\n"))
    message = (
        "^Line 3 of .*: Tag 'B-ORG' is not one of the model's: 0 or 'O', 1 or 'B-PER', 2 or 'I-PE"
    )
    with pytest.raises(DataFileError, match=message):
        TASK.check_labels(dataset, ID2LABEL)
    TASK.check_labels(read(write_file("b.conll", "the\tO\ncat\tb-per\n")), ID2LABEL)


def test_data_without_tags_are_refused(write_file) -> None:
    dataset = read(write_file("a.conll", "the\ncat\n"))
    for check in (TASK.class_names, lambda each: TASK.check_labels(each, ID2LABEL)):
        with pytest.raises(DataFileError, match=r"^Line 1 of .*: The sentence has no tags"):
            check(dataset)


@pytest.mark.parametrize(
    ("tags", "names"),
    [
        (("O", "I-PER", "B-PER", "O"), ["B-PER", "I-PER", "O"]),
        (("10", "2", "0"), ["0", "2", "10"]),
    ],
    ids=["names", "numbers-by-value"],
)
def test_the_classes_of_a_new_head_are_all_tags_sorted(tags, names) -> None:
    example = TokenExample(words=("a",) * len(tags), tags=tags)
    dataset = Dataset(path="a.conll", examples=(example,), columns=Columns(), notices=())
    assert TASK.class_names(dataset) == names


def test_the_task_reads_sentences() -> None:
    assert TASK.read is read_sentences


def test_numbers_of_tags_are_replaced_by_names(write_file) -> None:
    dataset = read(write_file("a.conll", "the\t0\ncat\t1\n"))
    named = TASK.read_labels(dataset, {0: "O", 1: "B-PER"})
    assert named.examples[0].tags == ("O", "B-PER")
    assert named.notices == (
        "Tags are read as the numbers of classes: '0' is 'O', '1' is 'B-PER'.",
    )
