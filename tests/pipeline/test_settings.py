"""Settings that several commands make of their options."""

from __future__ import annotations

import subprocess
import sys

import pytest

from qdqbert.common.errors import UserInputError
from qdqbert.common.options.tasks import TaskOptions
from qdqbert.pipeline.settings import check_model, check_sequences, input_length, task_options_of
from qdqbert.tasks.registry import TASKS


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
    ("model", "content", "words"),
    [
        ("model", None, "data.csv` does not exist"),
        ("model", b"\xff\xfe\x00t", "UTF-8"),
        ("model", b"text,label\na,b\n", "'verdict'"),
        ("missing", b"", "missing' does not exist"),
    ],
)
def test_data_are_checked_before_torch_is_imported(model, content, words, tmp_path) -> None:
    data = tmp_path / "data.csv"
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").touch()
    if content is not None:
        data.write_bytes(content)
    code = (
        "import sys, qdqbert\n"
        "try:\n"
        f"    qdqbert.quantize({str(tmp_path / model)!r}, './o', calibration_data={str(data)!r}, "
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
    ("name", "words"),
    [
        ("missing", "Folder '.*missing' does not exist"),
        ("missing.onnx", "File '.*missing.onnx' does not exist"),
        ("empty", "has no weights; expected config.json and model.safetensors"),
        ("file.txt", "is a file; expected a checkpoint folder or a hub id"),
        ("int8", "is quantized already. Pass the float checkpoint that it was made from. Or so."),
    ],
)
def test_what_is_no_model_is_refused_with_the_parameter(name, words, tmp_path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.txt").touch()
    (tmp_path / "int8").mkdir()
    (tmp_path / "int8" / "quantization.json").touch()
    with pytest.raises(UserInputError, match=words) as caught:
        check_model(str(tmp_path / name), "distill_from", advice=" Or so.")
    assert str(caught.value).startswith("`distill_from`: ")
    assert caught.value.argument == "distill_from"


def test_models_that_may_be_on_the_hub_are_not_checked() -> None:
    check_model(None, "model")
    check_model("owner/name", "model")


@pytest.mark.parametrize(
    ("task", "given", "refused"),
    [
        ("question-answering", TaskOptions(doc_stride=8), None),
        ("fill-mask", TaskOptions(mlm_probability=0.3), None),
        ("text-classification", TaskOptions(doc_stride=8), "`doc_stride=8` does not apply to"),
        ("question-answering", TaskOptions(mlm_probability=0.3), "`mlm_probability=0.3` does not"),
        ("feature-extraction", TaskOptions(pooling="mean"), None),
    ],
)
def test_settings_of_other_tasks_are_refused(task, given, refused) -> None:
    if refused is None:
        task_options_of(TASKS[task], given, {})
    else:
        with pytest.raises(UserInputError, match=refused):
            task_options_of(TASKS[task], given, {})


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
