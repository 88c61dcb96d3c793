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
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>qdqbert</title>
<style>
body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 60rem; margin: auto; padding: 1rem;
  background: #fff; color: #1b1f24; overflow-wrap: anywhere }}
a {{ color: #1769aa }}
pre {{ background: #f5f7f9; padding: .75rem; white-space: pre-wrap }}
@media (prefers-color-scheme: dark) {{
  body {{ background: #14171a; color: #e6e9ec }}
  a {{ color: #58a6e8 }}
  pre {{ background: #1e2327 }}
}}
th, td {{ padding: .1rem 1.5rem .1rem 0; vertical-align: top; text-align: left }}
td:last-child {{ overflow-wrap: normal }}
@media (max-width: 40rem) {{
  tr, td {{ display: block }}
  thead {{ display: none }}
  tr {{ padding: .5rem 0 }}
}}
</style>
</head>
<body>
<main>
<h1>qdqbert {version}</h1>
{models}
<h2>Routes</h2>
<p><code>/models/NAME</code> in front of a path names a model. It is needed if several models run a
route. <a href="openapi.json">openapi.json</a> describes all routes.</p>
<table>
<thead>
<tr><th scope="col">route</th><th scope="col">what it does</th><th scope="col">protocol</th></tr>
</thead>
<tbody>
{routes}
</tbody>
</table>
</main>
<script>
const address = location.href.replace(/[?#].*/, "").replace(/\\/$/, "");
for (const each of document.querySelectorAll("pre"))
  each.textContent = each.textContent.replace("{address}", address);
</script>
</body>
</html>
"""


def page(routes: Sequence[Route], models: Models, *, version: str, needs_key: bool) -> str:
    """Return the page."""
    every = models.by_name.values()
    return _PAGE.format(
        version=escape(version),
        address=_ADDRESS,
        models="\n".join(
            _model(each, routes, is_only=len(every) == 1, needs_key=needs_key) for each in every
        ),
        routes="\n".join(
            _row(each) for each in routes if not each.kinds or models.names_of(each.runs)
        ),
    )


def _model(served: Served, routes: Sequence[Route], *, is_only: bool, needs_key: bool) -> str:
    """Return a model and how to call the first route that runs it."""
    model = served.model
    runs = model.engine if model.target == model.engine else f"{model.target} on {model.engine}"
    about = f"{model.task}, {runs}, up to {model.max_length} tokens"
    route = next(each for each in routes if each.example and each.runs(model))
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
