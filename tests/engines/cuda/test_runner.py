"""Packed models in Triton's interpreter, compared with the native engine and with numpy."""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import encoder_reference
from cuda_models import SHAPES, SMALL
from native_models import VOCABULARY, Shape, packed_model, random_batch, random_model
from qdqbert.common.errors import CheckpointError, GraphError, UserInputError
from qdqbert.encoders.model import Head, HeadOutput, Linear, Norm
from qdqbert.engines.cuda import program, texts
from qdqbert.engines.cuda import runner as cuda_runner
from qdqbert.engines.cuda.runner import CudaRunner
from qdqbert.engines.cuda.weights import Model
from qdqbert.engines.native.packed import pack_model
from qdqbert.engines.native.runner import NativeRunner
from qdqbert.evidence.fidelity import sqnr_db

CPU = torch.device("cpu")
NAME = "last_hidden_state"


@pytest.fixture(autouse=True)
def short_programs(monkeypatch) -> None:
    """The interpreter runs each row of a program, used or not."""
    monkeypatch.setattr(texts, "CAPACITIES", (8, 16))


def runner_of(packed: Any) -> CudaRunner:
    return CudaRunner(packed, CPU, 80)


def reference(shape: Shape, batch: dict[str, Any]) -> NDArray[np.float64]:
    found = encoder_reference.run_encoder(random_model(shape), batch)[NAME]
    return np.asarray(found)


@pytest.mark.usual("bert", "modern")
@pytest.mark.parametrize("name", SHAPES)
def test_float16_is_close_to_float64(name) -> None:
    shape = dataclasses.replace(SHAPES[name], floats=True)
    batch = random_batch((1, 7))
    found = runner_of(packed_model(shape)).run(batch)[NAME]
    assert sqnr_db(reference(shape, batch), found) > 55


@pytest.mark.usual("decoder", "modern", "wide")
@pytest.mark.parametrize("name", SHAPES)
def test_int8_is_close_to_the_native_engine(name) -> None:
    # Codes of values between two steps differ.
    packed = packed_model(dataclasses.replace(SHAPES[name], dynamic=True))
    batch = random_batch((1, 7), left=True)
    wanted = NativeRunner(packed, threads=1).run(batch)[NAME]
    assert sqnr_db(wanted, runner_of(packed).run(batch)[NAME]) > 35


@pytest.mark.usual("72")
@pytest.mark.parametrize(("size", "lengths"), [(72, (5, 3)), (256, (35, 3))], ids=["72", "256"])
def test_float16_of_queries_keys_and_values_in_wide_heads(size, lengths) -> None:
    # No power of 2, and more than one vector of channels; and blocks of fewer keys.
    shape = Shape(floats=True, hidden=72, heads=1, head=size, inner=80, layers=1)
    batch = random_batch(lengths)
    found = runner_of(packed_model(shape)).run(batch)[NAME]
    assert sqnr_db(reference(shape, batch), found) > 55


@pytest.mark.parametrize("name", ["modern", "sandwich"])
@pytest.mark.usual("modern")
def test_what_is_added_to_states_can_be_beyond_float16(name) -> None:
    # As in T5, and tokens with massive activations in decoders.
    model = random_model(dataclasses.replace(SHAPES[name], floats=True, layers=1))
    layer = model.layers[0]
    down = dataclasses.replace(layer.down, weight=layer.down.weight * np.float32(1e5))
    model = dataclasses.replace(model, layers=(dataclasses.replace(layer, down=down),))
    batch = random_batch((3,))
    found = runner_of(pack_model(model, precision="float")).run(batch)[NAME]
    assert sqnr_db(encoder_reference.run_encoder(model, batch)[NAME], found) > 55


def _heads() -> tuple[Head, ...]:
    rng = np.random.default_rng(0)

    def linear(rows: int, columns: int) -> Linear:
        weight = rng.normal(size=(rows, columns)).astype(np.float32) / 6
        return Linear(weight=weight, bias=rng.normal(size=rows).astype(np.float32))

    norm = Norm(
        weight=rng.normal(size=50).astype(np.float32),
        bias=rng.normal(size=50).astype(np.float32),
        epsilon=1e-5,
    )
    return (
        Head(poolings=("none",), steps=(), outputs=(HeadOutput(name="states"),)),
        Head(
            poolings=("mean", "first"),
            steps=("normalize",),
            outputs=(HeadOutput(name="vector"), HeadOutput(name="third", column=2)),
        ),
        Head(
            poolings=("last",),
            steps=(linear(50, 40), "gelu", norm, linear(3, 50), "tanh"),
            outputs=(HeadOutput(name="logits"),),
        ),
        Head(
            poolings=("max",),
            steps=(linear(70, 40), "relu", "log1p"),
            token_steps=2,
            outputs=(HeadOutput(name="words"),),
        ),
        Head(
            poolings=("sum", "mean_sqrt_len_tokens", "weightedmean"),
            steps=("gelu_tanh", "silu"),
            outputs=(HeadOutput(name="sums"),),
        ),
        Head(
            poolings=("none",),
            steps=(linear(1, 40),),
            outputs=(HeadOutput(name="score", column=0),),
        ),
    )


