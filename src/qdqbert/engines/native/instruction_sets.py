"""The instruction sets that kernels are generated for: facts about registers and instructions."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Collection
from typing import Literal

from qdqbert.engines.native import amx
from qdqbert.errors import UserInputError
from qdqbert.machine import cpu_features

DotName = Literal["widen", "pmaddubsw", "pmaddwd", "vpdpbusd", "usdot"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class InstructionSet:
    """Instructions of a CPU that kernels use.

    Attributes:
        name: Name for users.
        architecture: `x86_64` or `aarch64`; empty for code that runs on any CPU.
        cpu: LLVM's name of the oldest CPU that has it.
        features: LLVM's names of further features, such as `+avxvnni`.
        needs: The features of `qdqbert.machine.cpu_features` that a CPU needs.
        lanes: Number of float32 in a vector register.
        dot: How four u8 x s8 products are added to an int32.
        rows: Rows of a tile whose sums stay in registers, from the largest to 1. A number of rows
            below the largest is made of the others, each used once at most.
        vectors: Vectors in a row of such a tile, in the same way.
        prefetches: Whether tiles of linear layers bring later weights into the second-level cache.
        amx: Whether linear layers and attention use AMX's tiles of 16 x 16 sums instead.
    """

    name: str
    architecture: str
    cpu: str
    features: str = ""
    needs: tuple[str, ...] = ()
    lanes: int
    dot: DotName
    rows: tuple[int, ...]
    vectors: tuple[int, ...]
    prefetches: bool = False
    amx: bool = False

    @property
    def is_exact(self) -> bool:
        """Whether sums are exact for any weights, not only below the adjacent sum limit."""
        return self.dot != "pmaddubsw"

    def exact(self) -> InstructionSet:
        """Return this instruction set with sums that are exact for any weights."""
        return self if self.is_exact else dataclasses.replace(self, dot="pmaddwd")


# Registers: sums + weights of one step + one vector of codes (+ the constant 1 and a temporary).
PORTABLE = InstructionSet(
    name="portable", architecture="", cpu="", lanes=4, dot="widen", rows=(2, 1), vectors=(4,)
)
# 4 x 2 sums + 2 + 1 + 2 of 16 registers.
AVX2 = InstructionSet(
    name="avx2",
    architecture="x86_64",
    cpu="x86-64-v3",
    needs=("avx2",),
    lanes=8,
    dot="pmaddubsw",
    rows=(4, 2, 1),
    vectors=(2,),
    prefetches=True,
)
# 6 x 2 sums + 2 + 1 of 16 registers.
AVX_VNNI = InstructionSet(
    name="avx-vnni",
    architecture="x86_64",
    cpu="x86-64-v3",
    features="+avxvnni",
    needs=("avx2", "avx_vnni"),
    lanes=8,
    dot="vpdpbusd",
    rows=(6, 4, 2, 1),
    vectors=(2,),
    prefetches=True,
)
# 8 x 3 sums + 3 + 1 of 32 registers. Rows and columns are often multiples of 8 and of 48.
AVX512_VNNI = InstructionSet(
    name="avx512-vnni",
    architecture="x86_64",
    cpu="x86-64-v4",
    features="+avx512vnni",
    needs=("avx512f", "avx512_vnni"),
    lanes=16,
    dot="vpdpbusd",
    rows=(8, 4, 2, 1),
    vectors=(3, 2, 1),
    prefetches=True,
)
AMX = dataclasses.replace(
    AVX512_VNNI,
    name="amx",
    features="+avx512vnni,+amx-tile,+amx-int8,+amx-bf16",
    needs=("avx512f", "avx512_vnni", "amx_int8", "amx_bf16"),
    amx=True,
)
# 4 x 4 sums + 4 + 1 of 32 registers; `usdot` belongs to i8mm.
NEON_I8MM = InstructionSet(
    name="neon-i8mm",
    architecture="aarch64",
    cpu="generic",
    features="+neon,+dotprod,+i8mm",
    needs=("i8mm",),
    lanes=4,
    dot="usdot",
    rows=(4, 2, 1),
    vectors=(4,),
)
INSTRUCTION_SETS = {
    each.name: each for each in (AMX, AVX512_VNNI, AVX_VNNI, AVX2, NEON_I8MM, PORTABLE)
}
"""All instruction sets by name, the fastest of each architecture first."""


def usable_sets(
    architecture: str | None = None, features: Collection[str] | None = None
) -> list[InstructionSet]:
    """Return the instruction sets that a CPU has, the fastest first.

    Args:
        architecture: The CPU's architecture; this machine's by default.
        features: Its features; this CPU's by default.
    """
    architecture = (architecture or platform.machine()).lower()
    architecture = {"amd64": "x86_64", "arm64": "aarch64"}.get(architecture, architecture)
    found = set(cpu_features() if features is None else features)
    if features is None and not amx.allowed():
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
