"""The ids that inputs of a graph may have, as its embedding tables say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.helper as oh
import pytest
from onnx import TensorProto

from qdqbert.common.errors import CheckpointError, UserInputError
from qdqbert.engines.index_limits import check_ids, index_limits
from qdqbert.engines.registry import open_runner


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A graph with two tables, one of them quantized, and ids that are cast and reshaped."""
    rng = np.random.default_rng(0)
    tables = {
        "words": rng.integers(-9, 9, (70, 4)).astype(np.int8),
        "types": rng.normal(size=(3, 4)).astype(np.float32),
        "scale": np.ones((), np.float32),
        "zero": np.zeros((), np.int8),
        "flat": np.array([-1], np.int64),
    }
    nodes = [
        oh.make_node("Cast", ["input_ids"], ["cast"], to=TensorProto.INT32),
        oh.make_node("Reshape", ["cast", "flat"], ["ids"]),
        oh.make_node("DequantizeLinear", ["words", "scale", "zero"], ["float_words"]),
        oh.make_node("Gather", ["float_words", "ids"], ["w"], axis=0),
        oh.make_node("Reshape", ["token_type_ids", "flat"], ["type_ids"]),
        oh.make_node("Gather", ["types", "type_ids"], ["t"]),
        oh.make_node("Add", ["w", "t"], ["sum"]),
        # No lookup of ids.
        oh.make_node("Gather", ["sum", "attention_mask"], ["row"], axis=1),
        oh.make_node("ReduceSum", ["row"], ["out"], keepdims=0),
    ]
    names = ("input_ids", "token_type_ids", "attention_mask")
    graph = oh.make_graph(
        nodes,
        "g",
        [oh.make_tensor_value_info(each, TensorProto.INT64, ["b", "s"]) for each in names],
        [oh.make_tensor_value_info("out", TensorProto.FLOAT, [])],
        [onnx.numpy_helper.from_array(each, name) for name, each in tables.items()],
    )
    made = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(made)
    path = tmp_path / "model.onnx"
    onnx.save(made, path)
    return path


def test_limits_are_the_rows_of_the_tables(model: Path) -> None:
    assert index_limits(model) == {"input_ids": 70, "token_type_ids": 3}


def test_a_damaged_file_has_no_limits_and_no_engine_loads_it(model: Path) -> None:
    content = model.read_bytes()
    for length in (0, 1, len(content) // 2, len(content) - 1):
        model.write_bytes(content[:length])
        assert index_limits(model) in ({}, {"input_ids": 70, "token_type_ids": 3})
    for engine in ("onnxruntime", "openvino"):
        with pytest.raises(CheckpointError, match=r"cannot load '.*model\.onnx'"):
            open_runner(engine, model, names=("input_ids", "out"))


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("value", [-1, 70, 2**31 - 1])
def test_engines_refuse_ids_beyond_a_table(model: Path, engine, value: int) -> None:
    names = ("input_ids", "token_type_ids", "attention_mask", "out")
    runner = open_runner(engine, model, names=names)
    ids = np.array([[5, 69]])
    inputs = {"input_ids": ids, "token_type_ids": ids * 0, "attention_mask": ids * 0}
    runner.run(inputs)
    with pytest.raises(UserInputError, match=f"`input_ids` has the value {value}"):
        runner.run(inputs | {"input_ids": np.array([[5, value]])})
    with pytest.raises(UserInputError, match="`token_type_ids` has the value 3"):
        runner.run(inputs | {"token_type_ids": np.array([[0, 3]])})


def test_inputs_without_a_limit_may_have_any_value() -> None:
    check_ids({"attention_mask": np.array([[-5]])}, {"input_ids": 3})
