"""`quantize` from a checkpoint to a folder and a report."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import transformers
from huggingface_hub import ModelCard

import flat
from conftest import TEXTS
from qdqbert.common.errors import CheckpointError, UserInputError
from qdqbert.common.machine import cpu_features, usable_cores
from qdqbert.data import texts as resources
from qdqbert.data.tokenizing.tokenizer import Tokenizer
from qdqbert.engines.native.storage import load_packed
from qdqbert.engines.registry import is_installed, open_runner
from qdqbert.evidence.intervals import Interval
from qdqbert.evidence.latency import Timing
from qdqbert.evidence.reporting.page import page
from qdqbert.graphs.targets.target import recipe_for
from qdqbert.pipeline import measure, plans
from qdqbert.pipeline.messages import fidelity_warnings, report_notices
from qdqbert.pipeline.plans import choose_targets
from qdqbert.runtime.artifact import RANGES
from qdqbert.verbs.quantize.options import QuantizeOptions

SENTENCE = "the cat sat on the book in the night and the dog had been to the river"
DENSE = "dense._weight_quantizer"
FLOAT_MS = {"onnxruntime": 2.0, "openvino": 4.0}


def read_files(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@pytest.mark.slow
@pytest.mark.demo
def test_the_demo_is_accurate_small_and_exact_on_each_engine(
    demo_package, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # A quarter of the built-in texts, to save time.
    heldout = resources.heldout_examples()[::4]
    monkeypatch.setattr(resources, "heldout_examples", lambda: heldout)
    report = flat.quantize(benchmark=False, calibration_samples=24)
    assert report.directory == "qdqbert-all-MiniLM-L6-v2"
    assert (tmp_path / report.directory / "onnxruntime" / "model.onnx").is_file()
    engines = [each for each in ("onnxruntime", "openvino", "native") if is_installed(each)]
    assert [each.engine for each in report.targets] == engines
    for each in report.targets:
        assert each.fidelity.cosine_mean > 0.99
        assert each.fidelity.cosine_min > 0.95
        assert each.size_ratio < 0.30
        assert each.lowering.worst_layer_db >= 40
        assert each.lowering.is_exact


def test_each_target_is_measured_on_each_engine_that_runs_it(quantized) -> None:
    report = quantized("sentence").report
    jobs = [
        ("portable", "onnxruntime", "linear"),
        ("portable", "openvino", "linear"),
        ("onnxruntime", "onnxruntime", "linear"),
        ("onnxruntime-dynamic", "onnxruntime", "linear"),
        ("openvino", "openvino", "linear"),
        ("native", "native", "linear"),
        ("native-dynamic", "native", "linear"),
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


def test_dynamic_scales_make_results_depend_on_the_batch(quantized) -> None:
    report = quantized("sentence").report
    for each in report.targets:
        found = each.batch_invariance
        assert found.texts == 24
        # Pooling in float32 adds up the padding, too, which moves the last bit.
        is_dynamic = each.target == "onnxruntime-dynamic"
        assert (found.largest_difference > 1e-3) is is_dynamic or each.engine == "openvino"
        assert found.is_exact or each.engine != "native"
    [notice] = [each for each in report.notices if "depends on the other texts" in each]
    assert notice.startswith("With onnxruntime-dynamic on onnxruntime")
    assert "use the target onnxruntime, whose scales are fixed" in notice


def test_the_report_names_the_cpu(quantized) -> None:
    report = quantized("sentence").report
    assert report.cpu_features == cpu_features()
    assert report.cores == usable_cores()


def test_the_folder_holds_a_page_and_a_model_card(quantized) -> None:
    made = quantized("sentence")
    assert (made.directory / "report.html").read_text() == page(made.report)
    data = ModelCard.load(made.directory / "README.md").data
    assert data.pipeline_tag == "feature-extraction"
    assert {"bert", "sentence-transformers", "onnx"} <= set(data.tags)
    assert (data.base_model, data.eval_results) == (None, None)


def test_the_report_says_how_it_can_be_made_again(quantized) -> None:
    made = quantized("classifier")
    manifest = json.loads((made.directory / "quantization.json").read_text())
    assert made.report.command == manifest["command"]
    assert made.report.versions == manifest["versions"]


def test_calibration_and_held_out_texts_differ(quantized) -> None:
    report = quantized("sentence").report
    assert (report.calibration_texts, report.heldout_texts) == (24, 24)
    assert report.calibration_lengths.texts == 24


def test_the_noise_of_quantization_is_known_after_every_layer(quantized) -> None:
    made = quantized("sentence")
    count = json.loads((made.checkpoint / "config.json").read_text())["num_hidden_layers"]
    for each in made.report.targets:
        *states, output, embedding = each.layers
        # The embeddings, and the layers before the last one, whose state is an output.
        assert len(states) == count
        assert (output.name, embedding.name) == ("last_hidden_state", "sentence_embedding")
        # On other texts than these few, it is a little different.
        assert embedding.sqnr_db == pytest.approx(each.fidelity.sqnr_db, abs=5)
        assert all(15 < layer.sqnr_db < 80 for layer in each.layers)
        # One layer alone adds less noise than all together, on these few texts or on others.
        alone = {item.name: item.sqnr_db for item in each.sensitivity}
        assert {f"encoder.layer.{index}" for index in range(count)} < alone.keys()
        assert min(alone.values()) > each.fidelity.sqnr_db - 2


def test_the_folder_holds_the_report(quantized) -> None:
    made = quantized("classifier")
    report = json.loads((made.directory / "report.json").read_text())
    assert report["checkpoint"] == str(made.checkpoint)
    assert report["task"] == "text-classification"
    assert report["targets"][0]["fidelity"]["flips_percent"] is not None
    assert report["warnings"] == list(made.report.warnings) == []


@pytest.mark.parametrize(
    "family", [pytest.param("deberta-v2", marks=pytest.mark.slow), "modernbert"]
)
@pytest.mark.slow
def test_families_with_another_attention_are_quantized(
    save_tiny, write_file, tmp_path, family
) -> None:
    # Texts that are longer than DeBERTa's buckets and ModernBERT's window.
    words = SENTENCE.split()
    texts = [" ".join(words[: 3 + index % 14]) for index in range(40)]
    targets = ["onnxruntime", "native"]
    report = flat.quantize(
        save_tiny(tmp_path / "float", family),
        tmp_path / "int8",
        targets=targets,
        calibration_data=write_file("texts.txt", "\n".join(texts)),
        calibration_samples=20,
        benchmark=False,
    )
    assert [target.target for target in report.targets] == targets
    for target in report.targets:
        assert target.lowering.is_exact
        assert target.fidelity.sqnr_db > 15


@pytest.fixture(scope="module")
def for_vnni(checkpoints, quantized, tmp_path_factory):
    """A model with 64 positions, quantized for VNNI on few texts, with invented latencies."""
    folder = tmp_path_factory.mktemp("vnni") / "int8"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "time_candidates", invent_timings)
        report = flat.quantize(
            checkpoints("roberta"),
            folder,
            targets=("portable", "native"),
            weights_for="vnni",
            calibration_data=quantized("classifier").data,
            calibration_samples=8,
            benchmark=True,
        )
    return folder, report


def invent_timings(candidates, shapes, **options) -> list[Timing]:
    """Return the latencies of `FLOAT_MS` for float, and of 1 ms for INT8."""
    del options
    timings = []
    for batch, sequence in shapes:
        for each in candidates:
            latency = FLOAT_MS[each.engine] if each.name == "reference" else 1.0
            timings.append(
                Timing(
                    name=each.name,
                    engine=each.engine,
                    batch=batch,
                    sequence=sequence,
                    median_ms=latency,
                    rounds_ms=(latency,),
                    precision="float32",
                )
            )
    return timings


def test_latency_is_measured_at_shapes_that_the_model_takes(for_vnni) -> None:
    # The usual shapes have 128 tokens.
    _, report = for_vnni
    assert {each.engine for each in report.targets} >= {"onnxruntime", "native"}
    for target in report.targets:
        assert [(each.batch, each.sequence) for each in target.latency] == [(1, 32), (8, 64)]
        # Each engine's INT8 graph is compared with float on the same engine; only the native engine
        # runs no float graph.
        of_float = "onnxruntime" if target.engine == "native" else target.engine
        assert {each.speedup for each in target.latency} == {FLOAT_MS[of_float]}


def test_ranges_from_few_texts_are_warned_about(for_vnni) -> None:
    _, report = for_vnni
    assert "The ranges were taken from 8 texts only" in report.warnings[0]


def test_saturation_is_emulated_where_weights_use_all_8_bits(for_vnni) -> None:
    _, report = for_vnni
    for target in report.targets:
        assert target.overflows is not None
        [notice] = [each for each in report.notices if f"The {target.target} graph" in each]
        assert all(layer.site in notice for layer in target.overflows[:3])
        assert ("in no linear layer" in notice) is (target.overflows == ())


def test_weights_use_all_8_bits_only_for_cpus_that_can_add_them(for_vnni, quantized) -> None:
    made = quantized("classifier")
    for folder, report, limited in (
        (made.directory, made.report, True),
        (*for_vnni, False),
    ):
        content = json.loads((folder / "quantization.json").read_text())
        sites = content["targets"]["portable"]["sites"]
        specs = [site["spec"] for name, site in sites.items() if name.endswith(DENSE)]
        assert specs
        assert all(("sums <=" in spec) is limited for spec in specs)
        saturation = [each for each in report.notices if "int8 sums would saturate" in each]
        assert [each.split()[1] for each in saturation] == (
            [] if limited else ["portable", "native"]
        )
        assert ("--weights-for vnni" in content["command"]) is not limited


def test_targets_without_a_limit_are_the_same_for_vnni() -> None:
    for_any, for_vnni = (
        choose_targets(("portable", "tensorrt"), "fill-mask", cpus) for cpus in ("any", "vnni")
    )
    assert for_any[1] == for_vnni[1]
    assert for_any[0] != for_vnni[0]
    assert for_vnni[0].adjacent_sum_limit is None


@pytest.mark.parametrize(
    ("weights_for", "recipe", "expected"),
    [("any", None, "linear"), ("vnni", None, "linear+matmul"), ("vnni", "linear", "linear")],
)
def test_openvino_quantizes_attention_for_vnni(weights_for, recipe, expected) -> None:
    (target,) = choose_targets(("openvino",), "fill-mask", weights_for)
    assert recipe_for(target, recipe, "float").name == expected


@pytest.mark.parametrize(
    ("installed", "expected"),
    [
        (["onnxruntime", "native"], ["onnxruntime", "native"]),
        (["onnxruntime", "openvino", "native"], ["onnxruntime", "openvino", "native"]),
    ],
)
def test_there_is_a_target_for_each_installed_engine_by_default(
    installed, expected, monkeypatch
) -> None:
    monkeypatch.setattr(plans, "is_installed", lambda engine: engine in installed)
    found = choose_targets((), "text-classification")
    assert [each.name for each in found] == expected


def test_a_text_generator_is_quantized_for_any_runtime_by_default() -> None:
    (target,) = choose_targets((), "text-generation")
    assert target.name == "portable"


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("models/my-classifier", "my-classifier-int8"),
        ("organization/model.v2", "model.v2-int8"),
        ("models/encoder.onnx", "encoder-int8"),
        (None, "qdqbert-all-MiniLM-L6-v2"),
    ],
    ids=["folder", "hub", "onnx", "demo"],
)
def test_the_output_is_named_after_the_model_by_default(model, expected) -> None:
    assert QuantizeOptions(model=model).output_folder == Path(expected)


def test_the_current_folder_gives_its_name_to_the_output(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert QuantizeOptions(model=".").output_folder == Path(f"{tmp_path.name}-int8")
    (tmp_path / "current").symlink_to(tmp_path)
    assert QuantizeOptions(model="./current").output_folder == Path("current-int8")


def test_a_default_target_that_does_not_run_the_recipe_is_left_out(
    checkpoints, quantized, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plans, "is_installed", lambda engine: engine != "openvino")
    report = flat.quantize(
        checkpoints("classifier"),
        recipe="ffn",
        calibration_data=quantized("classifier").data,
        calibration_samples=16,
        benchmark=False,
    )
    assert [each.target for each in report.targets] == ["onnxruntime"]
    (notice,) = [each for each in report.notices if "is left out" in each]
    assert notice.startswith("Target native is left out. Target 'native' cannot run recipe 'ffn'")
    assert report.directory == f"{checkpoints('classifier').name}-int8"
    assert (tmp_path / report.directory / "model.onnx").is_file()


def test_a_recipe_that_no_default_target_runs_is_refused(
    checkpoints, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(plans, "is_installed", lambda engine: engine == "native")
    with pytest.raises(UserInputError, match="Target 'native' cannot run recipe 'ffn'"):
        flat.quantize(checkpoints("classifier"), tmp_path / "out", recipe="ffn")
    assert list(tmp_path.iterdir()) == []


def test_auto_is_refused_for_a_text_generator_before_its_weights_are_read(
    save_tiny, tmp_path
) -> None:
    checkpoint = save_tiny(
        tmp_path / "float", "bert", transformers.AutoModelForCausalLM, is_decoder=True
    )
    (checkpoint / "model.safetensors").write_bytes(b"not read")
    with pytest.raises(UserInputError, match="times a model as `load` runs it") as caught:
        flat.quantize(checkpoint, tmp_path / "out", targets=["auto"])
    assert caught.value.argument == "targets"
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_graph_for_tensorrt_is_checked_and_not_timed(checkpoints, tmp_path) -> None:
    folder = tmp_path / "int8"
    report = flat.quantize(
        str(checkpoints("classifier")), folder, targets=("tensorrt",), calibration_samples=16
    )
    (target,) = report.targets
    assert (target.target, target.engine, target.recipe) == ("tensorrt", "onnxruntime", "linear")
    assert target.lowering.is_exact
    assert target.latency == ()
    assert any("onnxruntime" in each and "proxy" in each for each in report.notices)
    assert not any("differs" in notice or "slower" in notice for notice in report.notices)
    quantization = json.loads((folder / "quantization.json").read_text())
    assert quantization["targets"]["tensorrt"]["style"]["float16"]
    runner = open_runner("onnxruntime", folder / "model.onnx")
    result = runner.run(
        {name: np.full((2, 5), name != "token_type_ids", np.int64) for name in runner.input_names}
    )
    assert result["logits"].dtype == np.float32


def test_low_sqnr_and_changed_predictions_are_warned_about(quantized) -> None:
    report = quantized("classifier").report.targets[0]

    def warnings(**changes):
        fidelity = dataclasses.replace(report.fidelity, **changes)
        return fidelity_warnings(dataclasses.replace(report, fidelity=fidelity))

    unknown = {"flips_percent": None, "flips_interval": None}
    assert warnings(sqnr_db=10.0, **unknown) == []
    # 4 of 64 are 6.2 %, and their interval starts at 1.7 %.
    assert warnings(sqnr_db=10.0, flips_percent=6.2, flips_interval=Interval(low=5, high=15)) == []
    (message,) = warnings(sqnr_db=9.9, **unknown)
    assert "for portable on onnxruntime is far from the float model (9.9 dB SQNR)" in message
    interval = Interval(low=5.1, high=8)
    (message,) = warnings(sqnr_db=30.0, flips_percent=6.2, flips_interval=interval)
    assert "(30.0 dB SQNR, 6.2 % of the predictions changed). Calibrate on more" in message
    low = dataclasses.replace(report, fidelity=dataclasses.replace(report.fidelity, sqnr_db=9.9))
    assert "calibrate again with `recalibrate=True`" in fidelity_warnings(low, "stored")[0]
    assert "Leave `ranges_from` out" in fidelity_warnings(low, "earlier")[0]


def test_an_engine_that_is_the_cause_is_named_instead_of_the_calibration(quantized) -> None:
    report = quantized("classifier").report.targets[0]
    assert set(report.lowering.to_float) == {"pytorch", "float32"}
    assert report.lowering.to_float["pytorch"] == pytest.approx(report.layers[-1].sqnr_db)
    assert not any("PyTorch" in each for each in report_notices(report))
    lowering = dataclasses.replace(
        report.lowering, to_float={"pytorch": 37.5, "float32": 8.0, "bf16": 8.1}
    )
    fidelity = dataclasses.replace(report.fidelity, sqnr_db=8.1)
    wrong = dataclasses.replace(report, lowering=lowering, fidelity=fidelity)
    (warning,) = fidelity_warnings(wrong)
    assert "The cause is onnxruntime, and not the calibration: pass other `targets`" in warning
    notice = report_notices(wrong)[0]
    assert "8.0 dB in float32 and 8.1 dB in bf16, where PyTorch gets 37.5 dB" in notice


@pytest.mark.slow
def test_texts_in_memory_give_the_ranges_of_the_same_texts_in_a_file(
    checkpoints, write_file, tmp_path
) -> None:
    texts = [f"{SENTENCE} {number}" for number in range(20)]
    given = {"file": write_file("texts.txt", "\n".join(texts)), "list": texts}
    stored, reports = {}, {}
    for name, data in given.items():
        folder = tmp_path / name
        reports[name] = flat.quantize(
            checkpoints("classifier"),
            folder,
            calibration_data=data,
            eval_data=[{"text": "the cat", "label": 2}, {"text": "rain", "label": 0}],
            benchmark=False,
        )
        calibration = json.loads((folder / "quantization.json").read_text())["calibration"]
        stored[name] = ((folder / RANGES).read_bytes(), calibration)
        assert calibration.pop("data") == ("<list of 20 rows>" if name == "list" else str(data))
    assert stored["list"] == stored["file"]
    assert "--calibration-data '<list of 20 rows>'" in reports["list"].command


@pytest.mark.slow
def test_a_model_in_memory_gives_the_graph_of_its_folder(checkpoints, tmp_path) -> None:
    folder = checkpoints("classifier")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    given = {"folder": folder, "memory": (model, tokenizer)}
    name = f"{folder} (in memory)"
    for each, source in given.items():
        report = flat.quantize(
            source, tmp_path / each, calibration_samples=8, targets=["native"], benchmark=False
        )
    first, second = (read_files(tmp_path / each) for each in given)
    assert first.keys() == second.keys()
    graphs = {file for file in first if file.startswith("native/")}
    assert {file for file in first if first[file] == second[file]} >= {*graphs, "tokenizer.json"}
    assert report.checkpoint == name
    assert report.command.startswith(f"qdqbert quantize '{name}'")
    assert json.loads(second["quantization.json"])["checkpoint"]["name"] == name


def test_a_model_without_its_tokenizer_is_refused(make_model, tmp_path) -> None:
    model = make_model("bert")
    with pytest.raises(UserInputError, match=r"`model=\(model, tokenizer\)`") as caught:
        flat.quantize(model, tmp_path / "out")
    assert caught.value.argument == "model"
    assert not (tmp_path / "out").exists()


def test_a_typo_in_a_parameter_is_refused(checkpoints, tmp_path) -> None:
    with pytest.raises(TypeError, match="targett"):
        flat.quantize(checkpoints("bert"), tmp_path / "out", targett=("portable",))


def test_a_quantized_folder_is_refused_as_a_model(quantized, tmp_path) -> None:
    made = quantized("classifier")
    with pytest.raises(UserInputError, match=r"is quantized already.* as `ranges_from`") as caught:
        flat.quantize(made.directory, tmp_path / "out")
    assert caught.value.argument == "model"
    assert list(tmp_path.iterdir()) == []


def test_a_failure_during_calibration_leaves_nothing(checkpoints, tmp_path, monkeypatch) -> None:
    def stop(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("qdqbert.pipeline.ranges.run_passes", stop)
    with pytest.raises(KeyboardInterrupt):
        flat.quantize(checkpoints("bert"), tmp_path / "out", benchmark=False)
    assert list(tmp_path.iterdir()) == []


def test_spread_weights_are_rounded_in_the_same_way_without_other_targets(
    checkpoints, quantized, tmp_path
) -> None:
    together = quantized("sentence")
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    alone = flat.quantize(
        str(checkpoints("sentence")),
        tmp_path / "alone",
        calibration_data=str(tmp_path / "texts.txt"),
        calibration_samples=24,
        targets=["native-dynamic"],
        benchmark=False,
    )
    (target,) = [each for each in together.report.targets if each.target == "native-dynamic"]
    mine, theirs = (
        load_packed(Path(folder) / each.model).arrays
        for folder, each in (
            (tmp_path / "alone", alone.targets[0]),
            (together.directory, target),
        )
    )
    assert mine.keys() == theirs.keys()
    assert all(np.array_equal(mine[name], theirs[name]) for name in mine)


def test_one_calibration_serves_all_targets(save_tiny, tmp_path) -> None:
    # The kernels of qordered need heads of 16 channels.
    checkpoint = save_tiny(
        tmp_path / "float",
        "bert",
        transformers.AutoModel,
        num_attention_heads=2,
        num_hidden_layers=1,
    )
    flat.quantize(
        checkpoint,
        tmp_path / "out",
        targets=("onnxruntime", "tensorrt", "qordered"),
        benchmark=False,
        calibration_samples=16,
    )
    manifest = json.loads((tmp_path / "out" / "quantization.json").read_text())
    sites = {name: each["sites"] for name, each in manifest["targets"].items()}
    smoothed = "encoder.layer.0.intermediate.dense._input_quantizer"
    assert smoothed in manifest["pre_quant_scales"]
    for target, ranges in (
        ("onnxruntime", manifest["ranges"]),
        ("tensorrt", manifest["ranges"]),
        ("qordered", manifest["plain_ranges"]),
    ):
        chosen = ranges[smoothed]
        affine = target != "qordered"
        step = (chosen["high"] - chosen["low"]) / 255 if affine else chosen["amax"] / 127
        assert sites[target][smoothed]["scale"] == pytest.approx(step, rel=1e-6)
    # Sites that only qordered quantizes stay in float for the other targets.
    of_output = "encoder.layer.0.attention.self.softmax_input_quantizer"
    assert of_output in sites["qordered"]
    assert of_output not in sites["tensorrt"]


@pytest.fixture
def with_vocabulary(checkpoint_copy):
    """Make a checkpoint whose tokenizer is a list of words; return it and the ids of SENTENCE."""

    def make(tokenizer_class: str, **settings) -> tuple[Path, list[int]]:
        folder = checkpoint_copy("bert")
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        words = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
        (folder / "tokenizer.json").unlink()
        (folder / "vocab.txt").write_text("".join(f"{word}\n" for word, _ in words))
        config = {"tokenizer_class": tokenizer_class, **settings}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        return folder, tokenizer(SENTENCE)["input_ids"]

    return make


def test_a_tokenizer_that_is_a_vocabulary_becomes_a_tokenizer_json(
    with_vocabulary, quantized, tmp_path
) -> None:
    folder, ids = with_vocabulary("BertTokenizer", do_lower_case=True)
    flat.quantize(
        str(folder),
        tmp_path / "int8",
        calibration_data=str(quantized("sentence").data),
        calibration_samples=4,
        targets=["onnxruntime"],
        benchmark=False,
    )
    assert Tokenizer.from_folder(tmp_path / "int8", max_length=64).encode(SENTENCE).ids == ids


def test_a_tokenizer_in_python_is_refused(with_vocabulary, tmp_path) -> None:
    folder, _ = with_vocabulary("BertJapaneseTokenizer", word_tokenizer_type="basic")
    with pytest.raises(CheckpointError, match=r"BertJapaneseTokenizer, exists only in Python"):
        flat.quantize(str(folder), tmp_path / "int8")
    assert not (tmp_path / "int8").exists()
