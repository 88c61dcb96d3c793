"""Adapters in folders as PEFT saves them, merged into the weights that they belong to.

PEFT adds `scale * B @ A` to the weight of a linear layer, and its transpose to a table of
embeddings. The scale is `lora_alpha / r` (arXiv:2106.09685), or `lora_alpha / sqrt(r)` with
`use_rslora` (arXiv:2312.03732). With `use_dora` (arXiv:2402.09353), each row of the sum, or each
column of a table, is then scaled to a length that was trained.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qdqbert.common.errors import CheckpointError
from qdqbert.common.json_files import read_json
from qdqbert.encoders.config import Config
from qdqbert.encoders.model import Floats
from qdqbert.encoders.weights import Weights

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")

# What fields are that an adapter's config lacks, as in PEFT's class.
_DEFAULTS: Mapping[str, Any] = {
    "lora_alpha": 8,
    "r": 8,
    "use_dora": False,
    "use_rslora": False,
}
# Other fields that decide nothing about the sum, or whose tensors are in the file. PEFT ignores
# `fan_in_fan_out` for linear layers, which all layers of encoders are.
_OTHERS = frozenset(
    {
        *("alpha_pattern", "auto_mapping", "base_model_name_or_path", "bias", "corda_config"),
        *("eva_config", "exclude_modules", "fan_in_fan_out", "inference_mode"),
        *("init_lora_weights", "layers_pattern", "layers_to_transform", "loftq_config"),
        *("lora_bias", "lora_dropout", "megatron_config", "megatron_core", "modules_to_save"),
        *("peft_type", "peft_version", "qalora_group_size", "rank_pattern", "revision"),
        *("runtime_config", "target_modules", "task_type"),
    }
)
# Starts of values of `init_lora_weights` that change the weights that the adapter is added to.
_CHANGING = ("corda", "loftq", "lora_ga", "olora", "pissa")
# A pattern that cannot take long to match.
_PATTERN = re.compile(r"\^?[\w.]+")
_FACTOR = re.compile(
    r"(?P<module>.+)\.(?P<factor>lora_A|lora_B|lora_embedding_A|lora_embedding_B|"
    r"lora_magnitude_vector)(?:\.(?P<end>weight|bias))?"
)
# Modules that PEFT puts around others.
_WRAPPERS = re.compile(r"\.(base_layer|modules_to_save)(?=\.)")


def merged_adapter(weights: Weights, folder: Path, place: str) -> Weights:
    """Return weights to which an adapter is added.

    `place` is the user's name of the folder, for messages.

    Raises:
        CheckpointError: A file is missing or damaged, the adapter computes something else than
            such a sum, or it does not fit the weights.
    """
    path = f"{place}/{ADAPTER_CONFIG}"
    config = _checked(Config(values=read_json(folder / ADAPTER_CONFIG), path=path))
    adapter = Weights(folder, ADAPTER_WEIGHTS)
    factors: dict[str, dict[str, Floats]] = {}
    changed: dict[str, Floats] = {}
    for name in adapter:
        if ".original_module." in name:
            # Another module runs in its place.
            continue
        tensor, own = adapter.read(name), name.removeprefix("base_model.model.")
        found = _FACTOR.fullmatch(own)
        if found is not None:
            kind = f"{found['factor']}.bias" if found["end"] == "bias" else found["factor"]
            factors.setdefault(found["module"], {})[kind] = tensor
            continue
        target = _target(weights, _WRAPPERS.sub("", own), place)
        if tensor.shape != weights.shape(target):
            raise _misfit(place, name, tensor.shape, weights.shape(target))
        changed[target] = tensor
    for module, parts in factors.items():
        module = _WRAPPERS.sub("", f"{module}.").removesuffix(".")
        target = _target(weights, f"{module}.weight", place)
        rank = _of_module(config, "rank_pattern", "r", module).integer("r", least=1)
        scale = _scale(_of_module(config, "alpha_pattern", "lora_alpha", module), rank)
        weight = changed.get(target, weights.read(target))
        change = _change(weight.shape, parts, rank, f"{module} in {place}")
        changed[target] = weight + scale * change
        if config.flag("use_dora"):
            changed[target] = _scaled(changed[target], parts, f"{module} in {place}")
        if "lora_B.bias" in parts:
            bias = _target(weights, f"{module}.bias", place)
            before = changed.get(bias, weights.read(bias))
            if before.shape != parts["lora_B.bias"].shape:
                raise _misfit(place, module, parts["lora_B.bias"].shape, before.shape)
            changed[bias] = before + scale * parts["lora_B.bias"]
    return weights.replaced(changed)


def _checked(config: Config) -> Config:
    """Return the config with all fields that are read."""
    if config.values.get("peft_type") != "LORA":
        raise config.refuse("peft_type", "only 'LORA' can be merged.")
    for name, value in config.values.items():
        if value and name not in _DEFAULTS and name not in _OTHERS:
            raise config.refuse(
                name, "the adapter is more than a sum. Merge it with PEFT's `merge_and_unload()`."
            )
    start = str(config.values.get("init_lora_weights"))
    if start.startswith(_CHANGING):
        raise config.refuse(
            "init_lora_weights",
            "the adapter belongs to weights that PEFT changes first. Merge it with PEFT's "
            "`merge_and_unload()`.",
        )
    own = {name: value for name, value in config.values.items() if value is not None}
    return dataclasses.replace(config, values={**_DEFAULTS, **own})


def _scale(config: Config, rank: int) -> np.float32:
    """Return the factor of the product of two factors with a rank."""
    divisor = math.sqrt(rank) if config.flag("use_rslora") else rank
    return np.float32(config.number("lora_alpha") / divisor)


def _of_module(config: Config, patterns: str, name: str, module: str) -> Config:
    """Return the config with the value of a field that the first matching pattern has."""
    found = config.values.get(patterns) or {}
    if not isinstance(found, Mapping) or not all(_PATTERN.fullmatch(each) for each in found):
        raise config.refuse(patterns, "expected values by the names of modules.")
    for key, value in found.items():
        if re.match(rf"(.*\.)?({key})$", module):
            values = {**config.values, name: value}
            return dataclasses.replace(config, values=values, path=f"`{patterns}` of {config.path}")
    return config


def _change(shape: tuple[int, ...], parts: Mapping[str, Floats], rank: int, place: str) -> Floats:
    """Return what an adapter adds to a weight of a shape, before it is scaled."""
    is_table = _is_table(parts)
    first, second = (parts.get(f"lora_{'embedding_' * is_table}{each}") for each in "AB")
    if first is not None and second is not None and first.ndim == second.ndim == 2:
        expected = shape[::-1] if is_table else shape
        if (*second.shape, *first.shape) == (expected[0], rank, rank, *expected[1:]):
            product = second @ first
            return product.T if is_table else product
    shapes = " and ".join(str(None if each is None else each.shape) for each in (first, second))
    raise CheckpointError(
        f"The adapter for {place} has factors of shapes {shapes}, which do not fit r={rank} and a "
        f"weight of shape {shape}. Use the checkpoint that it was trained on."
    )


def _scaled(weight: Floats, parts: Mapping[str, Floats], place: str) -> Floats:
    """Return a weight whose rows, or the columns of a table, have the lengths of an adapter."""
    lengths = np.linalg.norm(weight, axis=0 if _is_table(parts) else 1, keepdims=True)
    wanted = parts.get("lora_magnitude_vector")
    if wanted is None or wanted.size != lengths.size:
        raise CheckpointError(
            f"The adapter for {place} has `use_dora`, and no `lora_magnitude_vector` of "
            f"{lengths.size} values. Save it with PEFT again."
        )
    return np.asarray(weight * (wanted.reshape(lengths.shape) / lengths), np.float32)


def _is_table(parts: Mapping[str, Floats]) -> bool:
    return "lora_embedding_A" in parts


def _target(weights: Weights, name: str, place: str) -> str:
    """Return the name of the checkpoint's tensor that an adapter of its encoder or model means."""
    if name in weights:
        return name
    found = [each for each in weights if each.endswith(f".{name}") or name.endswith(f".{each}")]
    if len(found) != 1:
        raise CheckpointError(
            f"The adapter in {place!r} changes `{name}`, and {str(weights.path)!r} has "
            f"{'several such tensors' if found else 'no such tensor'}. Use the checkpoint that it "
            "was trained on."
        )
    return found[0]


def _misfit(
    place: str, name: str, shape: tuple[int, ...], expected: tuple[int, ...]
) -> CheckpointError:
    return CheckpointError(
        f"Tensor `{name}` of the adapter in {place!r} has shape {shape}, and the checkpoint's has "
        f"{expected}. Use the checkpoint that it was trained on."
    )
