"""Compiled kernels on disk, so that they are compiled once for each CPU and version."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

import llvmlite

from qdqbert.cache import cache_folder
from qdqbert.engines.native.compiler import compile_object, process_triple
from qdqbert.engines.native.instruction_sets import InstructionSet
from qdqbert.engines.native.ir import Module
from qdqbert.files import write_bytes

_DIGEST = hashlib.sha256().digest_size


def kernels_folder() -> Path:
    """Return the folder of compiled kernels."""
    return cache_folder() / "kernels"


def compiled(module: Module, isa: InstructionSet, folder: Path | None = None) -> bytes:
    """Return a module as an object file, from the cache if it is there.

    A file of the cache starts with the SHA-256 of its content. It is used only if that is right,
    and if nobody but this user could have written it. A cache that cannot be written is not used.

    Args:
        module: The kernels.
        isa: The instruction set.
        folder: The cache; `kernels_folder()` by default.
    """
    folder = kernels_folder() if folder is None else folder
    # A home folder may be that of machines with different processors.
    key = f"{llvmlite.__version__}\n{process_triple()}\n{isa}\n{module.text()}"
    path = folder / f"{isa.name}-{hashlib.sha256(key.encode()).hexdigest()[:32]}.o"
    found = _read(path)
    if found is None:
        found = compile_object(module, isa)
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_bytes(path, hashlib.sha256(found).digest() + found)
            # The umask may let a group write files.
            path.chmod(0o600)
        except OSError:
            return found
    return found


def _read(path: Path) -> bytes | None:
    try:
        if not _is_private(path.parent) or not _is_private(path):
            return None
        content = path.read_bytes()
    except OSError:
        return None
    digest, code = content[:_DIGEST], content[_DIGEST:]
    return code if hashlib.sha256(code).digest() == digest else None


def _is_private(path: Path) -> bool:
    """Return whether only this user can write a file or folder."""
    if not hasattr(os, "getuid"):
        return True
    found = path.stat()
    return found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
