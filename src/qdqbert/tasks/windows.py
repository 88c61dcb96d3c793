"""Questions and their contexts, tokenized in windows: for evaluation, training and `load` alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tokenizers
from numpy.typing import NDArray

from qdqbert.common.errors import UserInputError
from qdqbert.data.rows.lines import counted
from qdqbert.data.tokenizing.encoding import feature_of
from qdqbert.data.tokenizing.tokenizer import Tokenizer


class Asked(NamedTuple):
    """A question and its context, tokenized.

    Attributes:
        windows: One encoding for each window of the context; none if there is an error.
        is_cut: Whether the question lost its end.
        error: Why the question cannot be asked.
    """

    windows: Sequence[tokenizers.Encoding]
    is_cut: bool
    error: UserInputError | None = None

    def features(self, input_names: Sequence[str]) -> tuple[dict[str, NDArray[np.int32]], ...]:
        """Return the model inputs of each window."""
        return tuple(feature_of(each, input_names) for each in self.windows)

    @property
    def offsets(self) -> list[NDArray[np.int32]]:
        """The characters of the context that each token of each window stands for."""
        return [context_offsets(each) for each in self.windows]


class Windows(NamedTuple):
    """How questions and contexts are cut.

    Attributes:
        tokenizer: Tokenizer of the model.
        max_length: Longest window in tokens, the question and special tokens included.
        doc_stride: Tokens that neighboring windows share.
        max_question_length: Longest question in tokens.
        limit: The parameter that `max_length` is given by, for messages.
    """

    tokenizer: Tokenizer
    max_length: int
    doc_stride: int
    max_question_length: int = 64
    limit: str = "max_length"

    def encode(self, pairs: Sequence[tuple[str, str]]) -> list[Asked]:
        """Tokenize questions, each with its context."""
        # The usual scripts strip them: some of SQuAD's questions begin with many spaces.
        questions = [question.lstrip() for question, _ in pairs]
        alone = self.tokenizer.cutting(None).encode_batch(questions, offsets=True, special=False)
        longest = self.max_question_length
        errors = [self.room_error(min(len(each.ids), longest)) for each in alone]
        texts = [
            (question if len(own.ids) <= longest else question[: own.offsets[longest - 1][1]], text)
            for question, own, (_, text) in zip(questions, alone, pairs, strict=True)
        ]
        fitting = [text for text, error in zip(texts, errors, strict=True) if error is None]
        made = iter(self._cut(fitting))
        asked = []
        for own, error in zip(alone, errors, strict=True):
            windows: Sequence[tokenizers.Encoding] = ()
            if error is None:
                first = next(made)
                windows = (first, *first.overflowing)
            asked.append(Asked(windows=windows, is_cut=len(own.ids) > longest, error=error))
        return asked

    def _cut(self, pairs: Sequence[tuple[str, str]]) -> list[tokenizers.Encoding]:
        if not pairs:
            return []
        cutting = self.tokenizer.cutting(
            self.max_length, strategy="only_second", stride=self.doc_stride
        )
        return cutting.encode_batch(pairs, offsets=True)

    def room_error(self, tokens: int) -> UserInputError | None:
        """Return why a question of `tokens` tokens cannot be asked; `None` if it can.

        Tokenizers panic on windows that share all of their tokens.
        """
        special = self.tokenizer.backend.num_special_tokens_to_add(is_pair=True)
        room = self.max_length - special - tokens
        if room > self.doc_stride:
            return None
        return UserInputError(
            f"`{self.limit}={self.max_length}` leaves {counted(max(room, 0), 'token')} for the "
            f"context next to {tokens} of the question and {special} special ones, but "
            f"`doc_stride={self.doc_stride}`, the number of tokens that windows share, must be "
            f"smaller than that. Raise `{self.limit}`, lower `doc_stride`, or shorten the "
            "question.",
            argument="doc_stride",
        )


def usual_stride(setting: int, max_length: int) -> int:
    """Return the tokens that windows share: half a window at most, as in transformers' pipeline."""
    return min(setting, max_length // 2)


def context_offsets(window: tokenizers.Encoding) -> NDArray[np.int32]:
    """Return the characters of the context that each token stands for.

    Returns:
        The position of the first character and of the one after the last; -1 for special tokens
        and tokens of the question. Shape `(tokens, 2)`.
    """
    offsets = np.array(window.offsets, dtype=np.int32)
    offsets[[sequence != 1 for sequence in window.sequence_ids]] = -1
    return offsets
