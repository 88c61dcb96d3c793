"""Data of a training run: what is read, tokenized and calibrated on."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import transformers

import flat
from qdqbert.common.errors import DataFileError, UserInputError
from qdqbert.common.progress import Silent
from qdqbert.data.rows.data import fingerprint
from qdqbert.encoders.checkpoint.load import Checkpoint, load_checkpoint
from qdqbert.tasks.registry import TASKS, task_for
from qdqbert.verbs.train.data import (
    TrainingData,
    calibration_sample,
    choose_task,
    encode_data,
    new_classes,
    read_examples,
)
from qdqbert.verbs.train.options import TrainOptions

CLASSIFICATION = TASKS["text-classification"]
EMBEDDING = TASKS["feature-extraction"]
TEXTS = ("the cat", "a dog in the rain", "night", "home on the river", "music was in", "a river")
TEXTS += ("the dog", "rain on a home", "the night", "bread and paper")
IDENTITY = {"activation_fn": "torch.nn.modules.linear.Identity", "version": "5.0.0"}
SENTIMENT = {"id2label": {0: "bad", 1: "good"}, "label2id": {"bad": 0, "good": 1}}


def labeled(*texts: str) -> str:
    rows = [f"{text}\t{('bad', 'good')[index % 2]}" for index, text in enumerate(texts)]
    return "\n".join(["text\tlabel", *rows])


@pytest.fixture
def options(write_file) -> Callable[..., TrainOptions]:
    """Options with training data, ten texts in two classes, and changes."""
    train = write_file("train.tsv", labeled(*TEXTS))

    def make(**changes: Any) -> TrainOptions:
        return flat.make(
            TrainOptions, **{"model": "m", "output": "o", "train_data": train, **changes}
        )

    return make


@pytest.fixture(scope="module")
def load(save_tiny, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Checkpoint]:
    """Loads tiny checkpoints with a head of transformers' name."""
    root = tmp_path_factory.mktemp("heads")
    made: dict[str, Checkpoint] = {}

    def make(head: str = "") -> Checkpoint:
        if head not in made:
            auto_class = getattr(transformers, f"AutoModel{head and 'For'}{head}")
            changes = SENTIMENT if head == "SequenceClassification" else {}
            folder = save_tiny(
                root / f"bert-{head}", "bert", auto_class, num_hidden_layers=1, **changes
            )
            made[head] = load_checkpoint(str(folder))
        return made[head]

    return make


@pytest.fixture
def encoded(load) -> Callable[..., TrainingData]:
    def make(options: TrainOptions, head: str = "SequenceClassification") -> TrainingData:
        checkpoint = load(head)
        task = TASKS[checkpoint.task]
        examples = read_examples(task, options, progress=Silent())
        return encode_data(task, checkpoint, examples, options, trained={}, progress=Silent())

    return make


def test_the_task_is_the_requested_one_or_that_of_the_head(options, load) -> None:
    folder = load("SequenceClassification").name
    assert choose_task(options(model=folder, task="fill-mask")) is TASKS["fill-mask"]
    assert choose_task(options(model=folder)) is CLASSIFICATION
    assert choose_task(options(model=folder, task="feature-extraction")) is EMBEDDING


def test_a_checkpoint_without_a_head_requires_a_task(options, load) -> None:
    with pytest.raises(UserInputError, match=r"has no head.* Pass .*task`, one of: entity-ex"):
        choose_task(options(model=load().name))


def test_the_task_of_an_embedder_is_that_of_its_modules(options, checkpoints) -> None:
    assert choose_task(options(model=str(checkpoints("sentence")))) is EMBEDDING


def test_a_new_head_has_the_classes_of_the_teacher_or_of_the_data(options, load) -> None:
    requested = options(model=load().name)
    data = read_examples(CLASSIFICATION, requested, progress=Silent()).train
    assert new_classes(CLASSIFICATION, data, requested, None) == ["bad", "good"]
    teacher = load("TokenClassification")
    assert new_classes(CLASSIFICATION, data, requested, teacher) == ["LABEL_0", "LABEL_1"]
    assert new_classes(EMBEDDING, data, requested, None) == []


def test_a_head_that_is_there_gets_no_classes_from_the_data(options, load, write_file) -> None:
    # One class would be refused, and a missing value be no class.
    requested = options(
        model=load("SequenceClassification").name,
        train_data=write_file("one.csv", "text,label\nthe cat,none\nrain,none\n"),
    )
    data = read_examples(CLASSIFICATION, requested, progress=Silent()).train
    assert new_classes(CLASSIFICATION, data, requested, None) == []


