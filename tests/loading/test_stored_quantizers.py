"""Checkpoints with quantizers of their own run with the ranges that they store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers

import qdqbert
from python_process import run_python
from qdqbert.calibration.reference.sited_model import sited_model
from qdqbert.common.errors import CheckpointError
from qdqbert.encoders.affine import quantize_weight
from qdqbert.evidence.fidelity import sqnr_db
from qdqbert.quantization.spec import TensorSpec
from qdqbert.training.models.quantized import class_for
from qdqbert.training.models.state import learn_ranges_

TEXTS = ["the old house", "a train to the city and a good book for the night", "dog"]
QUERY = "encoder.layer.0.attention.self.query"
CALIBRATED = ["a good book", "the train to the old city was late in the night", "my dog", *TEXTS]
# The codes are the same. A sum in another order can move an input to the next code, which is as
# much as 0.4 % of its range; a wrong scale or zero point would be below 15 dB.
LEAST_DB = 32.0


pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(autouse=True)
def weights_are_not_limited(monkeypatch):
    """Scales of weights are those of the checkpoint, on CPUs without VNNI too."""
    monkeypatch.setattr("qdqbert.loading.float_checkpoint.folder.limits_pairs", lambda: False)


def calibrated(model: Any, source: Path, **options: Any) -> Any:
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    batches = [tokenizer(text, return_tensors="pt") for text in CALIBRATED]
    return qdqbert.calibrate(model.eval(), batches, **options)


def saved(model: Any, source: Path, folder: Path) -> Path:
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    return folder


@pytest.fixture
def qdqbert_folder(checkpoints, tmp_path):
    """Save a calibrated QDQBERT model without a head."""

    def make(**options: Any) -> Path:
        source = checkpoints("bert")
        model = calibrated(qdqbert.QDQBertModel.from_pretrained(source), source, **options)
        return saved(model, source, tmp_path / "qdqbert")

    return make


def outputs_of(model: Any, folder: Path) -> list[np.ndarray]:
    """Return what the fake-quantized model computes, with the table of words in int8."""
    table = model.get_input_embeddings().weight
    with torch.no_grad():
        codes, scale = quantize_weight(table.numpy(), TensorSpec(narrow=True, axis=1))
        table.copy_(torch.from_numpy(codes * scale))
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        encoded = [tokenizer(text, return_tensors="pt") for text in TEXTS]
        return [model(**each)[0][0].numpy() for each in encoded]


def states_of(folder: Path) -> list[np.ndarray]:
    with qdqbert.load(folder, check=False) as model:
        assert (model.engine, model.target) == ("native", "native")
        return [np.asarray(model(text)[0][0]) for text in TEXTS]


def assert_close(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    assert [each.shape for each in found] == [each.shape for each in expected]
    assert sqnr_db(np.concatenate(expected), np.concatenate(found)) >= LEAST_DB


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"quant_per_tensor": True, "fuse_qkv": True},
        {"quant_disable_keyword": ["add_", "matmul_a"], "wprec": 7, "clip_gelu": 1.0},
    ],
    ids=["per channel", "per tensor", "some in float"],
)
@pytest.mark.usual("per channel")
def test_states_are_those_of_the_fake_quantized_model(qdqbert_folder, options) -> None:
    folder = qdqbert_folder(**options)
    expected = outputs_of(qdqbert.QDQBertModel.from_pretrained(folder), folder)
    assert_close(states_of(folder), expected)


def test_ranges_are_used_and_not_those_of_each_token(qdqbert_folder) -> None:
    folder = qdqbert_folder()
    before = states_of(folder)
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    tensors[f"{QUERY}._input_quantizer._amax"] /= 8
    safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    expected = outputs_of(qdqbert.QDQBertModel.from_pretrained(folder), folder)
    assert_close(states_of(folder), expected)
    assert sqnr_db(before[1], expected[1]) < 25


def test_a_model_with_a_head_is_run(checkpoints, tmp_path) -> None:
    source = checkpoints("classifier")
    model = qdqbert.QDQBertForSequenceClassification.from_pretrained(source)
    folder = saved(calibrated(model, source), source, tmp_path / "classifier")
    with qdqbert.load(folder) as loaded:
        assert loaded.target == "native"
        answers = loaded(TEXTS, top_k=None, function_to_apply="none")
    labels = [name for _, name in sorted(model.config.id2label.items())]
    scores = [{each["label"]: each["score"] for each in answer} for answer in answers]
    found = [np.array([each[label] for label in labels]) for each in scores]
    assert_close(found, outputs_of(model, folder))


def test_a_decoder_of_its_own_in_the_file_is_not_the_table(save_tiny, tmp_path) -> None:
    """As in transformers, although the config ties the two."""
    source = save_tiny(tmp_path / "float", "bert", transformers.AutoModelForMaskedLM)
    model = calibrated(qdqbert.QDQBertForMaskedLM.from_pretrained(source), source)
    assert model.config.tie_word_embeddings
    folder = saved(model, source, tmp_path / "masked-lm")
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    table = tensors["bert.embeddings.word_embeddings.weight"]
    tensors["cls.predictions.decoder.weight"] = table.roll(7, dims=0).contiguous()
    safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    expected = type(model).from_pretrained(folder)
    assert torch.equal(expected.cls.predictions.decoder.weight, table.roll(7, dims=0))
    text = "the old [MASK]"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    encoded = tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        scores = expected(**encoded).logits[0, 3].softmax(-1)
    with qdqbert.load(folder, check=False) as loaded:
        answers = loaded(text, top_k=len(table))
    found = [answer["score"] for answer in sorted(answers, key=lambda each: each["token"])]
    assert np.corrcoef(np.log(found), scores.log().numpy())[0, 1] > 0.95


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("family", ["distilbert", "modernbert", "roberta"])
@pytest.mark.usual("distilbert-True", "modernbert-False")
def test_models_of_other_families_keep_their_quantizers(
    checkpoints, tmp_path, family, learns
) -> None:
    source = checkpoints(family)
    model = qdqbert.prepare(transformers.AutoModel.from_pretrained(source), "full-smoothed")
    model = calibrated(model, source)
    if learns:
        learn_ranges_(sited_model(model), "learned")
        for quantizer in sited_model(model).quantizers.values():
            if quantizer.clip is not None:
                quantizer.clip.clip_value_max.data *= 0.7
    folder = saved(model, source, tmp_path / family)
    again = class_for(type(model), model.config).from_pretrained(folder)
    assert_close(states_of(folder), outputs_of(again, folder))


@pytest.mark.slow
def test_only_numpy_reads_a_checkpoint(qdqbert_folder) -> None:
    code = (
        "import sys, qdqbert\n"
        f"qdqbert.load({str(qdqbert_folder())!r}, check=False)(['a dog'])\n"
        "print(sorted({'torch', 'transformers', 'onnx', 'onnx_ir'} & set(sys.modules)))"
    )
    assert run_python("-c", code) == "[]"


def test_float_runs_the_weights_without_quantizers(qdqbert_folder, checkpoints) -> None:
    folder = qdqbert_folder()
    with qdqbert.load(folder, precision="float") as one:
        found = one(TEXTS[1])[0][0]
    with qdqbert.load(checkpoints("bert"), precision="float") as other:
        np.testing.assert_allclose(found, other(TEXTS[1])[0][0], atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"quant_disable_layer_module": "output.dense"},
            r"`encoder\.layer\.0\.output\.dense\._input_quantizer` is in float",
        ),
        ({"aprec": 7}, r"`encoder\.layer\.0\..*_quantizer` has the codes -64 to 63"),
    ],
)
def test_placements_that_the_engine_does_not_have_are_refused(
    qdqbert_folder, options, message
) -> None:
    folder = qdqbert_folder(**options)
    with pytest.raises(CheckpointError, match=message + r"[\s\S]*with another `recipe`"):
        qdqbert.load(folder)


def test_a_model_without_ranges_is_refused(checkpoints, tmp_path) -> None:
    source = checkpoints("bert")
    folder = saved(qdqbert.QDQBertModel.from_pretrained(source), source, tmp_path / "new")
    with pytest.raises(CheckpointError, match=r"no calibrated range[\s\S]*with another `recipe`"):
        qdqbert.load(folder)


def test_a_quantizer_at_another_place_is_refused(qdqbert_folder) -> None:
    folder = qdqbert_folder()
    content = json.loads((folder / "config.json").read_text())
    content["quantizers"]["changed"]["encoder.layer.0.elsewhere"] = {}
    (folder / "config.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"no place for the quantizer `encoder\.layer\.0\.el"):
        qdqbert.load(folder)
