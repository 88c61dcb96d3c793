"""One table of 16-bit codes, in two arrays of 8 bits, for embeddings and for a decoder.

The embedding table of a quantized model has 8-bit codes. The decoder of a masked LM often has the
same weights, and 8 bits are not enough there: all logits of the vocabulary would have the errors of
its weights. So the rest of each weight is stored as 8 bits more:

    weight = (256 * code + rest) / 256 * scale

Embeddings read the codes only.

ONNX runtimes compute the decoder when they load the graph (`graphs/qdq.py`), and the native engine
when it binds the arrays.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

STEPS = 256
"""Steps of the rest in a step of the codes."""

Codes = NDArray[np.int8]
Floats = NDArray[np.float32]


def rest_of(weights: Floats, codes: Codes, scale: Floats) -> Codes:
    """Return the rest of a table that its codes leave out, as 8 more bits.

    `weights` and `codes` are `(rows, width)`, and `scale` is `(width,)`, or `()` for all channels.
    """
    steps = np.rint(weights / scale * STEPS) - STEPS * codes.astype(np.float32)
    rest: Codes = np.clip(steps, -128, 127).astype(np.int8)
    return rest


def joined(codes: Codes, rest: Codes, scale: Floats) -> Floats:
    """Return the table that codes and their rest stand for, as a graph computes it."""
    steps = STEPS * codes.astype(np.int32) + rest
    weights: Floats = steps.astype(np.float32) * np.float32(1 / STEPS) * scale
    return weights
