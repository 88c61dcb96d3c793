"""Loading a folder: the choice of the engine, threads, and what is imported."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
import shutil

import numpy as np
import onnxruntime
import pytest

import qdqbert
from load_stub import STUB, stub
from python_process import run_python
from qdqbert.common.errors import CheckpointError, MissingExtraError, UserInputError
from qdqbert.encoders.checkpoint.load import load_checkpoint
from qdqbert.engines.native import instruction_sets
from qdqbert.engines.registry import is_installed
from qdqbert.loading import engine_choice
from qdqbert.loading import load as load_module
from qdqbert.loading.engine_choice import choose_engine
from qdqbert.runtime.artifact import open_artifact
from qdqbert.runtime.options import EngineOptions
from qdqbert.tasks.registry import TASKS

FEATURES = ("avx2", "avx512_vnni")


@pytest.fixture
def folder(quantized, tmp_path, monkeypatch):
    """A copy of a folder for both engines, on a CPU with VNNI, both engines installed."""
    monkeypatch.setattr(engine_choice, "cpu_features", lambda: FEATURES)
    monkeypatch.setattr(engine_choice, "is_installed", lambda engine: True)
    return shutil.copytree(quantized("classifier").directory, tmp_path / "int8")


def change(path, **entries) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


def report_latency(folder, **times) -> None:
    targets = [
        {"engine": engine, "latency": [{"int8_ms": each} for each in ms]}
        for engine, ms in times.items()
    ]
    change(folder / "report.json", targets=targets, cpu_features=list(FEATURES))


def test_the_given_engine_is_used(folder) -> None:
    assert (
        choose_engine(open_artifact(folder), EngineOptions(engine="onnxruntime"))[0]
        == "onnxruntime"
    )


def test_a_provider_needs_onnxruntime(folder) -> None:
    assert choose_engine(open_artifact(folder), EngineOptions(provider="cpu"))[0] == "onnxruntime"


def test_a_provider_that_is_missing_or_does_not_start_is_refused_by_load(
    folder, monkeypatch
) -> None:
    providers = ["CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: providers)
    with pytest.raises(MissingExtraError, match="`provider='cuda'` needs another package"):
        qdqbert.load(folder, provider="cuda")
    providers.append("CUDAExecutionProvider")

    def fail(*args, **options):
        raise UserInputError("It did not start.")

    monkeypatch.setattr(load_module, "open_runner", fail)
    with pytest.raises(UserInputError, match="It did not start"):
        qdqbert.load(folder, provider="cuda")


@pytest.mark.parametrize(
    ("times", "engine"),
    [
        ({"onnxruntime": [1.0, 2.0], "openvino": [2.0, 2.0]}, "onnxruntime"),
        ({"onnxruntime": [3.0, 3.0], "openvino": [2.0, 4.0]}, "openvino"),
    ],
)
def test_the_fastest_engine_of_the_report_is_used(folder, times, engine) -> None:
    report_latency(folder, **times)
    found, reason = choose_engine(open_artifact(folder), EngineOptions())
    assert found == engine
    assert "report.json" in reason


def test_a_report_of_another_cpu_does_not_decide(folder, monkeypatch) -> None:
    report_latency(folder, onnxruntime=[1.0], openvino=[2.0])
    change(folder / "report.json", cpu_features=["avx2"])
    assert choose_engine(open_artifact(folder), EngineOptions())[0] == "openvino"
    monkeypatch.setattr(engine_choice, "cpu_features", lambda: ("avx2", "avx512f"))
    assert choose_engine(open_artifact(folder), EngineOptions())[0] == "onnxruntime"


def test_the_native_engine_is_the_usual_one_where_it_has_a_fast_kernel(
    quantized, monkeypatch
) -> None:
    artifact = open_artifact(quantized("sentence").directory)
    monkeypatch.setattr(engine_choice, "is_installed", lambda engine: True)
    for features, engine in ((("avx2",), "native"), (("sse4_2",), "onnxruntime")):
        monkeypatch.setattr(engine_choice, "cpu_features", lambda found=features: found)
        assert choose_engine(artifact, EngineOptions())[0] == engine


def test_a_stored_choice_decides_on_a_cpu_with_the_same_features(folder, monkeypatch) -> None:
    report_latency(folder, onnxruntime=[1.0], openvino=[2.0])
    chosen = {"engine": "openvino", "cpu_features": list(FEATURES)}
    change(folder / "quantization.json", choice=chosen)
    assert choose_engine(open_artifact(folder), EngineOptions())[0] == "openvino"
    monkeypatch.setattr(engine_choice, "cpu_features", lambda: ("avx2",))
    assert choose_engine(open_artifact(folder), EngineOptions())[0] == "onnxruntime"


@pytest.mark.parametrize("usual", ["native", "onnxruntime", "openvino"])
@pytest.mark.parametrize("target", ["native", "native-dynamic", "onnxruntime", "openvino"])
def test_the_engine_is_one_that_runs_the_target(quantized, monkeypatch, usual, target) -> None:
    """The fastest engine of the folder may run another target only."""
    artifact = open_artifact(quantized("sentence").directory)
    chosen = {"engine": usual, "cpu_features": list(FEATURES)}
    monkeypatch.setattr(engine_choice, "cpu_features", lambda: FEATURES)
    artifact = dataclasses.replace(artifact, choice=chosen)
    found, reason = choose_engine(artifact, EngineOptions(), target)
    assert (found, reason) == (target.split("-")[0], "no other engine runs this target")
    # Two engines run this one.
    found, _ = choose_engine(artifact, EngineOptions(), "portable")
    assert found == (usual if usual != "native" else "openvino")


def test_the_target_alone_decides_for_load_and_evaluate(quantized) -> None:
    folder = quantized("sentence").directory
    with qdqbert.load(folder, target="onnxruntime") as model:
        assert (model.engine, model.target) == ("onnxruntime", "onnxruntime")
    report = qdqbert.evaluate(folder, target="openvino", reference=quantized("sentence").checkpoint)
    assert (report.engine, report.target) == ("openvino", "openvino")


def test_only_installed_engines_are_considered(folder, monkeypatch) -> None:
    monkeypatch.setattr(engine_choice, "is_installed", lambda engine: engine == "onnxruntime")
    engine, reason = choose_engine(open_artifact(folder), EngineOptions())
    assert (engine, reason) == ("onnxruntime", "no other engine of this folder is installed")


@pytest.mark.parametrize(
    ("times", "message"),
    [
        (
            {"onnxruntime": [8.0, 4.0], "openvino": [2.0, 1.0]},
            r"runs on onnxruntime, and should run on openvino, which is not installed: .*\(4\.0 "
            r"x as fast\)\. Install it with: pip install 'qdqbert\[openvino\]'",
        ),
        ({}, r"not installed: it is usually the fastest on CPUs with VNNI or AMX\. Install it"),
        ({"onnxruntime": [1.0], "openvino": [2.0]}, None),
    ],
    ids=["measured", "usual", "slower"],
)
def test_a_faster_engine_that_is_not_installed_is_named(
    folder, monkeypatch, caplog, times, message
) -> None:
    report_latency(folder, **times)
    monkeypatch.setattr(engine_choice, "is_installed", lambda engine: engine == "onnxruntime")
    assert choose_engine(open_artifact(folder), EngineOptions())[0] == "onnxruntime"
    if message is None:
        assert not caplog.records
    else:
        [record] = caplog.records
        assert record.levelname == "WARNING"
        assert re.search(message, record.message)


def test_a_slow_kernel_is_reported(quantized, monkeypatch, caplog) -> None:
    monkeypatch.setattr(instruction_sets, "cpu_features", lambda: ())
    folder = quantized("sentence").directory
    qdqbert.load(folder, engine="native")
    assert "kernel 'portable', which can be 20 times slower than ONNX Runtime" in caplog.text
    caplog.clear()
    qdqbert.load(folder, engine="native", kernel="portable")
    assert not [each for each in caplog.records if each.levelname == "WARNING"]


def test_the_choice_is_logged_with_its_reason(quantized, caplog) -> None:
    caplog.set_level("INFO", logger="qdqbert")
    model = qdqbert.load(quantized("classifier").directory, engine="onnxruntime", threads=1)
    assert "on onnxruntime: it was asked for." in caplog.text
    assert (model.engine, model.target, model.task) == (
        "onnxruntime",
        "portable",
        "text-classification",
    )
    assert repr(model).startswith("TextClassifier('")


@pytest.mark.openvino
def test_both_engines_and_any_number_of_threads_give_the_same_classes(quantized) -> None:
    if not is_installed("openvino"):
        pytest.skip("openvino is not installed")
    made = quantized("classifier")
    texts = made.data.read_text().splitlines() * 4
    labels = []
    for engine in ("onnxruntime", "openvino"):
        for threads in (1, 2):
            with qdqbert.load(made.directory, engine=engine, threads=threads) as model:
                scores = model(texts, top_k=None)
            labels.append([{each["label"]: each["score"] for each in one} for one in scores])
    for other in labels[1:]:
        for first, second in zip(labels[0], other, strict=True):
            assert second == pytest.approx(first, abs=0.05)


@pytest.mark.parametrize("task", ["tagging", "text-generation"])
def test_a_task_that_is_not_run_is_refused(folder, task) -> None:
    stored = json.loads((folder / "quantization.json").read_text())
    change(folder / "quantization.json", checkpoint={**stored["checkpoint"], "task": task})
    with pytest.raises(UserInputError, match=f"is a model for '{task}', which `load` does not run"):
        qdqbert.load(folder)


@pytest.mark.parametrize(
    ("made", "right", "wrong"),
    [
        ("sentence", "feature-extraction", "reranking"),
        ("classifier", "text-classification", "reranking"),
        ("reranker", "reranking", "text-classification"),
    ],
)
def test_a_model_for_another_task_is_refused(quantized, made, right, wrong) -> None:
    folder = quantized(made).directory
    assert isinstance(qdqbert.load(folder, task=right), TASKS[right].model)
    with pytest.raises(UserInputError, match=f"`task='{wrong}'`: .* is a model for '{right}'"):
        qdqbert.load(folder, task=wrong)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"task": "sentiment"}, r"`task='sentiment'` is unknown\. Choose one of: entity-"),
        ({"engine": "tvm"}, r"`engine='tvm'` is unknown\. Choose one of: onnxruntime, openvino"),
        ({"kernel": "sse"}, r"`kernel='sse'` is unknown\. Choose one of: amx"),
        ({"target": "tvm"}, r"`target='tvm'` is unknown\. Choose one of: portable"),
        ({"precision": "fp16"}, r"`precision='fp16'` is unknown\. Choose one of: int8, float"),
        ({"threads": "2"}, r"`threads` must be a whole number, got '2' \(str\)"),
        ({"threads": 0}, "`threads` must be at least 1, got 0"),
        ({"batch_invariant": "yes"}, r"`batch_invariant` must be True or False, got 'yes'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_a_wrong_argument_is_refused_before_the_folder_is_read(arguments, message) -> None:
    with pytest.raises(UserInputError, match=message):
        qdqbert.load("./missing", **arguments)


def test_what_is_no_model_is_refused(tmp_path) -> None:
    with pytest.raises(CheckpointError, match=r"Folder '.*missing' does not exist"):
        qdqbert.load(tmp_path / "missing")
    with pytest.raises(CheckpointError, match="is neither a quantized model nor a float check"):
        qdqbert.load(tmp_path)
    (tmp_path / "model.onnx").touch()
    with pytest.raises(CheckpointError, match="quantize it first: qdqbert quantize"):
        qdqbert.load(tmp_path / "model.onnx")


@pytest.mark.parametrize("call", [qdqbert.load, lambda path: load_checkpoint(str(path))])
def test_a_url_and_a_file_get_what_to_pass_instead(checkpoints, call) -> None:
    with pytest.raises(CheckpointError, match=r"is a URL\. Pass .* OWNER/NAME, as 'a/b'"):
        call("https://huggingface.co/a/b/tree/main")
    folder = checkpoints("classifier")
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        with pytest.raises(CheckpointError, match=f"is a file; .* Pass its folder, '{folder}'"):
            call(folder / name)


def test_type_checkers_see_the_class_of_each_task() -> None:
    # Formatting does not count.
    found, wanted = (ast.dump(ast.parse(text)) for text in (STUB.read_text(), stub()))
    assert found == wanted, "Run `python tests/load_stub.py`."


def test_batch_invariant_results_are_those_of_each_text_alone(quantized, engine) -> None:
    made = quantized("sentence")
    texts = made.data.read_text().splitlines()
    with qdqbert.load(made.directory, engine=engine, batch_invariant=True) as model:
        together = model.encode(texts)
        alone = [model.encode(text) for text in texts]
    np.testing.assert_array_equal(together, alone)


def test_a_folder_without_a_tokenizer_is_refused(folder) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no tokenizer\.json"):
        qdqbert.load(folder)


def test_a_broken_tokenizer_is_refused(folder) -> None:
    (folder / "tokenizer.json").write_text("{}")
    (folder / "SHA256SUMS").unlink()
    with pytest.raises(CheckpointError, match=r"The tokenizer .* cannot be used"):
        qdqbert.load(folder)


@pytest.mark.parametrize("name", ["tokenizer.json", "model.onnx"])
def test_a_changed_file_is_refused(folder, name) -> None:
    with (folder / name).open("r+b") as file:
        file.seek(-20, 2)
        byte = file.read(1)[0]
        file.seek(-20, 2)
        file.write(bytes([byte ^ 1]))
    with pytest.raises(CheckpointError, match=f"{name}' .*SHA256SUMS"):
        qdqbert.load(folder)


def test_a_file_without_a_checksum_is_refused(folder) -> None:
    sums = folder / "SHA256SUMS"
    lines = sums.read_text().splitlines()
    sums.write_text("\n".join(each for each in lines if "model.onnx" not in each))
    with pytest.raises(CheckpointError, match=r"SHA256SUMS' .* no checksum of model\.onnx"):
        qdqbert.load(folder)


def test_a_folder_without_checksums_is_loaded(folder, caplog) -> None:
    (folder / "SHA256SUMS").unlink()
    with caplog.at_level("INFO", logger="qdqbert"):
        qdqbert.load(folder)
    assert "has no SHA256SUMS" in caplog.text


def test_settings_may_be_changed_by_hand(folder) -> None:
    change(folder / "config.json", id2label={"0": "bad", "1": "so-so", "2": "good"})
    (folder / "README.md").write_text("A card of my own.")
    assert qdqbert.load(folder)("a fine day")[0]["label"] in ("bad", "so-so", "good")


def test_fewer_names_than_classes_are_an_error(folder) -> None:
    change(folder / "config.json", id2label={"0": "bad", "1": "good"})
    with pytest.raises(CheckpointError, match=r"config\.json' is 2 .* head is 3"):
        qdqbert.load(folder)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pad_token", 1),
        ("mask_token", {"text": "x"}),
        ("truncation_side", "middle"),
        ("pad_token_type_id", -1),
        ("clean_up_tokenization_spaces", "no"),
    ],
)
def test_wrong_settings_of_the_tokenizer_are_refused(folder, name, value) -> None:
    change(folder / "tokenizer_config.json", **{name: value})
    with pytest.raises(CheckpointError, match=rf"tokenizer_config\.json' .* setting '{name}"):
        qdqbert.load(folder)


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_a_tokenizer_with_ids_beyond_the_embeddings_is_refused(folder, engine) -> None:
    (folder / "SHA256SUMS").unlink()
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["vocab"]["a"] = 1_000_000
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"tokenizer\.json' has the id 1000000"):
        qdqbert.load(folder, engine=engine)


@pytest.mark.parametrize(
    "targets", [{}, [1], [{"engine": 1}], [{"engine": "a", "latency": [{"int8_ms": 0}]}]]
)
def test_a_damaged_report_is_refused(folder, targets) -> None:
    change(folder / "report.json", targets=targets)
    with pytest.raises(CheckpointError, match=r"report\.json' .* setting 'targets"):
        choose_engine(open_artifact(folder), EngineOptions())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": 0}, "`threads` must be at least 1, got 0"),
        ({"target": "openvino"}, "`target='openvino'`: .* contains graphs for portable only"),
        ({"engine": "openvino", "provider": "cuda"}, "`provider='cuda'` is an execution provider"),
    ],
)
def test_unusable_arguments_are_refused(folder, options, message) -> None:
    with pytest.raises(UserInputError, match=message):
        qdqbert.load(folder, **options)


def test_running_imports_neither_torch_nor_transformers_nor_onnx(quantized) -> None:
    code = f"""
import sys, qdqbert
with qdqbert.load({str(quantized("sentence").directory)!r}) as model:
    assert model.encode(["the cat", "a dog"]).shape == (2, 32)
print(sorted({{"torch", "transformers", "onnx", "onnx_ir", "onnxscript"}} & set(sys.modules)))
"""
    assert run_python("-c", code) == "[]"
