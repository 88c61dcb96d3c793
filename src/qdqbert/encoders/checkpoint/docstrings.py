"""Import transformers' models where Python removes docstrings."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from transformers import utils

_COMPLETE = "auto_docstring"


@contextlib.contextmanager
def importing_models() -> Iterator[None]:
    """Import models of transformers, which completes their docstrings when it defines them.

    With `python -OO` there are none, and completing them fails. They are left alone then.
    """
    if sys.flags.optimize < 2:
        yield
        return
    complete = getattr(utils, _COMPLETE)
    setattr(utils, _COMPLETE, _unchanged)
    try:
        yield
    finally:
        setattr(utils, _COMPLETE, complete)


def _unchanged(documented: Any = None, **options: Any) -> Any:
    """Decorate nothing, with and without options."""
    return documented or (lambda documented: documented)
