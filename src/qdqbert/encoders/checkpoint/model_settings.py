"""config_sentence_transformers.json: prompts, similarity and sizes of embeddings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from qdqbert.common.errors import UserInputError
from qdqbert.common.file_names import MODEL_SETTINGS
from qdqbert.common.json_files import Fields, read_text

Kind = Literal["query", "document"]
"""Kind of a text, for models that encode queries and documents differently."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """Settings of a whole model of sentence-transformers.

    Attributes:
        prompts: Texts that can be put before a text, by name.
        default_prompt_name: Name of the prompt that is used by default; `None` for none.
        similarity: Name of the function that compares two embeddings; `None` for the cosine.
        truncate_dim: Number of dimensions of an embedding to keep; `None` for all.
        max_active_dims: Most words of a sparse embedding that have a weight; `None` for any number.
        activation: Path of the class that turns a cross-encoder's logits into scores; `None` if it
            is not named.
    """

    prompts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    default_prompt_name: str | None = None
    similarity: str | None = None
    truncate_dim: int | None = None
    max_active_dims: int | None = None
    activation: str | None = None

    @classmethod
    def of_folder(cls, folder: Path) -> ModelSettings:
        """Read the settings of a folder; the defaults if it has no such file."""
        path = folder / MODEL_SETTINGS
        return cls.of_text(read_text(path) if path.is_file() else None)

    @classmethod
    def of_text(cls, text: str | None) -> ModelSettings:
        """Return the settings in the text of the file; the defaults for `None`."""
        fields = Fields.of_text(text or "{}", MODEL_SETTINGS)
        named = {}
        if fields.has("prompts"):
            prompts = fields.child("prompts")
            named = {name: prompts.optional(prompts.text, name) or "" for name in prompts.values}
        for name in ("query", "document"):
            # PyLate 3 and earlier store the start of a prompt by itself.
            start = fields.optional(fields.text, f"{name}_prefix")
            if start is not None:
                named[name] = start + named.get(name, "").removeprefix(start)
        return cls(
            prompts=named,
            default_prompt_name=fields.optional(fields.text, "default_prompt_name"),
            similarity=fields.optional(fields.text, "similarity_fn_name"),
            truncate_dim=fields.optional(fields.integer, "truncate_dim"),
            max_active_dims=fields.optional(fields.integer, "max_active_dims"),
            activation=fields.optional(fields.text, "activation_fn"),
        )

    @property
    def default_prompt(self) -> str:
        """Prompt that is put before each text by default; empty for none."""
        return self.prompts.get(self.default_prompt_name or "", "")


def choose_prompt(
    prompts: Mapping[str, str], default_name: str | None, *, name: str | None, text: str | None
) -> str:
    """Return the prompt before a text; empty for none.

    The `name` and the `text` are what a call asks for. The text takes precedence.

    Raises:
        UserInputError: There is no prompt of that name, or the text is something else.
    """
    if text is not None:
        if not isinstance(text, str):
            raise UserInputError(
                f"`prompt` must be a text, got {text!r:.100} ({type(text).__name__}).",
                argument="prompt",
            )
        return text
    name = name or default_name
    if name is None:
        return ""
    if name not in prompts:
        known = ", ".join(repr(each) for each in prompts) or "none"
        raise UserInputError(
            f"`prompt_name={name!r}` is unknown; the model has: {known}.", argument="prompt_name"
        )
    return prompts[name]
