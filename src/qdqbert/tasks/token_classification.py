"""Tags of words: named entities, parts of speech. A word speaks through its first token."""

from __future__ import annotations

import copy
import inspect
import itertools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.encoding import Batch, Encoded, padding_of
from qdqbert.errors import CheckpointError, DataFileError
from qdqbert.tasks.conll import OUTSIDE, TAG_FIELDS, TokenExample, read_sentences
from qdqbert.tasks.entities import count_entities, total
from qdqbert.tasks.metrics import accuracy
from qdqbert.tasks.task import (
    IGNORED,
    Features,
    Labels,
    Metric,
    Prediction,
    Predictions,
    Task,
    TaskOptions,
)

_CHUNK = 64  # sentences tokenized at a time
_MOST_NAMES = 40  # how many classes an error lists

_Places = NDArray[np.int32]
_Classes = NDArray[np.int64]


def _encode(
    examples: Sequence[TokenExample],
    tokenizer: Any,
    *,
    input_names: Sequence[str],
    max_length: int,
    options: TaskOptions,
) -> Features:
    """One row a sentence. `places`: the first token of each word, -1 for one that has none."""
    del options
    tokenizer = _for_words(tokenizer)
    rows: list[dict[str, NDArray[np.int32]]] = []
    places: list[_Places] = []
    truncated = beyond = 0
    for start in range(0, len(examples), _CHUNK):
        words = [list(example.words) for example in examples[start : start + _CHUNK]]
        uncut = tokenizer(words, is_split_into_words=True, verbose=False)
        cut = tokenizer(words, is_split_into_words=True, truncation=True, max_length=max_length)
        for index, sentence in enumerate(words):
            rows.append({name: np.array(cut[name][index], dtype=np.int32) for name in input_names})
            places.append(_places(cut.word_ids(index), len(sentence)))
            truncated += len(uncut["input_ids"][index]) > max_length
            with_tokens = _places(uncut.word_ids(index), len(sentence)) >= 0
            beyond += int(with_tokens.sum() - (places[-1] >= 0).sum())
    count = sum(len(example.words) for example in examples)
    notice = (
        f"{beyond} of {count} words lie beyond the first {max_length} tokens: their tags count as "
        f"{OUTSIDE}."
    )
    return Features(
        examples=tuple(examples),
        encoded=Encoded(
            rows=tuple(rows), padding=padding_of(tokenizer, input_names), truncated=truncated
        ),
        places=tuple(places),
        notices=(notice,) if beyond else (),
    )


def _places(word_ids: Sequence[int | None], words: int) -> _Places:
    places: _Places = np.full(words, -1, dtype=np.int32)
    for place in reversed(range(len(word_ids))):
        word = word_ids[place]
        if word is not None:
            places[word] = place
    return places


def _for_words(tokenizer: Any) -> Any:
    """A tokenizer that takes words as they stand in a text.

    RoBERTa's and its like tell a word by the space before it, and words alone have none: they are
    trained on words with `add_prefix_space=True`. An answer without it would be of other tokens.
    """
    if not tokenizer.is_fast:
        raise CheckpointError(
            "Tags of words need a tokenizer that knows the word of each token, one of the library "
            f"`tokenizers`, got {type(tokenizer).__name__}. Save the checkpoint with a fast one."
        )
    is_asked = "add_prefix_space" in inspect.signature(type(tokenizer)).parameters
    splitter = tokenizer.backend_tokenizer.pre_tokenizer
    if not is_asked or getattr(splitter, "add_prefix_space", True):
        return tokenizer
    changed = copy.deepcopy(tokenizer)
    changed.backend_tokenizer.pre_tokenizer = type(splitter)(add_prefix_space=True)
    return changed


def _rows(
    outputs: Mapping[str, NDArray[np.float32]], batch: Batch, features: Features
) -> list[Prediction]:
    """Logits of the first token of each word; zeros for a word that has none."""
    rows: list[Prediction] = []
    for index, logits in zip(batch.indices, outputs["logits"], strict=True):
        places = features.places[index]
        rows.append(np.where(places[:, None] < 0, np.float32(0), logits[places]))
    return rows


