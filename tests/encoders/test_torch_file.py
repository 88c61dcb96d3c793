"""Files that `torch.save` wrote are read as torch reads them, and nothing in them is run."""

from __future__ import annotations

import collections
import contextlib
import json
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

import torch_damage
from native_guard import run_apart
from qdqbert.common.errors import CheckpointError
from qdqbert.encoders.weights import Weights
from torch_files import NAME, Storage, Tensor, pickled, write_archive, write_torch

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def tensors() -> dict[str, Any]:
    """Tensors of each form that a checkpoint may have."""
    torch.manual_seed(0)
    table = nn.Parameter(torch.randn(7, 5))
    whole = torch.randn(6, 8)
    return {
        **{str(dtype): torch.randn(5, 7).to(dtype) for dtype in FLOATS},
        "table": table,
        "tied": table,
        "transposed": whole.t(),
        "rows": whole[2:5],
        "columns": whole[:, 3::2],
        "half": torch.randn(4, 6).half().t()[1:],
        "scalar": torch.tensor(3.5),
        "empty": torch.zeros(0, 3),
        "frozen": nn.Parameter(torch.ones(2), requires_grad=False),
        "linear.weight": nn.Linear(3, 4).weight,
    }


def check(folder: Path) -> None:
    """Compare what is read with what torch reads."""
    expected = torch.load(folder / NAME, weights_only=True)
    weights = Weights(folder)
    assert list(weights) == [name for name, each in expected.items() if each.is_floating_point()]
    for name in weights:
        wanted = expected[name].detach().float().numpy()
        np.testing.assert_array_equal(weights.read(name), wanted, name)


def test_tensors_are_those_that_torch_reads(tmp_path: Path) -> None:
    torch.save(tensors(), tmp_path / NAME)
    check(tmp_path)


def test_a_state_dict_of_a_module_is_read(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.LayerNorm(4))
    torch.save(module.half().state_dict(), tmp_path / NAME)
    check(tmp_path)


@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]
)
def test_tensors_of_other_types_are_left_out(dtype: torch.dtype, tmp_path: Path) -> None:
    ids = torch.arange(4).to(dtype).expand(1, -1)
    torch.save({"position_ids": ids, "a": torch.ones(2)}, tmp_path / NAME)
    assert list(Weights(tmp_path)) == ["a"]


def test_values_are_views_of_the_file(tmp_path: Path) -> None:
    torch.save(tensors(), tmp_path / NAME)
    weights = Weights(tmp_path)
    assert np.shares_memory(weights.read("table"), weights.read("tied"))
    assert np.shares_memory(weights.read("transposed"), weights.read("rows"))
    assert not weights.read("table").flags.writeable


def test_values_of_another_byte_order_are_those_that_torch_reads(tmp_path: Path) -> None:
    torch.save(tensors(), tmp_path / NAME)
    with zipfile.ZipFile(tmp_path / NAME) as archive:
        entries = [(name, archive.read(name)) for name in archive.namelist()]
    write_archive(
        tmp_path / NAME,
        [(name, b"big" if name.endswith("/byteorder") else each) for name, each in entries],
    )
    expected = torch.load(tmp_path / NAME, weights_only=True)
    weights = Weights(tmp_path)
    for name in ("torch.float32", "torch.float64", "transposed"):
        found = weights._stored[name][1]
        np.testing.assert_array_equal(found.astype(found.dtype.newbyteorder("=")), expected[name])


def test_shards_are_found_by_their_index(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(2)}, tmp_path / "pytorch_model-1.bin")
    torch.save({"b": torch.zeros(3)}, tmp_path / "pytorch_model-2.bin")
    places = {"a": "pytorch_model-1.bin", "b": "pytorch_model-2.bin"}
    (tmp_path / f"{NAME}.index.json").write_text(json.dumps({"weight_map": places}))
    assert sorted(Weights(tmp_path)) == ["a", "b"]


