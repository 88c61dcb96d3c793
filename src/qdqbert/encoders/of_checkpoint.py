"""Read a checkpoint as a float `EncoderModel`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

from qdqbert.common.errors import CheckpointError, UserInputError
from qdqbert.encoders.config import Config
from qdqbert.encoders.families import family_of
from qdqbert.encoders.family import Family, Parts, ReadHead
from qdqbert.encoders.heads import (
    PROJECTION,
    pooled_words,
    scores,
    states,
    token_vectors,
    token_weights,
)
from qdqbert.encoders.left_out import check_left_out, refuse_adapter, root_of
from qdqbert.encoders.model import EncoderModel, Head, Layer, Linear, Norm, Pooling, Step
from qdqbert.encoders.task_kinds import (
    ENCODER,
    TASK_KINDS,
    TaskName,
    architectures_of,
    check_classes,
    task_of_architecture,
)
from qdqbert.encoders.weights import MissingTensorError, Weights

# Modules of the heads of transformers' models, of older versions too.
_HEADS = frozenset(
    {
        "classifier",
        "cls",
        "decoder",
        "discriminator_predictions",
        "dropout",
        "generator_lm_head",
        "generator_predictions",
        "head",
        "lm_head",
        "lm_predictions",
        "mask_predictions",
        "pooler",
        "pre_classifier",
        "predictions",
        "projection",
        "qa_outputs",
        "score",
        "sequence_summary",
        "sop_classifier",
        "vocab_layer_norm",
        "vocab_projector",
        "vocab_transform",
    }
)


def read_encoder(
    weights: Weights,
    config: Config,
    task: TaskName,
    *,
    poolings: Sequence[Pooling] = (),
    steps: Sequence[Step] = (),
    token_heads: Sequence[Head] = (),
    reads_token_types: bool = True,
    notices: list[str] | None = None,
) -> EncoderModel:
    """Read a model with the head of a task. All its linear layers are in float.

    Args:
        weights: Tensors of the checkpoint.
        config: Its config.
        task: The task. Some have the head of another one; see `TaskKind.head`.
        poolings: How an embedder makes one vector of the token states; none for token states only.
            Families with a way of their own ignore it. Of sparse embedders, "max" or "sum", "max"
            if there is none. Of rerankers, none for transformers' own head.
        steps: Steps of an embedder after the pooling. For sparse embedders, from scores to weights.
            For multi-vector embedders, from the state of a token to its vector. For rerankers with
            poolings, from the pooled vector to the score.
        token_heads: Other heads of an embedder, on the states of tokens.
        reads_token_types: Whether the tokenizer makes token types.
        notices: Receives sentences for the user about tensors that are left out.

    Raises:
        CheckpointError: The family is unknown, a tensor or a field is missing or not supported,
            steps do not fit the states, or other code computes with tensors of the file that this
            model does not have.
        UserInputError: The family has no such head.
    """
    family = family_of(config)
    config = family.complete(config)
    kind = TASK_KINDS[task]
    # Decoders have no such field: they are causal for all tasks.
    if "is_decoder" in family.defaults and config.flag("is_decoder", null=False) != kind.is_causal:
        raise config.refuse(
            "is_decoder", "it has to be true for the task `text-generation`, and false for others."
        )
    # Modules of the file score the vector of an encoder alone.
    own_task = ENCODER if kind.has_classes and poolings else task
    parts = family.read(weights, config, has_head=TASK_KINDS[own_task].has_head)
    if kind.vectors == "sentence" and poolings:
        token_heads = (*token_heads, *_scored_tokens(parts))
    for each in token_heads:
        _check_widths(each.steps, parts.hidden, str(parts.root.weights.path))
    tensors = parts.root.weights
    path = str(tensors.path)
    refuse_adapter(path, tensors.unused)
    projection = None
    if family.projects_states and kind.vectors == "sentence" and PROJECTION in tensors:
        name = PROJECTION.removesuffix(".weight")
        projection = parts.root.linear(name, inputs=parts.hidden, has_bias=False)
    width = parts.hidden if projection is None else len(projection.bias)
    is_inner = _inner_names(parts)
    heads = _heads(family, parts, task, poolings, steps, projection)
    if kind.vectors == "sentence" and family.embedding is not None:
        _check_widths(heads[-1].steps, parts.hidden, path)
    else:
        _check_widths(steps, width * max(1, len(poolings)), path)
    left_out = check_left_out(
        path,
        tensors.unused,
        own_task,
        model=f"a model of type `{family.model_type}`",
        is_inner=is_inner,
        without_head=lambda names: [
            each
            for each in names
            if root_of(each.removeprefix(parts.body.path)) not in {*_HEADS, *family.others}
        ],
        has_quantizers="quantizers" in config,
    )
    if notices is not None:
        notices += left_out
    return EncoderModel(
        embeddings=parts.encoder.embeddings,
        layers=_causal(parts.encoder.layers) if kind.is_causal else parts.encoder.layers,
        # The embedding stays the last output.
        heads=(*heads[:-1], *token_heads, *heads[-1:]),
        limit=parts.encoder.limit,
        input_names=_input_names(parts, reads_token_types),
        final_norm=parts.encoder.final_norm,
        has_choices=kind.has_choices,
        convolution=parts.encoder.convolution,
        filled_id=config.integer("pad_token_id") if family.fills_texts else None,
    )


def with_expansion(model: EncoderModel, config: Config, index: int | None) -> EncoderModel:
    """Return a model with the id of the token that expands queries; see `EncoderModel`.

    Raises:
        CheckpointError: The family computes no states for a token that no token attends to.
    """
    family = family_of(config)
    if index is not None and family.masks_queries:
        raise CheckpointError(
            "Queries are expanded by tokens that are not attended to. Models of type "
            f"`{family.model_type}` mask such tokens, which is not supported. Set `attend` of "
            "`query_expansion` to true in a copy of the folder, if the model was trained so."
        )
    return dataclasses.replace(model, expansion_id=index)


def _check_widths(steps: Sequence[Step], width: int, path: str) -> None:
    """Refuse steps that read vectors of another width than they get."""
    for step in steps:
        if not isinstance(step, Linear | Norm):
            continue
        reads = step.weight.shape[-1]
        if reads != width:
            raise CheckpointError(
                f"A module after the encoder reads vectors of {reads} channels, and gets {width}: "
                f"it does not belong to {path!r}, or to its pooling. Save the model with "
                "sentence-transformers again."
            )
        width = step.weight.shape[0]


def _heads(
    family: Family,
    parts: Parts,
    task: TaskName,
    poolings: Sequence[Pooling],
    steps: Sequence[Step],
    projection: Linear | None,
) -> tuple[Head, ...]:
    """Return the head of a task; see `read_encoder`. Embedders may project the states."""
    kind = TASK_KINDS[task]
    if kind.vectors == "sentence":
        if family.embedding is not None:
            *others, last = family.embedding(parts)
            return (*others, dataclasses.replace(last, steps=(*last.steps, *steps)))
        return states(poolings, *steps, projection=projection)
    if kind.vectors == "spans":
        return states(())
    if kind.has_classes and poolings:
        return scores(poolings, steps)
    if kind.vectors == "tokens":
        if PROJECTION in parts.root.weights:
            # Stanford's ColBERT has it next to the encoder; it is one of the steps.
            parts.root.weights.read(PROJECTION)
        return token_vectors(steps)
    heads = _read_head(family, parts, task)
    if kind.counts_classes or kind.outputs_of_head:
        outputs = next(len(step.bias) for step in heads[0].steps[::-1] if isinstance(step, Linear))
        config = parts.config
        check_classes(task, config.class_names(), where=config.path, outputs=outputs)
    return (
        pooled_words(heads[0], poolings or ("max",), steps) if kind.vectors == "sparse" else heads
    )


def _scored_tokens(parts: Parts) -> tuple[Head, ...]:
    """Return the head that weighs the tokens of an embedder, if a token classifier has it.

    gte-multilingual-base is an embedder whose config names such a class, with one output.
    """
    named = map(task_of_architecture, architectures_of(parts.config.values.get("architectures")))
    name = "classifier.weight"
    weights = parts.root.weights
    if "token-classification" not in named or name not in weights:
        return ()
    if weights.shape(name) != (1, parts.hidden):
        return ()
    return token_weights(parts.root.linear("classifier", inputs=parts.hidden, outputs=1))


def reader_of_head(family: Family, task: TaskName) -> ReadHead:
    """Return what reads the head of transformers' model for a task.

    Raises:
        UserInputError: The family has no such head.
    """
    read = family.heads.of(TASK_KINDS[task].head or task)
    if read is None:
        kinds = TASK_KINDS.items()
        known = [name for name, each in kinds if not each.has_head or name in family.heads.tasks]
        why = "no such head" if family.lacking is None else f"{family.lacking}, for this head"
        raise UserInputError(
            f"`task={task!r}`: models of type `{family.model_type}` have {why}. Known: "
            f"{', '.join(known)}.",
            argument="task",
        )
    return read


def _read_head(family: Family, parts: Parts, task: TaskName) -> tuple[Head, ...]:
    """Return the head of transformers' model."""
    read = reader_of_head(family, task)
    try:
        return read(parts)
    except MissingTensorError as error:
        raise CheckpointError(
            f"{str(parts.root.weights.path)!r} has no head for task `{task}`: it lacks "
            f"`{error.tensor}`. Fine-tune it for the task first, or pass another `task`: "
            "`feature-extraction` for the encoder alone.",
            argument="task",
        ) from error


def _causal(layers: Iterable[Layer]) -> tuple[Layer, ...]:
    """Return layers in which a token attends only to itself and those before it."""
    return tuple(
        dataclasses.replace(layer, attention=dataclasses.replace(layer.attention, causal=True))
        for layer in layers
    )


def _inner_names(parts: Parts) -> Callable[[str], bool]:
    """Return a test for names of the encoder's tensors. Call it once the encoder was read."""
    weights, start = parts.root.weights, parts.body.path
    # The encoder has a prefix, or its parts are at the root.
    used = set(weights) - set(weights.unused)
    roots = {root_of(name.removeprefix(start)) for name in used}
    return lambda name: name.startswith(start) and root_of(name.removeprefix(start)) in roots


def _input_names(parts: Parts, reads_token_types: bool) -> tuple[str, ...]:
    has_types = parts.encoder.has_token_types and reads_token_types
    return ("input_ids", "attention_mask", *(("token_type_ids",) if has_types else ()))
