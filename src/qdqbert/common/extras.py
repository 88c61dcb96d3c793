"""Optional dependencies, and the commands that install them."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from qdqbert.common.errors import MissingExtraError

QUANTIZE = (
    "onnxscript",
    "safetensors",
    "torch",
    "transformers",
)
"""Modules of the extra `quantize`, which all but running a quantized model needs."""


def require_quantize(what: str) -> None:
    """Refuse a feature that needs the extra `quantize` if a part of the extra is missing.

    Args:
        what: Name of the feature, for the message.

    Raises:
        MissingExtraError: A module of the extra is not installed.
    """
    require(what, "quantize", QUANTIZE)


def require(what: str, extra: str, modules: Sequence[str]) -> None:
    """Refuse a feature that needs an extra if a part of the extra is missing.

    Args:
        what: Name of the feature, for the message.
        extra: Name of the extra.
        modules: Modules that it installs.

    Raises:
        MissingExtraError: A module of the extra is not installed.
    """
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f"{what} needs packages that are not installed: {', '.join(missing)}. Install them "
            f"with: pip install 'qdqbert[{extra}]'"
        )
