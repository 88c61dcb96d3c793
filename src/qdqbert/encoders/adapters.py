"""Adapters that a checkpoint has next to its weights, one for each task (LoRA).

jina-embeddings-v5-text-nano has a folder of PEFT for each, `adapters/NAME` (`peft`).

Jina's code for XLM-R stores a weight as `M.parametrizations.weight.original`, and the factors of
all adapters as `M.parametrizations.weight.0.lora_A` and `lora_B`. Those of a linear layer have the
shapes `(adapters, rank, in)` and `(adapters, out, rank)`, those of a table `(adapters, rows, rank)`
and `(adapters, rank, width)`. Source of the method: arXiv:2106.09685.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from qdqbert.common.errors import CheckpointError, UserInputError
from qdqbert.encoders.config import Config
from qdqbert.encoders.family import is_jina_v5
from qdqbert.encoders.model import Floats
from qdqbert.encoders.peft import merged_adapter
from qdqbert.encoders.weights import Weights

_MARK = ".parametrizations.weight."

# What fields are that a config lacks, as in Jina's class.
_DEFAULTS = {"lora_alpha": 1, "lora_rank": 4}

ADAPTERS = "adapters"
"""Name of the folder with the folders of PEFT."""

ADAPTER_FIELDS = (
    *("lora_adaptations", "lora_alpha", "lora_dropout_p", "lora_main_params_trainable"),
    *("lora_rank", "task_names"),
)
"""Fields of config.json that describe adapters."""


def adapter_names(config: Config) -> tuple[str, ...]:
    """Return the names of a checkpoint's adapters; none for most checkpoints."""
    field = _field(config)
    found = config.values.get(field) or []
    is_list = isinstance(found, list) and all(isinstance(each, str) for each in found)
    if not is_list or len(set(found)) < len(found):
        raise config.refuse(field, "expected a list of different names.")
    if field == "task_names" and any(Path(each).name != each for each in found):
        raise config.refuse(field, f"expected names of folders in {ADAPTERS!r}.")
    return tuple(found)


def _field(config: Config) -> str:
    return "task_names" if is_jina_v5(config.values) else "lora_adaptations"


def has_adapter_weights(weights: Weights, config: Config) -> bool:
    """Return whether a checkpoint's weights have adapters next to them, and not merged."""
    if is_jina_v5(config.values):
        return (weights.path.parent / ADAPTERS).is_dir()
    return any(_MARK in name for name in weights)


def check_adapter(config: Config, adapter: str | None, name: str) -> None:
    """Refuse an adapter that a checkpoint does not have."""
    known = adapter_names(config)
    if adapter is None or adapter in known:
        return
    advice = f"It has: {', '.join(known)}." if known else "It has none: leave it out."
    raise UserInputError(
        f"`adapter={adapter!r}` is not an adapter of {name!r}. {advice}", argument="adapter"
    )


def merged(
    weights: Weights, config: Config, adapter: str | None, notices: list[str] | None = None
) -> Weights:
    """Return weights to which an adapter is added: `W + B @ A * alpha / rank`, and see `peft`.

    Args:
        weights: All tensors of the checkpoint.
        config: Its config.
        adapter: Name of the adapter; `None` leaves all of them out.
        notices: Receives a sentence for the user about adapters that are left out.
    """
    names = adapter_names(config)
    has_adapters = has_adapter_weights(weights, config)
    if (has_adapters and not names) or (adapter is not None and not has_adapters):
        has = "adapters" if has_adapters else "no adapters"
        raise CheckpointError(
            f"{str(weights.path)!r} has {has}, and `{_field(config)}` in config.json names "
            f"{', '.join(names) or 'none'}. Use the config.json that belongs to the weights."
        )
    if not has_adapters:
        return weights
    if adapter is None and notices is not None:
        notices.append(
            f"The adapters of the checkpoint are left out: {', '.join(names)}. To merge one of "
            "them into the weights, pass its name as `adapter`."
        )
    if is_jina_v5(config.values):
        if adapter is None:
            return weights
        place = Path(config.path).parent / ADAPTERS / adapter
        return merged_adapter(weights, weights.path.parent / ADAPTERS / adapter, str(place))
    index = None if adapter is None else names.index(adapter)
    config = dataclasses.replace(config, values={**_DEFAULTS, **config.values})
    rank = config.integer("lora_rank")
    scale = np.float32(config.number("lora_alpha") / max(1, rank))
    changed = {}
    for name in weights:
        module, mark, end = name.partition(_MARK)
        if not mark:
            changed[name] = name
        elif end == "original":
            changed[f"{module}.weight"] = name
    found = weights.renamed(changed)
    if index is None:
        return found
    return found.replaced(
        {
            name: weights.read(old) + scale * _product(weights, old, (len(names), rank), index)
            for name, old in changed.items()
            if name != old
        }
    )


def _product(weights: Weights, name: str, counts: tuple[int, int], index: int) -> Floats:
    """Return what an adapter adds to a weight, before it is scaled.

    `counts` are the number of adapters and their rank.
    """
    adapters, rank = counts
    shape, start = weights.shape(name), name.removesuffix("original")
    a, b = (weights.read(f"{start}0.lora_{each}") for each in "AB")
    # Factors of linear layers first, then those of tables.
    for left, right in ((b, a), (a, b)):
        fits = left.shape[::2] == (adapters, rank) and right.shape[:2] == (adapters, rank)
        if fits and left.ndim == right.ndim == 3 and shape == (left.shape[1], right.shape[2]):
            return np.asarray(left[index] @ right[index], np.float32)
    raise CheckpointError(
        f"Tensor `{name}` of {str(weights.path)!r} has shape {shape}, and its adapters have "
        f"{a.shape} and {b.shape}, which does not fit config.json: {adapters} `lora_adaptations`, "
        f"and `lora_rank={rank}`. Use the config.json that belongs to the weights."
    )
