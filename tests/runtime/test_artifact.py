"""The folder that `quantize` writes: how it is replaced, and what it holds."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from qdqbert import quantize
from qdqbert.common.errors import CheckpointError, OutputExistsError, UserInputError
from qdqbert.common.files import write_json
from qdqbert.common.options.calibration import Calibration
from qdqbert.common.storage import RemotePath, place_of
from qdqbert.data.rows.data import Example, digest_examples
from qdqbert.encoders.checkpoint.tokenizer import load_tokenizer
from qdqbert.engines.registry import open_runner
from qdqbert.graphs.targets import TARGETS
from qdqbert.runtime.artifact import (
    EXPORT,
    QUANTIZATION,
    TRAINING,
    Artifact,
    check_output,
    is_artifact,
    open_artifact,
    read_training,
    size_bytes,
    writing,
)

SENTENCE_TARGETS = (
    *("portable", "onnxruntime", "onnxruntime-dynamic", "openvino", "native", "native-dynamic"),
)


def earlier_artifact(folder: Path) -> Path:
    folder.mkdir()
    write_json(folder / QUANTIZATION, {"targets": {}})
    (folder / "old").write_text("old")
    return folder


def write_and_raise(out: Path, error: BaseException | None) -> None:
    with writing(out, overwrite=True) as folder:
        (folder / "file").write_text("new")
        if error is not None:
            raise error


def content_of(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_a_block_that_succeeds_leaves_only_the_folder(tmp_path) -> None:
    with writing(tmp_path / "new" / "out", overwrite=False) as folder:
        (folder / "file").write_text("new")
        assert not (tmp_path / "new" / "out").exists()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["out"]
    assert content_of(tmp_path / "new" / "out") == {"file": "new"}


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_a_block_that_fails_changes_nothing(tmp_path, error) -> None:
    with pytest.raises(error):
        write_and_raise(tmp_path / "out", error())
    assert list(tmp_path.iterdir()) == []
    out = earlier_artifact(tmp_path / "out")
    before = content_of(out)
    with pytest.raises(error):
        write_and_raise(out, error())
    assert list(tmp_path.iterdir()) == [out]
    assert content_of(out) == before


def test_overwriting_replaces_the_whole_folder(tmp_path) -> None:
    out = earlier_artifact(tmp_path / "out")
    write_and_raise(out, None)
    assert list(tmp_path.iterdir()) == [out]
    assert content_of(out) == {"file": "new"}


def test_the_old_folder_is_restored_if_the_new_one_cannot_replace_it(tmp_path, monkeypatch) -> None:
    out = earlier_artifact(tmp_path / "out")
    before, rename = content_of(out), Path.rename

    def fail_for_new(self, target):
        if (self / "file").exists():
            raise OSError("disk trouble")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_for_new)
    with pytest.raises(OSError, match="disk trouble"):
        write_and_raise(out, None)
    assert list(tmp_path.iterdir()) == [out]
    assert content_of(out) == before


def test_an_empty_folder_may_be_filled(tmp_path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with writing(out, overwrite=False) as folder:
        (folder / "file").write_text("new")
    assert content_of(out) == {"file": "new"}


def test_the_current_folder_can_be_the_output(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with writing(Path("."), overwrite=False) as folder:
        (folder / "a").write_text("b")
    assert (tmp_path / "a").read_text() == "b"
    assert not list(tmp_path.parent.glob(f".{tmp_path.name}*"))


def test_an_earlier_folder_is_kept_without_overwrite(tmp_path) -> None:
    message = r"`output='.*out'` already exists\. Pass `overwrite=True`"
    with pytest.raises(OutputExistsError, match=message) as caught:
        check_output(earlier_artifact(tmp_path / "out"), overwrite=False)
    assert caught.value.argument == "output"


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_overwrite_deletes_only_models_of_this_package(tmp_path, kind) -> None:
    out = tmp_path / "out"
    if kind == "folder":
        out.mkdir()
        (out / "thesis.txt").write_text("years of work")
    else:
        out.write_text("years of work")
    with (
        pytest.raises(OutputExistsError, match="is not a model that this package wrote"),
        writing(out, overwrite=True),
    ):
        pass
    assert list(tmp_path.iterdir()) == [out]


def test_a_path_inside_a_file_is_refused(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(UserInputError, match="cannot be written"),
        writing(tmp_path / "file" / "out", overwrite=False),
    ):
        pass


def test_partial_folders_of_killed_processes_are_removed(tmp_path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    kept = [
        # A process that runs.
        f".out.{os.getppid()}.abc",
        # Folders of other outputs, and of other programs.
        f".output.{ended.pid}.abc",
        ".out.partial.abc",
    ]
    for name in (*kept, f".out.{ended.pid}.abc"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.onnx").write_bytes(b"partial")
    with writing(tmp_path / "out", overwrite=False):
        pass
    assert {path.name for path in tmp_path.iterdir()} == {*kept, "out"}


def test_the_partial_folder_of_a_running_process_is_kept(tmp_path) -> None:
    with writing(tmp_path / "out", overwrite=False) as first:
        (first / "file").write_text("first")
        write_and_raise(tmp_path / "other", None)
        with writing(tmp_path / "out", overwrite=False) as second:
            (second / "file").write_text("second")
            assert first.is_dir()
        (tmp_path / "out" / "file").unlink()
    assert content_of(tmp_path / "out") == {"file": "first"}


def no_space(path: Path) -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def test_a_full_disk_is_named(tmp_path, monkeypatch) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    out = tmp_path / "models" / "out"
    for path in (out, Path("unknown")):
        with pytest.raises(UserInputError, match="another `output`") as caught:
            write_and_raise(out, no_space(path))
        assert str(caught.value).startswith(f"`output='{out}'` cannot be written: No space left")
        assert caught.value.argument == "output"
    with pytest.raises(UserInputError, match="set TMPDIR to another folder") as caught:
        write_and_raise(out, no_space(temporary / "float.onnx"))
    assert f"The folder for temporary files, '{temporary}', cannot be written" in str(caught.value)
    assert caught.value.argument is None
    assert list((tmp_path / "models").iterdir()) == []


def test_an_output_in_the_temporary_folder_is_named_as_the_output(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    out = tmp_path / "out"
    with pytest.raises(UserInputError, match="another `output`"):
        write_and_raise(out, no_space(tmp_path / "float.onnx"))


def test_the_manifest_records_how_the_graph_was_made(quantized) -> None:
    made = quantized("sentence")
    manifest = json.loads((made.directory / QUANTIZATION).read_text())
    assert manifest["format"] == "qdqbert-quantization/2"
    assert manifest["seed"] == 0
    assert manifest["checkpoint"]["task"] == "feature-extraction"
    assert manifest["checkpoint"]["model_type"] == "bert"
    assert manifest["checkpoint"]["sentence_head"]["poolings"] == ["mean"]
    assert manifest["max_length"] == 32
    assert manifest["outputs"] == ["last_hidden_state", "sentence_embedding"]
    assert {"python", "qdqbert", "torch", "onnxruntime"} <= set(manifest["versions"])
    assert manifest["command"].startswith(f"qdqbert quantize {made.checkpoint} --output ")
    assert " ".join(f"--target {name}" for name in SENTENCE_TARGETS) in manifest["command"]
    calibration = manifest["calibration"]
    assert (calibration["calibrator"], calibration["percentile"]) == ("percentile", 99.999)
    assert (calibration["data"], calibration["examples"]) == (str(made.data), 24)
    assert len(calibration["examples_sha256"]) == hashlib.sha256().digest_size * 2


def test_the_manifest_has_the_recipe_sites_and_ranges_of_each_target(quantized) -> None:
    manifest = json.loads((quantized("sentence").directory / QUANTIZATION).read_text())
    recipes = {name: entry["recipe"]["name"] for name, entry in manifest["targets"].items()}
    assert recipes == dict.fromkeys(SENTENCE_TARGETS, "linear")
    for target, entry in manifest["targets"].items():
        # One layer has 6 weights, 6 inputs and 3 tables.
        assert len(entry["sites"]) == 15
        assert entry["recipe"]["rules"][-1]["spec"]["bits"] == 8
        if target.endswith("-dynamic"):
            specs = [site["spec"] for site in entry["sites"].values()]
            kind = "uint8 affine per-tensor dynamic"
            if target == "native-dynamic":
                kind = "int8 narrow symmetric per-row dynamic"
            assert sum(each.startswith(kind) for each in specs) == 6
            assert not any("scale" in site for site in entry["sites"].values())
            continue
        inputs = {name: site for name, site in entry["sites"].items() if "scale" in site}
        assert set(inputs) == set(manifest["ranges"])
        for name, site in inputs.items():
            chosen = manifest["ranges"][name]
            is_affine = "affine" in site["spec"]
            span = chosen["high"] - chosen["low"] if is_affine else chosen["amax"]
            # The manifest stores a float32 step as a float64.
            assert site["scale"] == pytest.approx(span / (255 if is_affine else 127), rel=1e-6)


def test_ranges_are_stored_once_for_all_targets(quantized) -> None:
    directory = quantized("sentence").directory
    manifest = json.loads((directory / QUANTIZATION).read_text())
    tensors = load_file(directory / "ranges.safetensors")
    for name, chosen in manifest["ranges"].items():
        assert tensors[name].tolist() == [chosen["amax"], chosen["low"], chosen["high"]]
    assert manifest["pre_quant_scales"] == sorted(
        name.removesuffix(".pre_quant_scale") for name in tensors if name.endswith("_scale")
    )


def test_several_targets_have_a_folder_each(quantized) -> None:
    directory = quantized("sentence").directory
    found = {str(path.relative_to(directory)) for path in directory.rglob("model.*")}
    assert found == {f"{name}/{TARGETS[name].file}" for name in SENTENCE_TARGETS}
    assert (directory / "tokenizer.json").is_file()
    assert (directory / "config.json").is_file()


def test_one_target_has_its_graph_at_the_root(quantized) -> None:
    made = quantized("classifier")
    assert is_artifact(made.directory)
    assert open_artifact(made.directory).model_for("openvino") == made.directory / "model.onnx"


def test_an_engine_gets_the_graph_that_was_made_for_it(quantized) -> None:
    opened = open_artifact(quantized("sentence").directory)
    assert opened.engines == ("onnxruntime", "openvino", "native")
    for engine in opened.engines:
        assert opened.model_for(engine) == opened.directory / engine / TARGETS[engine].file


def test_a_target_chooses_one_of_several_graphs_for_an_engine(quantized) -> None:
    opened = open_artifact(quantized("sentence").directory)
    for target in ("portable", "onnxruntime-dynamic"):
        graph = opened.model_for("onnxruntime", target)
        assert graph == opened.directory / target / "model.onnx"


def artifact_for(folder: Path, **engines: list[str]) -> Artifact:
    targets = {
        name: {"model": "model.onnx", "engines": names, "is_proxy": False}
        for name, names in engines.items()
    }
    return Artifact(directory=folder, targets=targets)


def test_a_missing_graph_for_an_engine_is_reported_with_a_hint(tmp_path) -> None:
    opened = artifact_for(tmp_path, openvino=["openvino"])
    message = r"no graph for engine 'onnxruntime', only for target openvino\. Add 'onnxruntime' or"
    with pytest.raises(UserInputError, match=message) as caught:
        opened.model_for("onnxruntime")
    assert caught.value.argument == "engine"
    # The graphs of `portable` run on other engines only.
    message = r"no graph for engine 'native', .* Add 'native' to `targets` when"
    with pytest.raises(UserInputError, match=message):
        opened.model_for("native")


def test_a_folder_that_no_engine_runs_is_reported_with_a_hint(tmp_path) -> None:
    with pytest.raises(
        UserInputError, match=r"only a graph for target qordered, .*Add 'portable' to `targets`"
    ):
        _ = artifact_for(tmp_path, qordered=[]).engines


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("openvino", "`target='openvino'` does not run on engine 'onnxruntime', only on: openvino"),
        ("tensorrt", "`target='tensorrt'`: .* contains graphs for portable, onnxruntime"),
    ],
)
def test_a_target_that_does_not_fit_is_refused(quantized, target, message) -> None:
    with pytest.raises(UserInputError, match=message) as caught:
        open_artifact(quantized("sentence").directory).model_for("onnxruntime", target)
    assert caught.value.argument == "target"


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("bert-v1.5", "qdqbert quantize {path} -o ./bert-v1.5-int8"),
        ("my bert", "qdqbert quantize '{path}' -o './my bert-int8'"),
        ("bert.onnx", "qdqbert quantize {path} -o ./bert-int8"),
    ],
)
def test_a_float_model_is_refused_with_the_command_that_quantizes_it(
    tmp_path, name, command
) -> None:
    path = tmp_path / name
    if path.suffix == ".onnx":
        path.write_bytes(b"")
    else:
        path.mkdir()
        write_json(path / "config.json", {"model_type": "bert"})
        (path / "model.safetensors").touch()
    with pytest.raises(CheckpointError) as caught:
        open_artifact(path)
    assert str(caught.value).endswith(f", or quantize it first: {command.format(path=path)}")


@pytest.mark.parametrize(
    ("config", "weights", "message"),
    [
        ({"model_type": "bloom"}, "model.safetensors", "`bloom` are not supported"),
        ({"model_type": "albert"}, "model.safetensors", "do not support .* `albert`"),
        ({"model_type": "bert"}, "tf_model.h5", "has no weights; expected config.json and model"),
        ({"model_type": "bert"}, "model.onnx", "no weights but an ONNX model. To use it, pass the"),
    ],
)
def test_a_checkpoint_that_cannot_be_quantized_is_not_told_to_be(
    tmp_path, config, weights, message
) -> None:
    write_json(tmp_path / "config.json", config)
    (tmp_path / weights).touch()
    with pytest.raises(CheckpointError, match=message):
        open_artifact(tmp_path)


@pytest.mark.parametrize("name", ["sentence", "classifier"])
def test_other_programs_read_the_limit_of_the_folder_and_nothing_else_cuts(quantized, name) -> None:
    folder = quantized(name).directory
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    assert (tokenizer["truncation"], tokenizer["padding"]) == (None, None)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    assert config["model_max_length"] == open_artifact(folder).max_length


def test_a_reopened_artifact_runs(quantized) -> None:
    opened = open_artifact(quantized("sentence").directory)
    tokens = load_tokenizer(str(opened.directory)).tokenizer(
        ["the cat sat", "rain"], padding=True, return_tensors="np"
    )
    runner = open_runner("onnxruntime", opened.model_for("onnxruntime"))
    outputs = runner.run({name: tokens[name] for name in opened.input_names})
    assert opened.task == "feature-extraction"
    assert opened.load_config().hidden_size == 32
    assert outputs["sentence_embedding"].shape == (2, 32)
    # Normalized in float32.
    np.testing.assert_allclose(np.linalg.norm(outputs["sentence_embedding"], axis=1), 1, atol=1e-6)


FORMAT = '"format": "qdqbert-quantization/2"'
OLDER, NEWER = (f'{{"format": "qdqbert-quantization/{number}"}}' for number in (1, 3))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"it has no quantization\.json\. Pass a folder that `quantize` wrote"),
        ("{", r"quantization\.json' is damaged: it is not JSON"),
        ("[]", r"quantization\.json' is damaged: it does not hold a JSON object"),
        (f"{{{FORMAT}}}", r"quantization\.json' is damaged: setting 'checkpoint' is missing"),
        (OLDER, r"its format is 'qdqbert-quantization/1', expected 'qdqbert-quantization/2'\. Ano"),
        (NEWER, "its format is 'qdqbert-quantization/3', expected"),
        ("{}", "its format is None, expected"),
    ],
    ids=["missing", "not-json", "not-an-object", "without-settings", "older", "newer", "none"],
)
def test_a_damaged_folder_is_refused(tmp_path, text, message) -> None:
    if text is not None:
        (tmp_path / QUANTIZATION).write_text(text)
    with pytest.raises(CheckpointError, match=message):
        open_artifact(tmp_path)


@pytest.mark.parametrize("found", ["qdqbert-training/1", "qdqbert-training/3", None])
def test_training_settings_of_another_format_are_refused(tmp_path, found) -> None:
    (tmp_path / TRAINING).write_text(json.dumps({"format": found}))
    with pytest.raises(CheckpointError, match="expected 'qdqbert-training/2'") as caught:
        read_training(tmp_path)
    assert repr(found) in str(caught.value)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("checkpoint", []),
        ("checkpoint.task", 1),
        ("max_length", 2**40),
        ("max_length", "8"),
        ("max_length", 0),
        ("max_length", True),
        ("inputs", ["input_ids", 1]),
        ("outputs", "logits"),
        ("takes_pairs", "yes"),
        ("task_options", [1]),
        ("task_options.doc_stride", None),
        ("task_options.doc_stride", 0.5),
        ("task_options.other", 1),
        ("calibration", None),
        ("embedding_ranges", [1]),
        ("embedding_ranges.low", None),
        ("embedding_ranges.high", [0.1, float("inf")]),
        ("embedding_ranges.lengths", ["1"]),
        ("embedding_ranges", {"low": [0.1], "high": [0.2], "lengths": [0.1, 0.2]}),
        ("embedding_ranges", {"low": [], "high": [], "lengths": []}),
        ("choice", "native"),
        ("targets", []),
        ("targets.portable", None),
        ("targets.portable.model", ["model.onnx"]),
        ("targets.portable.model", "../model.onnx"),
        ("targets.portable.model", "/model.onnx"),
        ("targets.portable.engines", "onnxruntime"),
        ("targets.portable.is_proxy", 0),
        ("targets.portable.sites", None),
    ],
)
def test_wrong_settings_are_refused(quantized, tmp_path, place, value) -> None:
    content = json.loads((quantized("classifier").directory / QUANTIZATION).read_text())
    content["embedding_ranges"] = {"low": [0.1], "high": [0.2], "lengths": [0.1]}
    *parents, last = place.split(".")
    inner = content
    for name in parents:
        inner = inner[name]
    inner[last] = value
    (tmp_path / QUANTIZATION).write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=rf"quantization\.json' .* setting '{place}"):
        open_artifact(tmp_path)


def test_a_folder_without_its_graph_is_refused(quantized, tmp_path) -> None:
    shutil.copy(quantized("classifier").directory / QUANTIZATION, tmp_path)
    with pytest.raises(CheckpointError, match=r"is incomplete: .*model\.onnx is missing"):
        open_artifact(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("id2label", {"0": "a", "1": "b", "3": "c"}),
        ("problem_type", "other"),
        ("sentence_transformers", 1),
    ],
)
def test_wrong_settings_of_the_config_are_refused(quantized, tmp_path, name, value) -> None:
    folder = shutil.copytree(quantized("classifier").directory, tmp_path / "int8")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
    with pytest.raises(CheckpointError, match=rf"{name}\W.*config\.json|config\.json.*'{name}'"):
        open_artifact(folder).read_config()


def test_a_path_that_is_not_a_folder_is_refused(tmp_path) -> None:
    with pytest.raises(CheckpointError, match="the folder does not exist"):
        open_artifact(tmp_path / "none")
    (tmp_path / "model.onnx").write_bytes(b"")
    with pytest.raises(CheckpointError, match="it is a file"):
        open_artifact(tmp_path / "model.onnx")


def test_a_checkpoint_that_quantize_does_not_take_is_not_advised_to_be_quantized(tmp_path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "clip"}')
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(CheckpointError, match="of type `clip`") as refused:
        open_artifact(tmp_path)
    assert "is not a quantized model" in str(refused.value)
    assert "qdqbert quantize" not in str(refused.value)


def test_the_size_of_a_graph_includes_external_weights(tmp_path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"123")
    assert size_bytes(tmp_path / "model.onnx") == 3
    (tmp_path / "model.onnx.data").write_bytes(b"4567")
    assert size_bytes(tmp_path / "model.onnx") == 7


def test_equal_calls_write_equal_graphs_and_ranges(quantized, tmp_path) -> None:
    made = quantized("classifier")
    quantize(
        str(made.checkpoint),
        tmp_path / "again",
        calibration_data=str(made.data),
        calibration=Calibration(samples=24),
        targets=["portable"],
        benchmark=False,
    )
    for name in ("model.onnx", "ranges.safetensors", "config.json", "tokenizer.json"):
        again = (tmp_path / "again" / name).read_bytes()
        assert again == (made.directory / name).read_bytes(), name


def test_the_digest_covers_only_the_examples_that_were_used(
    quantized, write_file, tmp_path
) -> None:
    made = quantized("classifier")
    manifest = json.loads((made.directory / QUANTIZATION).read_text())
    texts = made.data.read_text().splitlines()
    everything = digest_examples(Example(text=text) for text in texts)
    assert len(texts) > manifest["calibration"]["examples"]
    assert manifest["calibration"]["examples_sha256"] != everything


# Outputs in object storage.


@pytest.fixture
def remote(tmp_path: Path) -> RemotePath:
    """The place of a folder in memory, which does not exist."""
    found = place_of(f"memory://bucket/{tmp_path.name}")
    assert isinstance(found, RemotePath)
    return found


def write(place: RemotePath, *, overwrite: bool = False, name: str = QUANTIZATION) -> None:
    with writing(place, overwrite=overwrite) as folder:
        (folder / name).write_text("{}")
        (folder / "native").mkdir()
        (folder / "native" / "model.safetensors").write_text(name)


def names_in(place: RemotePath) -> set[str]:
    return {path.url[len(place.url) + 1 :] for path in place.find()}


def test_a_folder_in_storage_is_replaced_as_one_of_this_machine(remote) -> None:
    write(remote, name=EXPORT)
    assert names_in(remote) == {EXPORT, "native/model.safetensors"}
    with pytest.raises(OutputExistsError, match=rf"`output='{remote}'` already exists"):
        write(remote)
    write(remote, overwrite=True)
    assert names_in(remote) == {QUANTIZATION, "native/model.safetensors"}
    (remote / QUANTIZATION).unlink()
    with pytest.raises(OutputExistsError, match="is not a model that this package wrote"):
        write(remote, overwrite=True)


def test_a_folder_in_storage_is_not_changed_if_the_block_fails(remote) -> None:
    write(remote)

    def fail() -> None:
        with writing(remote, overwrite=True) as folder:
            (folder / "half").write_text("")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert names_in(remote) == {QUANTIZATION, "native/model.safetensors"}


def test_a_folder_that_cannot_be_uploaded_is_kept(remote, tmp_path, monkeypatch) -> None:
    def refused(self: RemotePath, path: Path) -> None:
        raise PermissionError(errno.EACCES, "Access Denied")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(RemotePath, "upload", refused)
    with pytest.raises(UserInputError, match=rf"`output='{remote}'`.*Access Denied") as caught:
        write(remote)
    assert caught.value.argument == "output"
    kept = Path(str(caught.value).split("kept in '")[1].split("'")[0])
    assert (kept / QUANTIZATION).is_file()
    assert not names_in(remote)
