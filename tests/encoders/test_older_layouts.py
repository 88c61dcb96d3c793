"""Checkpoints whose code is not a part of transformers, or was not when they were made."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
import transformers
from torch.nn import functional

import encoder_reference
import qdqbert
from encoder_reference import run_text
from encoders.test_families import SIZES, random_inputs, save_model
from jina_models import ABSOLUTE, ROTARY, flash_reference, flash_weights
from qdqbert.common.errors import CheckpointError
from qdqbert.encoders.config import Config
from qdqbert.encoders.of_checkpoint import read_encoder
from qdqbert.encoders.quantize import round_encoder
from qdqbert.encoders.weights import Weights
from qdqbert.engines.native.packed import pack_model
from qdqbert.engines.native.runner import NativeRunner
from qdqbert.engines.native.storage import save_packed
from qdqbert.evidence.fidelity import sqnr_db


def outputs_of(folder: Path, values: dict[str, Any], inputs: dict[str, Any]) -> Any:
    found = read_encoder(Weights(folder), Config(values=values), "feature-extraction")
    kept = {name: inputs[name] for name in found.input_names}
    return encoder_reference.run_encoder(found, kept)["last_hidden_state"]


def check(model: Any, folder: Path, values: dict[str, Any]) -> None:
    """Compare what is read from the files of a model, with another config, with its outputs."""
    reference = read_encoder(
        Weights(folder), Config(values=model.config.to_dict()), "feature-extraction"
    )
    inputs = random_inputs(reference, "feature-extraction", model.config.pad_token_id)
    with torch.no_grad():
        expected = model(**{name: torch.from_numpy(each) for name, each in inputs.items()})
    mask = inputs["attention_mask"] == 1
    wanted = expected["last_hidden_state"].numpy()[mask]
    found = outputs_of(folder, values, inputs)[mask]
    np.testing.assert_allclose(found, wanted, atol=2e-4 * np.abs(wanted).max())


NOMIC = {
    "model_type": "nomic_bert",
    "activation_function": "swiglu",
    "causal": False,
    "layer_norm_epsilon": 1e-12,
    "max_trained_positions": 70,
    "n_embd": 40,
    "n_head": 5,
    "n_inner": 56,
    "n_layer": 3,
    "n_positions": 8192,
    "prenorm": False,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "type_vocab_size": 2,
    "use_rms_norm": False,
    "vocab_size": 131,
}


def test_nomic_with_the_fields_of_its_own_code(tmp_path: Path) -> None:
    model = save_model("nomic_bert", "feature-extraction", tmp_path)
    assert any("encoder.layers.0.attn.Wqkv" in name for name in Weights(tmp_path))
    check(model, tmp_path, NOMIC)


@pytest.mark.parametrize(
    ("name", "value"), [("prenorm", True), ("num_experts", 8), ("rotary_emb_fraction", 0.5)]
)
def test_nomic_refuses_what_its_code_can_do_besides(
    name: str, value: object, tmp_path: Path
) -> None:
    save_model("nomic_bert", "feature-extraction", tmp_path)
    config = Config(values={**NOMIC, name: value})
    with pytest.raises(CheckpointError, match=name if name != "rotary_emb_fraction" else "rotary"):
        read_encoder(Weights(tmp_path), config, "feature-extraction")


MIXED = {
    **NOMIC,
    "activation_function": "gelu",
    "layer_norm_epsilon": 1e-5,
    "moe_every_n_layers": 2,
    "moe_top_k": 2,
    # The last one has experts.
    "n_layer": 4,
    "num_experts": 5,
    "rotary_emb_base": 10_000,
    "type_vocab_size": 1,
}


def mixed_weights(words: int = MIXED["vocab_size"]) -> dict[str, Any]:
    """Return random weights with the names and shapes of nomic-embed-text-v2-moe."""
    hidden, inner, experts = MIXED["n_embd"], MIXED["n_inner"], MIXED["num_experts"]
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (words, hidden),
        "embeddings.token_type_embeddings.weight": (1, hidden),
        **dict.fromkeys(("emb_ln.weight", "emb_ln.bias"), (hidden,)),
    }
    for index in range(MIXED["n_layer"]):
        at = f"encoder.layers.{index}"
        linears = {"attn.Wqkv": (3 * hidden, hidden), "attn.out_proj": (hidden, hidden)}
        if index % 2:
            shapes[f"{at}.mlp.router.layer.weight"] = (experts, hidden)
            shapes[f"{at}.mlp.experts.bias"] = (hidden,)
            for name in ("w1", "w2"):
                shapes[f"{at}.mlp.experts.mlp.{name}"] = (experts * inner, hidden)
        else:
            linears |= {"mlp.fc1": (inner, hidden), "mlp.fc2": (hidden, inner)}
        for name, shape in linears.items():
            shapes[f"{at}.{name}.weight"], shapes[f"{at}.{name}.bias"] = shape, shape[:1]
        for name in ("norm1", "norm2"):
            shapes[f"{at}.{name}.weight"] = shapes[f"{at}.{name}.bias"] = (hidden,)
    rng = np.random.default_rng(0)
    return {
        name: rng.normal(1.0 if "norm" in name and "weight" in name else 0.0, 0.2, shape)
        for name, shape in shapes.items()
    }


def mixed_reference(weights: dict[str, Any], ids: Any) -> Any:
    """Compute nomic-embed-text-v2-moe for one text, in float64, as its code does."""
    w = {name: torch.from_numpy(each) for name, each in weights.items()}
    hidden, heads, count = MIXED["n_embd"], MIXED["n_head"], MIXED["num_experts"]
    tokens, size = len(ids), hidden // heads

    def norm(x: Any, name: str) -> Any:
        return functional.layer_norm(x, (hidden,), w[f"{name}.weight"], w[f"{name}.bias"], 1e-5)

    def linear(x: Any, name: str) -> Any:
        return functional.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

    angles = torch.arange(tokens)[:, None] / 10_000 ** (torch.arange(0, size, 2).double() / size)
    cos, sin = (torch.cat([each, each], -1)[:, None] for each in (angles.cos(), angles.sin()))

    def rotated(x: Any) -> Any:
        one, other = x.chunk(2, -1)
        return x * cos + torch.cat([-other, one], -1) * sin

    x = w["embeddings.word_embeddings.weight"][torch.from_numpy(ids)]
    x = norm(x + w["embeddings.token_type_embeddings.weight"], "emb_ln")
    for index in range(MIXED["n_layer"]):
        at = f"encoder.layers.{index}"
        query, key, value = linear(x, f"{at}.attn.Wqkv").view(tokens, 3, heads, size).unbind(1)
        scores = torch.einsum("ihd,jhd->hij", rotated(query), rotated(key)) / math.sqrt(size)
        context = torch.einsum("hij,jhd->ihd", scores.softmax(-1), value).reshape(tokens, hidden)
        x = norm(linear(context, f"{at}.attn.out_proj") + x, f"{at}.norm1")
        if index % 2:
            first, last = (
                w[f"{at}.mlp.experts.mlp.{name}"].view(count, -1, hidden) for name in ("w1", "w2")
            )
            chances = (x @ w[f"{at}.mlp.router.layer.weight"].T).softmax(-1)
            largest, chosen = chances.topk(MIXED["moe_top_k"], -1)
            local = torch.stack(
                [
                    sum(
                        chance * (functional.gelu(row @ first[expert].T) @ last[expert])
                        for chance, expert in zip(*own, strict=True)
                    )
                    for row, *own in zip(x, largest, chosen, strict=True)
                ]
            )
            local = local + w[f"{at}.mlp.experts.bias"]
        else:
            local = linear(functional.gelu(linear(x, f"{at}.mlp.fc1")), f"{at}.mlp.fc2")
        x = norm(local + x, f"{at}.norm2")
    return x.numpy()


def test_nomic_with_experts(tmp_path: Path) -> None:
    weights = mixed_weights()
    safetensors.numpy.save_file(
        {name: each.astype(np.float32) for name, each in weights.items()},
        tmp_path / "model.safetensors",
    )
    config = Config(values=MIXED)
    model = read_encoder(Weights(tmp_path), config, "feature-extraction")
    ids = np.random.default_rng(1).integers(0, MIXED["vocab_size"], 40)
    expected = mixed_reference(weights, ids)
    save_packed(pack_model(round_encoder(model)), tmp_path / "packed")
    save_packed(pack_model(model, precision="float"), tmp_path / "float")
    inputs = {"input_ids": ids[None], "attention_mask": np.ones_like(ids[None])}
    inputs["token_type_ids"] = np.zeros_like(ids[None])
    inputs = {name: inputs[name] for name in model.input_names}
    for name, least in (("float", 100), ("packed", 25)):
        found = NativeRunner(tmp_path / name).run(inputs)["last_hidden_state"][0]
        assert sqnr_db(expected, found) >= least


@pytest.mark.parametrize("task", ["fill-mask", "text-classification"])
def test_heads_of_nomic_with_experts(task: Any, tmp_path: Path) -> None:
    body, hidden, rng = mixed_weights(), MIXED["n_embd"], np.random.default_rng(2)
    norm, last = "cls.predictions.transform.layer_norm", "cls.predictions.decoder"
    dense, out = "cls.predictions.transform.dense", (MIXED["vocab_size"], hidden)
    shapes: dict[str, tuple[int, ...]] = {f"{norm}.weight": (hidden,), f"{norm}.bias": (hidden,)}
    if task == "text-classification":
        shapes, dense, last, out = {}, "bert.pooler.dense", "classifier", (3, hidden)
    for name, shape in ((dense, (hidden, hidden)), (last, out)):
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    head = {name: rng.normal(0, 0.2, shape) for name, shape in shapes.items()}
    stored = {f"bert.{name}": each for name, each in body.items()} | head
    safetensors.numpy.save_file(
        {name: each.astype(np.float32) for name, each in stored.items()},
        tmp_path / "model.safetensors",
    )
    values = {**MIXED, "id2label": {"0": "a", "1": "b", "2": "c"}}
    model = read_encoder(Weights(tmp_path), Config(values=values), task)
    ids = rng.integers(0, MIXED["vocab_size"], 20)
    states = torch.from_numpy(mixed_reference(body, ids))
    w = {name: torch.from_numpy(each) for name, each in head.items()}
    if task == "fill-mask":
        states = functional.gelu(states @ w[f"{dense}.weight"].T + w[f"{dense}.bias"])
        own = w[f"{norm}.weight"], w[f"{norm}.bias"]
        states = functional.layer_norm(states, (hidden,), *own, eps=1e-5)
    else:
        states = (states[0] @ w[f"{dense}.weight"].T + w[f"{dense}.bias"]).tanh()
    expected = states @ w[f"{last}.weight"].T + w[f"{last}.bias"]
    found = run_text(model, ids, np.zeros_like(ids))["logits"]
    assert sqnr_db(expected.numpy(), found) >= 100


@pytest.mark.usefixtures("own_cache")
def test_a_folder_with_experts_runs_on_the_native_engine_alone(checkpoint_copy) -> None:
    folder = checkpoint_copy("bert")
    words = json.loads((folder / "config.json").read_text())["vocab_size"]
    own = {name: each.astype(np.float32) for name, each in mixed_weights(words).items()}
    safetensors.numpy.save_file(own, folder / "model.safetensors")
    named = {"architectures": ["NomicBertModel"], "vocab_size": words}
    (folder / "config.json").write_text(json.dumps({**MIXED, **named}))
    with pytest.raises(CheckpointError, match=r"Only the engine 'native' .*: each token takes"):
        qdqbert.load(folder, precision="float", engine="onnxruntime")
    with qdqbert.load(folder) as model:
        assert model.encode(["a text"]).shape == (1, MIXED["n_embd"])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("moe_normalize_expert_weights", True, "only False is supported"),
        ("num_shared_experts", 1, "only 0 is supported"),
        ("expert_choice_router", True, "only False is supported"),
        ("ffn_div", 2, "only 1 is supported"),
        ("moe_top_k", 6, "there are 5 experts"),
        ("moe_every_n_layers", 1, "a whole number from 2"),
        ("activation_function", "swiglu", "experts with gates"),
        ("activation_function", "relu", "expected one of swiglu, gelu"),
        ("num_experts", 4, r"`layers.1.mlp.experts.mlp.w1` has shape \(280, 40\)"),
    ],
)
def test_experts_of_another_kind_are_refused(
    name: str, value: object, message: str, tmp_path: Path
) -> None:
    safetensors.numpy.save_file(mixed_weights(), tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        read_encoder(Weights(tmp_path), Config(values={**MIXED, name: value}), "feature-extraction")


def test_gte_under_its_older_name(tmp_path: Path) -> None:
    model = save_model("gte", "feature-extraction", tmp_path)
    assert any(name.endswith("attention.qkv_proj.weight") for name in Weights(tmp_path))
    values = model.config.to_dict()
    del values["rope_parameters"]
    check(model, tmp_path, {**values, "model_type": "new", "rope_theta": 160_000})


def test_gte_with_scaled_rotation_multiplies_theta_and_divides_frequencies(tmp_path: Path) -> None:
    model = save_model("gte", "feature-extraction", tmp_path)
    values = model.config.to_dict()
    del values["rope_parameters"]
    scaling = {"type": "ntk", "factor": 8.0}
    config = Config(
        values={**values, "model_type": "new", "rope_theta": 20_000, "rope_scaling": scaling}
    )
    found = read_encoder(Weights(tmp_path), config, "feature-extraction")
    rotary = found.layers[0].attention.rotary
    assert rotary is not None
    powers = np.arange(0, 8, 2) / 8
    frequencies = 1 / (20_000 * 8.0) ** powers / 8.0 ** (2 / 8)
    np.testing.assert_allclose(rotary.cos, np.cos(np.arange(70)[:, None] * frequencies), atol=1e-5)


def jina_reference(weights: dict[str, Any], ids: Any, heads: int, layers: int) -> Any:
    """Compute Jina's model for one text, written after the paper and its names of tensors."""

    def linear(name: str, x: Any) -> Any:
        bias = weights.get(f"{name}.bias")
        return functional.linear(x, weights[f"{name}.weight"], bias)

    def norm(name: str, x: Any) -> Any:
        own = weights[f"{name}.weight"], weights[f"{name}.bias"]
        return functional.layer_norm(x, x.shape[-1:], *own, eps=1e-12)

    def split(x: Any) -> Any:
        return x.unflatten(-1, (heads, -1)).transpose(0, 1)

    x = weights["embeddings.word_embeddings.weight"][ids]
    x = norm("embeddings.LayerNorm", x + weights["embeddings.token_type_embeddings.weight"][0])
    places = torch.arange(len(ids))
    distance = (places[:, None] - places).abs()
    # Slopes of six heads: those of four, then every other one of eight.
    slopes = torch.tensor([2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3])
    is_for_code = "encoder.layer.0.layer_norm_1.weight" in weights
    for index in range(layers):
        at = f"encoder.layer.{index}"
        q, k, v = (linear(f"{at}.attention.self.{each}", x) for each in ("query", "key", "value"))
        if is_for_code:
            q, k = (
                norm(f"{at}.attention.self.layer_norm_{name}", each)
                for name, each in (("q", q), ("k", k))
            )
        q, k, v = split(q), split(k), split(v)
        scores = q @ k.mT / math.sqrt(q.shape[-1]) - slopes[:, None, None] * distance
        context = (scores.softmax(-1) @ v).transpose(0, 1).flatten(1)
        attended = norm(
            f"{at}.attention.output.LayerNorm", linear(f"{at}.attention.output.dense", context) + x
        )
        if is_for_code:
            x = norm(f"{at}.layer_norm_1", attended + x)
            gate, wide = linear(f"{at}.mlp.up_gated_layer", x).chunk(2, dim=-1)
            last, down = "layer_norm_2", "mlp.down_layer"
        else:
            x = attended
            wide, gate = linear(f"{at}.mlp.gated_layers", x).chunk(2, dim=-1)
            last, down = "mlp.layernorm", "mlp.wo"
        x = norm(f"{at}.{last}", linear(f"{at}.{down}", functional.gelu(wide) * gate) + x)
    return x


