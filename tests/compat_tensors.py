"""Tensors for the tests of `qdqbert.compat`."""

import io
from typing import Any

import numpy as np
import torch
from torch import Tensor


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape) * 2).float()


def wide(x: Tensor) -> np.ndarray:
    """In float64, as NumPy has it."""
    return x.detach().cpu().double().numpy()


def saved_and_loaded(state: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)
