"""Finished parts of a run's answers, from which an interrupted run continues.

While a run is under way there is a folder next to its output, `.NAME.parts`:

run.json            what identifies the run: input, model, options
rows-FIRST.data     the answers to a window of rows
rows-FIRST.json     numbers of the window, the place in the input after it, and its skipped rows; it
                    is written after the answers, and marks the part as finished
file-INDEX.json     the same of a finished file of an output that is a folder, which contains the
                    windows before it
joined              the output, before it is moved to its place

The files of a folder are written one after another, as soon as there are enough rows, so that the
answers are not kept twice. In storage, where small files are slow, windows are kept on this machine
until they make a file; for an output that is one file, they make parts of that size.

Each file appears whole: on this machine it is written under another name, flushed to the disk and
renamed. `run.json` is removed when the output is in its place, and the other files after it.
Therefore a process can be killed at any moment.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from qdqbert.common.files import json_bytes, temporary_folder
from qdqbert.common.storage import (
    Place,
    RemotePath,
    append_files,
    remove_tree,
    whole_file,
    write_place,
)
from qdqbert.data.tables.inputs import START, Cursor
from qdqbert.data.tables.outputs import Writer
from qdqbert.data.tables.rows import After, BadRow, to_json
from qdqbert.verbs.run.places import (
    FILES,
    RUN,
    Places,
    check_identity,
    check_not_interrupted,
    check_output,
    clear,
    locked,
    read_numbers,
)
from qdqbert.verbs.run.windows import Block, Totals

# Files of a folder end with the window that has so many rows or bytes, which are those before
# compression. Windows do not depend on the time that they took, and so the files do not.
FOLDER_ROWS = 100_000
FOLDER_BYTES = 1 << 28


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """A finished part: the answers to windows of rows.

    Attributes:
        totals: Its numbers.
        end: The place in the input after it.
        errors: The rows that were skipped, as lines of the file of errors.
        data: The file of the answers; `None` if they are in the output.
        size: Bytes of the answers to a window.
        files: The files of the output that have them.
        columns: A digest of the columns of these files and their types.
    """

    totals: Totals
    end: Cursor
    errors: tuple[Mapping[str, Any], ...]
    data: Place | None = None
    size: int = 0
    files: tuple[str, ...] = ()
    columns: str = ""

    @classmethod
    def read(cls, numbers: Place, data: Place | None) -> Part:
        """Read the numbers of a part that was finished."""
        found = read_numbers(numbers)
        file, number, position = found["end"]
        return cls(
            totals=Totals(**found["totals"]),
            end=Cursor(file, After(number, position)),
            errors=tuple(found["errors"]),
            data=data,
            size=data.stat().st_size if isinstance(data, Path) else 0,
            files=tuple(found.get("files", ())),
            columns=found.get("columns", ""),
        )

    def numbers(self) -> bytes:
        """Return the content of its file of numbers."""
        end = [self.end.file, self.end.after.number, self.end.after.position]
        values = {"totals": dataclasses.asdict(self.totals), "end": end, "errors": self.errors}
        written = {"files": self.files, "columns": self.columns} if self.files else {}
        return json_bytes(values | written)


class Parts:
    """The parts of a run, and the folder that has them.

    Attributes:
        files: Parts of many windows: finished files of a folder, or parts in storage.
        windows: Windows that are not in `files`.
        totals: Numbers of all.
        end: The place in the input after them.
    """

    def __init__(self, places: Places, writer: Writer, spool: Path) -> None:
        """Find the finished parts. Those after a missing one do not count.

        Args:
            places: Where the run writes.
            writer: How files are written.
            spool: The folder for windows.
        """
        self._places, self._writer, self._spool = places, writer, spool
        self.files: list[Part] = []
        self.windows: list[Part] = []
        while (numbers := self._numbers(len(self.files))).is_file():
            data = None if places.is_folder else numbers.with_suffix(".data")
            part = Part.read(numbers, data)
            if not all((places.output / each).is_file() for each in part.files):
                # Somebody moved it away.
                break
            self.files.append(part)
        self.totals = sum((each.totals for each in self.files), Totals())
        for numbers in spool.glob("rows-*.json"):
            # Windows of a file, if it was finished and they were not removed.
            if int(numbers.stem.removeprefix("rows-")) < self.totals.read:
                _remove(numbers)
        while (numbers := self._window("json")).is_file() and self._window("data").is_file():
            self._append(Part.read(numbers, self._window("data")))

    @property
    def end(self) -> Cursor:
        """The place in the input after all parts."""
        last = [*self.files[-1:], *self.windows[-1:]]
        return last[-1].end if last else START

    def add(self, block: Block, end: Cursor) -> None:
        """Keep the answers to the next window of rows."""
        numbers, data = self._window("json"), self._window("data")
        part = Part(
            totals=block.totals,
            end=end,
            errors=tuple(map(_error, block.bad)),
            data=data,
            size=len(block.data),
        )
        write_place(data, block.data)
        write_place(numbers, part.numbers())
        self._append(part)

    def _window(self, suffix: str) -> Path:
        """Return a file of the first window that is not finished."""
        return self._spool / f"rows-{self.totals.read:012d}.{suffix}"

    def _numbers(self, index: int) -> Place:
        return self._places.parts / f"file-{index:05d}.json"

    def _append(self, part: Part) -> None:
        """Add a finished window; with enough of them, make a file."""
        self.windows.append(part)
        self.totals += part.totals
        if not (self._places.is_folder or self._places.is_remote):
            return
        rows = sum(each.totals.read for each in self.windows)
        size = sum(each.size for each in self.windows)
        if rows >= FOLDER_ROWS or size >= FOLDER_BYTES:
            self._make_file()

    def _make_file(self) -> None:
        """Make a file of the windows: one of the folder, or a part in storage."""
        numbers = self._numbers(len(self.files))
        sources = [each.data for each in self.windows if each.data is not None]
        totals = sum((each.totals for each in self.windows), Totals())
        data, names, columns = None, list[str](), ""
        if self._places.is_folder:
            if not self.files:
                self._remove_earlier()
            name = self._places.file(len(self.files), self._writer.format)
            names, columns = self._writer.write(self._places.output, name, sources, totals.rows)
        else:
            data = numbers.with_suffix(".data")
            with whole_file(data) as path, path.open("wb") as file:
                append_files(file, sources)
        part = Part(
            totals=totals,
            end=self.end,
            errors=tuple(row for each in self.windows for row in each.errors),
            data=data,
            files=tuple(names),
            columns=columns,
        )
        write_place(numbers, part.numbers())
        self.files.append(part)
        for window in self.windows:
            assert isinstance(window.data, Path)
            _remove(window.data.with_suffix(".json"))
        self.windows = []

    def _remove_earlier(self) -> None:
        """Remove what stands in the place of the folder, once the first file can be written."""
        for path in self._places.written():
            path.unlink()

    def publish(self) -> None:
        """Write what is missing of the output, and remove the folder of the parts."""
        places = self._places
        if places.is_folder:
            if self.windows or not self.files:
                self._make_file()
            # They are opened only if they differ, as there can be thousands.
            if len({each.columns for each in self.files}) > 1:
                self._writer.unify(places.written())
        else:
            self._join()
        self._write_errors()
        identity = read_numbers(places.parts / RUN)
        files = [name for part in self.files for name in part.files]
        write_place(places.finished, json_bytes(identity | {FILES: files} if files else identity))
        if isinstance(places.output, Path):
            _sync_folder(places.output.parent)
        self.remove()

    def _write_errors(self) -> None:
        place = self._places.errors
        if not self.totals.skipped:
            place.unlink(missing_ok=True)
            return
        with whole_file(place) as path, path.open("w", encoding="utf-8") as file:
            file.writelines(
                f"{to_json(dict(row))}\n" for part in self._all() for row in part.errors
            )

    def _all(self) -> list[Part]:
        return [*self.files, *self.windows]

    def _join(self) -> None:
        """Write the output, if it is one file."""
        sources = [each.data for each in self._all() if each.data is not None]
        with whole_file(self._places.output, self._places.parts) as path:
            self._writer.join(path, sources, self.totals.rows)

    def remove(self) -> None:
        """Remove the folder. Without `run.json` the rest is no interrupted run."""
        (self._places.parts / RUN).unlink()
        remove_tree(self._places.parts)


def _remove(numbers: Path) -> None:
    """Remove a window. Without its numbers it is not finished."""
    numbers.unlink()
    numbers.with_suffix(".data").unlink(missing_ok=True)


def _error(row: BadRow) -> Mapping[str, Any]:
    """Return a row of the file of errors."""
    several = {"last": row.last, "rows": row.rows} if row.rows > 1 else {}
    return {"file": row.file, "row": row.number, **several, "reason": row.reason}


@contextlib.contextmanager
def open_parts(
    places: Places, writer: Writer, identity: Mapping[str, Any], *, resume: bool, overwrite: bool
) -> Iterator[Parts]:
    """Yield the parts of an output: none, or the parts of an interrupted run.

    Args:
        places: Where the run writes.
        writer: How files are written.
        identity: Values of JSON that must be equal for a run to be continued, by the names that
            messages use. Names of options are in backquotes.
        resume: Whether to continue an interrupted run, if there is one.
        overwrite: Whether to discard an interrupted run, and to replace the output.

    Raises:
        OutputExistsError: The output or an interrupted run exists.
        UserInputError: The interrupted run was another one, or still goes on.
    """
    path, is_known = places.parts, places.is_interrupted
    if not (resume or overwrite):
        check_not_interrupted(places, identity)
    if not (is_known and resume):
        check_output(places, overwrite=overwrite)
    path.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        stack.enter_context(locked(places))
        if is_known and resume:
            what = f"the interrupted run in {str(path)!r}"
            check_identity(what, read_numbers(path / RUN), identity)
        else:
            clear(places)
            # It tells of an output that is going to be replaced.
            places.finished.unlink(missing_ok=True)
            write_place(path / RUN, json_bytes(identity))
        remote = isinstance(path, RemotePath)
        spool = stack.enter_context(temporary_folder()) if remote else Path(str(path))
        yield Parts(places, writer, spool)


def _sync_folder(path: Path) -> None:
    # Windows cannot open folders, and needs no such call.
    if os.name == "posix":
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