def jina_weights(hidden: int, inner: int, layers: int, *, for_code: bool) -> dict[str, Any]:
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (131, hidden),
        "embeddings.token_type_embeddings.weight": (2, hidden),
    }
    norms, wide, down = ["attention.output.LayerNorm", "mlp.layernorm"], "gated_layers", "wo"
    if for_code:
        norms = ["attention.output.LayerNorm", "layer_norm_1", "layer_norm_2"]
        norms += ["attention.self.layer_norm_q", "attention.self.layer_norm_k"]
        wide, down = "up_gated_layer", "down_layer"
    named = ["embeddings.LayerNorm"]
    for index in range(layers):
        at = f"encoder.layer.{index}"
        named += [f"{at}.{each}" for each in norms]
        for each in ("self.query", "self.key", "self.value", "output.dense"):
            shapes[f"{at}.attention.{each}.weight"] = (hidden, hidden)
            shapes[f"{at}.attention.{each}.bias"] = (hidden,)
        shapes[f"{at}.mlp.{wide}.weight"] = (2 * inner, hidden)
        shapes[f"{at}.mlp.{down}.weight"] = (hidden, inner)
        shapes[f"{at}.mlp.{down}.bias"] = (hidden,)
    for each in named:
        shapes[f"{each}.weight"] = shapes[f"{each}.bias"] = (hidden,)
    rng = np.random.default_rng(0)
    return {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize("for_code", [False, True], ids=["for texts", "for code"])
@pytest.mark.usual("for texts")
def test_jina_v2(for_code: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    hidden, inner, heads, layers = 48, 56, 6, 2
    weights = jina_weights(hidden, inner, layers, for_code=for_code)
    safetensors.numpy.save_file(weights, tmp_path / "model.safetensors")
    values = {
        "model_type": "bert",
        "position_embedding_type": "alibi",
        "feed_forward_type": "geglu",
        "vocab_size": 131,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "max_position_embeddings": 70,
        "layer_norm_eps": 1e-12,
    }
    ids = rng.integers(0, 131, 67)
    torch_weights = {name: torch.from_numpy(each) for name, each in weights.items()}
    wanted = jina_reference(torch_weights, torch.from_numpy(ids), heads, layers).numpy()
    model = read_encoder(Weights(tmp_path), Config(values=values), "feature-extraction")
    found = run_text(model, ids, np.zeros_like(ids))["last_hidden_state"]
    np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max())
    inputs = {"input_ids": ids[None], "attention_mask": np.ones((1, 67), np.int64)}
    inputs["token_type_ids"] = np.zeros_like(inputs["attention_mask"])
    found = outputs_of(tmp_path, values, inputs)[0]
    np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max())
    # In INT8.
    rounded, path = round_encoder(model), tmp_path / "packed.safetensors"
    save_packed(pack_model(rounded), path)
    found = NativeRunner(path, threads=1).run(inputs)["last_hidden_state"]
    expected = encoder_reference.run_encoder(rounded, inputs)["last_hidden_state"]
    assert sqnr_db(expected, found) >= 32


