from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import re
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

# cyclopts checks values with it once it is imported, which must not change messages.
import pydantic  # noqa: F401
import pytest
from safetensors.numpy import load_file, save_file

from python_process import run_python
from qdqbert.cli import main
from qdqbert.cli._commands import COMMANDS
from training_files import before_batch


@dataclasses.dataclass(frozen=True)
class Result:
    """What a command printed, and its exit code."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


def run(arguments: Sequence[object]) -> Result:
    """Run a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = int(stop.code or 0)
    return Result(exit_code=code, stdout=out.getvalue(), stderr=err.getvalue())


@pytest.mark.parametrize("size", ["0", "-5", "\u00b2", "9" * 5000])
def test_a_size_that_no_terminal_has_is_not_known(monkeypatch, size) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("LINES", raising=False)
    usual = [run(words).output for words in (["--help"], ["run", "x"])]
    assert all(usual)
    monkeypatch.setenv("COLUMNS", size)
    monkeypatch.setenv("LINES", size)
    assert [run(words).output for words in (["--help"], ["run", "x"])] == usual


@pytest.mark.parametrize(("policy", "spins"), [(None, "3000"), ("active", None)])
def test_threads_of_pytorch_soon_sleep_unless_the_user_decides(monkeypatch, policy, spins) -> None:
    for name, value in (("OMP_WAIT_POLICY", policy), ("GOMP_SPINCOUNT", None)):
        monkeypatch.setenv(name, value or "")
        if value is None:
            monkeypatch.delenv(name)
    run(["--version"])
    assert os.environ.get("GOMP_SPINCOUNT") == spins


def strict_json(text: str) -> Any:
    """Parses JSON as its RFC has it: `NaN` and `Infinity` are none."""

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def fails(arguments: list[str | Path], *, status: int = 2) -> str:
    """Run a command that must fail, and return its error, which is one line and the last."""
    result = run(arguments)
    assert result.exit_code == status, result.output
    assert "Traceback" not in result.output
    assert result.stdout == ""
    errors = result.stderr[result.stderr.index("Error: ") :]
    assert errors.count("\n") == 1, errors
    return errors.strip()


def damage_weights(folder: Path, change: Callable[[str, np.ndarray], np.ndarray]) -> None:
    path = folder / "model.safetensors"
    tensors = {name: change(name, array) for name, array in load_file(path).items()}
    save_file(tensors, path, metadata={"format": "pt"})


@pytest.fixture
def out(tmp_path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def quantize(checkpoints, out) -> list[str | Path]:
    """A command that would work, and take long."""
    return ["quantize", checkpoints("bert"), "-o", out, "--no-benchmark"]


@pytest.mark.slow
def test_help_is_the_same_where_python_removes_docstrings() -> None:
    command = ["-m", "qdqbert", "quantize", "--help"]
    whole, without = (run_python(*flags, *command) for flags in ([], ["-OO"]))
    assert whole == without


@pytest.mark.slow
def test_models_of_transformers_run_where_python_removes_docstrings(checkpoints, tmp_path) -> None:
    data = tmp_path / "data.csv"
    data.write_text("text,label\nthe cat sat,0\nrain,1\n", encoding="utf-8")
    command = ["-m", "qdqbert", "evaluate", checkpoints("classifier"), "--data", data]
    whole, without = (run_python(*flags, *command) for flags in ([], ["-OO"]))
    (line,) = [each for each in whole.splitlines() if "accuracy" in each][:1]
    assert line in without


@pytest.mark.parametrize("verb", [each.name for each in COMMANDS])
def test_help_of_each_verb_has_an_example(verb) -> None:
    result = run([verb, "--help"])
    assert result.exit_code == 0
    assert f"Example: qdqbert {verb}" in " ".join(result.stdout.split())


@pytest.mark.parametrize(
    ("verb", "usage"),
    [
        ("quantize", "Usage: qdqbert quantize [OPTIONS] [MODEL]"),
        ("train", "Usage: qdqbert train --output STR --train-data STR [OPTIONS] MODEL"),
        ("serve", "Usage: qdqbert serve [OPTIONS] MODELS..."),
        ("push", "Usage: qdqbert push [OPTIONS] MODEL REPO"),
        ("doctor", "Usage: qdqbert doctor [OPTIONS]"),
    ],
)
def test_help_begins_with_the_arguments(verb, usage) -> None:
    assert run([verb, "--help"]).stdout.splitlines()[0] == usage


@pytest.mark.parametrize("verb", [each.name for each in COMMANDS])
def test_help_is_about_the_command_line(verb) -> None:
    printed = run([verb, "--help"]).stdout
    assert "ARGS" not in printed
    assert "Python also" not in printed


def test_help_shows_words_and_defaults_as_they_are_typed() -> None:
    printed = " ".join(run(["benchmark", "--help"]).stdout.replace("│", "").split())
    assert "--batch INT... Batch sizes. Separate several with commas. [default: 1,8]" in printed
    assert "--seconds FLOAT" in printed
    assert "--ray STR" in run(["quantize", "--help"]).stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "m", "--threads", "x"], "`--threads x`: expected a whole number, at least 1."),
        (["serve", "m", "--port", "1.5"], "`--port 1.5`: expected a whole number, at least 0 and"),
        (
            ["benchmark", "m", "--batch", "1,b"],
            "`--batch b`: expected whole numbers separated by",
        ),
        (["quantize", "m", "--seed", "x"], "`--seed x`: expected a whole number."),
        (["quantize", "m", "--max-drop", "x"], "`--max-drop x`: expected a number, at least 0."),
        (["quantize", "m", "--min-cosine", "-2"], "must be at least -1 and at most 1, got -2.0"),
        (["quantize", "m", "--overwrite=x"], "`--overwrite=x`: expected no value. Pass"),
    ],
)
def test_a_value_of_another_kind_is_refused_with_what_is_accepted(arguments, message) -> None:
    assert message in fails(arguments)


