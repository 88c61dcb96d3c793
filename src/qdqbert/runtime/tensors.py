"""Results in the library that callers of sentence-transformers ask for: NumPy, or torch."""

from __future__ import annotations

from typing import Any

import numpy as np

from qdqbert.common.extras import require


def converted(
    found: Any, *, convert_to_numpy: bool, convert_to_tensor: bool, is_one: bool = False
) -> Any:
    """Return results as `encode` of sentence-transformers does.

    Args:
        found: An array of the results, or a list of arrays.
        convert_to_numpy: Whether arrays of NumPy are wanted, unless tensors are.
        convert_to_tensor: Whether one tensor of torch is wanted. If neither is, a list of tensors
            is returned.
        is_one: Whether the array is the result for a single input.

    Raises:
        MissingExtraError: Tensors are wanted, and torch is not installed.
    """
    if convert_to_numpy and not convert_to_tensor:
        return found
    require("A result as a tensor of torch", "quantize", "torch")
    import torch

    if isinstance(found, list):
        return [torch.from_numpy(np.asarray(each)) for each in found]
    tensor = torch.from_numpy(np.asarray(found))
    return tensor if convert_to_tensor or is_one else list(tensor)
