"""The job that finds entities of kinds that are named in the call; see `runtime.scheduler.Job`.

A long text is read in windows of whole words that share some. A span that several windows have
counts in the one in which it is farthest from the ends.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypedDict

import numpy as np
import tokenizers
from numpy.typing import NDArray

from qdqbert.common.errors import CheckpointError, UserInputError
from qdqbert.data.rows.lines import counted
from qdqbert.data.tokenizing.encoding import feature_of
from qdqbert.data.tokenizing.long_texts import Kept
from qdqbert.data.tokenizing.tokenizer import Tokenizer
from qdqbert.encoders.checkpoint.own_layers import PromptWords, SpanHead
from qdqbert.encoders.model import Floats
from qdqbert.runtime.batches import Feature, Results
from qdqbert.runtime.inputs import check_text
from qdqbert.runtime.scheduler import EncodedItem
from qdqbert.tasks.hypotheses import STATES
from qdqbert.tasks.span_scores import Found, SpanScorer, Tokens
from qdqbert.tasks.task import Tokenization

# Fewest tokens of a text that are read next to the labels.
_LEAST_ROOM = 32
_NO_WORDS = np.zeros((0, 2), np.int64)
_SIDES: tuple[Literal["left", "right"], ...] = ("left", "right")


class FoundEntity(TypedDict):
    """An entity: `text[start:end]`, its kind, and the probability that it is one."""

    start: int
    end: int
    text: str
    label: str
    score: float


class Span(NamedTuple):
    """A span of words: the first and the last one, the index of its label, and its probability."""

    first: int
    last: int
    label: int
    score: float


class Window(NamedTuple):
    """The words of a text that one feature shows.

    Attributes:
        first: Index of the first word.
        tokens: Positions of the tokens that scores are made of.
    """

    first: int
    tokens: Tokens

    @property
    def stop(self) -> int:
        """Index of the word after the last one."""
        return self.first + len(self.tokens.words)


class Words(NamedTuple):
    """The words of a text as they are read.

    Attributes:
        texts: The words, and after them what is read after the text, if there is something.
        own: Number of the words of the text.
    """

    texts: list[str]
    own: int

    @classmethod
    def of_text(cls, text: str, head: SpanHead) -> Words:
        """Return the words of a text."""
        whole = text + _lacking_end(text, head)
        found = [each.span() for each in head.word.finditer(whole)]
        return cls(
            [_read_as(whole[start:end], head) for start, end in found],
            sum(start < len(text) for start, _ in found),
        )

    @classmethod
    def of_words(cls, words: Sequence[str], head: SpanHead) -> Words:
        """Return words that are given."""
        end = _lacking_end(words[-1], head) if words else ""
        return cls([*(_read_as(each, head) for each in words), *([end] if end else [])], len(words))


def _lacking_end(text: str, head: SpanHead) -> str:
    """Return what is read after a text; empty for nothing."""
    return "" if not head.ends or text.endswith(head.ends) else head.ends[0]


def _read_as(word: str, head: SpanHead) -> str:
    return word.lower() if head.lower_words else word


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prompt:
    """The tokens around a text, of which most are the labels.

    Attributes:
        before: Ids of the tokens before the text.
        after: Ids of the tokens after it.
        marks: Position of the token whose state is read for each mark. Shape `(marks,)`.
        words: Positions of the first token of each word that is scored as those of a text are, and
            of the one after its last token. Shape `(words, 2)`.
    """

    before: NDArray[np.int32]
    after: NDArray[np.int32]
    marks: NDArray[np.int64]
    words: NDArray[np.int64]

    @classmethod
    def of(cls, words: PromptWords, tokenizer: Tokenizer) -> Prompt:
        """Tokenize labels and what is around them.

        Raises:
            CheckpointError: The tokenizer has no token for a mark.
        """
        (found,) = tokenizer.encode_batch([words.words], words=True, special=words.has_ends)
        if not words.words:
            return cls._around(tokenizer)
        owners = np.array([-1 if owner is None else owner for owner in found.word_ids], np.int64)
        inner = np.flatnonzero(owners >= 0)
        counts = np.bincount(owners[inner], minlength=len(words.words))
        marks = np.array(words.marks, np.int64)
        for mark in marks[counts[marks] != 1][:1]:
            parts = [found.tokens[place] for place in np.flatnonzero(owners == mark)]
            raise CheckpointError(
                f"The tokenizer divides {words.words[mark]!r}, which marks labels: it makes "
                f"{parts} of it. Use the tokenizer of the checkpoint."
            )
        ids = np.array(found.ids, np.int32)
        count = len(words.words)
        scored = _limits(found, count)[-words.after :] if words.after else _NO_WORDS
        return cls(
            words=scored,
            before=ids[: inner[-1] + 1],
            after=ids[inner[-1] + 1 :],
            # Tokens are in the order of their words.
            marks=inner[np.searchsorted(owners[inner], marks)] + (not words.reads_marks),
        )

    @classmethod
    def _around(cls, tokenizer: Tokenizer) -> Prompt:
        """Return the tokens around a text that is read alone."""
        (found,) = tokenizer.encode_batch([["a"]], words=True)
        ids, owners = np.array(found.ids, np.int32), found.word_ids
        count = len(owners) - owners.count(None)
        first = next((place for place, owner in enumerate(owners) if owner is not None), 0)
        return cls(
            before=ids[:first],
            after=ids[first + count :],
            marks=np.zeros(0, np.int64),
            words=_NO_WORDS,
        )

    def __len__(self) -> int:
        return len(self.before) + len(self.after)


@dataclasses.dataclass(frozen=True, kw_only=True)
class WindowReader:
    """Makes features of the words of texts, behind labels.

    Attributes:
        tokenizer: The tokenizer, which cuts nothing.
        input_names: Inputs of the graph.
        head: How spans are scored.
        prompt: The tokens around a text.
        end: Ids of what is read after a part of a text that has no end of its own.
        room: Most tokens of a text in a feature.
    """

    tokenizer: Tokenizer
    input_names: Sequence[str]
    head: SpanHead
    prompt: Prompt
    end: NDArray[np.int32]
    room: int

    @classmethod
    def of(
        cls,
        words: PromptWords,
        head: SpanHead,
        how: Tokenization,
        *,
        argument: str = "labels",
        what: str = "label",
    ) -> WindowReader:
        """Return the reader of texts behind other words, most of which are an argument's labels.

        `what` is one of them, for messages.

        Raises:
            UserInputError: The words leave no room for a text.
        """
        whole = how.tokenizer.cutting(None)
        prompt = Prompt.of(words, whole)
        (end,) = whole.encode_batch([[*head.ends[:1]]], words=True, special=False)
        room = how.max_length - len(prompt) - len(end.ids)
        if room < min(_LEAST_ROOM, how.max_length // 2):
            raise UserInputError(
                f"`{argument}` are {counted(words.labels, what)} of {len(prompt)} tokens, which "
                f"leave {max(room, 0)} of {how.max_length} for a text. Pass fewer or shorter "
                "ones in a call.",
                argument=argument,
            )
        return cls(
            tokenizer=whole,
            input_names=how.input_names,
            head=head,
            prompt=prompt,
            end=np.array(end.ids, np.int32),
            room=room,
        )

    def read(self, texts: Sequence[Words]) -> Iterator[tuple[list[Feature], list[Window]]]:
        """Yield the features of each text, and the words that each shows."""
        given = [each.texts for each in texts]
        made = self.tokenizer.encode_batch(given, words=True, special=False)
        for words, each in zip(texts, made, strict=True):
            yield self._windows(words, np.array(each.ids, np.int32), _limits(each, words.own))

    def read_starts(self, texts: Sequence[Words]) -> Iterator[EncodedItem]:
        """Yield the features of texts, of which what does not fit is cut off."""
        given = [each.texts for each in texts]
        made = self.tokenizer.encode_batch(given, words=True, special=False)
        for each in made:
            own = np.array(each.ids, np.int32)
            is_cut = len(own) > self.room + len(self.end)
            if is_cut:
                own = np.concatenate([own[: self.room], self.end])
            yield EncodedItem(features=(self._feature(own),), truncated=is_cut)

    def _feature(self, own: NDArray[np.int32]) -> Feature:
        """Return the feature of the tokens of a text."""
        joined = np.concatenate([self.prompt.before, own, self.prompt.after])
        kept = Kept(joined.tolist(), [0] * len(joined), truncated=False)
        return feature_of(kept, self.input_names)

    def _windows(
        self, words: Words, ids: NDArray[np.int32], limits: NDArray[np.int64]
    ) -> tuple[list[Feature], list[Window]]:
        features: list[Feature] = []
        windows = []
        before = len(self.prompt.before)
        for first, stop in self._cut(limits):
            start, last = int(limits[first, 0]), int(limits[stop - 1, 1])
            own = ids[start:last][: self.room]
            # What is read after the whole text is there already.
            lacks_end = stop < words.own and _lacking_end(words.texts[stop - 1], self.head)
            end = ids[last:] if stop == words.own else self.end[: len(self.end) * bool(lacks_end)]
            places = np.minimum(limits[first:stop] - start, len(own)) + before
            features.append(self._feature(np.concatenate([own, end])))
            windows.append(Window(first, Tokens(labels=self.prompt.marks, words=places)))
        return features, windows

    def _cut(self, limits: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
        """Yield the first word of each window, and the one after its last."""
        count, first = len(limits), 0
        while count:
            # The words whose last token still fits; one if it is longer than that.
            fitting = int(np.searchsorted(limits[:, 1], limits[first, 0] + self.room, "right"))
            stop = min(max(fitting, first + 1), first + (self.head.max_words or count), count)
            yield first, stop
            if stop == count:
                return
            shared = max(self.head.max_width, (stop - first) // 4)
            first = max(stop - shared, first + 1)


def places_of_words(text: str, head: SpanHead) -> list[tuple[int, int]]:
    """Return the position of each word in a text, and of the character after it."""
    found = (each.span() for each in head.word.finditer(text + _lacking_end(text, head)))
    # What is read after the text can be a part of its last word, an address.
    return [(start, min(end, len(text))) for start, end in found if start < len(text)]


def _limits(encoding: tokenizers.Encoding, count: int) -> NDArray[np.int64]:
    """Return the positions of the first token of each word, and after its last. `(words, 2)`."""
    owners, words = np.array(encoding.word_ids, np.int64), np.arange(count)
    return np.stack([np.searchsorted(owners, words, side) for side in _SIDES], axis=1)


def merged(windows: Sequence[Window], found: Sequence[Found]) -> list[Span]:
    """Return the spans of all windows of a text, each once, by their first word."""
    spans = []
    starts, stops = ([each.first for each in windows], [each.stop for each in windows])
    for index, (own, each) in enumerate(zip(windows, found, strict=True)):
        columns = (each.first + own.first, each.last + own.first, each.label, each.score)
        for first, last, label, score in zip(*(x.tolist() for x in columns), strict=True):
            # Windows with the span are neighbours.
            near = range(bisect.bisect_right(stops, last), bisect.bisect_right(starts, first))
            if len(near) == 1 or _owner(windows, near, first, last) == index:
                spans.append(Span(first, last, label, score))
    return spans


def _owner(windows: Sequence[Window], near: Iterable[int], first: int, last: int) -> int:
    """Return the window in which a span is farthest from the ends; the first one of several.

    `near` are the windows that have the span.
    """
    end = windows[-1].stop

    def margin(index: int) -> int:
        window = windows[index]
        # There is nothing more to read before and after the text.
        before = end if window.first == 0 else first - window.first
        after = end if window.stop == end else window.stop - 1 - last
        return min(before, after)

    return max(near, key=margin)


def chosen(spans: Iterable[Span], *, flat: bool, multi_label: bool) -> list[Span]:
    """Return the spans that stay, the most probable ones first chosen, by their first word.

    Each takes the time of its words, however many stay.

    Args:
        spans: Spans of a text.
        flat: Whether no word is in two entities. Otherwise one entity may be inside of another, and
            none begins in another and ends outside of it.
        multi_label: Whether one span may have several labels.
    """
    by_score = sorted(spans, key=lambda span: -span.score)
    kept: list[Span] = []
    places: set[tuple[int, int]] = set()
    count = 1 + max((each.last for each in by_score), default=0)
    # Of the spans that begin with a word, the last end; of those that end with it, the first start.
    ends, starts = [-1] * count, [count] * count
    taken = bytearray(count)
    for each in by_score:
        first, last = place = each[:2]
        if place in places:
            if multi_label:
                kept.append(each)
            continue
        words = slice(first, last + 1)
        if any(taken[words]):
            # One is inside of the other unless one begins in the other and ends outside of it.
            crosses = max(ends[first + 1 : last + 1], default=-1) > last
            if flat or crosses or min(starts[first:last], default=count) < first:
                continue
        taken[words] = b"\1" * (last + 1 - first)
        ends[first], starts[last] = max(ends[first], last), min(starts[last], first)
        places.add(place)
        kept.append(each)
    return sorted(kept, key=lambda span: span.first)


def chosen_alone(spans: Iterable[Span], *, flat: bool) -> list[Span]:
    """Return the spans that stay if labels do not exclude each other, by their first word."""
    of_label: dict[int, list[Span]] = {}
    for each in spans:
        of_label.setdefault(each.label, []).append(each)
    kept = (chosen(own, flat=flat, multi_label=False) for own in of_label.values())
    return sorted((each for own in kept for each in own), key=lambda span: span.first)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Extract:
    """The job whose answer is the entities of each text.

    Attributes:
        reader: Makes features; `None` if there are no labels.
        scorer: Scores spans.
        labels: Names of the labels.
        vectors: Their vectors, of a model with an encoder for them. `(labels, channels)`.
        threshold: Entities are more probable than this.
        flat: See `chosen`.
        multi_label: See `chosen`; `None` for what the model's package does.
    """

    reader: WindowReader | None
    scorer: SpanScorer
    labels: Sequence[str]
    vectors: Floats | None
    threshold: float
    flat: bool
    multi_label: bool | None

    @property
    def reads(self) -> tuple[str, ...]:
        """The output that is read."""
        return (STATES,)

    def encode(self, items: Sequence[Any]) -> list[EncodedItem]:
        """Return the model inputs of each window of each text; none for a text without words."""
        texts = [check_text(item) for item in items]
        reader = self.reader
        if reader is None:
            return [EncodedItem(features=()) for _ in texts]
        words = [Words.of_text(text, self.scorer.head) for text in texts]
        return [
            EncodedItem(features=tuple(features), places=windows)
            for features, windows in reader.read(words)
        ]

    def split(self, results: Results) -> Sequence[Found]:
        """Return the probable spans of each feature."""
        pairs = zip(results.rows(STATES), results.places, strict=True)
        logits = (
            self.scorer.logits(states, window.tokens, self.vectors) for states, window in pairs
        )
        return [self.scorer.spans(each, threshold=self.threshold) for each in logits]

    def answer(self, item: str, encoded: EncodedItem, values: Sequence[Found]) -> list[FoundEntity]:
        """Return the entities."""
        spans = merged(encoded.places, values)
        head = self.scorer.head
        places = places_of_words(item, head) if spans else []
        stays = (
            chosen_alone(spans, flat=self.flat)
            if head.separates_labels and self.multi_label in (None, True)
            else chosen(spans, flat=self.flat, multi_label=bool(self.multi_label))
        )
        return [
            {
                "start": places[each.first][0],
                "end": places[each.last][1],
                "text": item[places[each.first][0] : places[each.last][1]],
                "label": self.labels[each.label],
                "score": each.score,
            }
            for each in stays
        ]
