"""The layers of gliclass after an encoder, in float32: from states to a logit for each label.

Source: layers.py, poolings.py, scorers.py, calibration.py of gliclass 0.1.21. Paddings, which
change some of its poolings, do not occur here: a text is read alone.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from qdqbert.encoders.checkpoint.gliclass import LabelHead
from qdqbert.encoders.model import Floats
from qdqbert.engines.native.float_layers import FloatLinear
from qdqbert.tasks.logits import apply
from qdqbert.tasks.recurrent import Recurrent, recurrent
from qdqbert.tasks.span_layers import Tensors, attend, relu

# Of the length of a vector, as in gliclass.
_LENGTH_EPSILON = np.float32(1e-8)
# Of the scorer "hopfield".
_WITHOUT_BIAS = tuple(f"scorer.{each}_proj" for each in "qkv")
_BETA = np.float32(4)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelScorer:
    """Scores labels by the states of a text that is read with them.

    Attributes:
        head: How labels are scored.
        tensors: The weights.
        layers: The linear layers that ran, by name.
    """

    head: LabelHead
    tensors: Tensors
    layers: dict[str, FloatLinear] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, head: LabelHead, tensors: Tensors) -> LabelScorer:
        """Return the layers that some weights make, and try them.

        Raises:
            CheckpointError: They do not fit the settings.
        """
        made = cls(head=head, tensors=tensors)
        width = tensors.get("text_projector.linear_1.weight", 2).shape[-1]
        made.logits(np.ones((3, width), np.float32), np.array([head.label_id, 0, head.sep_id]), 1)
        return made

    def logits(self, states: Floats, ids: NDArray[np.integer], count: int) -> Floats:
        """Return a logit for each label.

        Args:
            states: States of all tokens of a text and its labels. Shape `(tokens, hidden)`.
            ids: Their ids. Shape `(tokens,)`.
            count: Number of labels.
        """
        text = self._projected("text_projector", self._text(states, ids))
        labels = self._projected("classes_projector", self._labels(states, ids, count))
        found = _SCORERS[self.head.scorer](self, text, labels)
        if self.head.normalizes:
            found = found * self.tensors.get("logit_scale", 1)
        return self._calibrated(text, labels, found) if self.head.calibrates else found

    def linear(self, name: str, x: Floats) -> Floats:
        """Return the outputs of a linear layer for vectors, whose last axis it reads."""
        if name not in self.layers:
            has_bias = name not in _WITHOUT_BIAS
            weight, bias = (
                self.tensors.layer(name)
                if has_bias
                else (self.tensors.get(f"{name}.weight", 2), None)
            )
            self.layers[name] = FloatLinear(weight, bias)
        try:
            found = self.layers[name](x.reshape(-1, x.shape[-1]))
        except ValueError as error:
            raise self.tensors.damaged(f"{name}.weight") from error
        return found.reshape(*x.shape[:-1], -1)

    def norm(self, name: str, x: Floats) -> Floats:
        """Return normalized vectors."""
        return self.tensors.norm(name, x.shape[-1])(x)

    @functools.cached_property
    def recurrent(self) -> Recurrent:
        """The LSTM over the states of a text."""
        return recurrent(self.tensors, "lstm.lstm")

    def _text(self, states: Floats, ids: NDArray[np.integer]) -> Floats:
        """Return the vector of a text, `(hidden,)`, or all of its states."""
        if self.head.starts_at_text:
            # The first token if there is none, as in gliclass.
            start = int((ids == self.head.sep_id).argmax())
            own = states[start:]
            if self.head.text_pooling == "pass" or self.head.has_lstm:
                states = own
            else:
                # gliclass fills with zeros, which its poolings read.
                states = np.concatenate([own, np.zeros((start, states.shape[1]), np.float32)])
        if self.head.has_lstm:
            read = self.recurrent
            try:
                states = read(states)
            except ValueError as error:
                raise self.tensors.damaged("lstm.lstm.weight_ih_l0") from error
        return _POOLINGS[self.head.text_pooling](states)

    def _labels(self, states: Floats, ids: NDArray[np.integer], count: int) -> Floats:
        """Return the vector of each label, `(labels, hidden)`."""
        (starts,) = np.nonzero(ids == self.head.label_id)
        # A text may have the token, too.
        starts = starts[:count] if self.head.labels_first else starts[len(starts) - count :]
        if self.head.label_pooling == "first":
            places = starts if self.head.reads_marker else starts + 1
            padded = np.concatenate([states, np.zeros_like(states[:1])])
            return np.asarray(padded[places])
        ends = [*starts[1:], len(ids)]
        if self.head.starts_at_text and (ids == self.head.sep_id).any():
            text = int((ids == self.head.sep_id).argmax())
            ends = [min(end, text) for end in ends]
        skipped = 0 if self.head.reads_marker else 1
        found = np.zeros((len(starts), states.shape[1]), np.float32)
        for row, start, end in zip(found, starts, ends, strict=True):
            if end > start + skipped:
                row[:] = states[start + skipped : end].mean(axis=0)
        return found

    def _projected(self, name: str, x: Floats) -> Floats:
        inner = _ACTIVATIONS[self.head.activation](self.linear(f"{name}.linear_1", x))
        found = self.linear(f"{name}.linear_2", inner)
        if self.head.normalizes:
            found = found / (np.linalg.norm(found, axis=-1, keepdims=True) + _LENGTH_EPSILON)
        return found

    def _calibrated(self, text: Floats, labels: Floats, logits: Floats) -> Floats:
        """Return logits, each scaled by a temperature of its own."""
        chances = apply("sigmoid", logits)
        losses = np.logaddexp(0, -logits) * chances + np.logaddexp(0, logits) * (1 - chances)
        facts = [
            logits,
            np.abs(logits),
            logits - logits.max(),
            logits - logits.mean(),
            np.full_like(logits, losses.mean()),
            np.full_like(logits, np.log(len(logits))),
        ]
        own = np.broadcast_to(self.norm("calibrator.text_norm", text), labels.shape)
        other = self.norm("calibrator.label_norm", labels)
        x = np.concatenate([own, other, own * other, np.abs(own - other), np.stack(facts, -1)], -1)
        for index in (0, 3):
            x = gelu(self.linear(f"calibrator.mlp.{index}", x))
        x = self.linear("calibrator.mlp.6", x)
        scales = np.float32(self.head.largest_scale) * apply("sigmoid", x[:, 0])
        return scales * logits + (x[:, 1] if self.head.shifts else np.float32(0))


def _simple(_: LabelScorer, text: Floats, labels: Floats) -> Floats:
    return labels @ text


def _weighted_dot(scorer: LabelScorer, text: Floats, labels: Floats) -> Floats:
    linear, size = scorer.linear, text.shape[-1]
    own, other = linear("scorer.proj_text", text), linear("scorer.proj_label", labels)
    first = np.broadcast_to(own[:size], (len(labels), size))
    x = np.concatenate([first, other[:, :size], own[size:] * other[:, size:]], axis=-1)
    return linear("scorer.out_mlp.3", relu(linear("scorer.out_mlp.0", x)))[:, 0]


def _mlp(scorer: LabelScorer, text: Floats, labels: Floats) -> Floats:
    x = np.concatenate([np.broadcast_to(text, labels.shape), labels], axis=-1)
    return _layers(scorer, "scorer.mlp", x, relu)


def _hopfield(scorer: LabelScorer, text: Floats, labels: Floats) -> Floats:
    linear = scorer.linear
    shares = linear("scorer.q_proj", labels) @ linear("scorer.k_proj", text)
    weights = apply("softmax", _BETA * shares)
    context: Floats = weights[:, None] * linear("scorer.v_proj", text)
    return _layers(scorer, "scorer.mlp", labels + context, relu)


def _cross_attention(scorer: LabelScorer, text: Floats, labels: Floats) -> Floats:
    query = scorer.linear("scorer.q", scorer.norm("scorer.q_norm", labels))
    key = scorer.linear("scorer.k", scorer.norm("scorer.kv_norm", text))
    context = attend(query, key, scorer.linear("scorer.v", text), heads=scorer.head.heads)
    context = scorer.norm("scorer.norm", scorer.linear("scorer.out", context))
    return _layers(scorer, "scorer.score_mlp", np.concatenate([context, labels], -1), gelu)


_SCORERS: Mapping[str, Callable[[LabelScorer, Floats, Floats], Floats]] = {
    "simple": _simple,
    "weighted-dot": _weighted_dot,
    "mlp": _mlp,
    "hopfield": _hopfield,
    "cross-attn": _cross_attention,
}
_POOLINGS: Mapping[str, Callable[[Floats], Floats]] = {
    "first": lambda x: x[0],
    "last": lambda x: x[-1],
    "avg": lambda x: x.mean(axis=0),
    "sum": lambda x: x.sum(axis=0),
    "max": lambda x: x.max(axis=0),
    "rms": lambda x: np.sqrt(np.square(x).mean(axis=0)),
    "abs_max": lambda x: np.abs(x).max(axis=0),
    "abs_avg": lambda x: np.abs(x).mean(axis=0),
    "pass": lambda x: x,
}


def _layers(
    scorer: LabelScorer, name: str, x: Floats, activation: Callable[[Floats], Floats]
) -> Floats:
    """Return the only output of three linear layers with functions between them."""
    for index in (0, 2):
        x = activation(scorer.linear(f"{name}.{index}", x))
    return scorer.linear(f"{name}.4", x)[:, 0]


def gelu(x: Floats) -> Floats:
    """Return the function GELU of each value, by the error function."""
    return np.asarray(x * (1 + _erf(x / np.sqrt(np.float32(2)))) / 2, np.float32)


def _erf(x: Floats) -> Floats:
    """Return the error function, within 2e-7: formula 7.1.26 of Abramowitz and Stegun."""
    size = np.abs(x).astype(np.float64)
    t = 1 / (1 + 0.3275911 * size)
    powers = np.full_like(t, 1.061405429)
    for each in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        powers = powers * t + each
    return np.asarray(np.sign(x) * (1 - powers * t * np.exp(-size * size)), np.float32)


_ACTIVATIONS: Mapping[str, Callable[[Floats], Floats]] = {
    "gelu": gelu,
    "relu": relu,
    "silu": lambda x: x * apply("sigmoid", x),
    "tanh": np.tanh,
}
