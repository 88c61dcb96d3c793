from __future__ import annotations

import dataclasses
import itertools
import json
import shlex
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from typer.testing import CliRunner

import qdqbert
from qdqbert import QuantizerOptions
from qdqbert.calibration.ranges_file import read_ranges
from qdqbert.cli import app
from qdqbert.errors import UnmatchedRuleError
from qdqbert.verbs.options import QuantizeOptions

runner = CliRunner()
LAYER = "encoder.layer.0"
SWITCHES = QuantizerOptions(
    wprec=4,
    aprec=4,
    quant_disable_keyword=("add_", r"intermediate\.dense"),
    fuse_qkv=True,
    clip_gelu=0.25,
)
WORDS = [
    *("--wprec", "4", "--aprec", "4", "--quant-disable-keyword", "add_"),
    *("--quant-disable-keyword", r"intermediate\.dense", "--fuse-qkv", "--clip-gelu", "0.25"),
]


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
        return self.manifest["targets"]["portable"]["sites"]

    def constants(self) -> dict[str, np.ndarray]:
        return {each.name: numpy_helper.to_array(each) for each in self.graph.graph.initializer}


@pytest.fixture(scope="module")
def words(checkpoints, tmp_path_factory) -> list[str]:
    """A command that works, but for its output."""
    data = tmp_path_factory.mktemp("data") / "texts.txt"
    data.write_text("\n".join(f"the cat is on the book and in the night {i}" for i in range(12)))
    return [
        *("quantize", str(checkpoints("sentence")), "--recipe", "qdqbert", "--no-benchmark"),
        *("--calibration-data", str(data), "--calibration-samples", "8"),
    ]


def quantized(words: list[str], output: Path, quantizer_options: QuantizerOptions) -> Folder:
    qdqbert.quantize(
        words[1],
        output,
        recipe="qdqbert",
        calibration_data=words[words.index("--calibration-data") + 1],
        calibration_samples=8,
        quantizer_options=quantizer_options,
        benchmark=False,
    )
    return Folder(output)


@pytest.fixture(scope="module")
def switched(words, tmp_path_factory) -> Folder:
    return quantized(words, tmp_path_factory.mktemp("switched") / "out", SWITCHES)


@pytest.fixture(scope="module")
def plain(words, tmp_path_factory) -> Folder:
    return quantized(words, tmp_path_factory.mktemp("plain") / "out", QuantizerOptions())


@pytest.fixture(scope="module")
def by_command(words, tmp_path_factory) -> Folder:
    output = tmp_path_factory.mktemp("command") / "out"
    result = runner.invoke(app, [*words, "-o", str(output), *WORDS])
    assert result.exit_code == 0, result.output
    return Folder(output)


def limits_of_codes(folder: Folder) -> list[tuple[float, float]]:
    """Ends of each Clip beside a QuantizeLinear, in codes."""
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
        else:  # one of the pooling's
            continue
        low, high = (np.rint(constants[name] / scale).item() for name in clip.input[1:])
        found.append((low, high))
    return found


def test_fewer_bits_of_activations_are_clipped_to_their_codes(plain, switched) -> None:
    pairs = Counter(node.op_type for node in switched.graph.graph.node)["QuantizeLinear"]
    # Query, key and value read one tensor, which is quantized once.
    assert pairs == 5 - 2 + 4
    assert limits_of_codes(switched) == pairs * [(-8, 7)]
    assert limits_of_codes(plain) == []
    onnx.checker.check_model(switched.graph, full_check=True)


def test_fewer_bits_of_weights_have_codes_from_minus_7_to_7(switched) -> None:
    codes = {
        name: array
        for name, array in switched.constants().items()
        if name.endswith("weight_codes") and "encoder" in name
    }
    assert len(codes) == 5
    for name, array in codes.items():
        assert array.dtype == np.int8
        assert (array.min(), array.max()) in {(-7, 7), (-6, 7), (-7, 6)}, name


def test_disabled_keywords_leave_their_sites_float(switched, plain) -> None:
    assert set(plain.sites) - set(switched.sites) == {
        f"{LAYER}.intermediate.dense._input_quantizer",
        f"{LAYER}.intermediate.dense._weight_quantizer",
        f"{LAYER}.attention.output.add_local_input_quantizer",
        f"{LAYER}.attention.output.add_residual_input_quantizer",
        f"{LAYER}.output.add_local_input_quantizer",
        f"{LAYER}.output.add_residual_input_quantizer",
    }
    weights = {n: a for n, a in switched.constants().items() if "intermediate.dense.weight" in n}
    assert [array.dtype for array in weights.values()] == [np.float32]


def test_disabled_sites_are_not_calibrated(switched) -> None:
    ranges = read_ranges(switched.path / "ranges.safetensors").ranges
    assert {name for name in switched.sites if "_input_quantizer" in name} == set(ranges)


