"""Versions of the packages that determine numbers."""

from __future__ import annotations

import platform
from importlib import metadata

_PACKAGES = (
    *("qdqbert", "torch", "transformers", "accelerate"),
    *("onnx", "onnx-ir", "onnxruntime", "openvino", "llvmlite"),
)


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that are installed, by name."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
