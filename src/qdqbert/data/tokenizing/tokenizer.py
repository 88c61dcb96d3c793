"""Tokenize with the library `tokenizers` alone.

The data of `quantize`, `train` and `evaluate` and the inputs of `load` are all tokenized here. The
ids are always equal to tokenizer.json's.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import pre_tokenizers

from qdqbert.common.errors import CheckpointError, UserInputError
from qdqbert.common.file_names import TOKENIZER, TOKENIZER_CONFIG
from qdqbert.common.input_names import POOLED
from qdqbert.common.json_files import Fields, damaged, read_json
from qdqbert.data.tokenizing.long_texts import Kept, StartTokenizer
from qdqbert.data.tokenizing.pair_template import PairTemplate
from qdqbert.data.tokenizing.tokenizer_files import (
    ROLES,
    Side,
    TokenizerFile,
    raising,
    read_tokenizer,
    token_text,
)

_LARGEST_ID = 2**31 - 1
# Tokenizers with other settings that are kept. Callers choose lengths and strides.
_VARIANTS = 16
# Tokens that lose their spaces in decoded texts.
_SPACED = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")

# Texts whose tokens differ from the first to the last one, as in sentence-transformers.
_FILLERS = ("0", "1 2 3 4")

Strategy = Literal["longest_first", "only_second"]
Texts = Sequence[str] | Sequence[tuple[str, str]] | Sequence[Sequence[str]]


class _Cut(NamedTuple):
    """Settings for cutting inputs; see `Tokenizer.cutting`."""

    max_length: int | None
    strategy: Strategy
    stride: int
    side: Side
    words: bool = False


class Tokenizer:
    """A tokenizer that cuts each input to a fixed length, or into windows.

    It can be used by several threads at once.

    Attributes:
        backend: The tokenizer of the library `tokenizers`.
        path: Its tokenizer.json.
        largest_id: The largest token id that it gives.
        max_length: Longest input in tokens, special tokens included; `None` for no limit.
        padding: Value that pads each kind of input, by the input's name.
        template: The text around the two texts of a pair, for models that read no text alone;
            `None` for none.
    """

    def __init__(
        self,
        file: TokenizerFile,
        config: Mapping[str, Any],
        path: Path,
        *,
        max_length: int | None,
        template: PairTemplate | None = None,
    ) -> None:
        """Take the tokenizer of a file.

        `config` is the content of tokenizer_config.json, of which the special tokens, the segment
        of padding and the side that is cut are read, and whether names of special tokens in a text
        are text.
        """
        own = {"truncation_side": file.truncation_side}
        self._config = {**own, **{name: each for name, each in config.items() if each is not None}}
        self.path = path
        self.backend, self.largest_id = file.tokenizer, file.largest_id
        self.backend.encode_special_tokens = bool(config.get("split_special_tokens"))
        self.max_length, self.template = max_length, template
        self._variant = functools.lru_cache(_VARIANTS)(self._with)
        self._start: StartTokenizer | None = None
        self._truncate(_Cut(max_length, "longest_first", 0, self.truncation_side))
        self.padding = {
            "input_ids": self.special_id("pad_token") or 0,
            "attention_mask": 0,
            POOLED: 0,
            "token_type_ids": int(config.get("pad_token_type_id") or 0),
        }

    @classmethod
    def from_folder(cls, folder: Path, *, max_length: int | None) -> Self:
        """Read the files of a folder."""
        file, config = _read(folder)
        template = PairTemplate.of_folder(folder)
        return cls(file, config, folder / TOKENIZER, max_length=max_length, template=template)

    def cutting(
        self,
        max_length: int | None,
        *,
        strategy: Strategy = "longest_first",
        stride: int = 0,
        side: Side | None = None,
        words: bool = False,
    ) -> Tokenizer:
        """Return this tokenizer with other settings. The last few of them are kept.

        Args:
            max_length: Longest input in tokens, special tokens included; `None` for no limit.
            strategy: Which text of a pair is cut.
            stride: Number of tokens that two neighboring windows of a long input share.
            side: The end of a text that is cut off. The folder's by default.
            words: Whether inputs are lists of words. Byte-level tokenizers then put a space before
                each word, as before the words of a text.

        Raises:
            UserInputError: The start of pairs would be cut off, and the model has a template.
        """
        if side == "left" and self.template is not None:
            raise UserInputError(
                "Texts cannot be cut on the left: the model puts each pair into a chat template, "
                "whose start would be lost. Leave the option out, and the document's end is cut."
            )
        cut = _Cut(max_length, strategy, stride, side or self.truncation_side, words)
        return self._variant(cut)

    def _with(self, cut: _Cut) -> Tokenizer:
        made = copy.copy(self)
        made.backend = tokenizers.Tokenizer.from_str(self.backend.to_str())
        # It is no part of the text.
        made.backend.encode_special_tokens = self.backend.encode_special_tokens
        made.max_length = cut.max_length
        made._truncate(cut)
        if cut.words and isinstance(made.backend.pre_tokenizer, pre_tokenizers.ByteLevel):
            made.backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        return made

    def _truncate(self, cut: _Cut) -> None:
        self._start, self._ends = None, dict[str | None, list[int]]()
        if cut.max_length is None:
            self.backend.no_truncation()
            return
        self.backend.enable_truncation(
            max_length=cut.max_length, stride=cut.stride, strategy=cut.strategy, direction=cut.side
        )
        if cut.strategy == "longest_first" and not cut.stride:
            added = self.backend.get_added_tokens_decoder().values()
            flag = "lstrip" if cut.side == "right" else "rstrip"
            self._start = StartTokenizer(
                self.encode_batch if self.template is None else self._encode_plain,
                max_length=cut.max_length,
                side=cut.side,
                strips=[each.content for each in added if getattr(each, flag)],
            )

    @property
    def truncation_side(self) -> Side:
        """The end of a text that is cut: "right" or "left"."""
        return "left" if self._config.get("truncation_side") == "left" else "right"

    def special_id(self, name: str) -> int | None:
        """Return the id of a special token, `mask_token` and so on; `None` if there is none."""
        token = self.special_token(name)
        found: int | None = None if token is None else self.backend.token_to_id(token)
        return found

    @property
    def special_ids(self) -> NDArray[np.int64]:
        """The ids of all special tokens, in order. Shape `(tokens,)`."""
        added = self.backend.get_added_tokens_decoder()
        named = map(self.special_id, ROLES)
        found = {index for index, token in added.items() if token.special}
        return np.array(sorted(found.union(each for each in named if each is not None)), np.int64)

    def special_token(self, name: str) -> str | None:
        """Return the text of a special token, `mask_token` and so on; `None` if there is none."""
        return token_text(self._config.get(name))

    def encode(self, text: Any) -> tokenizers.Encoding:
        """Tokenize one text or pair; see `encode_batch`."""
        # `encode` of the library would hold the interpreter's lock, however long the text is.
        return self.encode_batch([text])[0]

    def encode_start(self, texts: Texts, *, prompt: str | None = None) -> list[Kept]:
        """Tokenize and cut texts or pairs, at a cost that does not grow with their length.

        It is their end if the tokenizer cuts on the left. With a template, only the second text of
        a pair is cut, and `prompt` is the prompt in it: `None` for its default one.

        Raises:
            UserInputError: There is a template, and it takes no text alone or no prompt.
        """
        if self.template is not None:
            return self._of_template(self.template, texts, prompt)
        if self._start is not None:
            with raising(self.path):
                return self._start.encode(texts)
        return [Kept(each.ids, each.type_ids, truncated=False) for each in self.encode_batch(texts)]

    def encode_each(self, texts: Sequence[str], seconds: Sequence[str]) -> list[list[Kept]]:
        """Tokenize each text in a pair with each of some second texts, which are never cut.

        Returns:
            For each text, the pairs with all second texts.

        Raises:
            CheckpointError: The tokenizer makes no pairs.
            UserInputError: A second text leaves no room for a text.
        """
        assert self._start is not None, "the tokenizer of a model has a limit"
        with raising(self.path):
            found = None if self.template else self._start.encode_each(texts, seconds)
        if found is None:
            raise CheckpointError(
                f"{str(self.path)!r} makes no pairs of texts, which labels of a call need."
            )
        return found

    def encode_around(
        self, texts: Sequence[str], before: Sequence[int], after: Sequence[int]
    ) -> list[Kept]:
        """Tokenize texts between other tokens, which are never cut.

        Raises:
            CheckpointError: The tokenizer has no tokens for texts.
            UserInputError: The other tokens leave no room for a text.
        """
        assert self._start is not None, "the tokenizer of a model has a limit"
        with raising(self.path):
            found = self._start.encode_around(texts, before, after)
        if found is None:
            raise CheckpointError(f"{str(self.path)!r} has no tokens for letters and digits.")
        return found

    def _of_template(self, template: PairTemplate, pairs: Texts, prompt: str | None) -> list[Kept]:
        """Return the tokens of pairs in a template, as sentence-transformers makes them."""
        texts = [template.render(each, prompt) for each in pairs]
        if self._start is None:
            found = self.encode_batch(texts, special=False)
            return [Kept(each.ids, each.type_ids, truncated=False) for each in found]
        with raising(self.path):
            kept = self._start.encode(texts)
            if any(each.truncated for each in kept):
                end = self._end_of(template, prompt)
                kept = [_ended(each, end) if each.truncated else each for each in kept]
        return kept

    def _end_of(self, template: PairTemplate, prompt: str | None) -> list[int]:
        """Return the tokens after the second text of a pair in a template.

        They are those that two pairs have in common at their ends.
        """
        if prompt not in self._ends:
            whole = self.cutting(None)
            texts = [template.render((each, each), prompt) for each in _FILLERS]
            first, second = (each.ids for each in whole.encode_batch(texts, special=False))
            pairs = zip(reversed(first), reversed(second), strict=False)
            equal = itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)
            end = [token for token, _ in equal][::-1]
            if len(self._ends) >= _VARIANTS:
                self._ends.clear()
            self._ends[prompt] = end
        return self._ends[prompt]

    def _encode_plain(self, texts: Any, *, special: bool) -> list[tokenizers.Encoding]:
        """Tokenize texts that have their special tokens."""
        del special
        return self.encode_batch(texts, special=False)

    def keep_ids(self, ids: Sequence[int]) -> Kept:
        """Cut token ids that this tokenizer made, with special tokens.

        Raises:
            UserInputError: They are another tokenizer's.
        """
        assert self._start is not None, "the tokenizer of a model has a limit"
        kept = self._start.keep(ids)
        largest = max(ids, default=-1)
        is_known = 0 <= largest <= _LARGEST_ID and self.backend.id_to_token(largest) is not None
        if kept is None or not is_known or min(ids) < 0:
            raise UserInputError(
                f"Token ids must come from the model's own tokenizer, with its special tokens; "
                f"got {str(list(ids[:8])).rstrip(']')}{', ...' * (len(ids) > 8)}]. Send texts. "
                "LangChain's OpenAIEmbeddings does so with `check_embedding_ctx_length=False`.",
                argument="input",
            )
        return kept

    def encode_batch(
        self, texts: Texts, *, offsets: bool = False, words: bool = False, special: bool = True
    ) -> list[tokenizers.Encoding]:
        """Tokenize texts on all cores.

        Args:
            texts: Texts, pairs of texts as tuples, or lists of words.
            offsets: Whether positions of tokens in the text are needed. Without them it is faster.
            words: Whether each item is a list of words.
            special: Whether special tokens are added.

        Returns:
            One encoding for each text. What did not fit is in its `overflowing`.
        """
        with raising(self.path):
            # Without a post-processor, the fast method gives both texts of a pair the same segment.
            if offsets or words or self.backend.post_processor is None:
                return self.backend.encode_batch(
                    list(texts), is_pretokenized=words, add_special_tokens=special
                )
            return self.backend.encode_batch_fast(list(texts), add_special_tokens=special)

    def tokens(self, ids: Sequence[int]) -> list[str | None]:
        """Return the tokens of ids, as in the vocabulary; `None` for an unknown id."""
        return [self.backend.id_to_token(index) for index in ids]

    def decode(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
        """Return the text of token ids."""
        with raising(self.path):
            text: str = self.backend.decode(list(ids), skip_special_tokens=skip_special)
        is_bpe = type(self.backend.model).__name__ == "BPE"
        if self._config.get("clean_up_tokenization_spaces") and not is_bpe:
            # As transformers does.
            for spaced in _SPACED:
                text = text.replace(spaced, spaced.strip())
        return text

    def join(self, tokens: Sequence[str]) -> str:
        """Return the text of tokens, given as in the vocabulary."""
        decoder = self.backend.decoder
        with raising(self.path):
            return " ".join(tokens) if decoder is None else str(decoder.decode(list(tokens)))


def _ended(kept: Kept, end: Sequence[int]) -> Kept:
    """Return tokens that were cut with those of an end in place of their last ones."""
    count = min(len(end), len(kept.ids))
    first = kept.ids[: len(kept.ids) - count]
    return kept._replace(ids=[*first, *end[len(end) - count :]])


def _read(folder: Path) -> tuple[TokenizerFile, dict[str, Any]]:
    path = folder / TOKENIZER
    if not path.is_file():
        raise CheckpointError(
            f"{str(folder)!r} has no {TOKENIZER}, which is needed to tokenize without "
            "transformers. Quantize the model again with this version."
        )
    return read_tokenizer(path), _read_config(folder / TOKENIZER_CONFIG)


def _read_config(path: Path) -> dict[str, Any]:
    """Return the settings of a tokenizer that are read here."""
    if not path.is_file():
        return {}
    return check_settings(read_json(path), path)


def check_settings(content: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the content of a tokenizer_config.json after a check of the settings read here."""
    fields = Fields(content, lambda reason: damaged(path, reason))
    for name in content:
        # Older files store a token with its options.
        if name in ROLES and fields.has(name):
            token = fields.get(name)
            fields.child(name).text("content") if isinstance(token, dict) else fields.text(name)
    if fields.has("pad_token_type_id"):
        fields.integer("pad_token_type_id", 0)
    if fields.has("truncation_side"):
        fields.choice("truncation_side", ("left", "right"))
    for name in ("clean_up_tokenization_spaces", "split_special_tokens"):
        if fields.has(name):
            fields.truth(name)
    return content
