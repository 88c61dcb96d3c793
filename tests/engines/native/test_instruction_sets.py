"""Which instruction sets a CPU has, and what LLVM makes of the kernels of each."""

from __future__ import annotations

import functools
import re

import pytest

from qdqbert.engines.native.compiler import assembly
from qdqbert.engines.native.features import Features
from qdqbert.engines.native.instruction_sets import (
    INSTRUCTION_SETS,
    choose_set,
    usable_sets,
)
from qdqbert.engines.native.kernels.forward import build_module
from qdqbert.errors import UserInputError

# Instructions that the kernels of an instruction set have, and those that its CPUs may lack.
EXPECTED = {
    "amx": (r"tdpbusd[\s\S]*tdpbf16ps", None),
    "avx512-vnni": (r"vpdpbusd\s.*%zmm[\s\S]*vpdpwssd\s.*%zmm", r"tdpbusd|tileloadd"),
    "avx-vnni": (
        r"\{vex\}\s+vpdpbusd[\s\S]*\{vex\}\s+vpdpwssd",
        r"%zmm|%[xy]mm(1[6-9]|2\d|3[01])|^\s+vpdp[bw][us]sd|%k\d",
    ),
    "avx2": ("vpmaddubsw", r"%zmm|%[xy]mm(1[6-9]|2\d|3[01])|vpdpbusd|%k\d"),
    "neon-i8mm": (r"usdot\s+v", None),
    "portable": ("", r"%[yz]mm|\bv[a-z]+ps\b"),
}


@functools.cache
def assembly_of(name: str) -> str:
    isa = INSTRUCTION_SETS[name]
    return assembly(build_module(isa, Features(activation="gelu")), isa)


@pytest.mark.parametrize("name", INSTRUCTION_SETS)
def test_llvm_verifies_and_assembles_the_kernels_of_each(name) -> None:
    expected, foreign = EXPECTED[name]
    text = assembly_of(name)
    assert re.search(expected, text)
    assert foreign is None or not re.findall(foreign, text, re.MULTILINE)


@pytest.mark.parametrize("name", ["avx2", "avx-vnni", "avx512-vnni"])
def test_tiles_keep_sums_in_registers_and_prefetch_once_a_step(name) -> None:
    text = assembly_of(name)
    names = re.findall(r"^(dot_\w+):", text, re.MULTILINE)
    assert len(names) == len(INSTRUCTION_SETS[name].rows) * len(INSTRUCTION_SETS[name].vectors)
    for each in names:
        body = text[text.index(f"\n{each}:") :]
        body = body[: body.index(".size")]
        assert not re.findall(r"vmov.*mm\d+, .*\(%rsp\)", body), each
        assert len(re.findall(r"prefetcht1", body)) == 1, each


@pytest.mark.parametrize(
    ("architecture", "features", "expected"),
    [
        ("x86_64", {"avx2"}, ["avx2", "portable"]),
        ("AMD64", {"avx2", "avx_vnni"}, ["avx-vnni", "avx2", "portable"]),
        ("x86_64", {"avx2", "avx512f"}, ["avx2", "portable"]),
        (
            "x86_64",
            {"avx2", "avx512f", "avx512_vnni", "amx_int8", "amx_bf16"},
            ["amx", "avx512-vnni", "avx2", "portable"],
        ),
        ("aarch64", {"asimddp", "i8mm"}, ["neon-i8mm", "portable"]),
        ("arm64", {"asimddp"}, ["portable"]),
        ("riscv64", set(), ["portable"]),
    ],
)
def test_a_cpu_has_the_sets_whose_features_it_has(architecture, features, expected) -> None:
    assert [each.name for each in usable_sets(architecture, features)] == expected


def test_a_name_chooses_a_set_of_this_cpu() -> None:
    assert choose_set() == usable_sets()[0]
    assert choose_set("portable") == INSTRUCTION_SETS["portable"]
    with pytest.raises(
        UserInputError, match=r"'avx9' is unknown\. This CPU has: .*portable"
    ) as raised:
        choose_set("avx9")
    assert raised.value.argument == "kernel"
    lacking = INSTRUCTION_SETS.keys() - {each.name for each in usable_sets()}
    for name in lacking:
        with pytest.raises(UserInputError, match=f"does not have the kernel '{name}'"):
            choose_set(name)
