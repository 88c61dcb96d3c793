"""SHA-256 sums of the files of a folder, as `sha256sum` writes them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection
from pathlib import Path
from typing import Literal

from qdqbert.common.errors import CheckpointError
from qdqbert.common.files import digest_of, write_bytes
from qdqbert.common.json_files import damaged, read_text

CHECKSUMS = "SHA256SUMS"

_LINE = re.compile(r"([0-9a-f]{64}) [ *](.+)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileCheck:
    """A file of a folder, compared with its checksum.

    Attributes:
        name: Path in the folder, with `/`.
        verdict: `intact`, `changed` or `missing`.
    """

    name: str
    verdict: Literal["intact", "changed", "missing"]


def write_checksums(folder: Path, *, leave_out: Collection[str]) -> None:
    """Write the checksums of all files of a folder."""
    names = sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )
    kept = [name for name in names if name not in leave_out and name != CHECKSUMS]
    lines = [f"{digest_of(folder / name)}  {name}\n" for name in kept]
    write_bytes(folder / CHECKSUMS, "".join(lines).encode())


def check_files(folder: Path) -> tuple[FileCheck, ...] | None:
    """Compare the files of a folder with their checksums; `None` if it has none.

    Files without a checksum are ignored. If the checksums themselves cannot be read, they are
    returned as a file that changed.
    """
    path = folder / CHECKSUMS
    if not path.is_file():
        return None
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        lines = []
    known = [_LINE.fullmatch(line) for line in lines]
    found = [_check(folder, each[2], each[1]) for each in known if each is not None]
    if not known or None in known:
        found.append(FileCheck(name=CHECKSUMS, verdict="changed"))
    return tuple(found)


def require_intact(folder: Path, names: Collection[str]) -> bool:
    """Refuse files that differ from their checksums.

    Returns:
        Whether the folder has checksums. Somebody may have removed them.
    """
    path = folder / CHECKSUMS
    if not path.is_file():
        return False
    lines = [_LINE.fullmatch(line) for line in read_text(path).splitlines()]
    digests = {each[2]: each[1] for each in lines if each is not None}
    for name in names:
        if name not in digests:
            raise damaged(path, f"it has no checksum of {name}")
        try:
            is_equal = digest_of(folder / name) == digests[name]
        except OSError as error:
            raise CheckpointError(
                f"{str(folder / name)!r} cannot be read: {error.strerror}."
            ) from error
        if not is_equal:
            raise damaged(folder / name, f"it is not the file whose checksum is in {CHECKSUMS}")
    return True


def _check(folder: Path, name: str, expected: str) -> FileCheck:
    try:
        is_equal = digest_of(folder / name) == expected
    except FileNotFoundError:
        return FileCheck(name=name, verdict="missing")
    except OSError:
        # An unreadable file counts as changed.
        is_equal = False
    return FileCheck(name=name, verdict="intact" if is_equal else "changed")
