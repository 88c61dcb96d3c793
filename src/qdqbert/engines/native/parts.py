"""Run a model in float a few layers at a time, so that its weights need not fit into memory.

Each part is a model of its own, whose table of words has the states that its first layer reads: a
row for each token.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.common.input_names import POOLED
from qdqbert.encoders.model import Embeddings, EncoderModel, Head, HeadOutput, Layer, Table
from qdqbert.encoders.sites import linear_layers_of
from qdqbert.engines.native import open_packed
from qdqbert.engines.native.packed import pack_model
from qdqbert.engines.runner import Outputs

Inputs = dict[str, NDArray[np.int64]]

# Bytes of weights in float32 that a part has at most, if it is more than one layer.
_TOGETHER = 2**28
_STATES = "states"
_STATES_HEAD = Head(poolings=("none",), steps=(), outputs=(HeadOutput(name=_STATES),))


def run_in_parts(
    model: EncoderModel, texts: Sequence[Mapping[str, NDArray[np.int64]]], *, threads: int
) -> Iterator[Outputs]:
    """Yield the outputs of a float model for each text, with the bits of a `NativeRunner`.

    The inputs of each text are `(1, tokens)`, or `(1, 1, tokens)` with choices. All tokens are
    attended to.
    """
    *others, last = _groups(model)
    inputs: list[Inputs] = [
        {name: each.reshape(1, -1) for name, each in text.items()} for text in texts
    ]
    part = _with_used_words(_with_windows(model), inputs)
    for layers in others:
        shown = dataclasses.replace(
            part, layers=layers, heads=(_STATES_HEAD,), final_norm=None, has_choices=False
        )
        runner = open_packed(pack_model(shown, precision="float"), threads=threads)
        states = [runner.run(each)[_STATES][0] for each in inputs]
        inputs = list(_of_states(states, inputs))
        part = _after(part, np.concatenate(states))
    runner = open_packed(
        pack_model(dataclasses.replace(part, layers=last), precision="float"), threads=threads
    )
    for each in inputs:
        yield runner.run(
            {name: array[None] for name, array in each.items()} if model.has_choices else each
        )


def _groups(model: EncoderModel) -> list[tuple[Layer, ...]]:
    """Return the layers of each part."""
    groups: list[tuple[Layer, ...]] = []
    size = _TOGETHER
    for layer in model.layers:
        own = sum(4 * len(each.bias) * each.weight.shape[1] for each, _ in linear_layers_of(layer))
        size += own
        if size > _TOGETHER:
            groups.append(())
            size = own
        groups[-1] = (*groups[-1], layer)
    return groups or [()]


def _with_windows(model: EncoderModel) -> EncoderModel:
    """Return a model whose layers have windows if one has, so that all need the same kernels."""
    if all(layer.attention.window is None for layer in model.layers):
        return model
    layers = [
        dataclasses.replace(layer, attention=dataclasses.replace(layer.attention, window=window))
        for layer in model.layers
        for window in [layer.attention.window or model.limit]
    ]
    return dataclasses.replace(model, layers=layers)


def _with_used_words(model: EncoderModel, inputs: Sequence[Inputs]) -> EncoderModel:
    """Return a model whose table has only the words of texts, and change the texts to its ids."""
    embeddings = model.embeddings
    special = {
        "padding_id": embeddings.padding_id,
        "dropped_id": embeddings.dropped_id,
        "filled_id": model.filled_id,
        "expansion_id": model.expansion_id,
    }
    kept = [each for each in special.values() if each is not None]
    ids = np.unique(np.concatenate([*(each["input_ids"].ravel() for each in inputs), kept]))
    for each in inputs:
        each["input_ids"] = np.searchsorted(ids, each["input_ids"])
    new: dict[str, Any] = {
        name: None if index is None else int(np.searchsorted(ids, index))
        for name, index in special.items()
    }
    words = dataclasses.replace(embeddings.words, rows=embeddings.words.rows[ids.astype(np.intp)])
    own = {name: new.pop(name) for name in ("padding_id", "dropped_id")}
    return dataclasses.replace(
        model, embeddings=dataclasses.replace(embeddings, words=words, **own), **new
    )


def _after(part: EncoderModel, states: NDArray[np.float32]) -> EncoderModel:
    """Return a part that reads states `(tokens, hidden)`."""
    positions = None
    if part.embeddings.positions is not None:
        # Kernels are those of models with positions.
        positions = Table(rows=np.zeros((part.limit, states.shape[1]), np.float32))
    return dataclasses.replace(
        part,
        embeddings=Embeddings(words=Table(rows=states), positions=positions),
        input_names=tuple(name for name in part.input_names if name != "token_type_ids"),
        convolution=None,
        filled_id=None,
        expansion_id=None,
    )


def _of_states(states: Sequence[NDArray[np.float32]], inputs: Sequence[Inputs]) -> Iterator[Inputs]:
    """Yield the inputs of texts whose tokens have the rows of a table, one after another."""
    ends = list(itertools.accumulate(map(len, states), initial=0))
    for first, end, given in zip(ends, ends[1:], inputs, strict=False):
        ids = np.arange(first, end)[None]
        kept = {name: each for name, each in given.items() if name == POOLED}
        yield {"input_ids": ids, "attention_mask": np.ones_like(ids), **kept}
