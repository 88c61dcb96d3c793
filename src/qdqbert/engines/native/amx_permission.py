"""Ask Linux for AMX, which a process has to do once before it uses tiles."""

from __future__ import annotations

import ctypes
import functools
import platform

_ARCH_PRCTL = 158
_REQUEST_PERMISSION = 0x1023
_TILE_DATA = 18


@functools.cache
def allowed() -> bool:
    """Ask for AMX, and return whether this process may use it."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    library = ctypes.CDLL(None)
    return int(library.syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA)) == 0
