from __future__ import annotations

from pathlib import Path

import pytest

from qdqbert.errors import UserInputError
from qdqbert.numerics.ranges import Entropy, Max, Mse, Percentile
from qdqbert.recipes import QuantizerOptions
from qdqbert.tasks.task import TaskOptions
from qdqbert.verbs.options import QuantizeOptions


def test_paths_and_a_lone_target_are_taken_as_words() -> None:
    options = QuantizeOptions(
        model=Path("m"), output=Path("o"), calibration_data=Path("d.csv"), targets="portable"
    )
    assert options.command() == (
        "qdqbert quantize m --output o --calibration-data d.csv --target portable"
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (None, Percentile(99.999)),
        ("max", Max()),
        ("mse", Mse()),
        ("entropy", Entropy()),
        ("percentile", Percentile(99.999)),
    ],
    ids=["default", "max", "mse", "entropy", "percentile"],
)
def test_each_word_makes_its_calibrator(name, expected) -> None:
    assert QuantizeOptions(calibrator=name).make_calibrator() == expected


def test_a_calibrator_may_be_named_as_a_switch_but_not_as_another() -> None:
    quantizer_options = QuantizerOptions(calibrator="percentile", percentile=99.5)
    assert QuantizeOptions(quantizer_options=quantizer_options).make_calibrator() == Percentile(
        99.5
    )
    both = QuantizeOptions(
        quantizer_options=quantizer_options, calibrator="percentile", percentile=99.0
    )
    assert both.make_calibrator() == Percentile(99.0)
    with pytest.raises(UserInputError, match="'max', and 'percentile' in the switches"):
        QuantizeOptions(quantizer_options=quantizer_options, calibrator="max")


def test_a_share_alone_is_of_the_percentile() -> None:
    assert QuantizeOptions(percentile=99.9).make_calibrator() == Percentile(99.9)


def test_a_model_without_an_output_is_refused() -> None:
    with pytest.raises(UserInputError, match="`--output` is missing"):
        QuantizeOptions(model="m")


def test_a_checkpoint_is_fed_as_it_was_trained_unless_asked_otherwise() -> None:
    trained = {"max_length": 64, "task_options": {"doc_stride": 16, "n_best_size": 5}}
    options = QuantizeOptions(model="m", output="o", task_options=TaskOptions(n_best_size=7))
    taken = options.trained(trained)
    assert (taken.max_length, taken.task_options.doc_stride) == (64, 16)
    assert taken.task_options.n_best_size == 7
    asked = QuantizeOptions(model="m", output="o", max_length=32).trained(trained)
    assert (asked.max_length, asked.task_options.n_best_size) == (32, 5)
    assert options.trained({}) == options