@pytest.fixture(scope="module")
def with_heads() -> Any:
    return packed_model(Shape(**SMALL, floats=True, layers=1), _heads())


def test_heads_are_close_to_the_native_engine(with_heads) -> None:
    batch = random_batch((2, 1, 5))
    wanted, found = NativeRunner(with_heads, threads=1).run(batch), runner_of(with_heads).run(batch)
    assert list(found) == list(wanted)
    for name, each in wanted.items():
        assert found[name].shape == each.shape
        assert sqnr_db(each, found[name]) > 50, name


def test_only_wanted_outputs_are_computed(with_heads) -> None:
    batch, runner = random_batch((1, 2)), runner_of(with_heads)
    found = runner.run(batch, ["logits", "score"])
    assert list(found) == ["logits", "score"]
    np.testing.assert_array_equal(found["logits"], runner.run(batch)["logits"])


@pytest.mark.parametrize("floats", [False, True])
@pytest.mark.usual("False")
def test_a_text_has_the_same_bits_alone_in_a_batch_and_in_another_order(floats) -> None:
    shape = Shape(**SMALL, layers=1, dynamic=not floats, floats=floats)
    runner = runner_of(packed_model(shape, _heads()))
    # All together need a longer program than one alone.
    batch = random_batch((3, 6, 1, 2, 1))
    together = runner.run(batch)
    backwards = runner.run({name: each[::-1] for name, each in batch.items()})
    for index in (1, 4):
        length = int(batch["attention_mask"][index].sum())
        alone = runner.run({name: each[index : index + 1, :length] for name, each in batch.items()})
        for name, each in alone.items():
            for others, place in ((together, index), (backwards, len(together[name]) - 1 - index)):
                found = others[name][place]
                found = found[:length] if name in ("states", "score") else found
                np.testing.assert_array_equal(each[0], found, err_msg=name)


def test_choices_have_an_axis_of_their_own() -> None:
    score = Head(poolings=("first",), steps=(), outputs=(HeadOutput(name="score", column=0),))
    shape = Shape(**SMALL, floats=True, layers=1)
    model = dataclasses.replace(random_model(shape, (score,)), has_choices=True)
    batch = {name: each.reshape(2, 2, -1) for name, each in random_batch((4, 2, 3, 5)).items()}
    packed = pack_model(model, precision="float")
    wanted = NativeRunner(packed, threads=1).run(batch)["score"]
    found = runner_of(packed).run(batch)["score"]
    assert found.shape == wanted.shape == (2, 2)
    assert sqnr_db(wanted, found) > 50


@pytest.mark.parametrize("name", ["relu", "decoder"])
@pytest.mark.usual("decoder")
def test_tokens_that_expand_a_query_attend_and_are_not_attended_to(name) -> None:
    shape = dataclasses.replace(SHAPES[name], floats=True, layers=1, window=None)
    model = dataclasses.replace(random_model(shape), expansion_id=VOCABULARY - 1)
    batch = random_batch((6, 3))
    batch["input_ids"][1, 3:] = VOCABULARY - 1
    wanted = encoder_reference.run_encoder(model, batch)[NAME]
    found = runner_of(pack_model(model, precision="float")).run(batch)[NAME]
    assert np.abs(wanted[1, 3:]).min() > 0
    assert sqnr_db(wanted, found) > 55


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_ids": np.array([[VOCABULARY, 1]])}, "input_ids"),
        ({"input_ids": np.array([[-1, 1]])}, "input_ids"),
        ({"token_type_ids": np.array([[0, 9]])}, "token_type_ids"),
        ({"attention_mask": np.array([[0, 0]])}, "Text 0 of the batch has no tokens"),
        ({"input_ids": np.array([[1.0, 2.0]])}, "has to be int64"),
        ({"input_ids": np.array([[1]])}, "the same shape"),
    ],
)
def test_inputs_that_kernels_must_not_see_are_refused(with_heads, change, message) -> None:
    batch = {
        "input_ids": np.array([[1, 2]]),
        "attention_mask": np.array([[1, 1]]),
        "token_type_ids": np.array([[0, 1]]),
    }
    with pytest.raises(UserInputError, match=message):
        runner_of(with_heads).run(batch | change)


def test_a_text_that_is_too_long_is_refused(with_heads) -> None:
    ids = np.ones((1, 81), np.int64)
    with pytest.raises(UserInputError, match="81 tokens; the model takes up to 80"):
        runner_of(with_heads).run({"input_ids": ids, "attention_mask": ids})


