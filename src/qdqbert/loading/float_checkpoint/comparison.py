"""Compare INT8 with float on built-in texts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qdqbert.common.errors import GraphError
from qdqbert.common.machine import usable_cores
from qdqbert.data.texts import heldout_examples
from qdqbert.data.tokenizing.encoding import encode
from qdqbert.data.tokenizing.tokenizer import Tokenizer
from qdqbert.encoders.heads import EMBEDDING, TOKEN_VECTORS, WORDS
from qdqbert.engines.cuda.device import Device, open_on
from qdqbert.engines.native import open_packed
from qdqbert.engines.native.parts import run_in_parts
from qdqbert.engines.native.storage import Packed, load_packed
from qdqbert.engines.runner import Runner
from qdqbert.evidence.fidelity import to_decibels
from qdqbert.loading.float_checkpoint.closeness import Closeness
from qdqbert.loading.float_checkpoint.folder import read_model
from qdqbert.loading.float_checkpoint.source import FloatCheckpoint

# Texts that are compared, and their longest length in tokens.
_TEXTS, _LONGEST_TEXT = 16, 128


def measure_closeness(
    checkpoint: FloatCheckpoint, packed: Path, device: Device | None = None
) -> Closeness:
    """Compare the last output of INT8 with float32 on the native engine.

    The packed model is next to its tokenizer. On a GPU, `device`, INT8 runs there. What its kernels
    do not compute is compared on the CPU. Float always runs on the CPU, a few layers at a time.
    """
    model = read_model(checkpoint, checkpoint.read_weights())
    shape = (1, 1, -1) if model.has_choices else (1, -1)
    runner = _open(load_packed(packed), device)
    # Pairs of a model with a template are in it.
    encoded = encode(
        Tokenizer.from_folder(packed.parent, max_length=None),
        [each.text for each in heldout_examples()[:_TEXTS]],
        input_names=runner.input_names,
        max_length=min(model.limit, _LONGEST_TEXT),
    )
    texts = [
        {name: array.astype(np.int64).reshape(shape) for name, array in each.items()}
        for each in encoded.inputs
    ]
    name = runner.output_names[-1]
    in_float = run_in_parts(model, texts, threads=usable_cores())
    return _compare(
        name,
        (
            (runner.run(text)[name], wanted[name])
            for text, wanted in zip(texts, in_float, strict=True)
        ),
    )


def _open(model: Packed, device: Device | None) -> Runner:
    if device is not None:
        with contextlib.suppress(GraphError):
            return open_on(device, model)
    return open_packed(model, threads=usable_cores())


def _compare(
    name: str, outputs: Iterable[tuple[NDArray[np.float32], NDArray[np.float32]]]
) -> Closeness:
    """Return how close outputs of INT8 are to those of float, text by text."""
    signal = noise = 0.0
    cosines = []
    for found, wanted in outputs:
        found, wanted = found.astype(np.float64), wanted.astype(np.float64)
        signal += float((wanted**2).sum())
        noise += float(((found - wanted) ** 2).sum())
        lengths = np.linalg.norm(wanted, axis=-1) * np.linalg.norm(found, axis=-1)
        # No word of a short text may have a weight.
        is_zero = lengths == 0
        products = (wanted * found).sum(axis=-1)
        cosines.append(float(np.where(is_zero, 1, products / np.where(is_zero, 1, lengths)).min()))
    return Closeness(
        texts=len(cosines),
        sqnr_db=to_decibels(signal, noise),
        worst_cosine=min(cosines) if name in (EMBEDDING, TOKEN_VECTORS, WORDS) else None,
    )
