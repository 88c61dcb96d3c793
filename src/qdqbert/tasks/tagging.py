"""Tags of the tokens of texts, and the entities that they make, as in transformers' pipelines.

Source: transformers, `pipelines/token_classification.py`. The answers are equal, except that long
texts are read in windows instead of being cut.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from qdqbert.common.choices import AggregationStrategy as Strategy
from qdqbert.common.errors import UserInputError
from qdqbert.data.tokenizing.encoding import feature_of
from qdqbert.data.tokenizing.tokenizer import Tokenizer
from qdqbert.runtime.batches import Results
from qdqbert.runtime.inputs import described, is_text
from qdqbert.runtime.scheduler import EncodedItem
from qdqbert.tasks.logits import apply

Scores = NDArray[np.float32]
Entity = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Window:
    """The part of a text that one feature shows, without special tokens.

    Attributes:
        places: Positions of the tokens in the feature. Shape `(tokens,)`.
        first: Number of tokens of the text before the window.
        words: The tokens as they are in the vocabulary.
        offsets: Positions in the text of the first character of each token and of the character
            after its last one. Shape `(tokens, 2)`.
        unknown: Whether each token is the one for unknown words. Shape `(tokens,)`.
    """

    places: NDArray[np.int64]
    first: int
    words: Sequence[str]
    offsets: NDArray[np.int64]
    unknown: NDArray[np.bool_]

    def word(self, token: int, text: str) -> str:
        """Return a token, or the unknown word that it stands for."""
        if not self.unknown[token]:
            return self.words[token]
        start, end = self.offsets[token].tolist()
        return text[start:end]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tag:
    """The job whose answer is the tagged tokens, or the entities, of each text; see `Job`.

    Attributes:
        tokenizer: Cuts texts into windows.
        strategy: How tokens are joined to entities.
        ignore_labels: Names that are left out of the answer.
        stride: Number of tokens that neighboring windows share.
        words: Whether inputs are lists of words.
    """

    tokenizer: Tokenizer
    input_names: Sequence[str]
    id2label: Mapping[int, str]
    strategy: Strategy
    ignore_labels: Sequence[str]
    stride: int
    words: bool

    def encode(self, items: Sequence[Any]) -> list[EncodedItem]:
        """Return the model inputs of each window of each text."""
        for item in items:
            _check(item, words=self.words)
        made = self.tokenizer.encode_batch(items, offsets=True, words=self.words)
        encoded = []
        for item, each in zip(items, made, strict=True):
            parts = [each, *each.overflowing]
            encoded.append(
                EncodedItem(
                    features=tuple(feature_of(part, self.input_names) for part in parts),
                    places=list(self._windows(item, parts)),
                )
            )
        return encoded

    def split(self, results: Results) -> Sequence[Scores]:
        """Return the probabilities of the classes for each token, `(tokens, classes)`."""
        return [apply("softmax", each) for each in results.rows("logits")]

    def answer(self, item: Any, encoded: EncodedItem, values: Sequence[Scores]) -> list[Entity]:
        """Return the tagged tokens, or the entities."""
        text = " ".join(item) if self.words else item
        windows: Sequence[_Window] = encoded.places
        pairs = [
            (window, scores[window.places]) for window, scores in zip(windows, values, strict=True)
        ]
        if self.strategy == "none":
            return list(self._tagged(text, pairs))
        found = [list(self._entities(text, *each)) for each in pairs]
        return found[0] if len(found) == 1 else _without_overlaps(itertools.chain(*found))

    def _windows(self, item: Any, parts: Sequence[tokenizers.Encoding]) -> Iterator[_Window]:
        """Yield the windows of one text."""
        unknown = self.tokenizer.special_id("unk_token")
        starts = np.array(_starts(item)) if self.words else None
        first = 0
        for part in parts:
            places = np.flatnonzero(np.array(part.special_tokens_mask) == 0)
            offsets = np.array(part.offsets, dtype=np.int64)[places].reshape(-1, 2)
            names = part.tokens
            if starts is not None:
                word_ids = part.word_ids
                offsets += starts[[word_ids[place] or 0 for place in places], None]
            yield _Window(
                places=places,
                first=first,
                words=[names[place] for place in places],
                offsets=offsets,
                unknown=np.array(part.ids)[places] == unknown,
            )
            first += len(places) - self.stride

    def _tagged(self, text: str, pairs: Sequence[tuple[_Window, Scores]]) -> Iterator[Entity]:
        """Yield each token once, as it is in the window where it is farthest from the ends."""
        indices = np.concatenate([window.first + window.places for window, _ in pairs])
        margins = np.concatenate([_margins(len(scores)) for _, scores in pairs])
        owners = np.repeat(np.arange(len(pairs)), [len(scores) for _, scores in pairs])
        own = np.concatenate([np.arange(len(scores)) for _, scores in pairs])
        scores = np.concatenate([scores for _, scores in pairs])
        order = np.lexsort((-margins, indices))
        chosen = order[np.unique(indices[order], return_index=True)[1]]
        classes = scores.argmax(axis=1)
        for row in chosen.tolist():
            name = self.id2label[int(classes[row])]
            if name in self.ignore_labels:
                continue
            window, token = pairs[owners[row]][0], int(own[row])
            start, end = window.offsets[token].tolist()
            yield {
                "entity": name,
                "score": float(scores[row, classes[row]]),
                "index": int(indices[row]),
                "word": window.word(token, text),
                "start": start,
                "end": end,
            }

    def _entities(self, text: str, window: _Window, scores: Scores) -> Iterator[Entity]:
        """Yield the groups of neighboring tokens, or words, with the same tag."""
        if not len(scores):
            return
        # A unit is a token, or a word.
        starts = np.arange(len(scores))
        if self.strategy != "simple":
            starts = np.flatnonzero(~self._are_subwords(text, window))
            scores = self._of_words(scores, starts)
        ends = [*starts[1:].tolist(), len(window.places)]
        classes, best = scores.argmax(axis=1), scores.max(axis=1)
        groups = np.flatnonzero(self._begin(classes)).tolist()
        for first, end in zip(groups, [*groups[1:], len(classes)], strict=True):
            name = self.id2label[int(classes[first])].split("-", 1)[-1]
            if name in self.ignore_labels:
                continue
            words = [
                [window.word(token, text) for token in range(int(starts[unit]), ends[unit])]
                for unit in range(first, end)
            ]
            is_simple = self.strategy == "simple"
            yield {
                "entity_group": name,
                "score": float(best[first:end].mean()),
                "word": self.tokenizer.join(
                    [each[0] if is_simple else self.tokenizer.join(each) for each in words]
                ),
                "start": int(window.offsets[starts[first], 0]),
                "end": int(window.offsets[ends[end - 1] - 1, 1]),
            }

    def _are_subwords(self, text: str, window: _Window) -> NDArray[np.bool_]:
        """Return whether each token continues the word before it. Shape `(tokens,)`."""
        are_subwords: NDArray[np.bool_]
        if getattr(self.tokenizer.backend.model, "continuing_subword_prefix", None):
            lengths = np.array([len(word) for word in window.words])
            are_subwords = lengths != window.offsets[:, 1] - window.offsets[:, 0]
        else:
            # Byte-level and similar tokenizers do not mark the tokens that continue a word.
            are_subwords = np.array(
                [
                    start > 0 and " " not in text[start - 1 : start + 1]
                    for start in window.offsets[:, 0].tolist()
                ]
            )
        are_subwords &= ~window.unknown
        # A window can begin within a word.
        are_subwords[0] = False
        return are_subwords

    def _of_words(self, scores: Scores, starts: NDArray[np.int64]) -> Scores:
        """Return the scores of words, `(words, classes)`, from the scores of tokens."""
        if self.strategy == "first":
            return scores[starts]
        lengths = np.diff(np.append(starts, len(scores)))
        if self.strategy == "average":
            sums = np.add.reduceat(scores, starts, axis=0)
            return np.asarray(sums / lengths[:, None], dtype=np.float32)
        # Sorted within each word, the most confident token first.
        order = np.lexsort((-scores.max(axis=1), np.repeat(np.arange(len(starts)), lengths)))
        return scores[order[starts]]

    def _begin(self, classes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether a group begins at each class: at a "B-" tag, and at another name."""
        tags = [_split(self.id2label[index]) for index in sorted(self.id2label)]
        names = list(dict.fromkeys(name for _, name in tags))
        begins: NDArray[np.bool_] = np.array([is_first for is_first, _ in tags])[classes]
        numbers = np.array([names.index(name) for _, name in tags])[classes]
        begins[0] = True
        begins[1:] |= numbers[1:] != numbers[:-1]
        return begins


