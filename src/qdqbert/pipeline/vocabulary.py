"""Keep the tokens of a model that some texts, or texts of some scripts, need."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from qdqbert.common.errors import UserInputError
from qdqbert.common.objects import Downloaded
from qdqbert.common.progress import Progress
from qdqbert.data.rows.lines import counted, read_lines
from qdqbert.data.tokenizing.trimming import ids_of_scripts, trimmed, used_ids
from qdqbert.encoders.checkpoint.gliclass import LabelHead
from qdqbert.encoders.model import EncoderModel, Linear
from qdqbert.encoders.task_kinds import TASK_KINDS
from qdqbert.pipeline.prepare import Ready
from qdqbert.pipeline.source import Source

_BATCH = 1000


def keep_vocabulary(
    source: Source, path: str | Downloaded | None, scripts: Sequence[str], progress: Progress
) -> Source:
    """Return a model without the tokens that neither lines of a file nor texts of scripts have.

    The lines keep their tokens, which is checked for each of them, and the rows of the table of
    words are copied. So the float model computes the same for them.

    `path` is a text file; `None` for none.

    Raises:
        UserInputError: The file cannot be read, or the model scores its vocabulary, has settings
            that name tokens, or is an .onnx file.
    """
    encoder = source.encoder
    before = len(encoder.embeddings.words.rows)
    _check(source, before, "keep_scripts" if path is None else "keep_vocabulary")
    lines = [] if path is None else _lines(path)
    whole = _without_length(source.tokenizer)
    batches = [lines[start : start + _BATCH] for start in range(0, len(lines), _BATCH)]
    used = _named_ids(source) | used_ids(whole, [])
    if scripts:
        used |= ids_of_scripts(whole, scripts)
    with progress.stage("Keeping the vocabulary", 2 * len(batches)) as advance:
        for batch in batches:
            used |= used_ids(whole, batch)
            advance()
        kept, ids = trimmed(whole, used)
        for batch in batches:
            changed = next(iter(_changed(whole, kept, batch)), None)
            if changed is not None:
                raise UserInputError(
                    f"`keep_vocabulary`: with fewer tokens, this text gets others: {changed!r}. "
                    "Leave the option out.",
                    argument="keep_vocabulary",
                )
            advance()
    tokenizer = copy.deepcopy(source.tokenizer)
    tokenizer._tokenizer = kept
    new = {old: index for index, old in enumerate(ids)}
    return dataclasses.replace(
        source,
        tokenizer=tokenizer,
        config=_config(source.config, new),
        encoder=_with_rows(encoder, ids, new),
        notices=(*source.notices, _notice(len(ids), before, path, len(lines), scripts)),
    )


def with_changed_texts(ready: Ready, whole: Any) -> Ready:
    """Return a call whose notices say how many of its texts have other tokens than before.

    `whole` is the tokenizer with all tokens.
    """
    examples = (*ready.examples.calibration, *ready.examples.heldout)
    texts = list(dict.fromkeys(text for each in examples for text in each.content))
    changed = _changed(_without_length(whole), _without_length(ready.source.tokenizer), texts)
    notice = (
        f"{len(changed):,} of {counted(len(texts), 'different text')} of this call "
        f"({100 * len(changed) / max(len(texts), 1):.1f} %) have other tokens than with the whole "
        "vocabulary."
    )
    if changed:
        notice += f" The first one: {changed[0]!r:.100}."
    source = dataclasses.replace(ready.source, notices=(*ready.source.notices, notice))
    return dataclasses.replace(ready, source=source)


def _lines(path: str | Downloaded) -> list[str]:
    """Return the lines of a file that have text."""
    lines = [text for _, text in read_lines(Path(path)) if text.strip()]
    if not lines:
        raise UserInputError(
            f"`keep_vocabulary={str(path)!r}` has no text. Name a file with a text in each line.",
            argument="keep_vocabulary",
        )
    return lines


def _without_length(tokenizer: Any) -> tokenizers.Tokenizer:
    """Return a copy that neither cuts nor pads: some files have a length."""
    backend: tokenizers.Tokenizer = copy.deepcopy(tokenizer.backend_tokenizer)
    backend.no_padding()
    backend.no_truncation()
    return backend


def _changed(
    whole: tokenizers.Tokenizer, kept: tokenizers.Tokenizer, texts: Sequence[str]
) -> list[str]:
    """Return the texts that get other tokens."""

    # Not the tokens of an encoding, which are parts of the text where a token is unknown.
    def named(tokenizer: tokenizers.Tokenizer) -> list[list[str | None]]:
        found = tokenizer.encode_batch_fast(list(texts))
        return [[tokenizer.id_to_token(token) for token in each.ids] for each in found]

    pairs = zip(texts, named(whole), named(kept), strict=True)
    return [text for text, expected, found in pairs if found != expected]


def _notice(
    kept: int, before: int, path: str | Downloaded | None, lines: int, scripts: Sequence[str]
) -> str:
    parts = []
    if path is not None:
        parts.append(f"all that {counted(lines, 'line')} of {Path(path).name!r} use")
    if scripts:
        parts.append(
            f"all with characters of {', '.join(scripts)} or of no script (digits, punctuation)"
        )
    notice = (
        f"Kept {kept:,} of {before:,} tokens: {', '.join(parts)}, and those that the tokenizer "
        "needs."
    )
    if path is not None:
        notice += (
            " Each line was tokenized again: its tokens are the same, and so are their vectors."
        )
    return f"{notice} Other words are split into more tokens or characters."


def _check(source: Source, rows: int, argument: str) -> None:
    """Refuse models whose vocabulary cannot be cut."""
    steps = itertools.chain.from_iterable(head.steps for head in source.encoder.heads)
    scores_words = any(isinstance(each, Linear) and len(each.bias) == rows for each in steps)
    reason = None
    if source.graph is not None:
        reason = "applies to checkpoints, and the model is an .onnx file"
    elif not source.tokenizer.is_fast:
        reason = "needs a tokenizer.json"
    elif scores_words:
        reason = "does not apply to models that score each word of their vocabulary"
    elif TASK_KINDS[source.task.name].vectors == "tokens":
        reason = "does not apply to multi-vector embedders, whose settings name tokens"
    elif isinstance(source.head, LabelHead):
        reason = "does not apply to checkpoints of gliclass, whose settings have ids of tokens"
    if reason is not None:
        raise UserInputError(f"`{argument}` {reason}. Leave it out.", argument=argument)


def _named_ids(source: Source) -> set[int]:
    """Return the ids that the config and the model name."""
    embeddings, config = source.encoder.embeddings, source.config.to_dict()
    named = [value for name, value in config.items() if name.endswith("_token_id")]
    named += [embeddings.padding_id, embeddings.dropped_id]
    known = source.tokenizer.backend_tokenizer
    return {each for each in named if isinstance(each, int) and known.id_to_token(each) is not None}


def _with_rows(encoder: EncoderModel, ids: list[int], new: Mapping[int, int]) -> EncoderModel:
    embeddings = encoder.embeddings
    changed: dict[str, Any] = {
        name: new[value]
        for name in ("padding_id", "dropped_id")
        if (value := getattr(embeddings, name)) in new
    }
    words = dataclasses.replace(embeddings.words, rows=embeddings.words.rows[np.array(ids)])
    embeddings = dataclasses.replace(embeddings, words=words, **changed)
    return dataclasses.replace(encoder, embeddings=embeddings)


def _config(config: Any, new: Mapping[int, int]) -> Any:
    """Return a config with other ids of tokens."""
    changed = copy.deepcopy(config)
    changed.vocab_size = len(new)
    for name, value in config.to_dict().items():
        if name.endswith("_token_id") and value in new:
            setattr(changed, name, new[value])
    return changed
