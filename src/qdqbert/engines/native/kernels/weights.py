"""Where weights are, in the order in which a forward pass reads them.

A linear layer gets the address of the weights that are read after its own, and brings their start
into the cache.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from qdqbert.engines.native.ir import Function, Value
from qdqbert.engines.native.kernels.dot import PANEL
from qdqbert.engines.native.records import LAYER, LINEAR, MODEL


def weights_of(f: Function, linear: Value, panel: Value | int = 0) -> Value:
    """Return the address of a panel of weights of a `LINEAR` record."""
    return LINEAR.read(f, linear, "weights") + LINEAR.read(f, linear, "panel") * panel


def first_weights(f: Function, layer: Value, head: Value | int = 0) -> Value:
    """Return the weights of a layer that are read first, from a head on."""
    panel = MODEL.read(f, f.model, "head_size") * head // PANEL
    return weights_of(f, LAYER.read(f, layer, "projections"), panel)


@contextlib.contextmanager
def each_layer(f: Function) -> Iterator[tuple[Value, Value]]:
    """Repeat the body for each `LAYER` record, with the record that comes after it.

    After the last layer comes the first one, of the next forward pass.
    """
    layers, count = (MODEL.read(f, f.model, name) for name in ("layers", "layer_count"))
    with f.loop(0, count) as index:
        layer = layers + index * LAYER.size
        yield layer, (index + 1 < count).select(layer + LAYER.size, layers)