def _check(item: Any, *, words: bool) -> None:
    is_words = isinstance(item, list | tuple) and all(map(is_text, item))
    if not (is_words if words else is_text(item)):
        expected = "a list of words" if words else "a text"
        raise UserInputError(f"Each input has to be {expected}; got {described(item)}.")


def _starts(words: Sequence[str]) -> list[int]:
    """Return the position of each word in the words joined by spaces."""
    return [0, *itertools.accumulate(len(word) + 1 for word in words)]


def _margins(count: int) -> NDArray[np.int64]:
    """Return the number of tokens between each token and the nearer end. Shape `(count,)`."""
    places = np.arange(count)
    return np.minimum(places, places[::-1])


def _split(tag: str) -> tuple[bool, str]:
    """Return whether a tag begins an entity, and the name of the entity."""
    if tag.startswith(("B-", "I-")):
        return tag.startswith("B-"), tag[2:]
    return False, tag


def _without_overlaps(entities: Iterator[Entity]) -> list[Entity]:
    """Return the entities of overlapping windows, of which the longer or more confident counts."""
    kept: list[Entity] = []
    for each in sorted(entities, key=lambda entity: int(entity["start"])):
        if kept and kept[-1]["start"] <= each["start"] < kept[-1]["end"]:
            if _weight(each) > _weight(kept[-1]):
                kept[-1] = each
        else:
            kept.append(each)
    return kept


def _weight(entity: Entity) -> tuple[int, float]:
    return entity["end"] - entity["start"], entity["score"]
