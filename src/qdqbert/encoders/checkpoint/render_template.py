"""Render a chat template in a process of its own, with bounds on its time and memory.

It is run as a script, and imports nothing of this package. It reads {"template", "conversations",
"variables"} in JSON from its input, and writes {"texts", "errors"}: for each conversation a text,
or the reason why there is none.

The names that templates find are those of transformers (`utils/chat_template_utils.py`).
"""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox

# Older versions have known ways out of the sandbox.
_OLDEST = (3, 1, 6)
_SECONDS = 2
_BYTES = 1 << 30
_LONGEST = 1 << 18


class _Generation(jinja2.ext.Extension):
    """The tag `generation`, which marks a part of the text for training."""

    tags = {"generation"}  # noqa: RUF012  # as the class declares it

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Namespace(jinja2.utils.Namespace):
    """A namespace without names that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        values = dict(*rest, **kwargs)
        for name in values:
            _check_name(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if str(name).startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace has no attribute {name!r}")


def _raise_exception(message: Any) -> None:
    raise jinja2.exceptions.TemplateError(str(message))


def _strftime_now(_: Any) -> None:
    raise jinja2.exceptions.TemplateError("its text depends on the date")


def _to_json(value: Any, **options: Any) -> str:
    return json.dumps(value, **{"ensure_ascii": False, **options})


def _limit() -> None:
    """Bound the time and memory of this process, where the system can."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
        resource.setrlimit(resource.RLIMIT_AS, (_BYTES, _BYTES))


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    made = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    made.filters["tojson"] = _to_json
    made.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
        "namespace": _Namespace,
    }
    return made


def _rendered(template: jinja2.Template, variables: dict[str, Any]) -> tuple[str | None, str]:
    """Return the text of a template and the reason why there is none, one of which is empty."""
    try:
        text = template.render(variables)
    # A template can raise whatever Python does.
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"[:200]
    if len(text) > _LONGEST:
        return None, f"its text is longer than {_LONGEST} characters"
    return text, ""


def main() -> None:
    """Read a template, and write its texts."""
    given = json.load(sys.stdin)
    version = tuple(int(each) for each in jinja2.__version__.split(".")[:3] if each.isdigit())
    if version < _OLDEST:
        reason = f"jinja2 is older than {'.'.join(map(str, _OLDEST))}"
        json.dump({"texts": [], "errors": [], "refused": reason}, sys.stdout)
        return
    _limit()
    try:
        template = _environment().from_string(given["template"])
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"[:200]
        json.dump({"texts": [], "errors": [], "refused": reason}, sys.stdout)
        return
    found = [
        _rendered(template, {**given["variables"], "messages": each})
        for each in given["conversations"]
    ]
    texts, errors = [text for text, _ in found], [reason for _, reason in found]
    json.dump({"texts": texts, "errors": errors, "refused": ""}, sys.stdout)


if __name__ == "__main__":
    main()
