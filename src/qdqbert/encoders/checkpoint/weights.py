"""Compare the weights of a checkpoint's files with those that its class uses."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable
from typing import Any

import torch
import transformers

from qdqbert.common.errors import CheckpointError
from qdqbert.encoders.left_out import check_left_out, count_of, refuse_adapter, root_of
from qdqbert.encoders.task_kinds import TASK_KINDS, TaskName
from qdqbert.encoders.weights import check_largest

# Names of DeBERTa's heads in its own code.
_OLD_HEADS = ("lm_predictions", "mask_predictions")


def check_weights(
    name: str, model: Any, task: TaskName, info: dict[str, Any], *, needs_head: bool
) -> tuple[str, ...]:
    """Refuse missing and huge weights, wrong shapes, and unused weights that matter.

    Returns:
        Notices about weights that are left out and do not matter.
    """
    for weight, value in model.named_parameters():
        check_largest(float(value.detach().abs().max()) if value.numel() else 0.0, weight, name)
    unused = sorted(info["unexpected_keys"])
    refuse_adapter(name, unused)
    check_shapes(name, info["mismatched_keys"])
    _check_missing(name, model, task, sorted(info["missing_keys"]), needs_head=needs_head)
    notices = check_left_out(
        name,
        unused,
        task,
        model=f"transformers' {type(model).__name__}",
        is_inner=lambda key: _is_of_base(model, key),
        without_head=lambda keys: _keys_without_head(model, keys),
    )
    return tuple(notices)


def check_shapes(name: str, mismatched: Iterable[tuple[str, Any, Any]]) -> None:
    """Refuse weights of other shapes than the config describes.

    `mismatched` are their names, their shapes, and those that the config describes.
    """
    for weight, stored, expected in sorted(mismatched):
        raise CheckpointError(
            f"Weight `{weight}` of checkpoint {name!r} has shape {tuple(stored)}, but its "
            f"config.json describes shape {tuple(expected)}. Use the config.json that belongs to "
            "the weights."
        )


def _check_missing(
    name: str, model: Any, task: TaskName, missing: Collection[str], *, needs_head: bool
) -> None:
    """Refuse missing weights, which are random after loading."""
    # transformers adds a pooler to encoders; it is a part of the heads that read it.
    encoder = {key for key in missing if "pooler." not in key and _is_in_encoder(model, key)}
    if encoder:
        raise CheckpointError(
            f"Checkpoint {name!r} is incomplete: its files lack {count_of(encoder)} of the "
            f"encoder that its config.json describes, among them `{min(encoder)}`. Download or "
            "copy it again, or correct config.json."
        )
    has_head = TASK_KINDS[task].has_head
    head = [key for key in missing if key not in encoder] if has_head else []
    if head and needs_head:
        named = getattr(model.config, "architectures", None) or []
        hint = (
            f", although its config.json names {named[0]}" if type(model).__name__ in named else ""
        )
        raise CheckpointError(
            f"Checkpoint {name!r} has no head for task `{task}`{hint}: it lacks "
            f"{count_of(head)}, among them `{head[0]}`. Fine-tune it for the task first, or "
            "pass another `task`: `feature-extraction` for the encoder alone.",
            argument="task",
        )


def _keys_without_head(model: Any, keys: Collection[str]) -> list[str]:
    """Return the names of weights that belong to none of transformers' heads for a config."""
    known = _keys_of_heads(model) if keys else set()
    roots = {*_OLD_HEADS, *map(root_of, known)} - {each for each, _ in model.named_children()}
    return [key for key in keys if key not in known and root_of(key) not in roots]


def _keys_of_heads(model: Any) -> set[str]:
    """Return the names of the weights in all heads that transformers has for a config."""
    config = model.config
    # A causal head has the same names as a masked language model's.
    autos = {*(kind.auto_class for kind in TASK_KINDS.values()), "AutoModelForPreTraining"} - {
        "AutoModelForCausalLM"
    }
    mappings = [getattr(transformers, each)._model_mapping for each in sorted(autos)]
    found = set()
    for mapping in mappings:
        if type(config) in mapping:
            with torch.device("meta"):
                found |= set(mapping[type(config)](copy.deepcopy(config)).state_dict())
    return {key for key in found if not _is_of_base(model, key)}


def _is_of_base(model: Any, key: str) -> bool:
    """Return whether a name in a file belongs to the encoder, with its prefix or not."""
    prefix = model.base_model_prefix
    base = getattr(model, prefix, model)
    return root_of(key) in {prefix, *(each for each, _ in base.named_children())}


def _is_in_encoder(model: Any, key: str) -> bool:
    """Return whether a weight belongs to the encoder, under a head or on its own."""
    has_head = hasattr(model, model.base_model_prefix)
    return not has_head or key.startswith(f"{model.base_model_prefix}.")
