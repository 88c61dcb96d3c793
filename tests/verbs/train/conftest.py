"""Checkpoints, data and trained folders for the tests of training."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import transformers

import qdqbert
from qdqbert.verbs.train import run as train_run
from task_files import HEADS
from training_files import Files, Interrupted, stop_before_batch


@pytest.fixture(scope="session")
def files_of(save_tiny, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Files]:
    """A checkpoint of one layer and its data, by task. Tests must not change them."""

    @functools.cache
    def make(task: str) -> Files:
        head, folder, rng = HEADS[task], tmp_path_factory.mktemp(task), random.Random(0)
        paths = folder / f"train-{head.file}", folder / f"dev-{head.file}"
        for path, count in zip(paths, (16, 8), strict=True):
            path.write_text(head.write(rng, count))
        auto_class = getattr(transformers, head.auto_class)
        checkpoint = save_tiny(
            folder / "float", "bert", auto_class, num_hidden_layers=1, **head.changes
        )
        return Files(checkpoint=checkpoint, train=paths[0], dev=paths[1])

    return make


@pytest.fixture(scope="session")
def classifier(files_of) -> Files:
    files: Files = files_of("text-classification")
    return files


@pytest.fixture(scope="session")
def with_quantizers(classifier, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The classifier with calibrated quantizers. Tests must not change the folder."""
    folder = Path(tmp_path_factory.mktemp("with-quantizers"))
    model = transformers.AutoModelForSequenceClassification.from_pretrained(classifier.checkpoint)
    ids = torch.arange(5, 15).reshape(1, 10)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    qdqbert.calibrate(qdqbert.prepare(model), [batch])
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(classifier.checkpoint).save_pretrained(folder)
    return folder


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture(scope="session")
def interrupted(classifier, tmp_path_factory: pytest.TempPathFactory) -> Interrupted:
    """A run that stopped after its first checkpoint. Tests must not continue it in place."""
    made = Interrupted(files=classifier, out=tmp_path_factory.mktemp("interrupted") / "out")
    stop_before_batch(4, made.run)
    return made


@pytest.fixture(scope="module", autouse=True)
def without_curves() -> Iterator[None]:
    """Draw no curves, which takes longer than training these models."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_run, "plot_curves", lambda history, path: None)
        yield