def test_help_lists_the_commands_and_version_prints_it() -> None:
    printed = run(["--help"]).stdout
    assert all(each.name in printed for each in COMMANDS)
    assert run(["--version"]).stdout.startswith("qdqbert ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--calibration-data", "no-such.txt"], "`--calibration-data`: Data file `no-such.txt`"),
        (
            ["--task", "sentiment"],
            "`--task sentiment` is unknown. Choose one of: entity-extraction, ",
        ),
        (["--task", "fill-mask"], "has no head for task `fill-mask`: it lacks `"),
        (["--target", "gpu"], "`--target gpu` is unknown. Choose one of: portable, onnxruntime"),
        (["--recipe", "best"], "`--recipe best` is unknown. Choose one of: ffn, linear"),
        (["--calibrator", "best"], "`--calibrator best` is unknown. Choose one of: max"),
        (["--embeddings"], "`--embeddings` needs a value. How embedding tables are stored."),
        (
            ["--calibrator", "max", "--percentile", "99"],
            "`--percentile 99.0` requires `--calibrator percentile`",
        ),
        (["--calibration-samples", "0"], "`--calibration-samples` must be at least 1, got 0"),
        (["--batch-size", "0"], "`--batch-size` must be at least 1, got 0"),
        (["--max-length", "2"], "`--max-length` must be at least 3, got 2"),
        (["--target", "onnxruntime", "--recipe", "Linear"], "`--recipe Linear` is unknown"),
        (
            ["--calibrator", "percentile", "--percentile", "0.999"],
            "it is in percent, so `--percentile 99.9` covers 99.9 % of the magnitudes",
        ),
        (
            ["--task", "text-classification"],
            "has no head for task `text-classification`: it lacks `",
        ),
    ],
    ids=[
        "missing-data",
        "unknown-task",
        "missing-head",
        "unknown-target",
        "unknown-recipe",
        "unknown-calibrator",
        "no-value",
        "percentile-without-calibrator",
        "no-samples",
        "no-batch",
        "max-length-too-short",
        "recipe-in-capitals",
        "fraction-for-percent",
        "head-missing",
    ],
)
def test_quantize_refuses_in_one_line_and_writes_nothing(quantize, out, arguments, message) -> None:
    assert message in fails([*quantize, *arguments])
    assert not out.exists()
    assert not list(out.parent.glob(".out*"))


def test_a_percentile_out_of_range_is_refused(quantize) -> None:
    message = fails([*quantize, "--calibrator", "percentile", "--percentile", "101"])
    assert "`--percentile` must be above 0 and at most 100, got 101.0" in message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluate", "model"], "`--data` is missing. Pass labeled examples. Or pass the float"),
        (["evaluate"], "`MODEL` is missing. Folder that `quantize` wrote"),
        (["benchmark"], "`MODELS` is missing"),
    ],
    ids=["data", "model", "models"],
)
def test_what_is_missing_is_named(arguments, message) -> None:
    assert message in fails(arguments)


