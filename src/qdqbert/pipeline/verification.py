"""Choose the rows on which `verify` measures a folder again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.common.choices import VerificationData
from qdqbert.data import texts as resources
from qdqbert.encoders.heads import EMBEDDING
from qdqbert.encoders.task_kinds import TASK_KINDS
from qdqbert.engines.registry import open_runner
from qdqbert.evidence.verification import VerificationRow
from qdqbert.pipeline.prepare import Ready
from qdqbert.tasks.task import Tokenization
from qdqbert.tasks.texts import encode_texts

_ROWS = 16
# Limits of storage: bytes of all outputs, and values of one output at one position.
_OUTPUT_BYTES = 2**20
_OUTPUT_VALUES = 4096


def make_rows(
    ready: Ready, float_model: Path, data: VerificationData
) -> tuple[VerificationRow, ...]:
    """Return inputs and what the float model computes for them, each alone.

    Returns:
        At least one row, unless `data` is "none".
    """
    inputs = _inputs(ready, data)
    if not inputs:
        return ()
    runner = open_runner("onnxruntime", float_model, low_memory=True)
    rows: list[VerificationRow] = []
    room = _OUTPUT_BYTES
    for each in inputs:
        row = {name: values[None].astype(np.int64) for name, values in each.items()}
        outputs = _kept(runner.run({name: row[name] for name in runner.input_names}))
        room -= sum(values.nbytes for values in outputs.values())
        if rows and room < 0:
            break
        rows.append(VerificationRow(inputs=row, outputs=outputs))
    return tuple(rows)


def _inputs(ready: Ready, data: VerificationData) -> Sequence[Mapping[str, NDArray[Any]]]:
    """Return the inputs of single rows by name, `(tokens,)` or `(choices, tokens)`."""
    if data == "none":
        return ()
    heldout = ready.inputs.heldout.features.encoded
    if data == "held-out":
        return heldout.inputs[:: -(-len(heldout.inputs) // _ROWS)]
    how = Tokenization(
        tokenizer=ready.inputs.tokenizer,
        input_names=ready.source.input_names,
        # Some .onnx files run only shorter inputs than their tokenizer allows, which is not known.
        max_length=max(heldout.lengths),
        settings=ready.inputs.task_options,
    )
    encoded = encode_texts(resources.heldout_examples()[:_ROWS], how).encoded.inputs
    if not TASK_KINDS[ready.source.task.name].has_choices:
        return encoded
    # Each sentence is the only choice.
    return [{name: values[None] for name, values in each.items()} for each in encoded]


def _kept(outputs: Mapping[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
    """Return the outputs that are stored: for embedders, the embedding of the text only."""
    names = [EMBEDDING] if EMBEDDING in outputs else list(outputs)
    return {name: outputs[name][..., :_OUTPUT_VALUES].copy() for name in names}
