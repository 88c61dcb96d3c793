"""Settings and arrays of a packed model are checked before a kernel gets an address."""

from __future__ import annotations

import copy
import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from native_models import (
    DECODER,
    DISENTANGLED,
    EXPERTS,
    MODERN,
    SANDWICH,
    Shape,
    packed_model,
    random_model,
)
from qdqbert.common.errors import CheckpointError
from qdqbert.encoders.model import Head, HeadOutput, Linear, Norm
from qdqbert.engines.native.checks import check_packed
from qdqbert.engines.native.instruction_sets import INSTRUCTION_SETS
from qdqbert.engines.native.packed import pack_model
from qdqbert.engines.native.program import Program
from qdqbert.engines.native.storage import Packed

_ONES = np.ones(24, np.float32)
HEADS = (
    Head(
        poolings=("mean",),
        steps=(
            Linear(weight=np.ones((24, 40), np.float32), bias=_ONES),
            "gelu",
            Norm(weight=_ONES, bias=_ONES, epsilon=1e-5),
            "normalize",
        ),
        outputs=(HeadOutput(name="start", column=0), HeadOutput(name="all")),
    ),
)
SHAPE = Shape(
    hidden=40, heads=5, head=8, inner=72, layers=1, limit=20, position_bias=True, padding_id=1
)


@pytest.fixture(scope="module")
def packed() -> Packed:
    return pack_model(random_model(SHAPE, HEADS))


@pytest.fixture(scope="module")
def modern() -> Packed:
    return pack_model(random_model(MODERN, HEADS))


@pytest.fixture(scope="module")
def in_float() -> Packed:
    return packed_model(dataclasses.replace(SHAPE, floats=True), HEADS)


@pytest.fixture(scope="module")
def disentangled() -> Packed:
    return pack_model(random_model(DISENTANGLED, HEADS))


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the place of each setting, nested ones too."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else []
    items = enumerate(value) if isinstance(value, list) else items
    return found + [each for key, part in items for each in places(part, (*path, key))]


