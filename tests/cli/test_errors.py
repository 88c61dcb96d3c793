from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

import qdqbert
from qdqbert.cli._commands import COMMANDS
from qdqbert.cli._errors import ExitCode, exit_code_of, in_flags, run_safely
from qdqbert.common.errors import (
    CalibrationError,
    CheckpointError,
    GraphError,
    QdqBertError,
    UserInputError,
)
from qdqbert.common.options.declared import declared_options
from qdqbert.encoders.families import quantized_family
from qdqbert.verbs.evaluate.options import EvaluateOptions
from qdqbert.verbs.quantize.options import QuantizeOptions
from qdqbert.verbs.train.options import TrainOptions

OPTIONS = declared_options(QuantizeOptions)
SETTINGS = Path(__file__).parents[2] / "docs/guides/settings.md"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("`max_length` must be at least 3.", "`--max-length` must be at least 3."),
        ("`targets='gpu'` is unknown.", "`--target gpu` is unknown."),
        ("Pass `overwrite=True`.", "Pass `--overwrite`."),
        ("Pass `benchmark=False`.", "Pass `--no-benchmark`."),
        ("`model='a b'` is quantized.", "`MODEL a b` is quantized."),
        ("`ranges_from` and `seed=3`", "`--ranges-from` and `--seed 3`"),
        # Not an option of this command, and a name of a file.
        ("`temperature` and `config.json`", "`temperature` and `config.json`"),
    ],
)
def test_names_of_options_become_flags(text, expected) -> None:
    assert in_flags(text, OPTIONS) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "Add 'native' to `targets` when you quantize, or pass another `engine`.",
            "Add 'native' to `--target` when you quantize, or pass another `--engine`.",
        ),
        ("Pass another `recipe`.", "Pass another `--recipe` of `quantize`."),
        (
            "Pass it to `load`, or `labels` to `run`; or `qdqbert serve` with `port=80`.",
            "Pass it to `load`, or `--labels` to `run`; or `qdqbert serve` with `--port 80`.",
        ),
    ],
)
def test_options_of_other_commands_are_named(text, expected) -> None:
    assert in_flags(text, declared_options(EvaluateOptions)) == expected


def test_a_family_of_load_alone_is_told_of_a_flag_of_evaluate() -> None:
    with pytest.raises(CheckpointError) as error:
        quantized_family("clip_text_model")
    text = in_flags(str(error.value), declared_options(TrainOptions))
    assert "as does `evaluate` with `--engine native`" in text


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_no_command_is_told_an_option_that_it_does_not_have(command) -> None:
    own = declared_options(command.options)
    flags = {each.flag for each in own}
    for option in (each for each in COMMANDS for each in declared_options(each.options)):
        text = in_flags(f"Pass another `{option.name}`, or `{option.name}=3`.", own)
        for flag, owner in re.findall(r"`--([a-z-]+)(?: 3)?`( of `quantize`)?", text):
            assert owner or flag in flags, text


def test_names_in_files_of_a_verb_are_those_of_its_options() -> None:
    named = {each.name: declared_options(each.options) for each in COMMANDS}
    known = {option.name for options in named.values() for option in options}
    wrong = []
    for verb, options in named.items():
        own = {each.name for each in options} | {"progress"}
        for path in sorted((Path(qdqbert.__file__).parent / "verbs" / verb).rglob("*.py")):
            for text in messages_of(path):
                names = set(re.findall(r"`([a-z_]+)(?:=[^`]*)?`", text)) & known - own
                # Commands, and options of the command that a sentence names.
                others = [each for each in named if each != verb and f"`{each}`" in text]
                names -= {*named, *(each.name for other in others for each in named[other])}
                wrong += [f"{path.name}: {text} ({names})"] if names else []
    assert not wrong


def messages_of(path: Path) -> list[str]:
    """Return the texts in a file that are no docstrings, with `{}` for what is computed."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    docstrings = {id(each.value) for each in nodes if isinstance(each, ast.Expr)}
    parts = {id(part) for each in nodes if isinstance(each, ast.JoinedStr) for part in each.values}
    texts = []
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            texts.append(
                "".join(
                    getattr(part, "value", "") if isinstance(part, ast.Constant) else "{}"
                    for part in node.values
                )
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts += [node.value] if id(node) not in docstrings | parts else []
    return texts


def test_each_kind_of_error_has_an_exit_code() -> None:
    assert exit_code_of(GraphError("x")) == ExitCode.FAILED == 1
    for error in (UserInputError("x"), CalibrationError("x"), QdqBertError("x")):
        assert exit_code_of(error) == ExitCode.USAGE == 2
    codes = {code.value for code in ExitCode}
    documented = re.findall(r"^\| (\d+) \|", SETTINGS.read_text(encoding="utf-8"), re.MULTILINE)
    assert codes == {int(code) for code in documented} == {0, 1, 2, 3, 130, 141, 143}


def test_json_errors_name_the_flag(capsys) -> None:
    def call() -> None:
        raise UserInputError("`seed=-1` is too small.", argument="seed")

    with pytest.raises(SystemExit) as stop:
        run_safely(call, OPTIONS, as_json=True, left=lambda: "Nothing was written.")
    assert stop.value.code == 2
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {
        "error": "`--seed -1` is too small.",
        "argument": "--seed",
        "exit_code": 2,
    }
    assert printed.err == "Error: `--seed -1` is too small.\n"
