"""Run a user's .onnx file on an engine, under transformers' names of inputs and outputs."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.choices import EngineName
from qdqbert.engines.runner import Outputs, Runner, open_runner
from qdqbert.errors import CheckpointError, QdqBertError, UserInputError
from qdqbert.graph.imported.file_errors import file_errors, one_line
from qdqbert.graph.imported.fixed_shapes import at_any_size
from qdqbert.graph.imported.onnx_file import load_graph, stored_bytes
from qdqbert.graph.imported.renamed_copy import RenamedCopy, write_renamed_copy


@dataclasses.dataclass(frozen=True, kw_only=True)
class GivenNames:
    """Names that a call gives for inputs and outputs of .onnx files.

    Attributes:
        inputs: Maps transformers' names to names of a graph's inputs.
        outputs: Maps transformers' names to names of a graph's outputs.
        are_shared: Whether the call has several files, so that names that one does not have belong
            to another one and are ignored.
    """

    inputs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    outputs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    are_shared: bool = False


NO_NAMES = GivenNames()


class GraphRunner:
    """A `Runner` of a user's graph that raises `UserInputError` where the engine fails.

    Attributes:
        vocabulary_size: Rows of the graph's table of word embeddings, `None` if there is no such
            table.
        matched_names: transformers' names of the inputs and outputs that were found by the names
            that the user gave.
        max_length: Longest input in tokens that the graph accepts, `None` if it sets no limit.
        size_bytes: Size of the file, with its weights in other files; 0 if it is not known.
    """

    def __init__(
        self,
        runner: Runner,
        path: Path,
        *,
        vocabulary_size: int | None,
        matched_names: frozenset[str] = frozenset(),
        max_length: int | None = None,
        size_bytes: int = 0,
        reopen: Callable[[], Runner] | None = None,
    ) -> None:
        """Wrap a runner.

        Args:
            runner: The graph, loaded.
            path: The user's file, for messages.
            vocabulary_size: See the attribute.
            matched_names: See the attribute.
            max_length: See the attribute.
            size_bytes: See the attribute.
            reopen: Loads the graph again after `release`.
        """
        self._runner: Runner | None = runner
        self._path, self._reopen = path, reopen
        self.vocabulary_size, self.matched_names = vocabulary_size, matched_names
        self.max_length, self.size_bytes = max_length, size_bytes
        self.input_names, self.output_names = runner.input_names, runner.output_names
        self.precision = runner.precision

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Outputs:
        """Run one forward pass.

        Raises:
            UserInputError: The engine fails, or a token id has no embedding.
        """
        check_token_ids(inputs, f"Graph {self._path.name!r}", self.vocabulary_size)
        with engine_errors(self._path):
            if self._runner is None:
                assert self._reopen is not None
                self._runner = self._reopen()
            return self._runner.run(inputs)

    def release(self) -> None:
        """Free the engine's memory until the next `run`, if the graph can be loaded again."""
        if self._reopen is not None:
            self._runner = None
            gc.collect()


def check_token_ids(
    inputs: Mapping[str, NDArray[Any]], model: str, vocabulary_size: int | None
) -> None:
    """Refuse token ids that have no embedding, which some engines read without an error.

    Raises:
        UserInputError: There is one.
    """
    largest = int(np.max(inputs["input_ids"]))
    if vocabulary_size is not None and largest >= vocabulary_size:
        raise UserInputError(
            f"{model} has embeddings for {vocabulary_size} token ids, and the "
            f"tokenizer returned id {largest}. Pass the `tokenizer` of this model.",
            argument="tokenizer",
        )


@contextlib.contextmanager
def engine_errors(path: Path) -> Iterator[None]:
    """Re-raise an engine's errors as one line that names the file.

    Raises:
        UserInputError: The engine failed.
    """
    try:
        yield
    except QdqBertError:
        raise
    # Engines' exceptions have no common class.
    except Exception as error:
        raise UserInputError(
            f"Graph {path.name!r} fails when it runs: {one_line(error)}. Pass the `tokenizer` that "
            "it was made for, and a `max_length` that it accepts."
        ) from error


def open_graph_file(
    path: Path,
    *,
    task: str,
    engine: EngineName,
    provider: str | None = None,
    names: GivenNames = NO_NAMES,
) -> GraphRunner:
    """Load an unchanged .onnx file, float or quantized, under transformers' names.

    Inputs of a graph with fixed shapes are padded.

    Args:
        path: The .onnx file.
        task: transformers' name of its task.
        engine: The engine to run it on.
        provider: Execution provider of ONNX Runtime.
        names: Names of the call.

    Raises:
        UserInputError: The file cannot be read, does not fit the task, or does not run on the
            engine.
    """
    with tempfile.TemporaryDirectory() as scratch:
        copy, size_bytes, matched = copy_to_run(
            path, Path(scratch) / path.name, task=task, names=names
        )
        try:
            runner = open_runner(engine, copy.path, provider=provider)
        # It names the copy.
        except CheckpointError as error:
            raise _not_run(path, engine, error) from error
        except QdqBertError:
            raise
        # Engines' exceptions have no common class.
        except Exception as error:
            raise _not_run(path, engine, error) from error
    return GraphRunner(
        at_any_size(runner, copy.sizes, task),
        path,
        vocabulary_size=copy.vocabulary_size,
        matched_names=matched,
        max_length=copy.max_length,
        size_bytes=size_bytes,
    )


def copy_to_run(
    path: Path,
    copy: Path,
    *,
    task: str,
    names: GivenNames = NO_NAMES,
) -> tuple[RenamedCopy, int, frozenset[str]]:
    """Write a copy of an .onnx file that has transformers' names; see `open_graph_file`.

    Returns:
        The copy, the size of the file in bytes, and transformers' names of the inputs and outputs
        that were found by the names that the user gave.

    Raises:
        UserInputError: The file cannot be read, or does not fit the task.
    """
    inputs, outputs = names.inputs, names.outputs
    with file_errors(path):
        model = load_graph(path)
        size_bytes = stored_bytes(model, path)
        if names.are_shared:
            known = {value.name for value in (*model.graph.inputs, *model.graph.outputs)}
            inputs, outputs = (
                {role: name for role, name in given.items() if name in known}
                for given in (inputs, outputs)
            )
        renamed = write_renamed_copy(
            model, copy, task=task, input_names=inputs, output_names=outputs
        )
    return renamed, size_bytes, frozenset((*inputs, *outputs))


def _not_run(path: Path, engine: EngineName, error: Exception) -> UserInputError:
    """Return the error for a user's file that an engine does not load."""
    return UserInputError(
        f"Graph {path.name!r} does not run on {engine}: {one_line(error)}. Pass another `engine`.",
        argument="engine",
    )
