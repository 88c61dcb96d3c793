"""Which instruction sets a CPU has, and what LLVM makes of the kernels of each."""

from __future__ import annotations

import functools
import re

import pytest

from qdqbert.common.errors import UserInputError
from qdqbert.engines.native.compiler import assembly
from qdqbert.engines.native.features import Features
from qdqbert.engines.native.instruction_sets import (
    INSTRUCTION_SETS,
    choose_set,
    usable_sets,
)
from qdqbert.engines.native.instruction_sets.floats import in_float
from qdqbert.engines.native.kernels.forward import build_module

# Instructions that the kernels of an instruction set have, and those that its CPUs may lack.
EXPECTED = {
    "amx": (r"tdpbusd[\s\S]*tdpbuud", None),
    "avx512-vnni": (r"vpdpbusd\s.*%zmm[\s\S]*vpdpwssd\s.*%zmm", r"tdpbusd|tileloadd"),
    "avx-vnni": (
        r"\{vex\}\s+vpdpbusd[\s\S]*\{vex\}\s+vpdpwssd",
        r"%zmm|%[xy]mm(1[6-9]|2\d|3[01])|^\s+vpdp[bw][us]sd|%k\d",
    ),
    "avx2": ("vpmaddubsw", r"%zmm|%[xy]mm(1[6-9]|2\d|3[01])|vpdpbusd|%k\d"),
    # `sudot` multiplies by unsigned numbers of a lane.
    "neon-i8mm": (r"sudot\s+v.*\.4b\[3\]", r"sdot"),
    "neon-dotprod": (r"\tsdot\s+v.*\.4b\[3\]", r"sudot|usdot|mmla"),
    "portable": ("", r"%[yz]mm|\bv[a-z]+ps\b"),
}


@functools.cache
def assembly_of(name: str, *, floats: bool = False) -> str:
    isa = INSTRUCTION_SETS[name]
    isa = in_float(isa) if floats else isa
    return assembly(build_module(isa, Features(activation="gelu", floats=floats)), isa)


@pytest.mark.parametrize("name", INSTRUCTION_SETS)
@pytest.mark.usual("a*", "neon*")
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


def functions_of(name: str, *, floats: bool = False) -> dict[str, str]:
    """Return the assembly of each function."""
    text = assembly_of(name, floats=floats)
    return dict(re.findall(r"^(\w+):\n(.*?)^\t\.size", text, re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize(
    ("name", "product", "steps"),
    [
        ("amx", r"\tvfmadd231ps\s.*%zmm", 1),
        ("avx2", r"\tvfmadd231ps\s.*%ymm", 1),
        ("neon-dotprod", r"\tfmla\s+v\d+\.4s, v\d+\.4s, v\d+\.s\[", 4),
    ],
)
def test_tiles_in_float_fuse_products_and_keep_sums_in_registers(name, product, steps) -> None:
    isa, functions = in_float(INSTRUCTION_SETS[name]), functions_of(name, floats=True)
    for rows in isa.rows:
        for vectors in isa.vectors:
            body = functions[f"dot_{rows}x{vectors}"]
            assert len(re.findall(product, body)) == rows * vectors * steps
            assert not re.findall(r"vmov.*mm\d+, .*\(%rsp\)|q\d+.*\[sp|\tdup", body)


@pytest.mark.parametrize("name", ["neon-i8mm", "neon-dotprod"])
def test_tiles_of_arm_multiply_by_lanes_and_keep_sums_in_registers(name) -> None:
    functions = functions_of(name)
    rows = INSTRUCTION_SETS[name].rows
    assert sum(each.startswith("dot_") for each in functions) == len(rows)
    for height in rows:
        body = functions[f"dot_{height}x4"]
        # Four steps of four vectors for each row, and no copies of codes.
        assert len(re.findall(r"\ts[u]?dot\s.*\.4b\[", body)) == 16 * height
        assert not re.findall(r"q\d+.*\[sp|\tld1r|\tdup", body)
        is_signed = INSTRUCTION_SETS[name].dot.is_signed
        assert len(re.findall(r"\teor\s+v", body)) == is_signed * height


@pytest.mark.parametrize("name", ["neon-i8mm", "neon-dotprod"])
def test_arm_computes_floats_in_vectors(name) -> None:
    functions = functions_of(name)
    scalar = r"\tf(?:n?m?add|n?m?sub|n?mul|cvt\w+|max\w*|min\w*)\s+s\d"
    wide = r"\tf(?:mla|mls|add|sub|mul|div|cvt\w+|max\w*|min\w*)\s+v\d+\.4s"
    # They fold a vector, or compute a number of a row, which takes a few scalar instructions.
    folds = {"softmax": 0.2, "layer_norm": 0.5, "layer_norm_codes": 0.5}
    vectors = {each: len(re.findall(wide, body)) for each, body in functions.items()}
    for each, body in functions.items():
        if vectors[each]:
            assert len(re.findall(scalar, body)) <= folds.get(each, 0.05) * vectors[each], each
    assert all(
        vectors[each] for each in ("softmax", "layer_norm_codes", "quantize_rows", "context")
    )
    by_lane = r"\tfmla\s+v\d+\.4s, v\d+\.4s, v\d+\.s\["
    assert len(re.findall(by_lane, functions["product_4x4"])) == 16


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
        ("aarch64", {"asimddp", "i8mm"}, ["neon-i8mm", "neon-dotprod", "portable"]),
        ("arm64", {"asimddp"}, ["neon-dotprod", "portable"]),
        ("aarch64", set(), ["portable"]),
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
