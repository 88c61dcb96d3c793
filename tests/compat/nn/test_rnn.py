from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from qdqbert.compat.nn import QuantLSTM, QuantLSTMCell, TensorQuantizer
from qdqbert.compat.tensor_quant import QuantDescriptor

pytestmark = pytest.mark.usefixtures("toolkit_defaults")

SHAPES = [
    {},
    {"bias": False},
    {"num_layers": 2},
    {"bidirectional": True},
    {"num_layers": 3, "bidirectional": True, "batch_first": True},
    {"batch_first": True, "bias": False},
]
EACH_SHAPE = pytest.mark.parametrize(
    "arguments", SHAPES, ids=lambda arguments: "-".join(arguments) or "plain"
)
IN, HIDDEN = 5, 4
# Sums of float64 in another order.
EXACT = {"rtol": 1e-11, "atol": 1e-12}


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def lstm_pair(*, enabled: bool = False, **arguments: Any) -> tuple[nn.LSTM, QuantLSTM]:
    """Torch's LSTM and ours with the same parameters, in float64."""
    torch.manual_seed(0)
    plain = nn.LSTM(IN, HIDDEN, **arguments).double()
    quantized = QuantLSTM(IN, HIDDEN, **arguments).double()
    quantized.load_state_dict(plain.state_dict(), strict=True)
    if not enabled:
        disable(quantized)
    return plain, quantized


def disable(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, TensorQuantizer):
            module.disable()


def directions(arguments: dict[str, Any]) -> int:
    return arguments.get("num_layers", 1) * (1 + arguments.get("bidirectional", False))


def assert_all_close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, **EXACT)


# Float: torch's LSTM


@EACH_SHAPE
@pytest.mark.parametrize("has_state", [False, True], ids=["zeros", "state"])
def test_result_is_torchs_where_quantizers_are_disabled(device, arguments, has_state) -> None:
    plain, quantized = (module.to(device) for module in lstm_pair(**arguments))
    x = draw(6, 3, IN).to(device)
    batch = 6 if arguments.get("batch_first") else 3
    state = tuple(
        draw(directions(arguments), batch, HIDDEN, seed=seed).to(device) for seed in (1, 2)
    )
    hx = state if has_state else None
    assert_all_close(quantized(x, hx), plain(x, hx))


@EACH_SHAPE
@pytest.mark.parametrize("has_state", [False, True], ids=["zeros", "state"])
def test_sequence_without_a_batch_is_torchs(arguments, has_state) -> None:
    plain, quantized = lstm_pair(**arguments)
    x = draw(6, IN)
    state = tuple(draw(directions(arguments), HIDDEN, seed=seed) for seed in (1, 2))
    hx = state if has_state else None
    assert_all_close(quantized(x, hx), plain(x, hx))


@EACH_SHAPE
@pytest.mark.parametrize("lengths", [(6, 4, 1), (2, 6, 4), (3, 3, 3)], ids=str)
@pytest.mark.parametrize("has_state", [False, True], ids=["zeros", "state"])
def test_packed_sequences_are_torchs(arguments, lengths, has_state) -> None:
    plain, quantized = lstm_pair(**arguments)
    x = pack_padded_sequence(draw(6, 3, IN), torch.tensor(lengths), enforce_sorted=False)
    state = tuple(draw(directions(arguments), 3, HIDDEN, seed=seed) for seed in (1, 2))
    hx = state if has_state else None
    (found, found_state), (expected, expected_state) = quantized(x, hx), plain(x, hx)
    assert isinstance(found, PackedSequence)
    assert_all_close(found.data, expected.data)
    assert_all_close(found_state, expected_state)
    for ours, theirs in zip(pad_packed_sequence(found), pad_packed_sequence(expected), strict=True):
        assert_all_close(ours, theirs)


def test_packed_sequences_that_came_sorted_are_torchs() -> None:
    plain, quantized = lstm_pair(bidirectional=True)
    x = pack_padded_sequence(draw(6, 3, IN), torch.tensor([6, 4, 1]))
    (found, found_state), (expected, expected_state) = quantized(x), plain(x)
    assert_all_close(found.data, expected.data)
    assert_all_close(found_state, expected_state)


@EACH_SHAPE
def test_gradients_are_torchs_where_quantizers_are_disabled(arguments) -> None:
    plain, quantized = lstm_pair(**arguments)
    ours, theirs = draw(6, 3, IN).requires_grad_(), draw(6, 3, IN).requires_grad_()
    for module, x in ((quantized, ours), (plain, theirs)):
        output, (hidden, cell) = module(x)
        (output.sum() + 2 * hidden.sum() + 3 * cell.sum()).backward()
    assert_all_close(ours.grad, theirs.grad)
    for name, parameter in plain.named_parameters():
        assert_all_close(quantized.get_parameter(name).grad, parameter.grad)


