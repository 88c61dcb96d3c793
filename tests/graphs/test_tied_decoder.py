"""The decoder of a masked LM has the weights of the embedding table: codes and their rest."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest
import transformers

from encoder_reference import random_inputs
from qdqbert.encoders.checkpoint.load import load_checkpoint
from qdqbert.encoders.model import EncoderModel
from qdqbert.encoders.quantize import Choices, quantize_encoder
from qdqbert.encoders.shared_table import joined, rest_of
from qdqbert.encoders.sites import sites_of
from qdqbert.engines.native.checks import check_packed
from qdqbert.engines.native.packed import pack_model
from qdqbert.graphs.edit import add_constant, constant_array, producer_of, tidy
from qdqbert.graphs.encoder import read_encoder
from qdqbert.graphs.half_precision import to_half_precision
from qdqbert.graphs.of_checkpoint import encoder_of
from qdqbert.graphs.targets import TARGETS
from qdqbert.graphs.targets.lowering import lower
from qdqbert.graphs.targets.target import make_plan
from qdqbert.graphs.writer import make_graph
from shared_tables import read_shared_table

# CamemBERT and XLM-RoBERTa have the modules of RoBERTa. ELECTRA's decoder reads a projection.
FAMILIES = [
    "bert",
    *(
        pytest.param(each, marks=pytest.mark.slow)
        for each in ("deberta-v2", "distilbert", "electra", "modernbert", "mpnet", "roberta")
    ),
]
WORDS = 1024


@pytest.fixture(scope="module")
def read(save_tiny, tmp_path_factory) -> Callable[[str], EncoderModel]:
    """The masked LM of a family as data."""
    made = {}

    def make(family: str) -> EncoderModel:
        if family not in made:
            folder = tmp_path_factory.mktemp("tied")
            save_tiny(folder, family, transformers.AutoModelForMaskedLM)
            made[family] = encoder_of(load_checkpoint(str(folder), task="fill-mask"))
        return made[family]

    return make


def lowered(model: EncoderModel, target: str, embeddings: str = "int8") -> ir.Model:
    """Write the graph of a target that needs no ranges."""
    plan = make_plan(TARGETS[target], sites_of(model), embeddings=embeddings)
    return lower(model, plan, Choices())


def tables(model: ir.Model) -> list[np.dtype]:
    """Return the dtypes of the matrices with a row or a column for each word."""
    arrays = [constant_array(each) for each in model.graph.initializers.values()]
    return [each.dtype for each in arrays if each.ndim == 2 and WORDS in each.shape]


def decoder_of(model: ir.Model) -> tuple[ir.Node, ir.Node, np.ndarray]:
    """Return the decoder's MatMul, the Transpose of its weight, and the weight."""
    for node in model.graph:
        transpose = producer_of(node.inputs[1], "Transpose") if node.op_type == "MatMul" else None
        table = None if transpose is None else constant_array(transpose.inputs[0])
        if table is not None and WORDS in table.shape:
            return node, transpose, table
    raise AssertionError("no decoder")


def read_decoder(node: ir.Node) -> np.ndarray | None:
    """Return the table that a MatMul multiplies by, if it is a shared one."""
    transpose = producer_of(node.inputs[1], "Transpose") if node.op_type == "MatMul" else None
    return None if transpose is None else read_shared_table(transpose.inputs[0])


def sqnr(reference: np.ndarray, found: np.ndarray) -> float:
    return float(10 * np.log10(np.sum(reference**2) / np.sum((found - reference) ** 2)))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_graph_has_one_table_of_codes(read, family) -> None:
    model = read(family)
    assert tables(lowered(model, "onnxruntime-dynamic")) == [np.int8, np.int8]
    assert tables(make_graph(model)) == [np.float32]


def test_embeddings_in_float_are_stored_once_too(read) -> None:
    assert tables(lowered(read("bert"), "onnxruntime-dynamic", "float")) == [np.float32]


def test_the_decoder_is_not_rounded_to_8_bits(read, run_plainly) -> None:
    encoder = read("bert")
    specs = make_plan(TARGETS["portable"], sites_of(encoder), embeddings="int8").specs
    of_table = {name: spec for name, spec in specs.items() if "word_embed" in name}
    model = make_graph(encoder, of_table)
    plain = model.clone()
    matmul = next(node for node in plain.graph if read_decoder(node) is not None)
    table = encoder.embeddings.words.rows[:]
    matmul.replace_input_with(1, add_constant(plain.graph, "turned", table.T))
    inputs = random_inputs((3, 9))
    expected, found, half = (
        run_plainly(each, inputs)["logits"]
        for each in (tidy(plain), model, to_half_precision(model.clone()))
    )
    assert sqnr(expected, found) > 80
    assert sqnr(expected, half) > 25


def test_a_transposed_copy_of_the_table_is_read_as_the_table(read) -> None:
    model = make_graph(read("bert"))
    matmul, _, table = decoder_of(model)
    matmul.replace_input_with(1, add_constant(model.graph, "turned", table.T))
    tidy(model)
    assert len(tables(model)) == 2
    found = read_encoder(model, ["logits"], longest=64).encoder
    assert tables(lowered(found, "onnxruntime-dynamic")) == [np.int8, np.int8]


def test_a_decoder_with_other_weights_stays_in_float(read) -> None:
    model = read("bert")
    (head,) = model.heads
    *steps, decoder = head.steps
    other = dataclasses.replace(decoder, weight=decoder.weight[:] + 1)
    untied = dataclasses.replace(model, heads=(dataclasses.replace(head, steps=(*steps, other)),))
    dtypes = tables(lowered(untied, "onnxruntime-dynamic"))
    assert sorted(map(str, dtypes)) == ["float32", "int8"]


def test_codes_and_their_rest_have_16_bits() -> None:
    table = np.random.default_rng(0).normal(size=(500, 8)).astype(np.float32)
    scale = np.abs(table).max(axis=0) / np.float32(127)
    codes = np.rint(table / scale).astype(np.int8)
    error = np.abs(joined(codes, rest_of(table, codes, scale), scale) - table)
    # Half a step of 16 bits; a whole one where the rest would be 128.
    assert (error <= scale / 256 * 1.01).all()
    assert error.mean() < (scale / 256).mean() / 3


@pytest.mark.parametrize("embeddings", ["int8", "float"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_native_file_has_one_table(save_tiny, tmp_path, family, embeddings) -> None:
    save_tiny(tmp_path, family, transformers.AutoModelForMaskedLM)
    encoder = encoder_of(load_checkpoint(str(tmp_path), task="fill-mask"))
    plan = make_plan(TARGETS["native-dynamic"], sites_of(encoder), embeddings=embeddings)
    packed = pack_model(quantize_encoder(encoder, plan.specs, Choices()))
    large = [name for name, each in packed.arrays.items() if each.size >= 16 * WORDS]
    assert sorted(large) == (["word_rest", "words"] if embeddings == "int8" else ["words"])
    assert packed.arrays["words"].dtype == (np.int8 if embeddings == "int8" else np.float32)
    check_packed(packed)
