"""Layers of an LSTM in both directions, in float32, as gliner and gliclass have them."""

from __future__ import annotations

import dataclasses

import numpy as np

from qdqbert.encoders.model import Floats
from qdqbert.engines.native.float_layers import FloatLinear
from qdqbert.tasks.logits import apply
from qdqbert.tasks.span_layers import Tensors


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recurrent:
    """A layer of an LSTM in both directions.

    Attributes:
        inputs: `x` to the gates of both directions, with both biases: `in` to `2 * 4 * width`.
        states: States to gates, one for each direction: `width` to `4 * width`.
        width: Channels of a state of one direction.
    """

    inputs: FloatLinear
    states: tuple[FloatLinear, FloatLinear]
    width: int

    def __call__(self, x: Floats) -> Floats:
        """Return the states of both directions after each word. `(words, 2 * width)`."""
        width = self.width
        gates = self.inputs(x).reshape(len(x), 2, 4 * width)
        # The second direction begins with the last word.
        gates = np.stack([gates[:, 0], gates[::-1, 1]], axis=1)
        found = np.empty((len(x), 2, width), np.float32)
        state, cell = np.zeros((2, 2, width), np.float32)
        for index, gate in enumerate(gates):
            for way in (0, 1):
                gate[way] += self.states[way](state[way : way + 1])[0]
            # Gates are in the order of torch: input, forget, cell, output.
            candidate = np.tanh(gate[:, 2 * width : 3 * width])
            opened = apply("sigmoid", gate)
            cell = opened[:, width : 2 * width] * cell + opened[:, :width] * candidate
            state = opened[:, 3 * width :] * np.tanh(cell)
            found[index] = state
        return np.concatenate([found[:, 0], found[::-1, 1]], axis=1)


def recurrent(tensors: Tensors, prefix: str, index: int = 0) -> Recurrent:
    """Return a layer of an LSTM.

    `prefix` is the start of the names of its weights, and `index` the number of the layer.

    Raises:
        CheckpointError: A tensor is missing, or does not fit the others.
    """
    ways = [f"_l{index}", f"_l{index}_reverse"]
    width = tensors.get(f"{prefix}.weight_hh{ways[0]}", 2).shape[1]
    # The first direction fits the second one.
    depth = tensors.get(f"{prefix}.weight_ih{ways[1]}", 2).shape[1]
    gates = 4 * width
    inputs = [tensors.shaped(f"{prefix}.weight_ih{way}", gates, depth) for way in ways]
    states = [tensors.shaped(f"{prefix}.weight_hh{way}", gates, width) for way in ways]
    biases = [
        tensors.shaped(f"{prefix}.bias_ih{way}", gates)
        + tensors.shaped(f"{prefix}.bias_hh{way}", gates)
        for way in ways
    ]
    first, second = map(FloatLinear, states)
    return Recurrent(
        inputs=FloatLinear(np.concatenate(inputs), np.concatenate(biases)),
        states=(first, second),
        width=width,
    )
