"""Compare the weights of a checkpoint's files with those that its class uses."""

from __future__ import annotations

import copy
import re
from collections.abc import Collection
from typing import Any

import torch
import transformers

from qdqbert.checkpoint.task_names import AUTO_CLASSES
from qdqbert.choices import TaskName
from qdqbert.encoders.checkpoint import ADAPTER, BUFFER, POOLER
from qdqbert.errors import CheckpointError

# Ranges of quantizers, which are calibrated if config.json describes no quantizers.
_QUANTIZER = re.compile(r"_quantizer\.\w+$")
# Names of DeBERTa's heads in its own code.
_OLD_HEADS = ("lm_predictions", "mask_predictions")


def check_weights(
    name: str, model: Any, task: TaskName, info: dict[str, Any], *, needs_head: bool
) -> tuple[str, ...]:
    """Refuse weights that are missing, have other shapes, or would be left out and matter.

    Args:
        name: Folder or hub id of the checkpoint, for messages.
        model: The loaded model.
        task: Its task.
        info: transformers' information about the loading.
        needs_head: Whether the files must have the head of the task.

    Returns:
        Notices about weights that are left out and do not matter.

    Raises:
        CheckpointError: The files and the class do not fit.
    """
    unused = [key for key in sorted(info["unexpected_keys"]) if not BUFFER.search(key)]
    adapter = next((key for key in unused if ADAPTER.search(key)), None)
    if adapter is not None:
        raise CheckpointError(
            f"Checkpoint {name!r} has weights of an adapter, among them `{adapter}`, which its "
            "class would leave out. Merge the adapter into the model and save that: with PEFT, "
            "`merge_and_unload()` and `save_pretrained(new_folder)`."
        )
    _check_shapes(name, info)
    _check_missing(name, model, task, sorted(info["missing_keys"]), needs_head=needs_head)
    return _check_unused(name, model, task, unused)


def _check_shapes(name: str, info: dict[str, Any]) -> None:
    for weight, stored, expected in sorted(info["mismatched_keys"]):
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
            f"Checkpoint {name!r} is incomplete: its files lack {_weights(len(encoder))} of the "
            f"encoder that its config.json describes, among them `{min(encoder)}`. Download or "
            "copy it again, or correct config.json."
        )
    head = [] if task == "feature-extraction" else [key for key in missing if key not in encoder]
    if head and needs_head:
        named = getattr(model.config, "architectures", None) or []
        hint = (
            f", although its config.json names {named[0]}" if type(model).__name__ in named else ""
        )
        raise CheckpointError(
            f"Checkpoint {name!r} has no head for task `{task}`{hint}: it lacks "
            f"{_weights(len(head))}, among them `{head[0]}`. Fine-tune it for the task first, or "
            "pass another `task`: `feature-extraction` for the encoder alone.",
            argument="task",
        )


def _check_unused(
    name: str, model: Any, task: TaskName, unused: Collection[str]
) -> tuple[str, ...]:
    """Refuse weights that the checkpoint computes with, and return notices about the others."""
    inner = [key for key in unused if _is_of_base(model, key)]
    beyond = [key for key in inner if not (POOLER.search(key) or _QUANTIZER.search(key))]
    if beyond:
        raise CheckpointError(
            f"The files of checkpoint {name!r} have {_weights(len(beyond))} in the encoder that "
            f"its config.json does not describe, among them `{beyond[0]}`: more layers, or parts "
            f"that transformers' {type(model).__name__} does not have. Use the config.json that "
            "belongs to the weights."
        )
    outer = [key for key in unused if key not in inner and not _QUANTIZER.search(key)]
    known = _keys_of_heads(model) if outer else set()
    roots = {*_OLD_HEADS, *map(_root, known)} - {each for each, _ in model.named_children()}
    unknown = [key for key in outer if key not in known and _root(key) not in roots]
    if unknown:
        raise CheckpointError(
            f"Checkpoint {name!r} has {_weights(len(unknown))} that transformers' "
            f"{type(model).__name__} does not use, among them `{unknown[0]}`: other code made it, "
            "and may compute something else. If they do not matter, write a copy without them: "
            f"`{AUTO_CLASSES[task]}.from_pretrained(folder).save_pretrained(new_folder)`, and the "
            "same for `AutoTokenizer`."
        )
    notices = []
    if any(_QUANTIZER.search(key) for key in unused):
        notices.append(
            f"{name!r} has ranges of quantizers, but its config.json describes no quantizers. "
            "They are not used."
        )
    parts = dict.fromkeys(
        "pooler" if POOLER.search(key) else _root(key)
        for key in unused
        if not _QUANTIZER.search(key)
    )
    if parts:
        names = ", ".join(f"`{each}`" for each in parts)
        notices.append(
            f"Weights of {name!r} that task `{task}` does not use are left out: {names}."
        )
    return tuple(notices)


def _keys_of_heads(model: Any) -> set[str]:
    """Return the names of the weights in all heads that transformers has for a config."""
    config = model.config
    # A causal head has the same names as a masked language model's.
    autos = {*AUTO_CLASSES.values(), "AutoModelForPreTraining"} - {"AutoModelForCausalLM"}
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
    return _root(key) in {prefix, *(each for each, _ in base.named_children())}


def _is_in_encoder(model: Any, key: str) -> bool:
    """Return whether a weight belongs to the encoder, under a head or on its own."""
    has_head = hasattr(model, model.base_model_prefix)
    return not has_head or key.startswith(f"{model.base_model_prefix}.")


def _root(key: str) -> str:
    return key.partition(".")[0]


def _weights(count: int) -> str:
    return "1 weight" if count == 1 else f"{count} weights"