def test_fuse_qkv_gives_equal_scales(switched, plain) -> None:
    group = [f"{LAYER}.attention.self.matmul_{letter}_input_quantizer" for letter in "qkv"]
    assert len({plain.sites[name]["scale"] for name in group}) == 3
    assert len({switched.sites[name]["scale"] for name in group}) == 1
    widest = max(plain.manifest["ranges"][name]["amax"] for name in group)
    assert switched.manifest["ranges"][group[0]]["amax"] == widest


def test_clip_gelu_bounds_the_range_behind_gelu(switched, plain) -> None:
    name = f"{LAYER}.output.dense._input_quantizer"
    assert plain.manifest["ranges"][name]["amax"] > 0.25
    assert switched.manifest["ranges"][name]["amax"] == 0.25
    assert switched.sites[name]["scale"] == pytest.approx(0.25 / 7, rel=1e-6)
    other = f"{LAYER}.attention.output.dense._input_quantizer"
    assert switched.manifest["ranges"][other] == plain.manifest["ranges"][other]


def test_the_switches_stand_in_the_folder(switched, plain) -> None:
    calibrator = {"calibrator": "percentile", "percentile": 99.999}
    expected = dataclasses.replace(SWITCHES, **calibrator)
    assert QuantizerOptions.from_dict(switched.manifest["switches"]) == expected
    assert plain.manifest["switches"] == calibrator


def test_the_folders_command_repeats_the_switches(switched, words) -> None:
    command = shlex.split(switched.manifest["command"])
    assert command[:2] == ["qdqbert", "quantize"]
    for index, word in enumerate(WORDS):
        if word.startswith("--") and index + 1 < len(WORDS) and WORDS[index + 1][:2] != "--":
            pairs = list(itertools.pairwise(command))
            assert (word, WORDS[index + 1]) in pairs
        elif word.startswith("--"):
            assert word in command


def test_the_command_line_gives_the_same_graph_and_manifest(switched, by_command) -> None:
    assert (by_command.path / "model.onnx").read_bytes() == (
        switched.path / "model.onnx"
    ).read_bytes()
    ours, theirs = by_command.manifest, switched.manifest
    for manifest, folder in ((ours, by_command), (theirs, switched)):
        manifest["command"] = manifest["command"].replace(str(folder.path), "OUT")
    assert ours == theirs


@pytest.mark.parametrize(
    "quantizer_options",
    [
        SWITCHES,
        QuantizerOptions(quant_per_tensor=True, recalibrate_weights=True),
        QuantizerOptions(quant_disable=True, quant_enable_layer_module="attention.self"),
        QuantizerOptions(quant_disable_layer_module="it's a pattern", calibrator="mse"),
        QuantizerOptions(calibrator="percentile", percentile=99.5),
    ],
    ids=["many", "flags", "whitelist", "quoted", "percentile"],
)
def test_the_printed_command_parses_to_the_same_options(monkeypatch, quantizer_options) -> None:
    options = QuantizeOptions(model="in", output="out", quantizer_options=quantizer_options)
    asked = {}

    def note(model, output, progress, **rest):
        asked.update(rest, model=model, output=output)
        raise UnmatchedRuleError("enough")

    monkeypatch.setattr("qdqbert.verbs.quantize.quantize", note)
    result = runner.invoke(app, shlex.split(options.command())[1:])
    assert "enough" in result.stderr
    again = QuantizeOptions(**asked)
    assert again.recipe_switches == options.recipe_switches
    named = None if quantizer_options.calibrator == "max" else quantizer_options.calibrator
    assert again == dataclasses.replace(
        options,
        calibrator=named,
        percentile=quantizer_options.percentile,
        quantizer_options=dataclasses.replace(quantizer_options, calibrator="max", percentile=None),
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["--quant-disable-keyword", "qeury"],
        ["--quant-disable-layer-module", "qeury"],
        ["--quant-enable-layer-module", "qeury"],
    ],
    ids=["keyword", "disable-layer-module", "enable-layer-module"],
)
def test_a_pattern_that_finds_nothing_ends_the_command_with_status_2(
    words, tmp_path, arguments
) -> None:
    output = tmp_path / "out"
    result = runner.invoke(app, [*words, "-o", str(output), *arguments])
    assert result.exit_code == 2
    assert f"`{arguments[0].removeprefix('--').replace('-', '_')}`" in result.stderr
    assert "qeury' matches none of the" in result.stderr
    assert "Traceback" not in result.output
    assert not output.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--wprec", "1"], "`wprec` must be between 2 and 8, got 1"),
        (["--clip-gelu", "0"], "`clip_gelu` must be above 0, got 0.0"),
        (["--quant-disable-keyword", "("], "'(' is no regular expression"),
    ],
    ids=["bits", "clip", "pattern"],
)
def test_a_wrong_switch_ends_the_command_in_one_line(words, tmp_path, arguments, message) -> None:
    result = runner.invoke(app, [*words, "-o", str(tmp_path / "out"), *arguments])
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.output
    assert list(tmp_path.iterdir()) == []
