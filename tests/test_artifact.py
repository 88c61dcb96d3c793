from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from qdqbert import quantize
from qdqbert.artifact import (
    QUANTIZATION,
    Artifact,
    check_output,
    is_artifact,
    open_artifact,
    size_bytes,
    write_json,
    writing,
)
from qdqbert.engines.runner import open_runner
from qdqbert.errors import CheckpointError, OutputExistsError, UserInputError
from qdqbert.tasks.data import Example, digest_examples

SENTENCE_TARGETS = ("portable", "onnxruntime", "onnxruntime-dynamic", "openvino")


def old_artifact(folder: Path) -> Path:
    folder.mkdir()
    write_json(folder / QUANTIZATION, {"targets": {}})
    (folder / "old").write_text("old")
    return folder


def write_and_raise(out: Path, error: type[BaseException] | None) -> None:
    with writing(out, overwrite=True) as folder:
        (folder / "file").write_text("new")
        if error is not None:
            raise error


def content_of(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_a_block_that_ends_well_leaves_the_folder_and_nothing_else(tmp_path) -> None:
    with writing(tmp_path / "new" / "out", overwrite=False) as folder:
        (folder / "file").write_text("new")
        assert not (tmp_path / "new" / "out").exists()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["out"]
    assert content_of(tmp_path / "new" / "out") == {"file": "new"}


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_a_block_that_fails_leaves_no_trace(tmp_path, error) -> None:
    with pytest.raises(error):
        write_and_raise(tmp_path / "out", error)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_a_block_that_fails_leaves_the_old_folder_as_it_was(tmp_path, error) -> None:
    out = old_artifact(tmp_path / "out")
    before = content_of(out)
    with pytest.raises(error):
        write_and_raise(out, error)
    assert list(tmp_path.iterdir()) == [out]
    assert content_of(out) == before


def test_overwriting_replaces_the_whole_folder(tmp_path) -> None:
    out = old_artifact(tmp_path / "out")
    with writing(out, overwrite=True) as folder:
        (folder / "file").write_text("new")
    assert list(tmp_path.iterdir()) == [out]
    assert content_of(out) == {"file": "new"}


def test_the_old_folder_comes_back_if_the_new_one_cannot_take_its_place(
    tmp_path, monkeypatch
) -> None:
    out = old_artifact(tmp_path / "out")
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


def test_an_old_folder_is_kept_without_overwrite(tmp_path) -> None:
    with pytest.raises(OutputExistsError, match=r"exists\. Pass `--overwrite`"):
        check_output(old_artifact(tmp_path / "out"), overwrite=False)


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_overwrite_does_not_delete_what_is_not_ours(tmp_path, kind) -> None:
    out = tmp_path / "out"
    if kind == "folder":
        out.mkdir()
        (out / "thesis.txt").write_text("years of work")
    else:
        out.write_text("years of work")
    with (
        pytest.raises(OutputExistsError, match="is no quantized or trained model"),
        writing(out, overwrite=True),
    ):
        pass
    assert out.exists()
    assert list(tmp_path.iterdir()) == [out]


def test_a_place_that_cannot_hold_a_folder_is_refused(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(UserInputError, match="cannot be written"),
        writing(tmp_path / "file" / "out", overwrite=False),
    ):
        pass


def test_the_record_tells_how_the_graph_was_made(quantized) -> None:
    made = quantized("sentence")
    record = json.loads((made.directory / QUANTIZATION).read_text())
    assert record["format"] == "qdqbert-quantization/1"
    assert record["seed"] == 0
    assert record["checkpoint"]["task"] == "feature-extraction"
    assert record["checkpoint"]["model_type"] == "bert"
    assert record["checkpoint"]["sentence_head"]["pooling"] == "mean"
    assert record["max_length"] == 32
    assert record["outputs"] == ["last_hidden_state", "sentence_embedding"]
    assert {"python", "qdqbert", "torch", "onnxruntime"} <= set(record["versions"])
    assert record["command"].startswith(f"qdqbert quantize {made.checkpoint} --output ")
    assert record["command"].endswith(" ".join(f"--target {name}" for name in SENTENCE_TARGETS))
    calibration = record["calibration"]
    assert (calibration["calibrator"], calibration["percentile"]) == ("percentile", 99.999)
    assert (calibration["data"], calibration["examples"]) == (str(made.data), 24)
    assert len(calibration["examples_sha256"]) == hashlib.sha256().digest_size * 2


def test_the_record_has_the_recipe_sites_and_ranges_of_each_target(quantized) -> None:
    record = json.loads((quantized("sentence").directory / QUANTIZATION).read_text())
    recipes = {name: entry["recipe"]["name"] for name, entry in record["targets"].items()}
    assert recipes == dict.fromkeys(SENTENCE_TARGETS, "linear")
    for target, entry in record["targets"].items():
        # One layer: 6 weights, 6 inputs and 3 tables.
        assert len(entry["sites"]) == 15
        assert entry["recipe"]["rules"][-1]["spec"]["bits"] == 8
        if target == "onnxruntime-dynamic":
            specs = [site["spec"] for site in entry["sites"].values()]
            assert specs.count("uint8 affine per-tensor dynamic") == 6
            assert not any("scale" in site for site in entry["sites"].values())
            continue
        inputs = {name: site for name, site in entry["sites"].items() if "scale" in site}
        assert set(inputs) == set(record["ranges"])
        for name, site in inputs.items():
            chosen = record["ranges"][name]
            is_affine = "affine" in site["spec"]
            span = chosen["high"] - chosen["low"] if is_affine else chosen["amax"]
            # The record keeps a float32 step as a float64.
            assert site["scale"] == pytest.approx(span / (255 if is_affine else 127), rel=1e-6)
    assert record["targets"]["onnxruntime"]["rewrites"] == [
        "fuse_integer_matmul",
        "fuse_integer_attention",
        "sum_residuals",
    ]


def test_ranges_stand_once_for_all_targets(quantized) -> None:
    directory = quantized("sentence").directory
    record = json.loads((directory / QUANTIZATION).read_text())
    tensors = load_file(directory / "ranges.safetensors")
    for name, chosen in record["ranges"].items():
        assert tensors[name].tolist() == [chosen["amax"], chosen["low"], chosen["high"]]
    assert record["pre_quant_scales"] == sorted(
        name.removesuffix(".pre_quant_scale") for name in tensors if name.endswith("_scale")
    )


def test_several_targets_have_a_folder_each(quantized) -> None:
    directory = quantized("sentence").directory
    found = {str(path.relative_to(directory)) for path in directory.rglob("*.onnx")}
    assert found == {f"{name}/model.onnx" for name in SENTENCE_TARGETS}
    assert (directory / "tokenizer.json").is_file()
    assert (directory / "config.json").is_file()


def test_one_target_has_its_graph_at_the_root(quantized) -> None:
    made = quantized("classifier")
    assert is_artifact(made.directory)
    assert open_artifact(made.directory).model_for("openvino") == made.directory / "model.onnx"


@pytest.mark.parametrize(
    ("engine", "target"), [("onnxruntime", "onnxruntime"), ("openvino", "openvino")]
)
def test_an_engine_is_given_the_graph_made_for_it(quantized, engine, target) -> None:
    artifact = open_artifact(quantized("sentence").directory)
    assert artifact.model_for(engine) == artifact.directory / target / "model.onnx"
    assert artifact.engines == ("onnxruntime", "openvino")


def test_an_engine_without_a_graph_is_told_what_to_do(tmp_path) -> None:
    artifact = Artifact(
        directory=tmp_path, quantization={"targets": {"openvino": {"model": "model.onnx"}}}
    )
    assert artifact.engines == ("openvino",)
    with pytest.raises(UserInputError, match=r"engine `onnxruntime`, only for target openvino\."):
        artifact.model_for("onnxruntime")


def test_one_of_several_graphs_for_an_engine_is_named_by_its_target(quantized) -> None:
    artifact = open_artifact(quantized("sentence").directory)
    for target in ("portable", "onnxruntime-dynamic"):
        graph = artifact.model_for("onnxruntime", target)
        assert graph == artifact.directory / target / "model.onnx"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("openvino", "`--target openvino` does not run on engine `onnxruntime`, only on: openvino"),
        ("tensorrt", "`--target tensorrt`: .* holds no such graph, only those of portable, onnx"),
    ],
)
def test_a_target_that_does_not_fit_is_refused(quantized, target, message) -> None:
    with pytest.raises(UserInputError, match=message):
        open_artifact(quantized("sentence").directory).model_for("onnxruntime", target)