def _metrics(
    rows: Predictions, features: Features, id2label: Mapping[int, str], options: TaskOptions
) -> list[Metric]:
    """F1, precision and recall of entities, and the accuracy of tags.

    A word without a token is predicted `O`, as is usual: what a model cannot see, it cannot find.
    Where the model's tags are of no entities (parts of speech), the accuracy is all there is.
    """
    del options
    labels = [[id2label[int(each)] for each in known] for known in _classes(features, id2label)]
    predictions = [
        [
            id2label[int(best)] if place >= 0 else OUTSIDE
            for best, place in zip(row.argmax(axis=1), places, strict=True)
        ]
        for row, places in zip(rows, features.places, strict=True)
    ]
    values: dict[str, float] = {}
    if _are_of_entities(id2label.values()):
        counts = total(count_entities(predictions, labels).values())
        values = {"f1": counts.f1, "precision": counts.precision, "recall": counts.recall}
    values["accuracy"] = accuracy(*([*itertools.chain(*each)] for each in (predictions, labels)))
    return [Metric(name=n, value=value, examples=len(labels)) for n, value in values.items()]


def _are_of_entities(names: Iterable[str]) -> bool:
    """Whether tags have a letter of place and a type, `B-PER`, or letters are all they have."""
    tags = set(names)
    return tags <= {OUTSIDE, *"BIES"} or any(
        tag.startswith(("B-", "I-", "E-", "S-")) for tag in tags
    )


def _decisions(rows: Predictions, features: Features, options: TaskOptions) -> Sequence[Hashable]:
    """The class of each word of all sentences that the model was shown."""
    del options
    return [
        int(best)
        for row, places in zip(rows, features.places, strict=True)
        for best in row[places >= 0].argmax(axis=1)
    ]


def _labels(features: Features, id2label: Mapping[int, str]) -> list[Labels]:
    """The class of a word at its first token; nothing is learned at others."""
    labels: list[Labels] = []
    for classes, places, length in zip(
        _classes(features, id2label), features.places, features.encoded.lengths, strict=True
    ):
        row = np.full(length, IGNORED, dtype=np.int64)
        row[places[places >= 0]] = classes[places >= 0]
        labels.append({"labels": row})
    return labels


def _classes(features: Features, id2label: Mapping[int, str]) -> list[_Classes]:
    """The class of each word: by its name, in any case if need be, or by its number."""
    known = {str(index): int(index) for index in id2label}
    known |= {name.lower(): int(index) for index, name in id2label.items()}
    known |= {name: int(index) for index, name in id2label.items()}
    classes = []
    for example in features.examples:
        found = [known.get(tag, known.get(tag.lower())) for tag in _tags_of(example)]
        if None in found:
            tag = _tags_of(example)[found.index(None)]
            names = [f"{index} or {name!r}" for index, name in sorted(id2label.items())]
            more = ", …" if len(names) > _MOST_NAMES else ""
            raise DataFileError(
                f"Tag {tag!r} is not one of the model's: {', '.join(names[:_MOST_NAMES])}{more}. "
                "Rename it in the data, or set `id2label` in the checkpoint's config.json."
            )
        classes.append(np.array(found, dtype=np.int64))
    return classes


def _tags_of(example: TokenExample) -> tuple[str, ...]:
    if example.tags is None:
        raise DataFileError(
            "The data has no tags to compare with. Write the tag in the last column of each line, "
            f"or a list of tags as {' or '.join(f'`{name}`' for name in TAG_FIELDS)} in each row."
        )
    return example.tags


def _class_names(examples: Sequence[TokenExample]) -> list[str]:
    """All tags, sorted; numbers by their value."""
    tags = {tag for example in examples for tag in _tags_of(example)}
    return sorted(tags, key=lambda tag: (len(tag) if tag.isdecimal() else 0, tag))


TOKEN_CLASSIFICATION = Task(
    name="token-classification",
    read=read_sentences,
    encode=_encode,
    rows=_rows,
    metrics=_metrics,
    decisions=_decisions,
    labels=_labels,
    class_names=_class_names,
    reads_texts=False,
)
