"""Check the order of the rooms: imports point to rooms above, and make no circle."""

from __future__ import annotations

import ast
import functools
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import qdqbert
from python_process import run_python

SOURCE = Path(qdqbert.__file__).parent
ROOMS = (
    "common",
    "quantization",
    "data",
    "encoders",
    "calibration",
    "compat",
    "engines",
    "graphs",
    "runtime",
    "tasks",
    "training",
    "evidence",
    "loading",
    "serving",
    "integrations",
    "pipeline",
    "verbs",
    "cli",
    "__main__",
)
# QDQBERT models have quantizers with pytorch-quantization's interface.
MAY_IMPORT_TOOLKIT = {"training/models/modeling.py"}
# `from qdqbert import quantize` counts as an import from `verbs`, where most public names are.
ROOT_ROOM = "verbs"

# What the command line, its help and the worker processes load before they need a model.
LIGHT = (
    "qdqbert",
    "qdqbert.runtime.artifact",
    "qdqbert.encoders.task_kinds",
    "qdqbert.common.choices",
    "qdqbert.engines.providers",
    "qdqbert.engines.registry",
    "qdqbert.common.errors",
    "qdqbert.evidence.worker",
    "qdqbert.integrations.ray",
    "qdqbert.common.options.calibration",
    "qdqbert.quantization.recipes",
    "qdqbert.evidence.reporting.doctor",
    "qdqbert.evidence.reporting.export",
    "qdqbert.evidence.reporting.page",
    "qdqbert.evidence.reporting.push",
    "qdqbert.evidence.reporting.run",
    "qdqbert.evidence.reporting.serve",
    "qdqbert.evidence.reporting.terminal",
    "qdqbert.evidence.reporting.verify",
    "qdqbert.data.tables.inputs",
    "qdqbert.data.tables.outputs",
    "qdqbert.graphs.targets",
    "qdqbert.tasks.registry",
    "qdqbert.data.rows.columns",
    "qdqbert.data.rows.data",
    "qdqbert.tasks.task",
    "qdqbert.training.trainer.distillation",
    "qdqbert.verbs.benchmark.options",
    "qdqbert.verbs.evaluate.options",
    "qdqbert.verbs.export",
    "qdqbert.verbs.export.options",
    "qdqbert.verbs.push",
    "qdqbert.verbs.push.options",
    "qdqbert.pipeline.auto.worker",
    "qdqbert.verbs.quantize.options",
    "qdqbert.verbs.run",
    "qdqbert.verbs.train.options",
    "qdqbert.verbs.verify",
    "qdqbert.verbs.verify.run",
)
HEAVY = {"torch", "transformers", "onnx", "onnx_ir", "onnxruntime", "openvino"}

MODULES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def name_of(path: Path) -> str:
    parts = ("qdqbert", *path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts).removesuffix(".__init__")


def room_of(module: str) -> str:
    first = module.removeprefix("qdqbert").removeprefix(".").split(".")[0]
    return first if first in ROOMS else ROOT_ROOM


def is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def imported(node: ast.AST, *, types: bool) -> Iterator[str]:
    """Yield the names of this package that the code below `node` imports.

    Args:
        node: Where to look.
        types: Whether to yield what is imported for annotations only, or all that is not.
    """
    for child in ast.iter_child_nodes(node):
        if is_for_types(child):
            if types:
                yield from imported(ast.Module(child.body, []), types=False)
        elif isinstance(child, ast.Import):
            yield from (name.name for name in child.names if not types)
        elif isinstance(child, ast.ImportFrom):
            yield from (f"{child.module}.{name.name}" for name in child.names if not types)
        elif not isinstance(child, ast.expr):
            yield from imported(child, types=types)


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def imports_of(path: Path, *, types: bool = False) -> set[str]:
    names = imported(tree_of(path), types=types)
    return {name for name in names if name.split(".")[0] == "qdqbert"}


def test_every_file_belongs_to_a_room() -> None:
    tops = {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in MODULES}
    assert tops == set(ROOMS)


def test_imports_point_up_the_pipeline() -> None:
    found = []
    for path in MODULES:
        name = name_of(path)
        later = set(ROOMS[ROOMS.index(room_of(name)) + 1 :])
        imports = imports_of(path) | imports_of(path, types=True)
        found += [f"{name} imports {each}" for each in sorted(imports) if room_of(each) in later]
    assert not found, "\n".join(found)


def test_only_qdqbert_models_import_the_toolkit() -> None:
    found = []
    for path in MODULES:
        file = path.relative_to(SOURCE).as_posix()
        if room_of(name_of(path)) != "compat" and file not in MAY_IMPORT_TOOLKIT:
            toolkit = (name for name in imports_of(path) if room_of(name) == "compat")
            found += [f"{file} imports {name}" for name in sorted(toolkit)]
    assert not found, "\n".join(found)


def test_imports_make_no_cycle() -> None:
    modules = {name_of(path) for path in MODULES}
    graph = {
        name_of(path): {
            # `from package.module import name` and `from package import module` look alike.
            name if name in modules else name.rpartition(".")[0]
            for name in imports_of(path)
        }
        for path in MODULES
    }
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError


def test_light_modules_load_no_heavy_library() -> None:
    code = (
        "import importlib, sys\n"
        f"for module in {LIGHT}:\n"
        "    importlib.import_module(module)\n"
        f"    print(*sorted(module + ' loads ' + each for each in {HEAVY} & set(sys.modules)))"
    )
    assert not run_python("-c", code).split()


def test_public_names_are_sorted_and_exist() -> None:
    assert qdqbert.__all__ == sorted(qdqbert.__all__, key=str.casefold)
    assert dir(qdqbert) == sorted(qdqbert.__all__)
    for name in qdqbert.__all__:
        assert getattr(qdqbert, name).__name__ == name


def test_type_checkers_see_the_public_names() -> None:
    stub = ast.parse((SOURCE / "__init__.pyi").read_text())
    imported = [each for each in ast.walk(stub) if isinstance(each, ast.ImportFrom)]
    assert {(name.asname, name.name) for each in imported for name in each.names} == {
        (name, name) for name in qdqbert.__all__
    }


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'qdqbert' has no attribute 'quantise'"):
        qdqbert.quantise  # noqa: B018
