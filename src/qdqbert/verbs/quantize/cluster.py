"""Calibrate on data that is divided among the nodes of a Ray cluster.

Each node loads the model and observes a part of the batches. The observers are merged in the order
of the batches, which gives the statistics of one process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from qdqbert.calibration.passes import Run
from qdqbert.calibration.statistics import MergeableObserver
from qdqbert.encoding import Batch
from qdqbert.errors import QdqBertError
from qdqbert.integrations.ray_cluster import address_of, alive_nodes, divide, open_ray, reporting
from qdqbert.objects import Rows, SavedModel
from qdqbert.progress import Silent
from qdqbert.spec import SiteGroup
from qdqbert.verbs.quantize.options import QuantizeOptions
from qdqbert.verbs.quantize.source.sited import Advance


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shard:
    """The share of a node.

    Attributes:
        options: Options of the call.
        groups: Groups of the sites.
        batches: Consecutive batches.
    """

    options: QuantizeOptions
    groups: frozenset[SiteGroup]
    batches: Sequence[Batch]


def observe(
    shard: Shard, observer: MergeableObserver, scales: Mapping[str, Tensor]
) -> MergeableObserver | QdqBertError:
    """Show the activations of a shard to an observer, and return it; or the error of the user."""
    from qdqbert.verbs.quantize.prepare import open_source

    try:
        with tempfile.TemporaryDirectory() as scratch:
            source = open_source(shard.options, Path(scratch), Silent())
            run = source.with_sites(shard.groups).observed_run(shard.batches, lambda: None)
            run(observer, scales)
    except QdqBertError as error:
        return error
    # The observer lets go of the last tensors.
    observer.start_batch(torch.ones((1, 1), dtype=torch.int64))
    return observer


def divided(batches: Sequence[Batch], parts: int) -> list[Sequence[Batch]]:
    """Divide batches into at most so many runs of about the same length."""
    size = -(-len(batches) // parts)
    return [batches[start : start + size] for start in range(0, len(batches), size)]


@contextlib.contextmanager
def cluster_run(
    options: QuantizeOptions,
    groups: Collection[SiteGroup],
    batches: Sequence[Batch],
    advance: Advance,
) -> Iterator[Run]:
    """Yield what runs a model over all batches, on a Ray cluster.

    Args:
        options: Options of the call.
        groups: Groups of the sites.
        batches: The inputs.
        advance: Called after each batch.

    Raises:
        UserInputError: Ray cannot run.
    """
    on_node = dataclasses.replace(
        options,
        model=_absolute(options.model),
        # The nodes get batches, and read no data.
        calibration_data=_named(options.calibration_data),
        eval_data=_named(options.eval_data),
        calibration=dataclasses.replace(options.calibration, ray=None),
        onnx=dataclasses.replace(options.onnx, tokenizer=_absolute(options.onnx.tokenizer)),
    )
    with open_ray(address_of(options.calibration.ray)) as ray, reporting(ray):
        division = divide(alive_nodes(ray), None)
        task = ray.remote(num_cpus=division.threads)(observe)
        shards = [
            Shard(
                options=on_node,
                groups=frozenset(groups),
                batches=part,
            )
            for part in divided(batches, division.actors)
        ]

        def run(observer: MergeableObserver, scales: Mapping[str, Tensor]) -> None:
            running = [task.remote(shard, observer, scales) for shard in shards]
            for shard, reference in zip(shards, running, strict=True):
                seen = ray.get(reference)
                if isinstance(seen, QdqBertError):
                    raise seen
                observer.absorb_(seen)
                for _ in shard.batches:
                    advance()

        yield run


def _absolute(path: str | SavedModel | None) -> str | None:
    """Return the absolute path of a file or a folder. Names of the hub stay as they are."""
    if path is None:
        return None
    return str(Path(path).absolute()) if Path(path).exists() else str(path)


def _named(data: str | Rows | None) -> str | None:
    return None if data is None else str(data)
