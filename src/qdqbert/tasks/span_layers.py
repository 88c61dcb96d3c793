"""Layers after an encoder that score spans of words, in float32, of tensors by name.

The vector of a span comes from its first and its last word, through two linear layers. The first of
them has a part for each of the two words, so that it is computed once for a word and added for a
span; the second one is multiplied by the vectors of the labels first. No vector of a span is made.

Source: `SpanMarkerV0` of gliner 0.2 and of gliner2 2.1.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from qdqbert.common.errors import CheckpointError
from qdqbert.encoders.checkpoint.own_layers import OwnLayers, found_weights
from qdqbert.encoders.checkpoint.sentence_files import FindFile
from qdqbert.encoders.model import Floats
from qdqbert.encoders.weights import Weights
from qdqbert.engines.native.float_layers import FloatLinear
from qdqbert.tasks.logits import apply

# As in torch.
_NORM_EPSILON = np.float32(1e-5)

FIRST, LAST = "0", "3"
"""Where the first and the last linear layer are in a projection."""


class Tensors:
    """Tensors by name, and the layers that they make."""

    def __init__(
        self, tensors: Mapping[str, Floats], path: Path, settings: Mapping[str, str]
    ) -> None:
        """Take tensors.

        Args:
            tensors: Tensors by name.
            path: Where they are, for messages.
            settings: Settings that ask for them, by the start of their names, for messages.
        """
        self._tensors, self.path, self._settings = tensors, path, settings

    @classmethod
    def of_checkpoint(cls, head: OwnLayers, find: FindFile) -> Tensors:
        """Read the weights of a checkpoint, whose files `find` finds.

        Raises:
            CheckpointError: The file is missing or damaged.
        """
        return cls(head.tensors(find), found_weights(find).path, head.layers)

    @classmethod
    def of_folder(cls, folder: Path, head: OwnLayers) -> Tensors:
        """Read the weights of a folder with graphs; see `OwnLayers.write_settings`.

        Raises:
            CheckpointError: The file is missing or damaged.
        """
        weights = Weights(folder, names=(head.weights_file,))
        found = {name: np.ascontiguousarray(weights.read(name)) for name in weights}
        return cls(found, folder / head.weights_file, head.layers)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def layer(self, name: str) -> tuple[Floats, Floats]:
        """Return the weight `(out, in)` and the bias of a linear layer."""
        weight, bias = self.get(f"{name}.weight", 2), self.get(f"{name}.bias", 1)
        if len(weight) != len(bias):
            raise self.damaged(f"{name}.bias")
        return weight, bias

    def linear(self, name: str) -> FloatLinear:
        """Return a linear layer."""
        return FloatLinear(*self.layer(name))

    def stack(self, *names: str) -> Callable[[Floats], Floats]:
        """Return linear layers with a ReLU between each and the next one."""
        weights = [self.layer(name)[0] for name in names]
        for name, before, weight in zip(names[1:], weights, weights[1:], strict=False):
            if len(before) != weight.shape[1]:
                raise self.damaged(f"{name}.weight")
        first, *others = map(self.linear, names)

        def run(x: Floats) -> Floats:
            x = first(x)
            for each in others:
                x = each(relu(x))
            return x

        return run

    def two(self, name: str) -> Callable[[Floats], Floats]:
        """Return a projection: two linear layers with a ReLU between them."""
        return self.stack(f"{name}.{FIRST}", f"{name}.{LAST}")

    def norm(self, name: str, width: int) -> Callable[[Floats], Floats]:
        """Return a layer that normalizes vectors of a width."""
        weight, bias = (self.shaped(f"{name}.{part}", width) for part in ("weight", "bias"))

        def run(x: Floats) -> Floats:
            centered = x - x.mean(axis=-1, keepdims=True)
            scale = np.sqrt(np.square(centered).mean(axis=-1, keepdims=True) + _NORM_EPSILON)
            return np.asarray(centered / scale * weight + bias, np.float32)

        return run

    def shaped(self, name: str, *shape: int) -> Floats:
        """Return a tensor of a shape."""
        found = self.get(name, len(shape))
        if found.shape != shape:
            raise self.damaged(name)
        return found

    def get(self, name: str, axes: int) -> Floats:
        """Return a tensor with a number of axes."""
        found = self._tensors.get(name)
        if found is None or found.ndim != axes:
            raise self.damaged(name)
        return found

    def damaged(self, name: str) -> CheckpointError:
        """Return the error about a tensor that is missing or of another shape."""
        asked = next(
            (
                f"`{setting}`, or other settings next to it"
                for start, setting in self._settings.items()
                # gliclass leaves the first part of names out.
                if name.startswith(start.removeprefix("model."))
            ),
            "the settings next to it",
        )
        return CheckpointError(
            f"{str(self.path)!r} has no tensor `{name}` that fits {asked}. Download or copy the "
            "checkpoint again."
        )


@contextlib.contextmanager
def fitting(path: Path, width: int) -> Iterator[None]:
    """Say of which file the layers are that do not fit states of a width, or each other.

    Raises:
        CheckpointError: The block raises a `ValueError`.
    """
    try:
        yield
    except ValueError as error:
        raise CheckpointError(
            f"Tensors of {str(path)!r} do not fit the encoder of {width} channels, or each other: "
            f"{error}. Download or copy the checkpoint again."
        ) from error


def span_scores(
    tensors: Tensors, prefix: str, *, max_width: int, parts: int = 2, is_linear: bool = False
) -> Callable[[Floats, Floats], Floats]:
    """Return the function from vectors of words and labels to scores of spans.

    Args:
        tensors: The weights.
        prefix: Start of their names.
        max_width: Most words of a span.
        parts: Number of vectors that the last projection reads: of the first and the last word,
            and of the mean of all words.
        is_linear: Whether the last projection is one linear layer.

    Returns:
        A function of `(words, width)` and `(labels, width)`, with the scores `[first, width - 1,
        label]`, of spans beyond the last word 0.
    """
    starts, ends = tensors.two(f"{prefix}project_start"), tensors.two(f"{prefix}project_end")
    name = f"{prefix}out_project"
    weight, bias = tensors.layer(name if is_linear else f"{name}.{FIRST}")
    size = weight.shape[1] // parts
    of_first = FloatLinear(weight[:, :size], bias)
    of_last = FloatLinear(weight[:, size : 2 * size])
    of_mean = FloatLinear(weight[:, 2 * size :]) if weight.shape[1] > 2 * size else None
    inner, last_bias = (None, None) if is_linear else tensors.layer(f"{name}.{LAST}")
    # Of the labels, instead of the spans.
    folded = None if inner is None else FloatLinear(inner.T)

    def score(words: Floats, vectors: Floats) -> Floats:
        first, last = of_first(relu(starts(words))), of_last(relu(ends(words)))
        if of_mean is not None:
            first += of_mean(relu(words.mean(axis=0, keepdims=True)))
        outer = FloatLinear(vectors)
        if folded is not None and last_bias is not None:
            outer = FloatLinear(folded(vectors), vectors @ last_bias)
        widths = min(max_width, len(words))
        found = np.zeros((len(words), widths, len(vectors)), np.float32)
        for more in range(widths):
            pairs = first[: len(words) - more] + last[more:]
            found[: len(words) - more, more] = outer(pairs if is_linear else relu(pairs))
        return found

    return score


def attend(query: Floats, key: Floats, value: Floats, *, heads: int) -> Floats:
    """Return the mean of values for each query, weighted in each head. `(queries, channels)`."""
    split = [x.reshape(len(x), heads, -1).swapaxes(0, 1) for x in (query, key, value)]
    shares = split[0] @ split[1].swapaxes(1, 2) / np.sqrt(np.float32(split[0].shape[-1]))
    found: Floats = apply("softmax", shares) @ split[2]
    return found.swapaxes(0, 1).reshape(query.shape)


def relu(x: Floats) -> Floats:
    """Set negative values to 0, in place."""
    return np.maximum(x, 0, out=x)
