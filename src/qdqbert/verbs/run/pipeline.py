"""Read rows, run them, write parts, and join the parts to the output."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import json
import logging
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

from qdqbert.artifact import QUANTIZATION
from qdqbert.errors import OutputExistsError, UserInputError
from qdqbert.inference.answers import entry_of, load_model
from qdqbert.inference.model import Model
from qdqbert.integrations.ray_cluster import import_ray
from qdqbert.progress import Advance, Progress
from qdqbert.tables.inputs import STDIN, Source, open_source
from qdqbert.tables.outputs import STDOUT, Writer, format_of, is_folder
from qdqbert.tables.rows import BadRow, Row, to_json
from qdqbert.verbs.run.cluster import cluster_blocks
from qdqbert.verbs.run.columns import Columns, find_columns, row_task
from qdqbert.verbs.run.options import RunOptions
from qdqbert.verbs.run.parts import (
    Part,
    PartsFolder,
    UnfinishedPart,
    errors_path,
    is_finished,
    open_parts,
    parts_path,
)
from qdqbert.verbs.run.report import RunReport
from qdqbert.verbs.run.windows import Block, WindowedRun, refuse

_LOGGER = logging.getLogger("qdqbert")

# A part is finished when it has so many rows, or has taken so long, and its window ends.
PART_ROWS = 1 << 16
PART_SECONDS = 20.0
# Files of a folder are joined from parts, and do not depend on the time that these took. Their size
# is that before compression.
FOLDER_ROWS = 1 << 15
FOLDER_BYTES = 1 << 28

# Rows that columns are inferred from.
_HEAD_ROWS = 100

# Options that do not change the answers.
_FREE_OPTIONS = ("model", "input", "output", "on_error", "resume", "overwrite")


@dataclasses.dataclass(kw_only=True)
class Totals:
    """Numbers of a run.

    Attributes:
        rows: Number of rows with answers.
        skipped: Number of other rows.
        truncated: Number of rows that were cut.
        tokens: Number of tokens.
    """

    rows: int = 0
    skipped: int = 0
    truncated: int = 0
    tokens: int = 0

    def add(self, other: Any) -> None:
        """Add the numbers of a part."""
        for field in dataclasses.fields(self):
            total = getattr(self, field.name) + getattr(other, field.name)
            setattr(self, field.name, total)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pipeline:
    """What a run needs.

    Attributes:
        options: Options of the call.
        source: The input.
        rows: All rows of the input.
        columns: Columns that are read and written.
        writer: How rows are written.
        model: The model.
        progress: What is shown.
        clock: Returns the time in seconds.
    """

    options: RunOptions
    source: Source
    rows: Iterator[Row | BadRow]
    columns: Columns
    writer: Writer
    model: Model
    progress: Progress
    clock: Callable[[], float]

    def blocks(self, start: int) -> Generator[Block]:
        """Yield the answered rows after the first `start` rows."""
        title = f"Running on {self.model.engine}"
        with self.progress.throughput(title, self.source.size) as advance:
            if self.options.ray is None:
                yield from self._local_blocks(start, advance)
            else:
                yield from self._cluster_blocks(start, advance)

    def _local_blocks(self, start: int, advance: Advance) -> Iterator[Block]:
        task = row_task(self.model, self.columns, self.options, self._reject)
        for _ in itertools.islice(self.rows, start):
            pass
        for window in WindowedRun(self.model, task, advance).windows(self.rows, start):
            yield Block.of(window, self.writer)

    def _cluster_blocks(self, start: int, advance: Advance) -> Iterator[Block]:
        found = cluster_blocks(
            self.options, self.source, self.columns, self.writer, self.model, start
        )
        for block in found:
            for row in block.bad:
                self._reject(row)
            advance(rows=block.rows, tokens=block.tokens, position=block.position)
            yield block

    def _reject(self, row: BadRow) -> None:
        if self.options.on_error == "stop":
            raise refuse(self.source.place(row), row.reason)
        if self.options.output == STDOUT:
            _LOGGER.warning("Skipped %s: %s.", self.source.place(row), row.reason)


def run_pipeline(
    options: RunOptions, progress: Progress, clock: Callable[[], float] = time.monotonic
) -> RunReport:
    """Run a model on the rows of files.

    Args:
        options: Options of the call.
        progress: What is shown.
        clock: Returns the time in seconds.

    Raises:
        UserInputError: An argument or a file cannot be used, or a row of the input.
    """
    if options.ray is not None:
        import_ray()
    source = open_source(options.input, options.input_format, header=options.header)
    format, is_compressed = format_of(options.output, options.output_format)
    if Path(options.output).absolute() in [path.absolute() for path in source.files]:
        raise OutputExistsError(
            f"`output={options.output!r}` is a file of the input. Pass another `output`.",
            argument="output",
        )
    with load_model(options) as model:
        entry = entry_of(model, options)
        rows = source.rows()
        head = list(itertools.islice(rows, _HEAD_ROWS))
        columns = find_columns(source, head, entry, options, format)
        writer = Writer(format=format, is_compressed=is_compressed, layout=columns.layout)
        pipeline = Pipeline(
            options=options,
            source=source,
            rows=itertools.chain(head, rows),
            columns=columns,
            writer=writer,
            model=model,
            progress=progress,
            clock=clock,
        )
        if options.output == STDOUT:
            return _print(pipeline)
        return _write(pipeline)


def _print(pipeline: Pipeline) -> RunReport:
    """Write answers to stdout as they are made."""
    stream = sys.stdout.buffer
    started = pipeline.clock()
    totals = Totals()
    with _reporting(pipeline):
        stream.write(pipeline.writer.header())
        for block in pipeline.blocks(0):
            stream.write(block.data)
            stream.flush()
            totals.add(_numbers(block))
        stream.flush()
    return _report(pipeline, totals, Totals(), 0, pipeline.clock() - started)


def _write(pipeline: Pipeline) -> RunReport:
    """Write answers to files."""
    options = pipeline.options
    output = Path(options.output)
    with _reporting(pipeline):
        output.parent.mkdir(parents=True, exist_ok=True)
    before = _identity(pipeline)
    if options.resume and is_finished(output, _files_read(pipeline)):
        return _report(pipeline, Totals(), Totals(), 0, 0.0, is_finished=True)
    with (
        _reporting(pipeline),
        open_parts(output, before, resume=options.resume, overwrite=options.overwrite) as parts,
    ):
        known = parts.report
        if known is not None:
            # It was killed after the last part.
            parts.publish(known)
            return RunReport(**{**known, "notices": tuple(known["notices"])})
        started = pipeline.clock()
        resumed = Totals()
        for part in parts.parts:
            resumed.add(part)
        resumed_rows = parts.next_row
        try:
            _write_parts(pipeline, parts)
        except BaseException:
            if not parts.parts or options.input == STDIN:
                parts.remove()
            raise
        if pipeline.source.identity() != before["input"]:
            raise UserInputError(
                f"`input={options.input!r}` changed during the run, so that the answers may belong "
                "to different versions of it. Pass `overwrite=True` to start again.",
                argument="input",
            )
        with pipeline.progress.stage(f"Writing {output.name}"):
            _join(pipeline, parts)
        totals = Totals()
        for part in parts.parts:
            totals.add(part)
        seconds = pipeline.clock() - started
        report = _report(pipeline, totals, resumed, resumed_rows, seconds)
        parts.publish(dataclasses.asdict(report))
        return report


def _write_parts(pipeline: Pipeline, parts: PartsFolder) -> None:
    blocks = pipeline.blocks(parts.next_row)
    started = pipeline.clock()
    with contextlib.closing(blocks):
        block = next(blocks, None)
        while block is not None:
            with parts.new_part() as part:
                while block is not None:
                    last = block.last
                    part.add(block.data, _error_lines(block), **dataclasses.asdict(_numbers(block)))
                    if _is_full(pipeline, parts, part, pipeline.clock() - started):
                        break
                    block = next(blocks, None)
                parts.parts.append(part.finish(last))
            started = pipeline.clock()
            if block is not None:
                block = next(blocks, None)


def _is_full(pipeline: Pipeline, parts: PartsFolder, part: UnfinishedPart, seconds: float) -> bool:
    if seconds >= PART_SECONDS:
        return True
    if is_folder(pipeline.options.output):
        # No part belongs to two files.
        return _fills_file(parts, [*_files(parts)[-1], part])
    return part.rows + part.skipped >= PART_ROWS


def _fills_file(parts: PartsFolder, of_file: Sequence[Part | UnfinishedPart]) -> bool:
    rows = sum(each.rows + each.skipped for each in of_file)
    return rows >= FOLDER_ROWS or sum(map(parts.size_bytes, of_file)) >= FOLDER_BYTES


def _files(parts: PartsFolder) -> list[list[Part]]:
    """Return the finished parts of each file of a folder. The last file may have more to come."""
    files: list[list[Part]] = [[]]
    for part in parts.parts:
        files[-1].append(part)
        if _fills_file(parts, files[-1]):
            files.append([])
    return files


def _join(pipeline: Pipeline, parts: PartsFolder) -> None:
    """Write the finished output into the folder of the parts."""
    if is_folder(pipeline.options.output):
        parts.joined.mkdir(exist_ok=True)
        suffix = pipeline.writer.format
        outputs = [
            (parts.joined / f"part-{index:05d}.{suffix}", each)
            for index, each in enumerate(_files(parts))
            if each
        ]
    else:
        outputs = [(parts.joined, parts.parts)]
    pipeline.writer.join(
        [
            (path, [parts.data(part) for part in each], sum(part.rows for part in each))
            for path, each in outputs
        ]
    )
    parts.join_errors()


def _numbers(block: Block) -> Totals:
    return Totals(
        rows=block.rows,
        skipped=len(block.bad),
        truncated=block.truncated,
        tokens=block.tokens,
    )


def _error_lines(block: Block) -> bytes:
    lines = (
        to_json({"file": row.file, "row": row.number, "reason": row.reason}) for row in block.bad
    )
    return "".join(f"{line}\n" for line in lines).encode()


def _report(
    pipeline: Pipeline,
    totals: Totals,
    resumed: Totals,
    resumed_rows: int,
    seconds: float,
    *,
    is_finished: bool = False,
) -> RunReport:
    options, model = pipeline.options, pipeline.model
    per_second = 1 / max(seconds, 1e-9)
    notices = []
    if is_finished:
        notices.append(
            f"`output={options.output!r}` is complete, and no row was run: there is no interrupted "
            "run of it. Pass `overwrite=True` instead of `resume=True` to write it again."
        )
    elif not totals.rows and not totals.skipped:
        hint = ""
        if pipeline.source.has_header:
            hint = " The first row is the header; pass `header=False` if it has a text."
        notices.append(f"The input has no rows.{hint}")
    if totals.truncated:
        notices.append(model.describe_truncation(totals.truncated, totals.rows))
    if totals.skipped:
        where = "" if options.output == STDOUT else f": see {errors_path(Path(options.output))}"
        notices.append(f"{totals.skipped} rows were skipped{where}.")
    return RunReport(
        model=options.model,
        task=model.task,
        engine=model.engine,
        target=model.target,
        input=options.input,
        output=options.output,
        **dataclasses.asdict(totals),
        resumed_rows=resumed_rows,
        seconds=seconds,
        rows_per_second=(totals.rows - resumed.rows) * per_second,
        tokens_per_second=(totals.tokens - resumed.tokens) * per_second,
        notices=tuple(notices),
    )


def _files_read(pipeline: Pipeline) -> list[Path]:
    """Return the files that the answers depend on."""
    return [*pipeline.source.files, pipeline.model.directory / QUANTIZATION]


def _identity(pipeline: Pipeline) -> dict[str, Any]:
    """Return what has to be equal for a run to be continued."""
    options, model = pipeline.options, pipeline.model
    digest = hashlib.sha256()
    for name in (QUANTIZATION, "tokenizer.json"):
        digest.update((model.directory / name).read_bytes())
    chosen = {
        name: value
        for name, value in dataclasses.asdict(options).items()
        if name not in _FREE_OPTIONS
    }
    # Windows end with files on Ray, wherever it runs.
    chosen["ray"] = options.ray is not None
    identity = {
        "input": pipeline.source.identity(),
        "model": digest.hexdigest(),
        "options": {**chosen, "engine": model.engine, "target": model.target},
    }
    return json.loads(json.dumps(identity))  # type: ignore[no-any-return]


@contextlib.contextmanager
def _reporting(pipeline: Pipeline) -> Iterator[None]:
    """Say which parts are kept when a run stops, and turn errors of writing into messages."""
    try:
        yield
    except BrokenPipeError:
        # The reader of stdout has enough.
        raise
    except OSError as error:
        output = pipeline.options.output
        raise UserInputError(
            f"`output={output!r}` cannot be written: {error.strerror or error}. Free some space, "
            f"or pass another `output`.{_kept(pipeline.options)}",
            argument="output",
        ) from error
    except UserInputError as error:
        if error.argument is None and (kept := _kept(pipeline.options)):
            raise type(error)(f"{error}{kept}") from error
        raise


def _kept(options: RunOptions) -> str:
    """Return a sentence about finished parts; nothing if there are none."""
    if options.output == STDOUT or not parts_path(Path(options.output)).is_dir():
        return ""
    return " Finished parts are kept; `resume=True` continues with the same input."
