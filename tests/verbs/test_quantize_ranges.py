"""`quantize --ranges`: ranges of an earlier call, used again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import qdqbert
from qdqbert.calibration.ranges_file import read_ranges
from qdqbert.errors import UserInputError
from qdqbert.verbs.benchmark import export_float
from qdqbert.verbs.options import QuantizeOptions

GRAPHS = ("portable/model.onnx", "openvino/model.onnx")


def make(model: Path, output: Path, **options: Any) -> Any:
    return qdqbert.quantize(model, output, benchmark=False, **options)


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
        targets=("portable", "openvino"),
    )
    return folder


@pytest.fixture(scope="module")
def full(checkpoints, texts, tmp_path_factory) -> dict[str, Path]:
    """For TensorRT, by recipe of every site."""
    root = tmp_path_factory.mktemp("full")
    options = {"calibration_data": texts, "calibration_samples": 24, "targets": ("tensorrt",)}
    for recipe in ("full", "full-smoothed"):
        make(checkpoints("bert"), root / recipe, recipe=recipe, **options)
    return {recipe: root / recipe for recipe in ("full", "full-smoothed")}


def test_graphs_of_used_ranges_are_those_of_the_call_that_took_them(
    checkpoints, both, tmp_path
) -> None:
    for index, graph in enumerate(GRAPHS):
        again = tmp_path / str(index)
        report = make(checkpoints("bert"), again, ranges=both, targets=(graph.partition("/")[0],))
        assert (again / "model.onnx").read_bytes() == (both / graph).read_bytes()
        assert report.calibration_texts == 24
        assert (
            load_file(again / "ranges.safetensors").keys()
            == load_file(both / "ranges.safetensors").keys()
        )


def test_without_data_it_is_said_what_fidelity_is_measured_on(checkpoints, both, tmp_path) -> None:
    report = make(checkpoints("bert"), tmp_path / "again", ranges=both)
    assert any("measured on built-in sentences" in notice for notice in report.notices)


def test_the_record_says_where_ranges_came_from(checkpoints, both, texts, tmp_path) -> None:
    again = tmp_path / "again"
    make(checkpoints("bert"), again, ranges=both, calibration_data=texts)
    records = [json.loads((each / "quantization.json").read_text()) for each in (both, again)]
    assert records[1]["calibration"] == {**records[0]["calibration"], "ranges": str(both)}
    assert f"--ranges {both}" in records[1]["command"]
    # So that evaluation goes on to refuse what was calibrated on.
    assert len(records[1]["calibration"]["fingerprints"]) == 24


def test_weights_have_other_settings_than_before(checkpoints, both, tmp_path) -> None:
    wide = tmp_path / "wide"
    make(checkpoints("bert"), wide, ranges=both, isa="vnni")
    assert (wide / "model.onnx").read_bytes() != (both / GRAPHS[0]).read_bytes()


def test_a_ready_graph_uses_its_ranges_again(checkpoints, texts, tmp_path) -> None:
    float_graph = tmp_path / "float.onnx"
    export_float(str(checkpoints("bert")), float_graph, [8])
    options = {"tokenizer": str(checkpoints("bert")), "task": "feature-extraction"}
    first, again = tmp_path / "first", tmp_path / "again"
    make(float_graph, first, calibration_data=texts, calibration_samples=24, **options)
    make(float_graph, again, ranges=first, **options)
    assert (again / "model.onnx").read_bytes() == (first / "model.onnx").read_bytes()


def test_ranges_of_other_weights_are_refused(checkpoints, both, tmp_path) -> None:
    with pytest.raises(UserInputError, match=r"not those of .*\. Leave it out"):
        make(checkpoints("classifier"), tmp_path / "out", ranges=both)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("recipe", ["full", "full-smoothed"])
def test_ranges_that_a_recipe_lacks_are_named(checkpoints, both, tmp_path, recipe) -> None:
    with pytest.raises(
        UserInputError,
        match=r"no fitting ranges for \d+ of 28 sites of recipe `qdqbert.*made for linear\.",
    ):
        make(checkpoints("bert"), tmp_path / "out", ranges=both, recipe=recipe)


def test_scaled_ranges_are_not_taken_for_plain_ones(checkpoints, both, full, tmp_path) -> None:
    # All sites of `ffn` have a range, but two of them under a factor that is not there.
    with pytest.raises(UserInputError, match=r"has no fitting ranges for \d of 4 sites of recipe"):
        make(checkpoints("bert"), tmp_path / "out", ranges=full["full"], recipe="ffn")
    make(checkpoints("bert"), tmp_path / "ffn", ranges=both, recipe="ffn")
    # TensorRT's cache wants plain ranges too, which serve other recipes.
    assert read_ranges(full["full-smoothed"] / "ranges.safetensors").without_smoothing is not None
    make(checkpoints("bert"), tmp_path / "full", ranges=full["full-smoothed"], recipe="full")


def test_targets_of_both_kinds_are_the_same_again(checkpoints, texts, tmp_path) -> None:
    # Weights of q, k and v share a range, divided by scales for one target and not for the other.
    quantizer_options = qdqbert.QuantizerOptions(fuse_qkv=True, quant_per_tensor=True)
    options = {"targets": ("onnxruntime", "tensorrt"), "quantizer_options": quantizer_options}
    first, again = tmp_path / "first", tmp_path / "again"
    make(checkpoints("bert"), first, calibration_data=texts, calibration_samples=24, **options)
    make(checkpoints("bert"), again, ranges=first, **options)
    for name in ("onnxruntime/model.onnx", "tensorrt/model.onnx", "tensorrt/calibration.cache"):
        assert (again / name).read_bytes() == (first / name).read_bytes()
    with pytest.raises(
        UserInputError, match="`--fuse-qkv` shapes ranges: it is False now, and was"
    ):
        make(checkpoints("bert"), tmp_path / "out", ranges=first)


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
    make(folder, again, task="feature-extraction", ranges=first)
    assert (again / "model.onnx").read_bytes() == (first / "model.onnx").read_bytes()
    # New ranges are smoothed as those were that it was trained with.
    anew = tmp_path / "anew"
    make(folder, anew, task="feature-extraction", calibration_data=texts, recalibrate=True)
    names = [set(read_ranges(each / "ranges.safetensors").scales) for each in (first, anew)]
    assert names[0] == names[1]
    assert len(names[0]) == 2 * (5 + 4)


def test_a_target_without_ranges_needs_their_scales(checkpoints, full, tmp_path) -> None:
    with pytest.raises(UserInputError, match="has no fitting ranges for 10 of 12 sites of recipe"):
        make(
            checkpoints("bert"),
            tmp_path / "out",
            ranges=full["full"],
            targets=("onnxruntime-dynamic",),
        )


def test_other_embeddings_are_other_weights(checkpoint_copy, both, tmp_path) -> None:
    folder = checkpoint_copy("bert")
    weights = load_file(folder / "model.safetensors")
    weights["embeddings.LayerNorm.weight"] *= 4
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserInputError, match="not those of"):
        make(folder, tmp_path / "out", ranges=both)


def test_a_calibration_cache_has_ranges_of_the_float_graph(full) -> None:
    plain, smoothed = (
        (full[recipe] / "calibration.cache").read_text() for recipe in ("full", "full-smoothed")
    )
    # But for the sums that `full` clips, which is on no value of this model.
    assert smoothed == plain


def test_a_folder_that_is_none_is_refused(checkpoints, tmp_path) -> None:
    with pytest.raises(
        UserInputError, match=r"`--ranges`: .*Pass a folder that `qdqbert quantize`"
    ):
        make(checkpoints("bert"), tmp_path / "out", ranges=tmp_path)


@pytest.mark.parametrize(
    "options",
    [
        {"calibrator": "mse"},
        {"percentile": 99.9},
        {"calibration_samples": 20},
        {"recalibrate": True},
    ],
    ids=lambda options: next(iter(options)),
)
def test_what_is_about_taking_ranges_is_refused_beside_them(options) -> None:
    name = next(iter(options)).replace("_", "-")
    with pytest.raises(UserInputError, match=f"`--{name}` is about taking ranges"):
        QuantizeOptions(model="m", output="o", ranges="earlier", **options)


def test_examples_that_ranges_were_taken_from_are_not_compared_on(
    checkpoints, both, texts, tmp_path
) -> None:
    report = make(checkpoints("bert"), tmp_path / "again", ranges=both, calibration_data=texts)
    assert report.heldout_texts == 60 - 24
