from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import transformers

from qdqbert.checkpoint.load import Checkpoint, load_checkpoint
from qdqbert.errors import CheckpointError, DataFileError, UserInputError
from qdqbert.progress import Silent
from qdqbert.tasks import TASKS
from qdqbert.tasks.data import Columns, fingerprint
from qdqbert.tasks.task import TaskOptions
from qdqbert.training.distillation import Distillation
from qdqbert.verbs.training_data import (
    TrainingData,
    calibration_sample,
    choose_task,
    encode_data,
    new_classes,
    read_examples,
)
from qdqbert.verbs.training_options import TrainOptions

CLASSIFICATION = TASKS["text-classification"]
EMBEDDING = TASKS["feature-extraction"]
TEXTS = ("the cat", "a dog in the rain", "night", "home on the river", "music was in", "a river")
TEXTS += ("the dog", "rain on a home", "the night", "bread and paper")
SENTIMENT = {"id2label": {0: "bad", 1: "good"}, "label2id": {"bad": 0, "good": 1}}


def labelled(*texts: str) -> str:
    rows = [f"{text}\t{('bad', 'good')[index % 2]}" for index, text in enumerate(texts)]
    return "\n".join(["text\tlabel", *rows])


@pytest.fixture
def options(write_file) -> Callable[..., TrainOptions]:
    """Options with training data, ten texts in two classes, and changes."""
    train = write_file("train.tsv", labelled(*TEXTS))

    def make(**changes: Any) -> TrainOptions:
        return TrainOptions(**{"model": "m", "output": "o", "train_data": train, **changes})

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
        return encode_data(task, checkpoint, examples, options, progress=Silent())

    return make


# What it is for


def test_the_task_is_the_one_asked_for_or_that_of_the_head(options, load) -> None:
    assert choose_task(options(task="fill-mask")) is TASKS["fill-mask"]
    folder = load("SequenceClassification").name
    assert choose_task(options(model=folder)) is CLASSIFICATION
    assert choose_task(options(model=folder, task="feature-extraction")) is EMBEDDING


def test_a_checkpoint_without_a_head_asks_for_the_task(options, load) -> None:
    with pytest.raises(UserInputError, match=r"has no head.* Pass `task`, one of: feature-ex"):
        choose_task(options(model=load().name))
    with pytest.raises(
        UserInputError, match=r"`task='sentiment'` is unknown. Known tasks: feature-ex"
    ):
        choose_task(options(model=load().name, task="sentiment"))


def test_a_folder_that_is_not_there_is_said_before_a_task_is_asked_for(options) -> None:
    with pytest.raises(CheckpointError, match=r"folder './no-such-model' does not exist"):
        choose_task(options(model="./no-such-model"))


def test_classes_of_a_new_head_are_the_teachers_or_those_of_the_data(options, load) -> None:
    data = read_examples(CLASSIFICATION, options(), progress=Silent()).train
    assert new_classes(CLASSIFICATION, data, None) == ["bad", "good"]
    assert new_classes(CLASSIFICATION, data, load("TokenClassification")) == ["LABEL_0", "LABEL_1"]
    assert new_classes(EMBEDDING, data, None) == []


# Data that overlap, and data that cannot be read


def test_evaluation_data_that_are_the_training_data_are_refused(options) -> None:
    asked = options(eval_data=options().train_data)
    with pytest.raises(
        UserInputError, match=r"All examples of `eval_data=.*` \(10\) are also in `train_"
    ):
        read_examples(CLASSIFICATION, asked, progress=Silent())


def test_shared_examples_are_told_and_never_calibrated_on(options, write_file, encoded) -> None:
    # Spacing and case do not make another example.
    shared = [text.upper().replace(" ", "  ") for text in TEXTS[:6]]
    dev = write_file("dev.tsv", labelled(*shared, "paper", "bread"))
    asked = options(eval_data=dev, calibration_samples=100)
    examples = read_examples(CLASSIFICATION, asked, progress=Silent())
    assert (
        "6 of 8 evaluation examples are also in the training data: the metrics are inflated."
        in examples.notices
    )
    features = encoded(asked).features
    sample = calibration_sample(CLASSIFICATION, features, examples.held, asked)
    allowed = sorted(fingerprint(example) for example in examples.train.examples[6:])
    assert sample.fingerprints == allowed
    assert sum(len(batch["input_ids"]) for batch in sample.batches) == 4


