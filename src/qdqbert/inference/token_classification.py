"""Classes of tokens and entities, with the interface of the pipeline "token-classification".

Source: transformers, `pipelines/token_classification.py`. The answers are equal, except that long
texts are read in windows instead of being cut.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

import numpy as np
import tokenizers
from numpy.typing import NDArray

from qdqbert.choices import AggregationStrategy as Strategy
from qdqbert.engines.runner import Outputs
from qdqbert.errors import UserInputError
from qdqbert.inference.batches import Feature
from qdqbert.inference.classification import apply
from qdqbert.inference.model import Model, feature_of, rows_of
from qdqbert.inference.scheduler import Encoded
from qdqbert.inference.tokenizer import FolderTokenizer

Scores = NDArray[np.float32]
Entity = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Token:
    """A token of a text that is not a special one.

    Attributes:
        index: Position among all tokens of the text, special ones included.
        word: The token as it is in the vocabulary.
        start: Position of its first character in the text.
        end: Position of the character after its last one.
        is_subword: Whether it continues the word of the token before it.
        margin: Number of tokens between it and the nearer end of its window.
    """

    index: int
    word: str
    start: int
    end: int
    is_subword: bool
    margin: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Window:
    """The part of a text that one feature shows.

    Attributes:
        places: Positions in the feature of the tokens that are not special ones.
        tokens: These tokens.
    """

    places: Sequence[int]
    tokens: Sequence[_Token]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Tag:
    """The job whose answer is the tagged tokens, or the entities, of each text; see `Job`.

    Attributes:
        tokenizer: Cuts texts into windows.
        input_names: Inputs of the graph.
        id2label: Names of the classes.
        strategy: How tokens are joined to entities.
        ignore_labels: Names that are left out of the answer.
        stride: Number of tokens that neighboring windows share.
        words: Whether inputs are lists of words.
    """

    tokenizer: FolderTokenizer
    input_names: Sequence[str]
    id2label: Mapping[int, str]
    strategy: Strategy
    ignore_labels: Sequence[str]
    stride: int
    words: bool

    def encode(self, items: Sequence[Any]) -> list[Encoded]:
        """Return the model inputs of each window of each text."""
        for item in items:
            _check(item, words=self.words)
        made = self.tokenizer.encode_batch(items, offsets=True, words=self.words)
        encoded = []
        for item, each in zip(items, made, strict=True):
            parts = [each, *each.overflowing]
            encoded.append(
                Encoded(
                    features=tuple(feature_of(part, self.input_names) for part in parts),
                    context=list(self._windows(item, parts)),
                )
            )
        return encoded

    def split(
        self, outputs: Outputs, inputs: Mapping[str, NDArray[Any]], features: Sequence[Feature]
    ) -> Sequence[Scores]:
        """Return the probabilities of the classes for each token, `(tokens, classes)`."""
        del inputs
        return [apply("softmax", each) for each in rows_of(features, outputs["logits"])]

    def answer(self, item: Any, encoded: Encoded, values: Sequence[Scores]) -> list[Entity]:
        """Return the tagged tokens, or the entities."""
        del item
        windows: list[_Window] = encoded.context
        pairs = list(zip(windows, values, strict=True))
        if self.strategy == "none":
            return self._kept(self._tagged(*each) for each in _of_best_window(pairs))
        found = [self._kept(self._entities(*each)) for each in pairs]
        return found[0] if len(found) == 1 else _without_overlaps(itertools.chain(*found))

    def _windows(self, item: Any, parts: Sequence[tokenizers.Encoding]) -> Iterator[_Window]:
        """Yield the windows of one text."""
        text, starts = (" ".join(item), _starts(item)) if self.words else (item, None)
        first = 0
        for part in parts:
            places = [place for place, flag in enumerate(part.special_tokens_mask) if not flag]
            tokens = []
            for order, place in enumerate(places):
                start, end = part.offsets[place]
                word = part.word_ids[place]
                if starts is not None and word is not None:
                    start, end = start + starts[word], end + starts[word]
                name = part.tokens[place]
                is_subword = self._is_subword(name, text, start, end)
                if part.ids[place] == self.tokenizer.special_id("unk_token"):
                    name, is_subword = text[start:end], False
                tokens.append(
                    _Token(
                        index=first + place,
                        word=name,
                        start=start,
                        end=end,
                        is_subword=is_subword,
                        margin=min(order, len(places) - 1 - order),
                    )
                )
            yield _Window(places=places, tokens=tokens)
            first += len(places) - self.stride

    def _is_subword(self, word: str, text: str, start: int, end: int) -> bool:
        if getattr(self.tokenizer.backend.model, "continuing_subword_prefix", None):
            return len(word) != end - start
        # Byte-level and similar tokenizers do not mark the tokens that continue a word.
        return start > 0 and " " not in text[start - 1 : start + 1]

    def _kept(self, entities: Iterator[Entity]) -> list[Entity]:
        name = "entity" if self.strategy == "none" else "entity_group"
        return [each for each in entities if each[name] not in self.ignore_labels]

    def _tagged(self, token: _Token, scores: Scores) -> Entity:
        best = int(scores.argmax())
        return {
            "entity": self.id2label[best],
            "score": float(scores[best]),
            "index": token.index,
            "word": token.word,
            "start": token.start,
            "end": token.end,
        }

    def _entities(self, window: _Window, scores: Scores) -> Iterator[Entity]:
        """Yield the groups of neighboring tokens or words with the same tag."""
        tokens = list(zip(window.tokens, scores[list(window.places)], strict=True))
        if self.strategy == "simple":
            tagged = [self._tagged(*each) for each in tokens]
        else:
            tagged = [self._word(group) for group in _words(tokens)]
        for group in _groups(tagged):
            yield {
                "entity_group": group[0]["entity"].split("-", 1)[-1],
                "score": float(np.mean([each["score"] for each in group])),
                "word": self.tokenizer.join([each["word"] for each in group]),
                "start": group[0]["start"],
                "end": group[-1]["end"],
            }

    def _word(self, tokens: Sequence[tuple[_Token, Scores]]) -> Entity:
        """Return the tag of a word, from the scores of its tokens."""
        scores = np.stack([each for _, each in tokens])
        if self.strategy == "first":
            chosen = scores[0]
        elif self.strategy == "max":
            chosen = scores[scores.max(axis=1).argmax()]
        else:
            chosen = scores.mean(axis=0)
        best = int(chosen.argmax())
        return {
            "entity": self.id2label[best],
            "score": float(chosen[best]),
            "word": self.tokenizer.join([token.word for token, _ in tokens]),
            "start": tokens[0][0].start,
            "end": tokens[-1][0].end,
        }


class TokenClassifier(Model):
    """Tags the tokens of texts: named entities, parts of speech."""

    def __call__(
        self,
        inputs: Any,
        *,
        aggregation_strategy: Strategy = "none",
        ignore_labels: Sequence[str] = ("O",),
        stride: int | None = None,
        is_split_into_words: bool = False,
    ) -> Any:
        """Tag tokens, as transformers' pipeline "token-classification" does.

        A text that is longer than `max_length` is read in windows that share tokens.

        Args:
            inputs: A text, or a list of texts. With `is_split_into_words`, a list of words, or a
                list of such lists.
            aggregation_strategy: How tokens are joined to entities: not at all ("none"), tokens
                with the same tag ("simple"), or words with the same tag, where the tag of a word is
                that of its first token ("first"), that of its most confident token ("max"), or that
                with the highest mean score ("average").
            ignore_labels: Names of classes that are left out.
            stride: Number of tokens that neighboring windows share. A quarter of `max_length` by
                default. Where windows overlap, the longer entity counts, and the more confident one
                of two that are equally long. Without aggregation, the tag of a token comes from the
                window in which it is farther from the ends.
            is_split_into_words: Whether inputs are lists of words. Positions then refer to the
                words joined by spaces.

        Returns:
            For each text a list of `{"entity": ..., "score": ..., "index": ..., "word": ...,
            "start": ..., "end": ...}`. With aggregation, of `{"entity_group": ..., "score": ...,
            "word": ..., "start": ..., "end": ...}`. As in transformers, the result for one list of
            words is in a list, too.

        Raises:
            UserInputError: An input is not a text or a list of words, or an option has a wrong
                value.

        Example:
            >>> model("Ada lived in London", aggregation_strategy="simple")
            [{'entity_group': 'PER', 'score': 0.99, 'word': 'Ada', 'start': 0, 'end': 3},
             {'entity_group': 'LOC', 'score': 0.98, 'word': 'London', 'start': 13, 'end': 19}]
        """
        is_text = isinstance(inputs, str)
        is_one_list = is_split_into_words and not all(isinstance(each, list) for each in inputs)
        job = self.job(
            aggregation_strategy=aggregation_strategy,
            ignore_labels=ignore_labels,
            stride=stride,
            is_split_into_words=is_split_into_words,
        )
        answers = self._all(job, [inputs] if is_text or is_one_list else list(inputs))
        return answers[0] if is_text else answers

    def job(
        self,
        *,
        aggregation_strategy: Strategy = "none",
        ignore_labels: Sequence[str] = ("O",),
        stride: int | None = None,
        is_split_into_words: bool = False,
    ) -> _Tag:
        """Return the job of a call with these options, for `stream`."""
        if aggregation_strategy not in get_args(Strategy):
            raise UserInputError(
                f"`aggregation_strategy={aggregation_strategy!r}` is unknown. Known: "
                f"{', '.join(get_args(Strategy))}.",
                argument="aggregation_strategy",
            )
        tokenizer = self._loaded.tokenizer
        room = self.max_length - tokenizer.backend.num_special_tokens_to_add(is_pair=False)
        shared = self.max_length // 4 if stride is None else stride
        if not 0 <= shared < room:
            raise UserInputError(
                f"`stride` must be at least 0 and below {room}, the number of tokens of a text "
                f"that fit into {self.max_length}; got {shared}.",
                argument="stride",
            )
        return _Tag(
            tokenizer=tokenizer.cutting(self.max_length, stride=shared, words=is_split_into_words),
            input_names=self._loaded.artifact.input_names,
            id2label=self._loaded.id2label,
            strategy=aggregation_strategy,
            ignore_labels=tuple(ignore_labels),
            stride=shared,
            words=is_split_into_words,
        )


def _check(item: Any, *, words: bool) -> None:
    is_words = isinstance(item, list | tuple) and all(isinstance(word, str) for word in item)
    if not (is_words if words else isinstance(item, str)):
        expected = "a list of words" if words else "a text"
        raise UserInputError(f"Each input has to be {expected}; got {item!r:.100}.")


def _starts(words: Sequence[str]) -> list[int]:
    """Return the position of each word in the words joined by spaces."""
    return [0, *itertools.accumulate(len(word) + 1 for word in words)]


def _of_best_window(
    pairs: Sequence[tuple[_Window, Scores]],
) -> list[tuple[_Token, Scores]]:
    """Return each token once, with its scores in the window where it is farthest from the ends."""
    best: dict[int, tuple[_Token, Scores]] = {}
    for window, scores in pairs:
        for place, token in zip(window.places, window.tokens, strict=True):
            if token.index not in best or best[token.index][0].margin < token.margin:
                best[token.index] = token, scores[place]
    return [best[index] for index in sorted(best)]


def _words(
    tokens: Sequence[tuple[_Token, Scores]],
) -> Iterator[list[tuple[_Token, Scores]]]:
    """Yield the tokens of each word."""
    group: list[tuple[_Token, Scores]] = []
    for each in tokens:
        if group and not each[0].is_subword:
            yield group
            group = []
        group.append(each)
    if group:
        yield group


def _groups(tagged: Sequence[Entity]) -> Iterator[list[Entity]]:
    """Yield neighbors with the same tag. A tag that starts with "B-" begins a group."""
    group: list[Entity] = []
    for each in tagged:
        begins, name = _split(each["entity"])
        if group and (begins or name != _split(group[-1]["entity"])[1]):
            yield group
            group = []
        group.append(each)
    if group:
        yield group


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
