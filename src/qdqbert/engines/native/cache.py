"""Compiled kernels on disk, so that they are compiled once for each CPU and version."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import llvmlite

from qdqbert.common.cache import cache_folder
from qdqbert.common.files import write_bytes
from qdqbert.engines.native.compiler import Compiled, compile_module, process_triple
from qdqbert.engines.native.instruction_set import InstructionSet
from qdqbert.engines.native.ir import Module

_DIGEST = hashlib.sha256().digest_size


def kernels_folder() -> Path:
    """Return the folder of compiled kernels."""
    return cache_folder() / "kernels"


@functools.cache
def own_code() -> str:
    """Return the SHA-256 of the code of this engine, on which all kernels depend."""
    digest = hashlib.sha256()
    folder = Path(__file__).parent
    # An installation can have compiled modules only.
    for path in sorted(folder.rglob("*.py*")):
        if path.parent.name != "__pycache__":
            digest.update(f"{path.relative_to(folder)}\n".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def compiled(
    name: str, write: Callable[[], Module], isa: InstructionSet, folder: Path | None = None
) -> Compiled:
    """Return a module as machine code, from the cache if it is there.

    A file of the cache starts with the SHA-256 of its content. It is used only if that is right,
    and if nobody but this user could have written it. A cache that cannot be written is not used.

    Args:
        name: All that the module depends on, apart from the instruction set.
        write: Returns the module. It is called only if the cache does not have it, because writing
            all kernels takes longer than the rest of loading a model.
        isa: The instruction set.
        folder: The cache; `kernels_folder()` by default.
    """
    folder = kernels_folder() if folder is None else folder
    # Machines with different processors may share a home folder.
    key = f"{llvmlite.__version__}\n{process_triple()}\n{isa}\n{name}"
    path = folder / f"{isa.name}-{hashlib.sha256(key.encode()).hexdigest()[:32]}.o"
    found = _read(path)
    if found is None:
        found = compile_module(write(), isa)
        content = json.dumps(found.arguments).encode() + b"\n" + found.code
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_bytes(path, hashlib.sha256(content).digest() + content)
            # The umask may let a group write files.
            path.chmod(0o600)
        except OSError:
            return found
    return found


def _read(path: Path) -> Compiled | None:
    try:
        if not _is_private(path.parent) or not _is_private(path):
            return None
        content = path.read_bytes()
    except OSError:
        return None
    digest, content = content[:_DIGEST], content[_DIGEST:]
    if hashlib.sha256(content).digest() != digest:
        return None
    arguments, _, code = content.partition(b"\n")
    return Compiled(code=code, arguments=json.loads(arguments))


def _is_private(path: Path) -> bool:
    """Return whether only this user can write a file or folder."""
    if not hasattr(os, "getuid"):
        return True
    found = path.stat()
    return found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
