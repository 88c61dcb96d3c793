"""Compare INT8 with float on built-in texts."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import tokenizers

from qdqbert.common.errors import GraphError
from qdqbert.common.file_names import TOKENIZER
from qdqbert.common.machine import usable_cores
from qdqbert.data.texts import heldout_examples
from qdqbert.data.tokenizing.encoding import feature_of
from qdqbert.data.tokenizing.tokenizer_files import read_tokenizer
from qdqbert.encoders.heads import EMBEDDING, TOKEN_VECTORS, WORDS
from qdqbert.engines.cuda.device import Device, open_on
from qdqbert.engines.native import open_packed
from qdqbert.engines.native.packed import pack_model
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
    """Compare the last output of INT8 with float, both on the native engine.

    The packed model is next to its tokenizer. On a GPU, `device`, float is float16. What its
    kernels do not compute is compared on the CPU.
    """
    tokenizer = read_tokenizer(packed.parent / TOKENIZER).tokenizer
    model = read_model(checkpoint, checkpoint.read_weights())
    tokenizer.enable_truncation(min(model.limit, _LONGEST_TEXT))
    shape = (1, 1, -1) if model.has_choices else (1, -1)
    found, in_float = (
        _open(each, device) for each in (load_packed(packed), pack_model(model, precision="float"))
    )
    return _compare(found, in_float, tokenizer, shape)


def _open(model: Packed, device: Device | None) -> Runner:
    if device is not None:
        with contextlib.suppress(GraphError):
            return open_on(device, model)
    return open_packed(model, threads=usable_cores())


def _compare(
    runner: Runner, float_runner: Runner, tokenizer: tokenizers.Tokenizer, shape: tuple[int, ...]
) -> Closeness:
    name = runner.output_names[-1]
    signal = noise = 0.0
    cosines = []
    for example in heldout_examples()[:_TEXTS]:
        feature = feature_of(tokenizer.encode(example.text), runner.input_names)
        inputs = {name: each.astype(np.int64).reshape(shape) for name, each in feature.items()}
        wanted = float_runner.run(inputs)[name].astype(np.float64)
        found = runner.run(inputs)[name].astype(np.float64)
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
