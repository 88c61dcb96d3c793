"""Vectors of labels, by the encoder that some of gliner's checkpoints have for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np

from qdqbert.common.forks import repair_in_child
from qdqbert.encoders.model import Floats

EmbedLabels = Callable[[Sequence[str]], Floats]
"""Returns the vectors of labels, `(labels, channels)`."""

MOST_KEPT = 10_000
"""Labels whose vectors a model keeps, those that were used last."""


class KeptLabels:
    """Vectors of labels, each of which is computed once."""

    def __init__(self, embed: EmbedLabels) -> None:
        """Keep none yet; `embed` computes them."""
        self._embed = embed
        self._kept: dict[str, Floats] = {}
        self._lock = threading.Lock()
        repair_in_child(self, KeptLabels._unlock)

    def __call__(self, labels: Sequence[str]) -> Floats:
        """Return the vectors of at least one label, `(labels, channels)`."""
        with self._lock:
            known = {each: self._kept[each] for each in labels if each in self._kept}
        missing = [each for each in dict.fromkeys(labels) if each not in known]
        if missing:
            known |= zip(missing, self._embed(missing), strict=True)
        with self._lock:
            for each in labels:
                # To the end of the dict.
                self._kept.pop(each, None)
                self._kept[each] = known[each]
            while len(self._kept) > MOST_KEPT:
                del self._kept[next(iter(self._kept))]
        return np.stack([known[each] for each in labels])

    def _unlock(self) -> None:
        """Forget a lock of another thread, which a fork does not copy."""
        self._lock = threading.Lock()
