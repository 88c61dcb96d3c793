"""What the tests of training share."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import flat
from qdqbert.training.trainer.trainer import TaskTrainer

# 16 examples make 4 steps.
QUICK = {"batch_size": 4, "learning_rate": 1e-3, "epochs": 1.0, "calibration_samples": 8}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Files:
    """A float checkpoint and its data."""

    checkpoint: Path
    train: Path
    dev: Path


@dataclasses.dataclass(frozen=True, kw_only=True)
class Interrupted:
    """A run that stops after its checkpoint of step 2. It has 4 steps."""

    files: Files
    out: Path

    def run(self, **changes: Any) -> Any:
        options = {**QUICK, "eval_steps": 2, **changes}
        model, data = self.files.checkpoint, self.files.train
        return flat.train(model, self.out, train_data=data, **options)


class StopError(Exception):
    """Ends a run from within."""


def before_batch(monkeypatch: pytest.MonkeyPatch, number: int, do: Callable[[], object]) -> None:
    """Call a function before the given batch, counted from 1, is trained on."""
    original, batches = TaskTrainer.training_step, iter(range(1, 10**6))

    def training_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if next(batches) == number:
            do()
        return original(self, *args, **kwargs)

    monkeypatch.setattr(TaskTrainer, "training_step", training_step)


def stop() -> None:
    raise StopError


def stop_before_batch(number: int, run: Callable[[], Any]) -> None:
    """Run until before the given batch."""
    with pytest.MonkeyPatch.context() as patch:
        before_batch(patch, number, stop)
        with pytest.raises(StopError):
            run()


def recording(function: Callable[..., Any], results: list[Any]) -> Callable[..., Any]:
    """Return a function that also appends its results to a list."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        results.append(function(*args, **kwargs))
        return results[-1]

    return run


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = load_file(folder / "model.safetensors")
    return tensors


def assert_same_weights(first: Path, second: Path) -> None:
    left, right = weights_of(first), weights_of(second)
    assert left.keys() == right.keys()
    different = [name for name in left if not torch.equal(left[name], right[name])]
    assert different == []


def files_left(out: Path) -> list[str]:
    """Return what a run left: outputs, checkpoints and half-written folders."""
    return sorted(path.name for path in out.parent.iterdir() if "out" in path.name)


def record_of(folder: Path) -> dict[str, Any]:
    """Return the content of a folder's `training.json`."""
    content: dict[str, Any] = json.loads((folder / "training.json").read_text())
    return content
