"""Options of a training run as arguments of transformers' Trainer."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments

from qdqbert.common.extras import require
from qdqbert.tasks.task import Metric
from qdqbert.verbs.train.options import TrainOptions

_EVALUATIONS = 4
_LOGGED_STEPS = 50


def training_arguments(options: TrainOptions, folder: Path) -> Any:
    """Return arguments of transformers, and start the process group of a launcher.

    Raises:
        MissingExtraError: tensorboard is wanted and not installed.
    """
    if options.tensorboard:
        require("`tensorboard=True`", "tensorboard", argument="tensorboard")
    has_gpu = torch.cuda.is_available()
    is_shared = int(os.environ.get("WORLD_SIZE", "1")) > 1
    return TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=options.optimization.batch_size,
        gradient_accumulation_steps=options.optimization.gradient_accumulation,
        learning_rate=options.schedule("learning_rate"),
        lr_scheduler_type=options.schedule("lr_scheduler"),
        weight_decay=options.optimization.weight_decay,
        seed=options.optimization.seed,
        data_seed=options.optimization.seed,
        # `set_steps_` sets the number of steps once the data is known.
        max_steps=1,
        eval_strategy="steps" if options.eval_data else "no",
        save_strategy="steps",
        save_total_limit=2,
        load_best_model_at_end=False,
        report_to=["tensorboard"] if options.tensorboard else [],
        disable_tqdm=True,
        remove_unused_columns=False,
        use_cpu=not has_gpu,
        ddp_backend="gloo" if is_shared and not has_gpu else None,
        ddp_find_unused_parameters=False,
        dataloader_pin_memory=has_gpu,
        logging_nan_inf_filter=False,
    )


def set_steps_(arguments: Any, options: TrainOptions, *, items: int) -> int:
    """Set how long a run is, and when it evaluates, saves and logs.

    Returns:
        Number of batches that each process works on.
    """
    batch = (
        options.optimization.batch_size
        * arguments.world_size
        * options.optimization.gradient_accumulation
    )
    steps = max(1, math.ceil(items / batch * options.schedule("epochs")))
    arguments.max_steps = steps
    arguments.warmup_steps = int(options.optimization.warmup * steps)
    every = min(options.optimization.eval_steps or math.ceil(steps / _EVALUATIONS), steps)
    arguments.eval_steps = arguments.save_steps = every
    arguments.logging_steps = max(1, steps // _LOGGED_STEPS)
    return int(steps * options.optimization.gradient_accumulation)


def keep_best_(arguments: Any, metric: Metric) -> None:
    """Make a run end with the checkpoint that is best by a metric."""
    arguments.load_best_model_at_end = True
    arguments.metric_for_best_model = f"eval_{metric.name}"
    arguments.greater_is_better = not metric.is_error
