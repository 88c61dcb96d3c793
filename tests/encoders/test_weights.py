"""Tensors of checkpoints."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from qdqbert.common.errors import CheckpointError
from qdqbert.encoders.weights import Conversion, Weights


def save(folder: Path, tensors: dict[str, torch.Tensor], name: str = "model.safetensors") -> None:
    safetensors.torch.save_file(tensors, folder / name)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_floats_of_every_width_are_read_as_torch_reads_them(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    tensor = torch.randn(5, 7, generator=torch.Generator().manual_seed(0)).to(dtype)
    save(tmp_path, {"a": tensor})
    found = Weights(tmp_path).read("a")
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, tensor.float().numpy())


def test_float32_is_not_copied(tmp_path: Path) -> None:
    save(tmp_path, {"a": torch.ones(3, 4)})
    weights = Weights(tmp_path)
    assert np.shares_memory(weights.read("a"), weights.read("a"))


def test_shards_are_found_by_their_index(tmp_path: Path) -> None:
    save(tmp_path, {"a": torch.ones(2)}, "model-1.safetensors")
    save(tmp_path, {"b": torch.zeros(3)}, "model-2.safetensors")
    places = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    index = {"metadata": {}, "weight_map": places}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert sorted(Weights(tmp_path)) == ["a", "b"]


def test_an_index_cannot_name_files_of_other_folders(tmp_path: Path) -> None:
    save(tmp_path, {"a": torch.ones(2)}, "outside.safetensors")
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    index = {"weight_map": {"a": "../outside.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="Cannot read"):
        Weights(folder)


def test_integers_are_left_out(tmp_path: Path) -> None:
    save(tmp_path, {"embeddings.position_ids": torch.arange(3), "a": torch.ones(1)})
    assert list(Weights(tmp_path)) == ["a"]


def test_old_names_of_layer_norms_are_replaced(tmp_path: Path) -> None:
    save(tmp_path, {"LayerNorm.gamma": torch.ones(2), "LayerNorm.beta": torch.zeros(2)})
    assert sorted(Weights(tmp_path)) == ["LayerNorm.bias", "LayerNorm.weight"]


def test_unused_tensors_are_those_that_were_not_read(tmp_path: Path) -> None:
    save(tmp_path, {"b": torch.ones(1), "a": torch.ones(1), "c": torch.ones(1)})
    weights = Weights(tmp_path)
    weights.read("b")
    assert weights.unused == ["a", "c"]


def test_a_conversion_renames_and_splits(tmp_path: Path) -> None:
    save(tmp_path, {"x.qkv.weight": torch.arange(12.0).reshape(6, 2)})
    conversion = Conversion(renames=((r"^x\.", "y."),), splits={".qkv": (".q", ".k", ".v")})
    weights = Weights(tmp_path).converted(conversion)
    assert sorted(weights) == ["y.k.weight", "y.q.weight", "y.v.weight"]
    np.testing.assert_array_equal(weights.read("y.k.weight"), [[4, 5], [6, 7]])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_not_finite_are_refused(value: float, tmp_path: Path) -> None:
    tensor = torch.ones(100)
    tensor[50] = value
    save(tmp_path, {"a": tensor})
    with pytest.raises(CheckpointError, match=r"`a` of .* not finite"):
        Weights(tmp_path).read("a")


def test_large_finite_values_are_read(tmp_path: Path) -> None:
    save(tmp_path, {"a": torch.full((100,), 1e29), "b": torch.full((100,), 3e38)})
    assert Weights(tmp_path).read("a")[0] == np.float32(1e29)
    with pytest.raises(CheckpointError, match=r"`b` of .* as large as 3e\+38"):
        Weights(tmp_path).read("b")


SHARDS = ("model-1.safetensors", "model-2.safetensors")


def save_in_parts(folder: Path, *parts: dict[str, torch.Tensor]) -> None:
    for name, tensors in zip(SHARDS, parts, strict=True):
        save(folder, tensors, name)
    places = {key: name for name, part in zip(SHARDS, parts, strict=True) for key in part}
    index = folder / "model.safetensors.index.json"
    # A shard is read whole, so that it needs one name only.
    index.write_text(json.dumps({"weight_map": {**places, "other": SHARDS[0]}}))


def test_two_values_for_one_tensor_are_refused(tmp_path: Path) -> None:
    one, other = torch.ones(2), torch.zeros(2)
    save(tmp_path, {"a.gamma": one, "a.weight": other})
    with pytest.raises(CheckpointError, match=r"two values .*, `a\.gamma` and `a\.weight`"):
        Weights(tmp_path)
    save(tmp_path, {"x.a": one, "a": other})
    with pytest.raises(CheckpointError, match=r"two values for one tensor, `a` and `x\.a`"):
        Weights(tmp_path).converted(Conversion(renames=((r"^x\.", ""),)))
    (tmp_path / "model.safetensors").unlink()
    save_in_parts(tmp_path, {"a": one}, {"a": other})
    with pytest.raises(CheckpointError, match="two values for one tensor, `a` in two files"):
        Weights(tmp_path)


def test_one_value_may_be_stored_twice(tmp_path: Path) -> None:
    save_in_parts(tmp_path, {"a.gamma": torch.ones(2)}, {"a.weight": torch.ones(2)})
    np.testing.assert_array_equal(Weights(tmp_path).read("a.weight"), [1, 1])


def write(path: Path, header: Any, body: bytes = b"") -> None:
    text = json.dumps(header).encode() if not isinstance(header, bytes) else header
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


@pytest.mark.parametrize(
    "header",
    [
        b"{",
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, "a": {"dtype": "F32", '
        b'"shape": [1], "data_offsets": [4, 8]}}',
        [],
        {"a": 1},
        {"a": {"dtype": "F32", "shape": [2]}},
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}},
        {"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}},
        {"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, -4]}},
        {"a": {"dtype": "F32", "shape": [2**60], "data_offsets": [0, 2**62]}},
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}},
    ],
)
def test_damaged_headers_are_refused(header: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write(path, header, bytes(8))
    with pytest.raises(CheckpointError, match="is damaged"):
        Weights(tmp_path)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    save(tmp_path, {"a": torch.ones(1)})
    with pytest.raises(CheckpointError, match="has no tensor `b`"):
        Weights(tmp_path).read("b")


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    torch.save({}, tmp_path / "optimizer.bin")
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors nor pytorch_model\.bin"):
        Weights(tmp_path)