def test_evaluation_data_that_equal_the_training_data_are_refused(options) -> None:
    requested = options(eval_data=options().train_data)
    with pytest.raises(UserInputError, match=r"All examples of .*eval.data.*10.* in .*train.data"):
        read_examples(CLASSIFICATION, requested, progress=Silent())


def test_shared_examples_are_reported_and_not_calibrated_on(options, write_file, encoded) -> None:
    # Spacing and case do not make a different example.
    shared = [text.upper().replace(" ", "  ") for text in TEXTS[:6]]
    dev = write_file("dev.tsv", labeled(*shared, "paper", "bread"))
    requested = options(eval_data=dev, calibration_samples=100)
    examples = read_examples(CLASSIFICATION, requested, progress=Silent())
    assert any("6 of 8 evaluation examples" in notice for notice in examples.notices)
    features = encoded(requested).features
    sample = calibration_sample(CLASSIFICATION, features, requested, excluded=examples.evaluated)
    allowed = sorted(fingerprint(example) for example in examples.train.examples[6:])
    assert sample.fingerprints == allowed
    assert sum(len(batch["input_ids"]) for batch in sample.batches) == 4


def test_notices_name_the_data_that_they_are_about(options, write_file, encoded) -> None:
    dev = write_file("dev.tsv", labeled("bread " * 9, "paper"))
    data = encoded(options(eval_data=dev, max_length=6))
    truncated = [each.lower() for each in data.notices if "longer than" in each]
    assert [each.partition(":")[0].split()[-2:] for each in truncated] == [
        ["training", "data"],
        ["evaluation", "data"],
    ]
    assert (data.max_length, max(data.rows.lengths)) == (6, 6)


def test_how_labels_are_read_is_said_of_both_data(options, write_file, encoded) -> None:
    held = write_file("dev.tsv", "text\tlabel\na book\t1\na house\t0.0\n")
    numbers = labeled(*TEXTS).replace("\tbad", "\t0").replace("\tgood", "\t1")
    data = encoded(options(train_data=write_file("n.tsv", numbers), eval_data=held))
    read = "data: Labels are read as the numbers of classes:"
    assert [read in each for each in data.notices] == [True, True]
    assert data.rows[1]["labels"] == {"labels": 1}


def test_a_class_without_examples_is_reported(options, write_file, encoded) -> None:
    data = write_file("good.tsv", "text\tlabel\nthe cat\tgood\na dog\tgood")
    notices = encoded(options(train_data=data)).notices
    assert any("no example of 1 of the model's 2 classes, among them 'bad'" in x for x in notices)
    assert encoded(options()).notices == ()


@pytest.mark.parametrize("which", ["train_data", "eval_data"])
def test_an_unknown_label_is_refused(options, write_file, encoded, which) -> None:
    data = write_file("odd.tsv", "text\tlabel\npaper\tfine\nbread\tgood")
    with pytest.raises(DataFileError, match=r"Label 'fine' is not one of the model's"):
        encoded(options(**{which: data}))


def test_the_number_of_examples_can_be_limited(options, write_file) -> None:
    dev = write_file("dev.tsv", labeled("paper", "bread", "music"))
    requested = options(eval_data=dev, max_train_examples=4, max_eval_examples=2)
    examples = read_examples(CLASSIFICATION, requested, progress=Silent())
    assert (len(examples.train), len(examples.held)) == (4, 2)


def test_an_embedder_needs_pairs_unless_it_only_follows_a_teacher(options, encoded) -> None:
    with pytest.raises(DataFileError, match="pair"):
        encoded(options(), "")
    assert len(encoded(options(distill_from="a teacher"), "").rows) == 10


@pytest.mark.parametrize(
    ("scores", "expected"),
    [((0, 0.5, 1), (0, 0.5, 1)), ((0, 2.5, 5), (0, 0.5, 1)), ((-1, 0, 1), (0, 0.5, 1))],
    ids=["unit", "five", "signed"],
)
def test_scores_of_pairs_are_scaled_to_0_to_1(
    options, write_file, encoded, scores, expected
) -> None:
    rows = [f"{TEXTS[i]}\t{TEXTS[i + 1]}\t{score}" for i, score in enumerate(scores)]
    data = write_file("pairs.tsv", "\n".join(["sentence1\tsentence2\tlabel", *rows]))
    made = encoded(options(train_data=data), "").rows
    assert [made[index]["labels"]["scores"] for index in range(3)] == list(expected)


