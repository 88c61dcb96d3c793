"""Tiny models of Jina's code for XLM-R, with and without adapters, and what they compute."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch.nn import functional

from conftest import FLAT_POOLING, add_sentence_files

FLASH = {
    "auto_map": {
        "AutoConfig": "jinaai/xlm-roberta-flash-implementation--configuration_xlm_roberta."
        "XLMRobertaFlashConfig",
        "AutoModel": "jinaai/xlm-roberta-flash-implementation--modeling_xlm_roberta."
        "XLMRobertaModel",
        "AutoModelForSequenceClassification": "modeling_xlm_roberta."
        "XLMRobertaForSequenceClassification",
    },
    "hidden_act": "gelu",
    "id2label": {"0": "LABEL_0"},
    "hidden_size": 40,
    "intermediate_size": 56,
    "layer_norm_eps": 1e-5,
    "lora_adaptations": None,
    "max_position_embeddings": 72,
    "num_attention_heads": 5,
    "num_hidden_layers": 2,
    "pad_token_id": 1,
    "type_vocab_size": 1,
    "use_flash_attn": True,
    "vocab_size": 131,
}
ABSOLUTE = {**FLASH, "position_embedding_type": "absolute"}
ROTARY = {**FLASH, "position_embedding_type": "rotary", "rotary_emb_base": 500.0}


def flash_weights(values: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Random tensors under the names of Jina's code for XLM-R."""
    hidden, inner = values["hidden_size"], values["intermediate_size"]
    shapes = {
        "roberta.embeddings.word_embeddings.weight": (values["vocab_size"], hidden),
        "roberta.embeddings.token_type_embeddings.weight": (1, hidden),
        "classifier.dense.weight": (hidden, hidden),
        "classifier.dense.bias": (hidden,),
        "classifier.out_proj.weight": (1, hidden),
        "classifier.out_proj.bias": (1,),
    }
    if values["position_embedding_type"] == "absolute":
        shapes["roberta.embeddings.position_embeddings.weight"] = (72, hidden)
    norms = ["roberta.emb_ln"]
    for index in range(values["num_hidden_layers"]):
        at = f"roberta.encoder.layers.{index}"
        norms += [f"{at}.norm1", f"{at}.norm2"]
        for name, size in (
            ("mixer.Wqkv", (3 * hidden, hidden)),
            ("mixer.out_proj", (hidden, hidden)),
            ("mlp.fc1", (inner, hidden)),
            ("mlp.fc2", (hidden, inner)),
        ):
            shapes[f"{at}.{name}.weight"], shapes[f"{at}.{name}.bias"] = size, size[:1]
    for each in norms:
        shapes[f"{each}.weight"] = shapes[f"{each}.bias"] = (hidden,)
    torch.manual_seed(0)
    return {name: 0.3 * torch.randn(shape) for name, shape in shapes.items()}


def save_flash(folder: Path, values: dict[str, Any], **changes: Any) -> Path:
    """Make the checkpoint of XLM-R in a folder one of Jina's code, with one class."""
    kept = {name: each for name, each in {**values, **changes}.items() if each is not None}
    named = {"architectures": ["XLMRobertaForSequenceClassification"]}
    vocabulary = {"vocab_size": json.loads((folder / "config.json").read_text())["vocab_size"]}
    config = {**kept, **named, **vocabulary}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").unlink()
    torch.save(flash_weights(config), folder / "pytorch_model.bin")
    return folder


ADAPTERS = ("retrieval.query", "retrieval.passage", "text-matching")
LORA = {"lora_adaptations": list(ADAPTERS), "lora_rank": 4, "lora_alpha": 3}


def with_adapters(weights: dict[str, torch.Tensor], rank: int = 4) -> dict[str, torch.Tensor]:
    """Put random adapters next to the weights of linear layers and tables, as Jina's code does."""
    torch.manual_seed(1)
    found = {}
    for name, each in weights.items():
        if not name.startswith("roberta.") or each.dim() == 1:
            found[name] = each
            continue
        rows, width = each.shape
        shapes = [(len(ADAPTERS), rank, width), (len(ADAPTERS), rows, rank)]
        if "_embeddings." in name:
            shapes.reverse()
        start = f"{name.removesuffix('weight')}parametrizations.weight"
        found[f"{start}.original"] = each
        for letter, shape in zip("AB", shapes, strict=True):
            found[f"{start}.0.lora_{letter}"] = 0.3 * torch.randn(shape)
    return found


def adapted(weights: dict[str, torch.Tensor], adapter: str) -> dict[str, torch.Tensor]:
    """Return plain weights to which an adapter is added."""
    index = ADAPTERS.index(adapter)
    found = {}
    for name, each in weights.items():
        if name.endswith(".original"):
            start = name.removesuffix("original")
            a, b = (weights[f"{start}0.lora_{letter}"][index] for letter in "AB")
            change = a @ b if "_embeddings." in name else b @ a
            name = name.replace("parametrizations.weight.original", "weight")
            each = each + change * LORA["lora_alpha"] / LORA["lora_rank"]
        if "lora_" not in name:
            found[name] = each
    return found