def test_safetensors_are_read_if_there_are_both(tmp_path: Path) -> None:
    safetensors.torch.save_file({"safe": torch.ones(2)}, tmp_path / "shard.safetensors")
    index = {"weight_map": {"safe": "shard.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / NAME).write_bytes(b"never read")
    assert list(Weights(tmp_path)) == ["safe"]


def test_a_large_archive_is_read(tmp_path: Path) -> None:
    # With offsets of 64 bits, as an archive of more than 4 GB has.
    limit, zipfile.ZIP64_LIMIT = zipfile.ZIP64_LIMIT, 100  # type: ignore[attr-defined]
    try:
        write_torch(
            tmp_path / NAME, pickled({"a": Tensor()}), {"0": np.arange(6.0, dtype="f4").tobytes()}
        )
    finally:
        zipfile.ZIP64_LIMIT = limit  # type: ignore[attr-defined]
    assert b"PK\6\6" in (tmp_path / NAME).read_bytes()
    np.testing.assert_array_equal(Weights(tmp_path).read("a"), [[0, 1, 2], [3, 4, 5]])


class Runs:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return exec, (f"open({str(self.path)!r}, 'w')",)


def old(path: Path) -> None:
    torch.save({"a": torch.ones(2)}, path, _use_new_zipfile_serialization=False)


REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "a function": (
        lambda path: torch.save({"a": Runs(path.parent / "ran")}, path),
        r"refers to `(__builtin__|builtins)\.exec`",
    ),
    "a class of numpy": (
        lambda path: torch.save({"a": np.ones(2)}, path),
        r"refers to `numpy\._core\.multiarray\._reconstruct`",
    ),
    "a sparse tensor": (
        lambda path: torch.save({"a": torch.eye(2).to_sparse()}, path),
        r"refers to `torch\._utils\._rebuild_sparse_tensor`",
    ),
    "complex numbers": (
        lambda path: torch.save({"a": torch.ones(2, dtype=torch.complex64)}, path),
        r"refers to `torch\.ComplexFloatStorage`",
    ),
    "a model": (lambda path: torch.save(nn.Linear(2, 2), path), r"refers to `torch\.nn\.modules"),
    "negative values": (
        lambda path: torch.save({"a": torch._neg_view(torch.ones(2))}, path),
        "negative or conjugate",
    ),
    "a newer pickle": (
        lambda path: torch.save({"a": torch.ones(2)}, path, pickle_protocol=4),
        "has the opcode FRAME",
    ),
    "a dict in it": (
        lambda path: torch.save({"epoch": 3, "state_dict": {"a": torch.ones(2)}}, path),
        "holds 'epoch', which is no tensor",
    ),
    "numbers of layers": (
        lambda path: torch.save({0: torch.ones(2)}, path),
        "holds 0, which is no tensor",
    ),
    "text": (
        lambda path: torch.save({"a": torch.ones(2), "b": ["x", 0.5, None]}, path),
        "holds 'b', which is no tensor",
    ),
    "compressed": (
        lambda path: write_torch(
            path, pickled({"a": Tensor()}), {"0": bytes(10**6)}, method=zipfile.ZIP_DEFLATED
        ),
        "compressed or encrypted",
    ),
    "an old pickle": (old, r"is a pickle as torch wrote it before version 1\.6"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_anything_but_tensors_is_refused_by_name(name: str, tmp_path: Path) -> None:
    write, message = REFUSED[name]
    write(tmp_path / NAME)
    with pytest.raises(CheckpointError, match=message) as caught:
        Weights(tmp_path)
    assert NAME in str(caught.value)
    assert "save_pretrained(new_folder)" in str(caught.value)
    assert not (tmp_path / "ran").exists()


def nested(depth: int) -> bytes:
    """Return a pickle of tuples in tuples."""
    return b"\x80\x02)" + b"\x85" * depth + b"."


DAMAGED: dict[str, bytes] = {
    "nothing": b"",
    "no end": pickled({"a": Tensor()})[:-1],
    "no dict": pickled([Tensor()]),
    "several values": b"\x80\x02}}.",
    "an empty stack": b"\x80\x02u.",
    "no mark": b"\x80\x02}t.",
    "no memo": b"\x80\x02h\x05.",
    "half a pair": b"\x80\x02}(X\x01\0\0\0au.",
    "a list as a dict": b"\x80\x02](X\x01\0\0\0aK\1u.",
    "a dict as a list": b"\x80\x02}K\1a.",
    "a list in itself": b"\x80\x02]q\0h\0a.",
    "a tuple as a name": b"\x80\x02}" + nested(1)[2:-1] + b"K\1s.",
    "deep tuples": nested(200_000),
    "deep tuples as a name": b"\x80\x02}" + nested(200_000)[2:-1] + b"K\1s.",
    "a name twice": b"\x80\x02}(X\x01\0\0\0aK\1X\x01\0\0\0aK\2u.",
    "a name that is not UTF-8": b"\x80\x02}(X\x01\0\0\0\xffK\1u.",
    "a text without an end": b"\x80\x02}(X\xff\xff\xff\xffa",
    "a global that is called": b"\x80\x02ccollections\nOrderedDict\n(K\1tR.",
    "a dict that is called": b"\x80\x02})R.",
    "a storage that is called": b"\x80\x02ctorch\nFloatStorage\n)R.",
    "a built text": b"\x80\x02X\x01\0\0\0aK\1b.",
    "a large dict": b"\x80\x02" + b"}" * 2_000_000,
    **{
        f"a tensor of {changes}": pickled({"a": Tensor(**changes)})
        for changes in (
            {"shape": (3, 3)},
            {"shape": (2, 3, 1)},
            {"shape": (-2, -3)},
            {"shape": (2, 3.0)},
            {"shape": (True, 3)},
            {"shape": (2**60, 2**60), "strides": (0, 0)},
            {"shape": (10**6, 10**6), "strides": (0, 0)},
            {"shape": (0, 2**40, 2**40), "strides": (1, 1, 1)},
            {"shape": (1,) * 70, "strides": (1,) * 70},
            {"shape": [2, 3]},
            {"strides": (3, 2)},
            {"strides": (-1, 1)},
            {"strides": (2**47, 1)},
            {"strides": (2**63, 2**63)},
            {"offset": 1},
            {"offset": -1},
            {"offset": True},
            {"offset": 2**40, "shape": (0, 3)},
            {"requires_grad": 1},
            {"hooks": None},
            {"storage": "0"},
            {"storage": Storage(count=7)},
            {"storage": Storage(count=2**40)},
            {"storage": Storage(count=-6)},
            {"storage": Storage(kind=torch.HalfStorage)},
            {"storage": Storage(kind="FloatStorage")},
            {"storage": Storage(kind=collections.OrderedDict)},
            {"storage": Storage(key="1")},
            {"storage": Storage(key="../0")},
            {"storage": Storage(key=0)},
            {"storage": Storage(location=0)},
            {"storage": Storage(word="module")},
        )
    },
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_pickles_are_refused(name: str, tmp_path: Path) -> None:
    write_torch(tmp_path / NAME, DAMAGED[name])
    with pytest.raises(CheckpointError, match="is damaged: "):
        Weights(tmp_path)


def test_a_tensor_of_more_values_than_the_file_is_refused(tmp_path: Path) -> None:
    expanded = Tensor(shape=(1000, 6), strides=(0, 1))
    write_torch(tmp_path / NAME, pickled({"a": expanded}))
    with pytest.raises(CheckpointError, match="has more values than the file"):
        Weights(tmp_path)
    # A table of words may be stored under several names.
    write_torch(tmp_path / NAME, pickled({each: Tensor() for each in "abcd"}))
    assert len(list(Weights(tmp_path))) == 4


@pytest.mark.parametrize(
    "names",
    [
        [],
        ["data.pkl"],
        ["archive/data/0"],
        ["archive/data.pkl", "other/data.pkl"],
        ["archive/data.pkl", "archive/data.pkl", "archive/data/0"],
        ["archive/data.pkl", "archive/data/0", "archive/data/0"],
        ["archive/data.pkl", "archive/data/1"],
        ["archive/data.pkl", "archive/data/0", "archive/byteorder"],
    ],
)
def test_archives_of_other_entries_are_refused(names: list[str], tmp_path: Path) -> None:
    code, entries = pickled({"a": Tensor()}), []
    for name in names:
        entries.append((name, code if name.endswith("data.pkl") else bytes(24)))
    is_doubled = len({*names}) < len(names)
    with pytest.warns(match="Duplicate name") if is_doubled else contextlib.nullcontext():
        write_archive(tmp_path / NAME, entries)
    with pytest.raises(CheckpointError, match="is damaged: "):
        Weights(tmp_path)


def test_an_archive_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(4)}, tmp_path / "whole")
    content = (tmp_path / "whole").read_bytes()
    for count in range(1, len(content), 7):
        (tmp_path / NAME).write_bytes(content[:count])
        with pytest.raises(CheckpointError, match="is damaged: "):
            Weights(tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_damaged_files_are_read_or_refused(count: int, tmp_path: Path) -> None:
    files = [tmp_path / each for each in ("small", "module", "tensors")]
    torch.save({"a": torch.ones(3, 4)}, files[0])
    torch.save(nn.TransformerEncoderLayer(4, 2, 8).half().state_dict(), files[1])
    torch.save(tensors(), files[2])
    found = json.loads(
        run_apart(torch_damage.__file__, *map(str, files), "0", str(count), str(tmp_path))
    )
    assert sum(found.values()) == count
    # Other names and values are no damage that anything shows.
    assert found["refused"] >= 0.4 * count
    assert found["read"] >= 0.05 * count
