"""Data and models in memory as values of options.

They are recognized by their methods, so that neither pandas, polars,
datasets nor transformers is imported.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set, Sized
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar, get_args, get_origin

from qdqbert.common.downloads import GRAPHS, WEB, downloaded
from qdqbert.common.errors import CheckpointError, UserInputError, naming, showing
from qdqbert.common.files import name_of, temporary_folder
from qdqbert.common.progress import Progress
from qdqbert.common.storage import Place, RemotePath, is_url, place_of

IN_MEMORY = " (in memory)"
"""End of the name of a model that was in memory."""

_Item = TypeVar("_Item")
_Given = TypeVar("_Given", contravariant=True)
_Read = TypeVar("_Read", covariant=True)


class Records(Sized, Iterable[Any], Protocol):
    """A list of texts, tuples or dicts, a DataFrame, or a `datasets.Dataset`."""


Data = str | Path | Records
"""Data as the public functions take them: a file, a folder, `hub:NAME@SPLIT`, or rows in memory."""


class Rows:
    """Rows in memory. In messages, reports and commands, `<list of 200 rows>` stands for them.

    Attributes:
        values: The object that has the rows.
        kind: How its rows are read: as pandas, polars or `datasets`, or one by one.
    """

    def __init__(
        self, values: Any, kind: Literal["pandas", "polars", "dataset", "sequence"]
    ) -> None:
        self.values = values
        self.kind = kind

    def __repr__(self) -> str:
        """Return the type and the number of rows."""
        count = len(self.values)
        return f"<{type(self.values).__name__} of {count} row{'' if count == 1 else 's'}>"


def as_rows(value: Any) -> Rows | None:
    """Return data that are in memory as rows; `None` if it is a path or cannot be used."""
    if isinstance(value, str | bytes | Mapping | Set | Path | Rows) or not isinstance(value, Sized):
        return None
    if hasattr(value, "iloc") and hasattr(value, "notna"):
        return Rows(value, "pandas")
    if hasattr(value, "iter_rows"):
        return Rows(value, "polars")
    if hasattr(value, "column_names") and hasattr(value, "features"):
        return Rows(value, "dataset")
    return Rows(value, "sequence") if isinstance(value, Iterable) else None


def rows_hint(value: Any) -> str:
    """Return a hint for data that cannot be used; empty if there is none."""
    if isinstance(value, Mapping) and any(hasattr(each, "features") for each in value.values()):
        return f" Pass one of its splits: {', '.join(map(repr, value))}."
    if isinstance(value, Mapping):
        return ' Pass a list with a dict for each row: [{"text": ..., "label": ...}, ...].'
    if isinstance(value, Iterable) and not isinstance(value, bytes):
        return " Pass a list of its rows."
    return ""


class Savable(Protocol):
    """A model, a pipeline or a tokenizer: what saves itself into a folder."""

    def save_pretrained(self, folder: str, /) -> Any:
        """Write it to a folder."""


ModelLike = str | Path | Savable | tuple[Savable, Savable]
"""A model as the public functions take it: a path or a name on the hub, `(model, tokenizer)` of
transformers, a pipeline, a `SentenceTransformer` or a `CrossEncoder`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Copied(os.PathLike[str]):
    """A local copy of something else, whose name it is as a string.

    Attributes:
        folder: The folder or file, for `open` and `Path`.
        name: The name, for reports and commands.
    """

    folder: str
    name: str

    def __fspath__(self) -> str:
        """Return the folder."""
        return self.folder

    def __str__(self) -> str:
        """Return the name."""
        return self.name

    def __repr__(self) -> str:
        """Return the name in quotes."""
        return repr(self.name)


class SavedModel(Copied):
    """The folder of a model that was in memory."""


class Downloaded(Copied):
    """The file or folder that a URL names, in the cache."""


GivenData = str | Downloaded | Rows
"""Data as they are read: a local path or a name on the hub, a copy, or rows in memory."""


class Converted(Generic[_Given, _Read]):
    """The type of a field that is given as one type, and read as another.

    Type checkers take it for a descriptor. There is none: `Options` converts the values.
    """

    if TYPE_CHECKING:

        def __get__(self, owner: object, kind: type | None = None) -> _Read: ...
        def __set__(self, owner: object, value: _Given) -> None: ...


PathOption = Converted[str | Path, str]
OptionalPath = Converted[str | Path | None, str | None]
InputOption = Converted[str | Path, str | Downloaded]
OptionalInput = Converted[str | Path | None, str | Downloaded | None]
ModelOption = Converted[ModelLike, str | SavedModel | Downloaded]
OptionalModel = Converted[ModelLike | None, str | SavedModel | Downloaded | None]
DataOption = Converted[Data, GivenData]
OptionalData = Converted[Data | None, GivenData | None]
SeveralModels = Converted[Sequence[ModelLike], tuple[str | SavedModel | Downloaded, ...]]
SeveralPaths = Converted[Sequence[str | Path], tuple[str, ...]]
Column = Converted[str | int | None, str | None]
DeviceName = Converted[str | int | None, str | None]
OptionalJson = Converted[Mapping[str, Any] | str | None, str | None]
Several = Converted[Sequence[_Item], tuple[_Item, ...]]


