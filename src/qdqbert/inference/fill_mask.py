"""Words for masked places of texts, with the interface of transformers' pipeline "fill-mask"."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.errors import CheckpointError, UserInputError
from qdqbert.inference.classification import apply
from qdqbert.runtime.batches import Results
from qdqbert.runtime.inputs import check_batch_size, check_text, listed_texts
from qdqbert.runtime.model import Model, TextEncoder
from qdqbert.runtime.options import AnswerOptions
from qdqbert.runtime.rows import RowFormat, always
from qdqbert.runtime.scheduler import Encoded
from qdqbert.tables.rows import Column

_LOGGER = logging.getLogger("qdqbert")

Best = tuple[NDArray[np.float32], NDArray[np.int64]]
"""Probabilities and ids of the best tokens of each mask, best first. Shape `(masks, top_k)`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Fill(TextEncoder):
    """The job whose answer is the best tokens for each mask; see `Job`.

    Attributes:
        mask_id: Id of the mask token.
        top_k: Number of tokens for each mask.
        targets: Ids of the tokens to choose from; `None` for all.
    """

    mask_id: int
    top_k: int
    targets: NDArray[np.int64] | None

    def encode(self, items: Sequence[Any]) -> list[Encoded]:
        """Return the model inputs of each text."""
        made = super().encode([check_text(item) for item in items])
        return [
            each
            if self.mask_id in each.features[0]["input_ids"]
            else Encoded(features=(), error=self._error(item, truncated=each.truncated))
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

    def answer(self, item: Any, encoded: Encoded, values: Sequence[Best]) -> list[Any]:
        """Return the best tokens; one list for each mask, if there are several."""
        del item
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


def _fills(answer: Any, options: AnswerOptions) -> tuple[Any, ...]:
    del options
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

    def __call__(
        self,
        inputs: str | Sequence[str],
        *,
        top_k: int = 5,
        targets: str | Sequence[str] | None = None,
        batch_size: int | None = None,
    ) -> Any:
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
        check_batch_size(batch_size)
        texts = listed_texts(inputs, "inputs")
        answers = self._all(self.job(top_k=top_k, targets=targets), texts)
        return answers[0] if len(answers) == 1 else answers

    def job(self, *, top_k: int = 5, targets: str | Sequence[str] | None = None) -> _Fill:
        """Return the job of a call with these options, for `stream`."""
        if top_k < 1:
            raise UserInputError(f"`top_k` must be at least 1, got {top_k}.", argument="top_k")
        tokenizer = self._loaded.tokenizer
        mask_id = tokenizer.special_id("mask_token")
        if mask_id is None:
            raise CheckpointError(
                "The tokenizer has no mask token. Set `mask_token` in tokenizer_config.json."
            )
        return _Fill(
            tokenizer=tokenizer,
            input_names=self._loaded.artifact.input_names,
            mask_id=mask_id,
            top_k=top_k,
            targets=None if targets is None else self._ids(targets),
        )

    def _ids(self, targets: str | Sequence[str]) -> NDArray[np.int64]:
        """Return the ids of the targets."""
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
