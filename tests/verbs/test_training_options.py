from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

import qdqbert
from qdqbert.cli import app
from qdqbert.errors import UserInputError
from qdqbert.recipes import QuantizerOptions
from qdqbert.tasks.data import Columns
from qdqbert.tasks.task import Metric, TaskOptions
from qdqbert.training.distillation import Distillation
from qdqbert.verbs.training_options import (
    TrainOptions,
    keep_best_,
    set_steps_,
    training_arguments,
)

NAMED = {"model": "m", "output": "o", "train_data": "t.csv"}
NAN, INF = float("nan"), float("inf")


def options(**changes: Any) -> TrainOptions:
    return TrainOptions(**{**NAMED, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(
            ({name: 0}, f"`--{name.replace('_', '-')}` must be at least 1, got 0")
            for name in (
                *("max_train_examples", "max_eval_examples", "calibration_samples"),
                *("batch_size", "gradient_accumulation", "eval_steps"),
            )
        ),
        ({"max_length": 2}, "`--max-length` must be at least 3, got 2"),
        ({"epochs": 0}, "`--epochs` must be above 0 and finite, got 0"),
        ({"epochs": INF}, "`--epochs` must be above 0 and finite, got inf"),
        ({"learning_rate": -1e-3}, "`--learning-rate` must be above 0 and finite, got -0.001"),
        ({"learning_rate": NAN}, "`--learning-rate` must be above 0 and finite, got nan"),
        ({"learning_rate": INF}, "`--learning-rate` must be above 0 and finite, got inf"),
        ({"warmup": 1.0}, "`--warmup` must be at least 0 and below 1, got 1.0"),
        ({"warmup": NAN}, "`--warmup` must be at least 0 and below 1, got nan"),
        ({"weight_decay": -0.1}, "`--weight-decay` must be at least 0 and finite, got -0.1"),
        ({"weight_decay": NAN}, "`--weight-decay` must be at least 0 and finite, got nan"),
        ({"seed": -1}, "`--seed` must be from 0 to 4294967295, got -1"),
        ({"seed": 2**32}, "`--seed` must be from 0 to 4294967295, got 4294967296"),
        ({"ranges": "free", "qat": True}, "`--ranges free` is unknown. Known: fixed, learned, mov"),
        ({"dropout": "some"}, "`--dropout some` is unknown. Known: keep, off"),
        ({"lr_scheduler": "step"}, "`--lr-scheduler step` is unknown. Known: linear, cosine"),
        ({"lr_scheduler": "cosine_with_min_lr"}, "`--lr-scheduler cosine_with_min_lr` is unknown"),
        ({"recipe": "best", "qat": True}, "Recipe 'best' is unknown. Known: ffn, full"),
        ({"recipe": "linear"}, "`--recipe` says how quantizers train, and needs `--qat`"),
        ({"ranges": "learned"}, "`--ranges` says how quantizers train, and needs `--qat`"),
        (
            {"quantizer_options": QuantizerOptions(wprec=4)},
            "`--wprec` says how quantizers train, and needs",
        ),
        ({"keep_best": True}, "`--keep-best` needs `--eval-data` to tell which is best"),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, dict) else "",
)
def test_each_bad_value_is_named_with_what_was_expected(changes, message) -> None:
    with pytest.raises(UserInputError, match=message):
        options(**changes)


def test_float_training_and_qat_have_schedules_of_their_own_unless_asked() -> None:
    names = ("epochs", "learning_rate", "lr_scheduler")
    assert [options().schedule(name) for name in names] == [3.0, 3e-5, "linear"]
    assert [options(qat=True).schedule(name) for name in names] == [0.3, 3e-5, "cosine"]
    asked = {"epochs": 1.0, "learning_rate": 1e-4, "lr_scheduler": "constant"}
    assert {name: options(qat=True, **asked).schedule(name) for name in names} == asked


