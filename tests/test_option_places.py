"""An option is declared in few files: as a field of a class of options, or as a parameter."""

from __future__ import annotations

import ast
import collections
import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path

import qdqbert
from qdqbert.cli._commands import COMMANDS
from qdqbert.common.options.declared import Options, declared_options

SOURCE = Path(qdqbert.__file__).parent
# Modules whose public functions and classes are not made of a class of options.
OTHER = (
    "training/models/calibrate.py",
    "training/models/prepare.py",
    *(path.relative_to(SOURCE).as_posix() for path in (SOURCE / "integrations").glob("*.py")),
)
MOST = 3
# Options that are declared in more files, and why.
MORE = {
    "device": "`benchmark` says what it measures there, and transformers takes numbers",
    "model": "each command says which kinds of models it takes",
    "output": "each command says what it writes",
    "overwrite": "each command says what it replaces",
    "ray": "an address; functions of the integration take Ray's module by this name",
    "target": "`evaluate`, `analyze` and `export` take another one by default than `load`",
    "threads": "those of a model, of all models, of a replica or of a measurement",
}


def classes(kind: type) -> Iterator[type]:
    for each in kind.__subclasses__():
        if each.__module__.startswith("qdqbert."):
            yield each
            yield from classes(each)


def parameters(tree: ast.Module) -> Iterator[str]:
    """Yield the parameters of the functions and classes that users call."""
    for node in tree.body:
        found = node.body if isinstance(node, ast.ClassDef) else [node]
        for each in found:
            if isinstance(each, ast.FunctionDef):
                name = node.name if each.name == "__init__" else each.name
                if not name.startswith("_"):
                    yield from (arg.arg for arg in (*each.args.args, *each.args.kwonlyargs))


def files() -> Mapping[str, set[str]]:
    """Return the files that declare each option."""
    found = collections.defaultdict(set)
    for kind in classes(Options):
        path = Path(inspect.getfile(kind)).relative_to(SOURCE).as_posix()
        for name in inspect.get_annotations(kind):
            found[name].add(path)
    for path in OTHER:
        for name in parameters(ast.parse((SOURCE / path).read_text())):
            found[name].add(path)
    return found


def test_an_option_is_declared_in_few_files() -> None:
    names = {each.field for command in COMMANDS for each in declared_options(command.options)}
    counted = {name: paths for name, paths in files().items() if name in names}
    assert counted.keys() == names
    too_many = {name: sorted(paths) for name, paths in counted.items() if len(paths) > MOST}
    assert too_many.keys() == MORE.keys(), too_many
