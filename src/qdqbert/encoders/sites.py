"""Where a model can be quantized: the sites of its layers and of its tables."""

from __future__ import annotations

from collections.abc import Iterator

from qdqbert.encoders.model import EncoderModel, Layer, Linear, Table
from qdqbert.spec import Site, Source, linear_sites, matmul_sites, residual_sites, table_site


def sites_of(model: EncoderModel) -> tuple[Site, ...]:
    """Return the sites of a model, first those of its tables, then layer by layer."""
    found: dict[str, Site] = {}
    for site in (*_table_sites(model), *(each for layer in model.layers for each in _sites(layer))):
        found.setdefault(site.name, site)
    return tuple(found.values())


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


def _table_sites(model: EncoderModel) -> Iterator[Site]:
    for table in tables_of(model):
        yield table_site(table.module)


def _sites(layer: Layer) -> Iterator[Site]:
    for linear, source in linear_layers_of(layer):
        yield from linear_sites(linear.module, source)
    yield from matmul_sites(parent_of(layer.attention.query)).values()
    for linear in (layer.attention.output, layer.down):
        yield from residual_sites(parent_of(linear))
