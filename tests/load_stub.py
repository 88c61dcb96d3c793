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
from qdqbert.tasks.registry import TASKS

STUB = Path(qdqbert.__file__).parent / "loading" / "typed_load.pyi"
HEAD = '''"""Types of `qdqbert.load` for type checkers: the class that it returns for each task.

Written by tests/load_stub.py. It has one signature for each task, as type checkers read no tables.
"""
'''


def stub() -> str:
    """Return the text of the file."""
    models = {name: task.model for name, task in TASKS.items() if task.model is not None}
    imports = collections.defaultdict(set, {"typing": {"Any", "Literal", "overload"}})
    for model in models.values():
        imports[model.__module__].add(model.__name__)
    general = signature("TaskName | None = None", "Any")
    for name, source in origins().items():
        if re.search(rf"\b{name}\b", general):
            imports[source].add(name)
    standard, *own = [
        f"from {source} import {', '.join(sorted(names))}"
        for source, names in sorted(imports.items(), key=lambda each: (each[0] != "typing", each))
    ]
    overloads = [
        f'{signature(f"""Literal["{name}"]""", model.__name__)} ...'
        for name, model in models.items()
    ]
    # From Python 3.13 on, docstrings have no indentation.
    text = textwrap.indent(inspect.getdoc(module.load) or "", "    ").lstrip()
    overloads.append(f'{general}\n    """{text}\n    """\n')
    return "\n".join([HEAD, standard, "", *own, "", *overloads])


def signature(task: str, returned: str) -> str:
    """Return the signature of `load` with another type of `task` and of what it returns."""
    parameters = []
    for each in inspect.signature(module.load).parameters.values():
        if each.name == "path":
            parameters += [f"path: {each.annotation}", "*"]
        elif each.name == "task":
            parameters.append(f"task: {task}")
        else:
            default = json.dumps(each.default) if isinstance(each.default, str) else each.default
            parameters.append(f"{each.name}: {each.annotation} = {default}")
    text = "".join(f"    {each},\n" for each in parameters)
    return f"@overload\ndef load(\n{text}) -> {returned}:"


def origins() -> dict[str, str]:
    """Return the modules that names in the file of `load` come from."""
    tree = ast.parse(inspect.getsource(module))
    return {
        alias.name: str(node.module)
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


if __name__ == "__main__":
    STUB.write_text(stub())
