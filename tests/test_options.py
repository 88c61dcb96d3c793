"""The public functions, the dataclasses of options and the command line agree."""

from __future__ import annotations

import dataclasses
import inspect
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import qdqbert
from qdqbert.cli import main
from qdqbert.errors import UserInputError
from qdqbert.objects import Rows
from qdqbert.options import (
    OnnxOptions,
    QuantizerOverrides,
    check_options,
    command_line,
    declared_options,
    normalize_options,
    option,
)
from qdqbert.recipes import QuantizerOptions
from qdqbert.tasks.task import TaskOptions
from qdqbert.verbs.benchmark.options import BenchmarkOptions
from qdqbert.verbs.evaluate.options import EvaluateOptions
from qdqbert.verbs.export.options import ExportOptions
from qdqbert.verbs.push.options import PushOptions
from qdqbert.verbs.quantize.options import QuantizeOptions
from qdqbert.verbs.run.options import RunOptions
from qdqbert.verbs.train.options import TrainOptions
from qdqbert.verbs.verify.options import VerifyOptions

COMMANDS = {
    qdqbert.quantize: QuantizeOptions,
    qdqbert.evaluate: EvaluateOptions,
    qdqbert.train: TrainOptions,
    qdqbert.benchmark: BenchmarkOptions,
    qdqbert.export: ExportOptions,
    qdqbert.push: PushOptions,
    qdqbert.run: RunOptions,
    qdqbert.verify: VerifyOptions,
}
commands = pytest.mark.parametrize(
    ("function", "options"), COMMANDS.items(), ids=[each.__name__ for each in COMMANDS]
)


def documented(function: Callable[..., Any]) -> dict[str, str]:
    """Return the text of each argument in a docstring."""
    section = inspect.getdoc(function).partition("\nArgs:\n")[2].partition("\n\n")[0]
    found: dict[str, str] = {}
    name = ""
    for line in section.splitlines():
        if line.startswith(" " * 8):
            found[name] += f" {line.strip()}"
        else:
            name, _, text = line.strip().partition(": ")
            found[name] = text
    return found


@commands
def test_the_parameters_of_a_function_are_the_declared_options(function, options) -> None:
    parameters = dict(inspect.signature(function).parameters)
    assert parameters.pop("progress").default is False
    declared = {each.name: each for each in declared_options(options)}
    assert set(parameters) == set(declared)
    for name, parameter in parameters.items():
        missing = declared[name].default is dataclasses.MISSING
        expected = inspect.Parameter.empty if missing else declared[name].default
        assert parameter.default == expected, name


@commands
def test_the_docstring_of_a_function_repeats_the_help_of_the_options(function, options) -> None:
    texts = documented(function)
    texts.pop("progress")
    assert texts == {each.name: each.documentation for each in declared_options(options)}


@commands
def test_parameters_are_annotated_with_the_types_of_the_options(function, options) -> None:
    sources = {
        name: text
        for base in options.__mro__
        for name, text in vars(base).get("__annotations__", {}).items()
    }
    for name, parameter in inspect.signature(function).parameters.items():
        if name == "progress":
            continue
        # Functions accept wider types: paths for strings, sequences for tuples.
        narrow = parameter.annotation.replace("str | Path", "str")
        narrow = re.sub(r"^Data\b", "str | Rows", narrow)
        narrow = re.sub(r"^ModelLike\b", "str | SavedModel", narrow)
        narrow = narrow.replace("Sequence[", "tuple[").replace("]", ", ...]")
        wide = sources[name].replace(", ...]", "]").replace("]", ", ...]")
        assert narrow == wide, name


def test_overrides_are_the_quantizer_options_without_the_calibrator() -> None:
    names = {field.name for field in dataclasses.fields(QuantizerOverrides)}
    separate = {"calibrator", "percentile", "recalibrate_weights"}
    assert names == {field.name for field in dataclasses.fields(QuantizerOptions)} - separate


def test_task_options_of_a_call_are_the_settings_of_tasks() -> None:
    given = {field.name for field in dataclasses.fields(qdqbert.options.TaskOptions)}
    assert given == {field.name for field in dataclasses.fields(TaskOptions)} - {"seed"}


def test_a_value_out_of_its_bounds_is_reported_with_its_name() -> None:
    with pytest.raises(UserInputError, match="`batch_size` must be at least 1, got 0") as caught:
        QuantizeOptions(batch_size=0)
    assert caught.value.argument == "batch_size"
    with pytest.raises(UserInputError, match="`percentile` must be above 0 and at most 100"):
        QuantizeOptions(calibrator="percentile", percentile=101)
    with pytest.raises(UserInputError, match="`epochs` must be above 0 and below inf, got nan"):
        TrainOptions(model="m", output="o", train_data="d", epochs=float("nan"))


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
        EvaluateOptions(model="m", data="d", **changes)
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
        ("quant_disable_keyword", 1.5, "a string or a path, got 1.5 (float)"),
        ("input_names", ["a"], "a dictionary of names, got ['a'] (list)"),
    ],
)
def test_a_value_of_another_type_is_reported(name, value, words) -> None:
    with pytest.raises(UserInputError) as caught:
        QuantizeOptions(**{"model": "m", "output": "o", name: value})
    assert str(caught.value) == f"`{name}` must be {words}."
    assert caught.value.argument == name


def test_a_model_in_memory_is_refused_with_how_to_save_it() -> None:
    with pytest.raises(UserInputError) as caught:
        EvaluateOptions(model=Saved(), data="d")
    assert str(caught.value).startswith(
        "`model` must be a string or a path, got Saved. Save it, and its tokenizer, into one folder"
    )
    assert caught.value.argument == "model"


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
        "qdqbert quantize m --output o --calibration-data '<list of 2 rows>' "
        "--eval-data '<tuple of 1 row>'"
    )


def test_paths_become_strings_and_one_item_a_tuple() -> None:
    assert QuantizeOptions(text_column=0).text_column == "0"
    chosen = QuantizeOptions(model=Path("m"), output=Path("o"), targets="openvino")
    assert (chosen.model, chosen.output, chosen.targets) == ("m", "o", ("openvino",))


def test_the_stored_command_gives_the_same_options_again(monkeypatch) -> None:
    options = QuantizeOptions(
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
    monkeypatch.setattr("qdqbert.verbs.quantize.run.run", lambda given, _: called.append(given))
    monkeypatch.setattr("qdqbert.cli._command.print_report", lambda *_, **__: None)
    with pytest.raises(SystemExit, match="0"):
        main(shlex.split(line)[1:])
    assert called == [options]


def test_options_are_printed_only_where_they_differ_from_the_default() -> None:
    assert command_line("quantize", QuantizeOptions(batch_size=8)) == "qdqbert quantize"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Small(OnnxOptions):
    """A command.

    Attributes:
        count: Number of things,
            over two lines.
    """

    count: int | None = option(None, flag="number", short="n", above=0)


def test_a_declaration_holds_name_flag_help_and_limits() -> None:
    declared = declared_options(Small)
    assert [each.name for each in declared] == ["count", *OnnxOptions.__dataclass_fields__]
    count = declared[0]
    assert (count.flag, count.short, count.type, count.is_optional) == ("number", "n", int, True)
    assert count.help == "Number of things, over two lines."
    assert (count.group, dict(count.limits), count.default) == (Small, {"above": 0}, None)
    small = Small(count=3)
    normalize_options(small)
    check_options(small)
