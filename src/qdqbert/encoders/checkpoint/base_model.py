"""Files that a checkpoint lacks, made once and kept in the cache: tokenizer.json, config.json.

Checkpoints of DeBERTa may have the vocabulary of sentencepiece only, `spm.model`. Older ones of
gliner have neither a tokenizer nor a config, but the name of the model that has them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from qdqbert.common.cache import kept_digest, kept_folder
from qdqbert.common.errors import CheckpointError
from qdqbert.common.file_names import (
    ADDED_TOKENS,
    CONFIG,
    SPECIAL_TOKENS,
    SPM,
    TOKENIZER,
    TOKENIZER_CONFIG,
)
from qdqbert.common.files import write_json
from qdqbert.common.json_files import parse_object, read_json
from qdqbert.data.tokenizing.sentencepiece_model import read_sentencepiece
from qdqbert.data.tokenizing.tokenizer_files import (
    merged_settings,
    no_tokenizer,
    read_tokenizer,
    with_named_tokens,
    without_tokens,
)
from qdqbert.encoders.checkpoint.gliner import (
    ENCODER_FIELDS,
    GLINER_CONFIG,
    LABELS_FIELDS,
    GlinerHead,
)
from qdqbert.encoders.checkpoint.own_layers import SpanHead, count_or_none
from qdqbert.encoders.checkpoint.sentence_files import (
    FindFile,
    ReadFile,
    SentenceFiles,
    file_finder,
    join,
    text_reader,
)

# Folder of the tokenizer of the labels, in checkpoints with an encoder for them.
_LABELS_TOKENIZER = "labels_tokenizer"
# Version of the folders.
_VERSION = "2"
# transformers' class of tokenizers that have the file of sentencepiece.
_CLASS = "DebertaV2Tokenizer"
# Settings that name added tokens.
_ADDED = ("added_tokens_decoder", "additional_special_tokens", "extra_special_tokens")
_SETTINGS = (TOKENIZER_CONFIG, SPECIAL_TOKENS, ADDED_TOKENS)


def completed_folder(layout: object, find: FindFile, name: str, subfolder: str) -> Path | None:
    """Return a folder with the tokenizer of a checkpoint that lacks tokenizer.json, if it can.

    With a config.json, it has the config, too. It is made once, and is in the cache.

    Args:
        layout: The layout of the checkpoint.
        find: Finds its files.
        name: Its folder or hub id, for messages.
        subfolder: Folder of the encoder in it.

    Returns:
        The folder; `None` for a checkpoint with tokenizer.json, or without all of this.

    Raises:
        CheckpointError: A file is missing or damaged, or the model that a checkpoint of gliner
            names is neither a folder nor on the hub.
    """
    if isinstance(layout, GlinerHead):
        return _of_gliner(layout, find, name)
    if find(join(subfolder, TOKENIZER)) is not None:
        return None
    vocabulary = find(join(subfolder, SPM))
    if vocabulary is None:
        return None
    settings = _settings(_within(find, subfolder), vocabulary)

    def write(folder: Path) -> None:
        _write(read_sentencepiece(vocabulary, settings), settings, folder)

    return kept_folder(_key("spm", _digest(vocabulary), settings), write)


def config_of_encoder(layout: SpanHead, completed: Path | None) -> dict[str, Any]:
    """Return the config of an encoder that its package has elsewhere than in config.json.

    Args:
        layout: The layout of the checkpoint.
        completed: See `completed_folder`.
    """
    if completed is not None and (completed / CONFIG).is_file():
        return read_json(completed / CONFIG)
    return layout.encoder_values()


def encoder_reader(files: SentenceFiles, layout: object, name: str) -> ReadFile:
    """Return a reader of files whose config.json is the encoder's.

    Args:
        files: The files of a checkpoint.
        layout: Its layout.
        name: Its folder or hub id, for messages.
    """
    if not isinstance(layout, SpanHead):
        return files.read
    values = config_of_encoder(layout, completed_folder(layout, files.find, name, ""))
    text = json.dumps(values)
    return lambda path: text if path == CONFIG else files.read(path)


def labels_folder(head: GlinerHead, find: FindFile, name: str) -> Path:
    """Return a folder with config and tokenizer of the encoder of labels; see `completed_folder`.

    Raises:
        CheckpointError: As there.
    """
    own = _within(find, _LABELS_TOKENIZER)
    place = join(name, _LABELS_TOKENIZER)
    has_tokenizer = own(TOKENIZER_CONFIG) is not None
    vocabulary, settings, given = _parts(
        head, own if has_tokenizer else None, name, place, LABELS_FIELDS
    )

    def write(folder: Path) -> None:
        _write(_tokenizer(vocabulary, settings), settings, folder)
        write_json(folder / CONFIG, head.labels_encoder_values(given))

    text = head.files[GLINER_CONFIG]
    return kept_folder(_key("labels", text, _digest(vocabulary), settings, given), write)


def _of_gliner(head: GlinerHead, find: FindFile, name: str) -> Path | None:
    own = head.values.get(ENCODER_FIELDS[0])
    is_complete = isinstance(own, Mapping) and find(TOKENIZER) is not None
    if is_complete and not head.has_labels_encoder:
        return None
    # gliner looks for the second one.
    has_tokenizer = any(find(each) is not None for each in (TOKENIZER, TOKENIZER_CONFIG))
    vocabulary, settings, given = _parts(
        head, find if has_tokenizer else None, name, name, ENCODER_FIELDS
    )

    def write(folder: Path) -> None:
        made, kept = _tokenizer(vocabulary, settings), settings
        if head.has_labels_encoder:
            # gliner adds tokens for the labels, which have no rows and are not read.
            rows = count_or_none((own or given).get("vocab_size"))
            made = made if rows is None else without_tokens(made, rows)
            kept = {name: each for name, each in settings.items() if name not in _ADDED}
        head.prepare_tokenizer_(made)
        _write(made, kept, folder)
        size = made.get_vocab_size()
        write_json(folder / CONFIG, head.encoder_values(given, vocab_size=size))

    text = head.files[GLINER_CONFIG]
    return kept_folder(_key(text, _digest(vocabulary), settings, given), write)


def _parts(
    head: GlinerHead, own: FindFile | None, name: str, place: str, fields: tuple[str, str]
) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """Return the vocabulary, the settings of the tokenizer and the config of an encoder.

    Args:
        head: Settings of the checkpoint.
        own: Finds the files of the tokenizer; `None` for those of the model that is named.
        name: The checkpoint, for messages.
        place: Where `own` looks, for messages.
        fields: Names of the settings with the encoder's config, and with the name of a model that
            has what the checkpoint lacks. A config in the settings is not returned.
    """
    has_config = isinstance(head.values.get(fields[0]), Mapping)
    if own is not None and has_config:
        vocabulary = _vocabulary(own, place)
        return vocabulary, _settings(own, vocabulary), {}
    base = file_finder(_base_folder(head.values, fields[1], name))
    named = head.values[fields[1]]
    vocabulary = _vocabulary(own or base, named if own is None else place)
    given = {} if has_config else _config(base, named, name)
    return vocabulary, _settings(own or base, vocabulary), given


def _within(find: FindFile, folder: str) -> FindFile:
    """Return a finder of the files in a folder of a checkpoint."""
    return lambda path: find(join(folder, path))


def _vocabulary(find: FindFile, name: str) -> Path:
    found = find(TOKENIZER) or find(SPM)
    if found is None:
        raise no_tokenizer(Path(name), name)
    return found


def _config(find: FindFile, base: str, name: str) -> dict[str, Any]:
    path = find(CONFIG)
    if path is None:
        raise CheckpointError(
            f"{base!r}, which {GLINER_CONFIG} of {name!r} names, has no {CONFIG}."
        )
    return read_json(path)


def _base_folder(values: Mapping[str, Any], field: str, name: str) -> Path:
    """Return the folder of the model that a field of the settings of gliner names."""
    base = values.get(field)
    if not isinstance(base, str) or not base:
        raise CheckpointError(
            f"{name!r} has no config or no tokenizer of its own, and {GLINER_CONFIG} names no "
            f"model that has them: `{field}` is {base!r:.80}."
        )
    if Path(base).is_dir():
        return Path(base)
    # It loads the hub's library, which local folders do not need.
    from qdqbert.encoders.checkpoint.hub import check_hub_model, download

    files = (CONFIG, TOKENIZER, *_SETTINGS, SPM)
    try:
        check_hub_model(base)
        return download(base, files)
    except CheckpointError as error:
        raise CheckpointError(
            f"{name!r} has no config or no tokenizer of its own; {GLINER_CONFIG} names the model "
            f"that has them, `{field}={base!r}`. {error} Without a connection, copy {CONFIG}, "
            f"{TOKENIZER} or {SPM}, and {TOKENIZER_CONFIG} of that model into a folder, and write "
            f"its path as `{field}`."
        ) from error


def _tokenizer(path: Path, settings: Mapping[str, Any]) -> tokenizers.Tokenizer:
    if path.name == SPM:
        return read_sentencepiece(path, settings)
    return with_named_tokens(
        read_tokenizer(path), settings, path.parent / TOKENIZER_CONFIG
    ).tokenizer


def _settings(find: FindFile, vocabulary: Path) -> dict[str, Any]:
    """Return the settings of a tokenizer, of all files that have some."""
    read = text_reader(find)
    found = merged_settings(*(parse_object(read(each) or "{}", each) for each in _SETTINGS))
    return {"tokenizer_class": _CLASS, **found} if vocabulary.name == SPM else found


def _write(made: tokenizers.Tokenizer, settings: Mapping[str, Any], folder: Path) -> None:
    made.save(str(folder / TOKENIZER))
    write_json(folder / TOKENIZER_CONFIG, settings)


def _digest(path: Path) -> str:
    try:
        return kept_digest(path)
    except OSError as error:
        raise CheckpointError(f"{str(path)!r} cannot be read: {error.strerror}.") from error


def _key(*content: Any) -> str:
    return "base-" + hashlib.sha256(json.dumps([_VERSION, *content]).encode()).hexdigest()[:32]
