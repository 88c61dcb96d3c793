"""Fine-tunes a model, in float or with quantizers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdqbert.common.extras import require
from qdqbert.common.progress import Progress
from qdqbert.common.storage import place_of
from qdqbert.pipeline.settings import check_data, check_model
from qdqbert.runtime.artifact import check_output
from qdqbert.verbs.call import public
from qdqbert.verbs.train.options import TrainOptions

if TYPE_CHECKING:
    from qdqbert.evidence.reporting.train import TrainReport


@public(TrainOptions)
def train(options: TrainOptions, progress: Progress) -> TrainReport:
    """Fine-tune a checkpoint, in float or with quantizers (QAT), with or without a teacher.

    Writes a folder that transformers and `quantize` load. Checkpoints of the run are kept in
    `OUTPUT-checkpoints` until it ends. A resumed run ends with the same weights as one that was
    not interrupted. Processes started by `torchrun` or `accelerate launch` share the work.

    Returns:
        Metrics before and after training. The same is in `training.json`.

    Raises:
        UserInputError: An argument or a file cannot be used.
        SpecError: Options of the quantizers contradict each other, or a pattern matches nothing.
        CalibrationError: A quantizer saw no usable value.
        TrainingError: The loss is not finite, or a checkpoint cannot be written. Checkpoints that
            were written before are kept.

    Example:
        >>> report = qdqbert.train(
        ...     "./my-classifier", "./my-qat", train_data="train.csv", eval_data="dev.csv", qat=True
        ... )
        >>> report.after
    """
    require("`train`", "train")
    check_output(place_of(options.output), overwrite=options.overwrite)
    check_model(options.model, "model")
    check_model(options.distillation.teacher, "distill_from")
    check_data(options)
    from qdqbert.verbs.train.run import run

    return run(options, progress)
