"""The instruction sets that kernels are generated for, and those that a CPU has."""

from __future__ import annotations

import platform
from collections.abc import Collection

from qdqbert.common.errors import UserInputError
from qdqbert.common.machine import cpu_features
from qdqbert.engines.native import amx_permission
from qdqbert.engines.native.instruction_set import InstructionSet
from qdqbert.engines.native.instruction_sets.amx import AMX
from qdqbert.engines.native.instruction_sets.avx2 import AVX2
from qdqbert.engines.native.instruction_sets.avx512_vnni import AVX512_VNNI
from qdqbert.engines.native.instruction_sets.avx_vnni import AVX_VNNI
from qdqbert.engines.native.instruction_sets.neon_dotprod import NEON_DOTPROD
from qdqbert.engines.native.instruction_sets.neon_i8mm import NEON_I8MM
from qdqbert.engines.native.instruction_sets.portable import PORTABLE

INSTRUCTION_SETS = {
    each.name: each
    for each in (AMX, AVX512_VNNI, AVX_VNNI, AVX2, NEON_I8MM, NEON_DOTPROD, PORTABLE)
}
"""All instruction sets by name, the fastest of each architecture first."""


def usable_sets(
    architecture: str | None = None, features: Collection[str] | None = None
) -> list[InstructionSet]:
    """Return the instruction sets that a CPU, this one by default, has, the fastest first."""
    architecture = (architecture or platform.machine()).lower()
    architecture = {"amd64": "x86_64", "arm64": "aarch64"}.get(architecture, architecture)
    found = set(cpu_features() if features is None else features)
    if features is None and not amx_permission.allowed():
        found.discard("amx_int8")
    return [
        each
        for each in INSTRUCTION_SETS.values()
        if each.architecture in ("", architecture) and found.issuperset(each.needs)
    ]


def choose_set(name: str | None = None) -> InstructionSet:
    """Return the fastest instruction set of this CPU, or the given one.

    Raises:
        UserInputError: The name is unknown, or this CPU does not have it.
    """
    usable = usable_sets()
    if name is None:
        return usable[0]
    for each in usable:
        if each.name == name:
            return each
    names = ", ".join(each.name for each in usable)
    if name in INSTRUCTION_SETS:
        raise UserInputError(
            f"This CPU does not have the kernel {name!r}. It has: {names}.", argument="kernel"
        )
    raise UserInputError(f"Kernel {name!r} is unknown. This CPU has: {names}.", argument="kernel")
