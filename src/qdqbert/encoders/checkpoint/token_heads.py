"""The layers of BGE-M3 that FlagEmbedding saves next to an embedder, in files of torch.

They read the states of tokens, as the embedding does: `sparse_linear.pt` gives each token a weight,
and `colbert_linear.pt` a vector.

Source: Chen et al. 2024, arXiv:2402.03216; inference/embedder/encoder_only/m3.py of FlagEmbedding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from qdqbert.common.errors import CheckpointError
from qdqbert.encoders.checkpoint.sentence_files import FindFile
from qdqbert.encoders.heads import token_vectors, token_weights
from qdqbert.encoders.model import Head, Linear
from qdqbert.encoders.weights import Weights

TokenHeadFile = Literal["colbert_linear.pt", "sparse_linear.pt"]
TOKEN_HEAD_FILES: tuple[TokenHeadFile, ...] = get_args(TokenHeadFile)
"""Files with a linear layer on the states of tokens, in the folder of the checkpoint."""


def token_head_files(find: FindFile) -> tuple[TokenHeadFile, ...]:
    """Return the files of such layers that a checkpoint has."""
    return tuple(each for each in TOKEN_HEAD_FILES if find(each) is not None)


def read_token_heads(files: Sequence[TokenHeadFile], find: FindFile) -> tuple[Head, ...]:
    """Return the heads with the layers of some files, in float.

    Raises:
        CheckpointError: A file is missing or damaged, or its layer has another shape.
    """
    heads: list[Head] = []
    for name in files:
        linear = _linear(name, find)
        heads += token_weights(linear) if _is_sparse(name) else token_vectors((linear, "normalize"))
    return tuple(heads)


def _is_sparse(name: TokenHeadFile) -> bool:
    return name == "sparse_linear.pt"


def _linear(name: TokenHeadFile, find: FindFile) -> Linear:
    path = find(name)
    if path is None:
        raise CheckpointError(f"{name} is missing. Download or copy the checkpoint again.")
    weights = Weights(path.parent, names=(name,))
    weight = weights.read("weight")
    outputs = len(weight) if weight.ndim == 2 else 0
    bias = weights.read("bias") if "bias" in weights else np.zeros(outputs, np.float32)
    if not outputs or bias.shape != (outputs,) or (_is_sparse(name) and outputs > 1):
        count = "1" if _is_sparse(name) else "dimensions"
        raise CheckpointError(
            f"{str(path)!r} has a weight {weight.shape} and a bias {bias.shape}; expected "
            f"({count}, hidden) and ({count},). Download or copy the checkpoint again."
        )
    return Linear(weight=weight, bias=bias)
