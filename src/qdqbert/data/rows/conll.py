"""Sentences of tagged words: CoNLL columns, and rows of lists in Hugging Face's layout."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from qdqbert.common.errors import DataFileError
from qdqbert.common.objects import Rows
from qdqbert.data.rows.data import Columns, Dataset, refuse_columns
from qdqbert.data.rows.hub import is_hub
from qdqbert.data.rows.in_memory import records
from qdqbert.data.rows.lines import RECORD_SUFFIXES, counted, existing_file, read_lines, row_name

OUTSIDE = "O"
"""The tag of a word that is not part of an entity."""

# Names that a row's list of words can have, and its list of tags.
_WORD_FIELDS = ("tokens", "words")
_TAG_FIELDS = ("ner_tags", "tags", "labels")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenExample:
    """A sentence.

    Attributes:
        tags: The tag of each word; `None` if the data have no tags.
        row: Number of the row, or of the line that the sentence starts at. Not compared.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None
    row: int = dataclasses.field(default=0, compare=False)

    @property
    def content(self) -> tuple[str, ...]:
        """The text that a model reads."""
        return (" ".join(self.words),)

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The tags; `None` if the data have none."""
        return self.tags


def read_sentences(data: str | Rows, *, columns: Columns, max_examples: int | None) -> Dataset:
    """Read sentences from CoNLL columns, whatever the suffix of the file, or from rows of lists.

    A line of a CoNLL file has a word in its first column and its tag in the last one; with a
    single column there are no tags. A blank line follows each sentence. Columns are separated by
    tabs or by spaces. The rows of .jsonl and .parquet files, of a hub data set and of objects are
    read by `parse_sentence`.

    Raises:
        DataFileError: The data cannot be read or have another layout, or a column is requested.
        MissingExtraError: `data` is a hub name, and the library `datasets` is not installed.
    """
    refuse_columns(
        columns,
        layout="CoNLL files have the word first and the tag last; rows have "
        f"{' or '.join(_WORD_FIELDS)}, and {' or '.join(_TAG_FIELDS)}",
    )
    examples = tuple(itertools.islice(_examples(data), max_examples))
    if not examples:
        raise DataFileError(
            f"Data `{data}` hold no sentences: expected at least one with a word, got none. Name "
            "another file."
        )
    return Dataset(path=str(data), examples=examples, columns=Columns(), notices=())


def _examples(data: str | Rows) -> Iterator[TokenExample]:
    if _is_conll(data):
        sentences = _conll(str(data))
    else:
        sentences = (parse_sentence(row, str(data), number) for number, row in records(data))
    return (example for example in sentences if example.words)


def _is_conll(data: str | Rows) -> bool:
    """Return whether data are a file of CoNLL columns, and not rows."""
    if isinstance(data, Rows) or is_hub(data):
        return False
    return existing_file(data).suffix.lower() not in RECORD_SUFFIXES


def parse_sentence(row: Mapping[str, object], path: str, number: int) -> TokenExample:
    """Make an example from one row: `tokens` or `words`; `ner_tags`, `tags` or `labels`.

    Tags are names or numbers of classes; they are hidden if all are `None`.

    Raises:
        DataFileError: The words are missing, or words or tags have another type or number.
    """
    where = row_name(path, number)
    words_name = next((name for name in _WORD_FIELDS if name in row), None)
    if words_name is None:
        raise DataFileError(
            f"{where} must have a list of words as `tokens` or `words`, got only "
            f"{', '.join(map(repr, row))}. Rename the field."
        )
    words = _strings(row[words_name], words_name, (str,), where)
    tags_name = next((name for name in _TAG_FIELDS if row.get(name) is not None), None)
    if tags_name is None:
        return TokenExample(words=words, row=number)
    given = row[tags_name]
    if isinstance(given, list) and given and all(tag is None for tag in given):
        return TokenExample(words=words, row=number)
    tags = _strings(given, tags_name, (str, int), where)
    if len(tags) != len(words):
        raise DataFileError(
            f"{where} must have one tag for each word, got {len(words)} words in `{words_name}` "
            f"and {len(tags)} tags in `{tags_name}`. Correct the row."
        )
    return TokenExample(words=words, tags=tags, row=number)


def _strings(value: object, name: str, kinds: tuple[type, ...], where: str) -> tuple[str, ...]:
    """Return the items of a list, which must be of the given types, as strings."""
    expected = " or ".join(kind.__name__ for kind in kinds)
    if not isinstance(value, list):
        raise DataFileError(
            f"{where} must have a list of {expected} as `{name}`, got {type(value).__name__}. "
            "Split the text into words, with one tag each."
        )
    for each in value:
        if not isinstance(each, kinds) or isinstance(each, bool):
            raise DataFileError(
                f"{where} must have {expected} in `{name}`, got {each!r}. Correct the row."
            )
    return tuple(str(each) for each in value)


def _conll(path: str) -> Iterator[TokenExample]:
    lines = [
        (number, line.removesuffix("\n").removesuffix("\r") if line.strip() else "")
        for number, line in read_lines(path)
    ]
    # In a tab-separated file a word can be a space, or contain one.
    separator = "\t" if any("\t" in line for _, line in lines) else " "
    split = [(number, line, _cells(line, separator)) for number, line in lines]
    width = _width(split)
    for is_text, group in itertools.groupby(split, key=lambda each: _is_text(each[1], each[2])):
        if is_text:
            kept = [
                (number, _check_cells(cells, number, width, path))
                for number, line, cells in group
                if not _is_comment(line, cells, width)
            ]
            words = tuple(cells[0] for _, cells in kept)
            tags = None if width == 1 else tuple(cells[-1].strip() for _, cells in kept)
            yield TokenExample(words=words, tags=tags, row=kept[0][0] if kept else 0)


def _cells(line: str, separator: str) -> list[str]:
    cells = line.split(separator)
    return cells if separator == "\t" else [cell for cell in cells if cell]


def _width(split: Iterable[tuple[int, str, list[str]]]) -> int:
    """Return the number of columns of the first line that is not a comment, else of the first."""
    widths = [
        (line.startswith("# "), len(cells)) for _, line, cells in split if _is_text(line, cells)
    ]
    return next((width for hashed, width in widths if not hashed), widths[0][1] if widths else 1)


def _is_text(line: str, cells: Sequence[str]) -> bool:
    """Return whether a line is part of a sentence, not blank and not the start of a document."""
    return bool(line) and cells[0] != "-DOCSTART-"


def _is_comment(line: str, cells: Sequence[str], width: int) -> bool:
    """Return whether a line is a CoNLL-U comment: `# text = ...`. A word `#` has a tag."""
    return line.startswith("# ") and len(cells) != width


def _check_cells(cells: list[str], number: int, width: int, path: str) -> list[str]:
    if len(cells) != width:
        raise DataFileError(
            f"Line {number} of `{path}` must have {counted(width, 'column')} like the first line, "
            f"got {len(cells)}. Separate all columns by a tab, or all by spaces. If this is plain "
            "text, write each word on a line of its own with its tag, and a blank line after each "
            "sentence; or a .jsonl file with lists `tokens` and `ner_tags`."
        )
    if width > 1 and not cells[-1].strip():
        raise DataFileError(
            f"Line {number} of `{path}` must have a tag in its last column, got none. Write "
            f"`{OUTSIDE}` for a word that is not part of an entity."
        )
    return cells
