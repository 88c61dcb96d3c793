"""What `train` can be asked for, checked as a whole before anything is loaded.

Says it in three more ways: as a command line, as the settings that a run can only be resumed with,
and as arguments of transformers' Trainer.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import os
import shlex
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from transformers import SchedulerType, TrainingArguments

from qdqbert.errors import MissingExtraError, UserInputError
from qdqbert.recipes import QAT_QUANTIZER_OPTIONS, QuantizerOptions, build_recipe
from qdqbert.tasks.data import Columns
from qdqbert.tasks.task import Metric, TaskOptions
from qdqbert.training.distillation import Distillation

Ranges = Literal["fixed", "learned", "moving"]
Dropout = Literal["keep", "off"]

_FLOAT = {"epochs": 3.0, "learning_rate": 3e-5, "lr_scheduler": "linear"}
_QAT = {"epochs": 0.3, "learning_rate": 3e-5, "lr_scheduler": "cosine"}
# A tenth of the schedule on a cosine, as the paper and the toolkit's guide say. The guide's rate is
# a hundredth of the float one, for which `--learning-rate` has to be given.

_SCHEDULERS = tuple(
    each.value
    for each in SchedulerType
    # These want settings of their own, or a metric after each step.
    if "min_lr" not in each.value
    and each.value not in ("warmup_stable_decay", "reduce_lr_on_plateau", "greedy")
)
_SHORTEST = 3  # [CLS], a token, [SEP]
_LARGEST_SEED = 2**32 - 1  # numpy's

_EVALUATIONS = 4
_LOGGED = 50

_NOT_WORDS = (
    "model",
    "output",
    "columns",
    "task_options",
    "distillation",
    "quantizer_options",
    "resume",
)
# What may be another in a run that goes on.
_FREE = ("resume", "overwrite", "keep_checkpoints", "tensorboard")
_FOLLOWING = ("task_options", "epochs", "learning_rate", "lr_scheduler")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """What `train` was asked for; see its arguments.

    A `task_options.seed` that is not given, or 0, becomes `seed`.
    """

    model: str
    output: str
    train_data: str
    eval_data: str | None = None
    task: str | None = None
    columns: Columns = dataclasses.field(default_factory=Columns)
    task_options: TaskOptions = dataclasses.field(default_factory=TaskOptions)
    max_length: int | None = None
    max_train_examples: int | None = None
    max_eval_examples: int | None = None
    qat: bool = False
    recipe: str = "qdqbert"
    quantizer_options: QuantizerOptions = QAT_QUANTIZER_OPTIONS
    ranges: Ranges = "fixed"
    calibration_samples: int = 300
    distill_from: str | None = None
    distillation: Distillation = dataclasses.field(default_factory=Distillation)
    epochs: float | None = None
    learning_rate: float | None = None
    lr_scheduler: str | None = None
    warmup: float = 0.1
    weight_decay: float = 0.0
    batch_size: int = 16
    gradient_accumulation: int = 1
    dropout: Dropout = "keep"
    eval_steps: int | None = None
    keep_best: bool = False
    tensorboard: bool = False
    seed: int = 0
    resume: bool = False
    overwrite: bool = False
    keep_checkpoints: bool = False

    def __post_init__(self) -> None:
        for name in ("model", "output", "train_data", "eval_data", "distill_from"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else str(value))
        if not self.task_options.seed:
            seeded = dataclasses.replace(self.task_options, seed=self.seed)
            object.__setattr__(self, "task_options", seeded)
        self._check_numbers()
        for name, known in (("ranges", get_args(Ranges)), ("dropout", get_args(Dropout))):
            if getattr(self, name) not in known:
                raise UserInputError(
                    f"`--{name} {getattr(self, name)}` is unknown. Known: {', '.join(known)}."
                )
        if self.lr_scheduler not in (None, *_SCHEDULERS):
            raise UserInputError(
                f"`--lr-scheduler {self.lr_scheduler}` is unknown. Known: {', '.join(_SCHEDULERS)}."
            )
        object.__setattr__(self, "recipe", build_recipe(self.recipe).name)
        if not self.qat:
            changed = [
                name
                for name in ("recipe", "ranges", "quantizer_options")
                if getattr(self, name) != _default(name)
            ]
            if changed:
                name = (
                    _changed_switch(self.quantizer_options)
                    if changed[0] == "quantizer_options"
                    else changed[0]
                )
                raise UserInputError(
                    f"`--{name.replace('_', '-')}` says how quantizers train, and needs `--qat`. "
                    "Add it, or leave the option out."
                )
        if self.keep_best and self.eval_data is None:
            raise UserInputError("`--keep-best` needs `--eval-data` to tell which is best.")

    def _check_numbers(self) -> None:
        for name in (
            *("max_length", "max_train_examples", "max_eval_examples", "calibration_samples"),
            *("batch_size", "gradient_accumulation", "eval_steps"),
        ):
            value, least = getattr(self, name), _SHORTEST if name == "max_length" else 1
            if value is not None and value < least:
                raise UserInputError(
                    f"`--{name.replace('_', '-')}` must be at least {least}, got {value}."
                )
        for name in ("epochs", "learning_rate"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise UserInputError(
                    f"`--{name.replace('_', '-')}` must be above 0 and finite, got {value}."
                )
        if not 0 <= self.warmup < 1:
            raise UserInputError(f"`--warmup` must be at least 0 and below 1, got {self.warmup}.")
        if not 0 <= self.weight_decay < math.inf:
            raise UserInputError(
                f"`--weight-decay` must be at least 0 and finite, got {self.weight_decay}."
            )
        if not 0 <= self.seed <= _LARGEST_SEED:
            raise UserInputError(f"`--seed` must be from 0 to {_LARGEST_SEED}, got {self.seed}.")

    def schedule(self, name: Literal["epochs", "learning_rate", "lr_scheduler"]) -> Any:
        """What was asked for, or else the default of float training or of QAT."""
        asked = getattr(self, name)
        return (_QAT if self.qat else _FLOAT)[name] if asked is None else asked

    def settings(self) -> dict[str, Any]:
        """What has to be the same for a run to go on; defaults are named by their value."""
        fields = dataclasses.asdict(self) | {
            "epochs": self.schedule("epochs"),
            "learning_rate": self.schedule("learning_rate"),
            "lr_scheduler": self.schedule("lr_scheduler"),
        }
        # Those that follow from others come last, so that the others are named first.
        ordered = sorted(fields, key=lambda name: name in _FOLLOWING)
        return {name: fields[name] for name in ordered if name not in _FREE}

    def command(self) -> str:
        """The command line that does the same."""
        words = ["qdqbert", "train", self.model, "--output", self.output]
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name not in _NOT_WORDS and value is not None and value != field.default:
                words += _words(field.name, value)
        for part, prefix in ((self.task_options, ""), (self.distillation, "distill_")):
            for field in dataclasses.fields(part):
                value = getattr(part, field.name)
                if value != field.default and field.name != "seed":
                    words += _words(_FLAGS.get(prefix + field.name, field.name), value)
        for role in dataclasses.fields(self.columns):
            column = getattr(self.columns, role.name)
            if column is not None:
                words += [f"--{role.name.replace('_', '-')}-column", column]
        quantizer_options: dict[str, Any] = {}
        if self.quantizer_options != QAT_QUANTIZER_OPTIONS:  # which the command starts from
            quantizer_options = {
                "calibrator": self.quantizer_options.calibrator,
                **self.quantizer_options.to_dict(),
            }
        for name, value in quantizer_options.items():
            for each in value if isinstance(value, list) else [value]:
                words += _words(name, each)
        return shlex.join(words)


_FLAGS = {
    "distill_temperature": "temperature",
    "distill_alpha": "distill_alpha",
    "distill_hidden_weight": "distill_hidden",
}


def _words(name: str, value: object) -> list[str]:
    flag = f"--{name.replace('_', '-')}"
    return [flag] if value is True else [flag, str(value)]


def _changed_switch(quantizer_options: QuantizerOptions) -> str:
    names = [field.name for field in dataclasses.fields(quantizer_options)]
    return next(
        n for n in names if getattr(quantizer_options, n) != getattr(QAT_QUANTIZER_OPTIONS, n)
    )


def _default(name: str) -> Any:
    field = next(field for field in dataclasses.fields(TrainOptions) if field.name == name)
    return field.default


def training_arguments(options: TrainOptions, folder: Path) -> Any:
    """Arguments of transformers; starts the group of processes where a launcher made several.

    Args:
        options: What was asked for.
        folder: Where checkpoints go.

    Raises:
        MissingExtraError: A library that training needs is not installed.
    """
    if options.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise MissingExtraError(
            "`--tensorboard` needs tensorboard. Install it with: pip install 'qdqbert[tensorboard]'"
        )
    has_gpu = torch.cuda.is_available()
    is_shared = int(os.environ.get("WORLD_SIZE", "1")) > 1
    try:
        return TrainingArguments(
            output_dir=str(folder),
            per_device_train_batch_size=options.batch_size,
            gradient_accumulation_steps=options.gradient_accumulation,
            learning_rate=options.schedule("learning_rate"),
            lr_scheduler_type=options.schedule("lr_scheduler"),
            weight_decay=options.weight_decay,
            seed=options.seed,
            data_seed=options.seed,
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
    except ImportError as error:
        raise MissingExtraError(
            "Training needs accelerate. Install it with: pip install 'qdqbert[train]'"
        ) from error


def set_steps_(arguments: Any, options: TrainOptions, *, items: int) -> int:
    """Sets the length of a run on transformers' arguments, and when it evaluates, saves and logs.

    Args:
        arguments: Those that `training_arguments` made.
        options: What was asked for.
        items: How many make an epoch.

    Returns:
        How many batches each process works on.
    """
    batch = options.batch_size * arguments.world_size * options.gradient_accumulation
    steps = max(1, math.ceil(items / batch * options.schedule("epochs")))
    arguments.max_steps = steps
    arguments.warmup_steps = int(options.warmup * steps)
    every = min(options.eval_steps or math.ceil(steps / _EVALUATIONS), steps)
    arguments.eval_steps = arguments.save_steps = every
    arguments.logging_steps = max(1, steps // _LOGGED)
    return int(steps * options.gradient_accumulation)


def keep_best_(arguments: Any, metric: Metric) -> None:
    """Sets transformers' arguments to end with the checkpoint that was best by a metric."""
    arguments.load_best_model_at_end = True
    arguments.metric_for_best_model = f"eval_{metric.name}"
    arguments.greater_is_better = not metric.is_error
