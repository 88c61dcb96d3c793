"""The public functions, the dataclasses of options and the command line agree."""

from __future__ import annotations

import dataclasses
import inspect
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import flat
import qdqbert
from qdqbert.cli import main
from qdqbert.cli._commands import COMMANDS
from qdqbert.common.errors import UserInputError
from qdqbert.common.objects import Rows
from qdqbert.common.options.declared import (
    Options,
    command_line,
    declared_options,
    helps_of,
    in_groups,
    option,
)
from qdqbert.encoders.task_kinds import TaskSettings
from qdqbert.evidence.reporting.serve import ServeReport
from qdqbert.loading.options import LoadOptions
from qdqbert.serving.options import ServerOptions
from qdqbert.verbs.analyze.options import AnalyzeOptions
from qdqbert.verbs.benchmark.options import BenchmarkOptions
from qdqbert.verbs.evaluate.options import EvaluateOptions
from qdqbert.verbs.quantize.options import QuantizeOptions
from qdqbert.verbs.run.options import RunOptions
from qdqbert.verbs.train.options import TrainOptions

GROUPS = (
    qdqbert.Calibration,
    qdqbert.Columns,
    qdqbert.Distillation,
    qdqbert.Limits,
    qdqbert.Onnx,
    qdqbert.Optimization,
    qdqbert.Quantizers,
    qdqbert.TaskOptions,
)


def test_each_option_is_in_one_group_and_has_its_help_there() -> None:
    names = [name for group in GROUPS for name in helps_of(group)]
    fields = [field.name for group in GROUPS for field in dataclasses.fields(group)]
    assert names == fields
    # Both draw examples, of the calibration and of the training.
    assert {name for name in names if names.count(name) > 1} == {"seed"}


def test_quantize_takes_few_options_besides_the_groups() -> None:
    parameters = inspect.signature(qdqbert.quantize).parameters
    assert len([each for each in parameters.values() if each.default.__class__ not in GROUPS]) == 16
    assert len(inspect.getdoc(qdqbert.quantize).splitlines()) < 80


def test_task_options_of_a_call_are_the_settings_of_tasks() -> None:
    given = {field.name for field in dataclasses.fields(qdqbert.TaskOptions)}
    settings = {field.name for field in dataclasses.fields(TaskSettings)}
    assert given - {"pooling", "adapter"} == settings - {"seed"}


def test_something_else_than_a_group_is_refused_with_the_class() -> None:
    with pytest.raises(UserInputError) as caught:
        QuantizeOptions(limits={"max_drop": 1})
    message = "`limits` must be a `qdqbert.Limits`, got {'max_drop': 1} (dict)."
    assert (str(caught.value), caught.value.argument) == (message, "limits")


def test_a_field_that_a_function_does_not_take_is_refused() -> None:
    given = qdqbert.Calibration(ranges_from="earlier")
    with pytest.raises(UserInputError, match="`ranges_from` of `calibration` does not apply here"):
        AnalyzeOptions(model="m", calibration=given)
    assert "ranges_from" not in {each.name for each in declared_options(AnalyzeOptions)}


def test_a_group_shows_what_was_set() -> None:
    assert repr(qdqbert.Limits()) == "Limits()"
    assert repr(qdqbert.Calibration(seed=3, calibrator="mse")) == (
        "Calibration(calibrator='mse', seed=3)"
    )


def test_values_by_name_become_fields_of_groups() -> None:
    arguments = in_groups(QuantizeOptions, {"model": "m", "text_column": "a", "max_flips": 2})
    assert arguments == {
        "model": "m",
        "columns": qdqbert.Columns(text="a"),
        "limits": qdqbert.Limits(max_flips=2),
    }


def test_a_value_out_of_its_bounds_is_reported_with_its_name() -> None:
    with pytest.raises(UserInputError, match="`batch_size` must be at least 1, got 0") as caught:
        QuantizeOptions(batch_size=0)
    assert caught.value.argument == "batch_size"
    with pytest.raises(UserInputError, match="`percentile` must be above 0 and at most 100"):
        flat.make(QuantizeOptions, calibrator="percentile", percentile=101)
    with pytest.raises(UserInputError, match="`epochs` must be above 0 and below inf, got nan"):
        flat.make(TrainOptions, model="m", output="o", train_data="d", epochs=float("nan"))


