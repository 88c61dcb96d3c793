from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from qdqbert.cli._errors import ExitCode, exit_code_of, in_flags, run_safely
from qdqbert.errors import CalibrationError, GraphError, QdqBertError, UserInputError
from qdqbert.options import declared_options
from qdqbert.verbs.evaluate.options import EvaluateOptions
from qdqbert.verbs.quantize.options import QuantizeOptions

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


def test_options_of_quantize_are_named_in_messages_of_other_commands() -> None:
    text = "Add 'native' to `targets` when you quantize, or pass another `engine`."
    assert in_flags(text, declared_options(EvaluateOptions)) == (
        "Add 'native' to `--target` when you quantize, or pass another `--engine`."
    )


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
