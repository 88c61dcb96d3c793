"""What the kernels for GPUs compute, without torch."""

from __future__ import annotations

from qdqbert.common.errors import GraphError
from qdqbert.common.input_names import POOLED
from qdqbert.engines.native.checks import check_packed
from qdqbert.engines.native.features import Features
from qdqbert.engines.native.static import KIND
from qdqbert.engines.native.storage import Packed

# Settings of packed models that the kernels do not compute, in words.
_UNSUPPORTED = {
    "relative": "relative positions (DeBERTa)",
    "convolution": "a convolution of the embeddings",
    "tail": "operations of an .onnx file that are not known",
}


def check_supported(packed: Packed) -> Features:
    """Refuse a packed model with parts that the kernels do not compute; return its features.

    Raises:
        CheckpointError: The file is damaged.
        GraphError: It has such a part. The message names it.
    """
    if KIND in packed.settings:
        raise GraphError("The kernels for GPUs do not compute static embeddings.")
    features, settings = check_packed(packed), packed.settings
    parts = [words for name, words in _UNSUPPORTED.items() if settings.get(name) is not None]
    if features.rounds_attention or features.rounds_adds:
        parts.append("fake quantization of attention or residual adds")
    if POOLED in settings["input_names"]:
        parts.append("poolings that leave out prompts")
    if not (features.floats or features.dynamic):
        parts.append("stored ranges of activations (target 'native')")
    if features.has_experts:
        parts.append("experts, of which each token takes some")
    if not all(layer["shares_codes"] for layer in settings["layers"]):
        parts.append("other codes for queries than for keys or values")
    if parts:
        raise GraphError(f"The kernels for GPUs do not compute {' and '.join(parts)}.")
    return features