@pytest.mark.parametrize(
    ("kind", "field", "given", "value"),
    [
        (QuantizeOptions, "max_length", np.uint8(32), 32),
        (QuantizeOptions, "batch_size", torch.tensor(4), 4),
        (qdqbert.Calibration, "samples", np.array(7), 7),
        (qdqbert.Limits, "max_drop", np.float32(0.5), 0.5),
        (qdqbert.Columns, "text", np.int64(0), "0"),
        (BenchmarkOptions, "sequences", np.array([8, 16]), (8, 16)),
        (BenchmarkOptions, "sequences", np.int16(8), (8,)),
        (AnalyzeOptions, "progress", np.False_, False),
    ],
)
def test_numbers_of_numpy_and_torch_become_those_of_python(kind, field, given, value) -> None:
    required = {"model": "m"} if kind in (AnalyzeOptions, BenchmarkOptions) else {}
    if kind is BenchmarkOptions:
        required = {"models": "m"}
    found = getattr(kind(**required, **{field: given}), field)
    assert (found, repr(found)) == (value, repr(value))


class Saved:
    """Has the method of models, pipelines and tokenizers that saves them."""

    def save_pretrained(self, folder: str) -> None: ...


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"doc_stride": -1}, "at least 0, got -1"),
        ({"n_best_size": 0}, "at least 1, got 0"),
        ({"max_answer_length": 0}, "at least 1, got 0"),
        ({"mlm_probability": 1.0}, "above 0 and below 1, got 1.0"),
        ({"max_examples": 0}, "at least 1, got 0"),
    ],
    ids=str,
)
def test_settings_of_tasks_have_bounds(changes, words) -> None:
    (name,) = changes
    with pytest.raises(UserInputError, match=f"`{name}` must be {words}") as caught:
        flat.make(EvaluateOptions, model="m", data="d", **changes)
    assert caught.value.argument == name


def test_an_unknown_choice_is_reported_with_the_known_ones() -> None:
    message = "`targets='gpu'` is unknown. Choose one of: portable, onnxruntime, "
    with pytest.raises(UserInputError, match=message) as caught:
        QuantizeOptions(targets=["onnxruntime", "gpu"])
    assert caught.value.argument == "targets"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("calibration_samples", "32", "a whole number, got '32' (str)"),
        ("calibration_samples", 1.5, "a whole number, got 1.5 (float)"),
        ("calibration_samples", True, "a whole number, got True (bool)"),
        ("percentile", "99", "a number, got '99' (str)"),
        ("model", 3, "a path, or a model with its tokenizer, got 3 (int)"),
        ("eval_data", b"a.csv", "a path, or a list, DataFrame or data set, got b'a.csv' (bytes)"),
        ("overwrite", "yes", "True or False, got 'yes' (str)"),
        ("quant_disable_keyword", 1.5, "a string, got 1.5 (float)"),
        ("input_names", ["a"], "a dictionary of names, got ['a'] (list)"),
        ("input_names", {"input_ids": 3}, "a dictionary of names, got {'input_ids': 3}"),
    ],
)
def test_a_value_of_another_type_is_reported(name, value, words) -> None:
    with pytest.raises(UserInputError) as caught:
        flat.make(QuantizeOptions, **{"model": "m", "output": "o", name: value})
    assert str(caught.value) == f"`{name}` must be {words}."
    assert caught.value.argument == name


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("text_column", 1.5, "a string or a whole number, got 1.5 (float)"),
        ("structures", 5, "a dictionary, or a string of JSON, got 5 (int)"),
    ],
)
def test_an_option_that_is_converted_names_what_it_takes(name, value, words) -> None:
    with pytest.raises(UserInputError) as caught:
        RunOptions(model="m", input="a.jsonl", output="b.jsonl", **{name: value})
    assert str(caught.value) == f"`{name}` must be {words}."


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (None, None),
        (0, "cuda:0"),
        (np.int64(1), "cuda:1"),
        (-1, "cpu"),
        (torch.device("cuda"), "cuda"),
        (torch.device("cuda", 1), "cuda:1"),
        (torch.device("cpu"), "cpu"),
        ("auto", "auto"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("kind", [LoadOptions, ServerOptions, BenchmarkOptions])
def test_devices_are_what_torch_and_transformers_take(kind, value, name) -> None:
    models = {} if kind is LoadOptions else {"models": ["m"]}
    assert kind(**models, device=value).device == name


@pytest.mark.parametrize("value", [True, 1.0, ["cuda"], b"cuda", torch.device("mps"), "cuda:01"])
@pytest.mark.parametrize("kind", [LoadOptions, ServerOptions, BenchmarkOptions])
def test_other_devices_are_refused_by_name(kind, value) -> None:
    models = {} if kind is LoadOptions else {"models": ["m"]}
    message = re.escape(f"`device={str(value)!r}` is unknown. Pass 'cpu', 'cuda', 'cuda:1', or")
    with pytest.raises(UserInputError, match=message) as caught:
        kind(**models, device=value)
    assert caught.value.argument == "device"


def test_a_model_in_memory_is_refused_with_how_to_save_it() -> None:
    with pytest.raises(UserInputError) as caught:
        qdqbert.Distillation(teacher=Saved())
    assert str(caught.value).startswith(
        "`distill_from` must be a string or a path, got Saved. Save it, and its tokenizer, into "
    )
    assert caught.value.argument == "distill_from"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"text": ["a"]}, "got dict. Pass a list with a dict for each row: "),
        ({"train": SimpleNamespace(features={})}, "got dict. Pass one of its splits: 'train'."),
        (iter(["a"]), "got list_iterator. Pass a list of its rows."),
        ({"a", "b"}, "got set. Pass a list of its rows."),
    ],
    ids=["columns", "splits", "iterator", "set"],
)
def test_what_holds_rows_in_another_way_is_refused(value, words) -> None:
    with pytest.raises(UserInputError) as caught:
        QuantizeOptions(calibration_data=value)
    message = "`calibration_data` must be a path, or a list, DataFrame or data set, "
    assert str(caught.value).startswith(message + words)
    assert caught.value.argument == "calibration_data"