def changed(settings: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    found = copy.deepcopy(settings)
    *parents, last = path
    inner = found
    for key in parents:
        inner = inner[key]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return found


@pytest.mark.parametrize(
    "shape",
    [
        Shape(),
        SHAPE,
        Shape(shared_codes=False, words_are_int8=False, narrow=24),
        MODERN,
        DECODER,
        SANDWICH,
        EXPERTS,
        DISENTANGLED,
        dataclasses.replace(MODERN, floats=True),
        Shape(convolution=3, words_are_int8=False, hidden=40, heads=5, head=8),
        Shape(normalizes_heads=True, adds_twice=True, hidden=40, heads=5, head=8),
        Shape(has_positions=False, has_types=False, hidden=312, inner=100, layers=1, head=26),
    ],
)
def test_packed_models_pass(shape) -> None:
    packed = packed_model(shape)
    check_packed(packed)
    check_packed(Packed(arrays=packed.arrays, settings=json.loads(json.dumps(packed.settings))))


def test_a_program_checks_its_model(packed) -> None:
    arrays = packed.arrays | {"words": packed.arrays["words"][:, :-1]}
    with pytest.raises(CheckpointError, match=r"array 'words' is int8 \(97, 63\).*\(any, 64\)"):
        Program(Packed(arrays=arrays, settings=packed.settings), INSTRUCTION_SETS["portable"])


def test_every_array_is_needed_in_its_dtype_and_shape(packed) -> None:
    for name, array in packed.arrays.items():
        wrong = [
            array.astype(np.float64),
            array[..., :-1],
            array[None],
            array[:0],
            array.view(np.uint8 if array.dtype == np.int8 else np.uint32),
        ]
        if name not in ("words", "token_types"):
            # Tables have any number of rows.
            wrong.append(array[:-1])
        for each in wrong:
            changed = Packed(arrays=packed.arrays | {name: each}, settings=packed.settings)
            with pytest.raises(CheckpointError, match=f"damaged: array '{name}' is "):
                check_packed(changed)
        if name != "layers.0.position_bias":
            rest = {other: each for other, each in packed.arrays.items() if other != name}
            with pytest.raises(CheckpointError, match=f"array '{name}' is missing"):
                check_packed(Packed(arrays=rest, settings=packed.settings))
    more = packed.arrays | {"more": np.zeros(16, np.float32)}
    with pytest.raises(CheckpointError, match="array 'more' is unknown"):
        check_packed(Packed(arrays=more, settings=packed.settings))


def test_every_setting_is_needed(packed) -> None:
    for path in places(packed.settings):
        if isinstance(path[-1], str) and path[-1] != "column":
            settings = changed(packed.settings, path, ...)
            with pytest.raises(CheckpointError, match=f"{path[-1]}' is missing"):
                check_packed(Packed(arrays=packed.arrays, settings=settings))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("hidden",), 0, "setting 'hidden' is 0 and has to be an integer from 1 to 65536"),
        (("hidden",), True, "setting 'hidden' is True"),
        (("hidden",), 40.0, "setting 'hidden' is 40.0"),
        (("hidden",), 104, r"setting 'embeddings.width' is 40 .* from 104 to 104"),
        (("hidden",), 41, r"setting 'embeddings.width' is 40"),
        (("inner",), 10**30, "setting 'inner' is 1000"),
        (("heads",), 6, "array 'layers.0.position_bias'"),
        (("heads",), 30_000, "30000 heads of 16 channels are too many"),
        (("head_size",), 24, "setting 'head_size' is 24 and has to be a multiple of 16"),
        (("limit",), 21, "array 'positions'"),
        (("limit",), -1, "setting 'limit'"),
        (("activation",), "swish", "setting 'activation' is 'swish' .* gelu, gelu_tanh"),
        (("activation",), ["gelu"], "setting 'activation'"),
        (("score_scale",), float("nan"), "setting 'score_scale' is nan .* a finite number"),
        (("score_scale",), "1", "setting 'score_scale'"),
        (("causal",), 1, "setting 'causal' is 1 and has to be true or false"),
        (("input_names",), ["input_ids"], "have no 'attention_mask'"),
        (("input_names",), "input_ids", "a list of different names"),
        (("input_names",), ["input_ids", "input_ids"], "a list of different names"),
        (("padding_id",), "0", "setting 'padding_id'"),
        (("dropped_id",), -1, "setting 'dropped_id' is -1"),
        (("embeddings",), [], r"setting 'embeddings' is \[\]"),
        (("embeddings", "width"), 41, r"embeddings.width' is 41 .* from 40 to 40"),
        (("embeddings", "projection"), 1, r"embeddings.projection' is 1"),
        (("embeddings", "projection"), {"width": 40, "depth": 64, "columns": 48}, "is missing"),
        (("embeddings", "projection"), {"width": 39}, "projection.width' is 39"),
        (("embeddings", "int8"), False, "array 'word_scale' is unknown"),
        (("embeddings", "has_positions"), False, r"array 'positions' .*\(1, 64\)"),
        (("embeddings", "has_types"), False, r"array 'token_types' .*\(1, 64\)"),
        (("layers",), [], "no layers"),
        (("layers",), {}, "a list"),
        (("layers", 0, "query", "columns"), 64, "query.columns' is 64"),
        (("layers", 0, "shares_codes"), 1, "shares_codes' is 1"),
        (("layers", 0, "up", "zero_point"), 256, "up.zero_point' is 256"),
        (("layers", 0, "down", "depth"), 64, "down.depth' is 64"),
        (("normalizes_heads",), True, "'layers.0.query_norm' does not fit"),
        (("norms_each_head",), True, "'norms_each_head' does not fit normalizes_heads=False"),
        (("norms_parts",), True, "'layers.0.attention_local_norm' does not fit"),
        (("adds_twice",), True, "'layers.0.attention_again' does not fit"),
        (("layers", 0, "key_norm"), {}, "'layers.0.key_norm' does not fit"),
        (("layers", 0, "norm", "epsilon"), -1.0, "norm.epsilon' is -1.0"),
        (("layers", 0, "norm", "epsilon"), 1e300, "norm.epsilon'"),
        (("heads_of_model", 0, "poolings"), ["none", "last"], "poolings' is .* 'none' alone"),
        (("heads_of_model", 0, "token_steps"), 5, "token_steps' is 5 .* from 0 to 4"),
        (("heads_of_model", 0, "steps", 0, "width"), 25, "steps.2.width' is 24"),
        (("heads_of_model", 0, "steps", 0, "kind"), "conv", "kind' is 'conv'"),
        (("heads_of_model", 0, "steps", 1, "name"), "exp", "name' is 'exp'"),
        (("heads_of_model", 0, "outputs", 0, "column"), 24, "column' is 24"),
        (("heads_of_model", 0, "outputs", 0, "name"), "all", "not different names"),
        (("heads_of_model", 0, "outputs", 0, "name"), ["all"], "not different names"),
        (("heads_of_model",), [], "not different names"),
    ],
)
def test_a_wrong_setting_is_named(packed, path, value, message) -> None:
    settings = changed(packed.settings, path, value)
    with pytest.raises(CheckpointError, match=message):
        check_packed(Packed(arrays=packed.arrays, settings=settings))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("norms_first",), False, "'layers.0.attention_norm' does not fit norms_first=False"),
        (("gated",), False, "up.columns' is 256"),
        (("rotations",), 1, "layers.1.rotation' is 1 .* from 0 to 0"),
        # A check that reads as many tables would take all memory.
        (("rotations",), 2**31 - 1, "'rotations' is 2147483647 and has to be .* from 0 to 2"),
        (("rotations",), 0, "layers.0.rotation' is 0"),
        (("padding_id",), 1, "'rotations' is 2 and has to be an integer from 0 to 0"),
        (("head_size",), 16, "setting 'head_size' is 16 and has to be a multiple of 32"),
        (("limit",), 81, r"array 'rotations.0' is float32 .*\(81, 2, 16\)"),
        (("final_norm",), None, "array 'final_norm.bias' is unknown"),
        (("layers", 1, "rotation"), None, "layers.1.rotation' is None"),
        (("layers", 1, "window"), -1, "layers.1.window' is -1"),
        (("layers", 1, "window"), 2.5, "layers.1.window' is 2.5"),
        (("layers", 1, "up_input_norm"), None, "'layers.1.up_input_norm' does not fit"),
        (("layers", 1, "norm"), {"width": 40, "epsilon": 0.0}, "'layers.1.norm' does not fit"),
        (("layers", 1, "attention_input_norm"), None, "attention_input_norm.bias' is unknown"),
    ],
)
def test_a_wrong_setting_of_a_model_that_normalizes_first_is_named(
    modern, path, value, message
) -> None:
    settings = changed(modern.settings, path, value)
    with pytest.raises(CheckpointError, match=message):
        check_packed(Packed(arrays=modern.arrays, settings=settings))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("floats",), False, "layers.0.query.zero_point' is missing"),
        (("dynamic",), True, "setting 'floats' does not fit dynamic=True"),
        (("spread_inner",), {"members": 1, "block": 8}, "does not fit dynamic=False"),
        (("layers", 0, "up", "columns"), 64, "up.columns' is 64"),
    ],
)
def test_a_wrong_setting_of_a_model_in_float_is_named(in_float, path, value, message) -> None:
    settings = changed(in_float.settings, path, value)
    with pytest.raises(CheckpointError, match=message):
        check_packed(Packed(arrays=in_float.arrays, settings=settings))