def mosaic_weights(weights: dict[str, Any], task: str) -> dict[str, Any]:
    """Return weights of Jina's model as MosaicBERT's, with a head."""
    found = {f"bert.{name}": each for name, each in weights.items()}
    for name in [name for name in found if ".self.query." in name]:
        every = [found.pop(name.replace("query", each)) for each in ("query", "key", "value")]
        found[name.replace("query", "Wqkv")] = np.concatenate(every)
    hidden, rng = weights["embeddings.LayerNorm.weight"].shape[0], np.random.default_rng(2)
    if task == "fill-mask":
        at = "cls.predictions."
        dense, norm, last = f"{at}transform.dense", f"{at}transform.LayerNorm", f"{at}decoder"
        own = {f"{norm}.weight": (hidden,), f"{norm}.bias": (hidden,), f"{last}.bias": (131,)}
        found[f"{last}.weight"] = weights["embeddings.word_embeddings.weight"]
    else:
        dense = "bert.pooler.dense"
        own = {"classifier.weight": (3, hidden), "classifier.bias": (3,)}
    own |= {f"{dense}.weight": (hidden, hidden), f"{dense}.bias": (hidden,)}
    drawn = {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in own.items()}
    return found | drawn


DNABERT = "zhihan1996/DNABERT-2-117M--bert_layers."
MOSAIC_CODE = {
    "AutoConfig": "configuration_bert.BertConfig",
    "AutoModel": f"{DNABERT}BertModel",
    "AutoModelForMaskedLM": f"{DNABERT}BertForMaskedLM",
    "AutoModelForSequenceClassification": f"{DNABERT}BertForSequenceClassification",
}


