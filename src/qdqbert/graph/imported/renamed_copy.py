"""Write a copy of an .onnx file, float or quantized, with transformers' names."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import onnx_ir as ir

from qdqbert.graph.check import save_graph
from qdqbert.graph.imported.fixed_shapes import FixedSizes, fixed_sizes
from qdqbert.graph.imported.input_output_names import name_inputs, name_outputs
from qdqbert.graph.imported.tables import longest_input, vocabulary_size
from qdqbert.task_kinds import TASK_KINDS


@dataclasses.dataclass(frozen=True, kw_only=True)
class RenamedCopy:
    """A copy of a graph with transformers' names.

    Attributes:
        path: The file.
        input_names: Names of its inputs, in transformers' order.
        output_names: Names of the outputs that the task reads, in transformers' order.
        sizes: Sizes of its inputs.
        vocabulary_size: Rows of its table of word embeddings, `None` if there is no such table.
        max_length: Longest input in tokens that it takes; `None` for any.
    """

    path: Path
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    sizes: FixedSizes
    vocabulary_size: int | None
    max_length: int | None


def write_renamed_copy(
    model: ir.Model,
    path: Path,
    *,
    task: str,
    input_names: Mapping[str, str],
    output_names: Mapping[str, str],
    keep_extra: bool = False,
) -> RenamedCopy:
    """Give inputs and outputs of a graph transformers' names, and write it to a file to be run.

    Args:
        model: The graph, changed in place. Operators stay as they are.
        path: The file.
        task: transformers' name of its task.
        input_names: Maps transformers' names to names of the graph's inputs, for inputs with
            unusual names.
        output_names: Maps transformers' names to names of the graph's outputs.
        keep_extra: Whether outputs that the task does not read are kept.

    Raises:
        UserInputError: The graph lacks the inputs or outputs of its task.
    """
    inputs = name_inputs(model, input_names)
    outputs = name_outputs(model, task, output_names, keep_extra=keep_extra)
    save_graph(model, path, temporary=True)
    sizes = fixed_sizes(model)
    return RenamedCopy(
        path=path,
        input_names=inputs,
        output_names=outputs,
        sizes=sizes,
        vocabulary_size=vocabulary_size(model),
        max_length=sizes.sequence or longest_input(model, choices=TASK_KINDS[task].has_choices),
    )
