"""Finished parts of a run's answers, from which an interrupted run continues.

While a run is under way there is a folder next to its output:

.NAME.parts/run.json            what identifies the run: input, model, options
.NAME.parts/rows-FIRST.data     the answers to a window of rows
.NAME.parts/rows-FIRST.json     numbers of the window, and its skipped rows; it is written after the
                                answers, and marks the part as finished
.NAME.parts/joined              the output, before it is moved to its place

.NAME.run.json                  the same as run.json, once the output is complete

Each file is written under another name, flushed to the disk and renamed. `run.json` is removed when
the output is in its place, and the other files after it. Therefore a process can be killed at any
moment.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from qdqbert.common.errors import OutputExistsError, UserInputError
from qdqbert.common.files import followed, json_bytes, write_bytes, write_parts
from qdqbert.data.tables.rows import to_json
from qdqbert.verbs.run.windows import Block, Totals

_RUN = "run.json"
_LOCK = "lock"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """A finished part: the answers to a window of rows.

    Attributes:
        data: The file of the answers.
        totals: Its numbers.
    """

    data: Path
    totals: Totals


class Parts:
    """The parts of a run, and the folder that has them.

    Attributes:
        output: The file or folder that the parts become.
        path: The folder.
        finished: The finished parts, in order.
        totals: Their numbers.
    """

    def __init__(self, output: Path) -> None:
        """Find the finished parts. Those after a missing one do not count."""
        self.output = output
        self.path = parts_path(output)
        self.finished: list[Part] = []
        self.totals = Totals()
        while (numbers := self._file("json")).is_file() and self._file("data").is_file():
            found = json.loads(numbers.read_text(encoding="utf-8"))
            self._append(Totals(**found["totals"]))

    def add(self, block: Block) -> None:
        """Keep the answers to the next window of rows."""
        errors = [{"file": row.file, "row": row.number, "reason": row.reason} for row in block.bad]
        numbers = {"totals": dataclasses.asdict(block.totals), "errors": errors}
        write_bytes(self._file("data"), block.data)
        write_bytes(self._file("json"), json_bytes(numbers))
        self._append(block.totals)

    def _file(self, suffix: str) -> Path:
        """Return a file of the first part that is not finished."""
        return self.path / f"rows-{self.totals.read:012d}.{suffix}"

    def _append(self, totals: Totals) -> None:
        self.finished.append(Part(data=self._file("data"), totals=totals))
        self.totals += totals

    @property
    def joined(self) -> Path:
        """Path under which the finished output is written."""
        return self.path / "joined"

    def publish(self) -> None:
        """Move the joined output to its place, and remove the folder."""
        errors = errors_path(self.output)
        if self.totals.skipped:
            write_parts(errors, self._error_lines())
        else:
            errors.unlink(missing_ok=True)
        output = followed(self.output)
        if self.joined.is_dir() and output.is_dir():
            for path in output.iterdir():
                path.unlink()
            output.rmdir()
        write_bytes(_finished_path(self.output), (self.path / _RUN).read_bytes())
        self.joined.replace(output)
        _sync_folder(output.parent)
        self.remove()

    def _error_lines(self) -> Iterator[bytes]:
        for part in self.finished:
            for row in json.loads(part.data.with_suffix(".json").read_bytes())["errors"]:
                yield f"{to_json(row)}\n".encode()

    def remove(self) -> None:
        """Remove the folder. Without `run.json` the rest is no interrupted run."""
        (self.path / _RUN).unlink()
        shutil.rmtree(self.path)


def parts_path(output: Path) -> Path:
    """Return the folder of the parts of an output."""
    return _beside(output, ".{}.parts")


def errors_path(output: Path) -> Path:
    """Return the file of the rows that were skipped."""
    return _beside(output, "{}.errors.jsonl")


def _finished_path(output: Path) -> Path:
    """Return the file that identifies the run which has written an output."""
    return _beside(output, ".{}.run.json")


def _beside(output: Path, name: str) -> Path:
    output = followed(output)
    return output.with_name(name.format(output.name))


def is_finished(output: Path, read: Iterable[Path], identity: Mapping[str, Any]) -> bool:
    """Return whether an earlier run has written an output, so that there is nothing to continue.

    If it is not known which one, an output that is older than a file of `read` is another run's.
    """
    if (parts_path(output) / _RUN).is_file() or not output.exists():
        return False
    written = list(output.iterdir()) if output.is_dir() else [output]
    if not written or not all(output.is_file() or _is_part(each) for each in written):
        return False
    known = _finished_path(output)
    if known.is_file():
        what = f"the run that has written {str(output)!r}"
        _check_identity(what, json.loads(known.read_bytes()), identity)
        return True
    newest = max(each.stat().st_mtime_ns for each in read)
    return min(each.stat().st_mtime_ns for each in written) >= newest


def remove_rest(output: Path) -> None:
    """Remove the files of a run that was killed after its output was complete."""
    path = parts_path(output)
    if path.is_dir():
        with _locked(path, output):
            shutil.rmtree(path)


@contextlib.contextmanager
def open_parts(
    output: Path, identity: Mapping[str, Any], *, resume: bool, overwrite: bool
) -> Iterator[Parts]:
    """Yield the parts of an output: none, or the parts of an interrupted run.

    Args:
        output: The file or folder that the parts become.
        identity: Values of JSON that must be equal for a run to be continued, by the names that
            messages use. Names of options are in backquotes.
        resume: Whether to continue an interrupted run, if there is one.
        overwrite: Whether to discard an interrupted run, and to replace the output.

    Raises:
        OutputExistsError: The output or an interrupted run exists.
        UserInputError: The interrupted run was another one, or still goes on.
    """
    path = parts_path(output)
    is_known = (path / _RUN).is_file()
    if is_known and not (resume or overwrite):
        ways = "Pass `overwrite=True` to discard it."
        if identity["`input`"]:
            ways = "Pass `resume=True` to continue it, or `overwrite=True` to discard it."
        raise OutputExistsError(
            f"`output={str(output)!r}`: {str(path)!r} contains finished parts of an interrupted "
            f"run. {ways}",
            argument="output",
        )
    if not (is_known and resume):
        _check_output(output, overwrite=overwrite)
    path.mkdir(parents=True, exist_ok=True)
    with _locked(path, output):
        if is_known and resume:
            what = f"the interrupted run in {str(path)!r}"
            _check_identity(what, json.loads((path / _RUN).read_bytes()), identity)
        else:
            _clear(path)
            write_bytes(path / _RUN, json_bytes(identity))
        yield Parts(output)


def _check_output(output: Path, *, overwrite: bool) -> None:
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return
    if not overwrite:
        raise OutputExistsError(
            f"`output={str(output)!r}` already exists, and there is no interrupted run of it. Pass "
            "`overwrite=True` to replace it, or another `output`.",
            argument="output",
        )
    if output.is_dir():
        foreign = [each.name for each in output.iterdir() if not _is_part(each)]
        if foreign:
            raise OutputExistsError(
                f"`output={str(output)!r}` contains files that `run` did not write, such as "
                f"{foreign[0]!r}. It is not deleted, even with `overwrite=True`. Pass another "
                "`output`.",
                argument="output",
            )


def _is_part(path: Path) -> bool:
    """Return whether a file of an output folder was written by a run."""
    return path.name.startswith("part-") and path.is_file()


def _check_identity(what: str, stored: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """Refuse to continue a run, named by `what`, with another input, model or options."""
    details = []
    for name, current in identity.items():
        if name not in stored:
            details.append(f"{name} is new")
        elif stored[name] != current:
            values = f"was {stored[name]!r:.300} and is {current!r:.300}"
            details.append(f"{name} {values if name.startswith('`') else 'has changed'}")
    if details:
        raise UserInputError(
            f"`resume=True`: {what} was another one: {'; '.join(details)}. Repeat the earlier "
            "call, or pass `overwrite=True` instead to start again.",
            argument="resume",
        )


@contextlib.contextmanager
def _locked(path: Path, output: Path) -> Iterator[None]:
    """Keep other processes from writing the same parts."""
    try:
        import fcntl
    except ImportError:
        # Windows has no such locks.
        yield
        return
    with (path / _LOCK).open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserInputError(
                f"Another process is writing `output={str(output)!r}`. Wait for it, or stop it.",
                argument="output",
            ) from error
        yield


def _clear(path: Path) -> None:
    # First, so that nobody continues with some of the parts.
    (path / _RUN).unlink(missing_ok=True)
    for each in path.iterdir():
        if each.is_dir():
            shutil.rmtree(each)
        elif each.name != _LOCK:
            each.unlink()


def _sync_folder(path: Path) -> None:
    # Windows cannot open folders, and needs no such call.
    if os.name == "posix":
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
