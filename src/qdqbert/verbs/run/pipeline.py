"""Read rows, run them, write parts, and join the parts to the output."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import json
import logging
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

from qdqbert.common.choices import OutputFormat
from qdqbert.common.errors import DataFileError, UserInputError
from qdqbert.common.file_names import TOKENIZER
from qdqbert.common.progress import Progress
from qdqbert.data.tables.arrivals import Arrives, bursts
from qdqbert.data.tables.inputs import START, STDIN, Cursor, Source, open_source, unchanged
from qdqbert.data.tables.outputs import STDOUT, Writer, format_of, is_folder
from qdqbert.data.tables.rows import BadRow, Row
from qdqbert.evidence.reporting.document import counted
from qdqbert.evidence.reporting.run import RunReport
from qdqbert.integrations.ray_cluster import import_ray
from qdqbert.loading.answers import load_model
from qdqbert.runtime.artifact import QUANTIZATION
from qdqbert.runtime.model import Model
from qdqbert.verbs.run.cluster import cluster_blocks
from qdqbert.verbs.run.columns import find_columns, refuse
from qdqbert.verbs.run.options import RunOptions
from qdqbert.verbs.run.parts import open_parts
from qdqbert.verbs.run.places import (
    RUN,
    Places,
    check_siblings,
    find_places,
    is_finished,
    read_numbers,
    remove_rest,
)
from qdqbert.verbs.run.shards import shard_of
from qdqbert.verbs.run.windows import Block, RowRun, Totals

_LOGGER = logging.getLogger("qdqbert")

# Rows that columns are inferred from.
_HEAD_ROWS = 100

# Seconds after which answers to rows of stdin are written to stdout, if no more rows have come.
_PATIENCE = 0.5

# Options that do not change the answers.
_FREE_OPTIONS = ("model", "output", "on_error", "max_errors", "resume", "overwrite")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A run of a model on the rows of files.

    Attributes:
        source: The input, or its shard.
        whole: The input.
        rows: All rows of the input.
        run: How rows are answered and written.
        arrives: Waits for the next row, if answers are written as rows come.
    """

    options: RunOptions
    source: Source
    whole: Source
    rows: Iterator[Row | BadRow]
    run: RowRun
    progress: Progress
    arrives: Arrives | None = None

    def blocks(self, start: Cursor = START, skipped: int = 0) -> Generator[Block]:
        """Yield the answers to each window of the rows after a place.

        `skipped` rows before it cannot be used.
        """
        self._check_errors(skipped)

        def reject(row: BadRow) -> None:
            nonlocal skipped
            self._reject(row)
            skipped += row.rows
            self._check_errors(skipped, f" The last one: {self.source.place(row)}: {row.reason}.")

        title = f"Running on {self.run.model.engine}"
        with self.progress.throughput(title, self.source.size) as advance:
            if self.options.ray is None:
                rows = self.rows if start == START else self.source.rows(start)
                continues = start != START or self.arrives is not None
                for burst in bursts(rows, self.arrives, _PATIENCE) if self.arrives else [rows]:
                    yield from self.run.blocks(
                        burst, continues=continues, reject=reject, advance=advance
                    )
                return
            for block in cluster_blocks(self.run, self.source, start):
                for row in block.bad:
                    reject(row)
                totals = block.totals
                advance(
                    rows=totals.rows,
                    tokens=totals.tokens,
                    position=block.last[2],
                    written=len(block.data),
                )
                yield block

    def _reject(self, row: BadRow) -> None:
        if self.options.on_error == "stop":
            raise refuse(self.source.place(row), row.reason)
        if self.options.output == STDOUT:
            _LOGGER.warning("Skipped %s: %s.", self.source.place(row), row.reason)

    def _check_errors(self, skipped: int, last: str = "") -> None:
        """Stop if more rows were skipped than the caller allows."""
        limit = self.options.max_errors
        if limit is not None and skipped > limit:
            raise DataFileError(
                f"`max_errors={limit}`: {counted(skipped, 'row')} cannot be used.{last} Correct "
                "such rows, or pass a larger number."
            )


def run_pipeline(options: RunOptions, progress: Progress) -> RunReport:
    """Run a model on the rows of files."""
    if options.ray is not None:
        import_ray()
    source = open_source(
        options.input,
        options.input_format,
        header=options.header,
        skips_damage=options.on_error == "skip",
    )
    format, is_compressed = format_of(options.output, options.output_format)
    _check_partitions(options, format)
    shard = shard_of(options.shard) if options.shard else None
    places = (
        None
        if options.output == STDOUT
        else find_places(options.output, source, shard, model=options.model)
    )
    whole = source
    if shard:
        source = source.shard(shard.index, shard.count)
    with load_model(options) as model:
        # All shards have the columns of the first file.
        is_live = source.is_stdin and places is None
        start = whole.start(_HEAD_ROWS, _PATIENCE if is_live else None)
        columns = find_columns(whole, start, model, options, format)
        # Files are compared with the same one wherever reading starts: in a shard, on a node of a
        # cluster, or in the middle.
        first = start.header.columns if start.header else None
        source = dataclasses.replace(source, first=first)
        writer = Writer(
            format=format,
            is_compressed=is_compressed,
            layout=columns.layout,
            partition_by=options.partition_by,
        )
        pipeline = Pipeline(
            options=options,
            source=source,
            whole=whole,
            rows=source.rows() if shard else start.rows,
            run=RowRun(model=model, columns=columns, writer=writer, options=options),
            progress=progress,
            arrives=start.arrives if is_live else None,
        )
        return _print(pipeline) if places is None else _write(pipeline, places)


