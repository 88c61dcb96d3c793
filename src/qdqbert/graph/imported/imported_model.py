"""A user's .onnx file to a float model that runs, and the same graph with sites."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path

from qdqbert.engines.onnxruntime import OnnxRuntimeRunner
from qdqbert.errors import QdqBertError, UserInputError
from qdqbert.graph.check import save_graph
from qdqbert.graph.imported.canonical_form import to_canonical_form
from qdqbert.graph.imported.input_output_names import name_inputs, name_outputs
from qdqbert.graph.imported.onnx_file import read_graph
from qdqbert.graph.imported.roles import find_roles
from qdqbert.graph.imported.sites import SitedGraph, mark_sites
from qdqbert.graph.imported.vocabulary import vocabulary_size


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportedModel:
    """A ready graph that can be run, watched and quantized.

    Attributes:
        sited: It, with sites.
        runner: The float model on ONNX Runtime.
        input_names: transformers' names of its inputs, in order.
        output_names: transformers' names of its outputs, in order.
        vocabulary: Rows of its table of word embeddings, if that is found.
    """

    sited: SitedGraph
    runner: OnnxRuntimeRunner
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    vocabulary: int | None


def import_onnx(
    path: Path, *, task: str, input_names: Mapping[str, str], scratch: Path
) -> ImportedModel:
    """Reads, normalises, names and marks a graph.

    Args:
        path: The .onnx file.
        task: What it is for.
        input_names: Names of its inputs by transformers' names, where they are others.
        scratch: A folder for the float graph.

    Raises:
        UserInputError: It cannot be quantized; names the file, says why in one line.
    """
    with refusing(path):
        return _opened(path, task, input_names, scratch)


@contextlib.contextmanager
def refusing(path: Path) -> Iterator[None]:
    """Turns whatever a file makes libraries raise into one line that names the file.

    Raises:
        UserInputError: Something was raised.
    """
    try:
        yield
    except QdqBertError as error:
        text = " ".join(str(error).split())
        if path.name in text and isinstance(error, UserInputError) and text == str(error):
            raise
        raise UserInputError(f"Graph {path.name!r} cannot be used: {text}") from error
    except OSError as error:
        raise UserInputError(f"Graph {path.name!r} cannot be used: {error}.") from error
    except Exception as error:  # the file decides what fails in which library
        reason = " ".join(str(error).split())[:200]
        raise UserInputError(
            f"Graph {path.name!r} cannot be used: it is damaged in a way that no check names "
            f"({type(error).__name__}: {reason}). Export it again."
        ) from error


def _opened(path: Path, task: str, input_names: Mapping[str, str], scratch: Path) -> ImportedModel:
    model = to_canonical_form(read_graph(path))
    inputs = name_inputs(model, input_names)
    outputs = name_outputs(model, task)
    save_graph(model, scratch / "float.onnx", temporary=True)
    try:
        runner = OnnxRuntimeRunner(scratch / "float.onnx")
    except Exception as error:  # onnxruntime's have no common class
        reason = " ".join(str(error).split()).rpartition(" failed:")[2][:200]
        raise UserInputError(f"it does not run on ONNX Runtime: {reason}") from error
    return ImportedModel(
        sited=mark_sites(model, find_roles(model)),
        runner=runner,
        input_names=inputs,
        output_names=outputs,
        vocabulary=vocabulary_size(model),
    )
