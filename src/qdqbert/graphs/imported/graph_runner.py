"""Run a user's .onnx file on an engine, under transformers' names of inputs and outputs."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from qdqbert.common.choices import EngineName
from qdqbert.common.errors import CheckpointError, QdqBertError, UserInputError, one_line
from qdqbert.common.files import temporary_folder
from qdqbert.encoders.checkpoint.tokenizer_and_config import GraphFacts
from qdqbert.encoders.heads import EMBEDDING
from qdqbert.encoders.task_kinds import TASK_KINDS
from qdqbert.engines.registry import open_runner
from qdqbert.engines.runner import Outputs, Runner
from qdqbert.graphs.check import save_graph
from qdqbert.graphs.imported.fixed_shapes import FixedShapeRunner, FixedSizes, fixed_sizes
from qdqbert.graphs.imported.input_output_names import check_rank, name_inputs, name_outputs
from qdqbert.graphs.imported.onnx_file import file_errors, load_graph, stored_bytes
from qdqbert.graphs.imported.tables import longest_input, vocabulary_size


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

# Heads are padded to a multiple of 8 or 64 rows, for speed.
_ROW_PADDING = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class RenamedCopy:
    """A copy of a graph with transformers' names.

    Attributes:
        task: transformers' name of its task.
        input_names: Names of its inputs, in transformers' order.
        output_names: Names of the outputs that the task reads, in transformers' order.
        matched_names: Those of both that were found by the names that the user gave.
        vocabulary_size: Rows of its table of word embeddings, `None` if there is no such table.
        max_length: Longest input in tokens that it takes; `None` for any.
        size_bytes: Size of the original, with its weights in other files; 0 if it is not known.
    """

    path: Path
    task: str
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    matched_names: frozenset[str]
    sizes: FixedSizes
    vocabulary_size: int | None
    max_length: int | None
    size_bytes: int = 0


class GraphRunner:
    """A `Runner` of a user's graph that raises `UserInputError` where the engine fails.

    It takes inputs of any size, which it pads if the graph has fixed shapes.

    Attributes:
        copy: The copy of the graph that it runs.
    """

    def __init__(
        self,
        path: Path,
        copy: RenamedCopy,
        engine: EngineName = "onnxruntime",
        *,
        provider: str | None = None,
        reopens: bool,
    ) -> None:
        """Load a copy of a user's graph, whose path is for messages.

        A copy that `reopens` can be loaded again after `release`.

        Raises:
            UserInputError: It does not run on the engine.
        """
        self.copy, self._path, self._reopens = copy, path, reopens
        self._engine, self._provider = engine, provider
        self._runner: Runner | None = self._open()
        self.input_names, self.output_names = self._runner.input_names, self._runner.output_names
        self.precision = self._runner.precision

    def _open(self) -> Runner:
        try:
            runner = open_runner(self._engine, self.copy.path, provider=self._provider)
        # Engines' exceptions have no common class.
        except Exception as error:
            # A `CheckpointError` names the copy, and its cause has the reason.
            if isinstance(error, QdqBertError) and not isinstance(error, CheckpointError):
                raise
            raise UserInputError(
                f"Graph {self._path.name!r} does not run on {self._engine}: "
                f"{one_line(error.__cause__ or error)}. "
                + ("Export it again." if self._reopens else "Pass another `engine`."),
                argument=None if self._reopens else "engine",
            ) from error
        sizes = self.copy.sizes
        return runner if sizes.are_dynamic else FixedShapeRunner(runner, sizes, self.copy.task)

    def run(
        self, inputs: Mapping[str, NDArray[Any]], wanted: Collection[str] | None = None
    ) -> Outputs:
        """Run one forward pass.

        Raises:
            UserInputError: The engine fails, or a token id has no embedding.
        """
        check_token_ids(inputs, f"Graph {self._path.name!r}", self.copy.vocabulary_size)
        with engine_errors(self._path):
            self._runner = self._runner or self._open()
            return self._runner.run(inputs, wanted)

    def facts(self) -> GraphFacts:
        """Return what the graph shows of its tokenizer and its config.

        It is run once: the shape that the file declares for an output may be missing or wrong.

        Raises:
            UserInputError: The output does not fit the task.
        """
        kind, name = TASK_KINDS[self.copy.task], self.output_names[0]
        size = (1, 2, 4) if kind.has_choices else (1, 4)
        # Some models have a single token type.
        inputs = {each: np.full(size, int(each != "token_type_ids")) for each in self.input_names}
        shape = self.run(inputs)[name].shape
        output = f"The output of graph {self._path.name!r}"
        check_rank(output, len(shape), self.copy.task, is_pooled=name == EMBEDDING)
        rows = self.copy.vocabulary_size
        if kind.predicts_words and rows is not None and rows - shape[-1] >= _ROW_PADDING:
            raise UserInputError(
                f"Graph {self._path.name!r} returns {shape[-1]} numbers per token, and task "
                f"`{self.copy.task}` reads one for each of its {rows} token ids. Pass another "
                "`task`.",
                argument="task",
            )
        return GraphFacts(
            input_names=tuple(self.input_names),
            outputs=shape[-1],
            is_pooled=EMBEDDING in self.output_names,
            vocabulary_size=rows,
            max_length=self.copy.max_length,
        )

    def release(self) -> None:
        """Free the engine's memory until the next `run`, if the graph can be loaded again."""
        if self._reopens:
            self._runner = None
            gc.collect()


