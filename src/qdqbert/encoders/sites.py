"""Where a model can be quantized: the sites of its layers and of its tables."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np

from qdqbert.encoders.model import EncoderModel, Floats, Layer, Linear, Table
from qdqbert.quantization.spec import (
    Site,
    SiteGroup,
    Source,
    linear_sites,
    matmul_sites,
    output_sites,
    residual_sites,
    table_site,
)


def sites_of(
    model: EncoderModel, groups: Collection[SiteGroup] = ("layer", "table")
) -> tuple[Site, ...]:
    """Return the sites of some groups: first of the tables, then layer by layer."""
    found = [table_site(table.module) for table in tables_of(model)]
    for sites in sites_of_layers(model):
        found += sites
    # A module that is read as several layers has one site.
    by_name = {site.name: site for site in found if site.group in groups}
    return tuple(by_name.values())


def sites_of_layers(model: EncoderModel) -> Iterator[list[Site]]:
    """Yield the sites of each encoder layer, of all groups. A site may occur several times."""
    for layer in model.layers:
        yield [*_sites(layer), *_output_sites(layer, is_last=layer is model.layers[-1])]


def tables_of(model: EncoderModel) -> tuple[Table, ...]:
    """Return the embedding tables of a model."""
    tables = model.embeddings
    every = (tables.words, tables.positions, tables.token_types)
    return tuple(table for table in every if table is not None)


def parent_of(linear: Linear) -> str:
    """Return the path of the module that contains a linear layer.

    The module of the query computes the matmuls of the attention. The modules of the last layers
    of the two parts of an encoder layer add their outputs to the states.
    """
    return linear.module.rpartition(".")[0]


def linear_layers_of(layer: Layer) -> Iterator[tuple[Linear, Source]]:
    """Yield the linear layers of an encoder layer, and the source of each one's input."""
    attention = layer.attention
    for linear in (attention.query, attention.key, attention.value):
        yield linear, "norm"
    yield attention.output, "attention"
    yield layer.up, "norm"
    if layer.gate is not None:
        yield layer.gate, "norm"
    yield layer.down, "activation" if layer.gate is None else "gate"


def modules_of(linears: Iterable[Linear]) -> Iterator[tuple[Linear, ...]]:
    """Yield the linear layers of each module, in the order of its outputs."""
    found: dict[str, list[Linear]] = {}
    for linear in linears:
        found.setdefault(linear.module, []).append(linear)
    for parts in found.values():
        yield tuple(sorted(parts, key=lambda part: part.first))


def module_parameters(parts: Sequence[Linear]) -> tuple[Floats, Floats]:
    """Return weight `(out, in)` and bias of the module of some linear layers in float."""
    if len(parts) == 1:
        return np.asarray(parts[0].weight, np.float32), parts[0].bias
    weights = [np.asarray(part.weight, np.float32) for part in parts]
    return np.concatenate(weights), np.concatenate([part.bias for part in parts])


def _sites(layer: Layer) -> Iterator[Site]:
    for linear, source in linear_layers_of(layer):
        yield from linear_sites(linear.module, source, linear.weight.shape[1])
    yield from matmul_sites(parent_of(layer.attention.query)).values()
    for linear in (layer.attention.output, layer.down):
        yield from residual_sites(parent_of(linear))


def _output_sites(layer: Layer, *, is_last: bool) -> Iterator[Site]:
    yield from output_sites(
        parent_of(layer.attention.query),
        parent_of(layer.up),
        [parent_of(layer.attention.output), parent_of(layer.down)],
        is_last=is_last,
    )