def flash_reference(
    weights: dict[str, torch.Tensor], values: dict[str, Any], ids: torch.Tensor
) -> torch.Tensor:
    """Return the states of a text, computed after the published description of Jina's XLM-R."""

    def linear(name: str, x: Any) -> Any:
        return functional.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def norm(name: str, x: Any) -> Any:
        own = weights[f"{name}.weight"], weights[f"{name}.bias"]
        return functional.layer_norm(x, x.shape[-1:], *own, eps=1e-5)

    def rotate(x: Any) -> Any:
        size = x.shape[-1]
        frequencies = values["rotary_emb_base"] ** (-torch.arange(0, size, 2) / size)
        turn = torch.polar(torch.ones(1), torch.arange(len(ids))[:, None] * frequencies)
        first, second = x.chunk(2, dim=-1)
        turned = torch.complex(first, second) * turn
        return torch.cat([turned.real, turned.imag], dim=-1)

    x = weights["roberta.embeddings.word_embeddings.weight"][ids]
    x = x + weights["roberta.embeddings.token_type_embeddings.weight"][0]
    is_rotary = values["position_embedding_type"] == "rotary"
    if not is_rotary:
        places = torch.arange(len(ids)) + values["pad_token_id"] + 1
        x = x + weights["roberta.embeddings.position_embeddings.weight"][places]
    x = norm("roberta.emb_ln", x)
    for index in range(values["num_hidden_layers"]):
        at = f"roberta.encoder.layers.{index}"
        heads = linear(f"{at}.mixer.Wqkv", x).unflatten(-1, (3, values["num_attention_heads"], -1))
        q, k, v = heads.permute(1, 2, 0, 3)
        if is_rotary:
            q, k = rotate(q), rotate(k)
        attention = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v
        context = linear(f"{at}.mixer.out_proj", attention.transpose(0, 1).flatten(1))
        x = norm(f"{at}.norm1", x + context)
        inner = functional.gelu(linear(f"{at}.mlp.fc1", x))
        x = norm(f"{at}.norm2", x + linear(f"{at}.mlp.fc2", inner))
    return x


PROMPTS = {"retrieval.query": "the dog ", "retrieval.passage": "a book ", "text-matching": ""}


def save_embedder(source: Path, folder: Path) -> Path:
    """Save a tiny jina-embeddings-v3, with the tokenizer of a checkpoint of XLM-R.

    It has adapters, prompts and the modules of its own code.
    """
    shutil.copytree(source, folder)
    save_flash(folder, {**ROTARY, **LORA}, architectures=["XLMRobertaLoRA"])
    weights = folder / "pytorch_model.bin"
    torch.save(with_adapters(torch.load(weights)), weights)
    add_sentence_files(folder, {**FLAT_POOLING, "word_embedding_dimension": 40})
    modules = json.loads((folder / "modules.json").read_text())
    modules[0] = {**modules[0], "type": "custom_st.Transformer", "kwargs": ["task"]}
    (folder / "modules.json").write_text(json.dumps(modules))
    settings = {"prompts": PROMPTS, "default_prompt_name": None}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    return folder


TASKS = ("retrieval", "text-matching")
MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def save_nano(folder: Path, tokenizer: Path, **changes: Any) -> Path:
    """Save a tiny jina-embeddings-v5-text-nano, with the tokenizer of another checkpoint.

    EuroBERT's encoder has a folder of PEFT for each task. Code of its own does all the rest.
    """
    vocabulary = json.loads((tokenizer / "config.json").read_text())["vocab_size"]
    config = transformers.EuroBertConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=vocabulary,
        max_position_embeddings=64,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    transformers.EuroBertModel(config).save_pretrained(folder)
    for each in tokenizer.glob("*token*"):
        shutil.copy(each, folder)
    values = json.loads((folder / "config.json").read_text())
    values |= {
        "architectures": ["JinaEmbeddingsV5Model"],
        "auto_map": {
            "AutoConfig": "configuration_jina_embeddings_v5.JinaEmbeddingsV5Config",
            "AutoModel": "modeling_jina_embeddings_v5.JinaEmbeddingsV5Model",
        },
        "is_decoder": False,
        "model_type": "jina_embeddings_v5",
        "task_names": list(TASKS),
    }
    (folder / "config.json").write_text(json.dumps({**values, **changes}))
    module = {"idx": 0, "name": "transformer", "path": "", "type": "custom_st.Transformer"}
    (folder / "modules.json").write_text(json.dumps([{**module, "kwargs": ["task"]}]))
    prompts = {"query": "the dog ", "document": "a book "}
    settings = {"prompts": prompts, "default_prompt_name": "document"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    base = load_file(folder / "model.safetensors")
    for task in TASKS:
        factors = {}
        for name, each in base.items():
            module_name = name.removesuffix(".weight")
            if module_name.rpartition(".")[2] in MODULES:
                start = f"base_model.model.{module_name}.lora_"
                factors[f"{start}A.weight"] = 0.3 * torch.randn(3, each.shape[1])
                factors[f"{start}B.weight"] = 0.3 * torch.randn(each.shape[0], 3)
        own = folder / "adapters" / task
        own.mkdir(parents=True)
        save_file(factors, own / "adapter_model.safetensors")
        lora = {"peft_type": "LORA", "r": 3, "lora_alpha": 6, "lora_dropout": 0.1}
        (own / "adapter_config.json").write_text(json.dumps({**lora, "bias": "none"}))
    return folder


def nano_reference(folder: Path, task: str | None, ids: list[list[int]]) -> Any:
    """Return the embeddings of texts without padding, by transformers' model of the encoder."""
    values = json.loads((folder / "config.json").read_text()) | {"model_type": "eurobert"}
    weights = load_file(folder / "model.safetensors")
    if task is not None:
        factors = load_file(folder / "adapters" / task / "adapter_model.safetensors")
        for name in weights:
            start = f"base_model.model.{name.removesuffix('weight')}lora_"
            if f"{start}A.weight" in factors:
                weights[name] += 2 * factors[f"{start}B.weight"] @ factors[f"{start}A.weight"]
    model = transformers.EuroBertModel(transformers.EuroBertConfig.from_dict(values)).eval()
    model.load_state_dict(weights)
    with torch.no_grad():
        states = [model(torch.tensor(each)[None]).last_hidden_state[0, -1] for each in ids]
    return functional.normalize(torch.stack(states), dim=-1).numpy()
