"""Tags of words: named entities, parts of speech. A word speaks through its first token."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import itertools
import json
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.encoding import Batch, Encoded, padding_of
from qdqbert.errors import CheckpointError, DataFileError
from qdqbert.tasks.data import Columns, Dataset
from qdqbert.tasks.entities import count_entities, total
from qdqbert.tasks.hub import hub_rows, is_hub
from qdqbert.tasks.metrics import accuracy
from qdqbert.tasks.task import Features, Labels, Metric, Row, Rows, Task, TaskOptions

_WORDS = ("tokens", "words")
_TAGS = ("ner_tags", "tags", "labels")
_JSON = (".jsonl", ".ndjson")
_OUTSIDE = "O"
_IGNORED = -100  # the label that a loss of transformers leaves out
_CHUNK = 64  # sentences tokenized at a time
_MOST_NAMES = 40  # how many classes an error lists

_Places = NDArray[np.int32]
_Classes = NDArray[np.int64]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenExample:
    """The words of a sentence and the tag of each; `None` where the data has no tags."""

    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None

    @property
    def content(self) -> tuple[str, ...]:
        """What a model is shown of it."""
        return (" ".join(self.words),)


def tokens_of(row: Mapping[str, object], where: str) -> TokenExample:
    """The sentence of one row: `tokens` or `words`; `ner_tags`, `tags` or `labels`.

    Args:
        row: Lists by name. Tags are names or numbers of classes; all `None`, they are hidden.
        where: What an error calls the row: "Line 3 of `train.jsonl`".

    Raises:
        DataFileError: There are no words, or something else in their place or the tags'.
    """
    words_name = next((name for name in _WORDS if name in row), None)
    if words_name is None:
        raise DataFileError(
            f"{where} must have a list of words as `tokens` or `words`, got only "
            f"{', '.join(map(repr, row))}. Rename the field."
        )
    words = _listed(row[words_name], words_name, (str,), where)
    tags_name = next((name for name in _TAGS if row.get(name) is not None), None)
    if tags_name is None:
        return TokenExample(words=words)
    given = row[tags_name]
    if isinstance(given, list) and given and all(tag is None for tag in given):
        return TokenExample(words=words)
    tags = _listed(given, tags_name, (str, int), where)
    if len(tags) != len(words):
        raise DataFileError(
            f"{where} must have one tag for each word, got {len(words)} words in `{words_name}` "
            f"and {len(tags)} tags in `{tags_name}`. Correct the row."
        )
    return TokenExample(words=words, tags=tags)


def _listed(value: object, name: str, kinds: tuple[type, ...], where: str) -> tuple[str, ...]:
    wanted = " or ".join(kind.__name__ for kind in kinds)
    if not isinstance(value, list):
        raise DataFileError(
            f"{where} must have a list of {wanted} as `{name}`, got {type(value).__name__}. Split "
            "the text into words, one tag each."
        )
    for each in value:
        if not isinstance(each, kinds) or isinstance(each, bool):
            raise DataFileError(
                f"{where} must have {wanted} in `{name}`, got {each!r}. Correct the row."
            )
    return tuple(str(each) for each in value)


def _read(path: str, *, columns: Columns, max_examples: int | None) -> Dataset:
    """Sentences: CoNLL columns, whatever the file's suffix, or rows of lists.

    A CoNLL file has a word and its tag in the first and the last column of each line (a single
    column is words alone), and a blank line after each sentence. Columns are separated by tabs or
    spaces. A .jsonl file or data set of the hub has rows as `tokens_of` reads them.

    Raises:
        DataFileError: The data cannot be read or is none of these, or a column is asked for.
        MissingExtraError: It is a hub name, and the library `datasets` is not installed.
    """
    if max_examples is not None and max_examples < 1:
        raise DataFileError(f"`max_examples` must be at least 1, got {max_examples}.")
    for role, name in dataclasses.asdict(columns).items():
        if name is not None:
            raise DataFileError(
                f"Columns of words and tags cannot be chosen, got `--{role.replace('_', '-')}"
                f"-column {name!r}`: CoNLL files have the word first and the tag last, rows "
                f"{' or '.join(_WORDS)} and {', '.join(_TAGS)}. Leave the option out."
            )
    examples = tuple(itertools.islice(_examples(path), max_examples))
    if not examples:
        raise DataFileError(
            f"Data `{path}` holds no sentences: expected at least one with a word, got none. Name "
            "another file."
        )
    return Dataset(path=path, examples=examples, columns=Columns(), notices=())


def _examples(path: str) -> Iterator[TokenExample]:
    rows: Iterator[TokenExample]
    if is_hub(path):
        rows = (tokens_of(row, f"Row {number} of `{path}`") for number, row in hub_rows(path))
    elif Path(path).suffix.lower() in _JSON:
        rows = (tokens_of(row, where) for row, where in _json_rows(path))
    else:
        rows = _conll(path)
    return (example for example in rows if example.words)


def _lines(path: str) -> Iterator[tuple[int, str]]:
    """Number and text of each line. Only a line feed ends one: words may hold other breaks."""
    if not Path(path).is_file():
        wrong = "is a directory, not a file" if Path(path).is_dir() else "does not exist"
        raise DataFileError(f"Data file `{path}` {wrong}. Check the path.")
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        wrong_line = error.object.count(b"\n", 0, error.start) + 1
        raise DataFileError(
            f"File `{path}` must be UTF-8, got byte 0x{error.object[error.start]:02x} in line "
            f"{wrong_line}. Save it as UTF-8."
        ) from error
    except OSError as error:
        raise DataFileError(f"File `{path}` cannot be read: {error}. Name another file.") from error
    for number, line in enumerate(text.split("\n"), start=1):
        yield number, line.removesuffix("\r")


def _json_rows(path: str) -> Iterator[tuple[dict[str, object], str]]:
    for number, line in _lines(path):
        where = f"Line {number} of `{path}`"
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataFileError(
                f"{where} is not JSON: {error}. Write one object a line."
            ) from error
        if not isinstance(row, dict):
            raise DataFileError(
                f"{where} must be a JSON object, got {type(row).__name__}. Write one object a line."
            )
        yield row, where


def _conll(path: str) -> Iterator[TokenExample]:
    lines = [(number, line if line.strip() else "") for number, line in _lines(path)]
    # A word may be a space, or hold one, where tabs are what separates.
    separator = "\t" if any("\t" in line for _, line in lines) else " "
    split = [(number, line, _cells(line, separator)) for number, line in lines]
    width = _width(split)
    for is_text, group in itertools.groupby(split, key=lambda each: _is_text(each[1], each[2])):
        if is_text:
            cells = [
                _checked(row, number, width, path)
                for number, line, row in group
                if not _is_comment(line, row, width)
            ]
            words = tuple(row[0] for row in cells)
            tags = None if width == 1 else tuple(row[-1].strip() for row in cells)
            yield TokenExample(words=words, tags=tags)


def _cells(line: str, separator: str) -> list[str]:
    cells = line.split(separator)
    return cells if separator == "\t" else [cell for cell in cells if cell]


def _width(split: Iterable[tuple[int, str, list[str]]]) -> int:
    """Columns of the first line that can be no comment; of the first one where all can."""
    widths = [
        (line.startswith("# "), len(cells)) for _, line, cells in split if _is_text(line, cells)
    ]
    return next((width for hashed, width in widths if not hashed), widths[0][1] if widths else 1)


def _is_text(line: str, cells: Sequence[str]) -> bool:
    """Whether a line is of a sentence; a blank one or the start of a document is between two."""
    return bool(line) and cells[0] != "-DOCSTART-"


def _is_comment(line: str, cells: Sequence[str], width: int) -> bool:
    """As CoNLL-U has them: `# text = ...`. A word may be a hash too, but then it has a tag."""
    return line.startswith("# ") and len(cells) != width


def _checked(cells: list[str], number: int, width: int, path: str) -> list[str]:
    if len(cells) != width:
        raise DataFileError(
            f"Line {number} of `{path}` must have {width} column(s), as the first line, got "
            f"{len(cells)}. Separate all columns by a tab, or all by spaces."
        )
    if width > 1 and not cells[-1].strip():
        raise DataFileError(
            f"Line {number} of `{path}` must have a tag in its last column, got none. Write "
            f"`{_OUTSIDE}` for a word that is in no entity."
        )
    return cells


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
        f"{_OUTSIDE}."
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
) -> list[Row]:
    """Logits of the first token of each word; zeros for a word that has none."""
    rows: list[Row] = []
    for index, logits in zip(batch.indices, outputs["logits"], strict=True):
        places = features.places[index]
        rows.append(np.where(places[:, None] < 0, np.float32(0), logits[places]))
    return rows


def _metrics(
    rows: Rows, features: Features, id2label: Mapping[int, str], options: TaskOptions
) -> list[Metric]:
    """F1, precision and recall of entities, and the accuracy of tags.

    A word without a token is predicted `O`, as is usual: what a model cannot see, it cannot find.
    Where the model's tags are of no entities (parts of speech), the accuracy is all there is.
    """
    del options
    labels = [[id2label[int(each)] for each in known] for known in _classes(features, id2label)]
    predictions = [
        [
            id2label[int(best)] if place >= 0 else _OUTSIDE
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
    return tags <= {_OUTSIDE, *"BIES"} or any(
        tag.startswith(("B-", "I-", "E-", "S-")) for tag in tags
    )


def _decisions(rows: Rows, features: Features, options: TaskOptions) -> Sequence[Hashable]:
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
        row = np.full(length, _IGNORED, dtype=np.int64)
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
            f"or a list of tags as {' or '.join(f'`{name}`' for name in _TAGS)} in each row."
        )
    return example.tags


def _class_names(examples: Sequence[TokenExample]) -> list[str]:
    """All tags, sorted; numbers by their value."""
    tags = {tag for example in examples for tag in _tags_of(example)}
    return sorted(tags, key=lambda tag: (len(tag) if tag.isdecimal() else 0, tag))


TOKEN_CLASSIFICATION = Task(
    name="token-classification",
    read=_read,
    encode=_encode,
    rows=_rows,
    metrics=_metrics,
    decisions=_decisions,
    labels=_labels,
    class_names=_class_names,
    reads_texts=False,
)
