from __future__ import annotations

import onnx_ir as ir
import pytest

from qdqbert.graph.imported.onnx_file import load_graph
from qdqbert.graph.imported.vocabulary import vocabulary_size


def graph_of(body: str, tables: str) -> ir.Model:
    return ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]> '
        f"g (int64[batch, seq] input_ids) => (float[batch, seq, 2] y) <{tables}> {{ {body} }}"
    )


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


@pytest.mark.parametrize("export", [("roberta", "eager", 14), ("bert", "eager", 18, True)])
def test_tables_of_exporters_are_found(exported, export) -> None:
    model = load_graph(exported(*export))
    assert vocabulary_size(model) == 128
