"""`quantize --ranges`: ranges of an earlier call, used again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import qdqbert
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
        match=r"has no ranges for \d+ of 28 sites of recipe `qdqbert.*made for linear, linear-sig",
    ):
        make(checkpoints("bert"), tmp_path / "out", ranges=both, recipe=recipe)


def test_scaled_ranges_are_not_taken_for_plain_ones(checkpoints, texts, tmp_path) -> None:
    full = tmp_path / "full"
    options = {"calibration_data": texts, "calibration_samples": 24}
    make(checkpoints("bert"), full, recipe="full-smoothed", **options)
    # All of its sites have a range, but adds and inputs of linears have it under a factor.
    with pytest.raises(UserInputError, match="has no ranges for 18 of 28 sites"):
        make(checkpoints("bert"), tmp_path / "out", ranges=full, recipe="full")
    make(checkpoints("bert"), tmp_path / "linear", ranges=full, recipe="linear")


def test_a_folder_that_is_none_is_refused(checkpoints, tmp_path) -> None:
    with pytest.raises(UserInputError, match=r"`--ranges`: .*Name a folder of `qdqbert quantize`"):
        make(checkpoints("bert"), tmp_path / "out", ranges=tmp_path)


@pytest.mark.parametrize(
    "options",
    [{"calibrator": "mse"}, {"calibration_samples": 20}, {"recalibrate": True}],
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
