"""Where a run writes: its output, and the files next to it that a continued run needs.

Next to the output NAME, in a folder of this machine or in storage, are:

.NAME.parts/       finished parts, while a run is under way; see `parts.py`
.NAME.run.json     what identifies the run that has written the output
NAME.errors.jsonl  the rows that were skipped
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import importlib.util
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from qdqbert.common.errors import OutputExistsError, UserInputError
from qdqbert.common.files import check_output_place, followed, inside_of
from qdqbert.common.options.declared import overwrites
from qdqbert.common.storage import Place, RemotePath, place_of, remove_tree
from qdqbert.data.tables.inputs import Source, is_partition
from qdqbert.data.tables.outputs import is_folder
from qdqbert.verbs.run.shards import Shard

RUN = "run.json"
FILES = "the files of the output"
_LOCK = "lock"
# What differs between shards of one input.
_OF_SHARD = ("`shard`", "`input`")
# Start of the names of the files of a folder.
_PART = "part-"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Places:
    """Where a run writes.

    Attributes:
        output: The file or folder.
        is_folder: Whether it is a folder of files.
        shard: The part of the input whose answers these are, if other processes have the others.
    """

    output: Place
    is_folder: bool
    shard: Shard | None = None

    @property
    def parts(self) -> Place:
        """The folder of the finished parts."""
        return self._beside(".{}.parts{}")

    @property
    def errors(self) -> Place:
        """The file of the rows that were skipped."""
        return self._beside("{}.errors{}.jsonl")

    @property
    def finished(self) -> Place:
        """The file that identifies the run that has written the output."""
        return self._beside(".{}.run{}.json")

    @property
    def is_remote(self) -> bool:
        """Whether the output is in storage."""
        return isinstance(self.output, RemotePath)

    @property
    def is_interrupted(self) -> bool:
        """Whether there are finished parts of a run that did not end."""
        return (self.parts / RUN).is_file()

    def _beside(self, name: str) -> Place:
        shard = f"-{self.shard.name}" if self.shard else ""
        return self.output.with_name(name.format(self.output.name, shard))

    def file(self, index: int, suffix: str) -> str:
        """Return the name of a file of the folder."""
        return f"{self._start}{index:05d}.{suffix}"

    @property
    def _start(self) -> str:
        """Start of the names of the files that this run writes."""
        return f"{_PART}{self.shard.name}-" if self.shard else _PART

    def written(self) -> list[Place]:
        """Return the files of the output that a run has written; none if it does not exist."""
        return sorted(
            path
            for path, is_ours in self._found()
            if is_ours and (path == self.output or path.name.startswith(self._start))
        )

    def relative(self, path: Place) -> str:
        """Return the name of a file of the output in its folder."""
        return str(path).removeprefix(str(self.output)).lstrip("/\\")

    def foreign(self) -> Place | None:
        """Return what is in the folder and was not written by a run."""
        return next((path for path, is_ours in self._found() if not is_ours), None)

    def _found(self) -> Iterator[tuple[Place, bool]]:
        """Yield the files that are there, and whether a run can have written them."""
        if not self.is_folder or (isinstance(self.output, Path) and self.output.is_file()):
            if self.output.exists():
                yield self.output, True
        elif isinstance(self.output, RemotePath):
            inside = len(self.output.parts)
            for remote in self.output.find():
                if not remote.parts[inside:]:
                    # A file whose name is that of the folder.
                    continue
                *folders, name = remote.parts[inside:]
                yield remote, self._is_ours(name) and all(map(is_partition, folders))
        elif self.output.is_dir():
            for file in _found_in(self.output):
                yield file, self._is_ours(file.name) and file.is_file()

    def _is_ours(self, name: str) -> bool:
        """Return whether a run with as many shards can have written a file."""
        count = r"\d{5}" if self.shard is None else f"{self.shard.count:05d}"
        of_shard = rf"\d{{5}}-of-{count}-"
        optional = "?" if self.shard is None else ""
        return re.fullmatch(rf"{_PART}({of_shard}){optional}\d{{5,}}\.\w+", name) is not None


def _found_in(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.is_dir() and is_partition(path.name):
            yield from _found_in(path)
        # Nothing is said of a file that was being written when a run was killed.
        elif not (path.name.startswith(f".{_PART}") and path.name.endswith(".partial")):
            yield path


def find_places(
    output: str, source: Source, shard: Shard | None = None, *, model: str = ""
) -> Places:
    """Return where a run of all files of an input, or of a shard of it, writes.

    `model` is the folder of the model, of which no file is replaced.

    Raises:
        UserInputError: The output or a file next to it cannot be written, or it would overwrite a
            file of the input.
    """
    place = place_of(output)
    if isinstance(place, Path):
        place = followed(place)
    places = Places(output=place, is_folder=is_folder(output), shard=shard)
    if isinstance(places.errors, Path):
        check_output_place(places.errors)
        if places.errors.is_dir():
            raise UserInputError(
                f"`output={output!r}`: {str(places.errors)!r} is a folder, and the file of the "
                "rows that are skipped. Move it away, or pass another `output`.",
                argument="output",
            )
    if shard and not places.is_folder:
        raise UserInputError(
            f"`shard={str(shard)!r}` needs a folder as output, such as 'answers/', got "
            f"`output={output!r}`.",
            argument="shard",
        )
    are_written = [_inside_of(each) for each in (places.output, places.errors)]
    for file in source.files:
        if any(holds(file.place) for holds in are_written):
            raise overwrites("output", output, f"the input file {file.name!r}")
    folder = place_of(model) if model else None
    if folder is not None and places.output.is_file() and _inside_of(folder)(places.output):
        raise overwrites("output", output, f"a file of `model={model!r}`")
    return places


def _inside_of(place: Place) -> Callable[[Place], bool]:
    """Return a function that says whether a path is a place or inside it."""
    if isinstance(place, RemotePath):
        return lambda path: isinstance(path, RemotePath) and path.is_within(place)
    holds = inside_of(place)
    return lambda path: isinstance(path, Path) and holds(path)


def is_finished(places: Places, read: Iterable[Path], identity: Mapping[str, Any]) -> bool:
    """Return whether an earlier run has written an output, so that there is nothing to continue.

    If it is not known which one, a file that is older than a file of `read` is another run's, and
    of a folder nothing is known.
    """
    written = places.written()
    if places.is_interrupted or not written or places.foreign() is not None:
        return False
    if places.finished.is_file():
        found = read_numbers(places.finished)
        files = found.pop(FILES, [])
        if not {*files} <= {places.relative(each) for each in written}:
            return False
        what = f"the run that has written {str(places.output)!r}"
        check_identity(what, found, identity)
        return True
    local = [each for each in written if isinstance(each, Path) and not places.is_folder]
    newest = max(each.stat().st_mtime_ns for each in read)
    return bool(local) and min(each.stat().st_mtime_ns for each in local) >= newest


def check_siblings(places: Places, identity: Mapping[str, Any]) -> None:
    """Refuse a shard of another input, model or options than shards that were run before.

    Raises:
        UserInputError: Another shard differs.
    """
    if places.shard is None:
        return
    ending = f"-of-{places.shard.count:05d}"
    name, parent = places.output.name, places.output.parent
    if not parent.is_dir():
        return
    found: Iterable[Place] = parent.iterdir()
    for each in sorted(found, key=str):
        stem = each.name.removesuffix(".json")
        if not stem.startswith((f".{name}.run-", f".{name}.parts-")) or not stem.endswith(ending):
            continue
        path = each if each.name.endswith(".json") else each / RUN
        if stem.endswith(places.shard.name) or not path.is_file():
            continue
        same = {
            key: value
            for key, value in identity.items()
            if key not in _OF_SHARD and not key.startswith("the input file ")
        }
        details = differences(read_numbers(path), same)
        if details:
            raise UserInputError(
                f"`shard`: the run of another shard, of which {str(path)!r} tells, was another "
                f"one: {'; '.join(details)}. Shards divide one input: give all of them the same "
                "one, or choose another `output`.",
                argument="shard",
            )
        return


def remove_rest(places: Places) -> None:
    """Remove the files of a run that was killed after its output was complete."""
    if places.parts.is_dir():
        with locked(places):
            remove_tree(places.parts)


def check_output(places: Places, *, overwrite: bool) -> None:
    """Refuse an output that exists, with its file of errors, or that a run did not write.

    Raises:
        OutputExistsError: It may not be replaced.
    """
    output, foreign = places.output, places.foreign()
    has_output = foreign is not None or bool(places.written())
    if not has_output and not places.errors.exists():
        return
    if not overwrite:
        which = "" if has_output else f": {str(places.errors)!r}, its file of errors,"
        raise OutputExistsError(
            f"`output={str(output)!r}`{which} already exists, and there is no interrupted run of "
            "it. Pass `overwrite=True` to replace it, or another `output`.",
            argument="output",
        )
    if foreign is not None:
        raise OutputExistsError(
            f"`output={str(output)!r}` contains files that `run` did not write, such as "
            f"{foreign.name!r}. It is not deleted, even with `overwrite=True`. Pass another "
            "`output`.",
            argument="output",
        )


def check_identity(what: str, stored: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """Refuse to continue a run, named by `what`, with another input, model or options.

    Raises:
        UserInputError: It was another one.
    """
    details = differences(stored, identity)
    if details:
        repeat = "Repeat the earlier call, or pass" if _can_repeat(details) else "Pass"
        raise UserInputError(
            f"`resume=True`: {what} was another one: {'; '.join(details)}. {repeat} "
            "`overwrite=True` instead to start again.",
            argument="resume",
        )


def differences(stored: Mapping[str, Any], identity: Mapping[str, Any]) -> list[str]:
    """Return in what a run differs from one that has stored its identity, in words."""
    details = []
    for name, current in identity.items():
        if name not in stored:
            details.append(f"{name} is new")
        elif stored[name] != current:
            values = f"was {stored[name]!r:.300} and is {current!r:.300}"
            details.append(f"{name} {values if name.startswith('`') else 'has changed'}")
    return details


def _can_repeat(details: Iterable[str]) -> bool:
    """Return whether options alone differ, and no file: the earlier call can be given again."""
    return all(each.startswith("`") for each in details)


def check_not_interrupted(places: Places, identity: Mapping[str, Any]) -> None:
    """Refuse to begin a run while there are parts of another one, and say what can be done.

    Raises:
        UserInputError: A process of this machine is writing them.
        OutputExistsError: Nobody is, or it is not known.
    """
    if not places.is_interrupted:
        return
    with locked(places):
        details = differences(read_numbers(places.parts / RUN), identity)
    discard = "`overwrite=True` to discard it"
    if details:
        repeat = ", or repeat its call with `resume=True`" if _can_repeat(details) else ""
        advice = f"It was another one: {'; '.join(details)}. Pass {discard}{repeat}."
    elif identity["`input`"]:
        advice = f"Pass `resume=True` to continue it, or {discard}."
    else:
        advice = f"Pass {discard}."
    what = "an interrupted run"
    if not _has_locks(places):
        what = "a run that did not end"
        advice = f"{_activity(places)} If it was interrupted: {advice}"
    raise OutputExistsError(
        f"`output={str(places.output)!r}`: {str(places.parts)!r} contains finished parts of "
        f"{what}. {advice}",
        argument="output",
    )


def _activity(places: Places) -> str:
    """Return what is known of the process that has written parts where there are no locks."""
    written = "It may still be running, which nothing shows here"
    if isinstance(places.parts, RemotePath):
        times = [each.written for each in places.parts.find().values() if each.written]
        if times:
            since = datetime.datetime.now(datetime.UTC) - max(times)
            seconds = max(0, int(since.total_seconds()))
            written = f"It may still be running: it has written {seconds} seconds ago"
    return f"{written}, so make sure that no other process does."


def read_numbers(path: Place) -> dict[str, Any]:
    """Read a file of JSON that a run has written.

    Raises:
        UserInputError: It is damaged.
    """
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:
        raise UserInputError(
            f"{str(path)!r} is damaged: {error}. Pass `overwrite=True` to start again.",
            argument="resume",
        ) from error
    return cast("dict[str, Any]", found)


def _has_locks(places: Places) -> bool:
    """Return whether `locked` does something. Storage has no locks, and Windows no such ones."""
    return isinstance(places.parts, Path) and importlib.util.find_spec("fcntl") is not None


@contextlib.contextmanager
def locked(places: Places) -> Iterator[None]:
    """Keep other processes from writing the same parts, where there are locks.

    Raises:
        UserInputError: Another process is writing them.
    """
    if not _has_locks(places):
        yield
        return
    import fcntl

    with cast(Path, places.parts / _LOCK).open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserInputError(
                f"Another process is running, and is writing `output={str(places.output)!r}`. Wait "
                "for it, or stop it.",
                argument="output",
            ) from error
        yield


def clear(places: Places) -> None:
    """Remove the parts of another run."""
    # First, so that nobody continues with some of the parts.
    (places.parts / RUN).unlink(missing_ok=True)
    found: Iterable[Place] = places.parts.iterdir()
    for each in list(found):
        if each.name != _LOCK:
            remove_tree(each)