ROUND_TRIPS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "numbers": {
        "eval_data": "dev.csv",
        "task": "text-classification",
        "max_length": 64,
        "max_train_examples": 10,
        "max_eval_examples": 5,
        "epochs": 0.5,
        "learning_rate": 2e-5,
        "lr_scheduler": "constant",
        "warmup": 0.0,
        "weight_decay": 0.01,
        "batch_size": 4,
        "gradient_accumulation": 2,
        "eval_steps": 7,
        "seed": 3,
    },
    "flags": {
        "eval_data": "dev.csv",
        "dropout": "off",
        "keep_best": True,
        "tensorboard": True,
        "overwrite": True,
        "keep_checkpoints": True,
    },
    "qat": {
        "qat": True,
        "recipe": "linear",
        "ranges": "learned",
        "calibration_samples": 20,
        "quantizer_options": QuantizerOptions(
            wprec=4,
            aprec=7,
            quant_per_tensor=True,
            quant_disable_keyword=("pooler|classifier", "layer.0 "),
            fuse_qkv=True,
            clip_gelu=10.0,
            calibrator="entropy",
        ),
    },
    "calibrator-max": {"qat": True, "quantizer_options": QuantizerOptions()},
    "percentile": {
        "qat": True,
        "quantizer_options": QuantizerOptions(calibrator="percentile", percentile=99.0),
    },
    "teacher": {
        "distill_from": "a teacher",
        "distillation": Distillation(temperature=4.0, alpha=0.5, hidden_weight=0.1),
    },
    "columns": {"columns": Columns(text="the text", text_pair="0", label="it's")},
    "task-options": {
        "task_options": TaskOptions(
            doc_stride=8,
            n_best_size=5,
            max_answer_length=9,
            null_score_diff_threshold=-0.5,
            mlm_probability=0.3,
        ),
        "seed": 3,
    },
    "odd-names": {"model": "my model", "output": "it's; here", "train_data": "$HOME/*.csv"},
}


@pytest.mark.parametrize("changes", ROUND_TRIPS.values(), ids=ROUND_TRIPS)
def test_the_command_is_parsed_to_the_same_options(changes, monkeypatch) -> None:
    asked: list[TrainOptions] = []

    def train(model: str, output: str, *, progress: Any, **given: Any) -> None:
        asked.append(TrainOptions(model=model, output=output, **given))
        raise UserInputError("Enough was seen.")

    monkeypatch.setattr(qdqbert, "train", train)
    expected = options(**changes)
    program, *words = shlex.split(expected.command())
    result = CliRunner().invoke(app, words)
    assert "Enough was seen." in result.stderr, result.output
    assert program == "qdqbert"
    assert asked == [expected]


def test_the_command_of_a_resumed_run_is_that_of_the_run() -> None:
    assert options(resume=True).command() == options().command()


def test_masks_are_drawn_by_the_seed_of_the_run_unless_they_have_their_own() -> None:
    assert options(seed=3).task_options == TaskOptions(seed=3)
    assert options(seed=3, task_options=TaskOptions(seed=5)).task_options.seed == 5
    assert options(task_options=TaskOptions(doc_stride=8)).task_options == TaskOptions(doc_stride=8)


def test_all_but_what_a_run_leaves_has_to_be_the_same_for_it_to_go_on() -> None:
    names = {field.name for field in dataclasses.fields(TrainOptions)}
    free = {"resume", "overwrite", "keep_checkpoints", "tensorboard"}
    settings = options(seed=3).settings()
    assert settings.keys() == names - free
    assert (settings["seed"], settings["task_options"]["seed"]) == (3, 3)
    json.dumps(settings)


def test_a_default_that_is_named_is_the_same_setting() -> None:
    named = options(learning_rate=3e-5, epochs=3, lr_scheduler="linear").settings()
    assert options().settings() == named
    assert options(qat=True).settings()["lr_scheduler"] == "cosine"


@pytest.fixture
def arguments(tmp_path) -> Callable[..., Any]:
    def make(**changes: Any) -> Any:
        asked = options(**{"batch_size": 4, **changes})
        made = training_arguments(asked, tmp_path)
        return made, set_steps_(made, asked, items=50)

    return make


@pytest.mark.parametrize(
    ("changes", "steps", "batches", "every"),
    [
        ({"epochs": 2.0}, 25, 25, 7),
        ({"epochs": 2.0, "gradient_accumulation": 2}, 13, 26, 4),
        ({"epochs": 0.01}, 1, 1, 1),
        ({"epochs": 2.0, "eval_steps": 10}, 25, 25, 10),
        ({"epochs": 2.0, "eval_steps": 100}, 25, 25, 25),
    ],
    ids=["plain", "accumulated", "shortest", "asked", "never-beyond-the-end"],
)
def test_steps_by_hand(arguments, changes, steps, batches, every) -> None:
    made, found = arguments(**changes)
    assert (made.max_steps, found) == (steps, batches)
    assert made.eval_steps == made.save_steps == every
    assert made.warmup_steps == steps // 10


@pytest.mark.parametrize(("is_error", "name"), [(False, "f1"), (True, "perplexity")])
def test_the_best_is_the_highest_or_the_least_wrong(arguments, is_error, name) -> None:
    made, _ = arguments()
    assert not made.load_best_model_at_end
    keep_best_(made, Metric(name=name, value=1.0, examples=1, is_error=is_error))
    assert made.load_best_model_at_end
    assert (made.metric_for_best_model, made.greater_is_better) == (f"eval_{name}", not is_error)
