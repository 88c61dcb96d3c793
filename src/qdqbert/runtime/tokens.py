"""Jobs that a tokenizer alone does: texts to tokens, and token ids to texts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from qdqbert.common.errors import UserInputError
from qdqbert.common.json_files import shown
from qdqbert.data.tokenizing.tokenizer import Tokenizer
from qdqbert.runtime.batches import Results
from qdqbert.runtime.scheduler import EncodedItem

_LARGEST_ID = 2**32 - 1


@dataclasses.dataclass(frozen=True, slots=True)
class Token:
    """A token of a text.

    Attributes:
        id: Its id.
        text: Its part of the text; for a special token, the token.
        special: Whether it is a special token that was added to the text.
        start: Position of its first character in the text; `None` for a special token.
        stop: Position after its last character.
    """

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class _RunsNothing:
    """A job of a tokenizer alone, whose items have no features."""

    tokenizer: Tokenizer

    def split(self, _: Results) -> Sequence[Any]:
        """Return nothing."""
        return []


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tokenize(_RunsNothing):
    """The job of `Model.tokenizing_job`, for a tokenizer that does not cut texts; see `Job`."""

    add_special_tokens: bool

    def encode(self, items: Sequence[str]) -> list[EncodedItem]:
        """Return items without features: there is nothing to run."""
        return [EncodedItem(features=()) for _ in items]

    def answer(self, item: str, _: EncodedItem, __: Sequence[Any]) -> list[Token]:
        """Return the tokens of a text."""
        (encoding,) = self.tokenizer.encode_batch(
            [item], offsets=True, special=self.add_special_tokens
        )
        return [
            Token(number, token, True, None, None)
            if special
            else Token(number, item[start:stop], False, start, stop)
            for number, token, special, (start, stop) in zip(
                encoding.ids,
                encoding.tokens,
                encoding.special_tokens_mask,
                encoding.offsets,
                strict=True,
            )
        ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decode(_RunsNothing):
    """The job of `Model.decoding_job`; see `Job`.

    Attributes:
        skip_special_tokens: Whether special tokens are left out of texts.
    """

    skip_special_tokens: bool

    def encode(self, items: Sequence[Sequence[int]]) -> list[EncodedItem]:
        """Check token ids."""
        return [EncodedItem(features=(), error=self._error(ids)) for ids in items]

    def answer(self, item: Sequence[int], _: EncodedItem, __: Sequence[Any]) -> str:
        """Return the text of token ids."""
        return self.tokenizer.decode(item, skip_special=self.skip_special_tokens)

    def _error(self, ids: Sequence[int]) -> UserInputError | None:
        """Return the error about an id that the tokenizer does not have, if there is one."""
        known = self.tokenizer.backend.id_to_token
        for each in ids:
            if not 0 <= each <= _LARGEST_ID or known(each) is None:
                return UserInputError(
                    f"`ids`: the tokenizer of the model has no token {shown(each)}. Send ids "
                    "that it made.",
                    argument="ids",
                )
        return None
