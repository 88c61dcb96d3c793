"""Share statistics among processes, each of which sees a part of the data."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, distributed

from qdqbert.calibration.smoothing import ChannelObserver
from qdqbert.calibration.statistics import Statistics, merge_statistics
from qdqbert.quantization.numerics.histogram import Histogram


def is_shared() -> bool:
    """Return whether `torchrun` or `accelerate launch` started several processes."""
    return distributed.is_available() and distributed.is_initialized()


def count_over_processes(*mine: int, device: torch.device) -> list[int]:
    """Return the sums of some numbers over all processes."""
    counts = torch.tensor(mine, device=device)
    distributed.all_reduce(counts)
    return counts.tolist()


def share_groups_(channels: ChannelObserver, names: Collection[str], device: torch.device) -> None:
    """Add the sites that only other processes have seen, with the statistics of no token.

    `names` are the sites that `channels` observes in every process.
    """
    if not names:
        return
    order = sorted(names)
    position = {name: index for index, name in enumerate(order)}
    found = torch.zeros(len(order), 2, dtype=torch.int64)
    for leader, members in channels.groups.items():
        row = torch.tensor([position[leader], channels.ends[leader].shape[-1]])
        found[[position[name] for name in members]] = row
    found = found.to(device)
    distributed.all_reduce(found, op=distributed.ReduceOp.MAX)
    for name, (leader, count) in zip(order, found.tolist(), strict=True):
        if count:
            channels.add_unseen_(name, order[leader], count, device)


def shared_statistics(mine: Statistics, device: torch.device) -> dict[str, Histogram]:
    """Return the merged statistics of all processes, exactly as one process would have them.

    Every process has the same sites, and sends tensors from `device`.
    """
    names = sorted(mine)
    # Tensors are sent, because torch would pickle objects.
    counts = torch.stack([torch.cat([mine[n].positive, mine[n].negative]) for n in names])
    exponents = torch.tensor([mine[name].exponent for name in names])
    ends = torch.tensor([(mine[n].low, mine[n].high) for n in names], dtype=torch.float64)
    parts = zip(*(_gathered(x.to(device)) for x in (counts, exponents, ends)), strict=True)
    merged: Statistics = {}
    for theirs in parts:
        merged = merge_statistics(merged, _statistics(names, *(x.cpu() for x in theirs)))
    return dict(merged)


def max_over_processes_(mine: Mapping[str, Tensor]) -> None:
    """Replace tensors by the elementwise maximum of all processes, which have the same names."""
    for name in sorted(mine):
        distributed.all_reduce(mine[name], op=distributed.ReduceOp.MAX)


def sum_over_processes_(mine: Mapping[str, Tensor], device: torch.device) -> None:
    """Replace tensors by the sum over all processes, which have the same names."""
    for name in sorted(mine):
        sent = mine[name].to(device)
        distributed.all_reduce(sent)
        mine[name].copy_(sent)


def _gathered(x: Tensor) -> list[Tensor]:
    parts = [torch.empty_like(x) for _ in range(distributed.get_world_size())]
    distributed.all_gather(parts, x)
    return parts


def _statistics(names: list[str], counts: Tensor, exponents: Tensor, ends: Tensor) -> Statistics:
    found = {}
    for name, row, exponent, (low, high) in zip(
        names, counts, exponents.tolist(), ends.tolist(), strict=True
    ):
        positive, negative = row.view(2, -1)
        found[name] = Histogram(
            exponent=exponent, positive=positive, negative=negative, low=low, high=high
        )
    return found
