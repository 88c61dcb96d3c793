"""Quantizer options of `quantize`, such as `wprec` and `fuse_qkv`."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import flat
from qdqbert import QuantizerOptions
from qdqbert.calibration.ranges_file import read_ranges
from qdqbert.common.errors import SpecError, UnmatchedRuleError, UserInputError

LAYER = "encoder.layer.0"
OVERRIDES: dict[str, Any] = {
    "wprec": 4,
    "aprec": 4,
    "quant_disable_keyword": ("add_", r"intermediate\.dense"),
    "fuse_qkv": True,
    "clip_gelu": 0.25,
}
ON_THE_COMMAND_LINE = (
    "--wprec 4 --aprec 4 --quant-disable-keyword add_ "
    r"--quant-disable-keyword 'intermediate\.dense' --fuse-qkv --clip-gelu 0.25"
)


@dataclasses.dataclass(frozen=True)
class Folder:
    path: Path

    @property
    def manifest(self) -> dict:
        return json.loads((self.path / "quantization.json").read_text())

    @property
    def graph(self) -> onnx.ModelProto:
        return onnx.load(self.path / "model.onnx")

    @property
    def sites(self) -> dict:
        return self.manifest["targets"]["onnxruntime"]["sites"]

    def constants(self) -> dict[str, np.ndarray]:
        return {each.name: numpy_helper.to_array(each) for each in self.graph.graph.initializer}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("data") / "texts.txt"
    path.write_text("\n".join(f"the cat is on the book and in the night {i}" for i in range(12)))
    return path


def quantize(model: Path, output: Path, data: Path, **overrides: Any) -> Folder:
    flat.quantize(
        model,
        output,
        recipe="full",
        calibration_data=data,
        calibration_samples=8,
        targets=("onnxruntime",),
        benchmark=False,
        **overrides,
    )
    return Folder(output)


@pytest.fixture(scope="module")
def changed(checkpoints, data, tmp_path_factory) -> Folder:
    folder = tmp_path_factory.mktemp("changed") / "out"
    return quantize(checkpoints("sentence"), folder, data, **OVERRIDES)


@pytest.fixture(scope="module")
def plain(checkpoints, data, tmp_path_factory) -> Folder:
    return quantize(checkpoints("sentence"), tmp_path_factory.mktemp("plain") / "out", data)


def limits_of_codes(folder: Folder) -> list[tuple[float, float]]:
    """Return the bounds of each Clip next to a QuantizeLinear, in codes."""
    constants, nodes = folder.constants(), folder.graph.graph.node
    makers = {name: node for node in nodes for name in node.output}
    readers = {name: node for node in nodes for name in node.input}
    found = []
    for clip in nodes:
        if clip.op_type != "Clip":
            continue
        reader = readers.get(clip.output[0])
        if makers[clip.input[0]].op_type == "QuantizeLinear":
            scale = np.float32(1)
        elif reader is not None and reader.op_type == "QuantizeLinear":
            scale = constants[reader.input[1]]
        else:
            # A Clip of the pooling.
            continue
        low, high = (np.rint(constants[name] / scale).item() for name in clip.input[1:])
        found.append((low, high))
    return found


def test_4_bit_activations_are_clipped_to_their_codes(plain, changed) -> None:
    pairs = Counter(node.op_type for node in changed.graph.graph.node)["QuantizeLinear"]
    # Query, key and value read one tensor, which is quantized once.
    assert pairs == 5 - 2 + 4
    # Probabilities have unsigned codes.
    assert sorted(limits_of_codes(changed)) == [*(pairs - 1) * [(-8, 7)], (0, 15)]
    assert limits_of_codes(plain) == []
    onnx.checker.check_model(changed.graph, full_check=True)


def test_4_bit_weights_have_codes_from_minus_7_to_7(changed) -> None:
    codes = {
        name: array
        for name, array in changed.constants().items()
        if name.endswith("weight_codes") and "encoder" in name
    }
    assert len(codes) == 5
    for name, array in codes.items():
        assert array.dtype == np.int8
        assert (array.min(), array.max()) in {(-7, 7), (-6, 7), (-7, 6)}, name


def test_disabled_keywords_leave_their_sites_in_float(changed, plain) -> None:
    assert set(plain.sites) - set(changed.sites) == {
        f"{LAYER}.intermediate.dense._input_quantizer",
        f"{LAYER}.intermediate.dense._weight_quantizer",
        f"{LAYER}.attention.output.add_local_input_quantizer",
        f"{LAYER}.attention.output.add_residual_input_quantizer",
        f"{LAYER}.output.add_local_input_quantizer",
        f"{LAYER}.output.add_residual_input_quantizer",
    }
    weights = {n: a for n, a in changed.constants().items() if "intermediate.dense.weight" in n}
    assert [array.dtype for array in weights.values()] == [np.float32]


def test_disabled_sites_are_not_calibrated(changed) -> None:
    ranges = read_ranges(changed.path / "ranges.safetensors").ranges
    assert {name for name in changed.sites if "_input_quantizer" in name} == set(ranges)


def test_fuse_qkv_gives_equal_scales(changed, plain) -> None:
    group = [f"{LAYER}.attention.self.matmul_{letter}_input_quantizer" for letter in "qkv"]
    assert len({plain.sites[name]["scale"] for name in group}) == 3
    assert len({changed.sites[name]["scale"] for name in group}) == 1
    widest = max(plain.manifest["ranges"][name]["amax"] for name in group)
    assert changed.manifest["ranges"][group[0]]["amax"] == widest


def test_clip_gelu_limits_the_range_after_gelu(changed, plain) -> None:
    name = f"{LAYER}.output.dense._input_quantizer"
    assert plain.manifest["ranges"][name]["amax"] > 0.25
    assert changed.manifest["ranges"][name]["amax"] == 0.25
    assert changed.sites[name]["scale"] == pytest.approx(0.25 / 7, rel=1e-6)
    other = f"{LAYER}.attention.output.dense._input_quantizer"
    assert changed.manifest["ranges"][other] == plain.manifest["ranges"][other]


def test_the_manifest_holds_the_quantizer_options_and_the_command(changed, plain) -> None:
    # Without a trained model, these are the defaults that it was written with.
    chosen = {
        "calibrator": "percentile",
        "percentile": 99.999,
        "weights_for": "any",
        "embeddings": "int8",
    }
    expected = QuantizerOptions(**OVERRIDES, **chosen)
    assert QuantizerOptions.from_dict(changed.manifest["quantizer_options"]) == expected
    assert plain.manifest["quantizer_options"] == chosen
    assert ON_THE_COMMAND_LINE in changed.manifest["command"]
    assert shlex.split(changed.manifest["command"])[:2] == ["qdqbert", "quantize"]


def test_few_bits_are_warned_about(changed, plain) -> None:
    (warning, *_) = json.loads((changed.path / "report.json").read_text())["warnings"][1:]
    assert "is far from the float model" in warning
    (few_texts,) = json.loads((plain.path / "report.json").read_text())["warnings"]
    assert "from 8 texts only" in few_texts


@pytest.mark.parametrize(
    ("overrides", "error", "message"),
    [
        (
            {"quant_disable_keyword": "qeury"},
            UnmatchedRuleError,
            "`quant_disable_keyword.*qeury' matches none of the",
        ),
        (
            {"quant_disable_layer_module": "qeury"},
            UnmatchedRuleError,
            "`quant_disable_layer_module.*qeury' matches none of the",
        ),
        (
            {"quant_enable_layer_module": "qeury"},
            UnmatchedRuleError,
            "`quant_enable_layer_module.*qeury' matches none of the",
        ),
        ({"wprec": 1}, UserInputError, "`wprec` must be at least 2 and at most 8, got 1"),
        ({"clip_gelu": 0}, UserInputError, "`clip_gelu` must be above 0, got 0"),
        ({"quant_disable_keyword": "("}, SpecError, r"'\(' is .*regular expression"),
    ],
    ids=["keyword", "disable", "enable", "bits", "clip", "pattern"],
)
def test_overrides_that_cannot_be_used_are_refused(
    checkpoints, data, tmp_path, overrides, error, message
) -> None:
    with pytest.raises(error, match=message):
        quantize(checkpoints("sentence"), tmp_path / "out", data, **overrides)
    assert list(tmp_path.iterdir()) == []
