"""Rows of a folder as IMDB's reviews come: a sub-folder for each class, a .txt file a text.

`pos/0_9.txt`, `neg/0_2.txt` → ("text of 0_9.txt", "pos"), ("text of 0_2.txt", "neg").
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from qdqbert.errors import DataFileError

_UNLABELLED = "unsup"


def folder_rows(folder: Path) -> tuple[Iterator[tuple[int, dict[str, object]]], list[str]]:
    """Numbered rows with `text`, a whole file, and `label`, its folder's name; and notices.

    Files are sorted by name within a class, and classes take turns, so that the first rows are
    not all of one. IMDB's `unsup`, texts without a class, is left out.

    Raises:
        DataFileError: No sub-folder holds .txt files; names those that hold class folders.
    """
    files = _files_by_class(folder)
    left_out = files.pop(_UNLABELLED, ())
    if not files:
        raise DataFileError(_no_classes(folder))
    turns = itertools.zip_longest(*files.values())
    paths = [path for turn in turns for path in turn if path is not None]
    notices = [f"Took {', '.join(files)} as labels: the names of the sub-folders."]
    if left_out:
        notices.append(f"Left out `{_UNLABELLED}`: its {len(left_out)} texts have no label.")
    rows = ((n, _row(path)) for n, path in enumerate(paths, start=1))
    return rows, notices


def _files_by_class(folder: Path) -> dict[str, Sequence[Path]]:
    inner = sorted(path for path in folder.iterdir() if path.is_dir())
    files = {path.name: sorted(path.glob("*.txt")) for path in inner}
    return {name: texts for name, texts in files.items() if texts}


def _no_classes(folder: Path) -> str:
    message = (
        f"Data `{folder}` is a directory, not a file; expected a file, or a sub-folder of .txt "
        "files for each class (`pos`, `neg`)"
    )
    nearer = [path for path in sorted(folder.iterdir()) if path.is_dir() and _files_by_class(path)]
    if nearer:
        return f"{message}. Name {' or '.join(f'`{path}`' for path in nearer)}, which has them."
    return f"{message}, got none. Check the path."


def _row(path: Path) -> dict[str, object]:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataFileError(
            f"File `{path}` must be UTF-8, got byte 0x{error.object[error.start]:02x} at position "
            f"{error.start}. Save it as UTF-8."
        ) from error
    except OSError as error:
        raise DataFileError(f"File `{path}` cannot be read: {error}. Name another file.") from error
    return {"text": text, "label": path.parent.name}
