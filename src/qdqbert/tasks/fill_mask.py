"""Masked language models: how well they guess tokens that were masked. Labels are not read.

Tokens are masked as BERT's are in training, and as transformers' run_mlm masks for its perplexity:
of those chosen 80 % become [MASK], 10 % a random token, and 10 % stay.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.encoding import Batch
from qdqbert.errors import CheckpointError
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
from qdqbert.tasks.texts import encode_together, read_texts
from qdqbert.tasks.tokens import (
    keep_rows,
    likeliest,
    log_probabilities,
    score_tokens,
    token_metrics,
)

Place = tuple[NDArray[np.int32], NDArray[np.int32]]
"""Positions that are guessed in a row, and the true ids there."""


def _encode(
    examples: Sequence[Any],
    tokenizer: Any,
    *,
    input_names: Sequence[str],
    max_length: int,
    options: TaskOptions,
) -> Features:
    """One row a text, with masks; `places` has a `Place` for each."""
    if tokenizer.mask_token_id is None:
        raise CheckpointError(
            "The tokenizer has no mask token, which fill-mask needs; expected one as [MASK]. Set "
            "`mask_token` in tokenizer_config.json."
        )
    features = encode_together(
        examples, tokenizer, input_names=input_names, max_length=max_length, options=options
    )
    # An unknown token is special too: which word it was, no model can tell.
    special = np.array(tokenizer.all_special_ids)
    keep = [not np.isin(row["input_ids"], special).all() for row in features.encoded.rows]
    features = keep_rows(features, keep, "have no token to mask")
    rows, places = [], []
    for row in features.encoded.rows:
        masked, place = mask_tokens(
            row["input_ids"],
            special=special,
            mask=tokenizer.mask_token_id,
            vocab_size=len(tokenizer),
            options=options,
        )
        rows.append({**row, "input_ids": masked})
        places.append(place)
    return dataclasses.replace(
        features,
        encoded=dataclasses.replace(features.encoded, rows=tuple(rows)),
        places=tuple(places),
    )


def mask_tokens(
    ids: NDArray[np.int32],
    *,
    special: NDArray[np.int64],
    mask: int,
    vocab_size: int,
    options: TaskOptions,
) -> tuple[NDArray[np.int32], Place]:
    """Masks a share of a text's tokens, at least one; which, its ids and the seed alone decide.

    Args:
        ids: Shape `(tokens,)`, not all of them special.
        special: Ids that are never masked.
        mask: Id of [MASK].
        vocab_size: Random tokens are drawn from ids below.
        options: `mlm_probability` and `seed`.

    Returns:
        The ids with masks, and what was there.

    Source: BERT, section 3.1; transformers, `DataCollatorForLanguageModeling`.
    """
    rng = np.random.default_rng([options.seed, zlib.crc32(ids.astype("<i4").tobytes())])
    open_positions = np.flatnonzero(~np.isin(ids, special))
    chosen = open_positions[rng.random(len(open_positions)) < options.mlm_probability]
    if not len(chosen):
        chosen = rng.choice(open_positions, size=1)
    draws = rng.random(len(chosen))
    randoms = rng.integers(vocab_size, size=len(chosen))
    masked = ids.copy()
    masked[chosen] = np.where(draws < 0.8, mask, np.where(draws < 0.9, randoms, ids[chosen]))
    return masked, (chosen.astype(np.int32), ids[chosen])


def _rows(
    outputs: Mapping[str, NDArray[np.float32]], batch: Batch, features: Features
) -> list[Prediction]:
    places: list[Place] = [features.places[index] for index in batch.indices]
    return [
        score_tokens(logits[positions], ids)
        for logits, (positions, ids) in zip(outputs["logits"], places, strict=True)
    ]


def _metrics(
    rows: Predictions, features: Features, id2label: Mapping[int, str], options: TaskOptions
) -> list[Metric]:
    del id2label, options
    return token_metrics(rows, [ids for _, ids in features.places])


def _labels(features: Features, id2label: Mapping[int, str]) -> list[Labels]:
    """The true ids where the text is masked, and -100, which losses leave out, elsewhere."""
    del id2label
    labels = []
    for row, (positions, ids) in zip(features.encoded.rows, features.places, strict=True):
        wanted = np.full(row["input_ids"].shape, IGNORED, dtype=np.int64)
        wanted[positions] = ids
        labels.append({"labels": wanted})
    return list(labels)


FILL_MASK = Task(
    name="fill-mask",
    read=read_texts,
    encode=_encode,
    rows=_rows,
    metrics=_metrics,
    decisions=likeliest,
    labels=_labels,
    signal=log_probabilities,
)
