"""Any .onnx file, float or quantized by whomever, to a file that engines run under known names."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from qdqbert.graph.check import save_graph
from qdqbert.graph.imported.imported_model import refusing
from qdqbert.graph.imported.input_output_names import name_inputs, name_outputs
from qdqbert.graph.imported.onnx_file import load_graph
from qdqbert.graph.imported.vocabulary import vocabulary_size


@dataclasses.dataclass(frozen=True, kw_only=True)
class RenamedGraph:
    """A graph that engines run under known names.

    Attributes:
        path: The file.
        vocabulary: Rows of its table of word embeddings, if that is found.
        named: transformers' names of inputs that were found by what the user said.
    """

    path: Path
    vocabulary: int | None
    named: frozenset[str]


def write_renamed_copy(
    path: Path, *, task: str, input_names: Mapping[str, str], scratch: Path, others: bool = False
) -> RenamedGraph:
    """Writes a copy whose inputs and outputs have transformers' names; operators stay as they are.

    Args:
        path: The .onnx file.
        task: What it is for.
        input_names: Names of its inputs by transformers' names, where they are others.
        scratch: A folder for the copy; engines read it when they load.
        others: Whether input names that the file has not are those of another file.

    Raises:
        UserInputError: It cannot be read, or has not the inputs or outputs of its task.
    """
    with refusing(path):
        model = load_graph(path)
        there = {value.name for value in model.graph.inputs}
        of_this = {role: name for role, name in input_names.items() if name in there}
        given = of_this if others else input_names
        name_inputs(model, given)
        name_outputs(model, task)
        copy = scratch / path.name
        save_graph(model, copy, temporary=True)
        return RenamedGraph(path=copy, vocabulary=vocabulary_size(model), named=frozenset(given))
