"""Check rules of the source that ruff and mypy do not know: flags and global state.

Each test lists all violations at once.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import qdqbert

SOURCE = Path(qdqbert.__file__).parent
# Our flags have lowercase letters and dashes only.
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*(?!\w)")
# Options of programs that messages tell the user to run.
FLAGS_OF_PIP = {"--force-reinstall"}
FLAGS_OF_RAY = {"--address", "--head"}
FLAGS_OF_TRITON = {"--model-repository"}
# Only the command line knows how its options are spelled.
MAY_NAME_FLAGS = "cli/"
# pytorch-quantization's switches are global.
MAY_HOLD_STATE = "compat/"
MUTATORS = {
    *("add", "append", "clear", "discard", "extend", "insert", "pop", "popitem", "remove"),
    *("setdefault", "update"),
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@functools.cache
def sources() -> Mapping[str, str]:
    """Return the text of each file of the package, by its path inside the package."""
    paths = sorted(SOURCE.rglob("*.py"))
    return {path.relative_to(SOURCE).as_posix(): path.read_text() for path in paths}


@functools.cache
def trees() -> Mapping[str, ast.Module]:
    return {path: ast.parse(text) for path, text in sources().items()}


def flags_in(text: str) -> set[str]:
    return set(FLAG.findall(text)) - FLAGS_OF_PIP - FLAGS_OF_RAY - FLAGS_OF_TRITON


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    """Yield every function and method below `tree`, with its qualified name."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function | ast.ClassDef):
            name = f"{prefix}{node.name}"
            if isinstance(node, Function):
                yield name, node
            yield from functions(node, f"{name}.")
        elif not isinstance(node, ast.expr):
            yield from functions(node, prefix)


def names_in(nodes: Iterable[ast.AST], kind: type[ast.expr_context] = ast.Store) -> set[str]:
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, kind)}


def shared_names(tree: ast.Module) -> tuple[set[str], set[str]]:
    """Return the names of modules that a module imports, and its other global names."""
    modules, values = (
        set(),
        names_in(
            node
            for statement in tree.body
            if not isinstance(statement, Function | ast.ClassDef)
            for node in ast.walk(statement)
        ),
    )
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            values |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.ClassDef):
            values.add(node.name)
    return modules, values


def changed_globals(tree: ast.Module) -> Iterator[str]:
    """Yield the names that functions of a module change, and that outlive the call.

    A name is changed by a `global` statement, where one of its items or attributes is assigned or
    deleted, and by a method that changes lists, dicts or sets. A class method's `cls` counts too.
    """
    modules, values = shared_names(tree)
    for _, function in functions(tree):
        if function.name == "__init_subclass__":
            # The class is being made, and nothing uses it yet.
            continue
        nodes = list(ast.walk(function))
        local = names_in(nodes) | {node.arg for node in nodes if isinstance(node, ast.arg)}
        for node in nodes:
            if isinstance(node, ast.Global):
                yield from node.names
        # `np.insert` and `torch.add` are functions of a module and change nothing.
        mutated = (each for node in nodes for each in mutated_by(node))
        yield from names_in(mutated, ast.Load) & (values - local)
        assigned = (each for node in nodes for each in assigned_by(node))
        yield from names_in(assigned, ast.Load) & ((values | modules) - local | {"cls"})


def mutated_by(node: ast.AST) -> Iterator[ast.expr]:
    """Yield `x` for `x.append(...)` and other methods that change `x`."""
    is_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    if is_method and node.func.attr in MUTATORS:
        yield node.func.value


def assigned_by(node: ast.AST) -> Iterator[ast.expr]:
    """Yield `x` where a node assigns or deletes `x.name` or `x[key]`."""
    is_target = isinstance(getattr(node, "ctx", None), ast.Store | ast.Del)
    if is_target and isinstance(node, ast.Subscript | ast.Attribute):
        yield node.value


def check(violations: Mapping[str, str]) -> None:
    assert not violations, "\n".join(f"{name}: {what}" for name, what in violations.items())


def test_only_the_command_line_spells_flags() -> None:
    violations = {
        path: " ".join(sorted(flags_in(text)))
        for path, text in sources().items()
        if not path.startswith(MAY_NAME_FLAGS) and flags_in(text)
    }
    check(violations)


def test_only_compat_changes_global_state() -> None:
    violations = {
        f"{path}:{name}": "is changed by a function"
        for path, tree in trees().items()
        if not path.startswith(MAY_HOLD_STATE)
        for name in changed_globals(tree)
    }
    check(violations)