@pytest.mark.parametrize("task", ["feature-extraction", "fill-mask", "text-classification"])
def test_mosaic_bert(task: Any, tmp_path: Path) -> None:
    heads, layers = 6, 2
    jina = jina_weights(48, 56, layers, for_code=False)
    weights = {n: torch.from_numpy(each) for n, each in mosaic_weights(jina, task).items()}
    torch.save(weights, tmp_path / "pytorch_model.bin")
    values = {
        "model_type": "bert",
        "auto_map": MOSAIC_CODE,
        "hidden_size": 48,
        # Of the last part of the head alone.
        "hidden_act": "relu",
        "id2label": {"0": "a", "1": "b", "2": "c"},
        "intermediate_size": 56,
        "layer_norm_eps": 1e-12,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "position_embedding_type": "absolute",
        "vocab_size": 131,
    }
    model = read_encoder(Weights(tmp_path), Config(values=values), task)
    # Longer than the config says.
    inputs = encoder_reference.random_inputs((2, 530))
    inputs["token_type_ids"] *= 0
    (found,) = NativeRunner(pack_model(model, precision="float"), threads=1).run(inputs).values()

    def linear(name: str, x: Any) -> Any:
        return functional.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    plain = {name: torch.from_numpy(each) for name, each in jina.items()}
    for row, length in enumerate(inputs["attention_mask"].sum(axis=1)):
        ids = torch.from_numpy(inputs["input_ids"][row, :length])
        wanted, made = jina_reference(plain, ids, heads, layers), found[row]
        if task == "fill-mask":
            at = "cls.predictions."
            own = [weights[f"{at}transform.LayerNorm.{each}"] for each in ("weight", "bias")]
            wanted = linear(f"{at}transform.dense", wanted).relu()
            wanted = functional.layer_norm(wanted, wanted.shape[-1:], *own, eps=1e-12)
            wanted = linear(f"{at}decoder", wanted)
        elif task == "text-classification":
            wanted = linear("classifier", linear("bert.pooler.dense", wanted[0]).tanh())
        assert sqnr_db(wanted.numpy(), made[:length] if made.ndim == 2 else made) >= 90


