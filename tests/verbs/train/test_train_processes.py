"""Runs in processes of their own: one that is killed, and two that share the work."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest
import torch

import flat
from python_process import call_python, run_python
from qdqbert.calibration.reference.sited_model import sited_model
from qdqbert.training.models.quantized import load_model
from training_files import files_left

KILLED = """
import os, signal
from qdqbert.training.trainer.trainer import TaskTrainer
from qdqbert import cli

original = TaskTrainer.training_step

def training_step(self, *args, **kwargs):
    if self.state.global_step == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(self, *args, **kwargs)

TaskTrainer.training_step = training_step
cli.main()
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="only POSIX has SIGKILL")
@pytest.mark.slow
def test_a_killed_run_can_be_resumed(classifier, out) -> None:
    options: dict[str, Any] = {"epochs": 1.0, "eval_steps": 2, "batch_size": 4}
    words = ["--epochs", "1", "--eval-steps", "2", "--batch-size", "4"]
    paths = [classifier.checkpoint, "--train-data", classifier.train, "--output", out]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    killed = call_python("-c", KILLED, "train", *paths, *words, env=environment)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    report = flat.train(
        classifier.checkpoint, out, train_data=classifier.train, resume=True, **options
    )
    # `test_train_resume` checks that a run that is resumed ends with the same weights.
    assert (report.resumed_at, report.steps) == (2, 4)
    assert files_left(out) == ["out"]


@pytest.mark.slow
def test_two_processes_share_the_work_and_the_ranges(classifier, tmp_path, out) -> None:
    words = ["--epochs", "2", "--batch-size", "4", "--seed", "3", "--calibration-samples", "12"]
    paths = [classifier.checkpoint, "--train-data", classifier.train, "--eval-data", classifier.dev]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launcher, "-m", "qdqbert", "train", "--qat", "--json", *paths, "--output", out]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    report = json.loads(run_python(*command, *words, env=environment))
    # 2 epochs of 16 examples, in batches of 4 in each process.
    assert (report["steps"], report["quantizers"]) == (4, 23)
    assert files_left(out) == ["out"]
    # Ranges stay as calibrated, so one step is enough.
    flat.train(
        classifier.checkpoint,
        tmp_path / "alone",
        train_data=classifier.train,
        eval_data=classifier.dev,
        qat=True,
        epochs=0.1,
        batch_size=4,
        seed=3,
        calibration_samples=12,
    )
    ranges = [
        {
            name: each.amax
            for name, each in sited_model(load_model(str(folder)).model).quantizers.items()
            if "_input_quantizer" in name
        }
        for folder in (out, tmp_path / "alone")
    ]
    assert len(ranges[0]) == 14
    assert all(torch.equal(ranges[0][name], ranges[1][name]) for name in ranges[1])