@pytest.mark.parametrize(
    ("shape", "part"),
    [
        (Shape(dynamic=True, relative_keys=True), "relative positions"),
        (Shape(dynamic=True, convolution=3), "a convolution"),
        (Shape(), "stored ranges"),
        (Shape(dynamic=True, rounds=("query_codes",)), "fake quantization"),
    ],
)
def test_parts_that_kernels_do_not_compute_are_named(shape, part) -> None:
    with pytest.raises(GraphError, match=part):
        runner_of(packed_model(shape))


def test_keys_with_other_codes_than_queries_are_refused() -> None:
    model = random_model(Shape(dynamic=True, layers=1))
    attention = model.layers[0].attention
    assert attention.key.codes is not None
    codes = dataclasses.replace(attention.key.codes, multiplier=np.full(64, 2, np.float32))
    key = dataclasses.replace(attention.key, codes=codes)
    layer = dataclasses.replace(model.layers[0], attention=dataclasses.replace(attention, key=key))
    with pytest.raises(GraphError, match="other codes for queries"):
        runner_of(pack_model(dataclasses.replace(model, layers=(layer,))))


@pytest.fixture
def room(monkeypatch) -> Any:
    """Return what limits the memory of a GPU, and the tokens that memory was taken for.

    With each number is a reference to the memory.
    """
    taken: list[tuple[int, weakref.ref[torch.Tensor]]] = []

    def limit(most: int) -> list[tuple[int, weakref.ref[torch.Tensor]]]:
        def buffers_of(model: Any, tokens: int) -> Any:
            if tokens > most:
                raise torch.cuda.OutOfMemoryError("no")
            buffers = program.buffers_of(model, tokens)
            taken.append((tokens, weakref.ref(buffers["states"])))
            return buffers

        monkeypatch.setattr(cuda_runner, "buffers_of", buffers_of)
        return taken

    return limit


def test_texts_that_do_not_fit_run_in_halves(with_heads, room, caplog) -> None:
    batch = random_batch((5, 1, 2, 5, 3))
    wanted = runner_of(with_heads).run(batch)
    taken, runner = room(8), runner_of(with_heads)
    with caplog.at_level("INFO", "qdqbert"):
        found = runner.run(batch)
    for name, each in wanted.items():
        np.testing.assert_array_equal(found[name], each)
    assert [tokens for tokens, _ in taken] == [8]
    said = "cpu has too little free memory for 16 tokens, and runs up to 8 together."
    assert [each.getMessage() for each in caplog.records] == [said]


def test_a_gpu_without_room_for_one_text_says_what_to_do(with_heads, room) -> None:
    room(8)
    runner, batch = runner_of(with_heads), random_batch((9, 2))
    message = r"for a text of 9 tokens\. Run a shorter one, or load the model with `device='cpu'`"
    with pytest.raises(MemoryError, match=message):
        runner.run(batch)
    # The stream is free again.
    assert runner.run(random_batch((2,)), ["logits"])


def test_memory_is_taken_when_it_is_needed_and_shared(room, monkeypatch) -> None:
    taken = room(1000)
    monkeypatch.setattr(program.Program, "run", lambda self: None)
    runner = runner_of(packed_model(Shape(**SMALL, floats=True, layers=1)))
    for length, wanted in (
        (None, []),
        (1, [8]),
        # That of the short program is free, and it shares that of the longer one.
        (9, [16]),
        (2, [16]),
        # That of a very long text is free after it.
        (35, [16]),
    ):
        if length is not None:
            runner.run(random_batch((length,)))
        assert [tokens for tokens, states in taken if states() is not None] == wanted
    assert [tokens for tokens, _ in taken] == [8, 16, 48]


def test_a_captured_program_is_replayed_and_garbage_does_not_end_its_capture(monkeypatch) -> None:
    events: list[str] = []

    @contextlib.contextmanager
    def capturing(graph: Any, *, stream: Any, capture_error_mode: str) -> Iterator[None]:
        events.append(capture_error_mode)
        yield

    graph = SimpleNamespace(replay=lambda: events.append("replay"))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: graph)
    monkeypatch.setattr(torch.cuda, "graph", capturing)
    model = Model(packed_model(Shape(**SMALL, floats=True, layers=1)), CPU, 80)
    made = program.Program(model, program.buffers_of(model, 8), 8)
    made.launches = (lambda: events.append("launch"),)
    made.capture(SimpleNamespace())
    made.run()
    assert events == ["relaxed", "launch", "replay"]


def test_a_token_runs_in_any_model(with_heads, room) -> None:
    taken = room(8)
    model = random_model(Shape(**SMALL, floats=True, layers=1))
    model = dataclasses.replace(model, has_choices=True)
    for packed in (with_heads, pack_model(model, precision="float")):
        runner_of(packed).run_token()
    assert [tokens for tokens, _ in taken] == [8, 8]


def test_a_damaged_model_is_refused() -> None:
    packed = packed_model(Shape(floats=True, layers=1))
    packed.arrays["words"] = packed.arrays["words"][:, :-1]
    with pytest.raises(CheckpointError, match="'words'"):
        runner_of(packed)
