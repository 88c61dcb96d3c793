from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from qdqbert.errors import UserInputError
from qdqbert.graph.imported.canonical_form import to_canonical_form
from qdqbert.graph.imported.onnx_file import read_graph
from qdqbert.graph.imported.roles import find_roles
from qdqbert.graph.imported.sites import SitedGraph, mark_sites
from qdqbert.graph.qdq import float_graph, sites_of

TABLES = {"bert": 3, "roberta": 2, "distilbert": 2, "electra": 3}


def sited(path) -> SitedGraph:
    model = to_canonical_form(read_graph(path))
    return mark_sites(model, find_roles(model))


@pytest.mark.parametrize("family", TABLES)
def test_a_layer_has_twenty_sites_and_each_table_one(exported, family) -> None:
    graph = sited(exported(family))
    assert len(graph.sites) == 2 * 20 + TABLES[family]
    assert len({site.name for site in graph.sites}) == len(graph.sites)
    marked = {node.attributes["site"].as_string() for node in sites_of(graph.graph.graph)}
    assert marked == {site.name for site in graph.sites}


def test_sites_are_named_as_those_of_the_checkpoint(exported, prepared) -> None:
    ours = {
        site.name: site
        for site in prepared("bert").sited.sites
        if not site.name.startswith("embeddings.")
    }
    found = {
        site.name: site
        for site in sited(exported("bert")).sites
        if not site.name.startswith("embeddings.")
    }
    assert set(found) == set(ours)
    for name, site in found.items():
        assert (site.kind, site.channel_axis) == (ours[name].kind, ours[name].channel_axis)
        assert (site.source, site.sequence_axes) == (ours[name].source, ours[name].sequence_axes)


@pytest.mark.parametrize("family", TABLES)
def test_sites_change_nothing(exported, padded_inputs, run_plainly, family) -> None:
    before = to_canonical_form(read_graph(exported(family)))
    expected = run_plainly(before, padded_inputs)
    graph = mark_sites(before, find_roles(before))
    result = run_plainly(float_graph(graph.graph), padded_inputs)
    for name, array in expected.items():
        np.testing.assert_allclose(result[name], array, atol=1e-5)


def test_weights_are_those_of_each_linear_as_torch_keeps_them(exported) -> None:
    graph = sited(exported("bert"))
    assert len(graph.weights) == 12
    assert graph.weights["encoder.layer.1.intermediate.dense._input_quantizer"].shape == (64, 32)


def test_linear_layers_of_the_head_have_no_sites(exported) -> None:
    graph = sited(exported("bert"))
    for node in graph.graph.graph:
        if node.op_type == "MatMul" and "layer" not in (node.name or ""):
            assert all(
                value.producer() is None or value.producer().op_type != "Site"
                for value in node.inputs
            )
    assert all(site.name.startswith(("encoder.layer.", "embeddings.")) for site in graph.sites)


def test_starts_and_sources_are_values_of_the_graph(exported) -> None:
    graph = sited(exported("bert"))
    values = {value.name for node in graph.graph.graph for value in node.outputs}
    assert len(set(graph.starts)) == 2
    assert set(graph.starts) <= values
    assert set(graph.sources.values()) <= values


def test_a_matmul_with_heads_and_texts_in_one_axis_is_refused(exported) -> None:
    model = to_canonical_form(read_graph(exported("bert")))
    roles = find_roles(model)
    roles.layers[0].scores.inputs[0].shape = ir.Shape(["n", "s", 8])
    with pytest.raises(UserInputError, match="multiplies tensors of 3 dimensions"):
        mark_sites(model, roles)