@pytest.mark.parametrize(
    ("name", "text", "arguments", "message"),
    [
        ("empty.txt", "", [], "contains no examples"),
        ("blank.txt", "\n \n", [], "contains no examples"),
        (
            "data.csv",
            "text,label\na,b\n",
            ["--text-column", "body"],
            "`--text-column body` must be a column",
        ),
        ("data.xlsx", "PAR1", [], "must end in one of"),
        ("data.jsonl", "{\n", [], "Line 1 of"),
    ],
    ids=["empty", "blank", "wrong-column", "unknown-suffix", "broken-json"],
)
def test_unusable_data_is_refused(quantize, write_file, name, text, arguments, message) -> None:
    path = write_file(name, text)
    assert message in fails([*quantize, "--calibration-data", path, *arguments])


def test_an_output_that_exists_is_refused_before_anything_is_done(quantize, out) -> None:
    out.mkdir()
    (out / "thesis.txt").write_text("years of work")
    assert "already exists. Pass `--overwrite`" in fails(quantize)
    assert "is not a model that this package wrote" in fails([*quantize, "--overwrite"])
    assert (out / "thesis.txt").read_text() == "years of work"


def test_the_error_for_an_unknown_family_lists_the_known_ones(write_file, out, tmp_path) -> None:
    write_file("config.json", json.dumps({"model_type": "gpt2", "architectures": ["GPT2Model"]}))
    write_file("model.safetensors", "")
    message = fails(["quantize", tmp_path, "-o", out])
    assert "type `gpt2` are not supported" in message
    assert "Supported families: bert, bert-generation, camembert, data2vec-text" in message


def test_a_folder_without_weights_is_refused(checkpoint_copy, out) -> None:
    folder = checkpoint_copy("bert")
    (folder / "model.safetensors").unlink()
    assert "has no weights" in fails(["quantize", folder, "-o", out])
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.onnx").write_bytes(b"")
    message = fails(["quantize", folder, "-o", out])
    assert "has no weights but an ONNX model. To use it" in message


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("./no/such/folder", "does not exist. Check the path."),
        ("no/such/folder", "the hub cannot have a model of this name"),
        ("no-such-model-anywhere", "no such folder exists here, and HF_HUB_OFFLINE=1 forbids"),
    ],
    ids=["path", "no-hub-id", "hub-id"],
)
def test_a_checkpoint_that_is_nowhere_is_refused(out, name, reason) -> None:
    message = fails(["quantize", name, "-o", out])
    assert message.startswith("Error: `MODEL`: ")
    assert f"'{name}'" in message
    assert reason in message


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("model.safetensors", "not safetensors"),
        ("config.json", "{"),
        ("tokenizer.json", "{"),
        ("modules.json", "{"),
    ],
    ids=lambda value: value if "." in value else "",
)
def test_a_damaged_file_of_a_checkpoint_is_one_line(checkpoint_copy, out, file, text) -> None:
    folder = checkpoint_copy("bert")
    (folder / file).write_text(text)
    fails(["quantize", folder, "-o", out])


def test_weights_that_do_not_fit_the_config_are_reported_in_one_line(checkpoint_copy, out) -> None:
    folder = checkpoint_copy("bert")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 48}))
    fails(["quantize", folder, "-o", out])


@pytest.mark.parametrize(
    "weight", ["bert.encoder.layer.0.output.dense.weight", "classifier.weight"]
)
def test_nan_weights_are_refused_wherever_they_stand(checkpoint_copy, out, weight) -> None:
    folder = checkpoint_copy("classifier")
    damage_weights(folder, lambda name, array: array * np.nan if name == weight else array)
    message = fails(["quantize", folder, "-o", out, "--calibration-samples", "4"])
    assert f"Tensor `{weight}` of " in message
    assert "classifier-copy" in message
    assert "not finite" in message
    assert not out.exists()


@pytest.fixture(scope="module")
def happy(checkpoints, tmp_path_factory) -> tuple[Result, Path]:
    """One run of `quantize --json`, with texts that are too long and data that is too short."""
    folder = tmp_path_factory.mktemp("happy")
    rows = ["text,label", *(f"the cat is {'very ' * (i * 3)}good,{i}" for i in range(12))]
    (folder / "data.csv").write_text("\n".join(rows))
    arguments = [
        *("quantize", checkpoints("classifier"), "-o", folder / "out", "--json"),
        *("--calibration-data", folder / "data.csv", "--max-length", "16", "--no-benchmark"),
        *("--target", "onnxruntime", "--calibrator", "percentile", "--embeddings", "float"),
    ]
    return run(arguments), folder / "out"


