"""Models in the layout of the kernels, and models that the kernels do not compute."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from native_models import DISENTANGLED, MODERN, Shape, random_model
from qdqbert.common.errors import GraphError
from qdqbert.encoders.model import Norm, Residual
from qdqbert.engines.native.instruction_sets import INSTRUCTION_SETS, usable_sets
from qdqbert.engines.native.packed import _fits_16_bits, pack_model
from qdqbert.engines.native.program import Program

# A LayerNorm; kernels have RMSNorms of queries and keys only.
NORM = Norm(weight=np.ones(40, np.float32), bias=np.ones(40, np.float32), epsilon=1e-5)
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
        ("attention", {"query_norm": NORM}, "needs equal layers; layer 1"),
        ("residual", {"again": NORM}, "a second time only after an attention .* layer 1"),
        ("residual", {"local_norm": NORM}, "needs equal layers; layer 1"),
        ("attention_residual", {"local_norm": NORM}, "the outputs of both parts .* layer 1"),
        ("attention", {"causal": True}, "needs equal layers; layer 1"),
    ],
)
def test_layers_that_kernels_do_not_compute_are_refused(part, changes, message) -> None:
    with pytest.raises(GraphError, match=message):
        pack_model(with_layer(**{part: changed(part, **changes)}))


@pytest.mark.parametrize(
    "norms",
    [
        {"query_norm": dataclasses.replace(NORM, subtracts_mean=False)},
        {"query_norm": NORM, "key_norm": NORM},
        dict.fromkeys(
            ("query_norm", "key_norm"),
            Norm(weight=np.ones(8), bias=np.ones(8), epsilon=1e-5, subtracts_mean=False),
        ),
        {
            **dict.fromkeys(
                ("query_norm", "key_norm"), dataclasses.replace(NORM, subtracts_mean=False)
            ),
            "norms_each_head": True,
        },
    ],
    ids=["one", "LayerNorms", "of one head", "of all heads"],
)
def test_norms_of_queries_and_keys_are_rms_norms_of_all_channels(norms) -> None:
    model = random_model(SHAPE)
    layers = tuple(
        dataclasses.replace(each, attention=dataclasses.replace(each.attention, **norms))
        for each in model.layers
    )
    with pytest.raises(GraphError, match="either no norms of queries and keys or two RMSNorms"):
        pack_model(dataclasses.replace(model, layers=layers))


def test_models_have_the_precision_that_was_asked_for() -> None:
    with pytest.raises(GraphError, match="needs all linear layers in float; layer 0"):
        pack_model(random_model(SHAPE), precision="float")
    with pytest.raises(GraphError, match="needs all linear layers in int8; layer 0"):
        pack_model(random_model(dataclasses.replace(SHAPE, floats=True)))


def test_layers_with_other_activation_functions_are_refused() -> None:
    with pytest.raises(GraphError, match="needs equal layers; layer 1"):
        pack_model(with_layer(activation="relu"))


def test_layers_with_norms_in_other_places_are_refused() -> None:
    norm = random_model(SHAPE).layers[0].residual.norm
    with pytest.raises(GraphError, match=r"either before or after .* layer 1 has neither or both"):
        pack_model(with_layer(up_norm=norm))
    with pytest.raises(GraphError, match=r"either before or after .* layer 1 has neither or both"):
        pack_model(with_layer(attention_residual=Residual()))


def test_a_gate_needs_the_codes_of_what_it_multiplies() -> None:
    model = random_model(MODERN)
    gate = model.layers[1].gate
    codes = dataclasses.replace(gate.codes, zero_point=gate.codes.zero_point ^ 1)
    changed = dataclasses.replace(model.layers[1], gate=dataclasses.replace(gate, codes=codes))
    with pytest.raises(GraphError, match="gate of layer 1 and its factor have different codes"):
        pack_model(dataclasses.replace(model, layers=(model.layers[0], changed)))


@pytest.mark.parametrize("change", ["keys", "rows", "order"])
def test_relative_positions_that_differ_between_layers_are_refused(change) -> None:
    model = random_model(DISENTANGLED)
    relative = model.layers[1].attention.relative
    rows = relative.rows.copy()
    rows[0] = rows[0] - 1 if change == "rows" else 0
    changed = {
        "keys": {"keys": None},
        "rows": {"rows": rows},
        "order": {"rows": rows},
    }[change]
    attention = dataclasses.replace(
        model.layers[1].attention, relative=dataclasses.replace(relative, **changed)
    )
    layer = dataclasses.replace(model.layers[1], attention=attention)
    with pytest.raises(GraphError, match=r"equal relative positions .* layer 1"):
        pack_model(dataclasses.replace(model, layers=(model.layers[0], layer)))


def test_rows_of_relative_positions_are_stored_in_rising_order() -> None:
    model = random_model(DISENTANGLED)
    relative, packed = model.layers[0].attention.relative, pack_model(model)
    count = relative.keys.shape[1]
    assert relative.rows[0] > relative.rows[-1]
    np.testing.assert_array_equal(
        packed.arrays["relative_rows"][: len(relative.rows)], count - 1 - relative.rows
    )
    # The first panel of the first head: `(head size, 16 rows)`, with padded channels.
    panel = packed.arrays["layers.0.relative_keys"][0, 0]
    scale = model.layers[0].attention.scale * np.log2(np.e)
    np.testing.assert_allclose(panel[:8], relative.keys[0, ::-1][:16].T * scale, rtol=1e-5)
    assert not panel[8:].any()


def test_rotations_of_positions_that_skip_padding_tokens_are_refused() -> None:
    model = random_model(MODERN)
    embeddings = dataclasses.replace(model.embeddings, padding_id=1)
    with pytest.raises(GraphError, match="does not count padding tokens"):
        pack_model(dataclasses.replace(model, embeddings=embeddings))


def test_equal_rotations_are_stored_once() -> None:
    model = random_model(dataclasses.replace(MODERN, layers=4))
    packed = pack_model(model)
    assert [each["rotation"] for each in packed.settings["layers"]] == [0, 0, 0, 1]
    stored = packed.arrays["rotations.1"]
    rotary = model.layers[3].attention.rotary
    # Heads of 8 channels are padded to 32: each half has 4 of 16.
    np.testing.assert_array_equal(stored[:, 0, :4], rotary.cos)
    np.testing.assert_array_equal(stored[:, 1, :4], rotary.sin)
    assert stored.shape == (80, 2, 16)
    assert not stored[:, :, 4:].any()


def test_static_and_dynamic_scales_together_are_refused() -> None:
    up = changed("up")
    codes = dataclasses.replace(up.codes, dynamic=True)
    with pytest.raises(GraphError, match=r"either static or dynamic .* layer 1 has both"):
        pack_model(with_layer(up=dataclasses.replace(up, codes=codes)))


@pytest.mark.skipif("avx2" not in [each.name for each in usable_sets()], reason="needs AVX2")
@pytest.mark.parametrize(("largest", "is_exact"), [(64, False), (127, True)])
def test_weights_without_a_limit_get_exact_kernels(largest, is_exact) -> None:
    packed = pack_model(random_model(Shape(layers=1, largest_code=largest)))
    assert Program(packed, INSTRUCTION_SETS["avx2"]).isa.dot.is_exact == is_exact
