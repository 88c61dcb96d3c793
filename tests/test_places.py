"""Count the files that name a task or a part of a layer: adding one has to stay a change of few."""

from __future__ import annotations

import ast
from pathlib import Path

import qdqbert
from qdqbert.encoders.task_kinds import TASK_NAMES
from qdqbert.engines.native.schema import LINEARS, NORMS, ROUNDINGS

SOURCE = Path(qdqbert.__file__).parent
MOST_FILES = 3

# Files that may name tasks besides, and why.
EXCEPTIONS = {
    "integrations/exporting/source.py": "whether an exported classifier takes pairs",
    "integrations/transformers.py": "transformers' names of its pipelines",
    "pipeline/manifest.py": "facts that only the examples of a task show",
    "evidence/reporting/model_card.py": "example calls that depend on the model",
    "tasks/multi_label_classification.py": "the second task of text classifiers",
    "tasks/regression.py": "the third task of text classifiers",
    "tasks/registry.py": "which of the tasks of text classifiers a config means",
}


# Parts of a layer that more files of the native engine name, and why.
MORE_FILES = {"norm": "embeddings, convolutions and heads have one, too"}


def strings_of(path: Path) -> set[str]:
    return {
        node.value
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def names_of(path: Path) -> set[str]:
    """Return the tasks that a file names: in a string, or as its own name."""
    return (strings_of(path) | {path.stem.replace("_", "-")}) & set(TASK_NAMES)


def test_each_task_is_named_in_few_files() -> None:
    files: dict[str, list[str]] = {name: [] for name in TASK_NAMES}
    for path in sorted(SOURCE.rglob("*.py")):
        file = path.relative_to(SOURCE).as_posix()
        if not any(file.startswith(each) for each in EXCEPTIONS):
            for name in names_of(path):
                files[name].append(file)
    found = [f"{name}: {', '.join(each)}" for name, each in files.items() if len(each) > MOST_FILES]
    assert not found, "\n".join(found)


def test_no_exception_is_left_over() -> None:
    for each in EXCEPTIONS:
        paths = (SOURCE / each).rglob("*.py") if each.endswith("/") else [SOURCE / each]
        assert any(names_of(path) for path in paths), each


def test_each_part_of_a_layer_is_named_in_few_files_of_the_native_engine() -> None:
    files = {path: strings_of(path) for path in (SOURCE / "engines/native").rglob("*.py")}
    for part in {*LINEARS, *NORMS, *ROUNDINGS}:
        found = [path.name for path, strings in files.items() if part in strings]
        assert found
        assert (len(found) > MOST_FILES) == (part in MORE_FILES), (part, found)
