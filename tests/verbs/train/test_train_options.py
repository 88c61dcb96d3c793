"""Options of `train`: what is refused, defaults, and what a resumed run may change."""

from __future__ import annotations

import json
import shlex
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from transformers.trainer_utils import SchedulerType

import flat
from qdqbert.cli import main
from qdqbert.common.choices import SchedulerName
from qdqbert.common.errors import UserInputError
from qdqbert.common.options.declared import command_line, declared_options
from qdqbert.common.options.tasks import TaskOptions
from qdqbert.encoders.task_kinds import TaskSettings
from qdqbert.pipeline.settings import task_options_of
from qdqbert.tasks.question_answering import QUESTION_ANSWERING as QUESTIONS
from qdqbert.verbs.train import run as train_run
from qdqbert.verbs.train.options import TrainOptions

NAMED = {"model": "m", "output": "o", "train_data": "t.csv"}
NAN, INF = float("nan"), float("inf")
# Schedules that need settings of their own.
WITH_SETTINGS = {
    "cosine_warmup_with_min_lr",
    "cosine_with_min_lr",
    "greedy",
    "reduce_lr_on_plateau",
    "warmup_stable_decay",
}


def options(**changes: Any) -> TrainOptions:
    return flat.make(TrainOptions, **{**NAMED, **changes})


def test_schedules_are_those_of_transformers_without_settings_of_their_own() -> None:
    assert set(get_args(SchedulerName)) == {each.value for each in SchedulerType} - WITH_SETTINGS


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gradient_accumulation": 0}, "`gradient_accumulation` must be at least 1, got 0"),
        ({"max_length": 2}, "`max_length` must be at least 3, got 2"),
        ({"epochs": 0}, "`epochs` must be above 0 .*, got 0"),
        ({"learning_rate": INF}, "`learning_rate` must be above 0 .*, got inf"),
        ({"learning_rate": NAN}, "`learning_rate` must be above 0 .*, got nan"),
        ({"warmup": 1.0}, "`warmup` must be at least 0 and below 1, got 1.0"),
        ({"weight_decay": -0.1}, "`weight_decay` must be at least 0 .*, got -0.1"),
        ({"seed": 2**32}, "`seed` must be at least 0 and at most 4294967295, got 4294967296"),
        ({"temperature": 0.0}, "`temperature` must be above 0 .*, got 0.0"),
        ({"distill_alpha": 1.5}, "`distill_alpha` must be at least 0 and at most 1, got 1.5"),
        ({"distill_hidden": -1.0}, "`distill_hidden` must be at least 0 .*, got -1.0"),
        ({"qat_ranges": "free", "qat": True}, "`qat_ranges='free'` is unknown.* fixed, learned, "),
        ({"dropout": "some"}, "`dropout='some'` is unknown.* keep, off"),
        ({"lr_scheduler": "cosine_with_min_lr"}, "`lr_scheduler='cosine_with_min_lr'` is unknown"),
        ({"recipe": "best", "qat": True}, "`recipe='best'` is unknown.* ffn, linear"),
        ({"task": "sentiment"}, "`task='sentiment'` is unknown.* feature-extraction"),
        ({"recipe": "linear"}, "`recipe` configures quantizers and requires `qat=True`"),
        ({"qat_ranges": "learned"}, "`qat_ranges` configures quantizers and requires `qat=True`"),
        ({"wprec": 4}, "`wprec` configures quantizers and requires `qat=True`"),
        ({"qat": True, "percentile": 99.0}, "`percentile=99.0` requires `calibrator='percentile'`"),
        ({"keep_best": True}, "`keep_best=True` requires `eval_data`"),
        ({"temperature": 4.0}, "`temperature` configures distillation and requires `distill_from`"),
        ({"distill_alpha": 0.5}, "`distill_alpha` .* requires `distill_from`"),
        ({"distill_hidden": 1.0}, "`distill_hidden` .* requires `distill_from`"),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, dict) else "",
)
def test_a_value_that_cannot_be_used_is_named(changes, message) -> None:
    with pytest.raises(UserInputError, match=message) as caught:
        options(**changes)
    assert caught.value.argument in changes