def test_notices_say_which_data_they_are_of(options, write_file, encoded) -> None:
    dev = write_file("dev.tsv", labelled("bread " * 9, "paper"))
    data = encoded(options(eval_data=dev, max_length=6))
    cut = [each for each in data.notices if "longer than" in each]
    assert [each.split(":")[0] for each in cut] == [
        "Training data",
        "Evaluation data",
    ]
    assert (data.max_length, max(data.rows.lengths)) == (6, 6)


def test_a_class_without_examples_is_told(options, write_file, encoded) -> None:
    data = write_file("good.tsv", "text\tlabel\nthe cat\tgood\na dog\tgood")
    assert encoded(options(train_data=data)).notices == (
        "The training data have no example of 1 of the model's 2 classes, among them 'bad': the "
        "model will unlearn them.",
    )
    assert encoded(options()).notices == ()


@pytest.mark.parametrize("which", ["train_data", "eval_data"])
def test_an_unknown_label_is_refused(options, write_file, encoded, which) -> None:
    data = write_file("odd.tsv", "text\tlabel\npaper\tfine\nbread\tgood")
    with pytest.raises(DataFileError, match=r"Label 'fine' is not one of the model's: 0 or 'bad'"):
        encoded(options(**{which: data}))


def test_a_column_that_is_not_there_is_refused(options) -> None:
    asked = options(columns=Columns(label="stars"))
    with pytest.raises(DataFileError, match="`label_column='stars'` must be a column"):
        read_examples(CLASSIFICATION, asked, progress=Silent())


def test_evaluation_data_with_other_columns_are_refused(options, write_file, encoded) -> None:
    data = write_file("dev.tsv", "sentence\tmood\npaper\tgood")
    with pytest.raises(DataFileError, match="label"):
        encoded(options(eval_data=data))


def test_no_more_are_read_than_asked_for(options, write_file) -> None:
    dev = write_file("dev.tsv", labelled("paper", "bread", "music"))
    asked = options(eval_data=dev, max_train_examples=4, max_eval_examples=2)
    examples = read_examples(CLASSIFICATION, asked, progress=Silent())
    assert (len(examples.train), len(examples.held)) == (4, 2)


# Labels


def test_an_embedder_without_a_teacher_needs_pairs(options, encoded) -> None:
    with pytest.raises(
        DataFileError, match="have one text per row; embeddings are scored on pairs"
    ):
        encoded(options(), "")
    # Nor does it need them where the teacher is all that it follows.
    assert len(encoded(options(distill_from="a teacher"), "").rows) == 10


@pytest.mark.parametrize(
    ("scores", "expected"),
    [((0, 0.5, 1), (0, 0.5, 1)), ((0, 2.5, 5), (0, 0.5, 1)), ((-1, 0, 1), (0, 0.5, 1))],
    ids=["unit", "five", "signed"],
)
def test_scores_of_pairs_become_shares(options, write_file, encoded, scores, expected) -> None:
    rows = [f"{TEXTS[i]}\t{TEXTS[i + 1]}\t{score}" for i, score in enumerate(scores)]
    data = write_file("pairs.tsv", "\n".join(["sentence1\tsentence2\tlabel", *rows]))
    made = encoded(options(train_data=data), "").rows
    assert [made[index]["labels"]["scores"] for index in range(3)] == list(expected)


def test_labels_are_needed_where_the_teacher_is_a_part_of_the_loss_only(
    options, write_file, encoded
) -> None:
    plain = write_file("texts.txt", "\n".join(TEXTS))
    asked = {"train_data": plain, "distill_from": "a teacher"}
    with pytest.raises(DataFileError, match="have no column of labels"):
        encoded(options(**asked, distillation=Distillation(alpha=0.5)))
    rows = encoded(options(**asked)).rows
    assert [rows[index]["labels"] for index in range(10)] == [{}] * 10