@pytest.mark.parametrize(
    ("header", "cells", "texts"),
    [
        ("anchor,positive", "the cat,a cat", 2),
        ("query,answer", "who,the cat", 2),
        ("sentence1,sentence2", "the cat,a cat", 2),
        ("anchor,positive,negative", "the cat,a cat,rain", 3),
        ("query,positive,negative_1,negative_2,score", "the cat,a cat,rain,night,0.5", 4),
    ],
)
def test_pairs_without_scores_are_learned_in_batches(
    options, write_file, encoded, header, cells, texts
) -> None:
    data = write_file("pairs.csv", "\n".join([header, cells, f"a {cells}", cells]))
    made = encoded(options(train_data=data), "")
    assert (made.objective, made.rows.texts, len(made.rows)) == ("in-batch", texts, 3)
    assert made.rows[0]["labels"] == {}
    about = [
        "Trained on pairs",
        *(["The scores in column 'score' are not used"] if "score" in header else []),
        "3 of 3 pairs have the second text",
    ]
    assert [any(each in notice for notice in made.notices) for each in about] == [True] * len(about)


def test_a_batch_needs_a_wrong_answer(options, write_file, encoded) -> None:
    rows = ["anchor,positive,negative", "the cat,a cat,rain", "night,a night,the cat"]
    with_negatives = options(train_data=write_file("3.csv", "\n".join(rows)), batch_size=1)
    assert encoded(with_negatives, "").rows.texts == 3
    rows = [",".join(row.split(",")[:2]) for row in rows]
    pairs = write_file("2.csv", "\n".join(rows))
    with pytest.raises(UserInputError, match="second texts of the other pairs") as caught:
        encoded(options(train_data=pairs, batch_size=1), "")
    assert caught.value.argument == "batch_size"


@pytest.mark.parametrize(
    ("task", "changes", "scores", "objective", "expected"),
    [
        ("reranking", {}, (0, 1, 1), "relevance", (0, 1, 1)),
        ("reranking", {}, (0, 0.5, 1), "relevance", (0, 0.5, 1)),
        ("reranking", {}, (0, 2, 4), "relevance", (0, 0.5, 1)),
        ("reranking", {"sentence_transformers": IDENTITY}, (0, 1, 1), "relevance", (0, 1, 1)),
        ("reranking", {"sentence_transformers": IDENTITY}, (0, 2, 4), "labels", (0, 2, 4)),
        ("reranking", {"problem_type": "regression"}, (0, 1, 1), "labels", (0, 1, 1)),
        ("text-classification", {}, (0, 1, 1), "relevance", (0, 1, 1)),
        ("text-classification", {}, (0, 2, 4), "labels", (0, 2, 4)),
        ("text-classification", {"problem_type": "regression"}, (0, 1, 1), "labels", (0, 1, 1)),
    ],
)
def test_a_model_with_one_output_learns_probabilities_or_numbers(
    options, write_file, save_tiny, tmp_path, task, changes, scores, objective, expected
) -> None:
    head = transformers.AutoModelForSequenceClassification
    folder = save_tiny(tmp_path / "m", "bert", head, num_labels=1, num_hidden_layers=1, **changes)
    rows = [f"{TEXTS[i]}\t{TEXTS[i + 1]}\t{score}" for i, score in enumerate(scores)]
    data = write_file("pairs.tsv", "\n".join(["query\tdocument\tlabel", *rows]))
    checkpoint, requested = load_checkpoint(str(folder), task=task), options(train_data=data)
    chosen = task_for(task, checkpoint.config)
    examples = read_examples(chosen, requested, progress=Silent())
    made = encode_data(chosen, checkpoint, examples, requested, trained={}, progress=Silent())
    name = "labels" if objective == "labels" else "scores"
    assert made.objective == objective
    assert [made.rows[index]["labels"] for index in range(3)] == [{name: each} for each in expected]
    is_scaled = objective == "relevance" and max(scores) > 1
    assert any("scaled to 0 to 1" in notice for notice in made.notices) == is_scaled