@pytest.mark.parametrize(
    ("name", "value"),
    [
        # M2-BERT
        ("monarch_mixer_sequence_mixing", True),
        ("use_monarch_mlp", True),
        ("use_positional_encodings", True),
        ("use_glu_mlp", False),
        ("pool_all", True),
        ("normalization", "rmsnorm"),
    ],
)
def test_code_that_derives_from_mosaic_bert_is_refused(name, value, tmp_path: Path) -> None:
    weights = mosaic_weights(jina_weights(48, 56, 1, for_code=False), "fill-mask")
    safetensors.numpy.save_file(weights, tmp_path / "model.safetensors")
    config = Config(values={"model_type": "bert", "alibi_starting_size": 512, name: value})
    with pytest.raises(CheckpointError, match=f"`{name}={value!r}` .* is supported"):
        read_encoder(Weights(tmp_path), config, "fill-mask")


@pytest.mark.parametrize("model_type", [None, "", "xlm-roberta"])
@pytest.mark.parametrize("values", [ABSOLUTE, ROTARY], ids=["absolute", "rotary"])
def test_xlm_roberta_of_jina(
    values: dict[str, Any], model_type: str | None, tmp_path: Path
) -> None:
    weights = flash_weights(values)
    torch.save(weights, tmp_path / "pytorch_model.bin")
    named = values if model_type is None else {**values, "model_type": model_type}
    model = read_encoder(Weights(tmp_path), Config(values=named), "text-classification")
    ids = torch.randint(2, 131, (67,), generator=torch.Generator().manual_seed(1))
    states = flash_reference(weights, values, ids)
    dense = functional.linear(
        states[0], weights["classifier.dense.weight"], weights["classifier.dense.bias"]
    )
    wanted = functional.linear(
        dense.tanh(), weights["classifier.out_proj.weight"], weights["classifier.out_proj.bias"]
    )
    found = run_text(model, ids.numpy(), np.zeros(67, np.int64))["logits"]
    np.testing.assert_allclose(found.ravel(), wanted.numpy(), atol=1e-4)
    plain = read_encoder(Weights(tmp_path), Config(values=named), "feature-extraction")
    found = run_text(plain, ids.numpy(), np.zeros(67, np.int64))["last_hidden_state"]
    np.testing.assert_allclose(found, states.numpy(), atol=1e-4)


