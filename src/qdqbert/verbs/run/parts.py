"""Finished parts of a run's answers, from which an interrupted run continues.

While a run is under way there is a folder next to its output:

.NAME.parts/run.json                     what identifies the run: input, model, options
.NAME.parts/rows-FIRST-LAST.data         blocks of these rows of the input
.NAME.parts/rows-FIRST-LAST.errors       rows that were skipped, as lines of JSON, if there are some
.NAME.parts/rows-FIRST-LAST.json         numbers of the part; written last, so that it marks a part
                                         as finished
.NAME.parts/joined                       the output, before it is moved to its place

Files are written under another name, flushed to the disk and renamed. Therefore a process can be
killed at any moment.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from qdqbert.errors import OutputExistsError, UserInputError

FORMAT = "qdqbert-run/1"

_RUN = "run.json"
_LOCK = "lock"
_JOINED = "joined"
_JOINED_ERRORS = "joined.errors"
_NAME = re.compile(r"rows-(\d{12,})-(\d{12,})\.json")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """Numbers of a finished part.

    Attributes:
        first: Index of its first row in the whole input, from 0.
        last: Index of its last row.
        rows: Number of rows with answers.
        skipped: Number of other rows.
        truncated: Number of rows that were cut.
        tokens: Number of tokens.
    """

    first: int
    last: int
    rows: int
    skipped: int
    truncated: int
    tokens: int

    @property
    def stem(self) -> str:
        """Name of its files, without the suffix."""
        return f"rows-{self.first:012d}-{self.last:012d}"


class UnfinishedPart:
    """A part that is being written.

    Attributes:
        first: Index of its first row in the whole input.
        rows: Number of rows with answers.
        skipped: Number of other rows.
        truncated: Number of rows that were cut.
        tokens: Number of tokens.
        size_bytes: Size of the rows and their answers.
    """

    def __init__(self, folder: Path, first: int) -> None:
        """Open its file."""
        self.first = first
        self.rows = self.skipped = self.truncated = self.tokens = self.size_bytes = 0
        self._folder = folder
        self._errors = b""
        self._path = folder / "unfinished"
        self._file = self._path.open("wb")

    def add(
        self, block: bytes, errors: bytes, *, rows: int, skipped: int, truncated: int, tokens: int
    ) -> None:
        """Append rows.

        Args:
            block: The rows and their answers.
            errors: The skipped rows, as lines of JSON.
            rows: Number of rows in the block.
            skipped: Number of skipped rows.
            truncated: Number of rows that were cut.
            tokens: Number of tokens.
        """
        self._file.write(block)
        self.size_bytes += len(block)
        self._errors += errors
        self.rows += rows
        self.skipped += skipped
        self.truncated += truncated
        self.tokens += tokens

    def finish(self, last: int) -> Part:
        """Put the files in their place.

        Args:
            last: Index of the last row in the whole input.
        """
        part = Part(
            first=self.first,
            last=last,
            rows=self.rows,
            skipped=self.skipped,
            truncated=self.truncated,
            tokens=self.tokens,
        )
        _flush(self._file)
        self._file.close()
        self._path.replace(self._folder / f"{part.stem}.data")
        if self._errors:
            _write(self._folder / f"{part.stem}.errors", self._errors)
        _write(self._folder / f"{part.stem}.json", _json(dataclasses.asdict(part)))
        return part

    def discard(self) -> None:
        """Remove the file, if the part is not finished."""
        self._file.close()
        self._path.unlink(missing_ok=True)


class PartsFolder:
    """The folder of a run's parts.

    Attributes:
        path: The folder.
        output: The file or folder that the parts become.
        parts: The finished parts, in order.
    """

    def __init__(self, path: Path, output: Path) -> None:
        """Read the finished parts of the folder.

        Raises:
            UserInputError: A part is missing.
        """
        self.path = path
        self.output = output
        self.parts: list[Part] = []
        if self.report is not None:
            # The output is complete, and a part of the folder may be removed.
            return
        names = sorted(each.name for each in path.iterdir() if _NAME.fullmatch(each.name))
        for name in names:
            part = Part(**json.loads((path / name).read_text(encoding="utf-8")))
            if part.first != self.next_row or not (path / f"{part.stem}.data").is_file():
                raise UserInputError(
                    f"{str(path)!r} is incomplete: rows from {self.next_row} on are missing. Pass "
                    "`overwrite=True` to start again.",
                    argument="resume",
                )
            self.parts.append(part)

    @property
    def next_row(self) -> int:
        """Index of the first row that no part contains."""
        return self.parts[-1].last + 1 if self.parts else 0

    @property
    def report(self) -> Mapping[str, Any] | None:
        """The report of the run, if the output is complete."""
        found: Mapping[str, Any] | None = _read_json(self.path / _RUN).get("report")
        return found

    @property
    def errors_output(self) -> Path:
        """The file of the skipped rows."""
        return errors_path(self.output)

    @contextlib.contextmanager
    def new_part(self) -> Iterator[UnfinishedPart]:
        """Yield a part to fill and to finish."""
        part = UnfinishedPart(self.path, self.next_row)
        try:
            yield part
        finally:
            part.discard()

    def data(self, part: Part) -> Path:
        """Return the file with the blocks of a part."""
        return self.path / f"{part.stem}.data"

    def size_bytes(self, part: Part | UnfinishedPart) -> int:
        """Return the size of the rows of a part and their answers."""
        return (
            part.size_bytes if isinstance(part, UnfinishedPart) else self.data(part).stat().st_size
        )

    @property
    def joined(self) -> Path:
        """Path under which the finished output is written."""
        return self.path / _JOINED

    def join_errors(self) -> None:
        """Write the skipped rows of all parts to one file."""
        with (self.path / _JOINED_ERRORS).open("wb") as file:
            for part in self.parts:
                errors = self.path / f"{part.stem}.errors"
                if errors.is_file():
                    file.write(errors.read_bytes())
            _flush(file)

    def publish(self, report: Mapping[str, Any]) -> None:
        """Move the joined files to their places, and remove the folder.

        A call that was killed at any moment can be repeated.

        Args:
            report: The report of the run.
        """
        _write(self.path / _RUN, _json({**_read_json(self.path / _RUN), "report": dict(report)}))
        errors = self.path / _JOINED_ERRORS
        if not report["skipped"]:
            self.errors_output.unlink(missing_ok=True)
        elif errors.exists():
            errors.replace(self.errors_output)
        if self.joined.exists():
            _replace(self.joined, self.output)
        _sync_folder(self.output.parent)
        self.remove()

    def remove(self) -> None:
        """Remove the folder. `run.json` is removed last, because it tells what the rest is."""
        for path in self.path.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != _RUN:
                path.unlink()
        (self.path / _RUN).unlink(missing_ok=True)
        self.path.rmdir()


def parts_path(output: Path) -> Path:
    """Return the folder of the parts of an output."""
    return output.with_name(f".{output.name}.parts")


def errors_path(output: Path) -> Path:
    """Return the file of the rows that were skipped."""
    return output.with_name(f"{output.name}.errors.jsonl")


def is_finished(output: Path, read: Iterable[Path]) -> bool:
    """Return whether an earlier run has written an output, so that there is nothing to continue.

    Args:
        output: The file or folder that the parts become.
        read: Files that the run reads. An output that is older than one of them is another run's.
    """
    if (parts_path(output) / _RUN).is_file() or not output.exists():
        return False
    written = list(output.iterdir()) if output.is_dir() else [output]
    if not written or not all(output.is_file() or _is_part(each) for each in written):
        return False
    newest = max(each.stat().st_mtime_ns for each in read)
    return min(each.stat().st_mtime_ns for each in written) >= newest


@contextlib.contextmanager
def open_parts(
    output: Path, identity: Mapping[str, Any], *, resume: bool, overwrite: bool
) -> Iterator[PartsFolder]:
    """Yield the folder of an output's parts, new or of an interrupted run.

    Args:
        output: The file or folder that the parts become.
        identity: What identifies the run, as values of JSON.
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
        if identity["input"]:
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
            _check_identity(path, _read_json(path / _RUN)["identity"], identity)
        else:
            _clear(path)
            _write(path / _RUN, _json({"format": FORMAT, "identity": dict(identity)}))
        yield PartsFolder(path, output)


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
    return path.name.startswith("part-")


