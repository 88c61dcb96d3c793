"""Rows of a Hugging Face data set, named `hub:NAME@SPLIT` or `hub:NAME:CONFIG@SPLIT`.

NAME is the id of a data set on the hub, or a local folder that `datasets.load_dataset` reads.
CONFIG is the name of a subset: `hub:nyu-mll/glue:sst2@validation`. SPLIT may be a slice in the
syntax of `datasets`: `train[:1000]`. Code that comes with a data set is never run.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qdqbert.common.errors import DataFileError
from qdqbert.common.extras import require

_PREFIX = "hub:"

# Number of characters of the library's own message that an error repeats.
_LONGEST_REASON = 400


@dataclasses.dataclass(frozen=True, kw_only=True)
class HubName:
    """One split of a data set.

    Attributes:
        name: Id on the hub, or a local folder.
        config: Name of the subset; `None` if the data set has only one.
        split: Name of a split such as `train`, or a slice of one.
    """

    name: str
    config: str | None
    split: str


def is_hub(path: str) -> bool:
    """Return whether a path names a data set of the hub instead of a file."""
    return path.startswith(_PREFIX)


def parse_hub(path: str) -> HubName:
    """Split `hub:NAME@SPLIT` or `hub:NAME:CONFIG@SPLIT` into its parts.

    Raises:
        DataFileError: The name or the split is missing.
    """
    rest, _, split = path.removeprefix(_PREFIX).rpartition("@")
    name, _, config = rest.rpartition(":")
    # An existing path can contain a colon, after the letter of a drive.
    if not name or Path(rest).exists():
        name, config = rest, ""
    if not name or not split:
        raise DataFileError(
            f"Data set `{path}` must be written `hub:NAME@SPLIT` or `hub:NAME:CONFIG@SPLIT`, for "
            "example `hub:nyu-mll/glue:sst2@validation`. Add what is missing."
        )
    return HubName(name=name, config=config or None, split=split)


def hub_rows(path: str) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield the rows of a split, each with its number from 1.

    The number of a class is replaced by its name, also in lists such as the tags of tokens. Test
    sets with hidden classes use -1, which becomes `None`.

    Raises:
        DataFileError: The data set, config or split does not exist or cannot be reached.
        MissingExtraError: The library `datasets` is not installed.
    """
    hub = parse_hub(path)
    require(f"Data set `{path}`", "datasets")
    datasets = importlib.import_module("datasets")
    known = (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError)
    try:
        with _quiet(datasets):
            table = datasets.load_dataset(hub.name, hub.config, split=hub.split)
    except known as error:
        raise DataFileError(
            f"Data set `{path}` cannot be read: {_reason(error)} Check name, config and split, "
            "and that the hub can be reached."
        ) from error
    yield from named_rows(table)


def named_rows(table: Any) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield the rows of a `datasets.Dataset`, with names of classes, as `hub_rows`."""
    features = table.features
    for number, row in enumerate(table, start=1):
        yield number, {name: _with_names(value, features[name]) for name, value in row.items()}


def _with_names(value: Any, feature: Any) -> Any:
    """Replace the numbers of classes in a value by their names."""
    if value is None:
        return None
    if isinstance(feature, Mapping):
        return {name: _with_names(inner, feature[name]) for name, inner in value.items()}
    if isinstance(value, list):
        inner = getattr(feature, "feature", None)
        return value if inner is None else [_with_names(each, inner) for each in value]
    names = getattr(feature, "names", None)
    if names is None or not isinstance(value, int):
        return value
    return None if value < 0 else names[value]


def _reason(error: BaseException) -> str:
    """Return the library's message in one line; it lists the configs or splits that exist."""
    words = " ".join(str(error).split()) or type(error).__name__
    short = words if len(words) <= _LONGEST_REASON else words[: _LONGEST_REASON - 1] + "…"
    return short if short.endswith((".", "…")) else short + "."


@contextmanager
def _quiet(datasets: Any) -> Iterator[None]:
    """Hide progress bars, and the log lines of the five times that a request is repeated."""
    logger = logging.getLogger("huggingface_hub")
    level, shown = logger.level, not datasets.are_progress_bars_disabled()
    logger.setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        logger.setLevel(level)
        if shown:
            datasets.enable_progress_bars()
