"""Tensors of a checkpoint, read without torch."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from qdqbert.common.errors import CheckpointError
from qdqbert.common.json_files import LARGEST_FLOAT
from qdqbert.encoders.model import Floats, Later
from qdqbert.encoders.tensor_files import INTEGERS, WEIGHTS, files_of, read_tensors

_Tensor = tuple[str, NDArray[Any]]
# Names of LayerNorm's parameters in checkpoints that were converted from TensorFlow.
_OLD_NAMES = {".gamma": ".weight", ".beta": ".bias"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Conversion:
    """Renames tensors of an older layout to today's names.

    Attributes:
        renames: Regular expressions and their replacements, in order.
        splits: Suffixes of modules that are several modules one after another, and the suffixes of
            these modules.
        own: Regular expression of names that transformers itself does not convert; `None` if it
            converts all, or has no such model.
    """

    renames: tuple[tuple[str, str], ...] = ()
    splits: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    own: str | None = None

    def targets(self, name: str) -> list[str]:
        """Return today's names of the parts of a tensor."""
        module, _, parameter = name.rpartition(".")
        for end, parts in self.splits.items():
            if module.endswith(end):
                start = module.removesuffix(end)
                return [self._renamed(f"{start}{part}.{parameter}") for part in parts]
        return [self._renamed(name)]

    def _renamed(self, name: str) -> str:
        for pattern, replacement in self.renames:
            name = re.sub(pattern, replacement, name)
        return name


class MissingTensorError(CheckpointError):
    """A checkpoint lacks a tensor that its config.json requires.

    Attributes:
        tensor: Name of the tensor.
    """

    def __init__(self, message: str = "", *, argument: str | None = None, tensor: str = "") -> None:
        super().__init__(message, argument=argument)
        self.tensor = tensor


