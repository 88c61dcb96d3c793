"""Functions of pytorch-quantization's modules, under the path that code imports them from."""

from qdqbert.compat.nn.functional import ClipFunction, clip

__all__ = ["ClipFunction", "clip"]
