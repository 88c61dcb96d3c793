"""Describe the commands and their options, as `qdqbert COMMAND --help` does."""

from __future__ import annotations

import re
from typing import Any

from qdqbert.cli import app
from qdqbert.cli._commands import COMMANDS

# An option or an argument, as cyclopts lists it.
_ITEM = re.compile(r"^\* `([^`]+)`: (.*)$", re.MULTILINE)


# The page that lists the commands.
_PAGE = "reference/command-line"


def _describe_commands() -> str:
    """Return a part of a page, in Markdown, that describes all commands."""
    # Under `python -m sphinx`, cyclopts takes these words for a part of the name.
    text = app.generate_docs(output_format="markdown").replace(" -m sphinx", "")
    described = dict(re.findall(r"^## qdqbert (\S+)\n(.*?)(?=^## |\Z)", text, re.M | re.S))
    parts = []
    for command in COMMANDS:
        items = _ITEM.sub(r"```{option} \1\n\2\n```\n", described[command.name])
        parts += [f"## qdqbert {command.name}\n\n```{{program}} qdqbert {command.name}\n```", items]
        parts.append(f"**Example**:\n\n```console\n{command.example}\n```")
    return "\n\n".join(parts)


def _add_commands(app: Any, page: str, source: list[str]) -> None:
    """Add the description of the commands to their page."""
    del app
    if page == _PAGE:
        source[0] += f"\n{_describe_commands()}\n"


def setup(app: Any) -> dict[str, bool]:
    """Connect to Sphinx."""
    app.connect("source-read", _add_commands)
    return {"parallel_read_safe": True}