def test_a_reopened_artifact_runs(quantized) -> None:
    artifact = open_artifact(quantized("sentence").directory)
    tokens = artifact.load_tokenizer()(["the cat sat", "rain"], padding=True, return_tensors="np")
    runner = open_runner("onnxruntime", artifact.model_for("onnxruntime"))
    outputs = runner.run({name: tokens[name] for name in artifact.input_names})
    assert artifact.task == "feature-extraction"
    assert artifact.load_config().hidden_size == 32
    assert outputs["sentence_embedding"].shape == (2, 32)
    # Normalised in float32.
    np.testing.assert_allclose(np.linalg.norm(outputs["sentence_embedding"], axis=1), 1, atol=1e-6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"it holds no quantization\.json. Pass a folder that `qdqbert quantize` wrote"),
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        ('{"targets": {"portable": {}}}', "cannot be read"),
        ('{"targets": {"portable": {"model": "model.onnx"}}}', "is incomplete: .*model.onnx"),
    ],
    ids=["missing", "not-json", "not-a-record", "without-model", "graph-missing"],
)
def test_a_broken_folder_is_refused(tmp_path, text, message) -> None:
    if text is not None:
        (tmp_path / QUANTIZATION).write_text(text)
    with pytest.raises(CheckpointError, match=message):
        open_artifact(tmp_path)


def test_what_is_no_folder_is_refused(tmp_path) -> None:
    with pytest.raises(CheckpointError, match="there is no such folder"):
        open_artifact(tmp_path / "none")
    (tmp_path / "model.onnx").write_bytes(b"")
    with pytest.raises(CheckpointError, match="it is a file"):
        open_artifact(tmp_path / "model.onnx")


def test_the_size_of_a_graph_has_its_weights_in_it(tmp_path) -> None:
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
        calibration_samples=24,
        benchmark=False,
    )
    for name in ("model.onnx", "ranges.safetensors", "config.json", "tokenizer.json"):
        again = (tmp_path / "again" / name).read_bytes()
        assert again == (made.directory / name).read_bytes(), name


def test_the_digest_is_that_of_the_texts_that_were_used(quantized, write_file, tmp_path) -> None:
    made = quantized("classifier")
    record = json.loads((made.directory / QUANTIZATION).read_text())
    texts = made.data.read_text().splitlines()
    everything = digest_examples(Example(text=text) for text in texts)
    assert len(texts) > record["calibration"]["examples"]
    assert record["calibration"]["examples_sha256"] != everything


def test_the_folder_one_stands_in_can_be_the_output(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with writing(Path("."), overwrite=False) as folder:
        (folder / "a").write_text("b")
    assert (tmp_path / "a").read_text() == "b"
    assert not list(tmp_path.parent.glob(f".{tmp_path.name}*"))
