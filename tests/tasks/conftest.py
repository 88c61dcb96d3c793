from __future__ import annotations

from typing import Any

import pytest

from qdqbert.encoders.checkpoint.tokenizer import load_tokenizer


@pytest.fixture(scope="session")
def tokenizer(checkpoints) -> Any:
    """The tokenizer of BERT, of transformers."""
    return load_tokenizer(str(checkpoints("bert"))).tokenizer
