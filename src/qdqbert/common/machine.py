"""This machine: cores that the process may use, CPU features, and free memory.

Imports nothing but the standard library, and llvmlite where the system does not list the features.
"""

from __future__ import annotations

import ctypes
import importlib.util
import itertools
import math
import os
import platform
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

# Features that decide how fast INT8 and reduced precision are, under Linux' names.
_FEATURES = (
    "avx2",
    "avx512f",
    "avx_vnni",
    "avx512_vnni",
    "amx_int8",
    "amx_bf16",
    "avx512_bf16",
    "asimddp",
    "i8mm",
    "bf16",
)
_INT8_PRODUCTS = frozenset({"avx_vnni", "avx512_vnni", "amx_int8", "asimddp", "i8mm"})
# LLVM's names, where they differ.
_LLVM_NAMES: Mapping[str, str] = {
    "avx_vnni": "avxvnni",
    "avx512_vnni": "avx512vnni",
    "amx_int8": "amx-int8",
    "amx_bf16": "amx-bf16",
    "avx512_bf16": "avx512bf16",
    "asimddp": "dotprod",
}
# macOS' names of ARM's features.
_APPLE_NAMES: Mapping[str, str] = {
    "asimddp": "hw.optional.arm.FEAT_DotProd",
    "i8mm": "hw.optional.arm.FEAT_I8MM",
    "bf16": "hw.optional.arm.FEAT_BF16",
}
_ROOT = Path("/")


def usable_cores(root: Path = _ROOT) -> int:
    """Return the number of physical cores that this process may use.

    The smaller of the cores in the process's affinity mask, where two hardware threads of one core
    count once, and of the CPU time that its cgroup (version 1 or 2) allows, rounded up.

    Args:
        root: Root of the file system, for tests.
    """
    allowed = _affinity()
    cores = len({_siblings(root, cpu) for cpu in allowed})
    limit = _cgroup_limit(root)
    return cores if limit is None else max(1, min(cores, math.ceil(limit)))


