"""Versions of the packages that determine numbers."""

from __future__ import annotations

import functools
import importlib.util
import platform
from importlib import metadata

_MODULES = (
    *("qdqbert", "torch", "transformers", "accelerate"),
    *("onnx", "onnx_ir", "onnxruntime", "openvino", "llvmlite"),
)


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that are installed, by name."""
    found = {module: version_of(module) for module in _MODULES}
    return {
        "python": platform.python_version(),
        **{name.replace("_", "-"): each for name, each in found.items() if each is not None},
    }


@functools.cache
def version_of(module: str) -> str | None:
    """Return the version of the package that a module comes from; `None` if there is none."""
    try:
        return metadata.version(module)
    except metadata.PackageNotFoundError:
        if importlib.util.find_spec(module) is None:
            return None
    # The package can have another name: the module onnxruntime is in onnxruntime-gpu, too. Finding
    # it takes a second, as the files of all installed packages are read.
    packages = metadata.packages_distributions().get(module, ())
    return metadata.version(packages[0]) if packages else None
