"""Training of each task: what it learns, and what it writes."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import shutil
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

import flat
from conftest import replace_cats_
from qdqbert.calibration.reference.sited_model import sited_model
from qdqbert.common.errors import UserInputError
from qdqbert.encoders.checkpoint import tokenizer as tokenizers_of_transformers
from qdqbert.encoders.checkpoint.sentence import read_sentence_head
from qdqbert.encoders.checkpoint.sentence_files import SentenceFiles
from qdqbert.runtime.artifact import TRAINING_FORMAT
from qdqbert.tasks.task import Metric
from qdqbert.training.models.quantized import load_model
from qdqbert.training.models.state import fix_ranges_
from qdqbert.training.trainer.curves import plot_curves
from qdqbert.training.trainer.trainer import TaskTrainer
from qdqbert.verbs.evaluate import run as evaluate_run
from qdqbert.verbs.train import run as train_run
from qdqbert.verbs.train import scorer
from qdqbert.verbs.train.run import set_dropout_
from qdqbert.verbs.train.scorer import Scorer
from task_files import DOC_STRIDE, HEADS, WORDS, settings_of
from training_files import (
    QUICK,
    Files,
    assert_same_weights,
    before_batch,
    record_of,
    recording,
    weights_of,
)

CLASSIFICATION = "text-classification"
# Quantizers of a layer and of the tables. Heads have none.
QUANTIZERS = 23


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trained:
    """A folder that training wrote.

    Attributes:
        files: The checkpoint and its data.
        folder: The folder.
        report: The report.
        predictions: What the trained model in memory predicted for the evaluation data.
        without_gradient: Names of trained parameters that had no gradient, for each step.
    """

    files: Files
    folder: Path
    report: Any
    predictions: Sequence[Any]
    without_gradient: Sequence[Sequence[str]]


@pytest.fixture(scope="module")
def trained(files_of, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Trained]:
    """Trains for eight steps on all examples at once, so that each step lowers the loss."""

    @functools.cache
    def make(task: str, *, qat: bool) -> Trained:
        files, folder = files_of(task), tmp_path_factory.mktemp("trained") / task
        predictions: list[Any] = []
        missing: list[list[str]] = []
        original = TaskTrainer.training_step

        def training_step(self: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
            loss = original(self, model, *args, **kwargs)
            parameters = model.named_parameters()
            missing.append([name for name, p in parameters if p.requires_grad and p.grad is None])
            return loss

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scorer, "predict", recording(scorer.predict, predictions))
            patch.setattr(TaskTrainer, "training_step", training_step)
            report = flat.train(
                files.checkpoint,
                folder,
                train_data=files.train,
                eval_data=files.dev,
                task=task,
                qat=qat,
                qat_ranges="learned" if qat else "fixed",
                epochs=8,
                batch_size=16,
                learning_rate=3e-3,
                lr_scheduler="constant",
                warmup=0,
                dropout="off",
                eval_steps=4,
                calibration_samples=8,
                **settings_of(task),
            )
        return Trained(
            files=files,
            folder=folder,
            report=report,
            predictions=predictions[-1],
            without_gradient=missing,
        )

    return make


# Each task with quantizers, and one in float.
@pytest.mark.parametrize(("task", "qat"), [*((task, True) for task in HEADS), ("fill-mask", False)])
@pytest.mark.usual(
    "text-classification-*", "question-answering-*", "fill-mask-False", "multiple-choice-*"
)
def test_each_task_lowers_its_loss(trained, task: str, qat: bool) -> None:
    made = trained(task, qat=qat)
    losses = [entry["loss"] for entry in record_of(made.folder)["history"] if "loss" in entry]
    assert (made.report.steps, len(losses)) == (8, 8)
    # Seven updates of 3e-3 on 16 examples. Rounding costs QAT a part of the gain.
    assert losses[-1] < 0.97 * losses[0]
    assert (made.report.task, made.report.quantizers) == (task, QUANTIZERS if qat else 0)
    # Processes that share the work wait for the gradients of all trained parameters.
    assert made.without_gradient == [[]] * 8


@pytest.mark.parametrize(
    ("task", "qat"), [(CLASSIFICATION, True), ("question-answering", True), ("fill-mask", False)]
)
def test_the_folder_predicts_what_the_model_in_memory_predicted(
    trained, task: str, qat: bool, monkeypatch
) -> None:
    made = trained(task, qat=qat)
    predictions: list[Any] = []
    monkeypatch.setattr(evaluate_run, "predict", recording(evaluate_run.predict, predictions))
    # Training evaluates twice its batch size. Other padding would change the last bits of sums.
    report = flat.evaluate(made.folder, made.files.dev, batch_size=32)
    for found, expected in zip(predictions[-1], made.predictions, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert report.metrics == made.report.after
    assert report.task == task


def test_quantizers_are_stored_with_their_ranges(trained) -> None:
    made = trained(CLASSIFICATION, qat=True)
    quantizers = sited_model(load_model(str(made.folder)).model).quantizers
    assert len(quantizers) == QUANTIZERS
    assert all(
        each.amax is not None and bool((each.amax > 0).all()) for each in quantizers.values()
    )
    assert all(each.is_enabled and not each.is_learned for each in quantizers.values())


def test_the_folder_holds_a_record_of_the_run_and_no_checkpoints(trained) -> None:
    made = trained(CLASSIFICATION, qat=True)
    names = {path.name for path in made.folder.iterdir()}
    assert names >= {"config.json", "model.safetensors", "tokenizer.json", "training.json"}
    assert not Path(f"{made.folder}-checkpoints").exists()
    record = record_of(made.folder)
    evaluated = {
        entry["step"]: entry["eval_accuracy"] for entry in record["history"] if "eval_f1" in entry
    }
    assert list(evaluated) == [4, 8]
    assert evaluated[8] == made.report.after[0].value
    assert record["report"]["before"][0]["name"] == "accuracy"
    assert record["command"].startswith(f"qdqbert train {made.files.checkpoint} --output ")


def test_a_run_without_matplotlib_ends_without_curves(classifier, out, monkeypatch) -> None:
    monkeypatch.setattr(train_run, "plot_curves", plot_curves)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    options = {**QUICK, "epochs": 0.1, "train_data": classifier.train}
    flat.train(classifier.checkpoint, out, **options)
    assert (out / "config.json").is_file()
    assert not (out / "curves.svg").exists()


def test_curves_are_drawn_and_tensorboard_receives_the_loss(classifier, out, monkeypatch) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("tensorboard")
    monkeypatch.setattr(train_run, "plot_curves", plot_curves)
    options = {**QUICK, "epochs": 0.1, "train_data": classifier.train}
    flat.train(classifier.checkpoint, out, tensorboard=True, **options)
    root = ElementTree.parse(out / "curves.svg").getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    (events,) = out.glob("runs/*/events.out.tfevents.*")
    assert b"train/loss" in events.read_bytes()


def test_evaluation_on_calibration_data_is_refused(trained) -> None:
    made = trained(CLASSIFICATION, qat=True)
    with pytest.raises(UserInputError, match="calibrated on 8 of 16 examples") as caught:
        flat.evaluate(made.folder, made.files.train)
    assert caught.value.argument == "data"
    report = flat.evaluate(made.folder, made.files.train, allow_leakage=True)
    assert report.leaked_examples == 16
    assert any("trained on 16 of 16 examples" in notice for notice in report.notices)


@pytest.fixture(scope="module")
def both_files(trained, tmp_path_factory) -> Path:
    """A file with the rows that a classifier was trained on, and 8 others."""
    files = trained(CLASSIFICATION, qat=False).files
    others = files.dev.read_text().partition("\n")[2]
    path = tmp_path_factory.mktemp("both") / f"both{files.train.suffix}"
    path.write_text(f"{files.train.read_text().rstrip()}\n{others}")
    return Path(path)


def test_evaluation_on_training_data_is_refused_or_leaves_them_out(trained, both_files) -> None:
    made = trained(CLASSIFICATION, qat=False)
    assert len(record_of(made.folder)["training"]["fingerprints"]) == 16
    for engine in (None, "native"):
        with pytest.raises(UserInputError, match="trained on all 16 examples") as caught:
            flat.evaluate(made.folder, made.files.train, engine=engine)
        assert caught.value.argument == "data"
    report = flat.evaluate(made.folder, both_files)
    assert (report.examples, report.leaked_examples) == (8, 0)
    assert any("16 of 24 examples of `data` are left out" in each for each in report.notices)
    assert flat.evaluate(made.folder, made.files.train, allow_leakage=True).leaked_examples == 16


def test_a_quantized_model_knows_the_training_data(trained, both_files, tmp_path) -> None:
    made = trained(CLASSIFICATION, qat=False)
    options = {"targets": ("native",), "benchmark": False, "eval_data": both_files}
    report = flat.quantize(made.folder, tmp_path / "int8", **options)
    assert report.heldout_texts <= 8
    notice = "examples of `eval_data` are left out: the model was trained on them."
    assert any(notice in each for each in report.notices)
    # Some of them were calibrated on, too.
    report = flat.evaluate(tmp_path / "int8", made.files.train, allow_leakage=True)
    assert report.leaked_examples == 16


def test_training_data_of_earlier_runs_stay_known(trained, classifier, out) -> None:
    made = trained(CLASSIFICATION, qat=False)
    options = {**QUICK, "epochs": 0.1, "train_data": classifier.dev}
    flat.train(made.folder, out, **options)
    assert len(record_of(out)["training"]["fingerprints"]) == 16 + 8
    with pytest.raises(UserInputError, match=r"`train_data=.*of an earlier one"):
        flat.train(made.folder, f"{out}-again", **options, eval_data=classifier.train)


@pytest.mark.parametrize("ranges", ["fixed", "learned", "moving"])
@pytest.mark.usual("learned", "fixed")
def test_training_changes_ranges_only_if_asked(classifier, out, ranges: str) -> None:
    flat.train(
        classifier.checkpoint,
        out,
        train_data=classifier.train,
        qat=True,
        qat_ranges=ranges,
        keep_checkpoints=True,
        **QUICK,
    )
    early, late = (
        sited_model(load_model(str(folder)).model).quantizers
        for folder in (Path(f"{out}-checkpoints") / "checkpoint-3", out)
    )
    changed = {name for name in late if not torch.equal(early[name].amax, late[name].amax)}
    inputs = {name for name in late if "_input_quantizer" in name}
    if ranges == "learned":
        # The end of a range that no value reaches has no gradient.
        assert changed
        assert changed <= inputs
    else:
        # Those of tables never move.
        moving = {name for name in late if ".layer." in name} if ranges == "moving" else set()
        assert changed == moving


@pytest.mark.parametrize(
    "option",
    [{"recipe": "linear"}, {"wprec": 4}, {"fuse_qkv": True}, {"calibrator": "max"}],
    ids=lambda option: next(iter(option)),
)
def test_options_of_new_quantizers_are_refused_for_a_model_that_has_some(
    classifier, with_quantizers, out, option
) -> None:
    (name,) = option
    with pytest.raises(
        UserInputError, match=rf"`{name}` configures new quantizers, .* already has"
    ) as caught:
        flat.train(with_quantizers, out, train_data=classifier.train, qat=True, **QUICK, **option)
    assert caught.value.argument == name


def test_a_trained_checkpoint_keeps_its_length_and_the_settings_of_its_task(
    classifier, tmp_path, out
) -> None:
    folder = Path(shutil.copytree(classifier.checkpoint, tmp_path / "trained"))
    stored = {
        "format": TRAINING_FORMAT,
        "max_length": 9,
        "calibration": {"fingerprints": []},
        "task_options": {"doc_stride": 7, "n_best_size": 5, "seed": 8},
    }
    (folder / "training.json").write_text(json.dumps(stored))
    options = {**QUICK, "epochs": 0.1, "train_data": classifier.train}
    flat.train(folder, out, seed=4, **options)
    record = record_of(out)
    assert record["max_length"] == 9
    expected = {"doc_stride": 7, "n_best_size": 5, "seed": 4}
    assert expected.items() <= record["task_options"].items()


def test_training_and_its_folder_use_tokenizer_json(classifier, tmp_path, out, monkeypatch) -> None:
    monkeypatch.setattr(tokenizers_of_transformers, "_SAMPLES", ("a cat",))
    folder = replace_cats_(Path(shutil.copytree(classifier.checkpoint, tmp_path / "model")))
    options = {**QUICK, "epochs": 0.1, "train_data": classifier.train}
    report = flat.train(folder, out, qat=True, **options)
    assert any("differently from tokenizer.json" in notice for notice in report.notices)
    own = Tokenizer.from_file(str(folder / "tokenizer.json"))
    written = Tokenizer.from_file(str(out / "tokenizer.json"))
    assert written.to_str() == own.to_str()
    trained = load_model(str(out))
    assert trained.tokenizer("a cat")["input_ids"] == own.encode("a dog").ids
    config = json.loads((out / "tokenizer_config.json").read_text())
    assert config["model_max_length"] == load_model(str(folder)).max_length


def test_a_new_head_has_the_classes_of_the_data(files_of, classifier, out) -> None:
    base = files_of("feature-extraction").checkpoint
    report = flat.train(
        base, out, train_data=classifier.train, task=CLASSIFICATION, qat=True, **QUICK
    )
    model = load_model(str(out), task=CLASSIFICATION).model
    assert model.config.id2label == {0: "bad", 1: "good"}
    assert (report.task, report.quantizers) == (CLASSIFICATION, QUANTIZERS)
    assert flat.evaluate(out, classifier.dev).examples == 8


def test_a_new_head_may_have_no_classes(files_of, out) -> None:
    files = files_of("question-answering")
    base = files_of("feature-extraction").checkpoint
    options = {**QUICK, "task": "question-answering", "doc_stride": DOC_STRIDE}
    report = flat.train(base, out, train_data=files.train, eval_data=files.dev, **options)
    assert [each.name for each in report.after] == ["f1", "exact_match"]
    assert flat.evaluate(out, files.dev).task == "question-answering"


def test_a_sentence_transformers_folder_stays_one(checkpoints, files_of, out, monkeypatch) -> None:
    files = files_of("feature-extraction")
    predictions: list[Any] = []
    for module in (scorer, evaluate_run):
        monkeypatch.setattr(module, "predict", recording(module.predict, predictions))
    options = {**QUICK, "task": "feature-extraction", "train_data": files.train}
    report = flat.train(checkpoints("sentence"), out, eval_data=files.dev, qat=True, **options)
    evaluated = flat.evaluate(out, files.dev, batch_size=8)
    np.testing.assert_array_equal(np.stack(predictions[-1]), np.stack(predictions[-2]))
    assert evaluated.metrics == report.after
    # The head normalizes, to float32's precision.
    np.testing.assert_allclose(np.linalg.norm(np.stack(predictions[-1]), axis=1), 1, rtol=1e-5)

    mine, its = (
        read_sentence_head(SentenceFiles.of_folder(each)) for each in (out, checkpoints("sentence"))
    )
    assert mine == its is not None


def logits_of(folder: Path) -> torch.Tensor:
    checkpoint = load_model(str(folder))
    # As the end of training does.
    fix_ranges_(sited_model(checkpoint.model))
    inputs = checkpoint.tokenizer(list(WORDS), padding=True, return_tensors="pt")
    with torch.inference_mode():
        logits: torch.Tensor = checkpoint.model(**inputs).logits
    return logits


def test_keep_best_writes_the_model_with_the_best_metric(classifier, out, monkeypatch) -> None:
    # Perplexity before training, after each of the 4 steps, and after the run.
    values = iter([50.0, 40.0, 10.0, 30.0, 20.0, 0.0])
    monkeypatch.setattr(
        Scorer,
        "metrics",
        lambda self: [Metric(name="perplexity", value=next(values), examples=8, is_error=True)],
    )
    flat.train(
        classifier.checkpoint,
        out,
        train_data=classifier.train,
        eval_data=classifier.dev,
        qat=True,
        qat_ranges="learned",
        keep_best=True,
        keep_checkpoints=True,
        **QUICK,
    )
    folder = Path(f"{out}-checkpoints")
    assert {path.name for path in folder.glob("checkpoint-*")} == {"checkpoint-2", "checkpoint-4"}
    logits = logits_of(out)
    assert torch.equal(logits, logits_of(folder / "checkpoint-2"))
    assert not torch.equal(logits, logits_of(folder / "checkpoint-4"))


@pytest.mark.slow
def test_keep_best_writes_the_start_if_no_later_model_is_better(
    classifier, out, tmp_path, monkeypatch
) -> None:
    values = itertools.chain([50.0, 50.0, 60.0, 70.0, 55.0], itertools.repeat(50.0))
    monkeypatch.setattr(
        Scorer,
        "metrics",
        lambda self: [Metric(name="perplexity", value=next(values), examples=8, is_error=True)],
    )
    options = {**QUICK, "train_data": classifier.train, "qat": True, "qat_ranges": "learned"}
    report = flat.train(
        classifier.checkpoint, out, eval_data=classifier.dev, keep_best=True, **options
    )
    said = [notice for notice in report.notices if "better than the one before" in notice]
    assert len(said) == 1
    # One step with a rate that changes no weight.
    options |= {"epochs": 0.1, "learning_rate": 1e-30}
    flat.train(classifier.checkpoint, tmp_path / "start", **options)
    assert_same_weights(out, tmp_path / "start")


def test_a_loss_that_rises_is_said(classifier, tmp_path, out) -> None:
    options = {**QUICK, "train_data": classifier.train, "epochs": 4}
    good = flat.train(classifier.checkpoint, tmp_path / "good", **options)
    assert not any("loss" in notice for notice in good.notices)
    report = flat.train(tmp_path / "good", out, **options | {"learning_rate": 1e3})
    (said,) = (notice for notice in report.notices if "The loss rose from 0." in notice)
    assert said.endswith("the training diverged. Lower `learning_rate`, which was 1000.")


@pytest.mark.parametrize(
    ("is_error", "change"), [(False, -1), (False, 0), (True, 1)], ids=["worse", "equal", "error"]
)
def test_a_model_that_is_worse_than_before_is_said(
    classifier, out, monkeypatch, is_error, change
) -> None:
    values = itertools.chain([50.0], itertools.repeat(50.0 + change))
    monkeypatch.setattr(
        Scorer,
        "metrics",
        lambda self: [Metric(name="m", value=next(values), examples=8, is_error=is_error)],
    )
    options = {**QUICK, "train_data": classifier.train, "epochs": 0.1}
    report = flat.train(classifier.checkpoint, out, eval_data=classifier.dev, **options)
    said = [notice for notice in report.notices if "worse than before" in notice]
    after = 50 + change
    assert [f"m was 50.00 and is {after}.00. Lower" in each for each in said] == (
        [True] if change else []
    )


@pytest.mark.parametrize("model_type", ["bert", "distilbert", "modernbert", "deberta-v2"])
def test_dropout_can_be_turned_off(make_model, model_type: str) -> None:
    rates = {"attention_dropout": 0.3, "mlp_dropout": 0.3, "embedding_dropout": 0.3}
    model = make_model(model_type, **(rates if model_type == "modernbert" else {}))
    inputs = {
        "input_ids": torch.arange(12).reshape(2, 6) + 7,
        "attention_mask": torch.ones(2, 6, dtype=torch.int64),
    }
    with torch.no_grad():
        expected = model(**inputs).last_hidden_state
        dropped = model.train()(**inputs).last_hidden_state
        set_dropout_(model, 0.0)
        found = model(**inputs).last_hidden_state
    assert not torch.allclose(dropped, expected, atol=1e-3)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_only_dropout_draws_random_numbers_during_training(
    classifier, tmp_path, monkeypatch
) -> None:
    for name, seed, dropout in (("a", 1, "off"), ("b", 2, "off"), ("c", 2, "keep")):
        with monkeypatch.context() as patch:
            before_batch(patch, 1, functools.partial(torch.manual_seed, seed))
            flat.train(
                classifier.checkpoint,
                tmp_path / name,
                train_data=classifier.train,
                dropout=dropout,
                **{**QUICK, "epochs": 0.5},
            )
    first, second, kept = (weights_of(tmp_path / name) for name in ("a", "b", "c"))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not all(torch.equal(second[name], kept[name]) for name in second)
    assert load_model(str(tmp_path / "a")).model.config.hidden_dropout_prob == 0.1
