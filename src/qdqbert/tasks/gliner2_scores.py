"""The layers of gliner2 after an encoder, in float32: from states to scores of spans and classes.

A label's vector is what its mark's state becomes in a step of a GRU, which counts the answers to a
schema, and in layers after it. Entities are the first answer. A structure has as many as another
layer says.

Source: layers.py, models/span/model.py of gliner2 2.1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np

from qdqbert.encoders.checkpoint.gliner2 import CLASSIFIER, CountingLayer, Gliner2Head
from qdqbert.encoders.model import Floats
from qdqbert.engines.native.float_layers import FloatLinear
from qdqbert.tasks.label_scores import gelu
from qdqbert.tasks.logits import apply
from qdqbert.tasks.span_layers import Tensors, attend, fitting, span_scores

Function = Callable[[Floats], Floats]

_GRU, _PLACES = "count_embed.gru", "count_embed.pos_embedding.weight"
# Of the layers of "count_lstm_v2", in which labels attend to each other.
_HEADS, _LAYERS = 4, 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class SchemaScorer:
    """The layers that score spans of words by the marks of a schema.

    Attributes:
        spans: Returns the scores `[first, width - 1, label]` of states of words, `(words, hidden)`,
            for vectors of labels, `(labels, hidden)`.
        numbers: Returns the logits of the numbers of answers, from 0 on, of states of the marks of
            tasks, `(tasks, hidden)`.
        step: Returns the states of labels after another step of the GRU, by its index.
        rest: Returns the vectors of labels, of these states and those of their marks.
    """

    spans: Callable[[Floats, Floats], Floats]
    numbers: Function
    step: Callable[[Floats, int], Floats]
    rest: Callable[[Floats, Floats], Floats]

    @classmethod
    def of(cls, tensors: Tensors, head: Gliner2Head) -> SchemaScorer:
        """Return the layers that some weights make.

        Raises:
            CheckpointError: A tensor is missing, or does not fit the others.
        """
        return cls(
            spans=span_scores(tensors, "span_rep.span_rep_layer.", max_width=head.max_width),
            numbers=tensors.stack("count_pred.0", "count_pred.2"),
            step=_steps(tensors),
            rest=_COUNTING[head.counting_layer](tensors),
        )

    def entities(self, words: Floats, marks: Floats) -> Floats:
        """Return scores of entities, of states of words and of a schema's marks, the task's first.

        Returns:
            The scores `[first, width - 1, 1 + label]`: whether there is an entity, as the largest
            logit of a number of answers above 0 minus that of 0, and those of the labels.
        """
        labels = marks[1:]
        found = self.spans(words, self.rest(self.step(labels, 0), labels))
        (number,) = self.numbers(marks[:1])
        margin = np.full((*found.shape[:2], 1), number[1:].max() - number[0], np.float32)
        return np.concatenate([margin, found], axis=-1)

    def answers(self, marks: Floats) -> Floats:
        """Return the vectors of labels for each answer, `(answers, labels, hidden)`.

        `marks` are the states of a schema's marks, the task's first.
        """
        labels, found = marks[1:], []
        states = labels
        for index in range(int(self.numbers(marks[:1])[0].argmax())):
            states = self.step(states, index)
            found.append(self.rest(states, labels))
        return np.stack(found) if found else np.zeros((0, *labels.shape), np.float32)


def class_scores(tensors: Tensors, head: Gliner2Head) -> Function:
    """Return the function from states of the marks of labels, `(labels, hidden)`, to their logits.

    Raises:
        CheckpointError: A tensor is missing, or does not fit the others.
    """
    # A dropout after the ReLU, which architecture "boundary" has, counts, too.
    last = 3 if f"{CLASSIFIER}.3.weight" in tensors else 2
    layers = tensors.stack(f"{CLASSIFIER}.0", f"{CLASSIFIER}.{last}")

    def score(labels: Floats) -> Floats:
        with fitting(tensors.path, labels.shape[1]):
            return layers(labels)[:, 0] / np.float32(head.temperature)

    return score


def _steps(tensors: Tensors) -> Callable[[Floats, int], Floats]:
    """Return the steps of the GRU, from states of labels and the index of a step on."""
    width = tensors.get(f"{_GRU}.weight_hh_l0", 2).shape[1]
    places = tensors.get(_PLACES, 2)
    # The number 0 of answers has no step.
    if len(places) < len(tensors.layer("count_pred.2")[0]) - 1 or not len(places):
        raise tensors.damaged(_PLACES)
    inputs, layer = (
        FloatLinear(
            tensors.shaped(f"{_GRU}.weight_{way}_l0", 3 * width, depth),
            tensors.shaped(f"{_GRU}.bias_{way}_l0", 3 * width),
        )
        for way, depth in (("ih", places.shape[1]), ("hh", width))
    )
    # The input of a step is the same for all labels.
    given = inputs(places)

    def run(labels: Floats, index: int) -> Floats:
        # Gates are in the order of torch: reset, update, new.
        first, own = np.split(given[index], 3), np.split(layer(labels), 3, axis=1)
        reset, update = (apply("sigmoid", first[gate] + own[gate]) for gate in (0, 1))
        new = np.tanh(first[2] + reset * own[2])
        return np.asarray((1 - update) * new + update * labels, np.float32)

    return run


def _projected(tensors: Tensors) -> Callable[[Floats, Floats], Floats]:
    """Return the layers of "count_lstm" after the GRU, from its states and those of labels."""
    layers = tensors.stack("count_embed.projector.0", "count_embed.projector.2")
    return lambda states, labels: layers(np.concatenate([states, labels], axis=-1))


def _attended(tensors: Tensors) -> Callable[[Floats, Floats], Floats]:
    """Return the layers of "count_lstm_v2" after the GRU."""
    start = "count_embed.transformer."
    first = tensors.linear(f"{start}in_projector")
    layers = [_layer(tensors, f"{start}transformer.layers.{each}") for each in range(_LAYERS)]
    last = tensors.stack(*(f"{start}out_projector.{each}" for each in (0, 2, 4)))

    def run(states: Floats, labels: Floats) -> Floats:
        given = states + labels
        x = first(given)
        for each in layers:
            x = each(x)
        return last(np.concatenate([x, given], axis=-1))

    return run


def _layer(tensors: Tensors, name: str) -> Function:
    """Return a layer of torch's `TransformerEncoder`, whose tokens are the labels."""
    start = f"{name}.self_attn."
    width = tensors.get(f"{start}in_proj_weight", 2).shape[1]
    inner = FloatLinear(
        tensors.shaped(f"{start}in_proj_weight", 3 * width, width),
        tensors.shaped(f"{start}in_proj_bias", 3 * width),
    )
    out = tensors.linear(f"{start}out_proj")
    feed = tensors.stack(f"{name}.linear1", f"{name}.linear2")
    norms = [tensors.norm(f"{name}.norm{each}", width) for each in (1, 2)]

    def run(x: Floats) -> Floats:
        x = norms[0](x + out(attend(*np.split(inner(x), 3, axis=1), heads=_HEADS)))
        return norms[1](x + feed(x))

    return run


