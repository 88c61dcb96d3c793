"""The best of several choices, as `evaluate` decides."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from qdqbert.encoding import feature_of
from qdqbert.errors import UserInputError
from qdqbert.inference.classification import apply
from qdqbert.runtime.batches import Results
from qdqbert.runtime.inputs import described, is_text, listed
from qdqbert.runtime.model import Model
from qdqbert.runtime.rows import SCORE, RowFormat, always
from qdqbert.runtime.scheduler import Encoded
from qdqbert.tables.rows import Column
from qdqbert.tasks.multiple_choice import choice_example
from qdqbert.tokenizing.tokenizer import Tokenizer


class Choice(TypedDict):
    """The best choice: its index, its probability, and the probabilities of all choices."""

    label: int
    score: float
    scores: list[float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Choose:
    """The job whose answer is the best choice; see `Job`.

    Attributes:
        tokenizer: The tokenizer.
        input_names: Inputs of the graph.
    """

    tokenizer: Tokenizer
    input_names: Sequence[str]

    def encode(self, items: Sequence[Any]) -> list[Encoded]:
        """Return one feature for each choice, whose arrays are `(1, tokens)`.

        The score of a choice does not depend on the other choices. As features of their own,
        choices are padded less, and items can have different numbers of them.
        """
        pairs = [_pairs(item) for item in items]
        made = iter(self.tokenizer.encode_start([pair for each in pairs for pair in each]))
        encoded = []
        for each in pairs:
            kept = [next(made) for _ in each]
            features = [feature_of(part, self.input_names) for part in kept]
            encoded.append(
                Encoded(
                    features=tuple(
                        {name: array[None] for name, array in feature.items()}
                        for feature in features
                    ),
                    truncated=any(part.truncated for part in kept),
                )
            )
        return encoded

    def split(self, results: Results) -> Sequence[NDArray[np.float32]]:
        """Return the logit of each choice, `(1,)`."""
        return list(results.outputs["logits"])

    def answer(self, item: Any, encoded: Encoded, values: Sequence[NDArray[np.float32]]) -> Choice:
        """Return the best choice."""
        del item, encoded
        logits = np.concatenate(values)
        scores = apply("softmax", logits)
        best = int(logits.argmax())
        return Choice(label=best, score=float(scores[best]), scores=scores.tolist())


def _read_choices(fields: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in fields.items() if name != "label"}
    example = choice_example("it", given, 0)
    return {"context": example.context, "prompt": example.prompt, "choices": example.endings}


class ChoiceSelector(Model):
    """Selects the best of several choices: endings of a text, answers to a question."""

    rows = RowFormat(
        name="a model for multiple choice",
        columns=always(
            Column(name="label", kind="integer"), SCORE, Column(name="scores", kind="numbers")
        ),
        read=_read_choices,
        job=lambda model, _: model.job(),
        values=lambda answer, _: (answer["label"], answer["score"], answer["scores"]),
    )

    def __call__(
        self,
        inputs: Any = None,
        *,
        context: str | None = None,
        choices: Sequence[str] | None = None,
        prompt: str = "",
    ) -> Any:
        """Select the best choice.

        Args:
            inputs: A question as `{"context": ..., "choices": [...]}`, with a "prompt" if there is
                one, or a list of them, instead of the other arguments.
            context: The text, or question, that the model reads before each choice.
            choices: The choices, one or more.
            prompt: Start of all choices, as `sent2` in SWAG.

        Returns:
            `{"label": ..., "score": ..., "scores": [...]}` for each question: the index of the best
            choice, its probability, and the probabilities of all choices.

        Raises:
            UserInputError: A question is not as described.

        Example:
            >>> model(context="The cat is tired.", choices=["It sleeps.", "It is a river."])
            {'label': 0, 'score': 0.97, 'scores': [0.97, 0.03]}
        """
        if inputs is None:
            inputs = {"context": context, "choices": choices, "prompt": prompt}
        elif context is not None or choices is not None:
            raise UserInputError(
                "`inputs` was given together with `context` or `choices`. Leave it out.",
                argument="inputs",
            )
        is_one = isinstance(inputs, Mapping)
        wanted = "a text with choices or a list of them"
        answers = self._all(self.job(), [inputs] if is_one else listed(inputs, "inputs", wanted))
        return answers[0] if is_one else answers

    def job(self) -> _Choose:
        """Return the job of a call, for `stream`. Its inputs are mappings as in `inputs`."""
        return _Choose(
            tokenizer=self._loaded.tokenizer, input_names=self._loaded.artifact.input_names
        )


def _pairs(item: Any) -> list[tuple[str, str]]:
    """Return both texts of each choice of a question; raise `UserInputError` if it is malformed."""
    fields = item if isinstance(item, Mapping) else {}
    context, choices, prompt = (fields.get(name) for name in ("context", "choices", "prompt"))
    endings = []
    if isinstance(choices, Sequence) and not isinstance(choices, str):
        endings = list(choices)
    if not endings or not all(map(is_text, (context, prompt or "", *endings))):
        raise UserInputError(
            "Each input has to be a text with choices, as {'context': ..., 'choices': [...]}, "
            f"optionally with a 'prompt'; got {described(item)}."
        )
    start = f"{prompt} " if prompt else ""
    return [(str(context), f"{start}{choice}") for choice in endings]
