"""The page at `/`: the models of a server, how to call them, and its routes."""

from __future__ import annotations

import json
import shlex
import urllib.parse
from collections.abc import Sequence
from html import escape

from qdqbert.serving.routing import MODEL_PREFIX, Route
from qdqbert.serving.service import Models, Served

# The page puts its own address in the place of this one.
_ADDRESS = "http://localhost:8000"
_MASK = "[MASK]"
_KEY = '-H "Authorization: Bearer $QDQBERT_API_KEY"'

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>qdqbert</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: auto; padding: 1rem }}
pre {{ background: #f3f3f3; color: #111; padding: .75rem; overflow-x: auto }}
td {{ padding: .1rem 1.5rem .1rem 0; vertical-align: top }}
</style>
<h1>qdqbert {version}</h1>
{models}
<h2>Routes</h2>
<p>If several models run a route, name one in its path: <code>/models/NAME/...</code>.
<a href="openapi.json">openapi.json</a> describes all of them.</p>
<table>
{routes}
</table>
<script>
const address = location.href.replace(/[?#].*/, "").replace(/\\/$/, "");
for (const each of document.querySelectorAll("pre"))
  each.textContent = each.textContent.replace("{address}", address);
</script>
</html>
"""


def page(routes: Sequence[Route], models: Models, *, version: str, needs_key: bool) -> str:
    """Return the page.

    Args:
        routes: The routes.
        models: The models.
        version: Version of this package.
        needs_key: Whether requests need a key.
    """
    every = models.by_name.values()
    return _PAGE.format(
        version=escape(version),
        address=_ADDRESS,
        models="\n".join(
            _model(each, routes, is_only=len(every) == 1, needs_key=needs_key) for each in every
        ),
        routes="\n".join(
            _row(each) for each in routes if not each.kinds or models.names_of(each.kinds)
        ),
    )


def _model(served: Served, routes: Sequence[Route], *, is_only: bool, needs_key: bool) -> str:
    """Return a model and how to call the first route that runs it."""
    model = served.model
    about = f"{model.task}, {model.target} on {model.engine}, up to {model.max_length} tokens"
    route = next(each for each in routes if each.example and isinstance(model, each.kinds))
    path = route.path if is_only else f"{MODEL_PREFIX}{served.name}{route.path}"
    body = json.dumps(route.example).replace(_MASK, model.mask_token or _MASK)
    parts = [
        f"curl {_ADDRESS}{urllib.parse.quote(path)}",
        *([_KEY] if needs_key else []),
        "-H 'Content-Type: application/json'",
        f"-d {shlex.quote(body)}",
    ]
    call = " \\\n  ".join(parts)
    return f"<h2>{escape(served.name)}</h2>\n<p>{escape(about)}</p>\n<pre>{escape(call)}</pre>"


def _row(route: Route) -> str:
    cells = (f"<code>{escape(f'{route.methods[0]} {route.path}')}</code>", escape(route.summary))
    return "<tr>" + "".join(f"<td>{each}</td>" for each in (*cells, escape(route.tag))) + "</tr>"
