"""Fill the templates of this package."""

from __future__ import annotations

import functools
from typing import Any

import jinja2


def render(template: str, **values: Any) -> str:
    """Return a template with values in it. Those of HTML templates are escaped.

    Args:
        template: Name of a file in `templates/`.
        values: What the template shows, by name.
    """
    return _templates().get_template(template).render(values)


@functools.cache
def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("qdqbert.reporting"),
        autoescape=jinja2.select_autoescape(("html.jinja",)),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["markdown_code"] = markdown_code
    environment.filters["python_string"] = ascii
    return environment


def markdown_code(text: str) -> str:
    """Return a name as code in Markdown, in which nothing of it has a meaning."""
    plain = " ".join(text.replace("`", "'").replace("|", "/").split())
    return f"`{plain}`"
