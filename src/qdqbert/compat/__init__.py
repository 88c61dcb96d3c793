"""Run code that was written for pytorch-quantization with this package, on any device.

    import qdqbert.compat
    qdqbert.compat.install()

    from pytorch_quantization import nn as quant_nn          # qdqbert's

All global state of that toolkit is in this package: default descriptors of classes, class switches,
swapped names of `torch.nn`, and names in `sys.modules`.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable

from qdqbert.common.extras import require

PACKAGE = "pytorch_quantization"


def install(*, force: bool = False) -> bool:
    """Let `import pytorch_quantization`, and all of its submodules, resolve to this package.

    It can be called again.

    Args:
        force: Replace a real pytorch-quantization, if one is installed.

    Returns:
        Whether the names resolve to this package. `False` if a real one is installed and is kept.

    Raises:
        MissingExtraError: torch is not installed.
    """
    require("`qdqbert.compat`", "quantize", "torch")
    from qdqbert.compat import layout

    present = sys.modules.get(PACKAGE)
    if present is not None and getattr(present, "__qdqbert__", False):
        return True
    if not force and _is_installed():
        return False
    # Also a real one that is imported already.
    _remove(lambda module: True)
    modules = {relative: _module(relative, names) for relative, names in layout.NAMES.items()}
    for relative, module in modules.items():
        parent, _, last = relative.rpartition(".")
        # The function `utils.reduce_amax` has precedence over the module of that name.
        if relative and last not in layout.NAMES[parent]:
            setattr(modules[parent], last, module)
        for name, target in layout.MODULE_ATTRIBUTES.get(relative, {}).items():
            setattr(module, name, modules[target])
        sys.modules[module.__name__] = module
    return True


def uninstall() -> None:
    """Remove this package's names from `sys.modules`. A real pytorch-quantization stays."""
    _remove(lambda module: getattr(module, "__qdqbert__", False))


def _remove(wanted: Callable[[types.ModuleType], bool]) -> None:
    for name in [key for key in sys.modules if key.split(".")[0] == PACKAGE]:
        if wanted(sys.modules[name]):
            del sys.modules[name]


def _is_installed() -> bool:
    if PACKAGE in sys.modules:
        return True
    # The stub on PyPI has no such package, so that finding one means the real one.
    return importlib.util.find_spec(PACKAGE) is not None


def _module(relative: str, names: dict[str, object]) -> types.ModuleType:
    full = f"{PACKAGE}.{relative}" if relative else PACKAGE
    module = types.ModuleType(full, "Names of pytorch-quantization; the code is qdqbert's.")
    vars(module).update(names)
    public = [name for name in names if not name.startswith("_")]
    vars(module).update(
        __all__=public, __qdqbert__=True, __spec__=importlib.machinery.ModuleSpec(full, None)
    )
    module.__file__, module.__path__ = __file__, []
    return module
