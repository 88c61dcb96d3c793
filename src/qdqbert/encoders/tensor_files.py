"""The files of a checkpoint's tensors: safetensors, or what `torch.save` wrote.

As in transformers, a folder's safetensors are read if it has both, and one file before an index.
"""

from __future__ import annotations

import functools
import json
import math
import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.common.errors import CheckpointError
from qdqbert.common.files import new_file, refuse_pointer
from qdqbert.common.json_files import Fields
from qdqbert.common.safetensors_header import are_sizes, read_header
from qdqbert.encoders.torch_file import read_torch

SAFETENSORS, TORCH = "model.safetensors", "pytorch_model.bin"
WEIGHTS: Mapping[str, str] = {
    SAFETENSORS: "model*.safetensors",
    TORCH: "pytorch_model*.bin",
}
"""Names of the files of tensors, by preference, and globs for those of their shards."""

_KINDS: Mapping[str, np.dtype[Any]] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    # numpy has no bfloat16. Its bits are the upper half of a float32.
    "BF16": np.dtype(np.uint16),
    **{f"I{8 * size}": np.dtype(f"i{size}") for size in (1, 2, 4, 8)},
    **{f"U{8 * size}": np.dtype(f"u{size}") for size in (1, 2, 4, 8)},
}
INTEGERS = tuple(name for name in _KINDS if name[0] in "IU")
"""Names of types of integers."""


def has_weights(folder: Path) -> bool:
    """Return whether a folder has files of tensors, or an index of several."""
    return _find(folder) is not None


def has_weights_below(folder: Path) -> bool:
    """Return whether a folder, or one in it, has files of tensors."""
    return any(any(folder.rglob(each)) for each in ("*.safetensors", WEIGHTS[TORCH]))


def files_of(folder: Path, names: Collection[str] = WEIGHTS) -> tuple[Path, list[Path]]:
    """Return a folder's files of tensors, without reading them, and the file or index of all.

    `names` are the names that the file can have, by preference.

    Raises:
        CheckpointError: There are none, or the index is damaged.
    """
    found = _find(folder, names)
    if found is None:
        raise CheckpointError(
            f"{str(folder)!r} has no weights: neither {' nor '.join(names)}, nor the index of "
            "several such files."
        )
    if found.name in names:
        return found, [found]
    names = set(Fields.of_file(found).texts_by_name("weight_map").values())
    # A name from outside must not lead out of the folder.
    return found, [folder / Path(name).name for name in sorted(names)]


def _find(folder: Path, names: Collection[str] = WEIGHTS) -> Path | None:
    files = [folder / each for name in names for each in (name, f"{name}.index.json")]
    return next((each for each in files if each.is_file()), None)


def read_tensors(path: Path) -> Iterator[tuple[str, str, NDArray[Any] | None]]:
    """Yield name, type and array of each tensor of a file, which is mapped into memory.

    Types have the names of safetensors. Tensors of others than "F64", "F32", "F16", "BF16", whose
    arrays have the bits in uint16, and `INTEGERS` have no array.

    Raises:
        CheckpointError: The file is missing or damaged, or has more than tensors.
    """
    refuse_pointer(path)
    try:
        data = np.asarray(np.memmap(path, np.uint8, mode="r"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"Cannot read {str(path)!r}: {error}.") from error
    damaged = functools.partial(_damaged, path)
    if path.suffix == ".safetensors":
        return _read_safetensors(data, damaged)
    return read_torch(data, _KINDS, damaged, functools.partial(_refused, path))


def write_tensors(path: Path, tensors: Mapping[str, NDArray[np.float32]]) -> None:
    """Write float32 tensors as safetensors, completely or not at all."""
    header: dict[str, Any] = {}
    end = 0
    for name, each in tensors.items():
        offsets = [end, end + each.nbytes]
        header[name] = {"dtype": "F32", "shape": list(each.shape), "data_offsets": offsets}
        end += each.nbytes
    text = json.dumps(header).encode()
    # Tensors start at a multiple of 8 bytes, as the library writes them.
    text += b" " * (-len(text) % 8)
    with new_file(path) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for each in tensors.values():
            file.write(np.ascontiguousarray(each, np.dtype("<f4")).data)


def _read_safetensors(
    data: NDArray[np.uint8], damaged: Callable[[str], CheckpointError]
) -> Iterator[tuple[str, str, NDArray[Any] | None]]:
    """Yield name, type and array of each tensor of a safetensors file; see `read_torch`."""
    header, start = read_header(data, damaged)
    header.pop("__metadata__", None)
    for name, entry in header.items():
        try:
            kind, shape = entry["dtype"], tuple(entry["shape"])
            first, last = entry["data_offsets"]
            sizes = [*shape, first, last]
        except (TypeError, KeyError, ValueError) as error:
            raise damaged(f"tensor {name!r:.80} has wrong fields") from error
        if kind not in _KINDS:
            yield name, str(kind), None
            continue
        if not are_sizes(sizes):
            raise damaged(f"tensor {name!r:.80} has a wrong shape or wrong offsets")
        count = math.prod(shape)
        if last - first != count * _KINDS[kind].itemsize or start + last > len(data):
            raise damaged(f"tensor {name!r:.80} has wrong offsets, or the file is cut off")
        raw = data[start + first : start + last]
        yield name, kind, raw.view(_KINDS[kind]).reshape(shape)


def _damaged(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(
        f"{str(path)!r} is damaged: {reason}. Download or copy the checkpoint again."
    )


def _refused(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(
        f"{str(path)!r} {reason}, and is refused: of the files of torch only dicts of tensors are "
        "read, because others can run code. If you trust it, load the model with the library that "
        "made it, and save it with `save_pretrained(new_folder)`, which writes safetensors."
    )
