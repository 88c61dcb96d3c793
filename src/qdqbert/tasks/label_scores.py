"""The layers of gliclass after an encoder, in float32: from states to a logit for each label.

Source: layers.py, poolings.py, scorers.py, calibration.py of gliclass 0.1.21. Paddings, which
change some of its poolings, do not occur here: a text is read alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qdqbert.common.errors import CheckpointError
from qdqbert.encoders.checkpoint.gliclass import LABEL_WEIGHTS, LabelHead, read_label_weights
from qdqbert.encoders.model import Floats
from qdqbert.tasks.logits import apply

# As in torch.
_NORM_EPSILON = np.float32(1e-5)
# Of the length of a vector, as in gliclass.
_LENGTH_EPSILON = np.float32(1e-8)
# Of the scorer "hopfield".
_WITHOUT_BIAS = tuple(f"scorer.{each}_proj" for each in "qkv")
_BETA = np.float32(4)


class _Tensors:
    """Tensors by name, and the layers that they make."""

    def __init__(self, tensors: Mapping[str, Floats], path: Path) -> None:
        self._tensors, self._path = tensors, path

    def linear(self, name: str, x: Floats) -> Floats:
        """Return the outputs of a linear layer, whose bias may be missing."""
        weight = self.get(f"{name}.weight")
        if weight.ndim != 2 or weight.shape[1] != x.shape[-1]:
            raise self._damaged(f"{name}.weight")
        bias = self._tensors.get(f"{name}.bias")
        if (bias is None and name not in _WITHOUT_BIAS) or (
            bias is not None and bias.shape != weight.shape[:1]
        ):
            raise self._damaged(f"{name}.bias")
        return np.asarray(x @ weight.T if bias is None else x @ weight.T + bias, np.float32)

    def norm(self, name: str, x: Floats) -> Floats:
        """Return normalized vectors."""
        for part in ("weight", "bias"):
            if self.get(f"{name}.{part}").shape != x.shape[-1:]:
                raise self._damaged(f"{name}.{part}")
        centered = x - x.mean(axis=-1, keepdims=True)
        scale = np.sqrt(np.square(centered).mean(axis=-1, keepdims=True) + _NORM_EPSILON)
        return np.asarray(
            centered / scale * self.get(f"{name}.weight") + self.get(f"{name}.bias"), np.float32
        )

    def get(self, name: str) -> Floats:
        if name not in self._tensors:
            raise self._damaged(name)
        return self._tensors[name]

    def _damaged(self, name: str) -> CheckpointError:
        return CheckpointError(
            f"{str(self._path)!r} has no tensor `{name}` that fits the settings of gliclass. "
            "Download or copy the checkpoint again."
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelScorer:
    """Scores labels by the states of a text that is read with them.

    Attributes:
        head: How labels are scored.
        tensors: The weights.
    """

    head: LabelHead
    tensors: _Tensors

    @classmethod
    def of_folder(cls, head: LabelHead, folder: Path) -> LabelScorer:
        """Read the weights of a folder, and try them.

        Raises:
            CheckpointError: The file is missing or damaged, or does not fit the settings.
        """
        tensors = _Tensors(read_label_weights(folder), folder / LABEL_WEIGHTS)
        made = cls(head=head, tensors=tensors)
        width = tensors.get("text_projector.linear_1.weight").shape[-1]
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
            found = found * self.tensors.get("logit_scale")
        return self._calibrated(text, labels, found) if self.head.calibrates else found

    def _text(self, states: Floats, ids: NDArray[np.integer]) -> Floats:
        """Return the vector of a text, `(hidden,)`, or all of its states."""
        if self.head.starts_at_text:
            # The first token if there is none, as in gliclass.
            start = int((ids == self.head.sep_id).argmax())
            own = states[start:]
            if self.head.text_pooling == "pass":
                return own
            # gliclass fills with zeros, which its poolings read.
            states = np.concatenate([own, np.zeros((start, states.shape[1]), np.float32)])
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
        inner = _ACTIVATIONS[self.head.activation](self.tensors.linear(f"{name}.linear_1", x))
        found = self.tensors.linear(f"{name}.linear_2", inner)
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
        own = np.broadcast_to(self.tensors.norm("calibrator.text_norm", text), labels.shape)
        other = self.tensors.norm("calibrator.label_norm", labels)
        x = np.concatenate([own, other, own * other, np.abs(own - other), np.stack(facts, -1)], -1)
        for index in (0, 3):
            x = gelu(self.tensors.linear(f"calibrator.mlp.{index}", x))
        x = self.tensors.linear("calibrator.mlp.6", x)
        scales = np.float32(self.head.largest_scale) * apply("sigmoid", x[:, 0])
        return scales * logits + (x[:, 1] if self.head.shifts else np.float32(0))


def _simple(_: LabelScorer, text: Floats, labels: Floats) -> Floats:
    return labels @ text


def _weighted_dot(scorer: LabelScorer, text: Floats, labels: Floats) -> Floats:
    linear, size = scorer.tensors.linear, text.shape[-1]
    own, other = linear("scorer.proj_text", text), linear("scorer.proj_label", labels)
    first = np.broadcast_to(own[:size], (len(labels), size))
    x = np.concatenate([first, other[:, :size], own[size:] * other[:, size:]], axis=-1)
    return linear("scorer.out_mlp.3", _relu(linear("scorer.out_mlp.0", x)))[:, 0]


def _mlp(scorer: LabelScorer, text: Floats, labels: Floats) -> Floats:
    x = np.concatenate([np.broadcast_to(text, labels.shape), labels], axis=-1)
    return _layers(scorer, "scorer.mlp", x, _relu)


def _hopfield(scorer: LabelScorer, text: Floats, labels: Floats) -> Floats:
    linear = scorer.tensors.linear
    shares = linear("scorer.q_proj", labels) @ linear("scorer.k_proj", text)
    weights = apply("softmax", _BETA * shares)
    context: Floats = weights[:, None] * linear("scorer.v_proj", text)
    return _layers(scorer, "scorer.mlp", labels + context, _relu)


def _cross_attention(scorer: LabelScorer, text: Floats, labels: Floats) -> Floats:
    tensors, heads = scorer.tensors, scorer.head.heads

    def split(x: Floats) -> Floats:
        return x.reshape(len(x), heads, -1).swapaxes(0, 1)

    query = split(tensors.linear("scorer.q", tensors.norm("scorer.q_norm", labels)))
    key = split(tensors.linear("scorer.k", tensors.norm("scorer.kv_norm", text)))
    value = split(tensors.linear("scorer.v", text))
    shares = query @ key.swapaxes(1, 2) / np.sqrt(np.float32(query.shape[-1]))
    context = (apply("softmax", shares) @ value).swapaxes(0, 1).reshape(labels.shape)
    context = tensors.norm("scorer.norm", tensors.linear("scorer.out", context))
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
        x = activation(scorer.tensors.linear(f"{name}.{index}", x))
    return scorer.tensors.linear(f"{name}.4", x)[:, 0]


def _relu(x: Floats) -> Floats:
    return np.maximum(x, 0)


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
    "relu": _relu,
    "silu": lambda x: x * apply("sigmoid", x),
    "tanh": np.tanh,
}