def test_rotation_of_xlm_roberta_of_jina_has_the_default_of_its_code(tmp_path: Path) -> None:
    torch.save(flash_weights(ROTARY), tmp_path / "pytorch_model.bin")
    values = {name: each for name, each in ROTARY.items() if name != "rotary_emb_base"}
    found = read_encoder(Weights(tmp_path), Config(values=values), "feature-extraction")
    rotary = found.layers[0].attention.rotary
    assert rotary is not None
    frequencies = 10_000.0 ** (-np.arange(0, 8, 2) / 8)
    np.testing.assert_allclose(rotary.cos[1], np.cos(frequencies), atol=1e-6)


def test_other_code_with_the_names_of_xlm_roberta_is_refused(tmp_path: Path) -> None:
    torch.save(flash_weights(ABSOLUTE), tmp_path / "pytorch_model.bin")
    code = {"AutoConfig": "own.Config", "AutoModel": "own.XLMRobertaModel"}
    config = Config(values={**ABSOLUTE, "model_type": "xlm-roberta", "auto_map": code})
    with pytest.raises(CheckpointError, match=r"auto_map.*code of its own"):
        read_encoder(Weights(tmp_path), config, "feature-extraction")


def test_joined_weights_that_cannot_be_divided_are_refused(tmp_path: Path) -> None:
    weights = flash_weights(ABSOLUTE)
    weights["roberta.encoder.layers.0.mixer.Wqkv.weight"] = torch.ones(100, 40)
    torch.save(weights, tmp_path / "pytorch_model.bin")
    with pytest.raises(
        CheckpointError, match=r"`roberta\.encoder\.layers\.0\.mixer\.Wqkv\.weight`"
    ):
        read_encoder(Weights(tmp_path), Config(values=ABSOLUTE), "feature-extraction")


