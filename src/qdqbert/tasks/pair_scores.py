"""Scores of texts and pairs: the jobs of classifiers, and `predict` of sentence-transformers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from qdqbert.common.errors import UserInputError
from qdqbert.common.keywords import suggest_keywords
from qdqbert.encoders.checkpoint.cross_encoder import ACTIVATIONS, Activation, activation_of
from qdqbert.runtime.batches import Results
from qdqbert.runtime.inputs import Text, described, is_pair, listed, text_or_pair
from qdqbert.runtime.model import Loaded, TextEncoder
from qdqbert.runtime.scheduler import EncodedItem
from qdqbert.runtime.tensors import converted
from qdqbert.tasks.logits import apply, check_function
from qdqbert.tasks.prompts import CallOptions, HasPrompts

if TYPE_CHECKING:
    from torch import Tensor


class Scored(NamedTuple):
    """Scores of one text, and the logits that they are made of. Shape `(classes,)` each.

    An order comes from the logits: float32 scores of large logits are equal.
    """

    logits: NDArray[np.float32]
    scores: NDArray[np.float32]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classify(TextEncoder):
    """The job whose answer is the scores `(classes,)` of each text or pair; see `Job`.

    Attributes:
        function: Name of the function from logits to scores.
    """

    function: Activation

    def encode(self, items: Sequence[Any]) -> list[EncodedItem]:
        """Return the model inputs of each text or pair."""
        return super().encode([text_or_pair(item) for item in items])

    def split(self, results: Results) -> Sequence[Scored]:
        """Return the scores of each feature."""
        logits = results.outputs["logits"]
        return list(map(Scored, logits, apply(self.function, logits)))

    def answer(self, _: Any, __: EncodedItem, values: Sequence[Scored]) -> Any:
        """Return the scores."""
        return values[0].scores


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Score(Classify):
    """The job of `predict`; see `Job`.

    Attributes:
        prompt: Text that is put before the first text of each pair; empty for none.
    """

    prompt: str

    def encode(self, items: Sequence[Any]) -> list[EncodedItem]:
        """Return the model inputs of each pair."""
        pairs = [_checked(text_or_pair(item)) for item in items]
        if self.tokenizer.template is not None:
            return self.encode_kept(self.tokenizer.encode_start(pairs, prompt=self.prompt))
        return TextEncoder.encode(self, [(self.prompt + first, second) for first, second in pairs])


def _checked(item: Text) -> tuple[str, str]:
    if isinstance(item, str):
        raise UserInputError(
            f"Each input has to be a pair of texts, as (first, second); got {described(item)}."
        )
    return item


class PredictOptions(CallOptions, total=False):
    """Options of `predict` that do not change the type of its result."""

    activation: Activation | None
    activation_fn: Any
    apply_softmax: bool


class PairScorer(HasPrompts):
    """Scores pairs of texts, as `CrossEncoder` of sentence-transformers does."""

    def __init__(self, loaded: Loaded) -> None:
        super().__init__(loaded)
        self._activation = activation_of(loaded.config, self._settings, self.num_labels)

    @overload
    def predict(
        self,
        inputs: Any,
        *,
        convert_to_numpy: Literal[True] = True,
        convert_to_tensor: Literal[False] = False,
        **options: Unpack[PredictOptions],
    ) -> NDArray[np.float32]: ...

    @overload
    def predict(
        self,
        inputs: Any,
        *,
        convert_to_numpy: bool = True,
        convert_to_tensor: Literal[True],
        **options: Unpack[PredictOptions],
    ) -> Tensor: ...

    @overload
    def predict(
        self,
        inputs: Any,
        *,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        **options: Unpack[PredictOptions],
    ) -> Any: ...

    @suggest_keywords
    def predict(
        self,
        inputs: Any,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        *,
        activation: Activation | None = None,
        activation_fn: Any = None,
        apply_softmax: bool = False,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: str | None = None,
    ) -> Any:
        """Score pairs, as `CrossEncoder.predict` of sentence-transformers does.

        Args:
            inputs: A pair of texts, or a list of pairs.
            prompt_name: Name of the prompt, a key of `prompts`, that is put before the first text
                of each pair. The folder's default prompt, if it has one, is used by default.
            prompt: Text that is put before the first texts, instead of a named prompt.
            batch_size: Has no effect. It is there for code that passes it to sentence-transformers.
            show_progress_bar: Whether to show a bar on stderr.
            activation: Function from logits to scores. The one that the model's files name by
                default; else "sigmoid" for a model with one output, and "none" for others.
            activation_fn: The same, as a `Sigmoid`, `Softmax` or `Identity` of torch.
            apply_softmax: The same as the activation "softmax", for models with several outputs.
            convert_to_numpy: Whether the result is an array. Otherwise it is a list of tensors of
                torch.
            convert_to_tensor: Whether the result is a tensor of torch, instead of an array.
            device: Has no effect, and can be "cpu" only.

        Returns:
            float32 `(pairs,)` for a model with one output, `(pairs, classes)` for others. For one
            pair without the first dimension.

        Raises:
            MissingExtraError: A tensor is asked for, and torch is not installed.
            UserInputError: `inputs` is not a pair or a list of pairs, or `prompt_name` is
                unknown.
        """
        is_one = is_pair(inputs)
        wanted = "a pair of texts or a list of them"
        pairs = [inputs] if is_one else listed(inputs, "inputs", wanted)
        function = self._chosen(activation, activation_fn)
        if apply_softmax and self.num_labels > 1:
            function = "softmax"
        job = self.scoring_job(prompt_name=prompt_name, prompt=prompt, activation=function)
        rows = self._call(
            job, pairs, batch_size=batch_size, show_progress_bar=show_progress_bar, device=device
        )
        scores = np.stack(rows) if rows else np.zeros((0, self.num_labels), np.float32)
        scores = scores[:, 0] if scores.shape[1] == 1 else scores
        return converted(
            scores[0] if is_one else scores,
            convert_to_numpy=convert_to_numpy,
            convert_to_tensor=convert_to_tensor,
            is_one=is_one,
        )

    def _chosen(self, activation: Activation | None, activation_fn: Any) -> Activation:
        """Return the function from logits to scores that a call asks for."""
        if activation_fn is None:
            return check_function(activation, "activation") or self.activation
        name = type(activation_fn).__name__
        if activation is not None or name not in ACTIVATIONS:
            raise UserInputError(
                f"`activation_fn={activation_fn!r:.100}` must be a {', '.join(ACTIVATIONS)} of "
                "torch, and the only one of the two options. Or pass `activation`.",
                argument="activation_fn",
            )
        return ACTIVATIONS[name]

    def scoring_job(
        self,
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        activation: Activation | None = None,
    ) -> Classify:
        """Return the job of `predict` with these options, for `stream`.

        Its answers are scores `(classes,)`.
        """
        return _Score(
            tokenizer=self._loaded.tokenizer,
            input_names=self._loaded.artifact.input_names,
            function=check_function(activation, "activation") or self.activation,
            prompt=self._prompt(prompt_name, prompt),
        )

    @property
    def num_labels(self) -> int:
        """Number of scores of a pair."""
        return len(self._loaded.id2label)

    @property
    def activation(self) -> Activation:
        """The function from logits to scores, unless a call names another. It can be set."""
        return self._activation

    @activation.setter
    def activation(self, value: Any) -> None:
        is_name = isinstance(value, str)
        self._activation = self._chosen(value if is_name else None, None if is_name else value)