@pytest.mark.parametrize("part", ["weights", "bias"])
def test_arrays_of_a_layer_in_float_have_their_dtype_and_shape(in_float, part) -> None:
    name = f"layers.0.up.{part}"
    array = in_float.arrays[name]
    for wrong in (array[:-1], array.astype(np.int8), array.reshape(-1, 1)):
        with pytest.raises(CheckpointError, match=f"array '{name}' is "):
            check_packed(Packed(arrays=in_float.arrays | {name: wrong}, settings=in_float.settings))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("relative",), None, "array 'layers.0.relative_keys' is unknown"),
        (("relative", "keys"), False, "array 'layers.0.relative_keys' is unknown"),
        (("relative", "keys"), 1, "relative.keys' is 1"),
        (("relative", "rows"), 0, "relative.rows' is 0"),
        (("relative", "rows"), 12, "'relative_rows' is not in order from 0 to 11"),
        (("relative", "rows"), 33, r"relative_keys' is float32 .*\(5, 3, 16, 16\)"),
    ],
)
def test_a_wrong_setting_of_relative_positions_is_named(disentangled, path, value, message) -> None:
    settings = changed(disentangled.settings, path, value)
    with pytest.raises(CheckpointError, match=message):
        check_packed(Packed(arrays=disentangled.arrays, settings=settings))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("tokens", 4, "convolution.tokens' is 4 and has to be an odd number"),
        ("tokens", 5, "convolution.linear.depth' is 192"),
        ("activation", "exp", "convolution.activation' is 'exp'"),
    ],
)
def test_a_wrong_setting_of_a_convolution_is_named(path, value, message) -> None:
    found = pack_model(random_model(Shape(hidden=40, heads=5, head=8, convolution=3)))
    settings = changed(found.settings, ("convolution", path), value)
    with pytest.raises(CheckpointError, match=message):
        check_packed(Packed(arrays=found.arrays, settings=settings))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("layers", 0, "experts"), None, "layers.0.up.columns' is 640"),
        (("layers", 0, "experts", "chosen"), 6, "experts.chosen' is 6"),
        (("layers", 0, "experts", "chosen"), 0, "experts.chosen' is 0"),
        (("layers", 0, "experts", "router", "width"), 6, "layers.0.up.columns' is 640"),
        (("layers", 0, "experts", "router", "width"), 2000, "router.width' is 2000"),
        (("layers", 0, "experts", "router", "tied"), True, "router' is tied"),
        (
            ("layers", 0, "local_rounding"),
            {"zero_point": 0, "low": 0, "high": 255},
            "layers.0.experts' does not fit stored ranges",
        ),
        (("gated",), True, "layers.0.experts' does not fit gates"),
    ],
)
def test_a_wrong_setting_of_experts_is_named(path, value, message) -> None:
    found = packed_model(dataclasses.replace(EXPERTS, layers=1))
    settings = changed(found.settings, path, value)
    with pytest.raises(CheckpointError, match=message):
        check_packed(Packed(arrays=found.arrays, settings=settings))


