"""Masked language models, scored by how well they predict masked tokens. Labels are not read.

Tokens are masked as in BERT's training, and in transformers' run_mlm: of the chosen tokens 80 %
become [MASK], 10 % a random token that is not special, and 10 % stay. The model has the interface
of transformers' pipeline "fill-mask".
"""

from __future__ import annotations

import dataclasses
import logging
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.common.errors import CheckpointError, UserInputError
from qdqbert.common.keywords import suggest_keywords
from qdqbert.data.tables.rows import Column
from qdqbert.data.tokenizing.tokenizer import Tokenizer
from qdqbert.encoders.task_kinds import TaskSettings
from qdqbert.runtime.batches import Results
from qdqbert.runtime.inputs import check_text, check_whole, listed_texts
from qdqbert.runtime.model import Model, TextEncoder
from qdqbert.runtime.options import AnswerOptions
from qdqbert.runtime.routes import TaskRoute
from qdqbert.runtime.rows import RowFormat, always
from qdqbert.runtime.scheduler import EncodedItem
from qdqbert.tasks.logits import apply
from qdqbert.tasks.task import IGNORED, Features, Labels, Prediction, Tokenization
from qdqbert.tasks.texts import encode_texts
from qdqbert.tasks.tokens import keep_examples, score_tokens, token_task

Place = tuple[NDArray[np.int32], NDArray[np.int32]]
"""The positions of a feature that are predicted, and the true ids there. Shape `(tokens,)` each."""


def _mask_id(tokenizer: Tokenizer) -> int:
    found = tokenizer.special_id("mask_token")
    if found is None:
        raise CheckpointError(
            "The tokenizer has no mask token, which fill-mask needs; expected one such as [MASK]. "
            "Set `mask_token` in tokenizer_config.json."
        )
    return found


