"""Refuse the tensors of a checkpoint that its model does not use, or return notices about them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence

from qdqbert.common.errors import CheckpointError
from qdqbert.encoders.task_kinds import TASK_KINDS, TaskName

# Buffers that older versions of transformers saved. They follow from the config.
_BUFFER = re.compile(r"(^|\.)(position_ids|token_type_ids|inv_freq|embed_positions\.weight)$")
# Poolers, ESM's head for contacts, and Longformer's layers of tokens that attend to all others.
_MODULE = re.compile(r"(^|\.)(pooler|contact_head|(?:query|key|value)_global)\.")
_QUANTIZER = re.compile(r"_quantizer\.(\w+|clip\.\w+)$")
# Parts of names of tensors that PEFT and AdapterHub add to a model.
_ADAPTER = re.compile(
    r"(^|[._])(lora_\w+|base_layer|adapters?|ia3_\w+|vera_\w+|modules_to_save|prompt_encoder)($|[._])"
)


def refuse_adapter(name: str, unused: Iterable[str]) -> None:
    """Raise a `CheckpointError` for weights of an adapter; see `check_left_out`."""
    adapter = next((each for each in unused if _ADAPTER.search(each)), None)
    if adapter is not None:
        raise CheckpointError(
            f"Checkpoint {name!r} has weights of an adapter, among them `{adapter}`, which would "
            "be left out. Merge the adapter into the model and save that: with PEFT, "
            "`merge_and_unload()` and `save_pretrained(new_folder)`."
        )


def check_left_out(
    name: str,
    unused: Iterable[str],
    task: TaskName,
    *,
    model: str,
    is_inner: Callable[[str], bool],
    without_head: Callable[[Sequence[str]], Sequence[str]],
    has_quantizers: bool = False,
) -> list[str]:
    """Refuse tensors that other code computes with. Return notices about other heads and poolers.

    Args:
        name: Folder or hub id of the checkpoint, for messages.
        unused: Names of the tensors that its model does not use.
        task: The task of the model.
        model: Name of the model, for messages.
        is_inner: Whether a tensor belongs to the encoder.
        without_head: Filters the names of other tensors: returns the ones of no known head.
        has_quantizers: Whether ranges of quantizers are read elsewhere.
    """
    named = [each for each in unused if not _BUFFER.search(each)]
    others = [each for each in named if not _QUANTIZER.search(each)]
    checked = [each for each in others if not _MODULE.search(each)]
    inner = [each for each in checked if is_inner(each)]
    if inner:
        raise CheckpointError(
            f"Checkpoint {name!r} has {count_of(inner)} in the encoder that its config.json does "
            f"not describe, among them `{inner[0]}`: more layers, or parts that {model} "
            "does not have. Use the config.json that belongs to the weights."
        )
    unknown = without_head(checked)
    if unknown:
        raise CheckpointError(
            f"Checkpoint {name!r} has {count_of(unknown)} that {model} does not use, among them "
            f"`{unknown[0]}`: other code made it, and may compute something else. If they do not "
            "matter, write a copy without them: load the model and its tokenizer with "
            "transformers, and call `save_pretrained(new_folder)` of both."
        )
    notices = []
    if len(others) < len(named) and not has_quantizers:
        notices.append(
            f"Checkpoint {name!r} has ranges of quantizers, but its config.json describes no "
            "quantizers. They are not used."
        )
    modules = dict.fromkeys(
        found[2] if (found := _MODULE.search(each)) else root_of(each) for each in others
    )
    if not TASK_KINDS[task].has_head:
        # It belongs to the encoder, and embedders do not read it.
        modules.pop("pooler", None)
    if modules:
        left = ", ".join(f"`{each}`" for each in modules)
        notices.append(f"Weights of {name!r} that task `{task}` does not use are left out: {left}.")
    return notices


def root_of(name: str) -> str:
    """Return the first part of a tensor's name, before the first dot."""
    return name.partition(".")[0]


def count_of(names: Collection[str]) -> str:
    """Return the number of names in words: "1 weight" or "2 weights"."""
    return "1 weight" if len(names) == 1 else f"{len(names)} weights"