class Weights:
    """The float tensors of a checkpoint by name.

    Files are mapped into memory. float32 tensors are views of the files; others are converted when
    they are read. Of other types, integers can be asked for.

    Attributes:
        path: The file or the index, for messages.
    """

    def __init__(self, folder: Path, names: Collection[str] = WEIGHTS) -> None:
        """Read the headers of a folder's files; see `tensor_files.files_of`.

        Raises:
            CheckpointError: There is no such file, it is damaged, or there are two values for one
            tensor.
        """
        self.path, self.files = files_of(folder, names)
        # Tensors that were read.
        self._used: dict[str, Later] = {}
        found = list(itertools.chain(*map(read_tensors, self.files)))
        tensors = (
            (name, _current_name(name), (kind, array))
            for name, kind, array in found
            if array is not None and kind not in INTEGERS
        )
        # The tensors that are no floats.
        self._others = {
            name: (kind, array) for name, kind, array in found if array is None or kind in INTEGERS
        }
        self._stored = _by_name(tensors, self.path)

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, Floats], path: Path) -> Self:
        """Return arrays in memory as `Weights`.

        `path` is where they come from, for messages.
        """
        weights = cls.__new__(cls)
        weights.path, weights.files, weights._used, weights._others = path, [], {}, {}
        weights._stored = {name: ("F32", array) for name, array in arrays.items()}
        return weights

    def __contains__(self, name: str) -> bool:
        return name in self._stored

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    @property
    def unused(self) -> list[str]:
        """Names of the tensors that were not read, sorted."""
        return sorted(self._stored.keys() - self._used.keys())

    def renamed(self, names: Mapping[str, str]) -> Weights:
        """Return some of the tensors under other names: `names` has the old by the new ones."""
        found = copy.copy(self)
        found._stored = {new: self._find(old) for new, old in names.items()}
        found._used = {}
        return found

    def replaced(self, arrays: Mapping[str, Floats]) -> Weights:
        """Return the same tensors with other values for some of them."""
        found = copy.copy(self)
        found._stored = self._stored | {name: ("F32", each) for name, each in arrays.items()}
        found._used = {}
        return found

    def converted(self, conversion: Conversion) -> Weights:
        """Return the same tensors under the names of another layout."""
        found = copy.copy(self)
        found._used = {}
        found._stored = _by_name(self._converted(conversion), self.path)
        return found

    def _converted(self, conversion: Conversion) -> Iterator[tuple[str, str, _Tensor]]:
        for name, (kind, array) in self._stored.items():
            targets = conversion.targets(name)
            parts = [array] if len(targets) == 1 else self._divided(name, array, len(targets))
            for target, part in zip(targets, parts, strict=True):
                yield name, target, (kind, part)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor."""
        return self._find(name)[1].shape

    def read(self, name: str) -> Floats:
        """Return a tensor in float32.

        Raises:
            CheckpointError: There is no such tensor, or one of its values is not finite or larger
                than any that a model computes with.
        """
        return np.asarray(self.later(name), np.float32)

    def later(self, name: str) -> Later:
        """Return a tensor that is converted to float32 when it is read; see `read`.

        It is the same object each time.
        """
        kind, array = self._find(name)
        if name not in self._used:
            check_largest(_largest(kind, array), name, str(self.path))
            self._used[name] = Later(array.shape, lambda rows: _in_float(kind, array[rows]))
        return self._used[name]

    def read_integers(self, name: str) -> NDArray[Any] | None:
        """Return a tensor of integers; `None` if it has floats, or there is none of this name.

        Raises:
            CheckpointError: It has another type.
        """
        kind, found = self._others.get(name, ("", None))
        if kind and found is None:
            raise CheckpointError(
                f"{str(self.path)!r} has `{name}` in {kind}, and integers are read. Save a copy "
                "with the library that made it."
            )
        return found

    def read_row(self, name: str, index: int) -> Floats:
        """Return a row of a tensor in float32, which counts as read; see `read`."""
        return self.later(name)[index : index + 1].reshape(-1)

    def _divided(self, name: str, array: NDArray[Any], parts: int) -> list[NDArray[Any]]:
        """Return equal parts of an array along its first axis."""
        if array.ndim == 0 or len(array) % parts:
            raise CheckpointError(
                f"Tensor `{name}` of {str(self.path)!r} has shape {array.shape}, and has to have a "
                f"multiple of {parts} rows. Download or copy the checkpoint again."
            )
        return list(array.reshape(parts, len(array) // parts, *array.shape[1:]))

    def _find(self, name: str) -> _Tensor:
        found = self._stored.get(name)
        if found is None:
            end = name.rpartition(".")[2]
            other = next((each for each in self._others if each.rpartition(".")[2] == end), None)
            if other is not None:
                kind = self._others[other][0]
                raise CheckpointError(
                    f"{str(self.path)!r} has `{other}` in {kind}, and only float32, "
                    "float16, bfloat16 and float64 are read. Save a copy in one of these with the "
                    "library that made it."
                )
            raise MissingTensorError(
                f"{str(self.path)!r} has no tensor `{name}`, which its config.json asks for. "
                "Download or copy the checkpoint again, or correct config.json.",
                tensor=name,
            )
        return found


def _in_float(kind: str, array: NDArray[Any]) -> Floats:
    """Return a stored array in float32."""
    if kind != "BF16":
        return array.astype(np.float32, copy=False)
    wide = array.astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32)


def _largest(kind: str, array: NDArray[Any]) -> float:
    """Return the largest absolute value of a stored array, which may be 0 if all are small."""
    if array.size and array.itemsize == 2:
        # The bits of magnitudes have their order, and the first bit is the sign.
        most, least = (int(array.view(bits).max()) for bits in (np.int16, np.uint16))
        bits = np.array([max(most, least & 0x7FFF)], np.uint16)
        return float(_in_float(kind, bits.view(array.dtype))[0])
    # The sum of squares is finite only if each value is, and needs no array of flags.
    flat = _in_float(kind, array).reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        is_small = math.isfinite(float(flat @ flat))
    return 0.0 if is_small else float(np.abs(flat).max())


def check_largest(largest: float, name: str, path: str) -> None:
    """Refuse the tensor `name` of `path` by its largest absolute value."""
    if not largest <= LARGEST_FLOAT:
        wrong = f"as large as {largest:g}" if math.isfinite(largest) else "not finite"
        raise CheckpointError(
            f"Tensor `{name}` of {path!r} has values that are {wrong}. Download or copy the "
            "checkpoint again."
        )


def _by_name(tensors: Iterable[tuple[str, str, _Tensor]], path: Path) -> dict[str, _Tensor]:
    """Return tensors by today's names, given their own names too."""
    found: dict[str, _Tensor] = {}
    own: dict[str, str] = {}
    for name, current, tensor in tensors:
        known = found.setdefault(current, tensor)
        first = own.setdefault(current, name)
        if known is not tensor and not (
            known[0] == tensor[0] and np.array_equal(known[1], tensor[1])
        ):
            both = f"`{first}` and `{name}`" if first != name else f"`{name}` in two files"
            raise CheckpointError(
                f"{str(path)!r} has two values for one tensor, {both}. Which of them the model was "
                "trained with is not known. Remove one in a copy, or download it again."
            )
    return found


def _current_name(name: str) -> str:
    for old, new in _OLD_NAMES.items():
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name
