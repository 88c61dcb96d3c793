"""Models that put a prompt before each text, as sentence-transformers does."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from qdqbert.checkpoint.sentence import Kind, choose_prompt, read_model_settings
from qdqbert.encoding import feature_of
from qdqbert.errors import UserInputError
from qdqbert.runtime.inputs import check_text
from qdqbert.runtime.model import Loaded, Model, TextEncoder
from qdqbert.runtime.scheduler import EncodedItem


class TokenIds(tuple[int, ...]):
    """Token ids of a text, as the model's tokenizer makes them, with special tokens."""

    __slots__ = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prompted(TextEncoder):
    """Puts a prompt before each text.

    Attributes:
        prompt: The prompt; empty for none. Token ids get none.
    """

    prompt: str

    def encode(self, items: Sequence[Any]) -> list[EncodedItem]:
        """Return the model inputs of each text, or of its token ids."""
        texts = [self.prompt + check_text(item) for item in items if not isinstance(item, TokenIds)]
        made = iter(super().encode(texts))
        return [self._of_ids(item) if isinstance(item, TokenIds) else next(made) for item in items]

    def _of_ids(self, ids: TokenIds) -> EncodedItem:
        kept = self.tokenizer.keep_ids(ids)
        return EncodedItem(features=(feature_of(kept, self.input_names),), truncated=kept.truncated)


QUERY_PROMPTS = ("query",)
DOCUMENT_PROMPTS = ("document", "passage", "corpus")
"""Names of the prompts of queries and of documents in sentence-transformers."""


def check_kind(task: Any) -> None:
    """Refuse something else than a kind of texts or `None`.

    Raises:
        UserInputError: `task` is something else.
    """
    if task not in (None, *get_args(Kind)):
        raise UserInputError(
            f"`task={task!r}` is unknown. Known: {', '.join(get_args(Kind))}.", argument="task"
        )


class PromptedModel(Model):
    """Encodes texts with a prompt.

    Attributes:
        prompts: Texts that can be put before a text, by name.
    """

    def __init__(self, loaded: Loaded) -> None:
        """Read the prompts of the folder."""
        super().__init__(loaded)
        self._settings = read_model_settings(loaded.artifact.directory)
        self.prompts: dict[str, str] = dict(self._settings.prompts)

    def _prompt(self, name: str | None, text: str | None) -> str:
        """Return the prompt that a call asks for; see `choose_prompt`."""
        default = self._settings.default_prompt_name
        return choose_prompt(self.prompts, default, name=name, text=text)

    def _with_prompt(self, names: Sequence[str], options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of `encode`, with the first of some prompts that the folder has.

        A prompt among the options takes precedence.
        """
        if options.get("prompt") is not None or options.get("prompt_name") is not None:
            return dict(options)
        # No fallback to the default prompt, as in sentence-transformers.
        found = (self.prompts[name] for name in names if name in self.prompts)
        return {**options, "prompt": next(found, "")}
