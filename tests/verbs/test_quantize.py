from __future__ import annotations

import json
from pathlib import Path

import pytest
import transformers

import qdqbert
from qdqbert.engines.runner import is_installed
from qdqbert.errors import UserInputError
from qdqbert.targets import TARGETS


@pytest.mark.demo
def test_the_demo_is_near_float_small_and_right_on_each_engine(
    demo_package, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # Fewer texts than usual: this is the one test with a real checkpoint, and takes long enough.
    report = qdqbert.quantize(benchmark=False, calibration_samples=100)
    assert report.directory == "qdqbert-all-MiniLM-L6-v2"
    assert (tmp_path / report.directory / "onnxruntime" / "model.onnx").is_file()
    engines = ["onnxruntime", *(["openvino"] if is_installed("openvino") else [])]
    assert [each.engine for each in report.targets] == engines
    for each in report.targets:
        assert each.fidelity.cosine_mean > 0.99
        assert each.fidelity.cosine_min > 0.95
        assert each.size_ratio < 0.30
        assert each.lowering.worst_layer_db >= 40
        assert each.lowering.is_exact


def test_each_target_is_proven_on_each_engine_that_runs_it(quantized) -> None:
    report = quantized("sentence").report
    jobs = [
        ("portable", "onnxruntime", "linear"),
        ("portable", "openvino", "linear"),
        ("onnxruntime", "onnxruntime", "linear"),
        ("onnxruntime-dynamic", "onnxruntime", "linear"),
        ("openvino", "openvino", "linear"),
    ]
    assert [(each.target, each.engine, each.recipe) for each in report.targets] == [
        job for job in jobs if is_installed(job[1])
    ]
    for each in report.targets:
        assert each.lowering.worst_layer_db >= 40
        assert each.fidelity.cosine_min > 0.99
        assert each.size_bytes == (Path(report.directory) / each.model).stat().st_size
        assert each.size_ratio == each.size_bytes / report.float_size_bytes
        assert each.latency == ()


@pytest.mark.parametrize(
    ("family", "task"),
    [
        ("deberta-v2", "text-classification"),
        ("modernbert", "feature-extraction"),
    ],
)
def test_other_families_are_quantized_for_each_target(
    save_tiny, write_file, tmp_path, family, task
) -> None:
    auto = {
        "feature-extraction": transformers.AutoModel,
        "text-classification": transformers.AutoModelForSequenceClassification,
    }
    folder = save_tiny(tmp_path / "float", family, auto_class=auto[task])
    text = "the cat sat on the book in the night and the dog had been to the river, "
    texts = [(3 * text)[i : 5 * i + 9] for i in range(40)]
    report = qdqbert.quantize(
        str(folder),
        tmp_path / "int8",
        targets=tuple(each for each in TARGETS if TARGETS[each].recipe.startswith("linear")),
        calibration_data=str(write_file("texts.txt", "\n".join(texts))),
        calibration_samples=20,
        benchmark=False,
    )
    assert report.task == task
    assert {each.target for each in report.targets} >= {"portable", "onnxruntime"}
    for each in report.targets:
        assert each.lowering.is_exact
        assert each.fidelity.sqnr_db > 15


def test_calibration_and_held_out_texts_are_different_ones(quantized) -> None:
    report = quantized("sentence").report
    assert (report.calibration_texts, report.heldout_texts) == (24, 24)


def test_the_report_stands_in_the_folder(quantized) -> None:
    made = quantized("classifier")
    report = json.loads((made.directory / "report.json").read_text())
    assert report["checkpoint"] == str(made.checkpoint)
    assert report["task"] == "text-classification"
    assert report["targets"][0]["fidelity"]["flips_percent"] is not None


def test_a_model_with_few_positions_is_timed_at_shapes_that_it_takes(
    checkpoints, quantized, tmp_path
) -> None:
    # The usual shapes have 128 tokens; this model has 64 positions.
    report = qdqbert.quantize(
        str(checkpoints("roberta")),
        tmp_path / "out",
        calibration_data=str(quantized("classifier").data),
        calibration_samples=16,
        targets=("onnxruntime",),
        benchmark=True,
    )
    assert report.targets[0].latency
    assert all(each.sequence <= 64 for each in report.targets[0].latency)
    for each in report.targets[0].latency:
        assert each.speedup > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"calibrator": "best"}, "`--calibrator best` is unknown. Known: max, percentile, mse"),
        ({"embeddings": "int4"}, "`--embeddings int4` is unknown"),
        ({"calibrator": "max", "percentile": 99.0}, "needs `--calibrator percentile`"),
        ({"calibrator": "percentile", "percentile": 0.0}, "above 0 and at most 100"),
        ({"targets": ("portable", "tpu")}, "Target 'tpu' is unknown"),
        ({"targets": ("portable", "onnxruntime"), "recipe": "x"}, "Recipe 'x' is unknown"),
    ],
    ids=["calibrator", "embeddings", "percentile", "no-percentile", "target", "recipe"],
)
def test_an_unknown_word_is_refused_and_nothing_is_written(
    checkpoints, tmp_path, options, message
) -> None:
    with pytest.raises(UserInputError, match=message):
        qdqbert.quantize(str(checkpoints("bert")), tmp_path / "out", **options)
    assert list(tmp_path.iterdir()) == []


