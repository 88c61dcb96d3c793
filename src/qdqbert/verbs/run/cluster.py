"""Run windows of rows in actors of a Ray cluster.

    files ─► tasks that read windows of rows ─► actors that answer them ─► blocks, in order

A task reads a group of consecutive files, however small they are, and few tasks run at a time. Each
window is a row of a data set of Ray, whose value is pickled. Thus the rows, the answers and
the order are the same as without Ray. If an actor dies, Ray starts another one and repeats its
windows. What goes wrong with the input travels as a value, too, because the first error in the
order of the rows has to be reported.
"""

from __future__ import annotations

import dataclasses
import inspect
import pickle
import socket
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from qdqbert.common.errors import UserInputError
from qdqbert.data.tables.inputs import START, Cursor, InputFile, Source
from qdqbert.data.tables.outputs import Writer
from qdqbert.data.tables.rows import BadRow, Row
from qdqbert.engines.cuda.device import is_gpu
from qdqbert.integrations.ray_address import ANY_CLUSTER
from qdqbert.integrations.ray_cluster import divide, open_ray, reporting, usable_nodes
from qdqbert.loading.answers import load_model
from qdqbert.loading.download import absolute_name
from qdqbert.runtime.batches import chunks
from qdqbert.verbs.run.columns import Columns
from qdqbert.verbs.run.options import RunOptions
from qdqbert.verbs.run.windows import Block, RowRun

# Bytes after which Ray Data ends a block of a data set: each window is one, so that any actor can
# take it.
_BLOCK_BYTES = 1

# Windows that an actor runs at the same time: one is tokenized and written while the streams of the
# model work on the other. More of them would leave other actors idle at the end of the input.
_WINDOWS_OF_ACTOR = 2

# Bytes and files that one task reads: enough for many windows, as the last one of a task is short,
# and few enough that a task does not read on alone for long. A larger file is read by one task.
_GROUP_BYTES = 1 << 23
_GROUP_FILES = 512

# Tasks that read at the same time, for each node: each is a process. One reads as fast as the
# actors of dozens of CPUs answer, unless opening files takes long.
_READERS_OF_NODE = 1

_VALUE = "value"


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileGroup:
    """The rows of consecutive files after a place, which one task reads.

    Attributes:
        source: An input of these files only, with absolute paths.
        names: The files, as messages name them, by their absolute names.
        start: The place after the rows to leave out.
        offset: Size of the files before them.
        window: Number of rows that are read together.
    """

    source: Source
    names: Mapping[str, str]
    start: Cursor
    offset: int
    window: int

    def windows(self) -> Iterator[list[Row | BadRow]]:
        """Yield the rows in windows, of which only the last one may be short."""
        source = dataclasses.replace(self.source, reader=socket.gethostname())
        placed = (
            row._replace(file=self.names[row.file], position=row.position + self.offset)
            for row in source.rows(self.start)
        )
        yield from chunks(placed, self.window)


def file_groups(source: Source, start: Cursor, window: int) -> list[FileGroup]:
    """Divide the files of an input, and return the groups with rows after a place.

    The division depends on the files alone, so that a continued run has the windows of one that
    was not interrupted, whatever cluster it runs on.
    """
    divided: list[list[InputFile]] = []
    size = 0
    for file in source.files:
        size += file.size
        if not divided or size > _GROUP_BYTES or len(divided[-1]) == _GROUP_FILES:
            divided.append([])
            size = file.size
        divided[-1].append(file)
    found = []
    first = offset = 0
    for files in divided:
        absolute = [dataclasses.replace(each, place=each.place.absolute()) for each in files]
        index = start.file - first
        if index < len(files):
            found.append(
                FileGroup(
                    source=dataclasses.replace(source, files=tuple(absolute)),
                    names={
                        each.name: file.name for each, file in zip(absolute, files, strict=True)
                    },
                    start=Cursor(index, start.after) if index >= 0 else START,
                    offset=offset,
                    window=window,
                )
            )
        first += len(files)
        offset += sum(each.size for each in files)
    return found


def read_windows(batch: Mapping[str, Any]) -> Iterator[dict[str, list[bytes]]]:
    """Yield the windows of a pickled `FileGroup`, one row of Ray's data set for each."""
    for value in batch[_VALUE]:
        try:
            for window in pickle.loads(value).windows():
                yield _packed(window)
        except UserInputError as error:
            yield _packed(error)