def test_json_is_all_that_stands_on_stdout(happy) -> None:
    result, out = happy
    assert result.exit_code == 0, result.output
    report = strict_json(result.stdout)
    assert report == strict_json((out / "report.json").read_text())
    assert report["directory"] == str(out)
    assert (report["calibration_texts"], report["heldout_texts"]) == (8, 4)
    assert report["targets"][0]["fidelity"]["flips_percent"] is not None


def test_truncated_texts_are_counted_and_reported(happy) -> None:
    result, _ = happy
    notices = " ".join(strict_json(result.stdout)["notices"])
    # By hand: [CLS] the cat is (very x 3i) good [SEP] is 6 + 3i tokens, over 16 from i = 4 on.
    cut = re.findall(r"In the (\S+) data: (\d) of (\d) texts were longer than 16 tokens", notices)
    assert [(name, total) for name, _, total in cut] == [("held-out", "4"), ("calibration", "8")]
    assert sum(int(count) for _, count, _ in cut) == 8
    assert "Calibrated on 8 examples of `calibration_data`. 4 others are held out" in notices


def test_the_record_of_a_run_holds_its_options(happy) -> None:
    _, out = happy
    record = json.loads((out / "quantization.json").read_text())
    assert record["max_length"] == 16
    assert record["embeddings"] == "float"
    assert record["calibration"]["calibrator"] == "percentile"
    assert record["calibration"]["percentile"] > 99
    for words in ("--max-length 16", "--calibrator percentile", "--embeddings float"):
        assert words in record["command"]


def test_progress_stands_on_stderr(happy) -> None:
    result, _ = happy
    assert "Calibrating" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [["quantize", "missing"], ["benchmark", "missing", "--batch", "one"]],
    ids=["quantize", "benchmark"],
)
def test_an_error_is_json_too_where_json_is_asked_for(arguments) -> None:
    result = run([*arguments, "--json"])
    assert result.exit_code == 2
    assert set(strict_json(result.stdout)) == {"error", "argument", "exit_code"}


@pytest.fixture
def train(checkpoints, write_file, out) -> list[str | Path]:
    """A command that trains for two steps."""
    rows = [f"the cat is {'very ' * i}good\t{i % 3}" for i in range(8)]
    data = write_file("train.tsv", "\n".join(["text\tlabel", *rows]))
    arguments = ["train", checkpoints("classifier"), "-o", out, "--train-data", data]
    return [*arguments, "--epochs", "1", "--batch-size", "4"]


def test_training_prints_a_table_or_json(train, write_file, out) -> None:
    dev = write_file("dev.tsv", "text\tlabel\nrain\tneutral\na dog\t2\n")
    words = [str(word) for word in [*train, "--eval-data", dev, "--qat", "--seed", "3"]]
    result = run([*words, "--json"])
    assert result.exit_code == 0, result.output
    report = strict_json(result.stdout)
    assert report == strict_json((out / "training.json").read_text())["report"]
    assert (report["steps"], report["quantizers"], report["directory"]) == (2, 43, str(out))
    assert report["after"][0]["name"] == "accuracy"
    assert "Trained for 2 steps only, with `epochs=1`. That hardly" in report["notices"][-1]
    assert "Training" in result.stderr
    assert not Path(f"{out}-checkpoints").exists()
    table = run([*train, "--overwrite"])
    assert table.exit_code == 0, table.output
    assert ": float training" in " ".join(table.stdout.split())
    assert "Pass `--eval-data` to see metrics." in " ".join(table.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--eval-data", "no-such.tsv"], "`--eval-data`: Data file `no-such.tsv`"),
        (["--distill-from", "./no-such"], "`--distill-from`: Folder './no-such' does"),
        (["--qat-ranges", "learned"], "`--qat-ranges` configures quantizers and requires `--qat`"),
        (["--epochs", "0"], "`--epochs` must be above 0 and below inf, got 0.0"),
        (["--label-column", "stars"], "`--label-column stars` must be a column"),
        (["--keep-best"], "`--keep-best` requires `--eval-data`"),
        (["--max-eval-examples", "3"], "`--max-eval-examples 3` requires `--eval-data`"),
        (["--mlm-probability", "0.3"], "`--mlm-probability 0.3` does not apply to task"),
        (["--resume"], "There is no checkpoint in "),
    ],
    ids=[
        "missing-data",
        "missing-teacher",
        "without-qat",
        "epochs",
        "column",
        "keep-best",
        "max-eval-examples",
        "setting",
        "resume",
    ],
)
def test_train_refuses_in_one_line_and_writes_nothing(train, out, arguments, message) -> None:
    assert message in fails([*train, *arguments])
    assert list(out.parent.glob("*out*")) == []