def _mixed(tensors: Tensors) -> Callable[[Floats, Floats], Floats]:
    """Return the layers of "count_lstm_moe" after the GRU: experts, of which each has a share."""
    start = "count_embed."
    count, wide, width = tensors.get(f"{start}w2", 3).shape
    experts = []
    for number, (inputs, outputs) in enumerate(((width, wide), (wide, width)), 1):
        weights = tensors.shaped(f"{start}w{number}", count, inputs, outputs)
        biases = tensors.shaped(f"{start}b{number}", count, outputs)
        experts.append([FloatLinear(x.T, bias) for x, bias in zip(weights, biases, strict=True)])
    router = [tensors.linear(f"{start}router.{each}") for each in (0, 2)]
    if len(tensors.layer(f"{start}router.2")[0]) != count:
        raise tensors.damaged(f"{start}router.2.weight")

    def run(states: Floats, _: Floats) -> Floats:
        shares = apply("softmax", router[1](gelu(router[0](states))))
        found = [last(gelu(first(states))) for first, last in zip(*experts, strict=True)]
        return np.asarray(np.einsum("le,eld->ld", shares, np.stack(found)), np.float32)

    return run


_COUNTING: Mapping[CountingLayer, Callable[[Tensors], Callable[[Floats, Floats], Floats]]] = {
    "count_lstm": _projected,
    "count_lstm_moe": _mixed,
    "count_lstm_v2": _attended,
}
