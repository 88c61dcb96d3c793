"""Graphs are read as encoders: the reference computes what ONNX Runtime does for the same graph."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import transformers

from encoder_reference import run_encoder
from qdqbert.checkpoint.load import load_checkpoint
from qdqbert.engines.native.model import EncoderModel
from qdqbert.errors import GraphError
from qdqbert.evidence.fidelity import sqnr_db
from qdqbert.graph.encoder import read_encoder
from qdqbert.graph.export import GraphBody, example_inputs
from qdqbert.graph.qdq import float_graph
from qdqbert.insert.sited import insert_quantizers_
from qdqbert.targets.lowering import lower
from task_files import HEADS

# CamemBERT and XLM-RoBERTa have the modules of RoBERTa.
FAMILIES = ("bert", "distilbert", "electra", "mpnet", "roberta")
# float32 sums in a different order, over at most two layers.
FLOAT_TOLERANCE = 3e-5
# A value near the middle of two codes may be rounded to the other one.
LEAST_DB = 40.0


def random_inputs(shape: tuple[int, ...], *, seed: int = 0) -> dict[str, Any]:
    """Return random tokens and token types. Each text after the first has one more [PAD]."""
    rng = np.random.default_rng(seed)
    rows, tokens = int(np.prod(shape[:-1])), shape[-1]
    lengths = np.maximum(tokens - np.arange(rows) % tokens, 1)
    mask = (np.arange(tokens) < lengths[:, None]).astype(np.int64)
    ids = np.where(mask == 1, rng.integers(5, 300, mask.shape), 1)
    types = rng.integers(0, 2, mask.shape) * mask
    arrays = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    return {name: array.reshape(shape) for name, array in arrays.items()}


def of_text(output: Any, mask: Any) -> Any:
    """Return the rows of an output that are not those of padding."""
    return output[mask == 1] if output.shape[: mask.ndim] == mask.shape else output


def check(
    model: ir.Model, run: Any, inputs: dict[str, Any], *, has_codes: bool = True
) -> EncoderModel:
    """Compare the reference with ONNX Runtime, and return what was read."""
    read = read_encoder(model)
    expected, actual = run(model, inputs), run_encoder(read, inputs)
    assert list(actual) == list(expected)
    for name, output in expected.items():
        mask = inputs["attention_mask"]
        wanted, found = of_text(output, mask), of_text(actual[name], mask)
        assert found.shape == wanted.shape
        if has_codes:
            assert sqnr_db(wanted, found) >= LEAST_DB, name
        else:
            np.testing.assert_allclose(found, wanted, atol=FLOAT_TOLERANCE)
    return read


def lowered(each, recipe: str | None, target: str = "portable") -> ir.Model:
    plan = each.plan(target, recipe)
    calibration = each.calibration(plan)
    return lower(each.graph, plan, calibration.ranges, each.scales(plan))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_float_graph_of_each_family_is_read(prepared, run_plainly, family) -> None:
    read = check(
        float_graph(prepared(family).graph), run_plainly, random_inputs((5, 9)), has_codes=False
    )
    assert len(read.layers) == len(prepared(family).layers)
    assert read.limit == 64


@pytest.mark.parametrize("family", FAMILIES)
def test_an_int8_graph_of_each_family_is_read(prepared, run_plainly, family) -> None:
    read = check(lowered(prepared(family), "linear"), run_plainly, random_inputs((5, 9)))
    assert read.embeddings.words.rows.dtype == np.int8
    for layer in read.layers:
        assert layer.up.weight.dtype == np.int8
        assert layer.up.codes is not None
        assert layer.up.codes.multiplier.shape == (32,)
