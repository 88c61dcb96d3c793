"""Calibrate on data that is divided among the nodes of a Ray cluster.

Each node loads the model and observes a part of the batches. The observers are merged in the order
of the batches, which gives the statistics of one process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from qdqbert.calibration.passes import Run
from qdqbert.calibration.statistics import MergeableObserver
from qdqbert.common.errors import QdqBertError
from qdqbert.common.files import temporary_folder
from qdqbert.common.objects import fetched
from qdqbert.common.progress import Silent
from qdqbert.common.storage import is_url
from qdqbert.data.tokenizing.encoding import Batch
from qdqbert.integrations.ray_cluster import divide, open_ray, reporting, usable_nodes
from qdqbert.pipeline.sited import Advance
from qdqbert.pipeline.source import ModelPath, open_source
from qdqbert.quantization.spec import SiteGroup


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shard:
    """The share of a node.

    Attributes:
        batches: Consecutive batches.
    """

    model: ModelPath
    groups: frozenset[SiteGroup]
    batches: Sequence[Batch]


def observe(
    shard: Shard, observer: MergeableObserver, scales: Mapping[str, Tensor]
) -> MergeableObserver | QdqBertError:
    """Show the activations of a shard to an observer, and return it; or the error of the user."""
    try:
        with temporary_folder() as scratch:
            model, onnx = shard.model, shard.model.onnx
            with fetched(model.path, "model") as path, fetched(onnx.tokenizer, "tokenizer") as own:
                onnx = dataclasses.replace(onnx, tokenizer=own)
                model = dataclasses.replace(model, path=os.fspath(path), onnx=onnx)
                source = open_source(model, scratch, Silent())
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
    ray: str,
    model: ModelPath,
    groups: Collection[SiteGroup],
    batches: Sequence[Batch],
    advance: Advance,
) -> Iterator[Run]:
    """Yield a function that runs a model over all batches, on a Ray cluster.

    Raises:
        UserInputError: Ray cannot run.
    """
    given = model.onnx.tokenizer
    tokenizer = None if given is None else _absolute(str(given))
    # Each node downloads what a URL names.
    path = model.shown if is_url(model.shown) else model.path
    onnx = dataclasses.replace(model.onnx, tokenizer=tokenizer)
    on_node = dataclasses.replace(model, path=_absolute(path), onnx=onnx)
    with open_ray(ray) as cluster, reporting(cluster):
        division = divide(usable_nodes(cluster), None)
        task = cluster.remote(num_cpus=division.threads)(observe)
        shards = [
            Shard(model=on_node, groups=frozenset(groups), batches=part)
            for part in divided(batches, division.actors)
        ]

        def run(observer: MergeableObserver, scales: Mapping[str, Tensor]) -> None:
            running = [task.remote(shard, observer, scales) for shard in shards]
            for shard, reference in zip(shards, running, strict=True):
                seen = cluster.get(reference)
                if isinstance(seen, QdqBertError):
                    raise seen
                observer.absorb_(seen)
                for _ in shard.batches:
                    advance()

        yield run


def _absolute(path: str) -> str:
    """Return the absolute path of a file or a folder. Other names stay as they are."""
    return str(Path(path).absolute()) if Path(path).exists() else path