def test_float_training_and_qat_have_different_default_schedules() -> None:
    names = ("epochs", "learning_rate", "lr_scheduler")
    assert [options().schedule(name) for name in names] == [3.0, 3e-5, "linear"]
    assert [options(qat=True).schedule(name) for name in names] == [0.3, 3e-5, "cosine"]
    given = {"epochs": 1.0, "learning_rate": 1e-4, "lr_scheduler": "constant"}
    assert {name: options(qat=True, **given).schedule(name) for name in names} == given


ROUND_TRIPS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "training": {
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
        "dropout": "off",
        "eval_steps": 7,
        "keep_best": True,
        "seed": 3,
        "tensorboard": True,
        "overwrite": True,
        "keep_checkpoints": True,
        "distill_from": "a teacher",
        "temperature": 4.0,
        "distill_alpha": 0.5,
        "distill_hidden": 0.1,
    },
    "quantizers": {
        "qat": True,
        "recipe": "linear",
        "qat_ranges": "learned",
        "calibration_samples": 20,
        "calibrator": "percentile",
        "percentile": 99.0,
        "wprec": 4,
        "aprec": 7,
        "quant_per_tensor": True,
        "quant_disable_keyword": ("pooler|classifier", "layer.0 "),
        "fuse_qkv": True,
        "clip_gelu": 10.0,
    },
    "data": {
        "model": "my model",
        "output": "it's; here",
        "train_data": "$HOME/*.csv",
        "text_column": "the text",
        "text_pair_column": "0",
        "label_column": "it's",
        "doc_stride": 8,
        "n_best_size": 5,
        "max_answer_length": 9,
        "null_score_diff_threshold": -0.5,
        "mlm_probability": 0.3,
    },
}


@pytest.mark.parametrize("changes", ROUND_TRIPS.values(), ids=ROUND_TRIPS)
def test_the_stored_command_gives_the_same_options(changes, monkeypatch) -> None:
    received: list[TrainOptions] = []

    def run(given: TrainOptions, _: object) -> SimpleNamespace:
        received.append(given)
        return SimpleNamespace(meets_limits=True)

    monkeypatch.setattr(train_run, "run", run)
    monkeypatch.setattr("qdqbert.cli._command.print_report", lambda *_, **__: None)
    # There are no such files.
    monkeypatch.setattr("qdqbert.verbs.train.check_data", lambda _: None)
    expected = options(**changes)
    program, *words = shlex.split(command_line("train", expected))
    assert program == "qdqbert"
    with pytest.raises(SystemExit, match="0"):
        main(words)
    assert received == [expected]


def test_masks_are_drawn_with_the_seed_of_the_run() -> None:
    assert task_options_of(QUESTIONS, options().task_options, {}, seed=3) == TaskSettings(seed=3)
    given = task_options_of(
        QUESTIONS, TaskOptions(doc_stride=8), {"doc_stride": 16, "n_best_size": 5}, seed=0
    )
    assert given == TaskSettings(doc_stride=8, n_best_size=5)


def test_a_resumed_run_may_change_only_what_does_not_change_the_model() -> None:
    names = {each.name for each in declared_options(TrainOptions)}
    free = {"resume", "overwrite", "keep_checkpoints", "tensorboard"}
    settings = options(seed=3).settings()
    assert settings.keys() == names - free
    assert settings["seed"] == 3
    json.dumps(settings)


def test_a_default_is_the_same_setting_whether_it_is_named_or_not() -> None:
    named = options(learning_rate=3e-5, epochs=3, lr_scheduler="linear").settings()
    assert options().settings() == named
    assert options(qat=True).settings()["lr_scheduler"] == "cosine"