class WindowWorker:
    """The actor: answers windows of rows. Several threads can call it at once."""

    def __init__(self, options: RunOptions, columns: Columns, writer: Writer) -> None:
        self._options = options
        self._columns = columns
        self._writer = writer
        self._run: RowRun | None = None
        self._lock = threading.Lock()

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[bytes]]:
        """Return a pickled `Block` for each pickled window, or the error of the user in it."""
        return _packed(*(self._answer(pickle.loads(value)) for value in batch[_VALUE]))

    def _answer(self, rows: list[Row | BadRow] | UserInputError) -> Block | UserInputError:
        if isinstance(rows, UserInputError):
            return rows
        try:
            # A short window runs like any other one, and not like a short input.
            (block,) = self._loaded().blocks(rows, continues=True)
        except UserInputError as error:
            return error
        return block

    def _loaded(self) -> RowRun:
        with self._lock:
            if self._run is None:
                self._run = RowRun(
                    model=load_model(self._options),
                    columns=self._columns,
                    writer=self._writer,
                    options=self._options,
                )
            return self._run


def cluster_blocks(run: RowRun, source: Source, start: Cursor) -> Iterator[Block]:
    """Yield the answers to each window of an input, in order.

    Actors load the model of `run`, for the same engine and target.

    Raises:
        UserInputError: A file or a row of the input cannot be used, or Ray cannot run.
    """
    options, model = run.options, run.model
    with open_ray(options.ray or ANY_CLUSTER) as ray, reporting(ray):
        on_gpu = options.provider not in (None, "cpu", "openvino") or is_gpu(options.device)
        nodes = usable_nodes(ray)
        groups = divide(nodes, options.threads, on_gpu=on_gpu)
        changes: dict[str, Any] = {
            # Each node downloads a model of the hub or of object storage.
            "model": absolute_name(options.model),
            "engine": model.engine,
            "target": model.target,
            "threads": groups.threads,
            # An actor sees its own GPU only.
            "device": "cuda" if is_gpu(options.device) else options.device,
        }
        worker_options = dataclasses.replace(options, **changes)
        inputs = [pickle.dumps(each) for each in file_groups(source, start, model.window)]
        # Ray warns of more readers than inputs.
        readers = max(1, min(len(nodes) * _READERS_OF_NODE, len(inputs)))
        context = ray.data.DataContext.get_current().copy()
        context.execution_options.preserve_order = True
        context.target_max_block_size = _BLOCK_BYTES
        context.enable_progress_bars = False
        context.print_on_execution_start = False
        with ray.data.DataContext.current(context):
            data = ray.data.from_items(
                [{_VALUE: each} for each in inputs], override_num_blocks=len(inputs)
            )
            # Reading needs little, and all CPUs belong to actors.
            data = data.map_batches(
                read_windows,
                batch_size=None,
                num_cpus=0,
                compute=ray.data.TaskPoolStrategy(size=readers),
            )
            data = data.map_batches(
                WindowWorker,
                fn_constructor_args=(worker_options, run.columns, run.writer),
                batch_size=None,
                num_cpus=groups.threads,
                num_gpus=groups.gpus or None,
                **_actor_pool(ray, groups.actors),
            )
            for batch in data.iter_batches(batch_size=None, batch_format="numpy"):
                for value in batch[_VALUE]:
                    block = pickle.loads(value)
                    if isinstance(block, UserInputError):
                        raise block
                    yield block


def _actor_pool(ray: Any, actors: int) -> dict[str, Any]:
    """Return the arguments of `map_batches` for actors that answer several windows at once."""
    strategy = ray.data.ActorPoolStrategy
    settings = {
        "size": actors,
        "max_tasks_in_flight_per_actor": _WINDOWS_OF_ACTOR,
        "enable_true_multi_threading": True,
    }
    name = "max_concurrent_calls_per_actor"
    if name in inspect.signature(strategy).parameters:
        return {"compute": strategy(**settings, **{name: _WINDOWS_OF_ACTOR})}
    # Older versions of Ray take it beside the strategy.
    return {"compute": strategy(**settings), "max_concurrency": _WINDOWS_OF_ACTOR}


def _packed(*values: Any) -> dict[str, list[bytes]]:
    return {_VALUE: [pickle.dumps(value) for value in values]}
