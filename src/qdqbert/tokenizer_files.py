"""Read tokenizer.json, which comes from outside, with the library `tokenizers`, and write limits.

The library trusts some values. It allocates memory for each id up to the largest one, and others
make it panic: its error is then no `Exception`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import operator
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import normalizers

from qdqbert.errors import CheckpointError
from qdqbert.files import write_json
from qdqbert.json_files import damaged, parse_object, read_json, read_text, shown

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"

# The library counts from 0 to the largest id when it copies a tokenizer.
_MOST_IDS = 2**24


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerFile:
    """The content of a tokenizer.json.

    Attributes:
        tokenizer: The tokenizer, which neither cuts nor pads.
        largest_id: The largest id that it gives; -1 without tokens.
    """

    tokenizer: tokenizers.Tokenizer
    largest_id: int


def read_tokenizer(path: Path) -> TokenizerFile:
    """Read a tokenizer.json.

    Raises:
        CheckpointError: The file is missing, or is not a tokenizer that the library can run.
    """
    text = read_text(path)
    # The library takes the last one of equal names, as Python does.
    content = parse_object(text, path, unique=False)
    _check_merges(content.get("model"), path)
    largest = _largest_id(content, path)
    with raising(path):
        tokenizer = tokenizers.Tokenizer.from_str(text)
        tokenizer.no_padding()
        tokenizer.no_truncation()
        # A post-processor can name tokens and texts that there are not.
        tokenizer.encode("")
        tokenizer.encode("", "")
    return TokenizerFile(tokenizer=tokenizer, largest_id=largest)


def set_limits(folder: Path, max_length: int) -> None:
    """Write the longest input of a model next to its tokenizer, which itself neither cuts nor pads.

    transformers, transformers.js and fastembed read `model_max_length`, and fastembed `max_length`,
    too. A limit that transformers left in tokenizer.json is removed: other programs would apply it.

    Args:
        folder: Folder with tokenizer.json and tokenizer_config.json, if they exist.
        max_length: Longest input in tokens.
    """
    path = folder / TOKENIZER
    if path.is_file():
        content = read_json(path)
        if content.get("truncation") or content.get("padding"):
            write_json(path, {**content, "truncation": None, "padding": None})
    path = folder / TOKENIZER_CONFIG
    if path.is_file():
        content = read_json(path)
        names = {"model_max_length", *({"max_length"} & content.keys())}
        write_json(path, {**content, **dict.fromkeys(sorted(names), max_length)})


def token_text(value: Any) -> str | None:
    """Return the text of a special token in tokenizer_config.json; `None` if there is none."""
    # Older files store the token with its options.
    text = value.get("content") if isinstance(value, dict) else value
    return None if text is None else str(text)


def put_lower_case_first_(tokenizer: tokenizers.Tokenizer) -> None:
    """Change a tokenizer as `do_lower_case` of sentence-transformers does: to lower case first."""
    own = tokenizer.normalizer
    steps = [normalizers.Lowercase(), *([own] if own else [])]
    tokenizer.normalizer = normalizers.Sequence(steps)


@contextlib.contextmanager
def raising(path: Path) -> Iterator[None]:
    """Turn errors of the library into a `CheckpointError`.

    Args:
        path: File of the tokenizer that the block uses.

    Raises:
        CheckpointError: The library raised an error that has no class, or panicked.
    """
    try:
        yield
    except BaseException as error:
        # The library raises `Exception` itself. The class of a panic cannot be imported.
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        reason = re.sub(r"\s+", " ", str(error))
        raise CheckpointError(
            f"The tokenizer {str(path)!r} cannot be used: {reason[:200]}."
        ) from error


def _check_merges(model: Any, path: Path) -> None:
    """Refuse a prefix that the library cuts from tokens which do not have it.

    Raises:
        CheckpointError: The second token of a merge has no such prefix.
    """
    if not isinstance(model, dict) or not model.get("continuing_subword_prefix"):
        return
    prefix = model["continuing_subword_prefix"]
    for merge in _list(model.get("merges")):
        pair = merge.split(" ") if isinstance(merge, str) else _list(merge)
        second = pair[-1] if pair else None
        if not (isinstance(second, str) and second.startswith(str(prefix))):
            raise damaged(
                path, f"merge {shown(merge)} has no continuing_subword_prefix {shown(prefix)}"
            )


def _largest_id(content: dict[str, Any], path: Path) -> int:
    """Return the largest id of a tokenizer.

    Raises:
        CheckpointError: It is too large.
    """
    largest = -1
    for token, value in _ids(content):
        # The library refuses other values than integers.
        if type(value) is int:
            if not 0 <= value < _MOST_IDS:
                raise damaged(path, f"token {shown(token)} has the id {value}")
            largest = max(largest, value)
    return largest


def _ids(content: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Yield tokens and their ids."""
    model = content.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict) and vocabulary:
        # The smallest and the largest one say enough of many.
        ids = [each for each in vocabulary.items() if type(each[1]) is int]
        yield from (pick(ids, key=operator.itemgetter(1)) for pick in (min, max) if ids)
    elif isinstance(vocabulary, list) and vocabulary:
        # Unigram has a list, with the score of each token.
        yield vocabulary[-1], len(vocabulary) - 1
    for token in _list(content.get("added_tokens")):
        if isinstance(token, dict):
            yield token.get("content"), token.get("id")
    yield from _ids_of_processor(content.get("post_processor"))


def _ids_of_processor(processor: Any) -> Iterator[tuple[Any, Any]]:
    if not isinstance(processor, dict):
        return
    for name in ("sep", "cls"):
        match processor.get(name):
            case [token, value]:
                yield token, value
    special = processor.get("special_tokens")
    for token in special.values() if isinstance(special, dict) else ():
        for value in _list(token.get("ids") if isinstance(token, dict) else None):
            yield token.get("id"), value
    for each in _list(processor.get("processors")):
        yield from _ids_of_processor(each)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
