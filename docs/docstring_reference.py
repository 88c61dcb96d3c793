"""Show docstrings as they are written: types from the source, and names in backticks as links."""

from __future__ import annotations

import inspect
import re
import typing
from typing import Any

import qdqbert
import qdqbert.common.choices

# Names of classes, and of functions behind the name of the package, become links.
_PUBLIC = re.compile(
    r"(?<![`:\w])`(?P<text>(?P<package>qdqbert\.)?(?P<name>[A-Za-z_]\w*)(?P<rest>\.\w+)?)`"
)


def _link_public_names(
    app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]
) -> None:
    """Link the public names that a docstring mentions, and show the types that options take."""
    del app, what, name, options

    def linked(match: re.Match[str]) -> str:
        is_clear = match["package"] or match["name"][0].isupper()
        if not is_clear or match["name"] not in qdqbert.__all__:
            return match.group()
        return f":py:obj:`{match['text']} <qdqbert.{match['name']}{match['rest'] or ''}>`"

    def typed(line: str) -> str:
        attribute, found = line.split()[1].rstrip(":"), line
        if "Converted[" in line:
            taken = inspect.signature(value).parameters[attribute].annotation
            found = f":vartype {attribute}: {taken}"
        # Types, by their last name.
        return re.sub(r"\b((?:\w+\.)+\w)", r"~\1", found)

    lines[:] = [
        typed(line) if line.startswith(":vartype") else _PUBLIC.sub(linked, line) for line in lines
    ]


def _keep_returns(
    app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]
) -> None:
    """Keep napoleon from reading the start of a sentence under "Returns:" as a type."""
    del app, what, name, value, options
    for number, line in enumerate(lines[:-1]):
        if line in ("Returns:", "Yields:"):
            lines[number + 1] = re.sub(r"^(\s*)", r"\1: ", lines[number + 1])


def _keep_annotations(
    app: Any, what: str, name: str, value: Any, options: Any, arguments: Any, result: Any
) -> tuple[str, str] | None:
    """Show types as they are in the source: names of choices instead of the choices.

    Classes whose constructor is not described are made by this package. They get no signature.
    """
    del arguments, result
    if typing.is_typeddict(value):
        return None
    if what in ("class", "exception") and options.class_doc_from != "both":
        return "", ""
    if what in ("function", "method", "class"):
        signature = inspect.signature(value)
        types = {each.name: each.annotation for each in signature.parameters.values()}
        types["return"] = signature.return_annotation if what != "class" else None
        app.env.current_document.autodoc_annotations[name] = {
            each: text for each, text in types.items() if isinstance(text, str)
        }
    return None


def _link_type(app: Any, environment: Any, node: Any, content: Any) -> Any:
    """Link a type of this package by its name. Types of other packages have no link."""
    name = node.get("reftarget", "").rpartition(".")[2]
    if node.get("refdomain") != "py" or node["reftarget"].startswith("qdqbert."):
        return None
    where = "qdqbert.common.choices" if hasattr(qdqbert.common.choices, name) else "qdqbert"
    found = environment.domains["py"].resolve_xref(
        environment, node["refdoc"], app.builder, "obj", f"{where}.{name}", node, content
    )
    return found or content


def setup(app: Any) -> dict[str, bool]:
    """Connect these functions to Sphinx."""
    app.connect("autodoc-process-docstring", _link_public_names)
    # Before napoleon.
    app.connect("autodoc-process-docstring", _keep_returns, priority=400)
    # After autodoc, whose annotations these replace.
    app.connect("autodoc-process-signature", _keep_annotations, priority=600)
    app.connect("missing-reference", _link_type)
    return {"parallel_read_safe": True}
