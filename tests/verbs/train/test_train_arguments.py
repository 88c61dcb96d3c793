"""Options of a training run as arguments of transformers' Trainer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import flat
from qdqbert.tasks.task import Metric
from qdqbert.verbs.train.arguments import keep_best_, set_steps_, training_arguments
from qdqbert.verbs.train.options import TrainOptions


@pytest.fixture
def arguments(tmp_path) -> Callable[..., Any]:
    """Makes the arguments of a run on 50 inputs in batches of 4."""

    def make(**changes: Any) -> Any:
        options = flat.make(
            TrainOptions, model="m", output="o", train_data="t.csv", batch_size=4, **changes
        )
        made = training_arguments(options, tmp_path)
        return made, set_steps_(made, options, items=50)

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
    ids=["default", "accumulated", "one-step", "eval-steps", "eval-steps-beyond-the-end"],
)
def test_steps_match_a_computation_by_hand(arguments, changes, steps, batches, every) -> None:
    made, found = arguments(**changes)
    assert (made.max_steps, found) == (steps, batches)
    assert made.eval_steps == made.save_steps == every
    assert made.warmup_steps == steps // 10


@pytest.mark.parametrize(("is_error", "name"), [(False, "f1"), (True, "perplexity")])
def test_the_best_model_has_the_highest_score_or_the_lowest_error(
    arguments, is_error, name
) -> None:
    made, _ = arguments()
    assert not made.load_best_model_at_end
    keep_best_(made, Metric(name=name, value=1.0, examples=1, is_error=is_error))
    assert made.load_best_model_at_end
    assert (made.metric_for_best_model, made.greater_is_better) == (f"eval_{name}", not is_error)
