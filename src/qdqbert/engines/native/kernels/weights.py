"""Where weights are, in the order in which a forward pass reads them.

A linear layer gets the address of the weights that are read after its own, and brings their start
into the cache.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from qdqbert.engines.native.ir import PTR, Function, Value
from qdqbert.engines.native.kernels.dot import PANEL
from qdqbert.engines.native.records import LAYER, LINEAR, MODEL


def weights_of(linear: Value, panel: Value | int = 0) -> Value:
    """Return the address of a panel of weights of a `LINEAR` record."""
    return LINEAR.read(linear, "weights") + LINEAR.read(linear, "panel") * panel


def first_weights(f: Function, layer: Value, head: Value | int = 0) -> Value:
    """Return the weights of a layer that are read first, from a head on."""
    panel = MODEL.read(f.model, "head_size") * head // PANEL
    return weights_of(LAYER.read(layer, "projections"), panel)


@contextlib.contextmanager
def each_layer(f: Function) -> Iterator[tuple[Value, Value, Value]]:
    """Repeat the body for each `LAYER` record.

    Yields:
        The record; the one that reads its states, or null after the last one; and the one whose
        weights are read after its own, which is the first one after the last one.
    """
    layers, count = MODEL.each(f.model, "layers", "layer_count")
    with f.loop(0, count) as index:
        layer = layers + index * LAYER.size
        is_last = (index + 1).equals(count)
        after = layer + LAYER.size
        yield layer, is_last.select(f.constant(PTR, 0), after), is_last.select(layers, after)
