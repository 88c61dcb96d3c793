"""Check that an encoder computes what the .onnx file computes that it was read from."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from qdqbert.encoders.model import TAIL_STATES, EncoderModel, Head, HeadOutput
from qdqbert.engines.onnxruntime import load_graph
from qdqbert.engines.runner import Runner
from qdqbert.errors import GraphError
from qdqbert.reference.body import to_numpy
from qdqbert.reference.sited_encoder import SitedEncoder

_TEXTS, _TOKENS = 4, 12
_STATES = Head(pooling="none", steps=(), outputs=(HeadOutput(name=TAIL_STATES),))


def check_same_values(
    encoder: EncoderModel, runner: Runner, names: Collection[str], *, tolerance: float
) -> None:
    """Compare an encoder with its file on a few random texts with padding.

    Args:
        encoder: The encoder, in float.
        runner: The file.
        names: Names of the outputs that are compared.
        tolerance: Largest difference, relative to the largest value of an output.

    Raises:
        GraphError: An output differs. The message names it.
    """
    inputs = _example(encoder)
    expected = runner.run({name: inputs[name] for name in runner.input_names})
    found = _outputs(encoder, inputs)
    is_text = inputs["attention_mask"] != 0
    for name in names:
        pair = [expected[name], found[name]]
        if expected[name].shape[: is_text.ndim] == is_text.shape:
            # States of padding have no meaning.
            pair = [each[is_text] for each in pair]
        wanted, made = (np.asarray(each, np.float64) for each in pair)
        largest = np.abs(wanted).max(initial=1e-6)
        # NaN is not close, either.
        if not np.abs(made - wanted).max(initial=0) <= tolerance * largest:
            raise GraphError(
                f"The structure of the graph is not known: what was read of it computes other "
                f"values of output `{name}` than the file does. Quantize the checkpoint instead of "
                "an .onnx file, if there is one."
            )


def _example(encoder: EncoderModel) -> dict[str, NDArray[np.int64]]:
    """Return random inputs by name. Each text after the first one has one more [PAD]."""
    generator = np.random.default_rng(0)
    tokens = min(_TOKENS, encoder.limit)
    shape = (1, _TEXTS, tokens) if encoder.has_choices else (_TEXTS, tokens)
    tables = encoder.embeddings
    types = 1 if tables.token_types is None else len(tables.token_types.rows)
    lengths = np.maximum(tokens - np.arange(_TEXTS), 1)
    arrays = {
        "input_ids": generator.integers(0, len(tables.words.rows), shape),
        "attention_mask": (np.arange(tokens) < lengths[:, None]).reshape(shape).astype(np.int64),
        "token_type_ids": generator.integers(0, types, shape),
    }
    return {name: arrays[name] for name in encoder.input_names}


def _outputs(encoder: EncoderModel, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return all outputs of an encoder, of its heads and of its tail."""
    tail = encoder.tail
    needs_states = tail is not None and TAIL_STATES in tail.inputs
    heads = (*encoder.heads, *([_STATES] if needs_states else []))
    body = SitedEncoder(dataclasses.replace(encoder, heads=heads), ())
    with torch.inference_mode():
        made = body(**{name: torch.from_numpy(array) for name, array in inputs.items()})
    outputs = to_numpy(made, body.output_names)
    if tail is None:
        return outputs
    known = {**inputs, **outputs}
    if needs_states:
        # Each choice is a text of its own.
        known[TAIL_STATES] = known[TAIL_STATES].reshape(-1, *known[TAIL_STATES].shape[-2:])
    return outputs | load_graph(tail.graph)({name: known[name] for name in tail.inputs})