def test_an_option_that_is_none_is_refused(checkpoints, tmp_path) -> None:
    with pytest.raises(TypeError, match="targett"):
        qdqbert.quantize(str(checkpoints("bert")), tmp_path / "out", targett=("portable",))


def test_a_failure_in_the_middle_leaves_nothing(checkpoints, tmp_path, monkeypatch) -> None:
    def stop(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("qdqbert.verbs.doors.calibrate", stop)
    with pytest.raises(KeyboardInterrupt):
        qdqbert.quantize(str(checkpoints("bert")), tmp_path / "out", benchmark=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("isa", ["any", "vnni"])
def test_weights_have_all_of_8_bits_only_where_the_cpu_can_add_them(
    checkpoints, tmp_path, isa
) -> None:
    report = qdqbert.quantize(str(checkpoints("bert")), tmp_path / "out", isa=isa, benchmark=False)
    content = json.loads((tmp_path / "out" / "quantization.json").read_text())
    specs = {
        name: site["spec"]
        for name, site in content["targets"]["portable"]["sites"].items()
        if name.endswith("dense._weight_quantizer")
    }
    assert specs
    assert all(("adjacent sums" in spec) is (isa == "any") for spec in specs.values())
    notes = [each for each in report.notices if "int8 sums would saturate" in each]
    assert len(notes) == (isa == "vnni")
    assert content["command"].count("--isa vnni") == len(notes)


def test_one_calibration_serves_all_targets(save_tiny, tmp_path) -> None:
    # qordered's kernels want heads of 16 channels.
    checkpoint = save_tiny(
        tmp_path / "float", "bert", transformers.AutoModel, num_attention_heads=2
    )
    qdqbert.quantize(
        str(checkpoint),
        tmp_path / "out",
        targets=("onnxruntime", "tensorrt", "qordered"),
        benchmark=False,
        calibration_samples=16,
    )
    record = json.loads((tmp_path / "out" / "quantization.json").read_text())
    sites = {name: each["sites"] for name, each in record["targets"].items()}
    smoothed = "encoder.layer.0.intermediate.dense._input_quantizer"
    assert smoothed in record["pre_quant_scales"]
    for target, ranges in (
        ("onnxruntime", record["ranges"]),
        ("tensorrt", record["ranges"]),
        ("qordered", record["plain_ranges"]),
    ):
        chosen = ranges[smoothed]
        affine = target != "qordered"
        step = (chosen["high"] - chosen["low"]) / 255 if affine else chosen["amax"] / 127
        assert sites[target][smoothed]["scale"] == pytest.approx(step, rel=1e-6)
    # What qordered alone asks for stays in float elsewhere.
    of_output = "encoder.layer.0.attention.self.softmax_input_quantizer"
    assert of_output in sites["qordered"]
    assert of_output not in sites["tensorrt"]