def test_dropout_is_applied_between_layers_and_only_in_training() -> None:
    plain, quantized = lstm_pair(num_layers=2, dropout=0.5)
    x = draw(6, 3, IN)
    assert_all_close(quantized.eval()(x), plain.eval()(x))
    quantized.train()
    assert not torch.equal(quantized(x)[0], quantized(x)[0])
    _, single = lstm_pair(dropout=0.0)
    assert torch.equal(single(x)[0], single(x)[0])


# Quantized: steps in numpy


def rounded(x: np.ndarray, *, per_row: bool = False, bits: int = 8) -> np.ndarray:
    highest = 2 ** (bits - 1) - 1
    amax = np.abs(x).max(axis=1, keepdims=True) if per_row else np.abs(x).max()
    step = amax / highest
    ratio = x / step
    assert np.abs(ratio - np.floor(ratio) - 0.5).min() > 1e-9, "a tie: take another seed"
    return np.rint(ratio) * step


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def numpy_step(
    x: np.ndarray, h: np.ndarray, c: np.ndarray, weights: dict[str, np.ndarray], bits: int
) -> tuple[np.ndarray, np.ndarray]:
    joined = rounded(np.concatenate([x, h], axis=1), bits=bits)
    weight = np.concatenate([weights["weight_ih"], weights["weight_hh"]], axis=1)
    gates = joined @ rounded(weight, per_row=True).T
    if "bias_ih" in weights:
        gates = gates + weights["bias_ih"] + weights["bias_hh"]
    i, f, g, o = np.split(gates, 4, axis=1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def numpy_lstm(
    module: nn.LSTM, x: np.ndarray, bits: int = 8
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Output, last hidden and cell states of `(seq, batch, in)`, layer by layer, step by step."""
    hiddens, cells = [], []
    for layer in range(module.num_layers):
        outputs = []
        for suffix in ["", "_reverse"][: 1 + module.bidirectional]:
            tail = f"_l{layer}{suffix}"
            weights = {
                name.removesuffix(tail): parameter.detach().numpy()
                for name, parameter in module.named_parameters()
                if name.endswith(tail)
            }
            h = c = np.zeros((x.shape[1], module.hidden_size))
            found = []
            for step in x[::-1] if suffix else x:
                h, c = numpy_step(step, h, c, weights, bits)
                found.append(h)
            outputs.append(np.stack(found[::-1] if suffix else found))
            hiddens.append(h)
            cells.append(c)
        x = np.concatenate(outputs, axis=2)
    return x, np.stack(hiddens), np.stack(cells)


@EACH_SHAPE
def test_quantized_result_is_that_of_steps_in_numpy(arguments) -> None:
    plain, quantized = lstm_pair(enabled=True, **arguments)
    x = draw(6, 3, IN, seed=5)
    steps = x.transpose(0, 1) if arguments.get("batch_first") else x
    expected, hidden, cell = numpy_lstm(plain, steps.numpy())
    found, state = quantized(x)
    found = found.transpose(0, 1) if arguments.get("batch_first") else found
    assert_all_close(found.detach(), torch.from_numpy(expected))
    assert_all_close(state[0].detach(), torch.from_numpy(hidden))
    assert_all_close(state[1].detach(), torch.from_numpy(cell))


def test_descriptors_are_used() -> None:
    plain, _ = lstm_pair()
    quantized = QuantLSTM(IN, HIDDEN, quant_desc_input=QuantDescriptor(num_bits=4)).double()
    quantized.load_state_dict(plain.state_dict())
    x = draw(6, 3, IN)
    expected, _, _ = numpy_lstm(plain, x.numpy(), bits=4)
    assert_all_close(quantized(x)[0].detach(), torch.from_numpy(expected))


def test_each_layer_and_direction_has_its_own_quantizers() -> None:
    _, quantized = lstm_pair(enabled=True, num_layers=3, bidirectional=True)
    for quantizers, axis in (
        (quantized._input_quantizers, None),
        (quantized._weight_quantizers, 0),
    ):
        assert len(set(quantizers)) == 6
        assert {quantizer.axis for quantizer in quantizers} == {axis}


def test_ranges_are_calibrated_over_all_steps() -> None:
    plain, quantized = lstm_pair(enabled=True)
    (quantizer,) = quantized._input_quantizers
    quantizer.enable_calib()
    quantizer.disable_quant()
    quantized._weight_quantizers[0].disable()
    x = draw(6, 3, IN)
    quantized(x)
    quantizer.load_calib_amax()
    # Hidden states stay within 1, of which some x here is far.
    assert float(x.abs().max()) > 1
    assert quantizer.amax.item() == float(x.abs().max())
    assert set(quantized.state_dict()) - set(plain.state_dict()) == {"_input_quantizers.0._amax"}


# Refusals


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"proj_size": -1}, ValueError, "proj_size should be a positive integer or zero"),
        ({"proj_size": 2}, ValueError, "proj_size is not supported in pytorch-quantization yet"),
        ({"dropout": 1.5}, ValueError, r"dropout should be a number in range \[0, 1\]"),
        ({"quant_desc": 1}, TypeError, r"Unused keys: dict_keys\(\['quant_desc'\]\)"),
        (
            {"quant_desc_input": QuantDescriptor(fake_quant=False)},
            ValueError,
            "Only fake quantization is supported!",
        ),
    ],
    ids=["negative-projection", "projection", "dropout", "unknown", "real"],
)
def test_lstm_is_not_built_of(arguments, error, message) -> None:
    with pytest.raises(error, match=message):
        QuantLSTM(IN, HIDDEN, **arguments)


@pytest.mark.parametrize(
    ("x", "hx", "message"),
    [
        (draw(2, 3, 4, IN), None, "input must have 3 dimensions, got 4"),
        (
            draw(6, 3, IN + 1),
            None,
            r"input.size\(-1\) must be equal to input_size. Expected 5, got 6",
        ),
        (draw(6, 3, IN), (draw(1, 2, HIDDEN),) * 2, r"Expected hidden\[0\] size \(1, 3, 4\), got"),
        (
            draw(6, 3, IN),
            (draw(1, 3, HIDDEN), draw(1, 3, HIDDEN + 1)),
            r"Expected hidden\[1\] size \(1, 3, 4\), got \[1, 3, 5\]",
        ),
    ],
    ids=["dimensions", "input-size", "hidden", "cell"],
)
def test_lstm_does_not_run_on(x, hx, message) -> None:
    _, quantized = lstm_pair()
    with pytest.raises(RuntimeError, match=message):
        quantized(x, hx)


# The cell


def cell_pair(*, enabled: bool = False, **arguments: Any) -> tuple[nn.LSTMCell, QuantLSTMCell]:
    torch.manual_seed(0)
    plain = nn.LSTMCell(IN, HIDDEN, **arguments).double()
    quantized = QuantLSTMCell(IN, HIDDEN, **arguments).double()
    quantized.load_state_dict(plain.state_dict(), strict=True)
    if not enabled:
        disable(quantized)
    return plain, quantized


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
@pytest.mark.parametrize("has_state", [False, True], ids=["zeros", "state"])
def test_cell_is_torchs_where_quantizers_are_disabled(device, bias, has_state) -> None:
    plain, quantized = (module.to(device) for module in cell_pair(bias=bias))
    x = draw(3, IN).to(device)
    hx = tuple(draw(3, HIDDEN, seed=seed).to(device) for seed in (1, 2)) if has_state else None
    assert_all_close(quantized(x, hx), plain(x, hx))


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
def test_quantized_cell_is_a_step_in_numpy(bias) -> None:
    plain, quantized = cell_pair(enabled=True, bias=bias)
    x, h, c = draw(3, IN), draw(3, HIDDEN, seed=1), draw(3, HIDDEN, seed=2)
    weights = {name: parameter.detach().numpy() for name, parameter in plain.named_parameters()}
    expected = numpy_step(x.numpy(), h.numpy(), c.numpy(), weights, bits=8)
    for found, wanted in zip(quantized(x, (h, c)), expected, strict=True):
        assert_all_close(found.detach(), torch.from_numpy(wanted))


@pytest.mark.parametrize(
    ("x", "hx", "message"),
    [
        (draw(3, 6), None, "input has inconsistent input_size: got 6, expected 5"),
        (
            draw(3, IN),
            (draw(2, HIDDEN), draw(3, HIDDEN)),
            r"Input batch size 3 doesn't match hidden\[0\] batch size 2",
        ),
        (
            draw(3, IN),
            (draw(3, HIDDEN), draw(3, 7)),
            r"hidden\[1\] has inconsistent hidden_size: got 7, expected 4",
        ),
    ],
    ids=["input-size", "batch", "hidden-size"],
)
def test_cell_does_not_run_on(x, hx, message) -> None:
    with pytest.raises(RuntimeError, match=message):
        cell_pair()[1](x, hx)
