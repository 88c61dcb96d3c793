"""Whole models on the native engine, against numpy in float64."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import gc
import itertools
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from encoder_reference import run_encoder, run_head
from native_models import (
    ALL_PARTS,
    DECODER,
    DISENTANGLED,
    EXPERTS,
    HIDDEN_STATES,
    LIMIT,
    MODERN,
    ROUNDED,
    SANDWICH,
    VOCABULARY,
    Shape,
    packed_model,
    random_batch,
    random_model,
)
from qdqbert.common.errors import UserInputError
from qdqbert.common.input_names import POOLED
from qdqbert.encoders.model import Head, HeadOutput, Linear, Norm
from qdqbert.engines.native import schedule
from qdqbert.engines.native.buffers import Job
from qdqbert.engines.native.instruction_sets import choose_set, usable_sets
from qdqbert.engines.native.kernels.short_products import ShortProducts
from qdqbert.engines.native.packed import pack_model
from qdqbert.engines.native.program import Program
from qdqbert.engines.native.records import MAILBOX, THREAD
from qdqbert.engines.native.runner import NativeRunner
from qdqbert.engines.native.storage import save_packed
from qdqbert.evidence.fidelity import sqnr_db

LENGTHS = (LIMIT, 5, 1, 33, 16, 17)
# Each has one layer, so that all implementations give it the same input.
LAYERS = {
    "bert": Shape(layers=1),
    "position bias": Shape(
        hidden=40, heads=5, head=8, inner=72, layers=1, position_bias=True, has_types=False
    ),
    "narrow": Shape(
        hidden=312, heads=12, head=26, inner=200, layers=1, smoothed=True, narrow=24, padding_id=1
    ),
    "causal": Shape(
        heads=2, head=48, layers=1, causal=True, shared_codes=False, words_are_int8=False
    ),
    "relu": Shape(hidden=96, heads=2, head=64, inner=96, layers=1, activation="relu"),
    "dynamic": Shape(
        hidden=312, heads=12, head=26, inner=200, layers=1, dynamic=True, smoothed=True
    ),
    "dynamic tanh": Shape(hidden=40, heads=2, head=8, layers=1, dynamic=True, activation="tanh"),
    "weights of 8 bits": Shape(layers=1, largest_code=127, seed=2),
}
# Parts that BERT lacks.
PARTS = {
    "norms first": Shape(hidden=40, heads=5, head=8, inner=72, layers=1, norms_first=True),
    "gate": Shape(hidden=96, heads=2, head=64, inner=72, layers=1, gated=True, activation="silu"),
    "dynamic gate": Shape(
        hidden=40, inner=256, layers=1, gated=True, dynamic=True, norms_first=True
    ),
    "rotation": Shape(hidden=40, heads=5, head=8, layers=1, rotary=True, has_positions=False),
    "rotation of large heads": Shape(heads=2, head=64, layers=1, rotary=True),
    "window": Shape(layers=1, window=7),
    "window of one token": Shape(layers=1, window=0, causal=True),
    "window with position bias": Shape(layers=1, window=20, position_bias=True),
    "relative positions": dataclasses.replace(DISENTANGLED, layers=1),
    "relative keys": Shape(layers=1, relative_keys=True, heads=2, head=64, dynamic=True),
    "relative queries in a window": Shape(layers=1, relative_queries=True, window=11, seed=1),
    "no positions": Shape(layers=1, has_positions=False, activation="silu", seed=3),
    "convolution": Shape(hidden=40, heads=5, head=8, layers=1, convolution=5, dynamic=True),
    "second add": Shape(hidden=40, heads=5, head=8, layers=1, adds_twice=True, dynamic=True),
    "norms of heads": Shape(
        hidden=40, heads=5, head=8, layers=1, normalizes_heads=True, position_bias=True
    ),
    "norms of heads that are rotated": Shape(
        layers=1, heads=3, head=20, normalizes_heads=True, rotary=True, dynamic=True
    ),
    "norms of each head": dataclasses.replace(DECODER, layers=1),
    "norms of each head in heads of 128": dataclasses.replace(
        DECODER, layers=1, heads=3, head=128, dynamic=True, window=None
    ),
    "norms of each head in a head of 256": dataclasses.replace(
        DECODER, layers=1, heads=1, head=256, dynamic=True, causal=False
    ),
    "norms of each head without rotation": dataclasses.replace(
        DECODER, layers=1, rotary=False, head=20, heads=9
    ),
    "norms of parts": dataclasses.replace(SANDWICH, layers=1),
    "norms of parts before sums that are normalized": Shape(
        hidden=40, heads=5, head=8, inner=72, layers=1, norms_parts=True, dynamic=True
    ),
    "norms of parts that are rounded": Shape(
        hidden=40, layers=1, norms_parts=True, rounds=("local_codes", "residual_codes")
    ),
    "factor of float words": Shape(layers=1, factor=0.4, words_are_int8=False),
    "experts": Shape(hidden=40, heads=5, head=8, inner=72, layers=1, experts=5, dynamic=True),
    "many experts": Shape(layers=1, experts=17, dynamic=True, activation="relu"),
    "dropped token": Shape(layers=1, dropped_id=9, norms_first=True),
    "dropped token and float words": Shape(layers=1, dropped_id=9, words_are_int8=False, seed=4),
    "rounded products and adds": Shape(hidden=40, heads=5, head=8, layers=1, rounds=ROUNDED),
    "rounded queries and states": Shape(
        layers=1, rounds=("query_codes", "residual_codes"), rotary=True, norms_first=True
    ),
    "rounded products with positions": dataclasses.replace(
        DISENTANGLED, layers=1, rounds=ROUNDED, dynamic=True
    ),
}
ROUNDING = Shape(hidden=40, heads=5, head=8, inner=72, rounds=ROUNDED, window=9)
# Two layers whose hidden states are no multiple of the kernels' vectors.
NORMALIZED = Shape(hidden=40, heads=5, head=8, inner=72, normalizes_heads=True, adds_twice=True)
CONVOLVED = Shape(hidden=40, heads=5, head=8, inner=72, convolution=3)
TWICE = Shape(hidden=40, heads=5, head=8, inner=72, adds_twice=True)
DEEP = Shape(hidden=40, heads=5, head=8, inner=72, position_bias=True)


@pytest.fixture(scope="module")
def save(tmp_path_factory):
    """Return a function that writes a random model and returns its path."""

    @functools.cache
    def written(shape: Shape) -> Path:
        path = tmp_path_factory.mktemp("model") / "model.safetensors"
        save_packed(packed_model(shape), path)
        return path

    return written


def save_with(path: Path, shape: Shape, heads: tuple[Head, ...], **changes: Any) -> Any:
    model = dataclasses.replace(random_model(shape, heads), **changes)
    save_packed(pack_model(model), path)
    return model


def states_of(runner: NativeRunner, inputs: dict[str, Any]) -> Any:
    return runner.run(inputs)["last_hidden_state"]


USABLE = [each.name for each in usable_sets()]


# Each kernel has tests of its own on all sets. Whole models take a second to compile on each one.
OFTEN = {
    USABLE[0]: {
        "bert",
        "position bias",
        "dynamic",
        "dynamic gate",
        "rotation",
        "window with position bias",
        "relative positions",
        "norms of each head",
        "norms of parts",
        "convolution",
        "experts",
        "second add",
        "dropped token and float words",
        "rounded products and adds",
    },
}


CASES = [
    pytest.param(name, kernel, marks=[pytest.mark.slow] * (name not in OFTEN.get(kernel, ())))
    for name in (*LAYERS, *PARTS)
    for kernel in USABLE
]


def least_db(kernel: str | None = None) -> float:
    """Return the closeness of a layer to numpy that an instruction set has at least.

    Codes are the same, apart from rounding ties and the error of GELU. Attention in 16-bit integers
    moves a few more values across the edge of a step.
    """
    is_short = isinstance(choose_set(kernel).products, ShortProducts)
    return 44 if is_short else 54


@pytest.mark.parametrize(("name", "kernel"), CASES)
def test_a_layer_computes_what_numpy_does(save, name, kernel) -> None:
    shape = {**LAYERS, **PARTS}[name]
    inputs = random_batch(LENGTHS)
    mask = inputs["attention_mask"] == 1
    found = states_of(NativeRunner(save(shape), threads=2, kernel=kernel), inputs)
    expected = run_encoder(random_model(shape), inputs)["last_hidden_state"]
    assert found.shape == (*mask.shape, shape.hidden)
    assert found.dtype == np.float32
    assert not found[~mask].any()
    # Where what is added is rounded once more, small errors move values across the edge of a step.
    least = 40 if "local_codes" in shape.rounds else least_db(kernel)
    assert sqnr_db(expected[mask], found[mask]) >= least


FLOAT_OFTEN = {USABLE[0]: {"narrow", "dynamic gate"}}


@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        pytest.param(
            name, kernel, marks=[pytest.mark.slow] * (name not in FLOAT_OFTEN.get(kernel, ()))
        )
        for name in (*LAYERS, *PARTS)
        for kernel in USABLE
    ],
)
def test_a_layer_in_float_computes_what_numpy_does(save, name, kernel) -> None:
    shape = dataclasses.replace({**LAYERS, **PARTS}[name], floats=True, dynamic=False)
    inputs = random_batch(LENGTHS)
    mask = inputs["attention_mask"] == 1
    found = states_of(NativeRunner(save(shape), threads=2, kernel=kernel), inputs)
    expected = run_encoder(random_model(shape), inputs)["last_hidden_state"]
    assert not found[~mask].any()
    assert sqnr_db(expected[mask], found[mask]) >= 115


@pytest.mark.parametrize("name", [*LAYERS, *PARTS])
@pytest.mark.usual("dynamic gate")
def test_all_kernels_with_the_same_products_have_the_same_bits(save, name) -> None:
    sets = [each for each in usable_sets() if isinstance(each.products, ShortProducts)]
    path, inputs = save({**LAYERS, **PARTS}[name]), random_batch(LENGTHS)
    found = {
        each.name: states_of(NativeRunner(path, threads=1, kernel=each.name), inputs).tobytes()
        for each in sets
    }
    assert len(set(found.values())) <= 1


@pytest.mark.parametrize("name", [*LAYERS, *PARTS])
@pytest.mark.usual("dynamic gate")
def test_all_kernels_that_fuse_products_have_the_same_bits_in_float(save, name) -> None:
    shape = dataclasses.replace({**LAYERS, **PARTS}[name], floats=True, dynamic=False)
    path, inputs = save(shape), random_batch(LENGTHS)
    found = {
        states_of(NativeRunner(path, threads=1, kernel=each.name), inputs).tobytes()
        for each in usable_sets()
        if each.architecture
    }
    assert len(found) <= 1


def test_two_layers_that_normalize_first_compute_what_numpy_does(save) -> None:
    inputs = random_batch(LENGTHS)
    mask = inputs["attention_mask"] == 1
    found = states_of(NativeRunner(save(MODERN), threads=1), inputs)
    expected = run_encoder(random_model(MODERN), inputs)["last_hidden_state"]
    # The second layer turns rounding ties of the first one into whole steps.
    assert sqnr_db(expected[mask], found[mask]) >= 40


def test_texts_are_filled_up_with_a_token(tmp_path) -> None:
    last = Head(poolings=("last",), steps=(), outputs=(HeadOutput(name="last"),))
    shape = Shape(dynamic=True, has_types=False)
    model = save_with(path := tmp_path / "model", shape, (last,), filled_id=3)
    runner, batch = NativeRunner(path, threads=2), random_batch(LENGTHS)
    del batch["token_type_ids"]
    found = runner.run(batch)["last"]
    assert sqnr_db(run_encoder(model, batch)["last"], found) >= 40
    alone = [
        runner.run({name: each[i : i + 1, :length] for name, each in batch.items()})["last"]
        for i, length in enumerate(LENGTHS)
    ]
    assert np.concatenate(alone).tobytes() == found.tobytes()
    longer = {name: np.pad(each, [(0, 0), (0, 1)], mode="edge") for name, each in batch.items()}
    with pytest.raises(UserInputError, match="81 tokens; the model takes up to 80"):
        runner.run(longer)


def test_tokens_that_are_not_pooled_are_left_out(tmp_path) -> None:
    poolings = ("none", "first", "last", "mean", "max", "weightedmean")
    heads = tuple(
        Head(poolings=(each,), steps=(), outputs=(HeadOutput(name=each),)) for each in poolings
    )
    names = ("input_ids", "attention_mask", "token_type_ids", POOLED)
    save_with(path := tmp_path / "model", Shape(), heads, input_names=names)
    runner, batch = NativeRunner(path, threads=2), random_batch((7, 20, 3))
    batch[POOLED] = batch["attention_mask"].copy()
    batch[POOLED][:, :2] = 0
    found, kept = runner.run(batch), batch[POOLED] == 1
    for text, mask in enumerate(kept):
        own = run_head(found["none"][text][mask].astype(np.float64), heads[0])["none"]
        for head in heads[1:]:
            name = head.poolings[0]
            wanted = run_head(own, head)[name]
            if name == "weightedmean":
                # Tokens keep their places behind those that are left out.
                places = 1 + np.flatnonzero(mask)
                wanted = (own * places[:, None]).sum(axis=0) / places.sum()
            np.testing.assert_allclose(found[name][text], wanted, rtol=1e-5, atol=1e-5)
    batch[POOLED][2] = 0
    with pytest.raises(UserInputError, match="Text 2 of the batch has only tokens of its prompt"):
        runner.run(batch)


def text_bits(runner: NativeRunner, inputs: dict[str, Any]) -> list[bytes]:
    """Return the hidden states of each text without padding, as bytes."""
    states = states_of(runner, inputs)
    masks = inputs["attention_mask"] == 1
    return [text[mask].tobytes() for text, mask in zip(states, masks, strict=True)]


def test_one_thread_runs_a_short_text(save, monkeypatch) -> None:
    shape = Shape()
    width = shape.heads * shape.head
    products = shape.layers * shape.hidden * (4 * width + 2 * shape.inner)
    monkeypatch.setattr(schedule, "PRODUCTS_ALONE", 7 * products)
    runner = NativeRunner(save(shape), threads=2)
    stream = runner._free.get()
    runner._free.put(stream)
    place, passes = THREAD.offset("passes") // 8, []
    for length in (7, 8, 7):
        states_of(runner, random_batch((length,)))
        passes.append([int(each.record[place]) for each in stream.scratch])
    assert passes == [[1, 0], [2, 1], [3, 1]]


def test_one_thread_runs_short_texts_for_a_while_after_threads_had_to_sleep(
    save, monkeypatch
) -> None:
    monkeypatch.setattr(schedule, "PRODUCTS_OF_A_SLICE", 2**29)
    sleeps = [schedule.MANY_SLEEPS - 1, schedule.MANY_SLEEPS, 0]
    monkeypatch.setattr(Job, "sleeps", lambda job: sleeps.pop(0))
    runner = NativeRunner(save(Shape()), threads=2)
    stream = runner._free.get()
    runner._free.put(stream)
    place, bits = THREAD.offset("passes") // 8, set()
    # Threads share the first two passes, and the last one.
    for _ in range(schedule.CALLS_ALONE + 3):
        bits.add(states_of(runner, random_batch((8,))).tobytes())
    assert [int(each.record[place]) for each in stream.scratch] == [schedule.CALLS_ALONE + 3, 3]
    assert len(bits) == 1


def test_outputs_that_are_not_wanted_are_left_out(tmp_path) -> None:
    poolings = ("none", "first", "mean")
    heads = [
        Head(poolings=(each,), steps=(), outputs=(HeadOutput(name=each),)) for each in poolings
    ]
    save_with(path := tmp_path / "model", NORMALIZED, tuple(heads))
    runner, batch = NativeRunner(path, threads=1), random_batch(LENGTHS)
    every = runner.run(batch)
    for wanted in (["first"], ["mean"], ["first", "mean"], ["none"], []):
        found = runner.run(batch, wanted)
        assert list(found) == [each for each in poolings if each in wanted]
        for name, values in found.items():
            np.testing.assert_array_equal(values, every[name])


@pytest.mark.parametrize(
    ("shape", "pooling", "dynamic"),
    [
        *itertools.product((DEEP, MODERN, TWICE, ROUNDING, SANDWICH), ["first"], [False, True]),
        (MODERN, "last", False),
        (DECODER, "last", True),
    ],
)
@pytest.mark.usual("shape0-first-False", "shape3-first-True", "shape7-*", "*-last-*")
def test_a_token_has_the_same_bits_if_nothing_else_is_read(
    tmp_path, shape, pooling, dynamic
) -> None:
    shape, path = dataclasses.replace(shape, dynamic=dynamic), tmp_path / "model"
    first = Head(poolings=(pooling,), steps=("tanh",), outputs=(HeadOutput(name="token"),))
    states = Head(poolings=("none",), steps=(), outputs=(HeadOutput(name="states"),))
    batches = [random_batch(each) for each in (LENGTHS, (LIMIT,) * 9, (LIMIT,), (3, 1), (1,) * 150)]
    found = []
    for own, threads in (((first, states), 1), *(((first,), each) for each in (1, 2, 3))):
        save_with(path, shape, own)
        runner = NativeRunner(path, threads=threads)
        found.append([runner.run(each)["token"].tobytes() for each in batches])
    assert found[1:] == found[:1] * 3


@pytest.mark.parametrize(
    ("shape", "threads", "dynamic"),
    [
        (DEEP, 1, False),
        (DEEP, 2, True),
        (DEEP, 3, False),
        (CONVOLVED, 2, False),
        (NORMALIZED, 3, True),
        (MODERN, 2, False),
        (DECODER, 3, True),
        (SANDWICH, 2, False),
        (SANDWICH, 3, True),
        (EXPERTS, 2, True),
        (DISENTANGLED, 2, False),
        (dataclasses.replace(DEEP, floats=True), 2, False),
        (dataclasses.replace(MODERN, floats=True), 3, False),
        # Each of these has the parts of two others.
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (
                (DEEP, 2, False),
                (NORMALIZED, 2, False),
                (TWICE, 3, False),
                (MODERN, 3, True),
                (ROUNDING, 2, False),
            )
        ),
    ],
)
def test_a_text_has_the_same_bits_in_any_company(save, kernel, shape, threads, dynamic) -> None:
    path = save(dataclasses.replace(shape, dynamic=dynamic))
    runner = NativeRunner(path, threads=threads, kernel=kernel)
    lengths = tuple(int(n) for n in np.random.default_rng(0).integers(1, LIMIT + 1, 20))
    inputs = random_batch((*lengths, LIMIT, 1))
    expected = text_bits(NativeRunner(path, threads=1, kernel=kernel), inputs)
    assert text_bits(runner, inputs) == expected
    left = random_batch((*lengths, LIMIT, 1), left=True)
    assert text_bits(runner, left) == expected
    order = np.random.default_rng(1).permutation(len(expected))
    moved = {name: each[order] for name, each in inputs.items()}
    assert text_bits(runner, moved) == [expected[each] for each in order]
    wider = {name: np.pad(each, ((0, 0), (3, 9))) for name, each in inputs.items()}
    assert text_bits(runner, wider) == expected
    alone = [
        text_bits(runner, {name: each[i : i + 1] for name, each in inputs.items()})[0]
        for i in range(len(expected))
    ]
    assert alone == expected
    for size in (2, 3, 7):
        part = {name: each[:size] for name, each in inputs.items()}
        assert text_bits(runner, part) == expected[:size]


@pytest.mark.parametrize("shape", [DEEP, dataclasses.replace(MODERN, dynamic=True)])
def test_the_number_of_rows_of_a_block_changes_no_bit(save, monkeypatch, shape) -> None:
    inputs = random_batch((LIMIT,) * 9 + (1,))
    expected = text_bits(NativeRunner(save(shape), threads=1), inputs)
    monkeypatch.setattr(type(choose_set().tiles), "block", lambda tiles, row: 32)
    for threads in (1, 3):
        assert text_bits(NativeRunner(save(shape), threads=threads), inputs) == expected


@pytest.mark.parametrize(("streams", "threads"), [(1, 3), (2, 2), (3, 1)])
def test_many_callers_at_once_get_the_same_bits(save, streams, threads) -> None:
    runner = NativeRunner(save(DEEP), threads=threads, streams=streams)
    rng = np.random.default_rng(0)
    batches = [
        random_batch(tuple(int(n) for n in rng.integers(1, LIMIT + 1, size)), seed=size)
        for size in (1, 1, 2, 3, 5, 8)
    ]
    expected = [text_bits(runner, each) for each in batches]
    # Outputs of earlier calls are not overwritten.
    kept = [states_of(runner, each) for each in batches]
    copies = [each.copy() for each in kept]

    def call(index: int) -> bool:
        chosen = index % len(batches)
        return text_bits(runner, batches[chosen]) == expected[chosen]

    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        assert all(pool.map(call, range(300)))
    for one, other in zip(kept, copies, strict=True):
        np.testing.assert_array_equal(one, other)


def head_steps(width: int, hidden: int, *, early: int = 1, late: int = 1) -> tuple[Any, ...]:
    """Return steps, where several vectors are joined before the first or the fourth one."""
    rng = np.random.default_rng(0)

    def linear(rows: int, depth: int) -> Linear:
        weight = rng.standard_normal((rows, depth)).astype(np.float32) / np.sqrt(depth)
        bias = rng.standard_normal(rows).astype(np.float32)
        return Linear(weight=weight.astype(np.float32), bias=bias)

    weight, bias = rng.standard_normal((2, width)).astype(np.float32)
    norm = Norm(weight=weight, bias=bias, epsilon=1e-5)
    first, last = linear(width, early * hidden), linear(2, late * width)
    return first, "tanh", norm, "silu", "gelu", last


@pytest.mark.parametrize(
    "poolings",
    [
        ("none",),
        ("first",),
        ("last",),
        ("mean",),
        ("max",),
        ("mean_sqrt_len_tokens",),
        ("weightedmean",),
        ("first", "weightedmean", "mean_sqrt_len_tokens"),
        ("max", "last"),
    ],
    ids="+".join,
)
def test_heads_compute_what_numpy_does_in_any_company(tmp_path, poolings) -> None:
    shape = LAYERS["relu"]
    heads = (
        Head(
            poolings=poolings,
            steps=head_steps(41, shape.hidden, early=len(poolings)),
            outputs=(HeadOutput(name="start", column=0), HeadOutput(name="both")),
        ),
        Head(
            poolings=poolings,
            steps=head_steps(41, shape.hidden, late=len(poolings)),
            outputs=(HeadOutput(name="late"),),
            token_steps=3,
        ),
        Head(poolings=poolings, steps=("normalize",), outputs=(HeadOutput(name="pooled"),)),
    )
    path = tmp_path / "model.safetensors"
    model = save_with(path, shape, heads)
    runner = NativeRunner(path, threads=2)
    assert runner.output_names == ("start", "both", "late", "pooled")
    inputs = random_batch(LENGTHS)
    found, expected = runner.run(inputs), run_encoder(model, inputs)
    for name in runner.output_names:
        assert found[name].shape == expected[name].shape
        # A value next to the edge of a step may be on its other side.
        np.testing.assert_allclose(found[name], expected[name], atol=1.2e-2)
    for i in range(len(LENGTHS)):
        alone = runner.run({name: each[i : i + 1] for name, each in inputs.items()})
        for name in runner.output_names:
            assert alone[name].tobytes() == found[name][i : i + 1].tobytes()


@pytest.mark.parametrize(("pooling", "token_steps"), [("max", 2), ("sum", 4), ("sum", 0)])
def test_scores_of_tokens_are_pooled_as_numpy_does_in_any_company(
    tmp_path, pooling, token_steps
) -> None:
    shape = LAYERS["relu"]
    linear, *_ = head_steps(41, shape.hidden)
    head = Head(
        poolings=(pooling,),
        steps=(linear, "relu", "log1p", "log1p"),
        outputs=(HeadOutput(name="words"),),
        token_steps=token_steps,
    )
    path = tmp_path / "model.safetensors"
    save_with(path, shape, (HIDDEN_STATES, head))
    runner = NativeRunner(path, threads=2)
    # Blocks of 64 tokens begin inside of texts.
    inputs = random_batch(LENGTHS)
    found = runner.run(inputs)
    for index, (length, states) in enumerate(
        zip(LENGTHS, found["last_hidden_state"].astype(np.float64), strict=True)
    ):
        expected = run_head(states[:length], head)["words"]
        np.testing.assert_allclose(found["words"][index], expected, rtol=1e-5, atol=1e-5)
        alone = runner.run({name: each[index : index + 1] for name, each in inputs.items()})
        assert alone["words"].tobytes() == found["words"][index].tobytes()


def test_scores_of_words_are_never_kept_for_all_tokens(tmp_path, monkeypatch) -> None:
    shape = LAYERS["relu"]
    linear, *_ = head_steps(41, shape.hidden)
    head = Head(
        poolings=("sum",),
        steps=(linear, "relu", "log1p"),
        outputs=(HeadOutput(name="words"),),
        token_steps=3,
    )
    path = tmp_path / "model.safetensors"
    save_with(path, shape, (head,))
    runner = NativeRunner(path, threads=1)
    rows, multiplied = [], Program.multiplied

    def recorded(program: Program, record: Any, given: Any, columns: int) -> Any:
        rows.append(len(given))
        return multiplied(program, record, given, columns)

    monkeypatch.setattr(Program, "multiplied", recorded)
    runner.run(random_batch(LENGTHS))
    assert rows == [64, 64, sum(LENGTHS) - 128]


def test_choices_have_a_score_each(tmp_path) -> None:
    shape = LAYERS["relu"]
    head = Head(
        poolings=("first",),
        steps=head_steps(8, shape.hidden),
        outputs=(HeadOutput(name="logits", column=0),),
    )
    path = tmp_path / "model.safetensors"
    model = save_with(path, shape, (head,), has_choices=True)
    inputs = {name: each.reshape(2, 3, -1) for name, each in random_batch(LENGTHS).items()}
    found = NativeRunner(path, threads=1).run(inputs)["logits"]
    assert found.shape == (2, 3)
    np.testing.assert_allclose(found, run_encoder(model, inputs)["logits"], atol=8e-3)


def _ones(*shape: int) -> Any:
    return np.ones(shape, np.int64)


@pytest.mark.parametrize(
    ("changes", "message", "argument"),
    [
        (
            {"input_ids": np.array([[5, VOCABULARY, 6]])},
            rf"`input_ids` has the value {VOCABULARY}; the model takes 0 to {VOCABULARY - 1}",
            "input_ids",
        ),
        ({"input_ids": np.array([[5, -1, 6]])}, "`input_ids` has the value -1", "input_ids"),
        ({"input_ids": np.array([[5, 2**32, 6]])}, "has the value 4294967296", "input_ids"),
        ({"token_type_ids": 2 * _ones(1, 3)}, "`token_type_ids` has the value 2", "token_type_ids"),
        (
            {"token_type_ids": 2**32 * _ones(1, 3)},
            "`token_type_ids` has the value 4294967296",
            "token_type_ids",
        ),
        ({"attention_mask": 0 * _ones(1, 3)}, "Text 0 .* has no tokens", "attention_mask"),
        ({"attention_mask": _ones(1, 2)}, r"`attention_mask` .* \(1, 2\)", "attention_mask"),
        ({"token_type_ids": _ones(3, 1)}, r"`token_type_ids` .* \(3, 1\)", "token_type_ids"),
        ({"input_ids": 5.0 * _ones(1, 3)}, "`input_ids` is float64 .* int64", "input_ids"),
        ({"input_ids": np.full((1, 3), np.nan)}, "`input_ids` is float64", "input_ids"),
        ({"attention_mask": None}, "The input `attention_mask` is missing", "attention_mask"),
    ],
)
def test_wrong_inputs_are_refused(save, changes, message, argument) -> None:
    inputs = dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), _ones(1, 3)) | changes
    inputs = {name: each for name, each in inputs.items() if each is not None}
    runner = NativeRunner(save(DEEP), threads=1)
    with pytest.raises(UserInputError, match=message) as raised:
        runner.run(inputs)
    assert raised.value.argument == argument


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((0, 3), r"`input_ids` has the shape \(0, 3\), so there are no tokens"),
        ((2, 0), "there are no tokens"),
        ((3,), r"has the shape \(3,\); .* \(batch, seq\)"),
        ((1, 2, 3), r"has the shape \(1, 2, 3\)"),
        (
            (2, LIMIT + 1),
            rf"Text 0 of the batch has {LIMIT + 1} tokens; the model takes up to {LIMIT}",
        ),
    ],
)
def test_batches_of_wrong_shapes_are_refused(save, shape, message) -> None:
    runner = NativeRunner(save(DEEP), threads=1)
    names = ("input_ids", "attention_mask", "token_type_ids")
    with pytest.raises(UserInputError, match=message):
        runner.run(dict.fromkeys(names, _ones(*shape)))
    # The runner is usable afterwards.
    assert states_of(runner, random_batch((3,))).shape == (1, 3, 40)


def test_padding_tokens_inside_a_text_have_a_position_of_their_own(save) -> None:
    shape = LAYERS["narrow"]
    inputs = random_batch(LENGTHS)
    mask = inputs["attention_mask"] == 1
    inputs["input_ids"][mask & (np.arange(mask.shape[1]) % 3 == 1)] = shape.padding_id
    inputs["input_ids"][2] = shape.padding_id
    found = states_of(NativeRunner(save(shape), threads=1), inputs)
    expected = run_encoder(random_model(shape), inputs)["last_hidden_state"]
    assert sqnr_db(expected[mask], found[mask]) >= least_db()


def workers() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "qdqbert-native"]


def test_workers_end_when_the_runner_is_deleted(save) -> None:
    before = set(workers())
    runner = NativeRunner(save(DEEP), threads=3, streams=2)
    inputs = random_batch(LENGTHS)
    states_of(runner, inputs)
    own = set(workers()) - before
    assert len(own) == 4
    del runner
    gc.collect()
    for each in own:
        each.join(60)
        assert not each.is_alive()


def test_sleeping_workers_are_woken(save) -> None:
    runner = NativeRunner(save(DEEP), threads=3)
    inputs = random_batch((LIMIT, LIMIT))
    expected = text_bits(runner, inputs)
    with runner._stream() as stream:
        mailboxes = stream.team._mailboxes
    asleep = list(MAILBOX.fields).index("is_asleep")
    for _ in range(20):
        # Workers sleep if nothing comes for about 100 us.
        while not all(each[asleep] for each in mailboxes):
            time.sleep(0.001)
        assert text_bits(runner, inputs) == expected


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_starts_its_own_workers(save) -> None:
    runner = NativeRunner(save(DEEP), threads=3)
    inputs = random_batch((LIMIT, LIMIT))
    expected = text_bits(runner, inputs)
    child = os.fork()
    if child == 0:
        # A process that waits for workers that it does not have ends with an alarm.
        signal.alarm(60)
        os._exit(0 if text_bits(runner, inputs) == expected else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert text_bits(runner, inputs) == expected


@pytest.mark.parametrize("name", ["bert", "modern", "decoder"])
def test_tokens_that_expand_a_text_attend_to_its_other_tokens(name) -> None:
    # With a window for all.
    shape = dataclasses.replace(ALL_PARTS[name], floats=True)
    model = dataclasses.replace(random_model(shape), expansion_id=VOCABULARY - 1)
    inputs = random_batch((9, 5))
    for row, length in enumerate((2, 4)):
        inputs["input_ids"][row, length:] = VOCABULARY - 1
        inputs["attention_mask"][row, length:] = 0
    found = NativeRunner(pack_model(model, precision="float"), threads=1).run(inputs)
    wanted = run_encoder(model, inputs)
    assert sqnr_db(wanted["last_hidden_state"], found["last_hidden_state"]) > 90


def test_tokens_that_expand_a_text_follow_its_other_tokens(tmp_path) -> None:
    model = dataclasses.replace(random_model(Shape(layers=1, has_types=False)), expansion_id=9)
    path = tmp_path / "model.bin"
    save_packed(pack_model(model), path)
    runner = NativeRunner(path, threads=1)
    ids = np.array([[4, 5, 9, 9, 0], [6, 7, 8, 9, 9]])
    mask = np.array([[1, 1, 0, 0, 0], [1, 1, 1, 0, 0]])
    found = runner.run({"input_ids": ids, "attention_mask": mask})["last_hidden_state"]
    # They have states, padding has none, and no token attends to them.
    assert (np.abs(found).max(axis=2) > 0).tolist() == [[True] * 4 + [False], [True] * 5]
    alone = runner.run({"input_ids": ids[:1, :2], "attention_mask": mask[:1, :2]})[
        "last_hidden_state"
    ]
    np.testing.assert_array_equal(found[:1, :2], alone)
    mask[0] = [1, 0, 1, 0, 1]
    with pytest.raises(UserInputError, match="have to follow all of its other tokens"):
        runner.run({"input_ids": ids[:, [0, 2, 1, 3, 4]], "attention_mask": mask})