def _encode(examples: Sequence[Any], how: Tokenization) -> Features:
    """Make one feature of each text, with masks. `places` has a `Place` for each."""
    mask = _mask_id(how.tokenizer)
    features = encode_texts(examples, how)
    # Unknown tokens are special too: no model can predict which word they stand for.
    special = how.tokenizer.special_ids
    keep = [not np.isin(each["input_ids"], special).all() for each in features.encoded.inputs]
    features = keep_examples(features, keep, why="without a token to mask")
    words = np.setdiff1d(np.arange(how.tokenizer.backend.get_vocab_size(), dtype=np.int32), special)
    inputs, places = [], []
    for each in features.encoded.inputs:
        masked, place = mask_tokens(
            each["input_ids"], special=special, mask=mask, words=words, options=how.settings
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


def _true_ids(features: Features) -> list[NDArray[np.int32]]:
    """Return the ids that are predicted for each feature."""
    return [ids for _, ids in features.places]


def _labels(features: Features, _: Mapping[int, str]) -> list[Labels]:
    """Return the true ids at the masked positions, and -100, which losses ignore, elsewhere."""
    labels: list[Labels] = []
    for each, (positions, ids) in zip(features.encoded.inputs, features.places, strict=True):
        true_ids = np.full(each["input_ids"].shape, IGNORED, dtype=np.int64)
        true_ids[positions] = ids
        labels.append({"labels": true_ids})
    return labels


_LOGGER = logging.getLogger("qdqbert")

Best = tuple[NDArray[np.float32], NDArray[np.int64]]
"""Probabilities and ids of the best tokens of each mask, best first. Shape `(masks, top_k)`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Fill(TextEncoder):
    """The job whose answer is the best tokens for each mask; see `Job`.

    Attributes:
        top_k: Number of tokens for each mask.
        targets: Ids of the tokens to choose from; `None` for all.
    """

    mask_id: int
    top_k: int
    targets: NDArray[np.int64] | None

    def encode(self, items: Sequence[Any]) -> list[EncodedItem]:
        """Return the model inputs of each text."""
        made = super().encode([check_text(item) for item in items])
        return [
            each
            if self.mask_id in each.features[0]["input_ids"]
            else EncodedItem(features=(), error=self._error(item, truncated=each.truncated))
            for item, each in zip(items, made, strict=True)
        ]

    def _error(self, item: str, *, truncated: bool) -> UserInputError:
        mask = self.tokenizer.special_token("mask_token")
        where = f" in its first {self.tokenizer.max_length} tokens" * truncated
        return UserInputError(
            f"Each text must have a mask token {mask!r}; {item!r:.60} has none{where}."
        )

    def split(self, results: Results) -> Sequence[Best]:
        """Return the best tokens for each mask. The rest of the logits is not kept."""
        return [
            self._best(logits[np.flatnonzero(feature["input_ids"] == self.mask_id)])
            for logits, feature in zip(results.outputs["logits"], results.features, strict=True)
        ]

    def _best(self, logits: NDArray[np.float32]) -> Best:
        scores = apply("softmax", logits)
        if self.targets is not None:
            logits, scores = logits[:, self.targets], scores[:, self.targets]
        count = min(self.top_k, scores.shape[1])
        # Sorting a whole vocabulary would take longer. Many scores are 0, unlike their logits.
        best = np.argpartition(-logits, count - 1, axis=1)[:, :count]
        order = np.argsort(-np.take_along_axis(logits, best, axis=1), axis=1, kind="stable")
        best = np.take_along_axis(best, order, axis=1)
        ids = best if self.targets is None else self.targets[best]
        return np.take_along_axis(scores, best, axis=1), ids

    def answer(self, _: Any, encoded: EncodedItem, values: Sequence[Best]) -> list[Any]:
        """Return the best tokens; one list for each mask, if there are several."""
        ids = encoded.features[0]["input_ids"]
        places = np.flatnonzero(ids == self.mask_id)
        pad = self.tokenizer.special_id("pad_token")
        filled = []
        for place, scores, tokens in zip(places, *values[0], strict=True):
            row = []
            for score, token in zip(scores.tolist(), tokens.tolist(), strict=True):
                sequence = ids.copy()
                sequence[place] = token
                row.append(
                    {
                        "score": score,
                        "token": token,
                        "token_str": self.tokenizer.decode([token]),
                        # Other masks have to stay visible.
                        "sequence": self.tokenizer.decode(
                            sequence[sequence != pad].tolist(), skip_special=len(places) == 1
                        ),
                    }
                )
            filled.append(row)
        return filled[0] if len(filled) == 1 else filled


_FILLS = Column(
    name="fills",
    kind="record_lists",
    fields=(("score", "number"), ("token", "integer"), ("token_str", "text"), ("sequence", "text")),
)


def _fills(answer: Any, _: AnswerOptions) -> tuple[Any, ...]:
    # A text with one mask has one list, without a list around it.
    return ([answer] if isinstance(answer[0], dict) else answer,)


class MaskFiller(Model):
    """Fills masked places of texts with tokens."""

    rows = RowFormat(
        name="a masked language model",
        options=("top_k",),
        columns=always(_FILLS),
        job=lambda model, options: model.job(top_k=options.top_k or 5),
        values=_fills,
    )

    @suggest_keywords
    def __call__(
        self,
        inputs: str | Sequence[str],
        *,
        top_k: int = 5,
        targets: str | Sequence[str] | None = None,
        batch_size: int | None = None,
    ) -> list[Any]:
        """Fill masks, as transformers' pipeline "fill-mask" does.

        Args:
            inputs: A text with at least one mask token, "[MASK]" for BERT, or a list of them.
            top_k: Number of tokens for each mask, best first.
            targets: Words to choose from, or a single word. The first token of a word that is not
                in the vocabulary is used, which is logged. All tokens by default.
            batch_size: Has no effect. It is there for code that passes it to transformers.

        Returns:
            For each text a list of `{"score": ..., "token": ..., "token_str": ..., "sequence":
            ...}`, or such a list for each of its masks, if it has several. As in transformers, the
            result for a list with one text is not in a list.

        Raises:
            UserInputError: A text has no mask token, or an option has a wrong value.
            CheckpointError: The tokenizer has no mask token.

        Example:
            >>> model("The [MASK] sat on the mat.", top_k=1)
            [{'score': 0.31, 'token': 4937, 'token_str': 'cat',
              'sequence': 'the cat sat on the mat.'}]
        """
        check_whole("batch_size", batch_size, at_least=1)
        texts = listed_texts(inputs, "inputs")
        answers = self._all(self.job(top_k=top_k, targets=targets), texts)
        return answers[0] if len(answers) == 1 else answers

    @suggest_keywords
    def job(self, *, top_k: int = 5, targets: str | Sequence[str] | None = None) -> _Fill:
        """Return the job of a call with these options, for `stream`."""
        check_whole("top_k", top_k, at_least=1)
        tokenizer = self._loaded.tokenizer
        return _Fill(
            tokenizer=tokenizer,
            input_names=self._loaded.artifact.input_names,
            mask_id=_mask_id(tokenizer),
            top_k=top_k,
            targets=None if targets is None else self._ids(targets),
        )

    def _ids(self, targets: str | Sequence[str]) -> NDArray[np.int64]:
        backend = self._loaded.tokenizer.backend
        ids: set[int] = set()
        for target in listed_texts(targets, "targets"):
            found = backend.token_to_id(target)
            if found is None:
                pieces = backend.encode(target, add_special_tokens=False)
                found = next(iter(pieces.ids), None)
                used = "it is left out" if found is None else f"{pieces.tokens[0]!r} is used"
                _LOGGER.warning("Target %r is not in the vocabulary: %s.", target, used)
            if found is not None:
                ids.add(found)
        if not ids:
            raise UserInputError(
                f"`targets={targets!r}` has no word that can be used. Pass at least one.",
                argument="targets",
            )
        return np.array(sorted(ids), dtype=np.int64)


FILL_MASK = token_task(
    "fill-mask",
    _true_ids,
    encode=_encode,
    predictions=_predictions,
    settings=("mlm_probability",),
    labels=_labels,
    model=MaskFiller,
    route=TaskRoute(
        inputs=(str,), parameters={"top_k": 5, "targets": None}, example="A fine [MASK]."
    ),
)
