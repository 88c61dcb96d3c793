"""Read a user's .onnx file as a float model that runs, and as an `EncoderModel`."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx_ir as ir

from qdqbert.encoders.model import EncoderModel
from qdqbert.encoders.sites import tables_of
from qdqbert.graphs.encoder import ReadGraph, read_encoder
from qdqbert.graphs.imported.canonical_form import to_canonical_form
from qdqbert.graphs.imported.fixed_shapes import FixedSizes
from qdqbert.graphs.imported.graph_runner import GivenNames, GraphRunner, write_renamed_copy
from qdqbert.graphs.imported.onnx_file import file_errors, read_graph
from qdqbert.graphs.imported.same_values import check_same_values, tolerance_of


@dataclasses.dataclass(kw_only=True)
class ImportedModel:
    """An existing ONNX model, to run it and to read it as data.

    Attributes:
        graph: The graph in canonical form; `None` after it was read.
        runner: The float model on ONNX Runtime.
        input_names: transformers' names of its inputs, in order.
        output_names: transformers' names of the outputs that the task reads, in order.
        notices: Notices for the user about the file, and about what was read of it.
        tolerance: How much outputs of the file may differ; see `tolerance_of`.
    """

    path: Path
    graph: ir.Model | None
    runner: GraphRunner
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    notices: tuple[str, ...]
    tolerance: float

    def read(self, *, longest: int) -> EncoderModel:
        """Read the graph as data, and release it. Call it once.

        Args:
            longest: Longest text in tokens, for graphs without a table of positions.

        Raises:
            UserInputError: It has a part that is not known, or the result computes something else.
        """
        assert self.graph is not None
        with file_errors(self.path):
            read = read_encoder(self.graph, self.output_names, longest=longest)
            check_same_values(
                read.encoder, self.runner, self.output_names, tolerance=self.tolerance
            )
        self.graph = None
        # Graphs have reference cycles, and those replaced by now still hold weights.
        gc.collect()
        self.notices = (_found(read.encoder), *_kept(read, self.output_names), *self.notices)
        return read.encoder


def import_onnx(
    path: Path,
    *,
    task: str,
    input_names: Mapping[str, str],
    scratch: Path,
    output_names: Mapping[str, str] | None = None,
) -> ImportedModel:
    """Read a graph, bring it into canonical form, and rename inputs and outputs.

    `input_names` and `output_names` map transformers' names to those of the graph, where these are
    unusual. The folder `scratch` has to exist as long as the model is used.

    Raises:
        UserInputError: The graph cannot be quantized. The message is one line that names the
            file.
    """
    with file_errors(path):
        model = read_graph(path)
        tolerance = tolerance_of(model)
        model = to_canonical_form(model)
        names = GivenNames(inputs=input_names, outputs=output_names or {})
        copy = write_renamed_copy(
            model, scratch / "float.onnx", task=task, names=names, keep_extra=True
        )
        return ImportedModel(
            path=path,
            graph=model,
            runner=GraphRunner(path, copy, reopens=True),
            input_names=copy.input_names,
            output_names=copy.output_names,
            notices=_of_fixed(copy.sizes),
            tolerance=tolerance,
        )


def _of_fixed(sizes: FixedSizes) -> tuple[str, ...]:
    if sizes.are_dynamic:
        return ()
    longest = "" if sizes.sequence is None else f", up to {sizes.sequence} tokens"
    return (
        f"The graph's inputs have the fixed shape {sizes}. The new graphs take any number of "
        f"texts{longest}.",
    )


def _found(encoder: EncoderModel) -> str:
    layers, attention = encoder.layers, encoder.layers[0].attention
    tables = ", ".join(table.module.rpartition(".")[2] for table in tables_of(encoder))
    return (
        f"Found in the graph: {len(layers)} layers, {attention.heads} heads of attention, "
        f"{len(layers[0].up.bias)} inner channels, {tables}."
    )


def _kept(read: ReadGraph, wanted: Sequence[str]) -> list[str]:
    """Return notices about outputs that the task does not read."""
    heads = [output.name for head in read.encoder.heads for output in head.outputs]
    tail = () if read.encoder.tail is None else read.encoder.tail.outputs
    kept = [name for name in (*heads, *tail) if name not in wanted]
    notices = []
    if kept:
        notices.append(
            f"The graph has outputs that the task does not read: {', '.join(kept)}. They are kept, "
            "and computed from quantized values. Their agreement with float is not measured."
        )
    if read.dropped:
        notices.append(
            f"The graph has outputs that are computed from inner states: {', '.join(read.dropped)}."
            " They are left out."
        )
    return notices