def device_name(value: Any) -> Any:
    """Return a device by its name: numbers are of GPUs, and -1 is the CPU, as in transformers."""
    if value is None or isinstance(value, str):
        return value
    if type(value) is int:
        return "cpu" if value < 0 else f"cuda:{value}"
    # A `torch.device`, or what is no device.
    return str(value)


def as_given(annotation: str) -> str:
    """Return the type that a field is given as, for signatures: `str | Path` for `PathOption`."""
    name, _, item = annotation.partition("[")
    alias = globals().get(name)
    if get_origin(alias) is not Converted:
        return annotation
    if item:
        return f"Sequence[{item}"
    return re.sub(r"(\w+\.)+", "", str(get_args(alias)[0]))


@contextlib.contextmanager
def fetched(
    value: Any,
    argument: str,
    kind: type[UserInputError] = CheckpointError,
    progress: Progress | None = None,
) -> Iterator[Any]:
    """Download what a URL names to the cache. Errors of the block name the URL, not the copy.

    Args:
        value: The URL, or anything else.
        argument: Name of the parameter, for errors.
        kind: Class of the error if it cannot be downloaded.
        progress: Shows the download.

    Yields:
        A `Downloaded`; the path of a URL of this machine; the value itself if it is no URL.

    Raises:
        UserInputError: It does not exist or cannot be read, or the scheme is not known.
    """
    place: Place | None = None
    if isinstance(value, str | Path):
        with naming(argument):
            # Who reads a model says what to pass instead of the address of a page.
            if not (kind is CheckpointError and _is_page(str(value))):
                place = place_of(str(value))
            if isinstance(place, RemotePath):
                copy = downloaded(place, kind, progress)
    if not isinstance(place, RemotePath):
        yield str(place) if place and is_url(value) else value
        return
    with showing(place.url, copy), showing(place.parent.url, copy.parent):
        yield Downloaded(folder=str(copy), name=place.url)


def _is_page(name: str) -> bool:
    """Return whether a URL of the web is no file of a model: it is one of the hub."""
    return name.lower().startswith(WEB) and PurePosixPath(name).suffix.lower() not in GRAPHS


def named(value: Any, copies: Sequence[Copied]) -> Any:
    """Return a report with the names of copies instead of their paths."""
    if not copies:
        return value
    if isinstance(value, str):
        for each in copies:
            value = value.replace(each.folder, each.name)
    elif isinstance(value, list):
        return [named(each, copies) for each in value]
    elif type(value) is tuple:
        return tuple(named(each, copies) for each in value)
    elif isinstance(value, dict):
        return {key: named(each, copies) for key, each in value.items()}
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [each.name for each in dataclasses.fields(value) if each.init]
        return dataclasses.replace(
            value, **{name: named(getattr(value, name), copies) for name in fields}
        )
    return value


@contextlib.contextmanager
def saved(value: Any, argument: str, progress: Progress | None = None) -> Iterator[Any]:
    """Save a model that is in memory into a temporary folder, which is removed at the end.

    Args:
        value: The model, its path or its URL.
        argument: Name of the parameter, for errors.
        progress: Shows a download.

    Yields:
        A `SavedModel`; a `Downloaded`, as `fetched`; the value itself if it is something else.

    Raises:
        UserInputError: The model has no tokenizer, or a URL cannot be read.
    """
    parts = value if isinstance(value, tuple) else _parts(value, argument)
    if not parts or not all(hasattr(each, "save_pretrained") for each in parts):
        with fetched(value, argument, progress=progress) as found:
            yield found
        return
    name = _name_of(parts[0])
    with temporary_folder() as root:
        # Messages about the files and the default output have the last part of the name.
        folder = str(root / name_of(name))
        for each in parts:
            each.save_pretrained(folder, **_save_options(each))
        yield SavedModel(folder=folder, name=f"{name}{IN_MEMORY}")


def _parts(value: Any, argument: str) -> tuple[Any, ...]:
    """Return the parts of a model that have to be saved; none of a path."""
    if not hasattr(value, "save_pretrained"):
        return ()
    tokenizer = getattr(value, "tokenizer", None)
    if tokenizer is None:
        raise UserInputError(
            f"`{argument}` is a {type(value).__name__} without its tokenizer. Pass both: "
            f"`{argument}=(model, tokenizer)`.",
            argument=argument,
        )
    # A pipeline consists of both. The models of sentence-transformers save more than these.
    is_pipeline = hasattr(value, "model") and not _save_options(value)
    return (value.model, tokenizer) if is_pipeline else (value,)


def _save_options(value: Any) -> dict[str, Any]:
    """Return arguments for saving: a model card may ask the hub, and is not needed."""
    name = "create_model_card"
    return {name: False} if name in inspect.signature(value.save_pretrained).parameters else {}


def _name_of(model: Any) -> str:
    """Return where a model was loaded from; its class if it is not known."""
    inner = getattr(model, "transformers_model", None) or model
    name = getattr(getattr(inner, "config", None), "_name_or_path", None)
    return str(name or type(model).__name__)
