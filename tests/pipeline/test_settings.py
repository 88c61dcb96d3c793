"""Settings that several commands make of their options."""

from __future__ import annotations

import subprocess
import sys

import pytest

from qdqbert.errors import UserInputError
from qdqbert.pipeline.settings import check_sequences, input_length


@pytest.mark.parametrize(
    ("asked", "usual", "length"),
    [(None, None, 64), (None, 48, 48), (None, 128, 64), (32, 48, 32), (64, 48, 64)],
)
def test_the_length_is_the_requested_or_the_usual_one(asked, usual, length) -> None:
    assert input_length(asked, usual, 64) == (length, [])


def test_a_length_above_the_limit_of_the_model_is_reported() -> None:
    length, notices = input_length(65, 48, 64)
    assert length == 64
    assert notices == ["`max_length=65` exceeds the model's limit of 64 tokens, which is used."]


def test_sequences_above_the_limit_are_refused() -> None:
    check_sequences((1, 64), "model", 64)
    with pytest.raises(UserInputError, match=r"`sequences` contains 65, .* 'model', 64 tokens"):
        check_sequences((1, 65), "model", 64)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "does not exist"),
        (b"\xff\xfe\x00t", "UTF-8"),
        (b"text,label\na,b\n", "'verdict'"),
    ],
)
def test_data_are_checked_before_torch_is_imported(content, words, tmp_path) -> None:
    data = tmp_path / "data.csv"
    if content is not None:
        data.write_bytes(content)
    code = (
        "import sys, qdqbert\n"
        "try:\n"
        f"    qdqbert.quantize('./m', './o', calibration_data={str(data)!r}, "
        "columns=qdqbert.Columns(label='verdict'))\n"
        "except qdqbert.UserInputError as error:\n"
        "    print(error)\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    message, has_torch = done.stdout.strip().rsplit("\n", 1)
    assert words in message
    assert has_torch == "False"


@pytest.mark.parametrize(
    "call",
    [
        "quantize('m', 'o', eval_data='no.csv')",
        "analyze('m', calibration_data='no.csv')",
        "evaluate('m', 'no.csv')",
        "train('m', 'o', train_data='no.csv')",
    ],
)
def test_every_command_checks_its_data_first(call) -> None:
    code = (
        "import sys, qdqbert\n"
        f"try: qdqbert.{call}\n"
        "except qdqbert.QdqBertError as error: print(error.argument)\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    argument, has_torch = done.stdout.split()
    assert argument in ("eval_data", "calibration_data", "data", "train_data")
    assert has_torch == "False"


@pytest.mark.parametrize(
    "call",
    [
        "qdqbert.quantize('m', {!r})",
        "qdqbert.train('m', {!r}, train_data={!r})",
        "qdqbert.quantize('m', calibration_data='missing.csv')",
        "qdqbert.train('m', 'other', train_data='missing.csv')",
        "qdqbert.evaluate('m', 'missing.csv')",
        "qdqbert.analyze('m', data='missing.csv')",
    ],
)
def test_paths_are_checked_before_torch_is_imported(tmp_path, call) -> None:
    (tmp_path / "file").write_text("text")
    path = str(tmp_path)
    code = (
        "import sys, qdqbert\n"
        "try:\n"
        f"    {call.format(path, path)}\n"
        "except qdqbert.UserInputError:\n"
        "    print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
