"""Features as what a Trainer takes: a data set of rows, a collator, and the order of a run."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from qdqbert.encoding import stack_padded
from qdqbert.tasks.task import IGNORED, Features, Labels

_MEGABATCH = 50
# Batches that are sorted by length together: enough to save padding, few enough to stay random.


class TrainingDataset(Dataset[dict[str, Any]]):
    """Each item is what one step is made of: inputs `(..., tokens)` of a row, and its labels.

    Embedders are trained on pairs: an item of theirs holds two rows as `first` and `second`.
    """

    def __init__(self, features: Features, labels: Sequence[Labels | None], *, pairs: bool) -> None:
        """Takes features of one task.

        Args:
            features: Rows; of pairs, all first texts and then all second ones.
            labels: One a row; of pairs, one a pair. Rows with none are left out.
            pairs: Whether two rows make an item.
        """
        rows, size = features.encoded.rows, len(labels)
        has_pairs = pairs and len(rows) == 2 * size
        used = [index for index in range(size) if labels[index] is not None]
        self._items = [
            [rows[index], rows[index + size]] if has_pairs else [rows[index]] for index in used
        ]
        self._labels = [labels[index] for index in used]

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"rows": self._items[index], "labels": self._labels[index]}

    @property
    def lengths(self) -> list[int]:
        """Tokens of each item, of the longer row for pairs."""
        return [max(row["input_ids"].shape[-1] for row in item) for item in self._items]


def collator(padding: Mapping[str, int]) -> Callable[[Sequence[dict[str, Any]]], dict[str, Tensor]]:
    """Makes batches of items: keyword arguments of a model. First rows come before second ones.

    Args:
        padding: What fills a shorter row, by input name.
    """

    def collate(items: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        places = range(len(items[0]["rows"]))
        rows = [item["rows"][place] for place in places for item in items]
        batch = {
            name: torch.from_numpy(stack_padded([row[name] for row in rows], filler))
            for name, filler in padding.items()
        }
        for name in items[0]["labels"]:
            batch[name] = _stack_labels([item["labels"][name] for item in items])
        return batch

    return collate


def _stack_labels(values: Sequence[Any]) -> Tensor:
    if isinstance(values[0], np.ndarray):
        return torch.from_numpy(stack_padded(values, IGNORED))
    return torch.tensor(values, dtype=torch.float32 if isinstance(values[0], float) else None)


class BucketSampler(Sampler[int]):
    """A new order each epoch, in which neighbours have like lengths; the same for equal seeds.

    What an epoch is like depends on the seed and its number only, so that a run that is resumed
    in the middle of one goes on with the batches that are left.
    """

    def __init__(self, lengths: Sequence[int], batch_size: int, *, seed: int) -> None:
        """Takes lengths in tokens, the items of a batch, and a seed."""
        self._lengths = lengths
        self._batch_size = batch_size
        self._seed = seed
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Says which epoch is next."""
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
        # A batch that is not full comes last: in between it would shift all others.
        batches.sort(key=lambda batch: len(batch) < size)
        return iter([item for batch in batches for item in batch])
