"""The text around a query and a document, which a chat template of a checkpoint made once.

    <|im_start|>user <Query>: │ query │ <Document>: │ document │ <|im_end|> ...

Texts are put into its slots. No template runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, get_args

from qdqbert.common.errors import UserInputError
from qdqbert.common.json_files import Fields

FILE = "pair_template.json"
"""Name of its file, next to the tokenizer."""

Slot = Literal["prompt", "query", "document"]
"""What is put into a template: the prompt of a call, and the two texts of a pair."""

Strip = Literal["none", "left", "right", "both"]
"""The ends of a text whose blanks the template removes."""

SLOTS: tuple[Slot, ...] = get_args(Slot)
STRIPS: tuple[Strip, ...] = get_args(Strip)
_FORMAT = 1
_Name = TypeVar("_Name", bound=str)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """A piece of a rendered template.

    Attributes:
        text: The piece itself; of a slot, empty.
        slot: The text that is put there; `None` for none.
        strip: The ends of this text whose blanks are removed.
    """

    text: str = ""
    slot: Slot | None = None
    strip: Strip = "none"

    def fill(self, texts: Mapping[Slot, str]) -> str:
        """Return the piece, with the text of its slot."""
        return self.text if self.slot is None else stripped(texts[self.slot], self.strip)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairTemplate:
    """The text around a query and a document.

    Attributes:
        plain: The pieces without a prompt.
        prompted: The pieces with one; `None` if the template takes none.
        default_prompt: Prompt of pairs that get no other; empty for none.
    """

    plain: tuple[Part, ...]
    prompted: tuple[Part, ...] | None
    default_prompt: str = ""

    @classmethod
    def of_folder(cls, folder: Path) -> Self | None:
        """Read the template of a folder; `None` if it has none.

        Raises:
            CheckpointError: The file is damaged.
        """
        path = folder / FILE
        if not path.is_file():
            return None
        fields = Fields.of_file(path)
        fields.equal("format", _FORMAT)
        return cls(
            plain=_read_parts(fields, "plain"),
            prompted=_read_parts(fields, "prompted") if fields.has("prompted") else None,
            default_prompt=fields.text("default_prompt"),
        )

    def content(self) -> dict[str, Any]:
        """Return the content of its file."""
        return {"format": _FORMAT, **dataclasses.asdict(self)}

    def render(self, pair: Any, prompt: str | None = None) -> str:
        """Return the text of a pair `(query, document)`.

        `prompt` is the prompt of a call: empty for none, `None` for the default one.

        Raises:
            UserInputError: It is no pair, or the template takes no prompt.
        """
        if isinstance(pair, str):
            raise UserInputError(
                f"The model reads pairs of a query and a document, got the text {pair!r:.100}. "
                "Pass (query, document)."
            )
        query, document = pair
        chosen = self.default_prompt if prompt is None else prompt
        parts = self.prompted if chosen else self.plain
        if parts is None:
            raise UserInputError(
                f"`prompt={chosen!r:.100}`: the chat template of the model takes no prompt. Leave "
                "it out.",
                argument="prompt",
            )
        texts: dict[Slot, str] = {"prompt": chosen, "query": query, "document": document}
        return "".join(part.fill(texts) for part in parts)


def stripped(text: str, strip: Strip) -> str:
    """Return a text without blanks at some of its ends."""
    if strip in ("left", "both"):
        text = text.lstrip()
    return text.rstrip() if strip in ("right", "both") else text


def _one_of(name: str, known: tuple[_Name, ...]) -> _Name:
    return known[known.index(name)]


def _read_parts(fields: Fields, name: str) -> tuple[Part, ...]:
    return tuple(
        Part(
            text=each.text("text"),
            slot=_one_of(each.choice("slot", SLOTS), SLOTS) if each.has("slot") else None,
            strip=_one_of(each.choice("strip", STRIPS), STRIPS),
        )
        for each in fields.children(name)
    )
