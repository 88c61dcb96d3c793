"""Compiled kernels are kept on disk, and used only if nobody else could have changed them."""

from __future__ import annotations

import functools
import multiprocessing
import os
import shutil
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from unittest import mock

import pytest

from qdqbert.engines.native import cache
from qdqbert.engines.native.cache import compiled, kernels_folder
from qdqbert.engines.native.compiler import Compiled
from qdqbert.engines.native.instruction_sets import INSTRUCTION_SETS, InstructionSet
from qdqbert.engines.native.instruction_sets.floats import in_float
from qdqbert.engines.native.ir import I64, PTR, Module

PORTABLE = INSTRUCTION_SETS["portable"]


def module_of(number: int = 1) -> Module:
    module = Module()
    with module.function("run", out=PTR) as f:
        f.store(f.constant(I64, number), f.out)
    return module


def kept(number: int, isa: InstructionSet, folder: Path) -> Compiled:
    return compiled(str(number), functools.partial(module_of, number), isa, folder)


def keep_all(folder: Path) -> None:
    """Keep a module for all instruction sets as models use them: static, dynamic and in float."""
    for isa in INSTRUCTION_SETS.values():
        for each in (isa, isa.dynamic(), isa.exact().dynamic(), in_float(isa)):
            kept(1, each, folder)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "kernels"


@pytest.fixture
def count():
    """Count how often something is compiled."""
    with mock.patch.object(cache, "compile_module", wraps=cache.compile_module) as counted:
        yield counted


def test_a_module_is_written_and_compiled_once(folder, count) -> None:
    first = kept(1, PORTABLE, folder)
    assert compiled("1", mock.Mock(side_effect=AssertionError), PORTABLE, folder) == first
    assert first.arguments == {"run": ["ptr"]}
    assert count.call_count == 1
    (file,) = folder.iterdir()
    assert file.name.startswith("portable-")
    assert (folder.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)


def test_other_modules_sets_and_machines_have_other_files(folder, count) -> None:
    kept(1, PORTABLE, folder)
    kept(2, PORTABLE, folder)
    kept(1, INSTRUCTION_SETS["neon-i8mm"], folder)
    with mock.patch.object(cache, "process_triple", return_value="another-machine"):
        kept(1, PORTABLE, folder)
    assert count.call_count == 4
    assert len(list(folder.iterdir())) == 4


def test_another_process_finds_the_kernels_of_all_sets(folder, monkeypatch) -> None:
    # The process imports this file by its name from there.
    monkeypatch.syspath_prepend(Path(__file__).parents[3])
    keep_all(folder)
    before = {each.name: each.stat().st_mtime_ns for each in folder.iterdir()}
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        pool.submit(keep_all, folder).result()
    assert {each.name: each.stat().st_mtime_ns for each in folder.iterdir()} == before


@pytest.mark.parametrize(
    "change", [lambda b: b[:-1], lambda b: b"", lambda b: b[:40] + b"x" + b[41:]]
)
def test_a_damaged_file_is_replaced(folder, count, change) -> None:
    expected = kept(1, PORTABLE, folder)
    (file,) = folder.iterdir()
    content = file.read_bytes()
    file.write_bytes(change(content))
    assert kept(1, PORTABLE, folder) == expected
    assert file.read_bytes() == content
    assert count.call_count == 2


def test_the_code_of_each_kernel_counts(tmp_path, monkeypatch) -> None:
    copy = shutil.copytree(Path(cache.__file__).parent, tmp_path / "native")
    monkeypatch.setattr(cache, "__file__", str(copy / "cache.py"))
    before = cache.own_code.__wrapped__()
    assert before == cache.own_code()
    with (copy / "kernels" / "norm.py").open("a") as file:
        file.write("# A change.\n")
    assert cache.own_code.__wrapped__() != before


@pytest.mark.skipif(os.name != "posix", reason="needs modes of files")
@pytest.mark.parametrize("mode", [0o020, 0o002])
def test_files_that_others_could_write_are_not_used(folder, count, mode) -> None:
    expected = kept(1, PORTABLE, folder)
    (file,) = folder.iterdir()
    for path, own in ((file, 0o600), (folder, 0o700)):
        path.chmod(own | mode)
        assert kept(1, PORTABLE, folder) == expected
        path.chmod(own)
    assert count.call_count == 3


def test_a_file_is_used_whatever_the_umask(folder, count) -> None:
    before = os.umask(0o002)
    try:
        for _ in range(2):
            kept(1, PORTABLE, folder)
    finally:
        os.umask(before)
    assert count.call_count == 1


def test_a_file_of_another_user_is_not_used(folder, count) -> None:
    kept(1, PORTABLE, folder)
    with mock.patch("os.getuid", return_value=os.getuid() + 1):
        kept(1, PORTABLE, folder)
    assert count.call_count == 2


def test_a_cache_that_cannot_be_written_is_not_used(tmp_path, count) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    for _ in range(2):
        assert kept(1, PORTABLE, blocked / "kernels")
    assert count.call_count == 2


def test_the_folder_is_in_the_users_cache(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert kernels_folder() == tmp_path / "qdqbert" / "kernels"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert kernels_folder() == tmp_path / "home" / ".cache" / "qdqbert" / "kernels"