def check_token_ids(
    inputs: Mapping[str, NDArray[Any]], model: str, vocabulary_size: int | None
) -> None:
    """Refuse token ids that have no embedding, which some engines read without an error."""
    largest = int(np.max(inputs["input_ids"]))
    if vocabulary_size is not None and largest >= vocabulary_size:
        raise UserInputError(
            f"{model} has embeddings for {vocabulary_size} token ids, and the "
            f"tokenizer returned id {largest}. Pass the `tokenizer` of this model.",
            argument="tokenizer",
        )


@contextlib.contextmanager
def engine_errors(path: Path) -> Iterator[None]:
    """Raise an engine's errors as `UserInputError`, one line that names the file."""
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

    Raises:
        UserInputError: The file cannot be read, does not fit the task, or does not run on the
            engine.
    """
    with temporary_folder() as scratch:
        copy = copy_to_run(path, scratch / path.name, task=task, names=names)
        return GraphRunner(path, copy, engine, provider=provider, reopens=False)


def copy_to_run(path: Path, copy: Path, *, task: str, names: GivenNames = NO_NAMES) -> RenamedCopy:
    """Write a copy of an .onnx file that has transformers' names; see `open_graph_file`.

    Raises:
        UserInputError: The file cannot be read, or does not fit the task.
    """
    with file_errors(path):
        model = load_graph(path)
        size_bytes = stored_bytes(model, path)
        if names.are_shared:
            known = {value.name for value in (*model.graph.inputs, *model.graph.outputs)}
            inputs, outputs = (
                {role: name for role, name in given.items() if name in known}
                for given in (names.inputs, names.outputs)
            )
            names = GivenNames(inputs=inputs, outputs=outputs)
        written = write_renamed_copy(model, copy, task=task, names=names)
        return dataclasses.replace(written, size_bytes=size_bytes)


def write_renamed_copy(
    model: ir.Model, path: Path, *, task: str, names: GivenNames, keep_extra: bool = False
) -> RenamedCopy:
    """Give inputs and outputs of a graph transformers' names, and write it to a file to be run.

    The graph is changed in place, and its operators stay as they are. With `keep_extra`, so do
    outputs that the task does not read.

    Raises:
        UserInputError: The graph lacks the inputs or outputs of its task.
    """
    inputs = name_inputs(model, names.inputs)
    outputs = name_outputs(model, task, names.outputs, keep_extra=keep_extra)
    save_graph(model, path, temporary=True)
    sizes = fixed_sizes(model)
    return RenamedCopy(
        path=path,
        task=task,
        input_names=inputs,
        output_names=outputs,
        matched_names=frozenset((*names.inputs, *names.outputs)),
        sizes=sizes,
        vocabulary_size=vocabulary_size(model),
        max_length=sizes.sequence or longest_input(model),
    )
