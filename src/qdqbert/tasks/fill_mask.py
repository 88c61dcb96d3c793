"""Masked language models, scored by how well they predict masked tokens. Labels are not read.

Tokens are masked as in BERT's training, and in transformers' run_mlm: of the chosen tokens 80 %
become [MASK], 10 % a random token that is not special, and 10 % stay.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.errors import CheckpointError
from qdqbert.runtime.batches import Results
from qdqbert.task_kinds import TaskSettings
from qdqbert.tasks.data import read_dataset
from qdqbert.tasks.task import (
    IGNORED,
    Answer,
    Features,
    Labels,
    Prediction,
    Predictions,
    Score,
    Task,
    accept_all,
)
from qdqbert.tasks.texts import encode_texts
from qdqbert.tasks.tokens import (
    keep_examples,
    log_probabilities,
    most_likely_tokens,
    score_tokens,
    token_answers,
    token_scores,
)
from qdqbert.tokenizing.tokenizer import Tokenizer

Place = tuple[NDArray[np.int32], NDArray[np.int32]]
"""The positions of a feature that are predicted, and the true ids there. Shape `(tokens,)` each."""


def _encode(
    examples: Sequence[Any],
    tokenizer: Tokenizer,
    *,
    input_names: Sequence[str],
    max_length: int,
    options: TaskSettings,
) -> Features:
    """Make one feature of each text, with masks. `places` has a `Place` for each."""
    mask = tokenizer.special_id("mask_token")
    if mask is None:
        raise CheckpointError(
            "The tokenizer has no mask token, which fill-mask needs; expected one such as [MASK]. "
            "Set `mask_token` in tokenizer_config.json."
        )
    features = encode_texts(
        examples, tokenizer, input_names=input_names, max_length=max_length, options=options
    )
    # Unknown tokens are special too: no model can predict which word they stand for.
    special = tokenizer.special_ids
    keep = [not np.isin(each["input_ids"], special).all() for each in features.encoded.inputs]
    features = keep_examples(features, keep, why="without a token to mask")
    words = np.setdiff1d(np.arange(tokenizer.backend.get_vocab_size(), dtype=np.int32), special)
    inputs, places = [], []
    for each in features.encoded.inputs:
        masked, place = mask_tokens(
            each["input_ids"],
            special=special,
            mask=mask,
            words=words,
            options=options,
        )
        inputs.append({**each, "input_ids": masked})
        places.append(place)
    return dataclasses.replace(
        features,
        encoded=dataclasses.replace(features.encoded, inputs=tuple(inputs)),
        places=tuple(places),
    )


def mask_tokens(
    ids: NDArray[np.int32],
    *,
    special: NDArray[np.int64],
    mask: int,
    words: NDArray[np.int32],
    options: TaskSettings,
) -> tuple[NDArray[np.int32], Place]:
    """Mask a share of a text's tokens, at least one. The choice depends on ids and seed only.

    Args:
        ids: Ids of the tokens, at least one of which is not special. Shape `(tokens,)`.
        special: Ids that are never masked. Shape `(special tokens,)`.
        mask: Id of [MASK].
        words: Ids that random tokens are drawn from, none of them special. Shape `(words,)`.
        options: Options `mlm_probability` and `seed` are read.

    Returns:
        The masked ids, shape `(tokens,)`; and the place of the original ones.

    Source: BERT, section 3.1; transformers, `DataCollatorForLanguageModeling`.
    """
    rng = np.random.default_rng([options.seed, zlib.crc32(ids.astype("<i4").tobytes())])
    candidates = np.flatnonzero(~np.isin(ids, special))
    chosen = candidates[rng.random(len(candidates)) < options.mlm_probability]
    if not len(chosen):
        chosen = rng.choice(candidates, size=1)
    draws = rng.random(len(chosen))
    randoms = rng.choice(words, size=len(chosen))
    masked = ids.copy()
    masked[chosen] = np.where(draws < 0.8, mask, np.where(draws < 0.9, randoms, ids[chosen]))
    return masked, (chosen.astype(np.int32), ids[chosen])


def _predictions(results: Results) -> list[Prediction]:
    return [
        score_tokens(logits[positions], ids)
        for logits, (positions, ids) in zip(results.outputs["logits"], results.places, strict=True)
    ]


def _scores(
    predictions: Predictions,
    features: Features,
    id2label: Mapping[int, str],
    options: TaskSettings,
) -> list[Score]:
    del id2label, options
    return token_scores(predictions, _true_ids(features))


def _true_ids(features: Features) -> list[NDArray[np.int32]]:
    """Return the ids that are predicted for each feature."""
    return [ids for _, ids in features.places]


def _answers(
    predictions: Predictions,
    features: Features,
    *,
    tokenizer: Any,
    id2label: Mapping[int, str],
    options: TaskSettings,
) -> list[Answer]:
    del id2label, options
    return token_answers(predictions, features, _true_ids(features), tokenizer)


def _labels(features: Features, id2label: Mapping[int, str]) -> list[Labels]:
    """Return the true ids at the masked positions, and -100, which losses ignore, elsewhere."""
    del id2label
    labels: list[Labels] = []
    for each, (positions, ids) in zip(features.encoded.inputs, features.places, strict=True):
        true_ids = np.full(each["input_ids"].shape, IGNORED, dtype=np.int64)
        true_ids[positions] = ids
        labels.append({"labels": true_ids})
    return labels


FILL_MASK = Task(
    name="fill-mask",
    read=read_dataset,
    encode=_encode,
    check_labels=accept_all,
    predictions=_predictions,
    scores=_scores,
    decided="token",
    decisions=most_likely_tokens,
    labels=_labels,
    answers=_answers,
    signal=log_probabilities,
)