@pytest.mark.parametrize("value", [-1, 10_000, 5])
def test_rows_of_relative_positions_are_in_order(disentangled, value) -> None:
    rows = disentangled.arrays["relative_rows"].copy()
    rows[100] = value
    arrays = disentangled.arrays | {"relative_rows": rows}
    with pytest.raises(CheckpointError, match="'relative_rows' is not in order"):
        check_packed(Packed(arrays=arrays, settings=disentangled.settings))


def _runs(packed: Packed, *, examples: int) -> Any:
    every = places(packed.settings)
    values = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.integers(0, 300),
        st.floats(),
        st.text(max_size=3),
        st.just([]),
        st.just({}),
        st.just(...),
    )

    @settings(max_examples=examples)
    @given(path=st.sampled_from(every), value=values)
    def run(path, value) -> None:
        if value is ... and isinstance(path[-1], int):
            value = None
        found = changed(packed.settings, path, value)
        try:
            check_packed(Packed(arrays=packed.arrays, settings=found))
        except CheckpointError:
            return
        # What passes can be run with the arrays that there are.
        program = Program(
            Packed(arrays=packed.arrays, settings=found), INSTRUCTION_SETS["portable"]
        )
        assert program.model[0]

    return run


def test_random_settings_are_taken_or_refused(packed, modern, disentangled, in_float) -> None:
    for model in (packed, modern, disentangled, in_float):
        _runs(model, examples=8)()


@pytest.mark.slow
def test_many_random_settings_are_taken_or_refused(packed, modern, disentangled, in_float) -> None:
    for model in (packed, modern, disentangled, in_float):
        _runs(model, examples=5_000)()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.parametrize(
    "name",
    [
        "word_scale",
        "embedding_norm.weight",
        "layers.0.up.bias",
        "layers.0.query.factor",
        "heads.0.0.bias",
    ],
)
def test_floats_that_are_not_finite_are_refused(packed: Packed, name: str, value: float) -> None:
    array = packed.arrays[name].astype(np.float32)
    array.flat[-1] = value
    with pytest.raises(CheckpointError, match=f"array '{name}' has a value"):
        check_packed(Packed(arrays=packed.arrays | {name: array}, settings=packed.settings))


@pytest.mark.parametrize("part", ["factor", "multiplier"])
def test_negative_scales_are_refused(packed: Packed, part: str) -> None:
    name = f"layers.0.up.{part}"
    array = -packed.arrays[name]
    with pytest.raises(CheckpointError, match=f"array '{name}' has a value"):
        check_packed(Packed(arrays=packed.arrays | {name: array}, settings=packed.settings))
