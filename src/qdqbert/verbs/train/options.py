"""Options of `train`."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

from qdqbert.choices import Dropout, PoolingMode, QatRanges, RecipeName, SchedulerName, TaskName
from qdqbert.errors import UserInputError
from qdqbert.objects import Rows
from qdqbert.options import (
    CalibratorOptions,
    ColumnOptions,
    QuantizerOverrides,
    TaskOptions,
    check_options,
    check_percentile,
    normalize_options,
    option,
)

_FLOAT_SCHEDULE = {"epochs": 3.0, "learning_rate": 3e-5, "lr_scheduler": "linear"}
# A tenth of the float schedule with cosine decay, as in the paper (arXiv:2004.09602) and the
# toolkit's guide. The guide's learning rate is a hundredth of the float one.
_QAT_SCHEDULE = {"epochs": 0.3, "learning_rate": 3e-5, "lr_scheduler": "cosine"}

# Options that may change when a run is resumed.
_CHANGEABLE = ("resume", "overwrite", "keep_checkpoints", "tensorboard")
# Options whose values follow from others. They are compared last, so that the cause is named.
_DERIVED = ("epochs", "learning_rate", "lr_scheduler")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerOptions:
    """Optimization.

    Attributes:
        epochs: Number of passes over the training data; 3 by default, 0.3 with `qat`.
        learning_rate: Peak learning rate of AdamW; 3e-5 by default.
        lr_scheduler: Name of the schedule in transformers; "linear" by default, "cosine" with
            `qat`.
        warmup: Fraction of the steps in which the learning rate rises.
        weight_decay: Weight decay of AdamW.
        batch_size: Number of model inputs in a batch of each process.
        gradient_accumulation: Number of batches in a step.
        dropout: Keep the checkpoint's dropout, or turn it off.
        eval_steps: Number of steps after which the model is evaluated and saved. A quarter of the
            run by default.
        keep_best: Write the model that is best on `eval_data` instead of the last one.
        seed: Seed of the order of examples, dropout, new heads and masked tokens.
    """

    epochs: float | None = option(None, above=0, below=math.inf)
    learning_rate: float | None = option(None, above=0, below=math.inf)
    lr_scheduler: SchedulerName | None = None
    warmup: float = option(0.1, at_least=0, below=1)
    weight_decay: float = option(0.0, at_least=0, below=math.inf)
    batch_size: int = option(16, at_least=1)
    gradient_accumulation: int = option(1, at_least=1)
    dropout: Dropout = "keep"
    eval_steps: int | None = option(None, at_least=1)
    keep_best: bool = False
    # numpy takes seeds of 32 bits.
    seed: int = option(0, at_least=0, at_most=2**32 - 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistillationOptions:
    """Distillation.

    Attributes:
        distill_from: Float checkpoint of the teacher. No teacher by default.
        temperature: Temperature that divides the logits of both models.
        distill_alpha: Weight of the teacher in the loss, from 0 to 1; the rest is the weight of
            the labels. With 1, no labels are needed.
        distill_hidden: Weight of the mean squared distance between the hidden states.
    """

    distill_from: str | None = None
    temperature: float = option(2.0, above=0, below=math.inf)
    distill_alpha: float = option(1.0, at_least=0, at_most=1)
    distill_hidden: float = option(0.0, at_least=0, below=math.inf)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainOptions(
    OptimizerOptions,
    DistillationOptions,
    CalibratorOptions,
    QuantizerOverrides,
    ColumnOptions,
    TaskOptions,
):
    """Common options.

    Attributes:
        model: Checkpoint: a local folder or a hub id. A missing head is created.
        output: Folder to write. Checkpoints of the run are kept in `OUTPUT-checkpoints` until it
            ends.
        train_data: Labeled examples: a .csv, .tsv, .jsonl or .json file, a folder of classes,
            CoNLL columns, `hub:NAME@SPLIT`; in Python also a list, DataFrame or
            `datasets.Dataset`.
        eval_data: Labeled examples to evaluate on, in the same formats. No evaluation by default.
        task: Name of the task in transformers. Inferred from the checkpoint by default.
        qat: Insert calibrated quantizers and train with them (quantization-aware training).
        recipe: Which tensors to quantize, with `qat`.
        qat_ranges: What training does with calibrated ranges: keep them ("fixed"), learn them by
            gradient ("learned"), or average them with each batch's ("moving").
        pooling: How an embedder makes one vector of a text's tokens. Read from the checkpoint by
            default.
        max_length: Longest input in tokens. The limit of the task or the checkpoint by default.
        max_train_examples: Number of training examples to read at most. All by default.
        max_eval_examples: Number of evaluation examples to read at most. All by default.
        resume: Continue from the last checkpoint of an interrupted run.
        keep_checkpoints: Keep `OUTPUT-checkpoints` after the run.
        tensorboard: Write a TensorBoard log.
        overwrite: Replace an output folder that an earlier call wrote.
    """

    model: str
    output: str = option(short="o")
    train_data: str | Rows
    eval_data: str | Rows | None = None
    task: TaskName | None = None
    qat: bool = False
    recipe: RecipeName = "full"
    qat_ranges: QatRanges = "fixed"
    pooling: PoolingMode | None = None
    max_length: int | None = option(None, at_least=3)
    max_train_examples: int | None = option(None, at_least=1)
    max_eval_examples: int | None = option(None, at_least=1)
    resume: bool = False
    keep_checkpoints: bool = False
    tensorboard: bool = False
    overwrite: bool = False

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            UserInputError: A value is not allowed, or two options contradict each other.
        """
        normalize_options(self)
        check_options(self)
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        if not self.qat:
            given = self.options_of_new_quantizers()
            if self.qat_ranges != defaults["qat_ranges"]:
                given.append("qat_ranges")
            for name in given:
                raise UserInputError(
                    f"`{name}` configures quantizers and requires `qat=True`. Add it, or leave "
                    f"`{name}` out.",
                    argument=name,
                )
        check_percentile(self, self.calibrator or "mse")
        if self.distill_from is None:
            for name in ("temperature", "distill_alpha", "distill_hidden"):
                if getattr(self, name) != defaults[name]:
                    raise UserInputError(
                        f"`{name}` configures distillation and requires `distill_from`. Add it, or "
                        f"leave `{name}` out.",
                        argument=name,
                    )
        if self.keep_best and self.eval_data is None:
            raise UserInputError(
                "`keep_best=True` requires `eval_data`, to compare models on.",
                argument="keep_best",
            )

    def options_of_new_quantizers(self) -> list[str]:
        """Return the names of the given options that determine how quantizers are inserted."""
        fields = {field.name: field.default for field in dataclasses.fields(self)}
        overrides = (field.name for field in dataclasses.fields(QuantizerOverrides))
        names = ("recipe", "calibrator", "percentile", *overrides)
        return [name for name in names if getattr(self, name) != fields[name]]

    def schedule(self, name: Literal["epochs", "learning_rate", "lr_scheduler"]) -> Any:
        """Return an option of the schedule, or its default for float training or QAT."""
        value = getattr(self, name)
        return (_QAT_SCHEDULE if self.qat else _FLOAT_SCHEDULE)[name] if value is None else value

    def settings(self) -> dict[str, Any]:
        """Return what has to stay the same for a run to be resumed, defaults filled in."""
        given = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        settings = {
            **{name: str(each) if isinstance(each, Rows) else each for name, each in given.items()},
            "epochs": self.schedule("epochs"),
            "learning_rate": self.schedule("learning_rate"),
            "lr_scheduler": self.schedule("lr_scheduler"),
        }
        ordered = sorted(settings, key=lambda name: name in _DERIVED)
        return {name: settings[name] for name in ordered if name not in _CHANGEABLE}
