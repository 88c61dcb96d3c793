"""Files of packed models: read as written, and refused if anything is wrong with them."""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from native_models import Shape, random_model
from qdqbert.common.errors import CheckpointError
from qdqbert.encoders.model import Layer
from qdqbert.engines.native.packed import pack_model, write_model
from qdqbert.engines.native.storage import FORMAT, Packed, load_packed, save_packed

SMALL = Packed(
    arrays={
        "first": np.arange(64, dtype=np.int8).reshape(4, 16),
        "second": np.arange(32, dtype=np.float32).reshape(2, 4, 4),
        "third": np.arange(16, dtype=np.int32),
    },
    settings={"hidden": 16, "names": ["ä", "b"], "layers": [{"epsilon": 1e-12}]},
)
ENTRY = {"dtype": "I8", "shape": [64], "data_offsets": [0, 64]}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "model.safetensors"
    save_packed(SMALL, path)
    return path


def header_of(path) -> tuple[dict, bytes]:
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def write(path, header, data: bytes) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


class Counted(Sequence[Layer]):
    """Layers that note when they are asked for."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers, self.asked = layers, []

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, index: Any) -> Any:
        self.asked.append(index)
        return self.layers[index]


def test_a_model_is_written_a_layer_at_a_time(tmp_path, monkeypatch) -> None:
    # What follows the header is moved in many parts.
    monkeypatch.setattr("qdqbert.engines.native.storage._MOVED", 1000)
    model = random_model(Shape(layers=3, causal=True, norms_first=True))
    save_packed(pack_model(model), tmp_path / "saved")
    monkeypatch.undo()
    counted = Counted(model.layers)
    write_model(dataclasses.replace(model, layers=counted), tmp_path / "written")
    # Nothing is rounded twice. The last index is past the end.
    assert counted.asked == [0, 1, 2, 3]
    assert (tmp_path / "written").read_bytes() == (tmp_path / "saved").read_bytes()


def test_a_model_is_read_as_it_was_written(tmp_path) -> None:
    packed = pack_model(random_model(Shape(hidden=40, heads=5, head=8, position_bias=True)))
    path = tmp_path / "model.safetensors"
    save_packed(packed, path)
    found = load_packed(path)
    assert found.settings == packed.settings
    assert found.arrays.keys() == packed.arrays.keys()
    for name, array in packed.arrays.items():
        assert found.arrays[name].dtype == array.dtype
        assert found.arrays[name].ctypes.data % 64 == 0
        assert not found.arrays[name].flags.writeable
        np.testing.assert_array_equal(found.arrays[name], array)


def test_the_file_is_one_of_safetensors(file) -> None:
    found = safetensors.numpy.load_file(file)
    assert found.keys() == SMALL.arrays.keys()
    for name, array in SMALL.arrays.items():
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "Cannot read"),
        (b"1234567", "too short"),
        (struct.pack("<Q", 1), "wrong length"),
        (struct.pack("<Q", 2**63) + b"{}", "wrong length"),
        (struct.pack("<Q", 3) + b"{}", "wrong length"),
        (struct.pack("<Q", 2) + b"[]", "not an object"),
        (struct.pack("<Q", 2) + b"{{", "not JSON"),
        (struct.pack("<Q", 4) + b"\xff\xfe\xfd\xfc", "not JSON"),
        (struct.pack("<Q", 200_000) + b"[" * 200_000, "not JSON"),
        (struct.pack("<Q", 2) + b"{}", "not a model of the native engine in format"),
    ],
)
def test_other_files_are_refused(tmp_path, content, message) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as raised:
        load_packed(path)
    assert repr(str(path)) in str(raised.value)


def test_a_missing_file_is_an_error(tmp_path) -> None:
    with pytest.raises(CheckpointError, match=r"Cannot read .*missing"):
        load_packed(tmp_path / "missing")


@pytest.mark.parametrize(
    "entry",
    [
        7,
        {},
        ENTRY | {"more": 1},
        ENTRY | {"dtype": "F64"},
        ENTRY | {"dtype": ["I8"]},
        ENTRY | {"shape": 64},
        ENTRY | {"shape": []},
        ENTRY | {"shape": [63]},
        ENTRY | {"shape": [64.0]},
        ENTRY | {"shape": [True, 64]},
        ENTRY | {"shape": [-8, -8]},
        ENTRY | {"shape": [2**32, 2**32]},
        ENTRY | {"shape": [1] * 70 + [64]},
        ENTRY | {"shape": [0], "data_offsets": [0, 64]},
        ENTRY | {"data_offsets": [0]},
        ENTRY | {"data_offsets": [0, 64, 64]},
        ENTRY | {"data_offsets": [64, 128]},
        ENTRY | {"data_offsets": [64, 0]},
        ENTRY | {"data_offsets": [-64, 0]},
        ENTRY | {"data_offsets": ["0", "64"]},
        ENTRY | {"data_offsets": [0, 10**30]},
    ],
)
def test_a_wrong_entry_of_the_header_is_refused(file, entry) -> None:
    header, data = header_of(file)
    write(file, header | {"first": entry}, data)
    with pytest.raises(CheckpointError, match="damaged: array 'first'"):
        load_packed(file)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (None, "its metadata is not an object"),
        ({}, "not a model of the native engine"),
        ({"format": "qdqbert-native", "version": "99"}, "not a model .* in format"),
        ({"format": "qdqbert-native", "version": str(FORMAT)}, "its settings are not JSON"),
        ({"format": "qdqbert-native", "version": str(FORMAT), "settings": 3}, "not JSON"),
        ({"format": "qdqbert-native", "version": str(FORMAT), "settings": "{"}, "not JSON"),
        (
            {"format": "qdqbert-native", "version": str(FORMAT), "settings": "[" * 99_999},
            "not JSON",
        ),
        ({"format": "qdqbert-native", "version": str(FORMAT), "settings": "[]"}, "not an object"),
    ],
)
def test_wrong_metadata_are_refused(file, metadata, message) -> None:
    header, data = header_of(file)
    write(file, header | {"__metadata__": metadata}, data)
    with pytest.raises(CheckpointError, match=message):
        load_packed(file)


def test_a_file_that_ends_too_early_or_too_late_is_refused(file) -> None:
    content = file.read_bytes()
    file.write_bytes(content + b"\0")
    with pytest.raises(CheckpointError, match="longer than its arrays"):
        load_packed(file)
    for end in range(0, len(content), 37):
        file.write_bytes(content[:end])
        with pytest.raises(CheckpointError):
            load_packed(file)


@settings(max_examples=300)
@given(place=st.integers(0, 10**6), value=st.integers(0, 255), count=st.integers(1, 4))
def test_a_file_with_wrong_bytes_is_read_or_refused(tmp_path_factory, place, value, count) -> None:
    path = tmp_path_factory.getbasetemp() / "bytes.safetensors"
    save_packed(SMALL, path)
    content = bytearray(path.read_bytes())
    (length,) = struct.unpack("<Q", content[:8])
    place %= 8 + length
    content[place : place + count] = bytes([value]) * count
    path.write_bytes(content)
    try:
        found = load_packed(path)
    except CheckpointError:
        return
    assert sum(each.nbytes for each in found.arrays.values()) == 256
