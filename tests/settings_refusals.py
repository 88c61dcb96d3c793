"""Compare messages about settings of checkpoints with their names and values."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from qdqbert.common.errors import CheckpointError


def check_refusal(read: Callable[..., object], name: str, value: Any) -> None:
    """Assert that a value of a setting is refused, with the name and the value in the message."""
    with pytest.raises(CheckpointError) as error:
        read(**{name: value})
    assert re.search(rf"['`]{name}\b", str(error.value))
    assert str(value)[:20] in str(error.value)
