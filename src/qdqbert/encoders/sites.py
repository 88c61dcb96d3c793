"""Where a model can be quantized: the sites of its layers and of its tables."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from qdqbert.encoders.model import EncoderModel, Layer, Linear, Table
from qdqbert.spec import (
    Site,
    SiteGroup,
    Source,
    linear_sites,
    matmul_sites,
    residual_sites,
    table_site,
)


def sites_of(
    model: EncoderModel, groups: Collection[SiteGroup] = ("layer", "table")
) -> tuple[Site, ...]:
    """Return the sites of some groups: first those of the tables, then layer by layer."""
    found = [table_site(table.module) for table in tables_of(model)]
    for layer in model.layers:
        found += [*_sites(layer), *_output_sites(layer, is_last=layer is model.layers[-1])]
    # A module that is read as several layers has one site.
    by_name = {site.name: site for site in found if site.group in groups}
    return tuple(by_name.values())


def tables_of(model: EncoderModel) -> tuple[Table, ...]:
    """Return the embedding tables of a model."""
    tables = model.embeddings
    every = (tables.words, tables.positions, tables.token_types)
    return tuple(table for table in every if table is not None)


def parent_of(linear: Linear) -> str:
    """Return the path of the module around that of a linear layer.

    That around the query computes the matmuls of the attention. Those around the last layers of
    the two parts of an encoder layer add their outputs to the states.
    """
    return linear.module.rpartition(".")[0]


def linear_layers_of(layer: Layer) -> Iterator[tuple[Linear, Source]]:
    """Yield the linear layers of an encoder layer, and what each reads."""
    attention = layer.attention
    for linear in (attention.query, attention.key, attention.value):
        yield linear, "norm"
    yield attention.output, "attention"
    yield layer.up, "norm"
    if layer.gate is not None:
        yield layer.gate, "norm"
    yield layer.down, "activation" if layer.gate is None else "gate"


def _sites(layer: Layer) -> Iterator[Site]:
    for linear, source in linear_layers_of(layer):
        yield from linear_sites(linear.module, source)
    yield from matmul_sites(parent_of(layer.attention.query)).values()
    for linear in (layer.attention.output, layer.down):
        yield from residual_sites(parent_of(linear))


def _output_sites(layer: Layer, *, is_last: bool) -> Iterator[Site]:
    """Yield the outputs that no other site reads, for the recipe `qordered`.

    Source: onnxruntime-inference-examples, `quantization/qat/transformer_qat/qat_utils.py`.
    """
    after, end = parent_of(layer.attention.output), parent_of(layer.down)
    places = {
        f"{parent_of(layer.attention.query)}.softmax_input_quantizer": (2, 3),
        f"{parent_of(layer.up)}.activation_input_quantizer": (1,),
        f"{after}.layernorm_input_quantizer": (1,),
        f"{end}.layernorm_input_quantizer": (1,),
        **({f"{end}.layernorm_output_quantizer": (1,)} if is_last else {}),
    }
    for name, axes in places.items():
        yield Site(name=name, kind="activation", sequence_axes=axes, group="output")
