"""The quantized LSTM and its cell, computed step by step in plain PyTorch."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence

from qdqbert.compat.nn.mixins import QuantMixin, pop_quant_desc_in_kwargs
from qdqbert.compat.nn.tensor_quantizer import TensorQuantizer
from qdqbert.compat.tensor_quant import QUANT_DESC_8BIT_LINEAR_WEIGHT_PER_ROW, QuantDescriptor

State = tuple[Tensor, Tensor]


def quantized_lstm_step(
    input: Tensor,
    state: State,
    weight: Tensor,
    bias: Tensor | None,
    input_quantizer: TensorQuantizer,
) -> State:
    """Compute one step. `[input, hidden]` is quantized as one tensor, and the cell state is not.

    Args:
        input: `(batch, input_size)`.
        state: Hidden and cell state, each `(batch, hidden_size)`.
        weight: Quantized `[w_ih, w_hh]`, `(4 * hidden_size, input_size + hidden_size)`.
        bias: `b_ih + b_hh`, `(4 * hidden_size,)`.
        input_quantizer: Quantizer of `[input, hidden]`.

    Source: pytorch-quantization's `_functions.quant_rnn.LSTMCell`.
    """
    hidden, cell = state
    gates = functional.linear(input_quantizer(torch.cat([input, hidden], dim=1)), weight, bias)
    i, f, g, o = gates.chunk(4, dim=1)
    cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(cell), cell


class QuantLSTM(QuantMixin, nn.LSTM):
    """`torch.nn.LSTM` with two quantizers for each layer and direction.

    Attributes:
        _input_quantizers: One for each layer and direction, of `[input, hidden]`.
        _weight_quantizers: One for each, of `[w_ih, w_hh]`. The range of a row covers both.

    Source: pytorch-quantization's `QuantLSTM`.
    """

    default_quant_desc_weight: ClassVar[QuantDescriptor] = QUANT_DESC_8BIT_LINEAR_WEIGHT_PER_ROW

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0,
        bidirectional: bool = False,
        proj_size: int = 0,
        **kwargs: Any,
    ) -> None:
        """Accept the arguments of `torch.nn.LSTM`, `quant_desc_input` and `quant_desc_weight`.

        Raises:
            ValueError: `proj_size` is not 0, or torch raises it.
        """
        quant_desc_input, quant_desc_weight = pop_quant_desc_in_kwargs(type(self), **kwargs)
        if proj_size < 0:
            raise ValueError(
                "proj_size should be a positive integer or zero to disable projections"
            )
        if proj_size:
            raise ValueError("proj_size is not supported in pytorch-quantization yet")
        super().__init__(
            input_size,
            hidden_size,
            num_layers=num_layers,
            bias=bias,
            batch_first=batch_first,
            dropout=dropout,
            bidirectional=bidirectional,
        )
        count = num_layers * (1 + bidirectional)
        self.init_quantizer(quant_desc_input, quant_desc_weight, num_layers=count)

    def forward(  # type: ignore[override]
        self, input: Tensor | PackedSequence, hx: State | None = None
    ) -> tuple[Tensor | PackedSequence, State]:
        """Map a sequence or packed sequence to one of the same kind and the last states."""
        packed = input if isinstance(input, PackedSequence) else None
        batched = True
        if packed is not None:
            data, sizes = packed.data, packed.batch_sizes.tolist()
        else:
            assert isinstance(input, Tensor)
            if input.dim() not in (2, 3):
                raise RuntimeError(f"input must have 3 dimensions, got {input.dim()}")
            batched = input.dim() == 3
            steps = input if batched else input.unsqueeze(1)
            if self.batch_first and batched:
                steps = steps.transpose(0, 1)
            if hx is not None and not batched:
                hx = (hx[0].unsqueeze(1), hx[1].unsqueeze(1))
            data, sizes = steps.flatten(0, 1), [steps.shape[1]] * steps.shape[0]
        if data.shape[-1] != self.input_size:
            raise RuntimeError(
                "input.size(-1) must be equal to input_size. "
                f"Expected {self.input_size}, got {data.shape[-1]}"
            )
        states = self._initial(hx, data, sizes, packed)
        last: list[State] = []
        directions = 2 if self.bidirectional else 1
        for layer in range(self.num_layers):
            outputs = []
            for direction in range(directions):
                index = layer * directions + direction
                state = (states[0][index], states[1][index])
                found, state = self._run(index, data, sizes, state, backward=direction == 1)
                outputs.append(found)
                last.append(state)
            data = torch.cat(outputs, dim=1)
            if self.dropout and layer < self.num_layers - 1:
                data = functional.dropout(data, self.dropout, self.training)
        hidden, cell = (torch.stack([state[part] for state in last]) for part in (0, 1))
        if packed is not None:
            result: Tensor | PackedSequence = PackedSequence(
                data, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices
            )
            order = packed.unsorted_indices
            if order is not None:
                hidden, cell = hidden.index_select(1, order), cell.index_select(1, order)
            return result, (hidden, cell)
        output = data.view(len(sizes), sizes[0] if sizes else 0, -1)
        if not batched:
            return output.squeeze(1), (hidden.squeeze(1), cell.squeeze(1))
        return output.transpose(0, 1) if self.batch_first else output, (hidden, cell)

    def _initial(
        self, hx: State | None, data: Tensor, sizes: list[int], packed: PackedSequence | None
    ) -> State:
        count = self.num_layers * (2 if self.bidirectional else 1)
        shape = (count, sizes[0], self.hidden_size)
        if hx is None:
            zeros = data.new_zeros(shape)
            return zeros, zeros
        for index, state in enumerate(hx):
            if tuple(state.shape) != shape:
                raise RuntimeError(
                    f"Expected hidden[{index}] size {shape}, got {list(state.shape)}"
                )
        if packed is not None and packed.sorted_indices is not None:
            return (
                hx[0].index_select(1, packed.sorted_indices),
                hx[1].index_select(1, packed.sorted_indices),
            )
        return hx

    def _run(
        self, index: int, data: Tensor, sizes: list[int], state: State, *, backward: bool
    ) -> tuple[Tensor, State]:
        """Run one layer in one direction. `sizes` are the numbers of active sequences by step."""
        w_ih, w_hh, *biases = self.all_weights[index]
        weight = self._weight_quantizers[index](torch.cat([w_ih, w_hh], dim=1))
        bias = biases[0] + biases[1] if biases else None
        input_quantizer = self._input_quantizers[index]
        assert isinstance(input_quantizer, TensorQuantizer)
        steps = list(zip(torch.split(data, sizes), sizes, strict=True))
        hidden, cell = state
        outputs: list[Tensor] = []
        for x, size in reversed(steps) if backward else steps:
            running = quantized_lstm_step(
                x, (hidden[:size], cell[:size]), weight, bias, input_quantizer
            )
            hidden = torch.cat([running[0], hidden[size:]])
            cell = torch.cat([running[1], cell[size:]])
            outputs.append(running[0])
        return torch.cat(outputs[::-1] if backward else outputs), (hidden, cell)


class QuantLSTMCell(QuantMixin, nn.LSTMCell):
    """`torch.nn.LSTMCell` with a quantizer on `[input, hidden]` and one on `[w_ih, w_hh]`.

    Source: pytorch-quantization's `QuantLSTMCell`.
    """

    default_quant_desc_weight: ClassVar[QuantDescriptor] = QUANT_DESC_8BIT_LINEAR_WEIGHT_PER_ROW

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, **kwargs: Any) -> None:
        """Accept the arguments of `torch.nn.LSTMCell` and two descriptors."""
        descriptors = pop_quant_desc_in_kwargs(type(self), **kwargs)
        super().__init__(input_size, hidden_size, bias=bias)
        self.init_quantizer(*descriptors)

    def forward(self, input: Tensor, hx: State | None = None) -> State:
        """Map `(batch, input_size)` and states `(batch, hidden_size)` to the next states."""
        if input.size(1) != self.input_size:
            raise RuntimeError(
                f"input has inconsistent input_size: got {input.size(1)}, "
                f"expected {self.input_size}"
            )
        if hx is None:
            zeros = input.new_zeros(input.size(0), self.hidden_size)
            hx = (zeros, zeros)
        for label, state in zip(("[0]", "[1]"), hx, strict=True):
            if input.size(0) != state.size(0):
                raise RuntimeError(
                    f"Input batch size {input.size(0)} doesn't match hidden{label} batch size "
                    f"{state.size(0)}"
                )
            if state.size(1) != self.hidden_size:
                raise RuntimeError(
                    f"hidden{label} has inconsistent hidden_size: got {state.size(1)}, expected "
                    f"{self.hidden_size}"
                )
        weight = self._weight_quantizer(torch.cat([self.weight_ih, self.weight_hh], dim=1))
        bias = self.bias_ih + self.bias_hh if self.bias else None
        return quantized_lstm_step(input, hx, weight, bias, self._input_quantizer)
