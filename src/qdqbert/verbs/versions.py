"""Versions of the packages that determine numbers."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib import metadata

_MODULES = (
    *("qdqbert", "torch", "transformers", "accelerate"),
    *("onnx", "onnx_ir", "onnxruntime", "openvino", "llvmlite"),
)


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that are installed, by name."""
    packages = metadata.packages_distributions()
    found = {module: version_of(module, packages) for module in _MODULES}
    return {
        "python": platform.python_version(),
        **{name.replace("_", "-"): each for name, each in found.items() if each is not None},
    }


def version_of(module: str, packages: Mapping[str, Sequence[str]]) -> str | None:
    """Return the version of the package that a module comes from; `None` if there is none.

    Args:
        module: Name of a module that can be imported.
        packages: Names of the installed packages by module, as `packages_distributions` of
            `importlib.metadata` returns them. The module `onnxruntime` is also in the package
            `onnxruntime-gpu`, for example.
    """
    try:
        return metadata.version(packages.get(module, [module])[0])
    except metadata.PackageNotFoundError:
        return None
