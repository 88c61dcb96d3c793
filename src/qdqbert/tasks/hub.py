"""Rows of a Hugging Face data set, named `hub:NAME@SPLIT` or `hub:NAME:CONFIG@SPLIT`.

NAME is the id of a data set on the hub, or a local folder that `datasets.load_dataset` reads;
CONFIG is what the hub calls a subset: `hub:nyu-mll/glue:sst2@validation`. SPLIT may be a slice, as
`datasets` writes it: `train[:1000]`. No code of a data set is ever run.
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

from qdqbert.errors import DataFileError, MissingExtraError

_PREFIX = "hub:"
_LONGEST_REASON = 400  # characters of the library's own words that an error repeats


@dataclasses.dataclass(frozen=True, kw_only=True)
class HubName:
    """One split of a data set.

    Attributes:
        name: Id on the hub, or a local folder.
        config: Its subset; `None` for the only one.
        split: `train`, or a slice of it.
    """

    name: str
    config: str | None
    split: str


def is_hub(path: str) -> bool:
    """Whether a path names a data set of the hub, not a file."""
    return path.startswith(_PREFIX)


def parse_hub(path: str) -> HubName:
    """What `hub:NAME@SPLIT` and `hub:NAME:CONFIG@SPLIT` say.

    Raises:
        DataFileError: The name or the split is missing.
    """
    rest, _, split = path.removeprefix(_PREFIX).rpartition("@")
    name, _, config = rest.rpartition(":")
    if not name or Path(rest).exists():  # the colon of a drive is no config's
        name, config = rest, ""
    if not name or not split:
        raise DataFileError(
            f"Data set `{path}` must be written `hub:NAME@SPLIT` or `hub:NAME:CONFIG@SPLIT`, say "
            "`hub:nyu-mll/glue:sst2@validation`. Add what is missing."
        )
    return HubName(name=name, config=config or None, split=split)


def hub_rows(path: str) -> Iterator[tuple[int, dict[str, object]]]:
    """The rows of a split, each with its number from 1.

    The number of a class becomes its name, also in lists, as those of a token's tags. Where a
    test set hides its classes it has -1, which becomes `None`.

    Raises:
        DataFileError: There is no such data set, config or split, or no way to it.
        MissingExtraError: The library `datasets` is not installed.
    """
    hub = parse_hub(path)
    if importlib.util.find_spec("datasets") is None:
        raise MissingExtraError(
            f"Data set `{path}` needs the library `datasets`, which is not installed. Install it "
            "with: pip install 'qdqbert[datasets]'"
        )
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
    features = table.features
    for number, row in enumerate(table, start=1):
        yield number, {name: _named(value, features[name]) for name, value in row.items()}


def _named(value: Any, feature: Any) -> Any:
    """A value with the names of its classes."""
    if value is None:
        return None
    if isinstance(feature, Mapping):
        return {name: _named(inner, feature[name]) for name, inner in value.items()}
    if isinstance(value, list):
        inner = getattr(feature, "feature", None)
        return value if inner is None else [_named(each, inner) for each in value]
    names = getattr(feature, "names", None)
    if names is None or not isinstance(value, int):
        return value
    return None if value < 0 else names[value]


def _reason(error: BaseException) -> str:
    """The library's own words in one line: they list the configs or splits that are there."""
    words = " ".join(str(error).split()) or type(error).__name__
    short = words if len(words) <= _LONGEST_REASON else words[: _LONGEST_REASON - 1] + "…"
    return short if short.endswith((".", "…")) else short + "."


@contextmanager
def _quiet(datasets: Any) -> Iterator[None]:
    """No progress bars, and no line for each of the five times that the hub is asked again."""
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
