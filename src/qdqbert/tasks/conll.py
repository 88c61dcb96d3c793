"""Sentences of tagged words: CoNLL's columns, and rows of lists as Hugging Face has them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from qdqbert.errors import DataFileError
from qdqbert.tasks.data import Columns, Dataset
from qdqbert.tasks.hub import hub_rows, is_hub
from qdqbert.tasks.lines import existing_file, json_rows, read_lines

OUTSIDE = "O"
"""The tag of a word that is in no entity."""

TAG_FIELDS = ("ner_tags", "tags", "labels")
"""Names that a row's list of tags may have."""

_WORD_FIELDS = ("tokens", "words")
_JSON = (".jsonl", ".ndjson")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenExample:
    """The words of a sentence and the tag of each; `None` where the data has no tags."""

    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None

    @property
    def content(self) -> tuple[str, ...]:
        """What a model is shown of it."""
        return (" ".join(self.words),)


def read_sentences(path: str, *, columns: Columns, max_examples: int | None) -> Dataset:
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
                f"{' or '.join(_WORD_FIELDS)} and {', '.join(TAG_FIELDS)}. Leave the option out."
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
    elif existing_file(path).suffix.lower() in _JSON:
        rows = (tokens_of(row, where) for where, row in json_rows(path))
    else:
        rows = _conll(path)
    return (example for example in rows if example.words)


def tokens_of(row: Mapping[str, object], where: str) -> TokenExample:
    """The sentence of one row: `tokens` or `words`; `ner_tags`, `tags` or `labels`.

    Args:
        row: Lists by name. Tags are names or numbers of classes; all `None`, they are hidden.
        where: What an error calls the row: "Line 3 of `train.jsonl`".

    Raises:
        DataFileError: There are no words, or something else in their place or the tags'.
    """
    words_name = next((name for name in _WORD_FIELDS if name in row), None)
    if words_name is None:
        raise DataFileError(
            f"{where} must have a list of words as `tokens` or `words`, got only "
            f"{', '.join(map(repr, row))}. Rename the field."
        )
    words = _listed(row[words_name], words_name, (str,), where)
    tags_name = next((name for name in TAG_FIELDS if row.get(name) is not None), None)
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


def _conll(path: str) -> Iterator[TokenExample]:
    lines = [
        (number, line.removesuffix("\n").removesuffix("\r") if line.strip() else "")
        for number, line in read_lines(path)
    ]
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
            f"`{OUTSIDE}` for a word that is in no entity."
        )
    return cells
