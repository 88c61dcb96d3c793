"""Settings that several commands make of their options."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Sequence

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


def refused(calls: Sequence[str]) -> list[UserInputError]:
    """Return the error of each call, in one process that does not import torch."""
    code = "import pickle, sys, qdqbert\nfound = []\n" + "".join(
        f"try: qdqbert.{call}\nexcept qdqbert.QdqBertError as error: found.append(error)\n"
        for call in calls
    )
    code += "assert 'torch' not in sys.modules\nsys.stdout.buffer.write(pickle.dumps(found))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    return pickle.loads(done.stdout)


def test_data_are_checked_before_torch_is_imported(tmp_path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").touch()
    contents = {"damaged.csv": b"\xff\xfe\x00t", "other.csv": b"text,label\na,b\n", "empty": b""}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    cases = {
        (model, "missing.csv"): "missing.csv` does not exist",
        (model, "damaged.csv"): "UTF-8",
        (model, "other.csv"): "'verdict'",
        (tmp_path / "missing", "empty"): "missing' does not exist",
    }
    columns = "columns=qdqbert.Columns(label='verdict')"
    calls = [
        f"quantize({str(folder)!r}, './o', calibration_data={str(tmp_path / data)!r}, {columns})"
        for folder, data in cases
    ]
    for error, words in zip(refused(calls), cases.values(), strict=True):
        assert words in str(error)


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


def test_every_command_checks_its_data_first() -> None:
    calls = {
        "quantize('m', 'o', eval_data='no.csv')": "eval_data",
        "quantize('m', calibration_data='no.csv')": "calibration_data",
        "analyze('m', calibration_data='no.csv')": "calibration_data",
        "analyze('m', data='no.csv')": "data",
        "evaluate('m', 'no.csv')": "data",
        "train('m', 'o', train_data='no.csv')": "train_data",
    }
    assert [each.argument for each in refused(list(calls))] == list(calls.values())


def test_outputs_are_checked_before_torch_is_imported(tmp_path) -> None:
    (tmp_path / "file").write_text("text")
    path = str(tmp_path)
    calls = [f"quantize('m', {path!r})", f"train('m', {path!r}, train_data={path!r})"]
    assert len(refused(calls)) == 2
