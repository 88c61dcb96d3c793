"""Features as a data set for the Trainer, with a collator and a sampler."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from qdqbert.data.tokenizing.encoding import stack_padded
from qdqbert.tasks.task import IGNORED, Features, Labels

# Number of batches that are sorted by length together: enough to save padding, few enough to keep
# the order random.
_MEGABATCH = 50


class TrainingDataset(Dataset[dict[str, Any]]):
    """A data set of items with features and labels.

    An item has one feature, or those of all texts of an example for embedders, which are trained
    on pairs. A feature has inputs `(..., tokens)` by name.

    Attributes:
        texts: Number of features of an item.
    """

    def __init__(
        self, features: Features, labels: Sequence[Labels | None], *, together: bool
    ) -> None:
        """Select the features that have labels.

        Args:
            features: Features of one task. If several belong together, the first ones of all items
                come before all second ones.
            labels: Labels of each item. Items with `None` are left out.
            together: Whether all features of an example make an item.
        """
        inputs, size = features.encoded.inputs, len(labels)
        self.texts = len(inputs) // size if together else 1
        used = [index for index in range(size) if labels[index] is not None]
        self._items = [list(inputs[index :: size if together else len(inputs)]) for index in used]
        self._labels = [labels[index] for index in used]

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"features": self._items[index], "labels": self._labels[index]}

    @property
    def lengths(self) -> list[int]:
        """Number of tokens of each item, of the longest feature if there are several."""
        return [max(each["input_ids"].shape[-1] for each in item) for item in self._items]


def collator(padding: Mapping[str, int]) -> Callable[[Sequence[dict[str, Any]]], dict[str, Tensor]]:
    """Return a function that makes batches, the keyword arguments of a model, from items.

    In a batch of pairs all first texts come before the second ones, and so on.

    Args:
        padding: Value that pads shorter features, by input name.
    """

    def collate(items: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        positions = range(len(items[0]["features"]))
        features = [item["features"][position] for position in positions for item in items]
        batch = {
            name: torch.from_numpy(stack_padded([each[name] for each in features], filler))
            for name, filler in padding.items()
        }
        for name in items[0]["labels"]:
            batch[name] = _stack_labels([item["labels"][name] for item in items])
        return batch

    return collate


def _stack_labels(values: Sequence[Any]) -> Tensor:
    if isinstance(values[0], np.ndarray) and values[0].dtype.kind == "f":
        return torch.from_numpy(np.stack(values))
    if isinstance(values[0], np.ndarray):
        return torch.from_numpy(stack_padded(values, IGNORED))
    return torch.tensor(values, dtype=torch.float32 if isinstance(values[0], float) else None)


class BucketSampler(Sampler[int]):
    """Yields items in a random order in which the items of a batch have similar lengths.

    The order depends only on the seed and the number of the epoch, so that a run that is resumed in
    the middle of an epoch continues with the remaining batches.
    """

    def __init__(self, lengths: Sequence[int], batch_size: int, *, seed: int) -> None:
        """Take the lengths of the items in tokens, the number of items of a batch, and a seed."""
        self._lengths = lengths
        self._batch_size = batch_size
        self._seed = seed
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next epoch."""
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._lengths)

    def __iter__(self) -> Iterator[int]:
        rng = random.Random(f"{self._seed} {self._epoch}")
        order = list(range(len(self._lengths)))
        rng.shuffle(order)
        size, mega = self._batch_size, self._batch_size * _MEGABATCH
        batches: list[list[int]] = []
        for start in range(0, len(order), mega):
            near = sorted(order[start : start + mega], key=lambda item: -self._lengths[item])
            batches += [near[i : i + size] for i in range(0, len(near), size)]
        rng.shuffle(batches)
        # A batch that is not full comes last: in between it would shift the items of later ones.
        batches.sort(key=lambda batch: len(batch) < size)
        return iter([item for batch in batches for item in batch])
