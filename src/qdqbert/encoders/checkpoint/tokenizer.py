"""Load and write tokenizers of transformers that give the ids of tokenizer.json.

transformers 5 takes little more than the vocabulary of a tokenizer.json. The normalizer, the
pre-tokenizer, the model and the post-processor of most tokenizers come from their class. They can
differ from the ones that the model was trained with, which other runtimes read from the file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
import transformers
from tokenizers import AddedToken
from transformers.models.auto.tokenization_auto import get_tokenizer_config
from transformers.utils.hub import cached_file

from qdqbert.common.errors import CheckpointError, showing
from qdqbert.common.file_names import TOKENIZER, TOKENIZER_CONFIG
from qdqbert.common.files import refuse_pointer, write_json
from qdqbert.common.json_files import read_json
from qdqbert.data.tokenizing.pair_template import PairTemplate
from qdqbert.data.tokenizing.tokenizer import Tokenizer
from qdqbert.data.tokenizing.tokenizer_files import (
    TokenizerFile,
    add_tokens_,
    check_rows,
    check_tokens,
    read_tokenizer,
    set_limits,
)
from qdqbert.encoders.checkpoint.sample_texts import HARD, SPECIAL_TOKENS

# A class of this name, which versions 4 and 5 of transformers know, takes the file as it is.
_AS_STORED = "PreTrainedTokenizerFast"
# A difference in these may show only in other texts than the samples. Other parts act on all texts.
_STEPS = frozenset({"normalizer", "pre-tokenizer"})
# The last ones are vocabularies, of which tokenizer.json has the content.
_READ_BY_TRANSFORMERS = ("*token*.json", "vocab.*", "merges.txt", "*.model")
_SAMPLES: Sequence[str] = (*HARD.values(), SPECIAL_TOKENS)


class LoadedTokenizer(NamedTuple):
    """A tokenizer of transformers, and sentences for the user."""

    tokenizer: Any
    notices: tuple[str, ...] = ()


def load_tokenizer(name: str, *, subfolder: str = "") -> LoadedTokenizer:
    """Load the tokenizer of a folder or of a model of the hub.

    If there is a tokenizer.json, the tokenizer gives its ids. The rest, such as the names of
    special tokens and added tokens, comes from the other files, as in transformers.

    Raises:
        CheckpointError: The library `tokenizers` cannot read tokenizer.json.
        OSError: There is no tokenizer. transformers raises errors of other classes, too.
    """
    path = cached_file(
        name, TOKENIZER, subfolder=subfolder, _raise_exceptions_for_missing_entries=False
    )
    places = {"subfolder": subfolder, "trust_remote_code": False}
    for files in _READ_BY_TRANSFORMERS if path is None else _READ_BY_TRANSFORMERS[:1]:
        for each in Path(name, subfolder).glob(files):
            refuse_pointer(each)
    if path is None:
        return LoadedTokenizer(transformers.AutoTokenizer.from_pretrained(name, **places))
    with showing(str(Path(name, subfolder)), Path(path).parent):
        own = read_tokenizer(Path(path)).tokenizer
    try:
        built = transformers.AutoTokenizer.from_pretrained(name, **places)
    except Exception as error:
        # Classes raise all kinds of errors for the file of another kind of model.
        if "auto_map" in get_tokenizer_config(name, subfolder=subfolder):
            raise
        reason = str(error).strip().partition("\n")[0]
        notice = (
            f"transformers {_version()} cannot build this tokenizer ({reason}). tokenizer.json is "
            "used as it is, as by other runtimes."
        )
        return LoadedTokenizer(_as_stored(name, places, own, None), (notice,))
    if built.is_fast and _parts(built.backend_tokenizer) == _parts(own):
        return LoadedTokenizer(built)
    stored = _as_stored(name, places, own, built)
    differing = sum(_ids(built, text) != _ids(stored, text) for text in _SAMPLES)
    if built.is_fast and not differing and not _parts_that_differ(built, own) & _STEPS:
        # Some programs choose by the name of the class, so it is kept.
        built._tokenizer = own
        return LoadedTokenizer(built)
    where = ", ".join(sorted(_parts_that_differ(built, own))) or "all of it"
    notice = (
        f"transformers {_version()} would tokenize {differing} of {len(_SAMPLES)} sample texts "
        f"differently from tokenizer.json ({where}). tokenizer.json is used, as by other runtimes."
    )
    return LoadedTokenizer(stored, (notice,) if differing else ())


def runtime_tokenizer(tokenizer: Any, template: PairTemplate | None = None) -> Tokenizer:
    """Return the runtime's tokenizer, with the same ids as a tokenizer of transformers.

    `template` is the text around pairs. transformers converts most tokenizers that have only a
    vocabulary. Others run Python code.

    Raises:
        CheckpointError: The tokenizer runs Python code.
    """
    name = tokenizer.name_or_path
    if not tokenizer.is_fast:
        raise CheckpointError(
            f"The tokenizer of {name!r}, {type(tokenizer).__name__}, exists only in Python, and "
            "cannot be written to tokenizer.json. Save the checkpoint with a fast tokenizer."
        )
    backend = tokenizer.backend_tokenizer
    backend.no_padding()
    largest = max(backend.get_vocab(with_added_tokens=True).values(), default=-1)
    config = {
        **{name: str(token) for name, token in tokenizer.special_tokens_map.items()},
        "pad_token_type_id": tokenizer.pad_token_type_id,
        "truncation_side": tokenizer.truncation_side,
        "clean_up_tokenization_spaces": tokenizer.clean_up_tokenization_spaces,
        "split_special_tokens": tokenizer.split_special_tokens,
    }
    file = TokenizerFile(tokenizer=backend, largest_id=largest)
    path = Path(name) / TOKENIZER
    return Tokenizer(file, config, path, max_length=None, template=template)


def check_vocabulary(name: str, tokenizer: Any, embeddings: int) -> tuple[str, ...]:
    """Refuse a tokenizer with ids that have no embedding. Unused embeddings are allowed.

    Returns:
        Sentences for the user, if it has much fewer tokens.
    """
    token, largest = max(tokenizer.get_vocab().items(), key=lambda item: item[1])
    check_rows(largest, token, embeddings, name)
    return lacking_tokens(tokenizer, embeddings, name)


def lacking_tokens(tokenizer: Any, embeddings: int, name: str) -> tuple[str, ...]:
    """Return sentences about a tokenizer that lacks tokens of a model; see `check_tokens`."""
    # `runtime_tokenizer` refuses tokenizers in Python, by name.
    lacking = (
        check_tokens(tokenizer.backend_tokenizer, embeddings, name) if tokenizer.is_fast else None
    )
    return (f"The tokenizer {lacking}",) if lacking else ()


def write_tokenizer(tokenizer: Any, folder: Path, *, max_length: int) -> None:
    """Write a tokenizer so that all programs give its ids, and cut at the same length."""
    tokenizer.save_pretrained(folder)
    set_limits(folder, max_length)
    # transformers has written it into tokenizer.json only, if at all.
    changed = {"truncation_side": tokenizer.truncation_side}
    if type(tokenizer) is transformers.TokenizersBackend:
        # Other classes are known to make these inputs.
        changed |= {
            "model_input_names": tokenizer.model_input_names,
            "tokenizer_class": _AS_STORED,
        }
    write_json(folder / TOKENIZER_CONFIG, {**read_json(folder / TOKENIZER_CONFIG), **changed})


def _as_stored(name: str, places: dict[str, Any], own: tokenizers.Tokenizer, built: Any) -> Any:
    """Return the tokenizer of a file, with transformers' other settings.

    `own` is the content of tokenizer.json, and gets the added tokens of the other files. `built` is
    the tokenizer that transformers builds, if it can.
    """
    stored = transformers.TokenizersBackend.from_pretrained(name, **places)
    # Tokens that only the class of a tokenizer names count if the model knows them.
    known = [token for token in _added(built) if own.token_to_id(token.content) is not None]
    add_tokens_(own, (*known, *_added(stored)))
    stored._tokenizer = own
    if built is None:
        return stored
    stored.model_input_names = list(built.model_input_names)
    for attribute, token in built.special_tokens_map.items():
        if attribute in stored.SPECIAL_TOKENS_ATTRIBUTES and own.token_to_id(token) is not None:
            setattr(stored, attribute, token)
    return stored


def _added(tokenizer: Any) -> list[AddedToken]:
    """Return the added tokens of a tokenizer, in the order of their ids."""
    if tokenizer is None:
        return []
    return [token for _, token in sorted(tokenizer.added_tokens_decoder.items())]


def _parts(backend: tokenizers.Tokenizer) -> dict[str, Any]:
    """Return the parts of a tokenizer that its ids and decoded texts depend on, by name."""
    steps = {
        "normalizer": backend.normalizer,
        "pre-tokenizer": backend.pre_tokenizer,
        "post-processor": backend.post_processor,
        "decoder": backend.decoder,
    }
    states = {
        name: None if step is None else json.loads(step.__getstate__())
        for name, step in steps.items()
    }
    added = sorted(backend.get_added_tokens_decoder().items())
    states["added tokens"] = [(index, token.__getstate__()) for index, token in added]
    return {**states, "model": backend.model.__getstate__()}


def _parts_that_differ(built: Any, own: tokenizers.Tokenizer) -> set[str]:
    """Return the names of the parts that differ; none for a tokenizer in Python."""
    if not built.is_fast:
        return set()
    mine, theirs = _parts(own), _parts(built.backend_tokenizer)
    # A decoder makes texts of ids.
    return {name for name, part in theirs.items() if part != mine[name]} - {"decoder"}


def _ids(tokenizer: Any, text: str) -> Any:
    """Return ids and segments of a text, alone and in a pair; `None` if the library fails."""
    try:
        found = [tokenizer(*texts, verbose=False) for texts in ((text,), ("A text.", text))]
    except Exception:
        return None
    return [[each[name] for name in sorted(each)] for each in found]


def _version() -> str:
    return str(transformers.__version__).partition(".")[0]
