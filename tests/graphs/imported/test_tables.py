from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
import transformers

from conftest import POSITIONS
from qdqbert.graphs.imported.onnx_file import load_graph
from qdqbert.graphs.imported.tables import longest_input, vocabulary_size


def graph_of(body: str, tables: str) -> ir.Model:
    return ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]> '
        f"g (int64[batch, seq] input_ids) => (float[batch, seq, 2] y) <{tables}> {{ {body} }}"
    )


ROWS = "float[5, 2] rows = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}"
COUNT = "int64 last = {1}, int64[1] places = {1}"
NUMBERED = "ones = Equal (input_ids, input_ids) each = Cast <to = 7> (ones) "


@pytest.mark.parametrize(
    ("body", "tables", "expected"),
    [
        (f"{NUMBERED} at = CumSum (each, last) y = Gather (rows, at)", f"{ROWS}, {COUNT}", 4),
        (
            f"{NUMBERED} at = CumSum (each, last) z = Gather (codes, at) "
            "y = DequantizeLinear (z, scale)",
            f"int8[3, 2] codes = {{1, 2, 3, 4, 5, 6}}, float scale = {{0.5}}, {COUNT}",
            2,
        ),
        # A slice of constant numbers ends before the table does.
        (
            "shape = Shape <start = 1> (input_ids) at = Slice (numbers, zero, shape) "
            "y = Gather (rows, at)",
            f"{ROWS}, int64[1] zero = {{0}}, int64[3] numbers = {{0, 1, 2}}",
            3,
        ),
        ("y = Gather (rows, input_ids)", ROWS, None),
        ("at = Sub (input_ids, input_ids) y = Gather (rows, at)", ROWS, None),
        (
            "y, mask = com.microsoft.EmbedLayerNormalization (input_ids, , rows, rows, , one, one)",
            f"{ROWS}, float[2] one = {{1, 1}}",
            5,
        ),
    ],
    ids=["after-a-row", "codes", "short-constant", "words", "one-row", "fused"],
)
def test_the_limit_is_the_last_row_that_a_token_reads(body, tables, expected) -> None:
    assert longest_input(graph_of(body, tables)) == expected


@pytest.mark.parametrize(
    ("family", "dynamo", "changes", "expected"),
    [
        ("bert", False, {}, POSITIONS),
        ("roberta", False, {"pad_token_id": 3}, POSITIONS + 2 - 4),
        ("roberta", False, {"pad_token_id": 0}, POSITIONS + 2 - 1),
        ("roberta", True, {"pad_token_id": 3}, POSITIONS + 2 - 4),
        ("mpnet", False, {"pad_token_id": 3}, POSITIONS),
        ("deberta-v2", False, {}, None),
        ("modernbert", False, {}, None),
    ],
    ids=["bert", "roberta-3", "roberta-0", "dynamo", "mpnet", "deberta", "modernbert"],
)
@pytest.mark.usual("roberta-3", "mpnet", "deberta")
def test_an_export_of_transformers_runs_up_to_its_limit(
    make_model, tmp_path, export_model, family, dynamo, changes, expected
) -> None:
    model = make_model(family, transformers.AutoModel, num_hidden_layers=1, **changes)
    path = export_model(tmp_path / "m.onnx", model, dynamo=dynamo)
    found = longest_input(load_graph(path))
    assert found == expected
    if found is None:
        return
    session = onnxruntime.InferenceSession(path)

    def states(tokens: int) -> np.ndarray:
        ids = np.full((1, tokens), 9)
        inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        return session.run(None, inputs)[0]

    ids = torch.full((1, found), 9)
    with torch.inference_mode():
        # The exporter leaves the model in training mode.
        right = model.eval()(input_ids=ids, attention_mask=torch.ones_like(ids))[0].numpy()
    np.testing.assert_allclose(states(found), right, atol=1e-4)
    with pytest.raises(Exception, match="ONNXRuntimeError"):
        states(found + 1)


FLOAT = "float[3, 2] words = {1, 2, 3, 4, 5, 6}"
CODES = "int8[3, 2] codes = {1, 2, 3, 4, 5, 6}, float scale = {0.5}"


@pytest.mark.parametrize(
    ("body", "tables"),
    [
        ("y = Gather (words, input_ids)", FLOAT),
        ("narrow = Cast <to = 6> (input_ids) y = Gather (words, narrow)", FLOAT),
        ("table = DequantizeLinear (codes, scale) y = Gather (table, input_ids)", CODES),
        ("code = Gather (codes, input_ids) y = DequantizeLinear (code, scale)", CODES),
        (
            "y, mask = com.microsoft.EmbedLayerNormalization (input_ids, , words, two, , one, one)",
            f"{FLOAT}, float[9, 2] two = {{{', '.join('0' * 18)}}}, float[2] one = {{1, 1}}",
        ),
    ],
    ids=["plain", "cast", "quantized-table", "quantized-rows", "fused"],
)
def test_rows_of_the_table_that_ids_select_from(body, tables) -> None:
    assert vocabulary_size(graph_of(body, tables)) == 3


@pytest.mark.parametrize(
    ("body", "tables"),
    [
        # Ids are compared with this constant, they do not select rows of it.
        ("pad = Equal (input_ids, zero) y = Cast <to = 1> (pad)", "int64 zero = {0}"),
        ("made = Add (words, words) y = Gather (made, input_ids)", FLOAT),
        ("y = Gather (words, input_ids)", "float[3] words = {1, 2, 3}"),
        ("a = Identity (b) b = Identity (a) y = Gather (a, input_ids)", FLOAT),
    ],
    ids=["no-table", "computed", "one-dimension", "circle"],
)
def test_other_constants_are_not_taken_for_a_table_of_embeddings(body, tables) -> None:
    assert vocabulary_size(graph_of(body, tables)) is None


@pytest.mark.parametrize(
    "export",
    [("roberta", "eager", 14), pytest.param(("bert", "eager", 18, True), marks=pytest.mark.slow)],
)
def test_tables_of_exporters_are_found(exported, export) -> None:
    model = load_graph(exported(*export))
    assert vocabulary_size(model) == 128
