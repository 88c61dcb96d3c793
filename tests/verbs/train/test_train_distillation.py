"""Training with a teacher."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from torch.nn import functional
from transformers import AutoModelForSequenceClassification

import flat
from qdqbert.common.errors import UserInputError
from qdqbert.training.models.quantized import load_model
from task_files import SENTIMENT, plain
from training_files import QUICK, files_left


def log_probabilities(folder: Path, texts: list[str]) -> torch.Tensor:
    checkpoint = load_model(str(folder))
    inputs = checkpoint.tokenizer(texts, padding=True, return_tensors="pt")
    with torch.inference_mode():
        return functional.log_softmax(checkpoint.model(**inputs).logits, dim=1)


def test_a_student_comes_closer_to_its_teacher_without_labels(
    classifier, save_tiny, write_file, tmp_path, out
) -> None:
    student = save_tiny(
        tmp_path / "student",
        "bert",
        AutoModelForSequenceClassification,
        num_hidden_layers=1,
        classifier_dropout=0.5,
        hidden_size=16,
        **SENTIMENT,
    )
    texts = plain(random.Random(3), 24)
    flat.train(
        student,
        out,
        train_data=write_file("texts.txt", texts),
        distill_from=classifier.checkpoint,
        dropout="off",
        **{**QUICK, "epochs": 6, "learning_rate": 5e-3},
    )
    teacher = log_probabilities(classifier.checkpoint, texts.split("\n"))
    before, after = (
        float(
            functional.kl_div(
                log_probabilities(folder, texts.split("\n")),
                teacher,
                log_target=True,
                reduction="batchmean",
            )
        )
        for folder in (student, out)
    )
    # 36 steps with a large learning rate. A tenth of the divergence is usual.
    assert after < before / 2


def test_an_embedder_learns_from_its_teacher_on_plain_texts(files_of, write_file, out) -> None:
    base = files_of("feature-extraction").checkpoint
    report = flat.train(
        base,
        out,
        train_data=write_file("texts.txt", plain(random.Random(3), 12)),
        task="feature-extraction",
        distill_from=base,
        distill_hidden=0.5,
        qat=True,
        **QUICK,
    )
    assert (report.steps, report.quantizers) == (3, 23)


def test_a_teacher_with_quantizers_is_refused(classifier, with_quantizers, out) -> None:
    options = {**QUICK, "train_data": classifier.train, "distill_from": with_quantizers}
    with pytest.raises(UserInputError, match="has quantizers; expected a float checkpoint"):
        flat.train(classifier.checkpoint, out, **options)


@pytest.mark.parametrize(
    ("model_type", "changes", "message"),
    [
        ("bert", {"num_labels": 3}, r"\['LABEL_0', .* student's \['bad', 'good'"),
        (
            "bert",
            {"problem_type": "multi_label_classification", **SENTIMENT},
            r"`problem_type` of .* is 'multi_label_classification', the student's None",
        ),
        ("roberta", SENTIMENT, "vocabulary"),
        ("bert", {"hidden_size": 48, **SENTIMENT}, r"distill.hidden` needs a teacher"),
    ],
    ids=["classes", "problem-type", "vocabulary", "hidden-size"],
)
def test_a_teacher_that_does_not_fit_is_refused_and_nothing_is_left(
    classifier, save_tiny, tmp_path, out, model_type, changes, message
) -> None:
    teacher = save_tiny(
        tmp_path / "teacher", model_type, AutoModelForSequenceClassification, **changes
    )
    with pytest.raises(UserInputError, match=message):
        flat.train(
            classifier.checkpoint,
            out,
            train_data=classifier.train,
            distill_from=teacher,
            distill_hidden=1.0,
            **QUICK,
        )
    assert files_left(out) == []


def test_a_new_classifier_is_of_the_kind_of_its_teacher(
    save_tiny, write_file, tmp_path, out
) -> None:
    kind = {"problem_type": "multi_label_classification", **SENTIMENT}
    teacher = save_tiny(tmp_path / "teacher", "bert", AutoModelForSequenceClassification, **kind)
    flat.train(
        save_tiny(tmp_path / "student", "bert"),
        out,
        task="text-classification",
        train_data=write_file("texts.txt", plain(random.Random(3), 12)),
        distill_from=teacher,
        **QUICK,
    )
    config = json.loads((out / "config.json").read_text())
    assert config["problem_type"] == "multi_label_classification"
    assert list(config["id2label"].values()) == list(SENTIMENT["id2label"].values())


def test_a_teacher_with_embeddings_of_another_size_is_refused(
    files_of, save_tiny, tmp_path, out
) -> None:
    files = files_of("feature-extraction")
    wide = save_tiny(tmp_path / "wide", "bert", hidden_size=48)
    with pytest.raises(UserInputError, match=r"embeddings .* 48.* student.* 32"):
        flat.train(
            files.checkpoint,
            out,
            train_data=files.train,
            task="feature-extraction",
            distill_from=wide,
        )
