from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from qdqbert.data.tokenizing.encoding import Encoded
from qdqbert.tasks.task import IGNORED, Features
from qdqbert.training.trainer.dataset import BucketSampler, TrainingDataset, collator

PADDING = {"input_ids": 9, "attention_mask": 0}
LENGTHS = [3 + (7 * index) % 31 for index in range(203)]


def features_of(*lengths: int) -> Features:
    """Features of which number `i` has the ids `i * 100`, `i * 100 + 1`, and so on."""
    inputs = tuple(
        {
            "input_ids": np.arange(length, dtype=np.int32) + 100 * index,
            "attention_mask": np.ones(length, dtype=np.int32),
        }
        for index, length in enumerate(lengths)
    )
    return Features(
        examples=tuple(range(len(inputs))),
        encoded=Encoded(inputs=inputs, padding=PADDING, truncated=0),
    )


def first_ids(data: TrainingDataset) -> list[list[int]]:
    return [[int(each["input_ids"][0]) for each in item["features"]] for item in _items(data)]


def _items(data: TrainingDataset) -> list[dict[str, Any]]:
    return [data[index] for index in range(len(data))]


def batches_of(sampler: BucketSampler, size: int) -> list[list[int]]:
    order = list(sampler)
    return [order[start : start + size] for start in range(0, len(order), size)]


def test_features_without_labels_are_left_out() -> None:
    data = TrainingDataset(
        features_of(4, 2, 3), [{"labels": 1}, None, {"labels": 0}], together=False
    )
    assert first_ids(data) == [[0], [200]]
    assert [item["labels"] for item in _items(data)] == [{"labels": 1}, {"labels": 0}]
    assert data.lengths == [4, 3]


def test_a_pair_has_two_features_and_the_length_of_the_longer_one() -> None:
    labels = [{"scores": 0.5}, None, {"scores": 1.0}]
    data = TrainingDataset(features_of(4, 2, 3, 5, 6, 1), labels, together=True)
    assert first_ids(data) == [[0, 300], [200, 500]]
    assert data.lengths == [5, 3]


def test_single_texts_of_an_embedder_make_items_of_one_feature() -> None:
    data = TrainingDataset(features_of(4, 2), [{}, {}], together=True)
    assert first_ids(data) == [[0], [100]]


def test_inputs_and_labels_of_a_batch_are_padded() -> None:
    labels = [{"labels": np.array(row, dtype=np.int64)} for row in ([1, 2, 0], [IGNORED])]
    data = TrainingDataset(features_of(3, 1), labels, together=False)
    batch = collator(PADDING)(_items(data))
    assert batch["input_ids"].tolist() == [[0, 1, 2], [100, 9, 9]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch["labels"].tolist() == [[1, 2, 0], [IGNORED, IGNORED, IGNORED]]
    assert {each.dtype for each in batch.values()} == {torch.int64}


def test_all_texts_of_an_example_make_an_item() -> None:
    data = TrainingDataset(features_of(*[1] * 6), [{}, {}], together=True)
    assert (data.texts, first_ids(data)) == (3, [[0, 200, 400], [100, 300, 500]])


def test_all_first_texts_come_before_all_second_ones() -> None:
    data = TrainingDataset(
        features_of(2, 1, 1, 2), [{"scores": 0.0}, {"scores": 1.0}], together=True
    )
    batch = collator(PADDING)(_items(data))
    assert batch["input_ids"].tolist() == [[0, 1], [100, 9], [200, 9], [300, 301]]
    assert batch["scores"].tolist() == [0.0, 1.0]


def test_choices_of_a_feature_are_kept_together() -> None:
    choices = np.array([[1, 2, 3], [4, 5, 9]], dtype=np.int32)
    longer = {"input_ids": choices, "attention_mask": (choices != 9).astype(np.int32)}
    shorter = {name: values[:, :2] for name, values in longer.items()}
    features = Features(
        examples=("a", "b"), encoded=Encoded(inputs=(longer, shorter), padding=PADDING, truncated=0)
    )
    data = TrainingDataset(features, [{"labels": 1}, {"labels": 0}], together=False)
    batch = collator(PADDING)(_items(data))
    assert data.lengths == [3, 2]
    assert batch["input_ids"].tolist() == [[[1, 2, 3], [4, 5, 9]], [[1, 2, 9], [4, 5, 9]]]


@pytest.mark.parametrize(
    ("values", "dtype"),
    [([2, 0], torch.int64), ([0.25, 1.0], torch.float32)],
    ids=["classes", "scores"],
)
def test_classes_stay_integers_and_scores_become_float32(values, dtype) -> None:
    data = TrainingDataset(features_of(1, 1), [{"labels": each} for each in values], together=False)
    labels = collator(PADDING)(_items(data))["labels"]
    assert (labels.tolist(), labels.dtype) == (values, dtype)


@pytest.mark.parametrize(("count", "epoch"), [(1, 0), (8, 0), (7, 3), (203, 3)])
def test_an_epoch_has_every_item_once(count: int, epoch: int) -> None:
    sampler = BucketSampler(LENGTHS[:count], 8, seed=5)
    sampler.set_epoch(epoch)
    assert len(sampler) == count
    assert sorted(sampler) == list(range(count))


def test_the_order_depends_on_the_seed_and_the_epoch_and_nothing_else() -> None:
    def order(seed: int, epoch: int) -> tuple[int, ...]:
        sampler = BucketSampler(LENGTHS, 8, seed=seed)
        sampler.set_epoch(epoch)
        return tuple(sampler)

    assert len({order(seed, epoch) for seed in range(3) for epoch in range(3)}) == 9
    sampler = BucketSampler(LENGTHS, 8, seed=1)
    torch.manual_seed(0)
    # Earlier draws do not matter.
    for _ in sampler:
        torch.rand(1)
    sampler.set_epoch(2)
    assert tuple(sampler) == tuple(sampler) == order(1, 2)


def test_a_batch_is_short_only_at_the_end() -> None:
    batches = batches_of(BucketSampler(LENGTHS, 8, seed=0), 8)
    assert [len(batch) for batch in batches] == [8] * 25 + [3]
    # A short batch in between would shift the items of later batches.
    for batch in batches:
        lengths = [LENGTHS[item] for item in batch]
        assert lengths == sorted(lengths, reverse=True)


def test_items_of_a_batch_have_similar_lengths_but_batches_are_in_random_order() -> None:
    batches = batches_of(BucketSampler(LENGTHS, 8, seed=0), 8)
    padding = sum(max(LENGTHS[i] for i in each) * len(each) for each in batches) - sum(LENGTHS)
    plain = [list(range(start, min(start + 8, 203))) for start in range(0, 203, 8)]
    worst = sum(max(LENGTHS[i] for i in each) * len(each) for each in plain) - sum(LENGTHS)
    # Sorted in one megabatch of 400: each batch spans about 31 / 26 lengths; unsorted ones, 31.
    assert padding < 0.1 * worst
    longest = [max(LENGTHS[i] for i in each) for each in batches]
    assert longest != sorted(longest, reverse=True)
    assert any(a < b for a, b in itertools.pairwise(longest))
