"""Write what type checkers see of `qdqbert.load`: one signature for each task.

Run `python tests/load_stub.py` after a change to the parameters of `load` or to the tasks.
"""

from __future__ import annotations

import ast
import collections
import inspect
import json
import re
import textwrap
from pathlib import Path

import qdqbert
from qdqbert.loading import load as module
from qdqbert.loading import options as load_options
from qdqbert.runtime import options as engine_options
from qdqbert.tasks.registry import TASKS

STUB = Path(qdqbert.__file__).parent / "loading" / "typed_load.pyi"
HEAD = '''"""Types of `qdqbert.load` for type checkers: the class that it returns for each task.

Written by tests/load_stub.py. It has one signature for each task, as type checkers read no tables.
"""
'''


def stub() -> str:
    """Return the text of the file."""
    models = {name: task.model for name, task in TASKS.items() if task.model is not None}
    typing = {"Any", "Literal", "TypedDict", "Unpack", "overload"}
    imports = collections.defaultdict(set, {"typing": typing})
    for model in models.values():
        imports[model.__module__].add(model.__name__)
    parameters = inspect.signature(module.load).parameters
    options = [each for name, each in parameters.items() if name not in ("path", "task")]
    fields = "".join(f"    {each.name}: {each.annotation}\n" for each in options)
    # It shows the defaults.
    general = "".join(
        f"    {each.name}: {each.annotation} = {default(each)},\n" for each in options
    )
    for name, source in origins().items():
        if re.search(rf"\b{name}\b", f"ModelLike TaskName {fields}"):
            imports[source].add(name)
    standard, *own = [
        f"from {source} import {', '.join(sorted(names))}"
        for source, names in sorted(imports.items(), key=lambda each: (each[0] != "typing", each))
    ]
    overloads = [
        f'@overload\ndef load(\n    path: ModelLike, *, task: Literal["{name}"], '
        f"**options: Unpack[LoadOptions]\n) -> {model.__name__}: ..."
        for name, model in models.items()
    ]
    # From Python 3.13 on, docstrings have no indentation.
    text = textwrap.indent(inspect.getdoc(module.load) or "", "    ").lstrip()
    overloads.append(
        "@overload\ndef load(\n    path: ModelLike,\n    *,\n    task: TaskName | None = None,\n"
        f'{general}) -> Any:\n    """{text}\n    """\n'
    )
    typed = f'class LoadOptions(TypedDict, total=False):\n    """Options of `load`."""\n\n{fields}'
    return "\n".join([HEAD, standard, "", *own, "", typed, *overloads])


def default(parameter: inspect.Parameter) -> str:
    """Return a default as Python code with double quotes."""
    value = parameter.default
    return json.dumps(value) if isinstance(value, str) else str(value)


def origins() -> dict[str, str]:
    """Return the modules that names in the files of `load` and its options come from."""
    return {
        alias.name: str(node.module)
        for each in (module, load_options, engine_options)
        for node in ast.parse(inspect.getsource(each)).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


if __name__ == "__main__":
    STUB.write_text(stub())
