"""Options of `quantize`, and the settings that are made of them."""

from __future__ import annotations

import pytest

import flat
from qdqbert.calibration.statistics import calibrator_of
from qdqbert.common.errors import UserInputError
from qdqbert.common.options.calibration import Calibration
from qdqbert.common.options.declared import command_line
from qdqbert.common.options.tasks import TaskOptions
from qdqbert.pipeline.plans import Scheme
from qdqbert.pipeline.settings import task_options_of
from qdqbert.quantization.numerics.ranges import Entropy, Max, Mse, Percentile
from qdqbert.tasks.registry import TASKS
from qdqbert.verbs.quantize.options import QuantizeOptions


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, Percentile(99.999)),
        ({"calibrator": "max"}, Max()),
        ({"calibrator": "mse"}, Mse()),
        ({"calibrator": "entropy"}, Entropy()),
        ({"percentile": 99.9}, Percentile(99.9)),
        ({"calibrator": "percentile", "percentile": 99.0}, Percentile(99.0)),
    ],
    ids=["default", "max", "mse", "entropy", "percentile", "both"],
)
def test_each_name_makes_its_calibrator(options, expected) -> None:
    scheme = Scheme(calibration=Calibration(**options))
    assert calibrator_of(scheme.quantizer_options) == expected


@pytest.mark.parametrize(
    ("options", "message", "argument"),
    [
        ({"calibrator": "best"}, "`calibrator='best'` is unknown.* max, percentile", "calibrator"),
        ({"embeddings": "int4"}, "`embeddings='int4'` is unknown", "embeddings"),
        ({"recipe": "x"}, "`recipe='x'` is unknown", "recipe"),
        (
            {"calibrator": "max", "percentile": 99.0},
            "`percentile=99.0` requires `calibrator='percentile'`, got `calibrator='max'`",
            "percentile",
        ),
        (
            {"model": "m.onnx", "output": "o", "pooling": "cls"},
            "`pooling='cls'` applies to checkpoints only",
            "pooling",
        ),
        (
            {"model": "m", "output": "o", "tokenizer": "t"},
            r"`tokenizer` applies to \.onnx files only, and `model='m'` is not one",
            "tokenizer",
        ),
        (
            {"model": "m", "output": "o", "input_names": {"input_ids": "x"}},
            r"`input_names` applies to \.onnx files only",
            "input_names",
        ),
        (
            {"model": "m", "output": "o", "label_column": "stars"},
            "`label_column=stars` names a column, and the call has no data",
            "label_column",
        ),
        *(
            (
                {"ranges_from": "earlier", name: value},
                f"`{name}` applies to a new calibration, and `ranges_from='earlier'`",
                name,
            )
            for name, value in (
                ("calibrator", "mse"),
                ("percentile", 99.9),
                ("calibration_samples", 20),
                ("recalibrate", True),
                ("ray", "auto"),
            )
        ),
    ],
)
def test_options_that_cannot_be_used_are_refused(options, message, argument) -> None:
    with pytest.raises(UserInputError, match=message) as caught:
        flat.make(QuantizeOptions, **options)
    assert caught.value.argument == argument


def test_wrong_options_write_nothing(checkpoints, tmp_path) -> None:
    with pytest.raises(UserInputError, match="`targets='tpu'` is unknown"):
        flat.quantize(checkpoints("bert"), tmp_path / "out", targets=("portable", "tpu"))
    assert list(tmp_path.iterdir()) == []


def test_dedicated_qdq_pairs_are_part_of_the_command() -> None:
    options = flat.make(QuantizeOptions, model="m", output="o", dedicated_qdq_pairs=True)
    assert "--dedicated-qdq-pairs" in command_line("quantize", options).split()


def test_task_options_are_given_or_stored_or_defaults() -> None:
    stored = {"doc_stride": 16, "n_best_size": 5, "seed": 3}
    chosen = task_options_of(TASKS["question-answering"], TaskOptions(n_best_size=7), stored)
    assert (chosen.doc_stride, chosen.n_best_size, chosen.seed) == (16, 7, 3)
    assert chosen.max_answer_length == 30
    assert task_options_of(TASKS["fill-mask"], TaskOptions(), stored, seed=4).seed == 4
