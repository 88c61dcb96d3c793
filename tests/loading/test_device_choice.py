"""Models on a GPU, whose kernels run in Triton's interpreter here."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
import transformers

import qdqbert
from conftest import make_config, save_checkpoint
from gliner_models import save_gliner
from qdqbert.common.errors import MissingExtraError, UserInputError
from qdqbert.common.progress import Silent
from qdqbert.engines.cuda.device import Device
from qdqbert.loading import device_choice
from qdqbert.loading.float_checkpoint import comparison
from qdqbert.serving.models import open_models
from qdqbert.serving.options import ServerOptions
from qdqbert.verbs.benchmark import run as benchmark_run

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("own_cache")

TEXTS = ["the old house", "dog"]
CARD = Device(name="cpu", card="Interpreter", capability=80)


@pytest.fixture
def gpu(monkeypatch) -> None:
    """A GPU that is Triton's interpreter, in which the comparison of 16 texts takes a minute.

    It runs each row of a program, used or not.
    """
    monkeypatch.setattr(device_choice, "find_device", lambda name: CARD)
    monkeypatch.setattr("qdqbert.engines.cuda.texts.CAPACITIES", (8, 16))
    monkeypatch.setattr("qdqbert.engines.cuda.runner.CudaRunner.run_token", lambda self: None)
    monkeypatch.setattr(comparison, "_TEXTS", 1)
    monkeypatch.setattr(comparison, "_LONGEST_TEXT", 4)


def close(found, wanted, decibels: float) -> bool:
    found, wanted = (np.asarray(each, np.float64) for each in (found, wanted))
    noise = ((found - wanted) ** 2).sum()
    return bool(10 * np.log10((wanted**2).sum() / noise) > decibels)


def test_a_float_checkpoint_runs_on_a_gpu(gpu, checkpoints, caplog) -> None:
    folder = checkpoints("sentence")
    with caplog.at_level(logging.INFO, "qdqbert"), qdqbert.load(folder, device="cuda") as model:
        found = model.encode(TEXTS)
        alone = model.encode(TEXTS[0])
    assert (model.engine, model.target) == ("native", "native-dynamic")
    assert "on cpu (Interpreter)" in caplog.text
    # INT8 was compared with float16 there.
    assert "compared with float" in caplog.text
    with qdqbert.load(folder) as model:
        assert close(found, model.encode(TEXTS), 25)
    np.testing.assert_array_equal(found[0], alone)


def test_float16_is_the_precision_in_float(gpu, checkpoints) -> None:
    folder = checkpoints("classifier")
    with qdqbert.load(folder, device="cuda", precision="float16") as model:
        found = model(TEXTS)
    with qdqbert.load(folder, precision="float") as model:
        wanted = model(TEXTS)
    assert [each["label"] for each in found] == [each["label"] for each in wanted]
    assert [each["score"] for each in found] == pytest.approx(
        [each["score"] for each in wanted], abs=1e-3
    )


def test_a_quantized_folder_runs_its_dynamic_target_on_a_gpu(gpu, quantized) -> None:
    made = quantized("sentence")
    with qdqbert.load(made.directory, device="auto") as model:
        found = model.encode(TEXTS)
        assert model.target == "native-dynamic"
    with qdqbert.load(made.directory, target="native-dynamic") as model:
        assert close(found, model.encode(TEXTS), 25)


@pytest.mark.parametrize(("device", "level"), [("cuda", "WARNING"), ("auto", "INFO")])
def test_what_a_gpu_cannot_run_runs_on_the_cpu_and_says_so(
    gpu, checkpoints, quantized, caplog, device, level
) -> None:
    caplog.set_level(logging.INFO, "qdqbert")
    for folder, reason in (
        (quantized("classifier").directory, "GPUs run the target 'native-dynamic'"),
        (checkpoints("deberta-v2"), "relative positions"),
    ):
        caplog.clear()
        with qdqbert.load(folder, device=device) as model:
            assert len(model.encode(TEXTS) if hasattr(model, "encode") else model(TEXTS)) == 2
        (said,) = [each for each in caplog.records if "runs on the CPU" in each.getMessage()]
        assert reason in said.getMessage()
        assert said.levelname == level


def test_an_encoder_of_labels_that_a_gpu_cannot_run_runs_on_the_cpu(gpu, tmp_path, caplog) -> None:
    folder = save_gliner(tmp_path / "model", "bert", labels_type="deberta-v2")
    every = {"labels": ["place"], "threshold": 0.0, "multi_label": True, "flat_ner": False}
    with (
        qdqbert.load(folder, device="cuda", check=False) as model,
        qdqbert.load(folder, check=False) as wanted,
    ):
        found = [[each["score"] for each in one(TEXTS[0], **every)] for one in (model, wanted)]
    assert found[0] == pytest.approx(found[1], abs=0.1)
    assert f"The encoder of the labels of {folder} runs on the CPU, not on cpu" in caplog.text


def test_scores_of_a_vocabulary_have_no_larger_batches_than_on_the_cpu(gpu, tmp_path) -> None:
    kind, config = transformers.AutoModelForMaskedLM, make_config("bert", num_hidden_layers=1)
    folder = save_checkpoint(tmp_path / "float", kind, config)
    with qdqbert.load(folder, device="cuda", check=False) as model:
        assert model._loaded.scheduler._schedule.plan.tokens == 1024


def test_auto_without_a_gpu_is_the_cpu(checkpoints, caplog) -> None:
    with caplog.at_level(logging.INFO, "qdqbert"):
        model = qdqbert.load(checkpoints("sentence"), device="auto")
    model.close()
    assert "Models run on the CPU: `device='auto'`: torch" in caplog.text


@pytest.fixture
def full_gpu(gpu, monkeypatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr("qdqbert.engines.cuda.runner.CudaRunner", fail)


@pytest.mark.parametrize("is_quantized", [False, True])
def test_auto_with_a_full_gpu_is_the_cpu_and_says_so(
    full_gpu, checkpoints, quantized, caplog, is_quantized
) -> None:
    folder = quantized("sentence").directory if is_quantized else checkpoints("sentence")
    with (
        caplog.at_level(logging.INFO, "qdqbert"),
        qdqbert.load(folder, device="auto") as model,
        qdqbert.load(folder) as wanted,
    ):
        np.testing.assert_array_equal(model.encode(TEXTS), wanted.encode(TEXTS))
        assert (model.engine, model.target) == (wanted.engine, wanted.target)
    assert "runs on the CPU, not on cpu (Interpreter): " in caplog.text
    assert "does not fit into the free memory of Interpreter" in caplog.text


def test_a_full_gpu_that_is_asked_for_is_an_error(full_gpu, checkpoints) -> None:
    with pytest.raises(UserInputError, match="does not fit into the free memory of Interpreter"):
        qdqbert.load(checkpoints("sentence"), device="cuda")


def test_a_gpu_that_is_asked_for_and_not_there_is_an_error(checkpoints, monkeypatch) -> None:
    with pytest.raises(UserInputError, match=r"`device='cuda:1'`: torch .*Pass `device='cpu'`"):
        qdqbert.load(checkpoints("sentence"), device="cuda:1")
    monkeypatch.setattr("qdqbert.engines.cuda.device.is_installed", lambda name: False)
    with pytest.raises(MissingExtraError, match=r"pip install 'qdqbert\[cuda\]'"):
        qdqbert.load(checkpoints("sentence"), device="cuda")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "gpu"}, "`device='gpu'` is unknown"),
        ({"device": "cuda", "engine": "onnxruntime"}, "`engine='onnxruntime'` is not"),
        ({"device": "cuda", "provider": "cuda"}, "`provider='cuda'` is not"),
        ({"device": "auto", "kernel": "portable"}, "`kernel='portable'` is not"),
        ({"device": "cuda", "precision": "float"}, "Pass 'float16'"),
        ({"precision": "float16"}, "`precision='float16'` is for GPUs"),
    ],
)
def test_options_that_contradict_a_device_are_refused(checkpoints, options, message) -> None:
    with pytest.raises(UserInputError, match=message):
        qdqbert.load(checkpoints("sentence"), **options)


def test_a_benchmark_on_a_gpu_times_float16_and_int8_there(gpu, checkpoints, monkeypatch) -> None:
    seen = []

    def time_candidates(candidates, *_, **__):
        seen.extend(candidates)
        return []

    monkeypatch.setattr(benchmark_run, "time_candidates", time_candidates)
    qdqbert.benchmark(checkpoints("sentence"), device="cuda")
    assert [(each.engine, each.device) for each in seen] == [("native", CARD)] * 2
    assert seen[0].model != seen[1].model


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("float", "The kernels for GPUs do not compute relative positions"),
        ("folder", "its targets are portable"),
        ("graph", "it is a graph"),
    ],
)
def test_a_benchmark_of_what_a_gpu_does_not_run_is_refused_and_auto_is_the_cpu(
    gpu, checkpoints, quantized, monkeypatch, caplog, kind, reason
) -> None:
    seen = []
    monkeypatch.setattr(
        benchmark_run, "time_candidates", lambda candidates, *_, **__: seen.extend(candidates) or []
    )
    if kind == "float":
        model = checkpoints("deberta-v2")
    else:
        folder = quantized("classifier").directory
        model = folder if kind == "folder" else next(folder.glob("*.onnx"))
    message = rf"`device`: .* does not run on GPUs, .*{reason}.* Pass `device='cpu'`"
    with pytest.raises(UserInputError, match=message) as caught:
        qdqbert.benchmark(model, device="cuda")
    assert caught.value.argument == "device"
    with caplog.at_level(logging.INFO, "qdqbert"):
        qdqbert.benchmark(model, device="auto")
    assert {each.device for each in seen} == {None}
    assert "`benchmark` runs on the CPU, not on cpu (Interpreter): " in caplog.text


def test_a_server_runs_its_models_on_a_gpu(gpu, checkpoints, caplog) -> None:
    options = ServerOptions((str(checkpoints("sentence")),), device="cuda")
    with caplog.at_level(logging.INFO, "qdqbert"), open_models(options, Silent()) as models:
        (model,) = models.values()
        assert model.encode(TEXTS).shape == (2, model.encode("a").size)
    assert "on cpu (Interpreter)" in caplog.text
    with pytest.raises(UserInputError, match="`kernel='portable'` is not"):
        ServerOptions(("a",), device="cuda", kernel="portable")
