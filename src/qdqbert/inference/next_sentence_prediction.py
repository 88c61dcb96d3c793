"""Whether a text follows another one, as `evaluate` decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qdqbert.errors import UserInputError
from qdqbert.inference.classification import Label, is_pair, text_or_pair
from qdqbert.runtime.inputs import described, listed
from qdqbert.runtime.model import Model
from qdqbert.runtime.rows import LABEL, SCORE, RowFormat, always, classes
from qdqbert.runtime.scheduler import Encoded
from qdqbert.tasks.next_sentence_prediction import NAMES


class _Decide(Label):
    """The job whose answer is the decision about each pair; see `Job`."""

    def encode(self, items: Sequence[Any]) -> list[Encoded]:
        """Return the model inputs of each pair."""
        for item in items:
            if isinstance(text_or_pair(item), str):
                raise UserInputError(
                    "Each input has to be a pair of texts, as (first, second); got "
                    f"{described(item)}."
                )
        return super().encode(items)


class NextSentencePredictor(Model):
    """Decides whether the second text of a pair follows the first."""

    rows = RowFormat(
        name="a model for next sentence prediction",
        pair="required",
        columns=always(LABEL, SCORE),
        job=lambda model, _: model.job(),
        values=classes,
    )

    def __call__(self, inputs: Any) -> Any:
        """Decide whether the second text of each pair follows the first.

        Args:
            inputs: A pair as `(first, second)` or `{"text": ..., "text_pair": ...}`, or a list of
                pairs.

        Returns:
            `{"label": "is_next" or "not_next", "score": ...}` for each pair. `score` is the
            probability of the label.

        Raises:
            UserInputError: An input is not a pair of texts.

        Example:
            >>> model(("The cat is tired.", "It sleeps."))
            {'label': 'is_next', 'score': 0.99}
        """
        is_one = isinstance(inputs, Mapping) or is_pair(inputs)
        wanted = "a pair of texts or a list of them"
        pairs = [inputs] if is_one else listed(inputs, "inputs", wanted)
        answers = self._all(self.job(), pairs)
        found = [each[0] for each in answers]
        return found[0] if is_one else found

    def job(self) -> Label:
        """Return the job of a call, for `stream`. Its answers are lists of one decision."""
        return _Decide(
            tokenizer=self._loaded.tokenizer,
            input_names=self._loaded.artifact.input_names,
            function="softmax",
            id2label=NAMES,
            top_k=1,
        )