@pytest.mark.parametrize("name", ["quantize", "doctor"])
def test_one_argument_too_many_is_named(name) -> None:
    given = [name, "model", "more"] if name == "quantize" else [name, "more"]
    message = fails(given)
    assert message == f"Error: `more` is one argument of `qdqbert {name}` too many. Leave it out."


@pytest.mark.parametrize(
    ("name", "flag", "value"),
    [("classifier", "--min-cosine", "0.9"), ("sentence", "--max-flips", "1")],
)
def test_a_limit_of_another_task_is_refused_before_anything_runs(
    checkpoints, out, name, flag, value
) -> None:
    for given in (["quantize", "-o", out], ["evaluate", "--reference", checkpoints(name)]):
        result = run([*given, checkpoints(name), flag, value])
        assert result.exit_code == 2
        assert f"`{flag} {value}` applies to" in result.stderr
        assert "Calibrating" not in result.stderr
        assert "Evaluating" not in result.stderr


def test_the_target_without_quantizers_is_not_analyzed() -> None:
    assert "`--target float` has no quantizers" in fails(["analyze", "m", "--target", "float"])


def test_training_a_checkpoint_that_is_not_there_is_one_line(train) -> None:
    train[1] = "./no-such-model"
    assert "Folder './no-such-model' does not exist" in fails(train)


def test_evaluate_prints_a_table_or_json(quantized, write_file) -> None:
    made = quantized("classifier")
    data = write_file("dev.csv", "text,label\nthe cat,positive\nthe dog,2\nrain,Neutral\n")
    arguments = ["evaluate", str(made.directory), "--data", str(data)]
    arguments += ["--reference", str(made.checkpoint)]
    table, report = (run([*arguments, *more]) for more in ([], ["--json"]))
    assert table.exit_code == 0, table.output
    assert "accuracy" in table.stdout
    assert "on 3 examples of" in " ".join(table.stdout.split())
    parsed = strict_json(report.stdout)
    assert parsed["metrics"][0]["name"] == "accuracy"
    assert parsed["fidelity"]["texts"] == 3


def test_a_limit_that_is_not_met_gives_an_exit_code_of_its_own(checkpoints, write_file) -> None:
    folder, data = checkpoints("classifier"), write_file("dev.csv", "text,label\nrain,1\na dog,2\n")
    arguments = ["evaluate", folder, "--data", data, "--reference", folder]
    met = run([*arguments, "--max-drop", "85"])
    assert met.exit_code == 0, met.output
    rows = [[cell.strip() for cell in line.split("│")] for line in met.stdout.splitlines()]
    (found,) = (row for row in rows if "loss of accuracy of at most 85" in row)
    assert found[3].startswith("+0.00 (-8")
    assert found[4] == "met"
    # No changed prediction of two, which says little about others.
    unknown = run([*arguments, "--max-flips", "10", "--max-drop", "1", "--json"])
    assert unknown.exit_code == 3
    flips, drop = sorted(strict_json(unknown.stdout)["limits"], key=lambda each: -each["limit"])
    assert (flips["option"], flips["verdict"], flips["value"]) == ("max_flips", "not shown", 0)
    assert (drop["option"], drop["verdict"], drop["value"]) == ("max_drop", "not shown", 0)
    # 1 - 0.025 ^ (1 / n) is 0.1 for 36 examples, and 0.01 for 368.
    assert 36 <= flips["examples_needed"] <= 37
    assert 368 <= drop["examples_needed"] <= 390


