"""Write a copy of an .onnx file, float or quantized, with transformers' names."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from qdqbert.graph.check import save_graph
from qdqbert.graph.imported.file_errors import file_errors
from qdqbert.graph.imported.fixed_shapes import FixedSizes, fixed_sizes
from qdqbert.graph.imported.input_output_names import name_inputs, name_outputs
from qdqbert.graph.imported.onnx_file import load_graph
from qdqbert.graph.imported.position_limit import longest_input
from qdqbert.graph.imported.vocabulary import vocabulary_size
from qdqbert.task_kinds import TASK_KINDS


@dataclasses.dataclass(frozen=True, kw_only=True)
class RenamedCopy:
    """A copy of a graph with transformers' names.

    Attributes:
        path: The file.
        vocabulary_size: Rows of its table of word embeddings, `None` if there is no such table.
        matched_names: transformers' names of the inputs and outputs that were found by the names
            that the user gave.
        sizes: Sizes of its inputs.
        max_length: Longest input in tokens that it takes; `None` for any.
    """

    path: Path
    vocabulary_size: int | None
    matched_names: frozenset[str]
    sizes: FixedSizes
    max_length: int | None


def write_renamed_copy(
    path: Path,
    *,
    task: str,
    input_names: Mapping[str, str],
    scratch: Path,
    output_names: Mapping[str, str] | None = None,
    skip_unknown_names: bool = False,
) -> RenamedCopy:
    """Write a copy whose inputs and outputs have transformers' names.

    Operators stay as they are. Outputs that the task does not read are dropped.

    Args:
        path: The .onnx file.
        task: transformers' name of its task.
        input_names: Maps transformers' names to names of the graph's inputs, for inputs with
            unusual names.
        scratch: A folder for the copy; engines read it when they load.
        output_names: Maps transformers' names to names of the graph's outputs.
        skip_unknown_names: Ignore names that the file does not have: they belong to another file of
            the same call.

    Raises:
        UserInputError: The file cannot be read, or lacks the inputs or outputs of its task.
    """
    with file_errors(path):
        model = load_graph(path)
        inputs, outputs = dict(input_names), dict(output_names or {})
        if skip_unknown_names:
            known = {value.name for value in (*model.graph.inputs, *model.graph.outputs)}
            inputs = {role: name for role, name in inputs.items() if name in known}
            outputs = {role: name for role, name in outputs.items() if name in known}
        name_inputs(model, inputs)
        name_outputs(model, task, outputs, keep_extra=False)
        copy = scratch / path.name
        save_graph(model, copy, temporary=True)
        sizes = fixed_sizes(model)
        choices = TASK_KINDS[task].has_choices
        return RenamedCopy(
            path=copy,
            vocabulary_size=vocabulary_size(model),
            matched_names=frozenset((*inputs, *outputs)),
            sizes=sizes,
            max_length=sizes.sequence or longest_input(model, choices=choices),
        )