def _check_partitions(options: RunOptions, format: OutputFormat) -> None:
    if options.partition_by and not (is_folder(options.output) and format == "parquet"):
        raise UserInputError(
            f"`partition_by={list(options.partition_by)!r}` needs a folder of Parquet as output, "
            f"such as 'answers/', got `output={options.output!r}`.",
            argument="partition_by",
        )


def _print(pipeline: Pipeline) -> RunReport:
    """Write answers to stdout as they are made."""
    stream = sys.stdout.buffer
    started = time.monotonic()
    totals = Totals()
    with _reporting(pipeline.options):
        stream.write(pipeline.run.writer.header())
        for block in pipeline.blocks():
            stream.write(block.data)
            stream.flush()
            totals += block.totals
        stream.flush()
    return _report(pipeline, totals, started)


def _write(pipeline: Pipeline, places: Places) -> RunReport:
    """Write answers to files."""
    options, source = pipeline.options, pipeline.source
    with _reporting(options, places):
        places.output.parent.mkdir(parents=True, exist_ok=True)
    identity = _identity(pipeline)
    check_siblings(places, identity)
    local = [file.place for file in source.files if isinstance(file.place, Path)]
    read = [*local, pipeline.run.model.directory / QUANTIZATION]
    if options.resume and is_finished(places, read, identity):
        remove_rest(places)
        return _report(
            pipeline,
            Totals(),
            time.monotonic(),
            notice=f"`output={options.output!r}` is complete, and no row was run: there is no "
            "interrupted run of it. Pass `overwrite=True` instead of `resume=True` to write it "
            "again.",
        )
    with (
        _reporting(options, places, source),
        open_parts(
            places,
            pipeline.run.writer,
            identity,
            resume=options.resume,
            overwrite=options.overwrite,
        ) as parts,
    ):
        started = time.monotonic()
        resumed = parts.totals
        try:
            with contextlib.closing(pipeline.blocks(parts.end, resumed.skipped)) as blocks:
                for block in blocks:
                    parts.add(block, source.cursor(*block.last))
        except BaseException:
            if not parts.totals.read or options.input == STDIN:
                parts.remove()
            raise
        is_same = _model_digest(pipeline.run.model) == identity["the model"]
        if not (is_same and unchanged(source, options.input, identity)):
            raise UserInputError(
                f"`input={options.input!r}` or the model changed during the run, so the "
                "answers may belong to different versions. Pass `overwrite=True` to start again.",
                argument="input",
            )
        with pipeline.progress.stage(f"Writing {places.output.name}"):
            parts.publish()
        return _report(pipeline, parts.totals, started, resumed, places=places)


def _report(
    pipeline: Pipeline,
    totals: Totals,
    started: float,
    resumed: Totals | None = None,
    *,
    notice: str | None = None,
    places: Places | None = None,
) -> RunReport:
    options, model = pipeline.options, pipeline.run.model
    seconds = time.monotonic() - started
    per_second = 1 / max(seconds, 1e-9)
    resumed = resumed or Totals()
    notices = [notice] if notice else []
    if not totals.read and not notice and pipeline.options.shard:
        notices.append(
            f"`shard={options.shard!r}` has no rows: there are too few files for so many shards."
        )
    elif not totals.read and not notice:
        hint = ""
        if pipeline.source.has_header:
            hint = " The first row is the header; pass `header=False` if it has a text."
        notices.append(f"The input has no rows.{hint}")
    if totals.truncated:
        notices.append(model.describe_truncation(totals.truncated, totals.rows, model.max_length))
    if totals.skipped:
        where = "" if places is None else f": see {places.errors}"
        were = "row was" if totals.skipped == 1 else "rows were"
        notices.append(f"{totals.skipped} {were} skipped{where}.")
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
    chosen = {
        **dataclasses.asdict(options),
        "engine": model.engine,
        "target": model.target,
        "input": [str(file.place.absolute()) for file in pipeline.source.files],
        "shard": str(shard_of(options.shard)) if options.shard else None,
        # Windows end with groups of files on Ray, wherever it runs.
        "ray": options.ray is not None,
    }
    identity = {
        "the format of finished parts": 3,
        **{f"`{name}`": chosen[name] for name in chosen if name not in _FREE_OPTIONS},
        "the model": _model_digest(model),
        **({"the listing of the input": pipeline.whole.listing()} if options.shard else {}),
        **pipeline.source.identity(),
    }
    return json.loads(json.dumps(identity))  # type: ignore[no-any-return]


def _model_digest(model: Model) -> str:
    digest = hashlib.sha256()
    for name in (QUANTIZATION, TOKENIZER):
        digest.update((model.directory / name).read_bytes())
    return digest.hexdigest()


@contextlib.contextmanager
def _reporting(
    options: RunOptions, places: Places | None = None, source: Source | None = None
) -> Iterator[None]:
    """Say which parts are kept when a run stops, and turn errors of writing into messages.

    `source` is the input of a run that writes parts.
    """
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
            f"`output`.{_kept(options, places, source)}",
            argument="output",
        ) from error
    except UserInputError as error:
        if error.argument is None and (kept := _kept(options, places, source)):
            raise type(error)(f"{error}{kept}") from error
        raise


def _kept(options: RunOptions, places: Places | None, source: Source | None) -> str:
    """Return a sentence about finished parts; nothing if there are none."""
    if places is None or source is None or not places.is_interrupted:
        return ""
    stored = read_numbers(places.parts / RUN)
    # A file that is missing may be put back, and storage that does not answer may do so later.
    with contextlib.suppress(DataFileError, OSError):
        if not unchanged(source, options.input, stored, may_grow=False):
            return (
                " Finished parts are kept, but `resume=True` cannot continue them, as the input "
                "has changed since. Pass `overwrite=True` to start again."
            )
    return " Finished parts are kept; `resume=True` continues with the same input."