def parts_of_cpus(count: int, root: Path = _ROOT) -> list[tuple[int, ...]]:
    """Divide the CPUs that this process may use into parts of whole, neighbouring cores.

    A part is on one NUMA node where the number of parts allows it.

    Args:
        count: Number of parts. With more parts than cores, parts share cores.
        root: Root of the file system, for tests.
    """
    cores: dict[object, list[int]] = {}
    for cpu in sorted(_affinity()):
        cores.setdefault(_siblings(root, cpu), []).append(cpu)
    ordered = sorted(cores.values(), key=lambda cpus: (_node_of(root, cpus[0]), cpus))
    if count > len(ordered):
        return [tuple(ordered[index % len(ordered)]) for index in range(count)]
    ends = [len(ordered) * index // count for index in range(count + 1)]
    return [
        tuple(cpu for core in ordered[start:end] for cpu in core)
        for start, end in itertools.pairwise(ends)
    ]


def _node_of(root: Path, cpu: int) -> int:
    """Return the number of the NUMA node of a CPU; 0 where the system does not say."""
    folders = (root / f"sys/devices/system/cpu/cpu{cpu}").glob("node[0-9]*")
    return min((int(folder.name.removeprefix("node")) for folder in folders), default=0)


def cpu_features(root: Path = _ROOT) -> tuple[str, ...]:
    """Return the CPU features that matter for INT8, under Linux' names; empty where unknown.

    macOS and Windows have no `/proc/cpuinfo`, and some containers hide it. LLVM, which the native
    engine needs anyway, asks the CPU. It does not know Apple's CPUs: macOS lists their features.

    Args:
        root: Root of the file system, for tests.
    """
    for line in _lines(root / "proc/cpuinfo"):
        name, _, value = line.partition(":")
        # x86 lists "flags", ARM lists "Features".
        if name.strip() in ("flags", "Features"):
            found = set(value.split())
            return tuple(each for each in _FEATURES if each in found)
    of_llvm, of_apple = _llvm_features(), _apple_features()
    return tuple(
        each for each in _FEATURES if _LLVM_NAMES.get(each, each) in of_llvm or each in of_apple
    )


def has_int8_products(features: Collection[str]) -> bool:
    """Return whether a CPU with these features multiplies int8 values in one instruction."""
    return not _INT8_PRODUCTS.isdisjoint(features)


def cpu_name(root: Path = _ROOT) -> str:
    """Return the name of the CPU model, or of the architecture if the system has no name."""
    for line in _lines(root / "proc/cpuinfo"):
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


# Bytes of a tensor after which free memory is worth returning.
_LARGE = 2**20


def release_memory() -> None:
    """Return memory that is free to the operating system, where the C library can.

    glibc keeps memory that threads have freed, and gives each thread new memory. Large tensors of
    many threads would add up.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def release_memory_after(size_bytes: int) -> None:
    """Return memory to the operating system after a large tensor of some bytes was rounded.

    Rounding leaves a few times as much free memory as the tensor has.
    """
    if size_bytes >= _LARGE:
        release_memory()


def _llvm_features() -> set[str]:
    """Return the CPU features that LLVM finds, under its names; none without llvmlite."""
    if importlib.util.find_spec("llvmlite") is None:
        return set()
    from llvmlite import binding

    try:
        return {name for name, is_there in binding.get_host_cpu_features().items() if is_there}
    except RuntimeError:
        # LLVM does not know the system.
        return set()


def _apple_features() -> set[str]:
    """Return the features of an Apple CPU that macOS lists; none on other systems."""
    if sys.platform != "darwin":
        return set()
    return {each for each, name in _APPLE_NAMES.items() if _apple_number(name)}


def _apple_number(name: str) -> int:
    """Return a number that macOS has under a name; 0 if it has none."""
    value = ctypes.c_uint64(0)
    size = ctypes.c_size_t(ctypes.sizeof(value))
    ask: Any = ctypes.CDLL(None).sysctlbyname
    failed = ask(name.encode(), ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0))
    return 0 if failed else value.value


def _affinity() -> Collection[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return range(os.cpu_count() or 1)


def _siblings(root: Path, cpu: int) -> str:
    """Return the hardware threads of the core of a CPU, as Linux lists them: `0,4`."""
    path = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
    return next(iter(_lines(path)), str(cpu))


def _cgroup_limit(root: Path) -> float | None:
    """Return the CPU time that the cgroup and its parents allow, in cores; `None` for no limit."""
    limits = []
    for line in _lines(root / "proc/self/cgroup"):
        number, controllers, group = [*line.split(":", 2), "", ""][:3]
        is_unified = number == "0" and not controllers
        if not is_unified and "cpu" not in controllers.split(","):
            continue
        # In a container the group can have its path on the host, which is not visible inside.
        limits += [
            limit
            for top in _tops(root / "sys/fs/cgroup", is_unified=is_unified)
            for folder in (top, *(top / part for part in _prefixes(group)))
            if (limit := _limit_of(folder)) is not None
        ]
    return min(limits, default=None)


def _tops(mounted: Path, *, is_unified: bool) -> list[Path]:
    """Return the folders of the controller of CPU time.

    Those of version 1 have the names of controllers that are mounted together, in any order.
    """
    if is_unified:
        return [mounted]
    try:
        return [each for each in mounted.iterdir() if "cpu" in each.name.split(",")]
    except OSError:
        return []


def _prefixes(group: str) -> list[str]:
    parts = [part for part in group.split("/") if part]
    return ["/".join(parts[: count + 1]) for count in range(len(parts))]


def _limit_of(folder: Path) -> float | None:
    for quota, period in (
        # Version 2 has both numbers in one file; "max" is no limit.
        tuple([*_first(folder / "cpu.max").split(), "", ""][:2]),
        (_first(folder / "cpu.cfs_quota_us"), _first(folder / "cpu.cfs_period_us")),
    ):
        if quota.isdecimal() and period.isdecimal() and int(period):
            return int(quota) / int(period)
    return None


def _first(path: Path) -> str:
    return next(iter(_lines(path)), "")


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
