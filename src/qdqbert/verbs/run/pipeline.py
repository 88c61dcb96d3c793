"""Read rows, run them, write parts, and join the parts to the output."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import itertools
import json
import logging
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

from qdqbert.common.errors import UserInputError
from qdqbert.common.file_names import TOKENIZER
from qdqbert.common.files import check_output_place, is_within
from qdqbert.common.options.declared import overwrites
from qdqbert.common.progress import Progress
from qdqbert.data.rows.columns import quoted
from qdqbert.data.tables.inputs import STDIN, Source, open_source
from qdqbert.data.tables.outputs import STDOUT, Writer, format_of, is_folder
from qdqbert.data.tables.rows import BadRow, Row
from qdqbert.evidence.reporting.run import RunReport
from qdqbert.integrations.ray_cluster import import_ray
from qdqbert.loading.answers import load_model
from qdqbert.runtime.artifact import QUANTIZATION
from qdqbert.verbs.run.cluster import cluster_blocks
from qdqbert.verbs.run.columns import find_columns, refuse
from qdqbert.verbs.run.options import RunOptions
from qdqbert.verbs.run.parts import (
    Part,
    Parts,
    errors_path,
    is_finished,
    open_parts,
    parts_path,
    remove_rest,
)
from qdqbert.verbs.run.windows import Block, RowRun, Totals

_LOGGER = logging.getLogger("qdqbert")

# Files of a folder end with the part that has so many rows or bytes, which are those before
# compression. Parts do not depend on the time that they took, and so the files do not.
FOLDER_ROWS = 1 << 15
FOLDER_BYTES = 1 << 28

# Rows that columns are inferred from.
_HEAD_ROWS = 100

# Options that do not change the answers.
_FREE_OPTIONS = ("model", "output", "on_error", "resume", "overwrite")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A run of a model on the rows of files.

    Attributes:
        options: Options of the call.
        source: The input.
        rows: All rows of the input.
        run: How rows are answered and written.
        progress: Receives the stages.
    """

    options: RunOptions
    source: Source
    rows: Iterator[Row | BadRow]
    run: RowRun
    progress: Progress

    def blocks(self, start: int) -> Generator[Block]:
        """Yield the answers to each window after the first `start` rows."""
        title = f"Running on {self.run.model.engine}"
        with self.progress.throughput(title, self.source.size) as advance:
            if self.options.ray is None:
                rows = itertools.islice(self.rows, start, None)
                yield from self.run.blocks(
                    rows, continues=start > 0, reject=self._reject, advance=advance
                )
                return
            for block in cluster_blocks(self.run, self.source, start):
                for row in block.bad:
                    self._reject(row)
                totals = block.totals
                advance(rows=totals.rows, tokens=totals.tokens, position=block.position)
                yield block

    def _reject(self, row: BadRow) -> None:
        if self.options.on_error == "stop":
            raise refuse(self.source.place(row), row.reason)
        if self.options.output == STDOUT:
            _LOGGER.warning("Skipped %s: %s.", self.source.place(row), row.reason)


def run_pipeline(options: RunOptions, progress: Progress) -> RunReport:
    """Run a model on the rows of files."""
    if options.ray is not None:
        import_ray()
    source = open_source(options.input, options.input_format, header=options.header)
    format, is_compressed = format_of(options.output, options.output_format)
    if options.output != STDOUT:
        output = Path(options.output)
        errors = errors_path(output)
        check_output_place(errors)
        for path in source.files:
            if is_within(path, output) or is_within(path, errors):
                raise overwrites("output", options.output, f"the input file {str(path)!r}")
    with load_model(options) as model:
        start = source.start(_HEAD_ROWS)
        columns = find_columns(source, start, model, options, format)
        writer = Writer(format=format, is_compressed=is_compressed, layout=columns.layout)
        pipeline = Pipeline(
            options=options,
            source=source,
            rows=start.rows,
            run=RowRun(model=model, columns=columns, writer=writer, options=options),
            progress=progress,
        )
        return _print(pipeline) if options.output == STDOUT else _write(pipeline)


def _print(pipeline: Pipeline) -> RunReport:
    """Write answers to stdout as they are made."""
    stream = sys.stdout.buffer
    started = time.monotonic()
    totals = Totals()
    with _reporting(pipeline.options):
        stream.write(pipeline.run.writer.header())
        for block in pipeline.blocks(0):
            stream.write(block.data)
            stream.flush()
            totals += block.totals
        stream.flush()
    return _report(pipeline, totals, started)