def _check_identity(path: Path, stored: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """Refuse to continue a run with another input, model or options.

    Raises:
        UserInputError: Something differs.
    """
    current = json.loads(json.dumps(identity))
    differing = [name for name in current if stored.get(name) != current[name]]
    if not differing:
        return
    details = [_difference(name, stored.get(name), current[name]) for name in differing]
    raise UserInputError(
        f"`resume=True`: the interrupted run in {str(path)!r} was another one: "
        f"{'; '.join(details)}. Repeat the earlier call, or pass `overwrite=True` instead to start "
        "again.",
        argument="resume",
    )


def _difference(name: str, stored: Any, current: Any) -> str:
    if name == "options":
        changed = [each for each in current if (stored or {}).get(each) != current[each]]
        pairs = (f"`{each}` was {stored.get(each)!r} and is {current[each]!r}" for each in changed)
        return ", ".join(pairs)
    if name == "input" and stored and current:
        paths = [each["path"] for each in stored]
        if paths != [each["path"] for each in current]:
            return f"its input had {len(stored)} other files, the first one {paths[0]!r}"
        changed = [new["path"] for old, new in zip(stored, current, strict=True) if old != new]
        return f"the input file {changed[0]!r} has changed"
    return f"the {name} has changed"


@contextlib.contextmanager
def _locked(path: Path, output: Path) -> Iterator[None]:
    """Keep other processes from writing the same parts.

    Raises:
        UserInputError: Another process writes them.
    """
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
    for each in path.iterdir():
        if each.name == _LOCK:
            continue
        if each.is_dir():
            shutil.rmtree(each)
        else:
            each.unlink()


def _replace(new: Path, output: Path) -> None:
    """Move a file or a folder of files to its place."""
    if new.is_dir() and output.is_dir():
        for path in output.iterdir():
            path.unlink()
        output.rmdir()
    new.replace(output)


def _read_json(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def _json(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


def _write(path: Path, content: bytes) -> None:
    """Write a file atomically, and make sure that it is on the disk."""
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("wb") as file:
        file.write(content)
        _flush(file)
    partial.replace(path)
    _sync_folder(path.parent)


def _flush(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    # Windows cannot open folders, and needs no such call.
    if os.name == "posix":
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
