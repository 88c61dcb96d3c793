"""Arrays between pages that cannot be read or written: a kernel that leaves its arrays crashes."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import hashlib
import json
import math
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

_PROT_NONE = 0


def extent(array: np.ndarray) -> int:
    """Return the bytes from the first element of an array to the end of its last one."""
    if not array.size:
        return 0
    steps = ((n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True))
    return sum(steps) + array.itemsize


class Guard:
    """Allocates arrays that end where the next page starts, or start where a page ends."""

    def __init__(self, *, at_start: bool) -> None:
        self._at_start = at_start
        self._mprotect = ctypes.CDLL(None, use_errno=True).mprotect

    def memory(self, size: int) -> np.ndarray:
        """Return bytes, with a page before and after them that cannot be used."""
        page = mmap.PAGESIZE
        inner = max(1, -(-size // page)) * page
        raw = np.frombuffer(mmap.mmap(-1, inner + 2 * page), np.uint8)
        for place in (0, page + inner):
            address = ctypes.c_void_p(raw.ctypes.data + place)
            if self._mprotect(address, ctypes.c_size_t(page), _PROT_NONE):
                raise OSError(ctypes.get_errno(), "mprotect")
        start = page if self._at_start else page + inner - size
        return raw[start : start + size]

    def zeros(self, shape: Any, dtype: Any) -> Any:
        """Allocate as `qdqbert.engines.native.memory.zeros` does."""
        return self._array((shape,) if isinstance(shape, int) else shape, np.dtype(dtype))

    def zeros_apart(self, shape: Any, dtype: Any) -> Any:
        """Allocate each matrix of queries, keys and values, which the engine has as one array."""
        if isinstance(shape, tuple) and len(shape) == 3 and shape[0] == 3:
            return [self.zeros(shape[1:], dtype) for _ in range(3)]
        return self.zeros(shape, dtype)

    def copy(self, array: np.ndarray) -> np.ndarray:
        found = self._array(array.shape, array.dtype)
        found[...] = array
        return found

    def _array(self, shape: tuple[int, ...], kind: np.dtype) -> np.ndarray:
        return self.memory(math.prod(shape) * kind.itemsize).view(kind).reshape(shape)


class Mirror:
    """Copies of arrays between pages, which kernels use instead."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._pairs: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = {}

    def address(self, array: np.ndarray) -> int:
        """Return the address of an array's copy."""
        key = (array.ctypes.data, extent(array))
        if key not in self._pairs:
            self._pairs[key] = (array, self._guard.memory(key[1]))
        return int(self._pairs[key][1].ctypes.data)

    def push(self) -> None:
        """Copy all arrays to their copies."""
        for (address, size), (_, copy) in self._pairs.items():
            ctypes.memmove(copy.ctypes.data, address, size)

    def pull(self) -> None:
        """Copy them back."""
        for (address, size), (array, copy) in self._pairs.items():
            if array.flags.writeable:
                ctypes.memmove(address, copy.ctypes.data, size)

    def clear(self) -> None:
        self._pairs.clear()


@contextlib.contextmanager
def guarded(guard: Guard) -> Iterator[None]:
    """Allocate all buffers of models between pages, and divide the shortest texts among threads."""
    from qdqbert.engines.native import convolution, heads, program, runner, schedule, words

    texts = runner.Texts

    def guarded_texts(*, prefix: Any, **arrays: Any) -> Any:
        if prefix is not None:
            prefix = dataclasses.replace(prefix, states=guard.copy(prefix.states))
        return texts(prefix=prefix, **{name: guard.copy(each) for name, each in arrays.items()})

    with (
        mock.patch.object(program, "zeros", guard.zeros_apart),
        mock.patch.object(heads, "zeros", guard.zeros),
        mock.patch.object(convolution, "zeros", guard.zeros),
        mock.patch.object(words, "zeros", guard.zeros),
        mock.patch.object(program, "aligned", guard.copy),
        mock.patch.object(schedule, "PRODUCTS_ALONE", 0),
        mock.patch.object(schedule, "PRODUCTS_OF_A_SLICE", 0),
        mock.patch.object(runner, "Texts", guarded_texts),
    ):
        yield


def forward(path: Path, kernel: str, batches: Path, *, at_start: bool) -> None:
    """Print a digest of the outputs for each batch. All buffers are guarded."""
    from qdqbert.engines.native.runner import NativeRunner

    with guarded(Guard(at_start=at_start)):
        for threads in (1, 2):
            opened = NativeRunner(path, threads=threads, kernel=kernel)
            for number, batch in enumerate(json.loads(batches.read_text())):
                # What runs when the process crashes.
                sys.stderr.write(f"threads={threads} batch={number}\n")
                sys.stderr.flush()
                outputs = opened.run({name: np.array(each) for name, each in batch.items()})
                sys.stdout.write(f"{digest(outputs)}\n")


def run_apart(*arguments: str, python: Sequence[str] = (sys.executable,), **variables: str) -> str:
    """Return what another Python process prints; a crash fails the test with its traceback."""
    command = [*python, "-X", "faulthandler", *arguments]
    environment = os.environ | variables
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 0, (
        f"A kernel left its arrays, or failed: exit status {result.returncode}\n"
        f"{result.stdout[-3000:]}\n{result.stderr[-3000:]}"
    )
    return result.stdout


def digest(outputs: dict[str, np.ndarray]) -> str:
    return hashlib.sha256(b"".join(each.tobytes() for each in outputs.values())).hexdigest()


if __name__ == "__main__":
    forward(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), at_start=sys.argv[4] == "start")
