"""Quantized modules of pytorch-quantization, under the path that code imports them from."""

from qdqbert.compat.nn import *  # noqa: F403
from qdqbert.compat.nn import __all__ as __all__
