"""Jobs that embed texts: whole, in late chunks, or as the states of their tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from qdqbert.common.choices import OutputDtype
from qdqbert.data.tokenizing.encoding import feature_of
from qdqbert.encoders.heads import EMBEDDING
from qdqbert.runtime.batches import Results
from qdqbert.runtime.inputs import check_text
from qdqbert.runtime.scheduler import EncodedItem
from qdqbert.tasks.prompts import Prompted
from qdqbert.tasks.small_vectors import LENGTH_TOLERANCE, quantize_vectors

Embedding = NDArray[np.float32]
SmallEmbedding = NDArray[Any]
"""An embedding of any kind: float32, int8 or uint8."""


def sentence_vectors(results: Results) -> NDArray[np.float32]:
    """Return the sentence embeddings or, for a plain encoder, the mean of the token states.

    Returns:
        Shape `(batch, hidden)`.
    """
    if EMBEDDING in results.outputs:
        return results.outputs[EMBEDDING]
    mask = results.inputs["attention_mask"][..., None].astype(np.float32)
    sums = (results.outputs["last_hidden_state"] * mask).sum(axis=1)
    means: NDArray[np.float32] = sums / mask.sum(axis=1)
    return means


@dataclasses.dataclass(frozen=True, kw_only=True)
class Embed(Prompted):
    """The job of `encode`; see `Job`.

    Attributes:
        normalize: Whether vectors are scaled to length 1.
        dimensions: Number of leading values to keep; `None` for all.
        keep_length: Whether the kept values of a vector of length 1 are scaled to length 1.
        output_dtype: Kind of the values of the result.
        limits: Smallest and largest values `(2, dimensions)`, if codes depend on them.
        reads: See `Job`.
    """

    normalize: bool
    dimensions: int | None
    keep_length: bool = False
    output_dtype: OutputDtype = "float32"
    limits: Embedding | None = None
    reads: Collection[str] | None = None

    def split(self, results: Results) -> Sequence[SmallEmbedding]:
        """Return the vector of each text."""
        return list(self._finished(sentence_vectors(results)))

    def _finished(self, vectors: Embedding) -> SmallEmbedding:
        """Return vectors `(..., dimensions)`, cut, scaled and quantized as requested."""
        return quantize_vectors(self._cut(vectors), self.output_dtype, self.limits)

    def _cut(self, vectors: Embedding) -> Embedding:
        """Return vectors `(..., dimensions)`, cut and scaled as requested."""
        cut = vectors[..., : self.dimensions]
        if self.normalize:
            return scaled(cut)
        if self.keep_length and cut.shape != vectors.shape:
            return np.where(have_length_1(vectors), scaled(cut), cut)
        return cut


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbedInChunks(Embed):
    """The job of `encode` with `chunk_overlap`; see `Job`.

    A long text makes a feature for each chunk: the special tokens, the prompt, and a part of the
    text.

    Attributes:
        overlap: Number of tokens of a text that neighboring chunks share.
        prompt_tokens: Number of tokens of the prompt alone.
    """

    overlap: int
    prompt_tokens: int

    def encode(self, items: Sequence[Any]) -> list[EncodedItem]:
        """Return the model inputs of each chunk of each text."""
        encodings = self.tokenizer.cutting(None).encode_batch(
            [self.prompt + check_text(item) for item in items], offsets=bool(self.prompt)
        )
        return [self._without_prompt(self._chunks(each)) for each in encodings]

    def split(self, results: Results) -> Sequence[Embedding]:
        """Return the embedding of each feature as the graph computes it."""
        return list(sentence_vectors(results))

    def answer(self, _: Any, encoded: EncodedItem, values: Sequence[Embedding]) -> SmallEmbedding:
        """Return the embedding of a text from the embeddings of its chunks."""
        if len(values) == 1:
            return self._finished(values[0])
        stacked = np.stack(values)
        vector = np.average(stacked, axis=0, weights=encoded.places).astype(np.float32)
        if have_length_1(stacked).all():
            vector = scaled(vector)
        return self._finished(vector)

    def _chunks(self, encoding: tokenizers.Encoding) -> EncodedItem:
        feature = feature_of(encoding, self.input_names)
        count, limit = len(encoding.ids), self.tokenizer.max_length
        if limit is None or count <= limit:
            return EncodedItem(features=(feature,))
        own = np.flatnonzero(np.array(encoding.special_tokens_mask) == 0)
        end = int(own[-1]) + 1
        start = int(own[0]) + self._prompt_part(encoding, own)
        room = limit - start - (count - end)
        places = [
            (first, min(first + room, end))
            for first in range(start, end - self.overlap, room - self.overlap)
        ]
        return EncodedItem(
            features=tuple(
                {
                    name: np.concatenate([values[:start], values[first:last], values[end:]])
                    for name, values in feature.items()
                }
                for first, last in places
            ),
            places=[last - first for first, last in places],
        )

    def _prompt_part(self, encoding: tokenizers.Encoding, own: NDArray[np.int64]) -> int:
        """Return the number of tokens that are in the prompt only."""
        if not self.prompt:
            return 0
        ends = np.array([end for _, end in encoding.offsets])[own]
        # The first token of the text can contain the last character of the prompt, a space.
        return min(int((ends <= len(self.prompt)).sum()), self.prompt_tokens)


def have_length_1(vectors: Embedding) -> NDArray[np.bool_]:
    """Return whether the graph scaled vectors `(..., dimensions)` to length 1. Shape `(..., 1)`."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(np.abs(lengths - 1) < LENGTH_TOLERANCE)


def scaled(vectors: Embedding) -> Embedding:
    """Return vectors `(..., dimensions)`, scaled to length 1."""
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    # As torch.nn.functional.normalize, which returns zeros for zeros.
    return np.asarray(vectors / np.maximum(norms, 1e-12), dtype=np.float32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class States(Prompted):
    """The job of `output_value="token_embeddings"` and of calls; see `Job`."""

    def split(self, results: Results) -> Sequence[Embedding]:
        """Return the states of each text."""
        return results.rows("last_hidden_state")
