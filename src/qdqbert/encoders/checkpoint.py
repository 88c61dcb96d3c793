"""Read a checkpoint as a float `EncoderModel`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping

from qdqbert.choices import TaskName
from qdqbert.encoders.config import Config
from qdqbert.encoders.families import FAMILIES
from qdqbert.encoders.family import Family, Parts
from qdqbert.encoders.heads import states
from qdqbert.encoders.model import EncoderModel, Layer, Pooling
from qdqbert.encoders.weights import Weights
from qdqbert.errors import CheckpointError, UserInputError

# Poolers, and buffers that follow from the config.
_LEFT_OUT = re.compile(r"(^|\.)(pooler|contact_head)\.|(embed_positions\.weight|inv_freq)$")

# Tasks with the head of another one.
_SAME_HEAD: Mapping[TaskName, TaskName] = {
    "reranking": "text-classification",
    "text-generation": "fill-mask",
}


def read_encoder(
    weights: Weights,
    config: Config,
    task: TaskName,
    *,
    pooling: Pooling | None = None,
    normalize: bool = False,
    reads_token_types: bool = True,
) -> EncoderModel:
    """Read a model with the head of a task. All its linear layers are in float.

    Args:
        weights: Tensors of the checkpoint.
        config: Its config.
        task: The task. "reranking" has the head of "text-classification", and "text-generation"
            that of "fill-mask".
        pooling: How an embedder makes one vector of the token states; `None` for token states only.
            Families with a way of their own ignore it.
        normalize: Whether an embedder scales this vector to length 1.
        reads_token_types: Whether the tokenizer makes token types.

    Raises:
        CheckpointError: The family is unknown, or a tensor or a field is missing or not supported.
        UserInputError: The family has no such head.
    """
    family = family_of(config)
    is_decoder = task == "text-generation"
    if config.flag("is_decoder", False) != is_decoder:
        raise config.refuse(
            "is_decoder", "it has to be true for the task `text-generation`, and false for others."
        )
    parts = family.read(weights, config, has_head=task != "feature-extraction")
    _check_unused(parts)
    if task == "feature-extraction":
        own = family.embedding
        heads = states(pooling, normalize=normalize) if own is None else own(parts)
    else:
        read = family.heads.get(_SAME_HEAD.get(task, task))
        if read is None:
            known = ("feature-extraction", *sorted(family.heads))
            raise UserInputError(
                f"`task={task!r}`: models of type `{family.model_type}` have no such head. Known: "
                f"{', '.join(known)}.",
                argument="task",
            )
        heads = read(parts)
    return EncoderModel(
        embeddings=parts.encoder.embeddings,
        layers=_causal(parts.encoder.layers) if is_decoder else parts.encoder.layers,
        heads=heads,
        limit=parts.encoder.limit,
        input_names=_input_names(parts, reads_token_types),
        final_norm=parts.encoder.final_norm,
        has_choices=task == "multiple-choice",
        convolution=parts.encoder.convolution,
    )


def _causal(layers: Iterable[Layer]) -> tuple[Layer, ...]:
    """Return layers in which a token attends only to itself and those before it."""
    return tuple(
        dataclasses.replace(layer, attention=dataclasses.replace(layer.attention, causal=True))
        for layer in layers
    )


def family_of(config: Config) -> Family:
    """Return the family of a config.

    Raises:
        CheckpointError: It is not known, or its model is code of the checkpoint.
    """
    kind = _family_name(config)
    family = FAMILIES.get(kind)
    if family is None:
        raise CheckpointError(
            f"Checkpoints of type `{kind:.80}` are not supported. Supported families: "
            f"{', '.join(sorted(FAMILIES))}."
        )
    if family.other_code(config.values.get("auto_map")) is not None:
        raise config.refuse(
            "auto_map",
            f"the model is code of its own, which is never run, and a model of type `{kind}` "
            "may compute something else. If both compute the same, remove `auto_map` in a copy "
            "of the folder.",
        )
    return family


def _check_unused(parts: Parts) -> None:
    """Refuse tensors of the encoder that nothing reads. Heads and poolers may be left out."""
    weights, start = parts.root.weights, parts.body.path
    has_quantizers = "quantizers" in parts.root.config
    used = set(weights) - set(weights.unused)
    # The encoder has a prefix, or its parts are at the root.
    roots = {name.removeprefix(start).partition(".")[0] for name in used}
    for name in weights.unused:
        own = name.removeprefix(start)
        is_inner = name.startswith(start) and own.partition(".")[0] in roots
        # `encoders.stored` reads them.
        is_range = has_quantizers and "_quantizer." in name
        if is_inner and not is_range and not _LEFT_OUT.search(name):
            raise CheckpointError(
                f"{str(weights.path)!r} has the tensor `{name}` in its encoder, which a model of "
                "its type does not have: an adapter, more layers, or a part of other code. Merge "
                "the adapter, or use the config.json that belongs to the weights."
            )


def _family_name(config: Config) -> str:
    """Return the name of a config's family, which is `model_type` with one exception."""
    kind = config.text("model_type")
    has_alibi = config.text("position_embedding_type", "absolute") == "alibi"
    # Jina's models say that they are BERT.
    return "jina-bert" if kind == "bert" and has_alibi else kind


def _input_names(parts: Parts, reads_token_types: bool) -> tuple[str, ...]:
    has_types = parts.encoder.has_token_types and reads_token_types
    return ("input_ids", "attention_mask", *(("token_type_ids",) if has_types else ()))