def _write(pipeline: Pipeline) -> RunReport:
    """Write answers to files."""
    options = pipeline.options
    output = Path(options.output)
    with _reporting(options):
        output.parent.mkdir(parents=True, exist_ok=True)
    identity = _identity(pipeline)
    read = [*pipeline.source.files, pipeline.run.model.directory / QUANTIZATION]
    if options.resume and is_finished(output, read, identity):
        remove_rest(output)
        return _report(
            pipeline,
            Totals(),
            time.monotonic(),
            notice=f"`output={options.output!r}` is complete, and no row was run: there is no "
            "interrupted run of it. Pass `overwrite=True` instead of `resume=True` to write it "
            "again.",
        )
    with (
        _reporting(options),
        open_parts(output, identity, resume=options.resume, overwrite=options.overwrite) as parts,
    ):
        started = time.monotonic()
        resumed = parts.totals
        try:
            with contextlib.closing(pipeline.blocks(resumed.read)) as blocks:
                for block in blocks:
                    parts.add(block)
        except BaseException:
            if not parts.finished or options.input == STDIN:
                parts.remove()
            raise
        if _identity(pipeline) != identity:
            raise UserInputError(
                f"`input={options.input!r}` or the model changed during the run, so the "
                "answers may belong to different versions. Pass `overwrite=True` to start again.",
                argument="input",
            )
        with pipeline.progress.stage(f"Writing {output.name}"):
            _join(pipeline, parts)
            report = _report(pipeline, parts.totals, started, resumed)
            parts.publish()
        return report


def _join(pipeline: Pipeline, parts: Parts) -> None:
    """Write the finished output into the folder of the parts."""
    writer = pipeline.run.writer
    outputs = [(parts.joined, parts.finished)]
    if is_folder(pipeline.options.output):
        parts.joined.mkdir(exist_ok=True)
        outputs = [
            (parts.joined / f"part-{index:05d}.{writer.format}", each)
            for index, each in enumerate(_files(parts.finished))
        ]
    writer.join(
        [
            (path, [part.data for part in each], sum(part.totals.rows for part in each))
            for path, each in outputs
        ]
    )


def _files(parts: list[Part]) -> list[list[Part]]:
    """Return the parts of each file of a folder."""
    files: list[list[Part]] = []
    rows = size_bytes = 0
    for part in parts:
        if not files or rows >= FOLDER_ROWS or size_bytes >= FOLDER_BYTES:
            files.append([])
            rows = size_bytes = 0
        files[-1].append(part)
        rows += part.totals.read
        size_bytes += part.data.stat().st_size
    return files


def _report(
    pipeline: Pipeline,
    totals: Totals,
    started: float,
    resumed: Totals | None = None,
    *,
    notice: str | None = None,
) -> RunReport:
    options, model = pipeline.options, pipeline.run.model
    layout = pipeline.run.writer.layout
    seconds = time.monotonic() - started
    per_second = 1 / max(seconds, 1e-9)
    resumed = resumed or Totals()
    notices = [notice] if notice else []
    if not totals.read and not notice:
        hint = ""
        if pipeline.source.has_header:
            hint = " The first row is the header; pass `header=False` if it has a text."
        notices.append(f"The input has no rows.{hint}")
    names = [each for each in pipeline.source.partitions if each not in layout.kept]
    if names:
        notices.append(
            f"The folders of `input={options.input!r}` have values of {quoted(names)}, such as "
            f"{pipeline.source.files[0].parent.name!r}, which are not in the output."
        )
    if totals.truncated:
        notices.append(model.describe_truncation(totals.truncated, totals.rows, model.max_length))
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
        resumed_rows=resumed.read,
        seconds=seconds,
        rows_per_second=(totals.rows - resumed.rows) * per_second,
        tokens_per_second=(totals.tokens - resumed.tokens) * per_second,
        notices=tuple(notices),
    )


def _identity(pipeline: Pipeline) -> dict[str, Any]:
    """Return the values that a continued run must share, by the names that messages use."""
    options, model = pipeline.options, pipeline.run.model
    digest = hashlib.sha256()
    for name in (QUANTIZATION, TOKENIZER):
        digest.update((model.directory / name).read_bytes())
    chosen = {
        **dataclasses.asdict(options),
        "engine": model.engine,
        "target": model.target,
        "input": [str(path.absolute()) for path in pipeline.source.files],
        # Windows end with files on Ray, wherever it runs.
        "ray": options.ray is not None,
    }
    identity = {
        **{f"`{name}`": chosen[name] for name in chosen if name not in _FREE_OPTIONS},
        "the model": digest.hexdigest(),
        **pipeline.source.identity(),
    }
    return json.loads(json.dumps(identity))  # type: ignore[no-any-return]


@contextlib.contextmanager
def _reporting(options: RunOptions) -> Iterator[None]:
    """Say which parts are kept when a run stops, and turn errors of writing into messages."""
    try:
        yield
    except BrokenPipeError:
        # The reader of stdout has enough.
        raise
    except OSError as error:
        output = options.output
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = "Free some space, or pass" if is_full else "Pass"
        raise UserInputError(
            f"`output={output!r}` cannot be written: {error.strerror or error}. {advice} another "
            f"`output`.{_kept(options)}",
            argument="output",
        ) from error
    except UserInputError as error:
        if error.argument is None and (kept := _kept(options)):
            raise type(error)(f"{error}{kept}") from error
        raise


def _kept(options: RunOptions) -> str:
    """Return a sentence about finished parts; nothing if there are none."""
    if options.output == STDOUT or not parts_path(Path(options.output)).is_dir():
        return ""
    return " Finished parts are kept; `resume=True` continues with the same input."