# What ranges are taken from


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


def test_questions_whose_answer_is_not_in_the_context_are_counted_and_left_out(
    options, write_file, encoded
) -> None:
    data = write_file("squad.jsonl", questions(["a dog"] * 4 + ["the cat was here"] * 12))
    asked = options(train_data=data, task_options=TaskOptions(doc_stride=16))
    examples = read_examples(TASKS["question-answering"], asked, progress=Silent())
    assert examples.notices == (
        "In 4 of 16 questions an answer is not in the context. Questions without another answer, "
        "which training leaves out: 4.",
    )
    assert len(encoded(asked, "QuestionAnswering").rows) == 12


def test_a_sample_has_all_rows_of_its_examples(options, write_file, encoded) -> None:
    long = "the cat was here " + "and a dog in the rain " * 6
    data = write_file("squad.jsonl", questions([long, "the cat", long]))
    asked = options(
        train_data=data, max_length=24, task_options=TaskOptions(doc_stride=4), batch_size=50
    )
    made = encoded(asked, "QuestionAnswering")
    task = TASKS["question-answering"]
    (batch,) = calibration_sample(task, made.features, None, asked).batches
    assert len(batch["input_ids"]) == len(made.features.encoded.inputs) > 3


def test_texts_that_make_no_row_are_not_calibrated_on(options, write_file, encoded) -> None:
    # Nothing of the first is in the vocabulary, so that there is nothing to guess.
    data = write_file("texts.txt", "\n".join(["中 文", *TEXTS]))
    asked = options(train_data=data, calibration_samples=100)
    made = encoded(asked, "MaskedLM")
    sample = calibration_sample(TASKS["fill-mask"], made.features, None, asked)
    assert len(sample.fingerprints) == 10
    assert sum(len(batch["input_ids"]) for batch in sample.batches) == 10


def test_the_seed_draws_the_sample(options, encoded) -> None:
    features = encoded(options()).features
    drawn = [
        calibration_sample(
            CLASSIFICATION, features, None, options(calibration_samples=4, seed=seed)
        ).fingerprints
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(drawn[0]) == 4


def test_processes_share_the_batches(options, encoded) -> None:
    asked = options(batch_size=2, calibration_samples=9)
    features = encoded(asked).features

    def ids(**share: int) -> list[Any]:
        sample = calibration_sample(CLASSIFICATION, features, None, asked, **share)
        assert len(sample.fingerprints) == 9
        return [batch["input_ids"].numpy() for batch in sample.batches]

    whole = ids()
    first, second = (ids(processes=2, process=process) for process in (0, 1))
    assert (len(whole), len(first), len(second)) == (5, 3, 2)
    for ours, theirs in zip([*first, *second], [*whole[::2], *whole[1::2]], strict=True):
        np.testing.assert_array_equal(ours, theirs)
    with pytest.raises(UserInputError, match="The 9 calibration samples make 5 batches for 6 proc"):
        ids(processes=6)


def test_a_sample_of_nothing_is_refused(options, write_file, encoded) -> None:
    dev = write_file("dev.tsv", labelled(*TEXTS, "one more"))
    asked = options(eval_data=dev)
    held = read_examples(CLASSIFICATION, asked, progress=Silent()).held
    with pytest.raises(
        UserInputError, match="All training examples are in the evaluation data, so none"
    ):
        calibration_sample(CLASSIFICATION, encoded(asked).features, held, asked)


def test_stages_are_shown(options, load, write_file) -> None:
    shown: list[str] = []

    class Recorder(Silent):
        def stage(self, title: str, total: int | None = None) -> Any:
            shown.append(title)
            return super().stage(title, total)

    asked = options(eval_data=write_file("dev.tsv", labelled("paper")))
    examples = read_examples(CLASSIFICATION, asked, progress=Recorder())
    encode_data(
        CLASSIFICATION, load("SequenceClassification"), examples, asked, progress=Recorder()
    )
    assert shown == [
        "Reading the data",
        "Tokenizing the training data",
        "Tokenizing the evaluation data",
    ]
