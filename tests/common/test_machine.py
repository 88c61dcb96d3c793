"""Cores and CPU features, read from files of a made-up root."""

from __future__ import annotations

import ctypes
import importlib.util
import os

import pytest
from llvmlite import binding

from qdqbert.common.machine import (
    cpu_features,
    cpu_name,
    has_int8_products,
    parts_of_cpus,
    release_memory,
    usable_cores,
)

CPUINFO = """processor\t: 0
model name\t: Example CPU @ 2.00GHz
flags\t\t: fpu sse2 avx2 amx_int8 avx512f avx512_vnni
"""


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A machine with 8 hardware threads on 4 cores, without a cgroup."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    for cpu in range(8):
        write(
            tmp_path,
            f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list",
            f"{cpu % 4},{cpu % 4 + 4}",
        )
    write(tmp_path, "proc/cpuinfo", CPUINFO)
    return tmp_path


def write(root, name, text) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def test_two_threads_of_a_core_count_once(root) -> None:
    assert usable_cores(root) == 4


def test_affinity_limits_cores(root, monkeypatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 4, 1}, raising=False)
    assert usable_cores(root) == 2


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"sys/fs/cgroup/cpu.max": "max 100000"}, 4),
        ({"sys/fs/cgroup/cpu.max": "150000 100000"}, 2),
        ({"sys/fs/cgroup/pod/cpu.max": "50000 100000"}, 1),
        ({"sys/fs/cgroup/cpu.max": "300000 100000", "sys/fs/cgroup/pod/a/cpu.max": "max 1"}, 3),
    ],
)
def test_cgroups_of_version_2_limit_cores(root, files, cores) -> None:
    write(root, "proc/self/cgroup", "0::/pod/a")
    for name, text in files.items():
        write(root, name, text)
    assert usable_cores(root) == cores


@pytest.mark.parametrize("mounted", ["cpu,cpuacct", "cpuacct,cpu", "cpu"])
@pytest.mark.parametrize("listed", ["cpu,cpuacct", "cpuacct,cpu"])
def test_cgroups_of_version_1_limit_cores(root, listed, mounted) -> None:
    write(root, "proc/self/cgroup", f"3:memory:/x\n2:{listed}:/x")
    # Systems link the names of single controllers; another controller has no say.
    (root / "sys/fs/cgroup/cpuacct").mkdir(parents=True)
    folder = f"sys/fs/cgroup/{mounted}/x"
    write(root, f"{folder}/cpu.cfs_period_us", "100000")
    write(root, f"{folder}/cpu.cfs_quota_us", "-1")
    assert usable_cores(root) == 4
    write(root, f"{folder}/cpu.cfs_quota_us", "200000")
    assert usable_cores(root) == 2


def test_features_are_those_that_matter(root) -> None:
    assert cpu_features(root) == ("avx2", "avx512f", "avx512_vnni", "amx_int8")
    assert cpu_name(root) == "Example CPU @ 2.00GHz"


@pytest.mark.parametrize("cpuinfo", [None, "", "processor\t: 0\nmodel name\t: hidden"])
@pytest.mark.parametrize(
    ("of_llvm", "expected"),
    [
        (
            {"sse2": True, "avx2": True, "avx512f": True, "avx512vnni": True, "amx-int8": True},
            ("avx2", "avx512f", "avx512_vnni", "amx_int8"),
        ),
        (
            {"avx2": True, "avxvnni": True, "avx512f": False, "amx-bf16": True, "avx512bf16": True},
            ("avx2", "avx_vnni", "amx_bf16", "avx512_bf16"),
        ),
        ({"neon": True, "dotprod": True, "i8mm": True, "bf16": True}, ("asimddp", "i8mm", "bf16")),
    ],
    ids=["amx", "avx-vnni", "arm"],
)
def test_features_that_the_system_does_not_list_are_those_of_llvm(
    tmp_path, monkeypatch, cpuinfo, of_llvm, expected
) -> None:
    if cpuinfo is not None:
        write(tmp_path, "proc/cpuinfo", cpuinfo)
    monkeypatch.setattr(binding, "get_host_cpu_features", lambda: of_llvm)
    assert cpu_features(tmp_path) == expected


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ({"hw.optional.arm.FEAT_DotProd": 1, "hw.optional.arm.FEAT_I8MM": 0}, ("asimddp",)),
        (
            {f"hw.optional.arm.FEAT_{name}": 1 for name in ("DotProd", "I8MM", "BF16")},
            ("asimddp", "i8mm", "bf16"),
        ),
        ({}, ()),
    ],
    ids=["M1", "M2", "none"],
)
def test_features_of_apples_cpus_are_those_that_macos_lists(
    tmp_path, monkeypatch, listed, expected
) -> None:
    class Library:
        def sysctlbyname(self, name, value, size, new, new_size) -> int:
            if name.decode() not in listed:
                return -1
            # The caller has room for 64 bits, and macOS fills 32.
            assert size._obj.value == 8
            ctypes.c_uint32.from_buffer(value._obj).value = listed[name.decode()]
            return 0

    # LLVM does not know Apple's CPUs.
    monkeypatch.setattr(binding, "get_host_cpu_features", dict)
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library())
    assert cpu_features(tmp_path) == expected


def test_llvm_finds_the_features_that_linux_lists(tmp_path) -> None:
    listed = cpu_features()
    if not listed:
        pytest.skip("this system lists no features")
    # A kernel may hide features, and an older LLVM not know them.
    assert {"avx2", "avx512f", "avx512_vnni"} & set(listed) <= set(cpu_features(tmp_path))


def test_an_unknown_system_has_no_features(tmp_path, monkeypatch) -> None:
    def fail():
        raise RuntimeError("failed to get host cpu features")

    monkeypatch.setattr(binding, "get_host_cpu_features", fail)
    assert cpu_features(tmp_path) == ()
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "llvmlite" else find(name)
    )
    assert cpu_features(tmp_path) == ()
    assert usable_cores(tmp_path) >= 1


def test_int8_products_are_known_by_their_features() -> None:
    assert has_int8_products(("avx2", "avx512_vnni"))
    assert has_int8_products(("i8mm",))
    assert not has_int8_products(("avx2", "avx512f", "amx_bf16"))
    assert not has_int8_products(())


def test_free_memory_is_given_back_where_the_library_can(monkeypatch) -> None:
    release_memory()
    monkeypatch.setattr("sys.platform", "darwin")
    release_memory()


def test_cpus_are_divided_by_core_and_then_by_node(root) -> None:
    # Cores 0 and 2 are on node 0, cores 1 and 3 on node 1.
    for cpu in range(8):
        (root / f"sys/devices/system/cpu/cpu{cpu}/node{cpu % 2}").mkdir()
    assert parts_of_cpus(1, root) == [(0, 4, 2, 6, 1, 5, 3, 7)]
    assert parts_of_cpus(2, root) == [(0, 4, 2, 6), (1, 5, 3, 7)]
    assert parts_of_cpus(3, root) == [(0, 4), (2, 6), (1, 5, 3, 7)]
    assert parts_of_cpus(5, root) == [(0, 4), (2, 6), (1, 5), (3, 7), (0, 4)]


def test_cpus_of_an_unknown_machine_are_cores_of_one_node(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {5, 2, 9}, raising=False)
    assert parts_of_cpus(2, tmp_path) == [(2,), (5, 9)]