def test_data_in_memory_become_rows_that_a_command_names() -> None:
    texts = ["a", "b"]
    options = QuantizeOptions(model="m", output="o", calibration_data=texts, eval_data=("c",))
    assert isinstance(options.calibration_data, Rows)
    assert options.calibration_data.values is texts
    assert str(options.eval_data) == "<tuple of 1 row>"
    assert command_line("quantize", options) == (
        "qdqbert quantize m --output o --eval-data '<tuple of 1 row>' "
        "--calibration-data '<list of 2 rows>'"
    )


def test_paths_become_strings_and_one_item_a_tuple() -> None:
    assert qdqbert.Columns(text=0).text == "0"
    chosen = flat.make(QuantizeOptions, model=Path("m"), output=Path("o"), targets="openvino")
    assert (chosen.model, chosen.output, chosen.targets) == ("m", "o", ("openvino",))
    assert BenchmarkOptions(Path("m")).models == BenchmarkOptions([Path("m")]).models == ("m",)


def test_the_stored_command_gives_the_same_options_again(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.onnx").touch()
    options = flat.make(
        QuantizeOptions,
        model="m.onnx",
        output="o ut",
        targets=("onnxruntime", "openvino"),
        benchmark=False,
        fuse_qkv=True,
        percentile=99.5,
        quant_disable_keyword=("query", "key|value"),
        input_names={"input_ids": "tokens", "attention_mask": "mask"},
        weights_for="vnni",
        doc_stride=64,
    )
    line = command_line("quantize", options)
    assert line.startswith("qdqbert quantize m.onnx --output 'o ut' --target onnxruntime --target")
    called = []
    report = ServeReport(requests=0, inputs=0, tokens=0, seconds=0.0)
    monkeypatch.setattr(
        "qdqbert.verbs.quantize.run.run", lambda given, _: called.append(given) or report
    )
    with pytest.raises(SystemExit, match="0"):
        main(shlex.split(line)[1:])
    assert called == [options]


def test_options_are_printed_only_where_they_differ_from_the_default() -> None:
    assert command_line("quantize", QuantizeOptions(batch_size=8)) == "qdqbert quantize"


class Small(Options):
    """A command.

    Attributes:
        count: Number of things,
            over two lines.
    """

    count: int | None = option(default=None, flag="number", short="n", above=0)
    limits: qdqbert.Limits = option(default=qdqbert.Limits(), without=("max_drop",))


def test_a_declaration_holds_name_flag_help_and_limits() -> None:
    count, *limits = declared_options(Small)
    assert [each.name for each in limits] == ["max_flips", "min_sqnr", "min_cosine"]
    assert {each.parameter for each in limits} == {"limits"}
    assert (count.name, count.parameter, count.is_grouped) == ("count", "count", False)
    assert (count.flag, count.type, count.is_optional) == ("number", int, True)
    assert count.help == "Number of things, over two lines."
    assert (count.group, count.default) == (Small, None)
    assert dict(count.settings) == {"flag": "number", "short": "n", "above": 0}
    assert [each.value(Small(count=3)) for each in (count, *limits)] == [3, None, None, None]


@pytest.mark.parametrize(
    ("command", "name"),
    [
        pytest.param(command, each.name, id=f"{command.name}-{each.name}")
        for command in COMMANDS
        for each in declared_options(command.options)
        if each.is_path
    ],
)
def test_an_empty_path_is_refused_by_name(command, name) -> None:
    """It would be the current folder."""
    declared = declared_options(command.options)
    required = [each for each in declared if each.default is dataclasses.MISSING]
    values = {each.name: (*each.choices, "x")[0] for each in required}
    with pytest.raises(UserInputError, match=f"`{name}` is empty") as refused:
        command.options(**in_groups(command.options, values | {name: ""}))
    assert refused.value.argument == name
