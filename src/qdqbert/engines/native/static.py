"""Static embeddings: a model without layers, whose result is the mean of rows of its table.

Nothing is compiled: numpy gathers and adds in less time than a text takes to tokenize.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.common.errors import CheckpointError
from qdqbert.common.json_files import LARGEST_FLOAT, Fields
from qdqbert.encoders.heads import EMBEDDING
from qdqbert.encoders.model import EncoderModel
from qdqbert.engines.index_limits import check_ids
from qdqbert.engines.native.memory import LINE, padded, with_zeros
from qdqbert.engines.native.storage import Packed
from qdqbert.engines.runner import Outputs
from qdqbert.engines.token_inputs import read_inputs

KIND = "static"
"""Setting that only these packed models have."""

# Rows that are gathered together.
_BLOCK = 1024


def pack_static(model: EncoderModel) -> Packed:
    """Return a model without layers, in int8 with a scale for each row, or in float.

    Raises:
        CheckpointError: It is no mean of rows, or vectors pass other modules than Normalize.
    """
    tables, (head,) = model.embeddings, model.heads
    words = tables.words
    if head.poolings != ("mean",) or head.steps not in ((), ("normalize",)):
        raise CheckpointError(
            "Of the modules after StaticEmbedding, only Normalize is computed. Save a copy of the "
            "model without the others, if they do not matter."
        )
    table = np.asarray(words.rows, np.float32 if words.scale is None else np.int8)
    rows = np.ascontiguousarray(with_zeros(table, (len(table), padded(table.shape[1]))))
    arrays: dict[str, NDArray[Any]] = {"words": rows}
    if words.scale is not None:
        scale = np.zeros(padded(len(rows), LINE // 4), np.float32)
        scale[: len(rows)] = words.scale[:, 0]
        arrays["word_scale"] = scale
    settings = {
        KIND: True,
        "int8": words.scale is not None,
        "width": words.rows.shape[1],
        "normalizes": head.steps == ("normalize",),
        "limit": model.limit,
        "input_names": list(model.input_names),
        "has_choices": False,
        "filled_id": None,
        "expansion_id": None,
    }
    return Packed(arrays=arrays, settings=settings)


def _check(packed: Packed) -> None:
    """Refuse settings and arrays that do not fit together."""
    settings, arrays = Fields(packed.settings, _wrong), packed.arrays
    for name in (KIND, "int8", "normalizes"):
        settings.truth(name)
    width = settings.integer("width")
    settings.integer("limit")
    if settings.names("input_names") != ["input_ids", "attention_mask"]:
        raise _wrong("it has other inputs than ids and a mask")
    for name, expected in (("has_choices", False), ("filled_id", None), ("expansion_id", None)):
        if settings.get(name) is not expected:
            raise _wrong(f"setting {name!r} is not {expected}")
    is_int8 = settings.truth("int8")
    if arrays.keys() != {"words", *(("word_scale",) if is_int8 else ())}:
        raise _wrong(f"it has the arrays {sorted(arrays)}")
    words = arrays["words"]
    kind = np.int8 if is_int8 else np.float32
    if words.dtype != kind or words.ndim != 2 or words.shape[1] != padded(width):
        raise _wrong(f"array 'words' is {words.dtype} {words.shape}")
    for name, array in arrays.items():
        if array.dtype == np.float32 and not np.abs(array).max(initial=0) <= LARGEST_FLOAT:
            raise _wrong(f"array {name!r} has a value that is not finite, or too large")
    if is_int8 and arrays["word_scale"].shape != (padded(len(words), LINE // 4),):
        raise _wrong(f"array 'word_scale' has the shape {arrays['word_scale'].shape}")


def _wrong(reason: str) -> CheckpointError:
    return CheckpointError(f"The packed model is damaged: {reason}. Quantize the model again.")


class StaticRunner:
    """A table of rows; see `qdqbert.engines.runner.Runner`.

    The result for a text has the same bits whatever texts are in the batch. That of a text without
    tokens is zeros, as in sentence-transformers.
    """

    precision = "f32"
    output_names: tuple[str, ...] = (EMBEDDING,)

    def __init__(self, packed: Packed) -> None:
        """Check a packed model.

        Raises:
            CheckpointError: It is damaged.
        """
        _check(packed)
        self._settings = packed.settings
        self.input_names = tuple(packed.settings["input_names"])
        # Views of a mapped file would be of its class, which takes longer than to gather rows.
        arrays = {name: np.asarray(array) for name, array in packed.arrays.items()}
        self._words, self._scale = arrays["words"], arrays.get("word_scale")

    def run(
        self, inputs: Mapping[str, NDArray[Any]], wanted: Collection[str] | None = None
    ) -> Outputs:
        """Return the embedding of each text.

        Raises:
            UserInputError: An input is missing or has a wrong dtype or shape, or a token id is
                outside of the vocabulary.
        """
        if wanted is not None and EMBEDDING not in wanted:
            return {}
        found = read_inputs(inputs, self._settings)
        ids, kept = found.arrays["input_ids"], found.kept != 0
        check_ids({"input_ids": ids[kept]}, {"input_ids": len(self._words)})
        counts = np.maximum(kept.sum(axis=1), 1).astype(np.float32)
        rows = self._sums(np.where(kept, ids, 0), kept) / counts[:, None]
        if self._settings["normalizes"]:
            length = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float32))
            rows /= np.maximum(length, np.float32(1e-12))[:, None]
        return {EMBEDDING: rows}

    def _sums(self, ids: NDArray[Any], kept: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Return the sum of the rows of each text, `(texts, width)`.

        Rows are added one after another, and padding adds zeros, so that the result for a text
        depends on nothing else.
        """
        width, factors = self._settings["width"], kept.astype(np.float32)
        if self._scale is not None:
            factors *= self._scale[ids]
        sums = np.zeros((len(ids), width), np.float32)
        step = max(_BLOCK // len(ids), 1)
        for first in range(0, ids.shape[1], step):
            some = slice(first, first + step)
            # The first row has what was added before.
            rows = np.empty((len(ids), ids[:, some].shape[1] + 1, width), np.float32)
            rows[:, 0] = sums
            np.multiply(self._words[ids[:, some], :width], factors[:, some, None], out=rows[:, 1:])
            sums = rows.sum(axis=1)
        return sums
