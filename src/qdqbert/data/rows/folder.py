"""Rows of a folder with a sub-folder for each class and a .txt file for each text, as IMDB's.

`pos/0_9.txt`, `neg/0_2.txt` → ("text of 0_9.txt", "pos"), ("text of 0_2.txt", "neg").
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from qdqbert.common.errors import DataFileError
from qdqbert.data.rows.lines import counted, read_text

_UNLABELLED = "unsup"


def folder_rows(folder: Path) -> tuple[Iterator[tuple[int, dict[str, object]]], list[str]]:
    """Read a folder of classes.

    Files are sorted by name within a class, and the classes alternate, so that the first rows are
    not all of one class. IMDB's `unsup`, which holds texts without a class, is left out.

    Returns:
        Numbered rows with `text`, the content of a file, and `label`, the name of its folder; and
        notices.

    Raises:
        DataFileError: No sub-folder holds .txt files. Names those that hold class folders.
    """
    files = _files_by_class(folder)
    left_out = files.pop(_UNLABELLED, ())
    if not files:
        raise DataFileError(_describe_missing_classes(folder))
    turns = itertools.zip_longest(*files.values())
    paths = [path for turn in turns for path in turn if path is not None]
    notices = [f"Took {', '.join(files)} as labels: the names of the sub-folders."]
    if left_out:
        notices.append(
            f"Left out {counted(len(left_out), 'text')} without a label: `{_UNLABELLED}`."
        )
    return ((number, _row(path)) for number, path in enumerate(paths, start=1)), notices


def _row(path: Path) -> dict[str, object]:
    text = read_text(path).replace("\r\n", "\n").replace("\r", "\n")
    return {"text": text, "label": path.parent.name}


def _files_by_class(folder: Path) -> dict[str, Sequence[Path]]:
    subfolders = sorted(path for path in folder.iterdir() if path.is_dir())
    files = {path.name: sorted(path.glob("*.txt")) for path in subfolders}
    return {name: texts for name, texts in files.items() if texts}


def _describe_missing_classes(folder: Path) -> str:
    message = (
        f"Data `{folder}` is a directory, not a file; expected a file, or a sub-folder of .txt "
        "files for each class (`pos`, `neg`)"
    )
    nearer = [path for path in sorted(folder.iterdir()) if path.is_dir() and _files_by_class(path)]
    if nearer:
        return f"{message}. Name {' or '.join(f'`{path}`' for path in nearer)}, which has them."
    return f"{message}, got none. Check the path."
