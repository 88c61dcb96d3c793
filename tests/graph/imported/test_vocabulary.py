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
def test_rows_of_the_table_that_ids_choose_from(body, tables) -> None:
    assert vocabulary_size(graph_of(body, tables)) == 3


@pytest.mark.parametrize(
    ("body", "tables"),
    [
        # What ids are compared with is no table of words, and rows of it are not chosen by them.
        ("pad = Equal (input_ids, zero) y = Cast <to = 1> (pad)", "int64 zero = {0}"),
        ("made = Add (words, words) y = Gather (made, input_ids)", FLOAT),
        ("y = Gather (words, input_ids)", "float[3] words = {1, 2, 3}"),
        ("a = Identity (b) b = Identity (a) y = Gather (a, input_ids)", FLOAT),
    ],
    ids=["no-table", "computed", "one-dimension", "circle"],
)
def test_what_is_no_table_of_words_is_not_taken_for_one(body, tables) -> None:
    assert vocabulary_size(graph_of(body, tables)) is None


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "electra"])
@pytest.mark.parametrize("dynamo", [False, True])
def test_exporters_tables_are_found(exported, family, dynamo) -> None:
    model = load_graph(exported(family, dynamo=dynamo, opset=18 if dynamo else 14))
    assert vocabulary_size(model) == 128
