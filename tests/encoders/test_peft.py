"""Adapters of PEFT: what is added to the weights, and which adapters are refused.

The expected values are computed in float64 after PEFT's documentation. They are those of PEFT
0.21's `merge_and_unload()` for the same options.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch

from qdqbert.common.errors import CheckpointError
from qdqbert.encoders.peft import merged_adapter
from qdqbert.encoders.weights import Weights

SHAPES = {
    "model.layers.0.up.weight": (6, 4),
    "model.layers.0.up.bias": (6,),
    "model.layers.1.up.weight": (6, 4),
    "model.table.weight": (9, 4),
    "model.norm.weight": (4,),
}
UP, OTHER, TABLE = (f"model.{name}.weight" for name in ("layers.0.up", "layers.1.up", "table"))
LORA: dict[str, Any] = {"peft_type": "LORA", "r": 2, "lora_alpha": 3}


def arrays(shapes: dict[str, tuple[int, ...]], seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


BASE = arrays(SHAPES, 0)
FACTORS = arrays(
    {
        "layers.0.up.lora_A.weight": (2, 4),
        "layers.0.up.lora_B.weight": (6, 2),
        "layers.1.up.lora_A.weight": (2, 4),
        "layers.1.up.lora_B.weight": (6, 2),
    },
    1,
)
MORE = arrays(
    {
        "table.lora_embedding_A": (2, 9),
        "table.lora_embedding_B": (4, 2),
        "layers.0.up.lora_magnitude_vector": (6,),
        "layers.1.up.lora_magnitude_vector.weight": (6,),
        "table.lora_magnitude_vector": (4,),
        "layers.0.up.lora_B.bias": (6,),
        "layers.0.up.base_layer.bias": (6,),
        "norm.modules_to_save.weight": (4,),
        "norm.original_module.weight": (4,),
    },
    2,
)


def of_more(*words: str) -> dict[str, Any]:
    return {name: each for name, each in MORE.items() if any(word in name for word in words)}


def merge(
    folder: Path, config: dict[str, Any], tensors: dict[str, Any], *, start: str = ""
) -> Weights:
    """Merge an adapter into the base, which has the tensors of an encoder in a model."""
    (folder / "adapter").mkdir()
    safetensors.numpy.save_file(BASE, folder / "model.safetensors")
    named = {f"base_model.model.{start}{name}": each for name, each in tensors.items()}
    safetensors.numpy.save_file(named, folder / "adapter" / "adapter_model.safetensors")
    (folder / "adapter" / "adapter_config.json").write_text(json.dumps(config))
    return merged_adapter(Weights(folder), folder / "adapter", "jina/adapter")


def product(module: str) -> Any:
    a, b = (FACTORS[f"{module}.lora_{each}.weight"].astype(np.float64) for each in "AB")
    return b @ a


def unit(weight: Any, axis: int) -> Any:
    return weight / np.sqrt((weight**2).sum(axis=axis, keepdims=True))


FIRST, SECOND = product("layers.0.up"), product("layers.1.up")
OF_TABLE = (MORE["table.lora_embedding_B"] @ MORE["table.lora_embedding_A"]).T
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "lora": ({}, {}, {}),
    "fan_in_fan_out": ({"fan_in_fan_out": True}, {}, {}),
    "defaults": (
        {"lora_alpha": None},
        {},
        {UP: BASE[UP] + FIRST * 4, OTHER: BASE[OTHER] + SECOND * 4},
    ),
    "rslora": (
        {"use_rslora": True},
        {},
        {UP: BASE[UP] + FIRST * 3 / 2**0.5, OTHER: BASE[OTHER] + SECOND * 3 / 2**0.5},
    ),
    "alpha_pattern": (
        {"alpha_pattern": {"^up": 7, "layers.1.up": 5, "up": 9}},
        {},
        {UP: BASE[UP] + FIRST * 4.5, OTHER: BASE[OTHER] + SECOND * 2.5},
    ),
    "rank_pattern": (
        {"r": 16, "rank_pattern": {"up": 2}, "alpha_pattern": None, "use_rslora": None},
        {},
        {},
    ),
    "table": ({}, of_more("embedding"), {TABLE: BASE[TABLE] + OF_TABLE * 1.5}),
    "dora": (
        {"use_dora": True},
        of_more("embedding", "magnitude"),
        {
            UP: unit(BASE[UP] + FIRST * 1.5, 1)
            * MORE["layers.0.up.lora_magnitude_vector"][:, None],
            OTHER: unit(BASE[OTHER] + SECOND * 1.5, 1)
            * MORE["layers.1.up.lora_magnitude_vector.weight"][:, None],
            TABLE: unit(BASE[TABLE] + OF_TABLE * 1.5, 0) * MORE["table.lora_magnitude_vector"],
        },
    ),
    "lora_bias": (
        {"lora_bias": True},
        of_more("lora_B.bias"),
        {
            "model.layers.0.up.bias": BASE["model.layers.0.up.bias"]
            + 1.5 * MORE["layers.0.up.lora_B.bias"]
        },
    ),
    "whole tensors": (
        {"bias": "lora_only", "modules_to_save": ["norm"]},
        of_more("base_layer", "norm"),
        {
            "model.layers.0.up.bias": MORE["layers.0.up.base_layer.bias"],
            "model.norm.weight": MORE["norm.modules_to_save.weight"],
        },
    ),
}


@pytest.mark.parametrize("start", ["", "model."])
@pytest.mark.parametrize("case", CASES)
def test_an_adapter_is_added_to_its_weights(case: str, start: str, tmp_path: Path) -> None:
    changes, more, expected = CASES[case]
    found = merge(tmp_path, {**LORA, **changes}, {**FACTORS, **more}, start=start)
    usual = {UP: BASE[UP] + FIRST * 1.5, OTHER: BASE[OTHER] + SECOND * 1.5}
    for name, wanted in {**BASE, **usual, **expected}.items():
        np.testing.assert_allclose(found.read(name), wanted, rtol=1e-5, atol=1e-6)


def test_a_pickled_adapter_in_bfloat16_is_read(tmp_path: Path) -> None:
    tensors = {f"base_model.model.{name}": torch.tensor(each) for name, each in FACTORS.items()}
    halves = {name: each.bfloat16() for name, each in tensors.items()}
    safetensors.numpy.save_file(BASE, tmp_path / "model.safetensors")
    torch.save(halves, tmp_path / "adapter_model.bin")
    (tmp_path / "adapter_config.json").write_text(json.dumps(LORA))
    found = merged_adapter(Weights(tmp_path), tmp_path, "adapter")
    np.testing.assert_allclose(found.read(UP), BASE[UP] + FIRST * 1.5, atol=0.05)


@pytest.mark.parametrize(
    ("changes", "more", "message"),
    [
        ({"peft_type": "IA3"}, {}, r"`peft_type='IA3'` in jina/adapter/adapter_config\.json"),
        ({"peft_type": None}, {}, "`peft_type=None`"),
        ({"layer_replication": [[0, 1]]}, {}, "`layer_replication=.*merge_and_unload"),
        ({"alora_invocation_tokens": [1]}, {}, "`alora_invocation_tokens="),
        ({"use_qalora": True}, {}, "`use_qalora=True`"),
        ({"trainable_token_indices": [1]}, {}, "`trainable_token_indices="),
        ({"a_field_of_the_future": 1}, {}, "`a_field_of_the_future=1`"),
        ({"init_lora_weights": "pissa_niter_4"}, {}, "`init_lora_weights='pissa_niter_4'`"),
        ({"r": 0}, {}, "`r=0`"),
        ({"r": 4}, {}, r"shapes \(2, 4\) and \(6, 2\), which do not fit r=4"),
        ({"lora_alpha": "3"}, {}, "`lora_alpha='3'`"),
        ({"use_rslora": 1}, {}, "`use_rslora=1`"),
        ({"rank_pattern": {"(a+)+$": 2}}, {}, "`rank_pattern="),
        ({"alpha_pattern": {"up": "x"}}, {}, "`lora_alpha='x'` in `alpha_pattern` of"),
        ({"use_dora": True}, {}, "`use_dora`, and no `lora_magnitude_vector` of 6 values"),
        ({}, {"up.lora_A.weight": BASE[UP]}, "changes `up.weight`.* several such tensors"),
        ({}, {"down.lora_A.weight": BASE[UP]}, "changes `down.weight`.* no such tensor"),
        ({}, {"table.lora_A.weight": BASE[UP]}, r"shapes \(6, 4\) and None"),
        ({}, {"norm.weight": np.ones(5, np.float32)}, r"shape \(5,\), and the checkpoint's has"),
        ({}, {"prompt_encoder.weight": BASE[UP]}, "no such tensor"),
    ],
)
def test_what_cannot_be_merged_is_refused(
    changes: dict[str, Any], more: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=message):
        merge(tmp_path, {**LORA, **changes}, {**FACTORS, **more})