@pytest.mark.parametrize("variant", ["eurobert", "eurobert, shared keys", "eurobert, late pooling"])
def test_eurobert_with_the_fields_of_its_own_code(variant: str, tmp_path: Path) -> None:
    model = save_model(variant, "text-classification", tmp_path)
    values = model.config.to_dict()
    theta = values.pop("rope_parameters")["rope_theta"]
    pooling = values.pop("classifier_pooling")
    code = {
        "AutoConfig": "EuroBERT/EuroBERT-210m--configuration_eurobert.EuroBertConfig",
        **{
            f"AutoModel{end or ''}": f"EuroBERT/EuroBERT-210m--modeling_eurobert.EuroBert{name}"
            for end, name in (
                ("", "Model"),
                ("ForMaskedLM", "ForMaskedLM"),
                ("ForPreTraining", "PreTrainedModel"),
                ("ForQuestionAnswering", "ForQuestionAnswering"),
                ("ForSequenceClassification", "ForSequenceClassification"),
                ("ForTokenClassification", "ForTokenClassification"),
            )
        },
    }
    old = {"auto_map": code, "clf_pooling": pooling, "rope_scaling": None, "rope_theta": theta}
    found = read_encoder(Weights(tmp_path), Config(values={**values, **old}), "text-classification")
    inputs = random_inputs(found, "text-classification", model.config.pad_token_id)
    with torch.no_grad():
        expected = model(**{name: torch.from_numpy(each) for name, each in inputs.items()})
    np.testing.assert_allclose(
        encoder_reference.run_encoder(found, inputs)["logits"],
        expected.logits.numpy(),
        atol=1e-4,
    )


def test_an_unknown_family_is_refused_by_name(tmp_path: Path) -> None:
    transformers.BertModel(transformers.BertConfig(**SIZES)).save_pretrained(tmp_path)
    config = Config(values={**SIZES, "model_type": "funnel"})
    with pytest.raises(CheckpointError, match="`funnel` are not supported"):
        read_encoder(Weights(tmp_path), config, "feature-extraction")
