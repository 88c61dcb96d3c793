"""Files as `torch.save` writes them, with any content."""

from __future__ import annotations

import collections
import dataclasses
import io
import pickle
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

NAME = "pytorch_model.bin"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Storage:
    """What a pickle says of a storage."""

    kind: Any = torch.FloatStorage
    key: object = "0"
    location: object = "cpu"
    count: object = 6
    word: object = "storage"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tensor:
    """What a pickle says of a tensor."""

    storage: object = Storage()
    offset: object = 0
    shape: object = (2, 3)
    strides: object = (3, 1)
    requires_grad: object = False
    hooks: object = dataclasses.field(default_factory=collections.OrderedDict)
    more: tuple[object, ...] = ()

    def __reduce__(self) -> Any:
        values = (getattr(self, field.name) for field in dataclasses.fields(self))
        *arguments, more = values
        return torch._utils._rebuild_tensor_v2, (*arguments, *more)


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: object) -> object:
        if not isinstance(value, Storage):
            return None
        return value.word, value.kind, value.key, value.location, value.count


def pickled(content: object, protocol: int = 2) -> bytes:
    """Return a pickle in which `Storage` and `Tensor` are those of torch."""
    buffer = io.BytesIO()
    _Pickler(buffer, protocol).dump(content)
    return buffer.getvalue()


def write_archive(
    path: Path, entries: Sequence[tuple[str, bytes]], method: int = zipfile.ZIP_STORED
) -> None:
    """Write a zip archive with entries of any names, the same ones too."""
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in entries:
            archive.writestr(zipfile.ZipInfo(name), content, method)


def write_torch(
    path: Path,
    code: bytes,
    storages: Mapping[str, bytes] | None = None,
    *,
    method: int = zipfile.ZIP_STORED,
    **records: bytes,
) -> None:
    """Write a file with a pickle, storages by key, and other records."""
    named = {"data.pkl": code, **records}
    named |= {f"data/{key}": each for key, each in (storages or {"0": bytes(24)}).items()}
    write_archive(path, [(f"archive/{name}", each) for name, each in named.items()], method)


def to_torch(folder: Path, **options: Any) -> Path:
    """Replace the safetensors of a folder by files of torch, saved with some options."""
    for path in folder.rglob("*.safetensors"):
        torch.save(load_file(path), path.with_name(NAME), **options)
        path.unlink()
    return folder
