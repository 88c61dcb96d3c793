"""Chat templates of rerankers: how a pair becomes the text that a language model reads.

sentence-transformers 5.4 and later make a message of each text of a pair, of the roles "query" and
"document", and one of the prompt, of the role "system". A template in Jinja makes a text of them.
Here it is rendered once, with marks in place of the texts, in a sandbox in a process of its own
that is stopped after a few seconds. A template that does anything else with texts than to copy
them, or to remove blanks at their ends, is refused.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from qdqbert.common.errors import CheckpointError
from qdqbert.common.extras import require
from qdqbert.common.file_names import CHAT_TEMPLATE, SETTINGS, TOKENIZER_CONFIG
from qdqbert.common.json_files import Fields, damaged
from qdqbert.data.tokenizing.pair_template import SLOTS, STRIPS, PairTemplate, Part, Slot, Strip
from qdqbert.data.tokenizing.tokenizer_files import ROLES, token_text
from qdqbert.encoders.checkpoint.sentence_files import ReadFile, join

Format = Literal["flat", "structured"]
"""Whether the content of a message is a text, or a list of typed texts."""

_ROLES: Mapping[Slot, str] = {"prompt": "system", "query": "query", "document": "document"}
# What sentence-transformers takes for a template of structured messages.
_STRUCTURED = ("content[0]", ".type", "'type'", '"type"', "item.type", "message.content[")
# Options that change more than the text.
_REFUSED = (
    *("tools", "documents", "tokenize", "return_dict", "return_tensors", "continue_final_message"),
    *("padding", "truncation", "max_length", "return_assistant_tokens_mask"),
    *("sanitize_control_tokens", "tokenizer_kwargs", "messages"),
)
_SCRIPT = Path(__file__).with_name("render_template.py")
# More than it limits its own time to, for a busy machine.
_SECONDS = 60
_LONGEST = 1 << 18
# Words that a template has no reason to look at.
_MARKS: Mapping[Slot, str] = {
    "prompt": "Zq1prompt7xZ",
    "query": "Zq2query7xZ",
    "document": "Zq3document7xZ",
}
# Texts that templates could change: of quotes, markup, lines, letters, or none.
_PROBES = (
    "",
    " \n A b\tc \n ",
    '<b>"It\'s" 100 % {x} {{ y }} \\n &amp; [1]</b>',
    "Überraschung! 日本語 🙂 ÉCOLE",
    "</think> <|im_end|> <|endoftext|> <s> [SEP] yes no system user query document",
    "\n\nlines\r\n\r\nof  text 2020\n\n",
    "\n \nx\n \n",
    # Longer than what models read.
    "word " * 24_000,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chat:
    """How sentence-transformers makes messages of pairs, by its settings.

    Attributes:
        format: Form of their content; `None` to tell it from the template.
        options: Variables of the template.
    """

    format: Format | None = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def read_chat(settings: Fields, message: Fields) -> Chat:
    """Return how messages are made, by the settings of the encoder and those of messages.

    Raises:
        CheckpointError: A setting is not supported.
    """
    given = message.optional(message.text, "format") or "auto"
    if given not in ("auto", "flat", "structured"):
        raise CheckpointError(f"`modality_config` in {SETTINGS} has the unknown format {given!r}.")
    options: dict[str, Any] = {}
    if settings.has("processing_kwargs"):
        processing = settings.child("processing_kwargs")
        if processing.has("chat_template"):
            options = dict(processing.child("chat_template").values)
    if options.pop("restore_suffix", True) is not True:
        raise _unsupported("restore_suffix", "the end of the template has to follow long texts")
    for name in _REFUSED:
        if options.get(name) not in (None, False):
            raise _unsupported(name, "only variables of the template are")
        options.pop(name, None)
    known: Mapping[str, Format] = {"flat": "flat", "structured": "structured"}
    return Chat(format=known.get(given), options=options)


def _unsupported(name: str, reason: str) -> CheckpointError:
    return CheckpointError(
        f"`processing_kwargs` in {SETTINGS} has chat_template.{name}, which is not supported: "
        f"{reason}. Remove it in a copy of the folder if it does not matter."
    )


def template_source(
    read: ReadFile, folder: str, settings: Mapping[str, Any], named: str | None = None
) -> str | None:
    """Return the chat template of a tokenizer; `None` if it has none.

    Args:
        read: Reads a file of the checkpoint.
        folder: Folder of the tokenizer in it.
        settings: Content of its tokenizer_config.json.
        named: Name of one of several templates, or a template itself.
    """
    own = settings.get("chat_template")
    listed = own if isinstance(own, list) else []
    templates = {
        each["name"]: each["template"]
        for each in listed
        if isinstance(each, Mapping) and {"name", "template"} <= each.keys()
    }
    if isinstance(own, str):
        templates["default"] = own
    file = read(join(folder, CHAT_TEMPLATE))
    if file is not None:
        # transformers then reads no other place.
        templates = {"default": file}
    if named is None:
        source = templates.get("default")
    elif named in templates:
        source = templates[named]
    else:
        more = None
        if re.fullmatch(r"[\w-]+", named):
            more = read(join(folder, "additional_chat_templates", f"{named}.jinja"))
        source = more if more is not None else named
    if source is not None and not isinstance(source, str):
        raise damaged(TOKENIZER_CONFIG, "`chat_template` is no text")
    return source


def read_pair_template(
    chat: Chat,
    read: ReadFile,
    folder: str,
    settings: Mapping[str, Any],
    *,
    default_prompt: str,
    name: str,
) -> PairTemplate:
    """Render the chat template of a checkpoint, with slots for the texts of a pair.

    Args:
        chat: How messages are made.
        read: Reads a file of the checkpoint.
        folder: Folder of the tokenizer in it.
        settings: Content of its tokenizer_config.json.
        default_prompt: Prompt of pairs that get no other.
        name: The user's name for the checkpoint.

    Raises:
        CheckpointError: There is no template, it fails, it does not copy both texts, or it does
            more than that.
        MissingExtraError: Jinja is not installed.
    """
    options = dict(chat.options)
    named = options.pop("chat_template", None)
    source = template_source(read, folder, settings, named)
    if source is None:
        raise CheckpointError(
            f"{name!r} makes messages of texts ('message' in `modality_config` of {SETTINGS}), and "
            f"has no {CHAT_TEMPLATE}. Download or copy the checkpoint again."
        )
    if settings.get("truncation_side") == "left":
        raise CheckpointError(
            f"{TOKENIZER_CONFIG} of {name!r} has truncation_side='left', which would cut off the "
            "start of the chat template. Set it to 'right' in a copy of the folder."
        )
    is_structured = any(each in source for each in _STRUCTURED)
    form = chat.format or ("structured" if is_structured else "flat")
    tokens = {role: text for role in ROLES if (text := token_text(settings.get(role)))}
    variables = {
        "tools": None,
        "documents": None,
        "add_generation_prompt": False,
        **tokens,
        **options,
    }
    special = " ".join(sorted({*tokens.values()}))
    return _Reader(source, form, variables, name, special).template(default_prompt)


class _Reader:
    """Reads what a chat template makes of pairs."""

    def __init__(
        self, source: str, form: Format, variables: Mapping[str, Any], name: str, special: str
    ) -> None:
        self._source, self._form = source, form
        self._variables, self._name = variables, name
        self._probes = (*_PROBES, special)

    def template(self, default_prompt: str) -> PairTemplate:
        """Return the pieces of the template, which are checked on other texts."""
        bare, cases = (list(self._cases(with_prompt=each)) for each in (False, True))
        texts, errors = self._render([self._messages(each) for each in (*bare, *cases)])
        count = len(bare)
        plain = self._parts(bare, texts[:count], errors[:count])
        prompted = None
        # A template may refuse messages of the role "system".
        if texts[count] is not None:
            prompted = self._parts(cases, texts[count:], errors[count:])
        elif default_prompt:
            raise self._refused(f"it takes no prompt ({errors[count]}), and the model has one")
        return PairTemplate(plain=plain, prompted=prompted, default_prompt=default_prompt)

    def _cases(self, *, with_prompt: bool) -> Iterator[dict[Slot, str]]:
        """Yield the marks, and then texts that templates could change."""
        slots = SLOTS if with_prompt else SLOTS[1:]
        yield {slot: _MARKS[slot] for slot in slots}
        # Without a text there is no prompt.
        yield from (
            {**{each: _MARKS[each] for each in slots}, slot: probe}
            for slot, probe in itertools.product(slots, self._probes)
            if probe or slot != "prompt"
        )

    def _messages(self, texts: Mapping[Slot, str]) -> list[dict[str, Any]]:
        def content(text: str) -> Any:
            return text if self._form == "flat" else [{"type": "text", "text": text}]

        return [{"role": _ROLES[slot], "content": content(text)} for slot, text in texts.items()]

    def _parts(
        self,
        cases: Sequence[Mapping[Slot, str]],
        texts: Sequence[str | None],
        errors: Sequence[str],
    ) -> tuple[Part, ...]:
        failed = next((each for each in errors if each), None)
        if failed is not None:
            raise self._refused(f"it fails on a pair: {failed}")
        first, *others = [text or "" for text in texts]
        pieces = re.split("({})".format("|".join(_MARKS.values())), first)
        slots = {mark: slot for slot, mark in _MARKS.items()}
        found = [slots.get(each) for each in pieces]
        for slot in SLOTS[1:]:
            if slot not in found:
                raise self._refused(f"it does not render the role {slot!r}")
        if found.count("document") > 1 or "document" in found[: _last(found, "query")]:
            raise self._refused("the document has to be there once, after the query")
        for strips in itertools.product(STRIPS, repeat=len(SLOTS)):
            parts = _made(pieces, found, dict(zip(SLOTS, strips, strict=True)))
            if all(
                _filled(parts, case) == text for case, text in zip(cases[1:], others, strict=True)
            ):
                return parts
        raise self._refused("it changes the texts, or depends on them")

    def _refused(self, reason: str) -> CheckpointError:
        return CheckpointError(
            f"The chat template of {self._name!r} cannot be used for pairs of a query and a "
            f"document: {reason}. A template for rerankers renders one message of the role 'query' "
            f"and one of the role 'document'. Put one into {CHAT_TEMPLATE} of a copy of the folder."
        )

    def _render(
        self, conversations: Sequence[Sequence[Mapping[str, Any]]]
    ) -> tuple[list[str | None], list[str]]:
        """Return the texts of conversations, and for each the reason why it has none."""
        require("A chat template", "templates", "jinja2")
        if len(self._source) > _LONGEST:
            raise self._refused(f"it is longer than {_LONGEST} characters")
        given = {
            "template": self._source,
            "conversations": conversations,
            "variables": self._variables,
        }
        try:
            done = subprocess.run(
                # No module of this folder counts as a top-level one.
                [sys.executable, "-P", str(_SCRIPT)],
                input=json.dumps(given),
                capture_output=True,
                encoding="utf-8",
                timeout=_SECONDS,
                check=False,
            )
            found = json.loads(done.stdout)
        except subprocess.TimeoutExpired as error:
            raise self._refused("it takes too long") from error
        except ValueError as error:
            # The system ended it, or it could not even report that there is no memory.
            raise self._refused("it takes too much time or memory") from error
        if found["refused"]:
            raise self._refused(found["refused"])
        return found["texts"], found["errors"]


def _last(slots: Sequence[Slot | None], slot: Slot) -> int:
    return max(index for index, each in enumerate(slots) if each == slot)


def _made(
    pieces: Sequence[str], slots: Sequence[Slot | None], strips: Mapping[Slot, Strip]
) -> tuple[Part, ...]:
    return tuple(
        Part(text=piece) if slot is None else Part(slot=slot, strip=strips[slot])
        for piece, slot in zip(pieces, slots, strict=True)
        if piece
    )


def _filled(parts: Sequence[Part], texts: Mapping[Slot, str]) -> str:
    return "".join(part.fill(texts) for part in parts)
