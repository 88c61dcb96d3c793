"""Keep the tokens of a model that some texts need."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qdqbert.encoders.model import EncoderModel, Linear
from qdqbert.errors import UserInputError
from qdqbert.pipeline.source import Source
from qdqbert.progress import Progress
from qdqbert.task_kinds import TASK_KINDS
from qdqbert.tasks.lines import counted, read_lines
from qdqbert.tokenizing.trimming import trimmed, used_ids

_BATCH = 1000


def keep_vocabulary(source: Source, path: str | Path, progress: Progress) -> Source:
    """Return a model without the tokens that no line of a file has.

    The lines keep their tokens, which is checked for each of them, and the rows of the table of
    words are copied. So the float model computes the same for them.

    Args:
        source: The model.
        path: A text file.
        progress: Shows the work.

    Raises:
        UserInputError: The file cannot be read, or the model scores its vocabulary, has settings
            that name tokens, or is an .onnx file.
    """
    encoder = source.encoder
    before = len(encoder.embeddings.words.rows)
    _check(source, before)
    lines = [text for _, text in read_lines(path) if text.strip()]
    if not lines:
        raise UserInputError(
            f"`keep_vocabulary={str(path)!r}` has no text. Name a file with a text in each line.",
            argument="keep_vocabulary",
        )
    whole = copy.deepcopy(source.tokenizer.backend_tokenizer)
    # Some files have a length, which `max_length` replaces.
    whole.no_padding()
    whole.no_truncation()
    batches = [lines[start : start + _BATCH] for start in range(0, len(lines), _BATCH)]
    used = _named_ids(source)
    with progress.stage("Keeping the vocabulary", 2 * len(batches)) as advance:
        for batch in batches:
            used |= used_ids(whole, batch)
            advance()
        kept, ids = trimmed(whole, used)
        new = {old: index for index, old in enumerate(ids)}
        for batch in batches:
            found, expected = (each.encode_batch_fast(batch) for each in (kept, whole))
            for text, one, other in zip(batch, found, expected, strict=True):
                if one.ids != [new[token] for token in other.ids]:
                    raise UserInputError(
                        f"`keep_vocabulary`: with fewer tokens, this text gets others: {text!r}. "
                        "Leave the option out.",
                        argument="keep_vocabulary",
                    )
            advance()
    tokenizer = copy.deepcopy(source.tokenizer)
    tokenizer._tokenizer = kept
    notice = (
        f"Kept {len(ids):,} of {before:,} tokens: all that {counted(len(lines), 'line')} of "
        f"{Path(path).name!r} use, and those that the tokenizer needs. Each line was tokenized "
        "again: its tokens are the same, and so are their vectors. Other words are split into "
        "more tokens or characters."
    )
    return dataclasses.replace(
        source,
        tokenizer=tokenizer,
        config=_config(source.config, new),
        encoder=_with_rows(encoder, ids, new),
        notices=(*source.notices, notice),
    )


def _check(source: Source, rows: int) -> None:
    """Refuse models whose vocabulary cannot be cut.

    Raises:
        UserInputError: The model is one of them.
    """
    steps = itertools.chain.from_iterable(head.steps for head in source.encoder.heads)
    scores_words = any(isinstance(each, Linear) and len(each.bias) == rows for each in steps)
    reason = None
    if source.graph is not None:
        reason = "applies to checkpoints, and the model is an .onnx file"
    elif not source.tokenizer.is_fast:
        reason = "needs a tokenizer.json"
    elif scores_words:
        reason = "does not apply to models that score each word of their vocabulary"
    elif TASK_KINDS[source.task.name].is_multi_vector:
        reason = "does not apply to multi-vector embedders, whose settings name tokens"
    if reason is not None:
        raise UserInputError(
            f"`keep_vocabulary` {reason}. Leave it out.", argument="keep_vocabulary"
        )


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
    words = dataclasses.replace(embeddings.words, rows=embeddings.words.rows[ids])
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
