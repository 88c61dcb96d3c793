"""Runs that fail: losses that are not finite, full disks, and input that cannot be used."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import transformers

import flat
from qdqbert.calibration.reference.sited_model import sited_model
from qdqbert.common.errors import (
    CheckpointError,
    MissingExtraError,
    OutputExistsError,
    TrainingError,
    UserInputError,
)
from qdqbert.training.models.quantized import load_model
from qdqbert.training.trainer.checkpoints import last_checkpoint
from qdqbert.training.trainer.trainer import TaskTrainer
from qdqbert.verbs.train import run as train_run
from training_files import Interrupted, assert_same_weights, before_batch, files_left

# Size in bytes. The weights have 200 kB, and every other file less.
SMALL = 50_000


@pytest.fixture
def run(classifier, out) -> Interrupted:
    """A run of 4 steps that is yet to start."""
    return Interrupted(files=classifier, out=out)


@pytest.fixture
def set_file_limit() -> Iterator[Callable[[int | None], None]]:
    """Limits the size of files in bytes. Writing more fails as on a full disk."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def set_limit(size: int | None) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft if size is None else size, hard))

    yield set_limit
    set_limit(None)


def test_a_nan_loss_ends_the_run_and_keeps_the_last_checkpoint(run, monkeypatch) -> None:
    original = TaskTrainer.compute_loss

    def compute_loss(self: Any, *args: Any, **kwargs: Any) -> Any:
        loss = original(self, *args, **kwargs)
        return loss * float("nan") if self.state.global_step == 3 else loss

    monkeypatch.setattr(TaskTrainer, "compute_loss", compute_loss)
    with pytest.raises(TrainingError) as caught:
        run.run(qat=True)
    kept = run.out.parent / "out-checkpoints" / "checkpoint-2"
    assert str(caught.value).startswith(
        f"The loss is nan at step 4. The last good checkpoint is {str(kept)!r}. Start"
    )
    assert files_left(run.out) == ["out-checkpoints"]
    assert len(sited_model(load_model(str(kept)).model).quantizers) == 23


def test_a_failure_before_the_first_checkpoint_leaves_nothing(run) -> None:
    with pytest.raises(TrainingError, match=r"(is|are) (nan|NaN).* There is no checkpoint yet\."):
        run.run(learning_rate=1e30, warmup=0.0, eval_steps=4)
    assert files_left(run.out) == []


def test_a_full_disk_keeps_the_checkpoint_before(run, monkeypatch, set_file_limit) -> None:
    before_batch(monkeypatch, 3, lambda: set_file_limit(SMALL))
    with pytest.raises(TrainingError, match=r"A checkpoint cannot be written \(.*") as caught:
        run.run()
    kept = run.out.parent / "out-checkpoints" / "checkpoint-2"
    assert f"last good checkpoint is {str(kept)!r}." in str(caught.value)
    assert last_checkpoint(kept.parent) == kept
    assert files_left(run.out) == ["out-checkpoints"]


def test_a_full_disk_at_the_end_leaves_no_output_and_a_run_to_resume(
    run, tmp_path, monkeypatch, set_file_limit
) -> None:
    with monkeypatch.context() as patch:
        # Called between the last checkpoint and the writing of the output.
        patch.setattr(train_run, "fix_ranges_", lambda sited: set_file_limit(SMALL))
        with pytest.raises(UserInputError, match=r"out'` cannot be written: .* Free some space"):
            run.run()
    set_file_limit(None)
    assert files_left(run.out) == ["out-checkpoints"]
    last = shutil.copytree(tmp_path / "out-checkpoints" / "checkpoint-4", tmp_path / "last")
    report = run.run(resume=True)
    assert (report.steps, report.resumed_at) == (4, 4)
    assert_same_weights(run.out, last)


def test_an_output_that_exists_is_refused(run) -> None:
    run.out.mkdir()
    (run.out / "notes.txt").write_text("mine")
    with pytest.raises(OutputExistsError, match="already exists"):
        run.run()
    with pytest.raises(OutputExistsError, match="not a model that this package wrote"):
        run.run(overwrite=True)
    assert (run.out / "notes.txt").read_text() == "mine"


def test_a_missing_checkpoint_is_refused(classifier, out) -> None:
    for task in (None, "text-classification"):
        with pytest.raises(CheckpointError, match="does not exist"):
            flat.train("./no-such-model", out, train_data=classifier.train, task=task)
    assert files_left(out) == []


@pytest.mark.parametrize("kind", ["LongformerModel", "LongformerForSequenceClassification"])
def test_a_head_that_no_engine_runs_is_not_trained(kind: str, classifier, tmp_path, out) -> None:
    folder = shutil.copytree(classifier.checkpoint, tmp_path / "float")
    own = transformers.AutoConfig.from_pretrained(folder)
    names = ("vocab_size", "hidden_size", "num_attention_heads", "intermediate_size")
    sizes = {name: getattr(own, name) for name in names}
    config = transformers.LongformerConfig(attention_window=4, num_hidden_layers=1, **sizes)
    getattr(transformers, kind)(config).save_pretrained(folder)
    with pytest.raises(UserInputError, match="`longformer` have tokens that attend to all others"):
        flat.train(folder, out, train_data=classifier.train, task="text-classification")
    assert files_left(out) == []


def test_the_error_for_missing_tensorboard_names_the_package_to_install(run, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'qdqbert\[tensorboard\]'") as caught:
        run.run(tensorboard=True)
    assert caught.value.argument == "tensorboard"
    assert files_left(run.out) == []
