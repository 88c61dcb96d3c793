"""Tokenize with the library `tokenizers` alone, from the files of a folder.

`quantize` writes `tokenizer.json`, with which this tokenizer makes the same ids as transformers'.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import tokenizers

from qdqbert.errors import CheckpointError

_TOKENIZER = "tokenizer.json"
_CONFIG = "tokenizer_config.json"

Strategy = Literal["longest_first", "only_second"]
Texts = Sequence[str] | Sequence[tuple[str, str]] | Sequence[Sequence[str]]


class FolderTokenizer:
    """A tokenizer that cuts each input to a fixed length, or into windows.

    It can be used by several threads at once.

    Attributes:
        backend: The tokenizer of the library `tokenizers`.
        max_length: Longest input in tokens, special tokens included; `None` for no limit.
        padding: Value that pads each kind of input, by the input's name.
    """

    def __init__(
        self,
        folder: Path,
        *,
        max_length: int | None,
        strategy: Strategy = "longest_first",
        stride: int = 0,
    ) -> None:
        """Read the files of a folder.

        Args:
            folder: A folder with `tokenizer.json`, as `quantize` writes it.
            max_length: Longest input in tokens, special tokens included; `None` for no limit.
            strategy: Which text of a pair is cut, as in transformers.
            stride: Number of tokens that two neighboring windows of a long input share.

        Raises:
            CheckpointError: A file is missing or cannot be read.
        """
        self.backend, config = _read(folder)
        self.max_length = max_length
        self._config = config
        self.backend.no_padding()
        if max_length is None:
            self.backend.no_truncation()
        else:
            self.backend.enable_truncation(
                max_length=max_length,
                stride=stride,
                strategy=strategy,
                direction=config.get("truncation_side", "right"),
            )
        self.padding = {
            "input_ids": self.special_id("pad_token") or 0,
            "attention_mask": 0,
            "token_type_ids": int(config.get("pad_token_type_id") or 0),
        }

    def special_id(self, name: str) -> int | None:
        """Return the id of a special token, `mask_token` and so on; `None` if there is none."""
        token = self.special_token(name)
        found: int | None = None if token is None else self.backend.token_to_id(token)
        return found

    def special_token(self, name: str) -> str | None:
        """Return the text of a special token, `mask_token` and so on; `None` if there is none."""
        token = self._config.get(name)
        # Older files store the token with its options.
        text = token.get("content") if isinstance(token, dict) else token
        return None if text is None else str(text)

    def encode(self, text: Any) -> tokenizers.Encoding:
        """Tokenize one text or pair; see `encode_batch`."""
        return self.backend.encode(*text) if isinstance(text, tuple) else self.backend.encode(text)

    def encode_batch(
        self, texts: Texts, *, offsets: bool = False, words: bool = False
    ) -> list[tokenizers.Encoding]:
        """Tokenize texts, with special tokens, on all cores.

        Args:
            texts: Texts, pairs of texts as tuples, or lists of words.
            offsets: Whether positions of tokens in the text are needed. Without them it is faster.
            words: Whether each item is a list of words.

        Returns:
            One encoding for each text. What did not fit is in its `overflowing`.
        """
        if offsets or words:
            return self.backend.encode_batch(list(texts), is_pretokenized=words)
        return self.backend.encode_batch_fast(list(texts))


def _read(folder: Path) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    path = folder / _TOKENIZER
    if not path.is_file():
        raise CheckpointError(
            f"{str(folder)!r} has no {_TOKENIZER}, which is needed to tokenize without "
            "transformers. Quantize the model again with this version."
        )
    try:
        # `Tokenizer.from_file` reports a broken file with a position only.
        backend = tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
        config = _read_config(folder / _CONFIG)
    except Exception as error:  # tokenizers raises no class of its own
        reason = re.sub(r"\s+", " ", str(error))
        raise CheckpointError(f"The tokenizer in {str(folder)!r} cannot be read: {reason}.") from (
            error
        )
    return backend, config


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} has to be a JSON object")
    return content