def test_evaluating_a_checkpoint_against_itself_is_still_json(checkpoints, write_file) -> None:
    data = write_file("dev.csv", "text,label\nthe cat,positive\nthe dog,2\n")
    folder = str(checkpoints("classifier"))
    result = run(["evaluate", folder, "--data", data, "--reference", folder, "--json"])
    assert result.exit_code == 0, result.output
    assert strict_json(result.stdout)["fidelity"]["flips_percent"] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--engine", "tensorflow"],
            "`--engine tensorflow` is unknown. Choose one of: onnxruntime, openvino, native.",
        ),
        (["--task", "feature-extraction"], "which is a model for 'text-classification'"),
        (["--max-examples", "0"], "`--max-examples` must be at least 1"),
        (["--label-column", "stars"], "`--label-column stars` must be a column"),
        (["--doc-stride", "8"], "`--doc-stride 8` does not apply to task 'text-classification'"),
        (["--output", __file__], "is a file. Pass a folder"),
        (["--reference", "./no"], "`--reference`: Folder './no' does not exist. Check the path."),
        (["--engine", "native", "--provider", "cpu"], "engine 'native' has none. Leave"),
    ],
    ids=["engine", "task", "no-examples", "column", "setting", "output", "reference", "provider"],
)
def test_evaluate_refuses_in_one_line(quantized, write_file, arguments, message) -> None:
    data = write_file("dev.csv", "text,label\nthe cat,positive\n")
    directory = quantized("classifier").directory
    assert message in fails(["evaluate", directory, "--data", data, *arguments])


def test_an_unknown_label_lists_those_of_the_model(quantized, write_file) -> None:
    data = write_file("dev.csv", "text,label\nthe cat,excellent\n")
    message = fails(["evaluate", quantized("classifier").directory, "--data", data])
    assert message.startswith("Error: `--data`: Line 2 of ")
    assert "'excellent' is not one of the model's: 0 or 'Negative', 1 or 'Neutral'" in message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--engine", "onnxruntime,tpu"], "`--engine tpu` is unknown"),
        (["--batch", "one"], "`--batch one`: expected whole numbers separated by commas"),
        (["--sequence", "0"], "at least 1"),
        (["--rounds", "0"], "at least 1"),
        (["--sequence", "4096"], "`--sequence` contains 4096, which exceeds the limit"),
    ],
    ids=["engine", "batch", "sequence", "rounds", "too-long"],
)
def test_benchmark_refuses_in_one_line(quantized, arguments, message) -> None:
    assert message in fails(["benchmark", quantized("classifier").directory, *arguments])


def test_a_graph_file_that_is_not_there_is_refused() -> None:
    assert "'missing.onnx' does not exist" in fails(["benchmark", "missing.onnx"])


def test_benchmark_prints_a_table_or_json(quantized) -> None:
    arguments = ["benchmark", str(quantized("classifier").directory), "--engine", "onnxruntime"]
    arguments += ["--batch", "1", "--sequence", "4", "--rounds", "1", "--threads", "1"]
    result = run([*arguments, "--json"])
    assert result.exit_code == 0, result.output
    report = strict_json(result.stdout)
    assert report["threads"] == 1
    assert report["speedups"] == [1.0]
    assert [timing["sequence"] for timing in report["timings"]] == [4]


@pytest.mark.parametrize(
    ("number", "message", "status"),
    [
        (signal.SIGINT, "Interrupted. Nothing was written.", 130),
        (signal.SIGTERM, "Stopped by SIGTERM. Nothing was written.", 143),
    ],
    ids=["SIGINT", "SIGTERM"],
)
def test_a_signal_stops_a_command_and_its_partial_folder_is_removed(
    quantize, out, monkeypatch, number, message, status
) -> None:
    def interrupt(*arguments, **options):
        assert list(out.parent.glob(".out.*"))
        signal.raise_signal(number)

    monkeypatch.setattr("qdqbert.verbs.quantize.run.open_source", interrupt)
    # A shell that starts the tests in the background turns SIGINT off.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert message in fails(quantize, status=status)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not list(out.parent.glob("*out*"))


@pytest.mark.parametrize(
    ("batch", "message"),
    [(2, "Nothing was written, because"), (3, "Checkpoints are in {out}-checkpoints. Continue")],
)
def test_an_interrupted_training_names_checkpoints_only_if_there_are_some(
    train, out, monkeypatch, batch, message
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    before_batch(monkeypatch, batch, interrupt)
    printed = fails([*train, "--epochs", "2", "--eval-steps", "2", "-o", f"{out}/"], status=130)
    assert f"Interrupted. {message.format(out=out)}" in printed
    assert Path(f"{out}-checkpoints").exists() == (batch == 3)
    assert not out.exists()


def test_a_report_is_made_of_plain_values(quantized) -> None:
    strict_json(json.dumps(dataclasses.asdict(quantized("sentence").report), allow_nan=False))
