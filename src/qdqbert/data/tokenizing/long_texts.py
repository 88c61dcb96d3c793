"""Tokenize the start or the end of long texts, at the cost of the tokens that are kept.

    2,000,000 characters ─► the first 4,096 ─► their tokens ─► the first 254 ─► special tokens added

Tokens near the new end of a text can differ from the whole text's, in its last word at least. So a
part of a text counts only if it has many more tokens than are kept, and is lengthened otherwise.
A token that takes all blanks next to it, as RoBERTa's <mask> does, is in the part with the blanks.
The kept ids are then equal to the whole text's. The exceptions are texts whose tokens are longer
than 1,024 characters on average, which are cut there, and pairs of two texts that are too long to
count their tokens: an estimate decides which one is longer, and gets the odd token.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, Self

import tokenizers

from qdqbert.common.errors import UserInputError
from qdqbert.data.tokenizing.chunks import in_chunks
from qdqbert.data.tokenizing.tokenizer_files import Side


class Encode(Protocol):
    """Tokenizes texts, and pairs of texts."""

    def __call__(self, texts: Any, *, special: bool) -> list[tokenizers.Encoding]:
        """Return the tokens of each item, with special ones if requested."""


# Characters for each token of the limit: of the first part, and of the longest one. English has
# four or five.
_FIRST, _LONGEST, _GROWTH = 16, 1024, 4
# The same of the longest text whose tokens are counted, to know which text of a pair has more.
_COUNTED = 256
# Parts have this limit at least, so that they are longer than words.
_LEAST_LIMIT = 128
# Tokens more than the limit that a part needs. WordPiece makes at most 100 of a word, and other
# tokenizers fewer.
_MARGIN = 128
# Characters near the end of a part in which the space is searched at which it is cut.
_NEAR = 1024
# Long texts whose tokens are kept for the next call.
_RECENT = 2
_PROBES = ("a", "A", "0", ".")


class Kept(NamedTuple):
    """The kept tokens of a text or pair.

    Attributes:
        ids: Its token ids, with special ones.
        type_ids: The segment of each token.
        truncated: Whether something was cut off.
    """

    ids: Sequence[int]
    type_ids: Sequence[int]
    truncated: bool


class _Part(NamedTuple):
    """The tokens of a text that may be kept.

    Attributes:
        ids: Their ids, without special tokens.
        tokens: Number of tokens of the whole text; about that if they were not counted.
        is_whole: Whether the whole text was tokenized.
        is_counted: Whether its tokens were counted.
    """

    ids: Sequence[int]
    tokens: float
    is_whole: bool
    is_counted: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Template:
    """The special tokens around texts.

    Attributes:
        special: Ids and segments of the special tokens before each text, and after the last one.
        segments: The segment of each text.
    """

    special: Sequence[tuple[Sequence[int], Sequence[int]]]
    segments: Sequence[int]

    @classmethod
    def of(cls, encode: Encode, texts: int) -> Self | None:
        """Read the template of one text or a pair; `None` if the tokenizer has no token for it."""
        for probe in _PROBES:
            (found,) = encode([probe if texts == 1 else (probe,) * texts], special=True)
            owners = found.sequence_ids
            if found.overflowing or set(range(texts)) - set(owners):
                continue
            special, segments, start = [], [], 0
            for text in range(texts):
                first = owners.index(text)
                special.append((found.ids[start:first], found.type_ids[start:first]))
                segments.append(found.type_ids[first])
                start = first + owners.count(text)
            special.append((found.ids[start:], found.type_ids[start:]))
            return cls(special=special, segments=segments)
        return None

    @property
    def count(self) -> int:
        """Number of special tokens."""
        return sum(len(ids) for ids, _ in self.special)

    def fill(self, texts: Sequence[Sequence[int]], *, truncated: bool) -> Kept:
        """Return the tokens of texts with the special tokens around them."""
        ids, type_ids = list(self.special[0][0]), list(self.special[0][1])
        for own, segment, (after, types) in zip(
            texts, self.segments, self.special[1:], strict=True
        ):
            ids += [*own, *after]
            type_ids += [*[segment] * len(own), *types]
        return Kept(ids, type_ids, truncated)


class StartTokenizer:
    """Tokenizes the kept part of texts and pairs, by the strategy "longest_first"."""

    def __init__(
        self, encode: Encode, *, max_length: int, side: Side, strips: Sequence[str] = ()
    ) -> None:
        """Keep the settings.

        `encode` truncates to `max_length` without a stride. `side` is the end of a text that is cut
        off. `strips` are tokens that take the blanks between them and the rest of the text.
        """
        self._encode = encode
        self._max_length = max_length
        self._side: Side = side
        self._strips = strips
        self._known: dict[int, Template | None] = {}
        self._recent: dict[str, _Part] = {}

    def encode(self, items: Sequence[Any]) -> list[Kept]:
        """Return the kept tokens of texts, and of pairs of texts as tuples or lists."""
        texts = [(item,) if isinstance(item, str) else tuple(item) for item in items]
        are_long = [self._is_long(each) for each in texts]
        short = [item for item, is_long in zip(items, are_long, strict=True) if not is_long]
        made = (
            _kept(each) for some in in_chunks(short) for each in self._encode(some, special=True)
        )
        # A query is in many pairs, and in several batches of a request.
        known = dict(self._recent)
        found = [
            self._long(each, known) if is_long else next(made)
            for each, is_long in zip(texts, are_long, strict=True)
        ]
        if any(are_long):
            longest = sorted(known, key=len)[-_RECENT:]
            self._recent = {text: known[text] for text in longest}
        return found

    def encode_each(self, texts: Sequence[str], seconds: Sequence[str]) -> list[list[Kept]] | None:
        """Return the kept tokens of each text in a pair with each second text.

        Second texts are never cut. Each text is tokenized once, however many there are.

        Returns:
            For each text, a pair with each second text; `None` if the tokenizer has no tokens for
            pairs.

        Raises:
            UserInputError: A second text leaves no room for a token of a text.
        """
        template = self._template(2)
        if template is None:
            return None
        ends = [self._ids(each) for each in seconds]
        rooms = [self._max_length - template.count - len(end) for end in ends]
        for second, room in zip(seconds, rooms, strict=True):
            if room < 1:
                raise UserInputError(
                    f"The label or sentence {second!r:.80} has as many tokens as the model reads, "
                    f"{self._max_length} with the special ones. Pass a shorter one."
                )
        found = []
        for part in self._parts(texts):
            pairs = []
            for end, room in zip(ends, rooms, strict=True):
                own, is_cut = self._fitting(part, room)
                pairs.append(template.fill([own, end], truncated=is_cut))
            found.append(pairs)
        return found

    def encode_around(
        self, texts: Sequence[str], before: Sequence[int], after: Sequence[int]
    ) -> list[Kept] | None:
        """Return the kept tokens of each text between others, which are never cut.

        Returns:
            The tokens; `None` if the tokenizer has no tokens for texts.

        Raises:
            UserInputError: The others leave no room for a token of a text.
        """
        template = self._template(1)
        if template is None:
            return None
        room = self._max_length - template.count - len(before) - len(after)
        if room < 1:
            raise UserInputError(
                f"The labels have {len(before) + len(after)} tokens, and the model reads "
                f"{self._max_length} with the text. Pass fewer or shorter labels."
            )
        found = []
        for part in self._parts(texts):
            own, is_cut = self._fitting(part, room)
            found.append(template.fill([[*before, *own, *after]], truncated=is_cut))
        return found

    def _fitting(self, part: _Part, room: int) -> tuple[Sequence[int], bool]:
        """Return the tokens of a text that have room, and whether others are cut off."""
        ids = part.ids
        own = ids[:room] if self._side == "right" else ids[max(0, len(ids) - room) :]
        return own, len(own) < part.tokens or not part.is_whole

    def _parts(self, texts: Sequence[str]) -> list[_Part]:
        """Return the tokens of texts that may be kept, without special ones."""
        short = [each for each in texts if not self._is_long([each])]
        made = iter(self._encode(short, special=False)) if short else iter(())
        return [
            self._part(text) if self._is_long([text]) else _whole(next(made), self._side)
            for text in texts
        ]

    def keep(self, ids: Sequence[int]) -> Kept | None:
        """Return the kept ids of a text; `None` if they lack the special tokens."""
        template = self._template(1)
        before, after = ([*each[0]] for each in template.special) if template else ([], [])
        end = len(ids) - len(after)
        if not ids or end < len(before) or [*ids[: len(before)]] != before or [*ids[end:]] != after:
            return None
        own, room = ids[len(before) : end], self._max_length - len(before) - len(after)
        kept = own[:room] if self._side == "right" else own[len(own) - min(room, len(own)) :]
        is_cut = len(kept) < len(own)
        if template is None:
            return Kept(kept, [0] * len(kept), is_cut)
        return template.fill([kept], truncated=is_cut)

    def _is_long(self, texts: Sequence[str]) -> bool:
        return (
            sum(map(len, texts)) > _FIRST * self._max_length
            and self._template(len(texts)) is not None
        )

    def _template(self, texts: int) -> Template | None:
        if texts not in self._known:
            self._known[texts] = Template.of(self._encode, texts)
        return self._known[texts]

    def _long(self, texts: Sequence[str], known: dict[str, _Part]) -> Kept:
        template = self._template(len(texts))
        assert template is not None, "checked before"
        room = self._max_length - template.count
        for text in texts:
            if text not in known:
                known[text] = self._part(text)
        # The longer text of a pair gets the odd token.
        if len(texts) > 1 and room % 2 and min(known[text].tokens for text in texts) > room // 2:
            for text in texts:
                known[text] = self._counted(text, known[text])
        return self._joined([known[text] for text in texts], template, room)

    def _counted(self, text: str, part: _Part) -> _Part:
        """Return a part with the number of tokens of the whole text, unless it is very long."""
        if part.is_counted or len(text) > _COUNTED * max(self._max_length, _LEAST_LIMIT):
            return part
        return part._replace(tokens=len(self._ids(text)), is_counted=True)

    def _part(self, text: str) -> _Part:
        limit = max(self._max_length, _LEAST_LIMIT)
        size, enough = _FIRST * limit, self._max_length + _MARGIN
        while True:
            part = text if len(text) <= size else _cut(text, size, self._side, self._strips)
            ids = self._ids(part)
            if part is text or len(ids) >= enough or size >= _LONGEST * limit:
                break
            size *= _GROWTH
        kept = ids[: self._max_length] if self._side == "right" else ids[-self._max_length :]
        tokens = len(ids) * len(text) / max(len(part), 1)
        return _Part(kept, tokens, part is text, part is text)

    def _ids(self, text: str) -> list[int]:
        (encoding,) = self._encode([text], special=False)
        return _all_ids(encoding, self._side)

    def _joined(self, parts: Sequence[_Part], template: Template, room: int) -> Kept:
        counts = _longest_first([each.tokens for each in parts], room)
        ids = [
            each.ids[:count] if self._side == "right" else each.ids[len(each.ids) - count :]
            for each, count in zip(parts, counts, strict=True)
        ]
        truncated = any(
            not each.is_whole or count < each.tokens
            for each, count in zip(parts, counts, strict=True)
        )
        return template.fill(ids, truncated=truncated)


def _all_ids(encoding: tokenizers.Encoding, side: Side) -> list[int]:
    """Return the ids of a text, of all windows that it was divided into."""
    windows = [encoding, *encoding.overflowing]
    if side == "left":
        windows.reverse()
    return [token for window in windows for token in window.ids]


def _whole(encoding: tokenizers.Encoding, side: Side) -> _Part:
    """Return the tokens of a text that was tokenized whole."""
    ids = _all_ids(encoding, side)
    return _Part(ids, len(ids), is_whole=True, is_counted=True)


def _kept(encoding: tokenizers.Encoding) -> Kept:
    return Kept(encoding.ids, encoding.type_ids, bool(encoding.overflowing))


def _longest_first(tokens: Sequence[float], room: int) -> list[int]:
    """Return the number of tokens that are kept of each text, as the library does.

    Source: tokenizers, `utils/truncation.rs`.
    """
    if len(tokens) == 1 or sum(tokens) <= room:
        return [round(min(each, room)) for each in tokens]
    shorter = min(tokens)
    few = round(shorter) if shorter <= room // 2 else room // 2
    counts = [few, room - few]
    return counts if tokens[0] <= tokens[1] else counts[::-1]


def _cut(text: str, size: int, side: Side, strips: Sequence[str]) -> str:
    """Return about `size` characters of the start or end of a text, cut before a space if any.

    If it is cut in many blanks that one of `strips` takes, this token is in the part.
    """
    if side == "right":
        place = next(filter(_is_before_space(text), range(size, size - _NEAR, -1)), size)
        last = len(text) - len(text[place:].lstrip())
        for each in strips:
            start = text.find(each, max(place - len(each) + 1, 0), last + len(each))
            place = max(place, start + len(each) if start >= 0 else 0)
        return text[:place]
    start = len(text) - size
    place = next(filter(_is_before_space(text), range(start, start + _NEAR)), start)
    first = len(text[:place].rstrip())
    for each in strips:
        start = text.rfind(each, max(first - len(each), 0), place + len(each) - 1)
        place = min(place, start if start >= 0 else place)
    return text[place:]


def _is_before_space(text: str) -> Callable[[int], bool]:
    return lambda place: text[place].isspace() and not text[place - 1].isspace()
