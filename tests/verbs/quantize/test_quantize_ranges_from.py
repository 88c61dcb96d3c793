"""`quantize` with the ranges of an earlier call."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import flat
import qdqbert
from qdqbert.calibration.calibration import CalibrationResult
from qdqbert.calibration.ranges_file import read_ranges
from qdqbert.common.errors import UserInputError
from qdqbert.common.progress import Silent
from qdqbert.data.tokenizing.encoding import encode, make_batches
from qdqbert.encoders.checkpoint.load import load_checkpoint
from qdqbert.encoders.checkpoint.tokenizer import runtime_tokenizer
from qdqbert.graphs.check import save_graph
from qdqbert.graphs.of_checkpoint import encoder_of
from qdqbert.graphs.writer import make_graph
from qdqbert.pipeline.plans import Scheme, choose_targets, make_plans
from qdqbert.pipeline.ranges import (
    choose_range_source,
    find_calibration,
    open_earlier,
)
from qdqbert.pipeline.source import ModelPath, open_source
from qdqbert.verbs.quantize.options import QuantizeOptions

GRAPH = "onnxruntime/model.onnx"


def make(model: Path, output: Path, **options: Any) -> Any:
    options = {"targets": ("onnxruntime",), **options}
    return flat.quantize(model, output, benchmark=False, **options)


def find_ranges(model: Path, texts: Path, **options: Any) -> CalibrationResult:
    """Return the ranges that `make` would use."""
    chosen = flat.make(
        QuantizeOptions, model=model, output="unused", targets="onnxruntime", **options
    )
    scheme = Scheme(
        recipe=chosen.recipe, quantizers=chosen.quantizers, calibration=chosen.calibration
    )
    source = open_source(ModelPath(path=str(model), shown="model"), Path("unused"), Silent())
    targets = choose_targets(chosen.targets, "feature-extraction")
    plans = make_plans(source, targets, scheme)
    encoded = encode(
        runtime_tokenizer(source.tokenizer),
        texts.read_text().splitlines(),
        input_names=source.input_names,
        max_length=source.max_length,
    )
    return find_calibration(
        choose_range_source(source, scheme, open_earlier(scheme)),
        source,
        source.with_sites(plans.groups),
        make_batches(encoded, batch_size=8),
        plans.made,
        scheme,
        Silent(),
    )


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("data") / "texts.txt"
    path.write_text("\n".join(f"the house number {index} is by the river" for index in range(60)))
    return path


@pytest.fixture(scope="module")
def both(checkpoints, texts, tmp_path_factory) -> Path:
    """Two targets from one calibration."""
    folder = tmp_path_factory.mktemp("both") / "int8"
    make(
        checkpoints("bert"),
        folder,
        calibration_data=texts,
        calibration_samples=24,
        targets=("onnxruntime", "openvino"),
    )
    return folder


@pytest.fixture(scope="module")
def full(checkpoints, texts, tmp_path_factory) -> dict[str, Path]:
    """Folders for TensorRT, by the name of a recipe that quantizes every site."""
    root = tmp_path_factory.mktemp("full")
    options = {"calibration_data": texts, "calibration_samples": 24, "targets": ("tensorrt",)}
    for recipe in ("full", "full-smoothed"):
        make(checkpoints("bert"), root / recipe, recipe=recipe, **options)
    return {recipe: root / recipe for recipe in ("full", "full-smoothed")}


@pytest.fixture(scope="module")
def again(checkpoints, both, texts, tmp_path_factory) -> tuple[Path, Any]:
    """A folder for one of the targets, made with the ranges of `both`, and its report."""
    folder = tmp_path_factory.mktemp("again") / "int8"
    return folder, make(checkpoints("bert"), folder, ranges_from=both, calibration_data=texts)


def test_the_same_ranges_give_the_same_graph(both, again) -> None:
    folder, report = again
    assert (folder / "model.onnx").read_bytes() == (both / GRAPH).read_bytes()
    assert report.calibration_texts == 24
    assert not any("nearest codes" in notice for notice in report.notices)
    assert (
        load_file(folder / "ranges.safetensors").keys()
        == load_file(both / "ranges.safetensors").keys()
    )


def test_ranges_of_another_number_of_channels_are_refused(
    checkpoints, both, texts, tmp_path
) -> None:
    earlier = shutil.copytree(both, tmp_path / "earlier")
    path = earlier / "ranges.safetensors"
    tensors = load_file(path)
    name = next(name for name in sorted(tensors) if name.endswith(".mean"))
    save_file({**tensors, name: tensors[name][1:]}, path, metadata={"format": "qdqbert-ranges/2"})
    with pytest.raises(UserInputError, match=f"`{name.removesuffix('.mean')}`, which has 32 chann"):
        make(checkpoints("bert"), tmp_path / "int8", ranges_from=earlier, calibration_data=texts)


def test_the_manifest_records_where_the_ranges_came_from(both, again) -> None:
    first, second = (
        json.loads((each / "quantization.json").read_text()) for each in (both, again[0])
    )
    assert second["calibration"] == {**first["calibration"], "ranges_from": str(both)}
    assert f"--ranges-from {both}" in second["command"]
    # `evaluate` refuses examples with these fingerprints.
    assert len(second["calibration"]["fingerprints"]) == 24


def test_ranges_of_embeddings_are_those_of_the_earlier_call(both, again) -> None:
    first, second = (
        json.loads((each / "quantization.json").read_text()) for each in (both, again[0])
    )
    assert len(first["embedding_ranges"]["low"]) == 32
    # Other texts of this call would give other ranges.
    assert second["embedding_ranges"] == first["embedding_ranges"]


@pytest.mark.slow
def test_the_manifest_says_whether_a_classifier_takes_pairs(
    checkpoints, write_file, tmp_path
) -> None:
    rows = "\n".join(f"the cat {index}\tthe river {index}" for index in range(40))
    pairs = write_file("pairs.tsv", f"premise\thypothesis\n{rows}")

    def stored(name: str, **options: Any) -> dict[str, Any]:
        make(checkpoints("classifier"), tmp_path / name, **options)
        return json.loads((tmp_path / name / "quantization.json").read_text())

    assert stored("first", calibration_data=pairs, calibration_samples=8)["takes_pairs"] is True
    # Built-in sentences do not say it, and the earlier folder does.
    assert stored("again", ranges_from=tmp_path / "first")["takes_pairs"] is True
    assert "takes_pairs" not in stored("built-in", calibration_samples=8)


def test_only_manifests_of_classifiers_say_it(both, quantized) -> None:
    assert "takes_pairs" not in json.loads((both / "quantization.json").read_text())
    folder = quantized("classifier").directory
    assert json.loads((folder / "quantization.json").read_text())["takes_pairs"] is False


def test_fidelity_is_not_measured_on_examples_that_ranges_were_taken_from(again) -> None:
    _, report = again
    assert report.heldout_texts == 60 - 24


def test_other_weight_codes_without_data(checkpoints, both, tmp_path) -> None:
    report = make(checkpoints("bert"), tmp_path / "wide", ranges_from=both, weights_for="vnni")
    graph = (tmp_path / "wide" / "model.onnx").read_bytes()
    assert graph != (both / GRAPH).read_bytes()
    assert any("measured on built-in sentences" in notice for notice in report.notices)
    # Both targets of `both` have weights with an adjacent sum limit.
    assert any(
        notice.startswith("Weights for onnxruntime are rounded to the nearest codes")
        for notice in report.notices
    )


@pytest.mark.slow
def test_an_onnx_model_uses_its_ranges_again(checkpoints, texts, tmp_path) -> None:
    float_graph = tmp_path / "float.onnx"
    save_graph(make_graph(encoder_of(load_checkpoint(str(checkpoints("bert"))))), float_graph)
    options = {"tokenizer": str(checkpoints("bert")), "task": "feature-extraction"}
    first, again = tmp_path / "first", tmp_path / "again"
    make(float_graph, first, calibration_data=texts, calibration_samples=24, **options)
    make(float_graph, again, ranges_from=first, **options)
    assert (again / "model.onnx").read_bytes() == (first / "model.onnx").read_bytes()


def test_ranges_of_other_weights_are_refused(checkpoints, both, tmp_path) -> None:
    with pytest.raises(UserInputError, match=r"contains ranges for the weights of .*Leave it out"):
        make(checkpoints("classifier"), tmp_path / "out", ranges_from=both)
    assert not (tmp_path / "out").exists()


def test_ranges_that_a_recipe_lacks_are_named(checkpoints, both, tmp_path) -> None:
    with pytest.raises(
        UserInputError,
        match=r"no suitable ranges for \d+ of 28 sites of recipe `.*for the recipe linear\.",
    ):
        make(checkpoints("bert"), tmp_path / "out", ranges_from=both, recipe="full")


def test_ranges_of_inputs_that_were_smoothed_otherwise_are_not_used(
    checkpoints, both, full, texts
) -> None:
    model = checkpoints("bert")
    # All sites of `ffn` have a range, but two inputs are smoothed by this recipe only.
    with pytest.raises(UserInputError, match="has no suitable ranges for 2 of 4 sites of recipe"):
        find_ranges(model, texts, ranges_from=full["full"], recipe="ffn")
    assert find_ranges(model, texts, ranges_from=both, recipe="ffn").scales
    with pytest.raises(UserInputError, match="has no suitable ranges for 16 of 28 sites of recipe"):
        find_ranges(model, texts, ranges_from=full["full-smoothed"], recipe="full")


@pytest.mark.slow
def test_fused_weight_ranges_of_two_targets_are_used_again(checkpoints, texts, tmp_path) -> None:
    # Weights of query, key and value share a range.
    options = {
        "targets": ("onnxruntime", "tensorrt"),
        "fuse_qkv": True,
        "quant_per_tensor": True,
    }
    first, again = tmp_path / "first", tmp_path / "again"
    make(checkpoints("bert"), first, calibration_data=texts, calibration_samples=24, **options)
    make(checkpoints("bert"), again, ranges_from=first, **options)
    for name in ("onnxruntime/model.onnx", "tensorrt/model.onnx"):
        assert (again / name).read_bytes() == (first / name).read_bytes()
    # Refused before the model is loaded.
    with pytest.raises(
        UserInputError, match="`fuse_qkv` determines ranges: it is False now, and was True"
    ) as caught:
        make(Path("missing"), tmp_path / "out", ranges_from=first)
    assert caught.value.argument == "fuse_qkv"


@pytest.mark.slow
def test_a_trained_checkpoint_uses_its_ranges_again(
    checkpoints, make_model, texts, tmp_path
) -> None:
    model = qdqbert.prepare(make_model("bert"), "full-smoothed")
    ids = torch.arange(40).reshape(2, 20) + 5
    qdqbert.calibrate(model, [{"input_ids": ids, "attention_mask": torch.ones_like(ids)}])
    folder, first, again = (tmp_path / name for name in ("trained", "first", "again"))
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(checkpoints("bert")).save_pretrained(folder)
    make(folder, first, task="feature-extraction", calibration_data=texts)
    make(folder, again, task="feature-extraction", ranges_from=first)
    assert (again / "model.onnx").read_bytes() == (first / "model.onnx").read_bytes()
    # A new calibration smooths the same inputs.
    smoothed = read_ranges(first / "ranges.safetensors").scales.keys()
    assert find_ranges(folder, texts, recalibrate=True).scales.keys() == smoothed
    assert len(smoothed) == 2 * (5 + 4)


def test_a_dynamic_target_needs_the_scales_of_smoothing(checkpoints, full, tmp_path) -> None:
    with pytest.raises(UserInputError, match="has no suitable ranges for 8 of 12 sites of recipe"):
        make(
            checkpoints("bert"),
            tmp_path / "out",
            ranges_from=full["full"],
            targets=("onnxruntime-dynamic",),
        )


def test_changed_embeddings_are_other_weights(checkpoint_copy, both, tmp_path) -> None:
    folder = checkpoint_copy("bert")
    weights = load_file(folder / "model.safetensors")
    weights["embeddings.LayerNorm.weight"] *= 4
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserInputError, match="contains ranges for the weights of"):
        make(folder, tmp_path / "out", ranges_from=both)


def test_a_folder_without_a_quantized_model_is_refused(checkpoints, tmp_path) -> None:
    message = r"`ranges_from`: .*Pass a folder that `quantize` wrote"
    with pytest.raises(UserInputError, match=message) as caught:
        make(checkpoints("bert"), tmp_path / "out", ranges_from=tmp_path)
    assert caught.value.argument == "ranges_from"
