"""Continued texts, with the interface of transformers' pipeline "text-generation", greedy.

The graph has no cache, so that each new token costs a pass over the whole text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.artifact import CONFIG, GENERATION
from qdqbert.engines.runner import Outputs
from qdqbert.errors import UserInputError
from qdqbert.inference.batches import Feature, chunks
from qdqbert.inference.inputs import check_text, listed_texts
from qdqbert.inference.long_texts import Kept
from qdqbert.inference.model import Loaded, Model, feature_of, rows_of
from qdqbert.inference.scheduler import Done, Encoded
from qdqbert.inference.tokenizer import FolderTokenizer
from qdqbert.json_files import Fields

# Number of texts that are continued together.
_WINDOW = 256


@dataclasses.dataclass(kw_only=True)
class _Text:
    """A text that is being continued.

    Attributes:
        prompt: The text.
        feature: Its model inputs, each `(tokens,)`, with the new tokens.
        truncated: Whether a part of the prompt was cut off.
        tokens: The new tokens.
        error: Why it cannot be continued.
    """

    prompt: str
    feature: Feature
    truncated: bool
    tokens: list[int] = dataclasses.field(default_factory=list)
    error: UserInputError | None = None

    def append(self, token: int) -> None:
        """Add a token. Its other inputs are those of the last token."""
        self.tokens.append(token)
        added = {"input_ids": token}
        self.feature = {
            name: np.append(values, np.int32(added.get(name, values[-1])))
            for name, values in self.feature.items()
        }


class _NextToken:
    """The job whose answer is the most likely next token of each text; see `Job`."""

    def encode(self, items: Sequence[_Text]) -> list[Encoded]:
        return [Encoded(features=(item.feature,)) for item in items]

    def split(
        self, outputs: Outputs, inputs: Mapping[str, NDArray[Any]], features: Sequence[Feature]
    ) -> Sequence[int]:
        del inputs
        return [int(each[-1].argmax()) for each in rows_of(features, outputs["logits"])]

    def answer(self, item: _Text, encoded: Encoded, values: Sequence[int]) -> int:
        del item, encoded
        return values[0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generation:
    """How texts are continued: the job of `TextGenerator`, which runs the graph many times.

    Attributes:
        tokenizer: The tokenizer.
        input_names: Inputs of the graph.
        max_length: Longest text in tokens, the new ones included.
        max_new_tokens: Number of new tokens at most.
        return_full_text: Whether the answer begins with the prompt.
        stops: Ids of tokens that end a text.
    """

    tokenizer: FolderTokenizer
    input_names: Sequence[str]
    max_length: int
    max_new_tokens: int
    return_full_text: bool
    stops: frozenset[int]

    def start(self, prompts: Sequence[Any]) -> list[_Text]:
        """Return the texts to continue, and those that are errors or no texts."""
        checked = [_checked(prompt) for prompt in prompts]
        usable = [each for each in checked if isinstance(each, str)]
        kept = iter(self.tokenizer.encode_start(usable))
        return [
            self._text(each, next(kept))
            if isinstance(each, str)
            else _Text(prompt="", feature={}, truncated=False, error=each)
            for each in checked
        ]

    def _text(self, prompt: str, kept: Kept) -> _Text:
        return _Text(
            prompt=prompt,
            feature=feature_of(kept, self.input_names),
            truncated=kept.truncated,
        )

    def is_finished(self, text: _Text) -> bool:
        """Return whether a text gets no further token."""
        return (
            text.error is not None
            or len(text.tokens) >= self.max_new_tokens
            or len(text.feature["input_ids"]) >= self.max_length
            or (bool(text.tokens) and text.tokens[-1] in self.stops)
        )

    def answer(self, text: _Text) -> list[dict[str, str]]:
        """Return the answer to a prompt."""
        new = self.tokenizer.decode(text.tokens, skip_special=True)
        return [{"generated_text": text.prompt * self.return_full_text + new}]


def _ends(fields: Fields) -> list[int]:
    """Return the tokens that end a text: one, several or none."""
    found = fields.values.get("eos_token_id")
    ends = found if isinstance(found, list) else [] if found is None else [found]
    if any(type(each) is not int for each in ends):
        raise fields.refuse("eos_token_id", found, "a token id or a list of them")
    return ends


class TextGenerator(Model):
    """Continues texts, with the most likely token at each step."""

    def __init__(self, loaded: Loaded) -> None:
        """Read which tokens end a text."""
        super().__init__(loaded)
        folder = loaded.artifact.directory
        found: list[int] = []
        # As in transformers, the settings of the model count without those of generation.
        for name in (GENERATION, CONFIG):
            if not found and (folder / name).is_file():
                found = _ends(Fields.of_file(folder / name))
        self._stops = frozenset(found)

    def __call__(
        self,
        inputs: str | Sequence[str],
        *,
        max_new_tokens: int = 256,
        return_full_text: bool = True,
    ) -> Any:
        """Continue texts, as transformers' pipeline "text-generation" with `do_sample=False`.

        Args:
            inputs: A text, or a list of texts.
            max_new_tokens: Number of new tokens at most. A text also ends with an end token, and
                at `max_length` tokens.
            return_full_text: Whether the answer begins with the text itself.

        Returns:
            `[{"generated_text": ...}]` for each text.

        Raises:
            UserInputError: An input is not a text, or `max_new_tokens` is below 1.

        Example:
            >>> model("The cat", max_new_tokens=3)
            [{'generated_text': 'The cat sat on the'}]
        """
        is_one = isinstance(inputs, str)
        job = self.job(max_new_tokens=max_new_tokens, return_full_text=return_full_text)
        answers = self._all(job, listed_texts(inputs, "inputs"))
        return answers[0] if is_one else answers

    def job(self, *, max_new_tokens: int = 256, return_full_text: bool = True) -> Any:
        """Return the job of a call with these options, for `stream`."""
        if max_new_tokens < 1:
            raise UserInputError(
                f"`max_new_tokens` must be at least 1, got {max_new_tokens}.",
                argument="max_new_tokens",
            )
        return Generation(
            tokenizer=self._loaded.tokenizer,
            input_names=self._loaded.artifact.input_names,
            max_length=self.max_length,
            max_new_tokens=max_new_tokens,
            return_full_text=return_full_text,
            stops=self._stops,
        )

    @property
    def window(self) -> int:
        """Number of texts that are continued together; see `Model.window`."""
        return _WINDOW

    def _stream(
        self, job: Any, inputs: Iterable[Any], advance: Callable[[Done], None], continues: bool
    ) -> Generator[Any]:
        """Yield the answer to each input or the error about it; see `Model.stream`."""
        # The batches of a window never depend on other windows.
        del continues
        for window in chunks(iter(inputs), _WINDOW):
            texts = job.start(window)
            running = self._running(job, texts, advance)
            while running:
                # An item is finished by its last token, so that steps report tokens only.
                tokens = self._loaded.scheduler.run(
                    _NextToken(), running, lambda done: advance(dataclasses.replace(done, items=0))
                )
                for text, token in zip(running, tokens, strict=True):
                    if isinstance(token, UserInputError):
                        text.error = token
                    else:
                        text.append(token)
                running = self._running(job, running, advance)
            for text in texts:
                yield text.error or job.answer(text)

    @staticmethod
    def _running(
        job: Generation, texts: Sequence[_Text], advance: Callable[[Done], None]
    ) -> list[_Text]:
        """Return the texts that get a further token, and report the rest as finished."""
        running = [text for text in texts if not job.is_finished(text)]
        finished = [text for text in texts if job.is_finished(text)]
        if finished:
            truncated = sum(text.truncated for text in finished)
            advance(Done(items=len(finished), tokens=0, truncated=truncated))
        return running


def _checked(prompt: Any) -> str | UserInputError:
    """Return a prompt, or why it cannot be continued."""
    try:
        return prompt if isinstance(prompt, UserInputError) else check_text(prompt)
    except UserInputError as error:
        return error
