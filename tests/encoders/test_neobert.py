"""NeoBERT, whose code is no part of transformers, compared with code after its publication."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import tokenizers
import torch
from torch.nn import functional

import encoder_reference
import qdqbert
from conftest import FLAT_POOLING, TEXTS, add_sentence_files
from qdqbert.common.errors import CheckpointError
from qdqbert.encoders.config import Config
from qdqbert.encoders.of_checkpoint import read_encoder
from qdqbert.encoders.weights import Weights
from qdqbert.engines.native.packed import pack_model
from qdqbert.engines.native.runner import NativeRunner
from qdqbert.evidence.fidelity import sqnr_db

HUB = "chandar-lab/NeoBERT--model."
VALUES = {
    "model_type": "neobert",
    "auto_map": {
        "AutoConfig": f"{HUB}NeoBERTConfig",
        "AutoModel": f"{HUB}NeoBERT",
        "AutoModelForMaskedLM": f"{HUB}NeoBERTLMHead",
        "AutoModelForSequenceClassification": f"{HUB}NeoBERTForSequenceClassification",
    },
    "hidden_size": 40,
    "intermediate_size": 57,
    "max_length": 600,
    "norm_eps": 0.01,
    "num_attention_heads": 5,
    "num_hidden_layers": 2,
    "vocab_size": 131,
}
# The multiple of 8 that is next to two thirds of 57.
INNER = 40
CLASSES = {
    "feature-extraction": "NeoBERT",
    "fill-mask": "NeoBERTLMHead",
    "text-classification": "NeoBERTForSequenceClassification",
}


def make_weights(task: str, words: int = 131) -> dict[str, torch.Tensor]:
    hidden, start = VALUES["hidden_size"], "" if task == "feature-extraction" else "model."
    shapes: dict[str, tuple[int, ...]] = {f"{start}encoder.weight": (words, hidden)}
    for index in range(VALUES["num_hidden_layers"]):
        at = f"{start}transformer_encoder.{index}."
        shapes |= {
            f"{at}qkv.weight": (3 * hidden, hidden),
            f"{at}wo.weight": (hidden, hidden),
            f"{at}ffn.w12.weight": (2 * INNER, hidden),
            f"{at}ffn.w3.weight": (hidden, INNER),
            f"{at}attention_norm.weight": (hidden,),
            f"{at}ffn_norm.weight": (hidden,),
        }
    shapes[f"{start}layer_norm.weight"] = (hidden,)
    if task == "fill-mask":
        shapes |= {"decoder.weight": (words, hidden), "decoder.bias": (words,)}
    elif task == "text-classification":
        shapes |= {"dense.weight": (hidden, hidden), "dense.bias": (hidden,)}
        shapes |= {"classifier.weight": (3, hidden), "classifier.bias": (3,)}
    torch.manual_seed(0)
    return {name: 0.3 * torch.randn(shape) for name, shape in shapes.items()}


def states_of(weights: dict[str, torch.Tensor], ids: torch.Tensor) -> torch.Tensor:
    """Return the states of a text."""
    start = "" if "encoder.weight" in weights else "model."

    def linear(name: str, x: Any) -> Any:
        return functional.linear(x, weights[f"{start}{name}.weight"])

    def norm(name: str, x: Any) -> Any:
        weight = weights[f"{start}{name}.weight"]
        return functional.rms_norm(x, x.shape[-1:], weight, eps=VALUES["norm_eps"])

    def rotate(x: Any) -> Any:
        size = x.shape[-1]
        frequencies = 10_000 ** (-torch.arange(0, size, 2) / size)
        turn = torch.polar(torch.ones(1), torch.arange(len(ids))[:, None] * frequencies)
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * turn).flatten(-2)

    x = weights[f"{start}encoder.weight"][ids]
    for index in range(VALUES["num_hidden_layers"]):
        at = f"transformer_encoder.{index}"
        joined = linear(f"{at}.qkv", norm(f"{at}.attention_norm", x))
        heads = joined.unflatten(-1, (VALUES["num_attention_heads"], -1)).transpose(0, 1)
        q, k, v = heads.chunk(3, dim=-1)
        scores = rotate(q) @ rotate(k).mT / math.sqrt(q.shape[-1])
        x = x + linear(f"{at}.wo", (scores.softmax(-1) @ v).transpose(0, 1).flatten(1))
        up, gate = linear(f"{at}.ffn.w12", norm(f"{at}.ffn_norm", x)).chunk(2, dim=-1)
        x = x + linear(f"{at}.ffn.w3", functional.silu(up) * gate)
    return norm("layer_norm", x)


def outputs_of(weights: dict[str, torch.Tensor], task: str, ids: torch.Tensor) -> Any:
    def linear(name: str, x: Any) -> Any:
        return functional.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    states = states_of(weights, ids)
    if task == "fill-mask":
        states = linear("decoder", states)
    elif task == "text-classification":
        states = linear("classifier", linear("dense", states[0]).tanh())
    return states.numpy()


def save(folder: Path, weights: dict[str, torch.Tensor]) -> Weights:
    safetensors.torch.save_file(weights, folder / "model.safetensors")
    return Weights(folder)


@pytest.mark.parametrize("tokens", [21, 517])
@pytest.mark.parametrize("task", CLASSES)
@pytest.mark.usual("*-21")
def test_outputs_are_those_of_its_code(task: str, tokens: int, tmp_path: Path) -> None:
    weights = make_weights(task)
    config = Config(values={**VALUES, "num_labels": 3})
    model = read_encoder(save(tmp_path, weights), config, task)  # type: ignore[arg-type]
    assert model.limit == 600
    inputs = encoder_reference.random_inputs((3, tokens))
    mask = inputs["attention_mask"] == 1
    kept = {name: inputs[name] for name in model.input_names}
    (found,) = NativeRunner(pack_model(model, precision="float"), threads=1).run(kept).values()
    for row, (ids, own) in enumerate(zip(inputs["input_ids"], mask, strict=True)):
        wanted = outputs_of(weights, task, torch.from_numpy(ids[own]))
        assert sqnr_db(wanted, found[row][own] if found.ndim == 3 else found[row]) >= 90


def test_gates_in_weights_of_their_own_are_those_of_joined_ones(tmp_path: Path) -> None:
    weights = make_weights("feature-extraction")
    ids = torch.arange(17)
    wanted = states_of(weights, ids).numpy()
    for name in [name for name in weights if "w12" in name]:
        one, other = weights.pop(name).chunk(2)
        weights |= {name.replace("w12", "w1"): one, name.replace("w12", "w2"): other}
    saved = save(tmp_path, {name: each.contiguous() for name, each in weights.items()})
    model = read_encoder(saved, Config(values=VALUES), "feature-extraction")
    found = encoder_reference.run_text(model, ids.numpy(), None)["last_hidden_state"]
    np.testing.assert_allclose(found, wanted, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rms_norm": False}, "`rms_norm=False` .* only True"),
        ({"rope": False}, "`rope=False` .* only True"),
        ({"ngpt": True}, "`ngpt=True` .* only False"),
        ({"hidden_act": "GELU"}, "`hidden_act='GELU'` .* only 'swiglu'"),
        ({"num_attention_heads": 8}, "`num_attention_heads=8` .* heads of 5 channels"),
        # Other code has as many channels as the config says, and another rotation.
        ({"intermediate_size": INNER}, r"`transformer_encoder.0.ffn.w1.weight` has shape \(40, 40"),
        ({"auto_map": {"AutoModel": "own.NeoBERTForTokenClassification"}}, "code of its own"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, dict) else "",
)
def test_what_other_code_of_this_type_computes_is_refused(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    weights = save(tmp_path, make_weights("feature-extraction"))
    with pytest.raises(CheckpointError, match=message):
        read_encoder(weights, Config(values={**VALUES, **change}), "feature-extraction")


def make_folder(folder: Path, task: str) -> dict[str, torch.Tensor]:
    """Turn the folder of a checkpoint of BERT into one of NeoBERT, and return its weights."""
    words = json.loads((folder / "config.json").read_text())["vocab_size"]
    named = {"architectures": [CLASSES[task]], "vocab_size": words, "num_labels": 3}
    (folder / "config.json").write_text(json.dumps({**VALUES, **named}))
    weights = make_weights(task, words)
    save(folder, weights)
    return weights


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("task", CLASSES)
@pytest.mark.usual("feature-extraction")
def test_a_folder_says_its_task_and_runs_in_int8(task: str, checkpoint_copy) -> None:
    folder = checkpoint_copy("bert")
    make_folder(folder, task)
    with qdqbert.load(folder) as model:
        assert model.task == task
    # The head is left out.
    with qdqbert.load(folder, task="feature-extraction") as model:
        assert np.isfinite(model.encode(TEXTS)).all()


@pytest.mark.usefixtures("own_cache")
def test_a_folder_of_sentence_transformers_embeds_texts(checkpoint_copy) -> None:
    folder = checkpoint_copy("bert")
    weights = make_folder(folder, "feature-extraction")
    add_sentence_files(folder, {**FLAT_POOLING, "word_embedding_dimension": 40})
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(32)
    ids = [torch.tensor(tokenizer.encode(text).ids) for text in TEXTS]
    means = torch.stack([states_of(weights, each).mean(dim=0) for each in ids])
    expected = functional.normalize(means, dim=-1).numpy()
    with qdqbert.load(folder, precision="float") as model:
        np.testing.assert_allclose(model.encode(TEXTS), expected, atol=1e-5)
    with qdqbert.load(folder) as model:
        assert (model.encode(TEXTS) * expected).sum(axis=1).min() > 0.98