def test_labels_are_needed_if_the_teacher_is_only_a_part_of_the_loss(
    options, write_file, encoded
) -> None:
    plain = write_file("texts.txt", "\n".join(TEXTS))
    requested = {"train_data": plain, "distill_from": "a teacher"}
    with pytest.raises(DataFileError, match="label"):
        encoded(options(**requested, distill_alpha=0.5))
    rows = encoded(options(**requested)).rows
    assert [rows[index]["labels"] for index in range(10)] == [{}] * 10


@pytest.mark.parametrize("head", ["", "NextSentencePrediction"])
def test_data_with_one_label_are_refused_unless_it_is_a_class_of_several(
    options, write_file, encoded, head
) -> None:
    rows = [f"{text}\tthe cat\t1" for text in TEXTS]
    same = write_file("same.tsv", "\n".join(["sentence1\tsentence2\tlabel", *rows]))
    with pytest.raises(DataFileError, match="column 'label' are '1', from which nothing") as caught:
        encoded(options(train_data=same), head)
    assert caught.value.argument == "label_column"


def questions(texts: list[str]) -> str:
    rows = [
        {
            "id": str(index),
            "question": "who was it",
            "context": text,
            "answers": {
                "text": ["cat"],
                "answer_start": [text.find("cat") if "cat" in text else 0],
            },
        }
        for index, text in enumerate(texts)
    ]
    return "\n".join(map(json.dumps, rows))


def test_questions_without_an_answer_in_the_context_are_counted_and_left_out(
    options, write_file, encoded
) -> None:
    data = write_file("squad.jsonl", questions(["a dog"] * 4 + ["the cat was here"] * 12))
    requested = options(train_data=data, doc_stride=16)
    examples = read_examples(TASKS["question-answering"], requested, progress=Silent())
    (notice,) = examples.notices
    assert notice.startswith("In 4 of 16 questions")
    assert len(encoded(requested, "QuestionAnswering").rows) == 12


def test_a_sample_has_all_features_of_its_examples(options, write_file, encoded) -> None:
    long = "the cat was here " + "and a dog in the rain " * 6
    data = write_file("squad.jsonl", questions([long, "the cat", long]))
    requested = options(train_data=data, max_length=24, doc_stride=4, batch_size=50)
    made = encoded(requested, "QuestionAnswering")
    task = TASKS["question-answering"]
    (batch,) = calibration_sample(task, made.features, requested).batches
    assert len(batch["input_ids"]) == len(made.features.places) > 3


def test_texts_without_a_feature_are_not_calibrated_on(options, write_file, encoded) -> None:
    # The vocabulary has no word of the first text, so no token can be masked.
    data = write_file("texts.txt", "\n".join(["中 文", *TEXTS]))
    requested = options(train_data=data, calibration_samples=100)
    made = encoded(requested, "MaskedLM")
    sample = calibration_sample(TASKS["fill-mask"], made.features, requested)
    assert len(sample.fingerprints) == 10
    assert sum(len(batch["input_ids"]) for batch in sample.batches) == 10


def test_the_sample_depends_on_the_seed(options, encoded) -> None:
    features = encoded(options()).features
    drawn = [
        calibration_sample(
            CLASSIFICATION, features, options(calibration_samples=4, seed=seed)
        ).fingerprints
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(drawn[0]) == 4


def test_processes_share_the_batches(options, encoded) -> None:
    requested = options(batch_size=2, calibration_samples=9)
    features = encoded(requested).features

    def ids(**share: int) -> list[Any]:
        sample = calibration_sample(CLASSIFICATION, features, requested, **share)
        assert len(sample.fingerprints) == 9
        return [batch["input_ids"].numpy() for batch in sample.batches]

    whole = ids()
    first, second = (ids(processes=2, process=process) for process in (0, 1))
    assert (len(whole), len(first), len(second)) == (5, 3, 2)
    for ours, theirs in zip([*first, *second], [*whole[::2], *whole[1::2]], strict=True):
        np.testing.assert_array_equal(ours, theirs)
    with pytest.raises(UserInputError, match="make 5 batches for 6 processes"):
        ids(processes=6)


def test_a_sample_without_examples_is_refused(options, write_file, encoded) -> None:
    dev = write_file("dev.tsv", labeled(*TEXTS, "one more"))
    requested = options(eval_data=dev)
    evaluated = read_examples(CLASSIFICATION, requested, progress=Silent()).evaluated
    with pytest.raises(
        UserInputError, match="`train_data` are also in `eval_data`, so none is left"
    ):
        calibration_sample(
            CLASSIFICATION, encoded(requested).features, requested, excluded=evaluated
        )
