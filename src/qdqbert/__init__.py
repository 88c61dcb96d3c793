"""Quantize BERT-family models to INT8, measure the result, and run them fast."""

from __future__ import annotations

import os
from typing import Any

import lazy_loader

# onnxruntime 1.29 and later sends telemetry from the moment it is imported, unless this is set.
# Every module of this package imports this file first. A user's own setting wins.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

# Importing torch takes seconds, so that names are imported when they are first used.
_import, _, _names = lazy_loader.attach_stub(__name__, __file__)
__all__ = sorted(_names, key=str.casefold)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("qdqbert")
    if name not in __all__:
        raise AttributeError(f"module 'qdqbert' has no attribute {name!r}")
    try:
        return _import(name)
    except ModuleNotFoundError:
        from qdqbert.common.extras import require

        require(f"`qdqbert.{name}`", "quantize")
        raise


def __dir__() -> list[str]:
    return __all__
