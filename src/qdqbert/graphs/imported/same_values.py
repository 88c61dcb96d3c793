"""Check that an encoder computes the same values as its .onnx file."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray

from qdqbert.calibration.reference.body import to_numpy
from qdqbert.calibration.reference.sited_encoder import SitedEncoder
from qdqbert.encoders.model import EncoderModel
from qdqbert.engines.runner import Runner
from qdqbert.graphs.encoder.refusal import refuse
from qdqbert.graphs.tail import open_tail

_TEXTS, _TOKENS = 4, 12
# Float sums in another order differ by 1e-6; a wrong shape changes numbers entirely.
_TOLERANCE = 1e-3
# The original rounds to 11 bits in every layer, and float32 is compared with it.
_TOLERANCE_OF_HALF = 2e-2


def tolerance_of(model: ir.Model) -> float:
    """Return the tolerance of a file's outputs against float32, relative to the largest value."""
    constants = model.graph.initializers.values()
    is_half = any(value.dtype == ir.DataType.FLOAT16 for value in constants)
    return _TOLERANCE_OF_HALF if is_half else _TOLERANCE


def check_same_values(
    encoder: EncoderModel, runner: Runner, names: Collection[str], *, tolerance: float
) -> None:
    """Compare outputs of an encoder in float with its file on a few random texts with padding.

    They may differ by `tolerance`, relative to the largest value of an output.

    Raises:
        GraphError: An output differs. The message names it.
    """
    inputs = _example(encoder)
    expected = runner.run({name: inputs[name] for name in runner.input_names})
    body = SitedEncoder(encoder, (), open_tail(encoder))
    with torch.inference_mode():
        made = body(**{name: torch.from_numpy(array) for name, array in inputs.items()})
    found = to_numpy(made, body.output_names)
    is_text = inputs["attention_mask"] != 0
    for name in names:
        pair = [expected[name], found[name]]
        if expected[name].shape[: is_text.ndim] == is_text.shape:
            # States of padding have no meaning.
            pair = [each[is_text] for each in pair]
        wanted, given = (np.asarray(each, np.float64) for each in pair)
        is_same = given.shape == wanted.shape
        # NaN is not close, either.
        if is_same:
            largest = np.abs(wanted).max(initial=1e-6)
            is_same = bool(np.abs(given - wanted).max(initial=0) <= tolerance * largest)
        if not is_same:
            raise refuse(None, f"gives other values of output `{name}` than what was read of it")


def _example(encoder: EncoderModel) -> dict[str, NDArray[np.int64]]:
    """Return random inputs by name. Each text after the first one has one more [PAD]."""
    generator = np.random.default_rng(0)
    # Files with fixed shapes pad shorter texts.
    tokens = min(_TOKENS, max(encoder.limit - 1, 1))
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
