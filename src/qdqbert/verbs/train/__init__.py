"""Fine-tunes a model, in float or with quantizers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from qdqbert.choices import (
    CalibratorName,
    Dropout,
    PoolingMode,
    QatRanges,
    RecipeName,
    SchedulerName,
    TaskName,
)
from qdqbert.extras import require_quantize
from qdqbert.objects import Data
from qdqbert.progress import Progress, progress_of
from qdqbert.verbs.settings import check_data
from qdqbert.verbs.train.options import TrainOptions

if TYPE_CHECKING:
    from qdqbert.evidence.reports import TrainReport


def train(
    model: str | Path,
    output: str | Path,
    *,
    train_data: Data,
    eval_data: Data | None = None,
    task: TaskName | None = None,
    qat: bool = False,
    recipe: RecipeName = "full",
    qat_ranges: QatRanges = "fixed",
    pooling: PoolingMode | None = None,
    max_length: int | None = None,
    max_train_examples: int | None = None,
    max_eval_examples: int | None = None,
    resume: bool = False,
    keep_checkpoints: bool = False,
    tensorboard: bool = False,
    overwrite: bool = False,
    epochs: float | None = None,
    learning_rate: float | None = None,
    lr_scheduler: SchedulerName | None = None,
    warmup: float = 0.1,
    weight_decay: float = 0.0,
    batch_size: int = 16,
    gradient_accumulation: int = 1,
    dropout: Dropout = "keep",
    eval_steps: int | None = None,
    keep_best: bool = False,
    seed: int = 0,
    distill_from: str | Path | None = None,
    temperature: float = 2.0,
    distill_alpha: float = 1.0,
    distill_hidden: float = 0.0,
    calibrator: CalibratorName | None = None,
    percentile: float | None = None,
    calibration_samples: int = 300,
    wprec: int | None = None,
    aprec: int | None = None,
    quant_per_tensor: bool = False,
    quant_disable: bool = False,
    quant_disable_keyword: Sequence[str] = (),
    quant_disable_layer_module: str | None = None,
    quant_enable_layer_module: str | None = None,
    fuse_qkv: bool = False,
    clip_gelu: float | None = None,
    text_column: str | None = None,
    text_pair_column: str | None = None,
    label_column: str | None = None,
    doc_stride: int | None = None,
    n_best_size: int | None = None,
    max_answer_length: int | None = None,
    null_score_diff_threshold: float | None = None,
    mlm_probability: float | None = None,
    progress: Progress | bool = False,
) -> TrainReport:
    """Fine-tune a checkpoint, in float or with quantizers (QAT), with or without a teacher.

    Writes a folder that transformers and `quantize` load. Checkpoints of the run are kept in
    `OUTPUT-checkpoints` until it ends. A resumed run ends with the same weights as one that was
    not interrupted. Processes started by `torchrun` or `accelerate launch` share the work.

    Args:
        model: Checkpoint: a local folder or a hub id. A missing head is created.
        output: Folder to write. Checkpoints of the run are kept in `OUTPUT-checkpoints` until it
            ends.
        train_data: Labeled examples: a .csv, .tsv, .jsonl or .json file, a folder of classes, CoNLL
            columns, `hub:NAME@SPLIT`; in Python also a list, DataFrame or `datasets.Dataset`.
        eval_data: Labeled examples to evaluate on, in the same formats. No evaluation by default.
        task: Name of the task in transformers. Inferred from the checkpoint by default. One of
            "feature-extraction", "fill-mask", "multiple-choice", "next-sentence-prediction",
            "question-answering", "reranking", "text-classification", "text-generation",
            "token-classification".
        qat: Insert calibrated quantizers and train with them (quantization-aware training).
        recipe: Which tensors to quantize, with `qat`. One of "ffn", "linear", "linear+qk",
            "linear+matmul", "full", "full-smoothed", "qordered".
        qat_ranges: What training does with calibrated ranges: keep them ("fixed"), learn them by
            gradient ("learned"), or average them with each batch's ("moving"). One of "fixed",
            "learned", "moving".
        pooling: How an embedder makes one vector of a text's tokens. Read from the checkpoint by
            default. One of "mean", "cls", "max", "mean_sqrt_len_tokens".
        max_length: Longest input in tokens. The limit of the task or the checkpoint by default.
        max_train_examples: Number of training examples to read at most. All by default.
        max_eval_examples: Number of evaluation examples to read at most. All by default.
        resume: Continue from the last checkpoint of an interrupted run.
        keep_checkpoints: Keep `OUTPUT-checkpoints` after the run.
        tensorboard: Write a TensorBoard log.
        overwrite: Replace an output folder that an earlier call wrote.
        epochs: Number of passes over the training data; 3 by default, 0.3 with `qat`.
        learning_rate: Peak learning rate of AdamW; 3e-5 by default.
        lr_scheduler: Name of the schedule in transformers; "linear" by default, "cosine" with
            `qat`. One of "linear", "cosine", "cosine_with_restarts", "polynomial", "constant",
            "constant_with_warmup", "inverse_sqrt".
        warmup: Fraction of the steps in which the learning rate rises.
        weight_decay: Weight decay of AdamW.
        batch_size: Number of model inputs in a batch of each process.
        gradient_accumulation: Number of batches in a step.
        dropout: Keep the checkpoint's dropout, or turn it off. One of "keep", "off".
        eval_steps: Number of steps after which the model is evaluated and saved. A quarter of the
            run by default.
        keep_best: Write the model that is best on `eval_data` instead of the last one.
        seed: Seed of the order of examples, dropout, new heads and masked tokens.
        distill_from: Float checkpoint of the teacher. No teacher by default.
        temperature: Temperature that divides the logits of both models.
        distill_alpha: Weight of the teacher in the loss, from 0 to 1; the rest is the weight of the
            labels. With 1, no labels are needed.
        distill_hidden: Weight of the mean squared distance between the hidden states.
        calibrator: Rule that turns statistics into ranges. The default is "percentile" when
            quantizing and "mse" when training. One of "max", "percentile", "mse", "entropy".
        percentile: Percentage of magnitudes that a range covers, for the calibrator "percentile";
            99.999 by default.
        calibration_samples: Number of examples to calibrate on.
        wprec: Bits of weights, 2 to 8; 8 by default.
        aprec: Bits of activations, 2 to 8; 8 by default.
        quant_per_tensor: Use one scale per weight instead of one per output channel.
        quant_disable: Leave everything in float, except for `quant_enable_layer_module`.
        quant_disable_keyword: Regular expressions. Quantizers whose name matches stay in float.
        quant_disable_layer_module: Regular expression that follows `layer.N.` in the name.
            Quantizers that match stay in float in every layer.
        quant_enable_layer_module: Regular expression that follows `layer.N.` in the name.
            Quantizers that match are quantized in every layer, whatever disables them.
        fuse_qkv: Use one range for query, key and value. With `quant_per_tensor`, also for their
            weights.
        clip_gelu: Largest value that the output of a GELU can take.
        text_column: Column of the text: a name, or a number that counts from 0. Guessed from the
            names of the columns by default.
        text_pair_column: Column of the second text of a pair.
        label_column: Column of the label or score.
        doc_stride: Tokens that neighboring windows of a long context share, in question answering;
            128 by default.
        n_best_size: Number of start and end positions that are combined, in question answering; 20
            by default.
        max_answer_length: Longest answer in tokens, in question answering; 30 by default.
        null_score_diff_threshold: Margin by which the score of "no answer" has to exceed the best
            answer's, in question answering with unanswerable questions; 0 by default.
        mlm_probability: Fraction of tokens that are masked, in fill-mask; 0.15 by default.
        progress: Show progress bars on stderr. A `Progress` object receives the stages instead.

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
    # The parameters are the fields of the options, which a test checks.
    arguments = dict(locals())
    shown = progress_of(arguments.pop("progress"))
    require_quantize("`train`")
    options = TrainOptions(**arguments)
    check_data(options)
    from qdqbert.verbs.train.run import run

    return run(options, shown)
