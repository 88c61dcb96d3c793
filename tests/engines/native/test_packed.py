"""Models in the layout of the kernels, and models that the kernels do not compute."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from native_models import Shape, random_model
from qdqbert.engines.native.instruction_sets import INSTRUCTION_SETS, usable_sets
from qdqbert.engines.native.packed import _fits_16_bits, pack_model
from qdqbert.engines.native.program import Program
from qdqbert.errors import GraphError

SHAPE = Shape(hidden=40, heads=5, head=8, inner=72, position_bias=True)


def with_layer(**changes):
    """Return a model whose second layer is changed."""
    model = random_model(SHAPE)
    first, second = model.layers
    return dataclasses.replace(model, layers=(first, dataclasses.replace(second, **changes)))


def changed(part: str, **changes):
    return dataclasses.replace(getattr(random_model(SHAPE).layers[1], part), **changes)


def test_padding_adds_nothing() -> None:
    packed = pack_model(random_model(SHAPE))
    # 5 heads of 8 channels, each in 16 channels; 72 inner channels in 128.
    assert packed.settings["head_size"] == 16
    output = packed.arrays["layers.0.output.weights"]
    assert output.shape == (3, 128 // 4, 16, 4)
    by_head = output.transpose(1, 3, 0, 2).reshape(8, 16, 48)
    assert not by_head[:5, 8:].any()
    assert not by_head[5:].any()
    assert by_head[:5, :8, :40].any(axis=(1, 2)).all()
    assert (
        not packed.arrays["layers.0.down.weights"].transpose(1, 3, 0, 2).reshape(128, 48)[72:].any()
    )
    assert not packed.arrays["words"][:, 40:].any()


@pytest.mark.parametrize(
    ("pair", "fits"),
    [
        ((64, 64), True),
        ((64, 65), False),
        ((-64, -64), True),
        ((-64, -65), False),
        ((127, -128), True),
        ((127, 1), True),
        ((127, 2), False),
    ],
)
def test_adjacent_weights_fit_in_16_bits(pair, fits) -> None:
    weight = np.zeros((3, 8), np.int8)
    weight[1, 2:4] = pair
    assert _fits_16_bits(weight) == fits
    # These two are not multiplied together.
    weight[1, 2:6] = 0, pair[0], pair[1], 0
    assert _fits_16_bits(weight)


@pytest.mark.parametrize(
    ("part", "changes", "message"),
    [
        ("up", {"codes": None}, "needs all linear layers in int8; layer 1"),
        ("attention", {"position_bias": np.zeros((5, 9), np.float32)}, "position bias of layer 1"),
        ("attention", {"scale": 3.0}, "needs equal layers; layer 1"),
        ("attention", {"causal": True}, "needs equal layers; layer 1"),
    ],
)
def test_layers_that_kernels_do_not_compute_are_refused(part, changes, message) -> None:
    with pytest.raises(GraphError, match=message):
        pack_model(with_layer(**{part: changed(part, **changes)}))


def test_layers_with_other_activation_functions_are_refused() -> None:
    with pytest.raises(GraphError, match="needs equal layers; layer 1"):
        pack_model(with_layer(activation="relu"))


def test_static_and_dynamic_scales_together_are_refused() -> None:
    up = changed("up")
    codes = dataclasses.replace(up.codes, dynamic=True)
    with pytest.raises(GraphError, match=r"either static or dynamic .* layer 1 has both"):
        pack_model(with_layer(up=dataclasses.replace(up, codes=codes)))


@pytest.mark.skipif("avx2" not in [each.name for each in usable_sets()], reason="needs AVX2")
@pytest.mark.parametrize(("largest", "is_exact"), [(64, False), (127, True)])
def test_weights_without_a_limit_get_exact_kernels(largest, is_exact) -> None:
    packed = pack_model(random_model(Shape(layers=1, largest_code=largest)))
    assert Program(packed, INSTRUCTION_SETS["avx2"]).isa.is_exact == is_exact
