"""Measure what each part of a model costs if it is quantized."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from qdqbert.choices import (
    CalibratorName,
    Granularity,
    PoolingMode,
    RecipeName,
    TargetName,
    TaskName,
)
from qdqbert.extras import require_quantize
from qdqbert.objects import Data
from qdqbert.progress import Progress, progress_of
from qdqbert.verbs.analyze.options import AnalyzeOptions
from qdqbert.verbs.settings import check_data

if TYPE_CHECKING:
    from qdqbert.evidence.reports import AnalyzeReport


def analyze(
    model: str | Path,
    *,
    data: Data | None = None,
    granularity: Granularity = "linear",
    target: TargetName = "portable",
    recipe: RecipeName | None = None,
    calibration_data: Data | None = None,
    task: TaskName | None = None,
    pooling: PoolingMode | None = None,
    max_examples: int = 200,
    max_length: int | None = None,
    batch_size: int = 8,
    seed: int = 0,
    plot: str | Path | None = None,
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
    tokenizer: str | Path | None = None,
    input_names: Mapping[str, str] | None = None,
    output_names: Mapping[str, str] | None = None,
    progress: Progress | bool = False,
) -> AnalyzeReport:
    """Measure what each layer, linear layer or site costs if it is quantized.

    Each unit is quantized by itself first. Then the most costly units are left in float, one after
    another. Everything is computed with fake quantization, without an engine. Nothing is written.

    Args:
        model: Checkpoint: a local folder or a hub id; or an .onnx file.
        data: Labeled examples to measure on, in the form of `calibration_data`. By default examples
            that were not used to calibrate.
        granularity: What is quantized together: all of an encoder layer, the input and the weight
            of a linear layer, or every site by itself. One of "layer", "linear", "site".
        target: Runtime whose quantizers are analyzed. One of "portable", "onnxruntime",
            "onnxruntime-dynamic", "openvino", "native", "native-dynamic", "tensorrt", "qordered",
            "float".
        recipe: Which tensors to quantize. By default those of the checkpoint's own quantizers, or
            the target's default recipe. One of "ffn", "linear", "linear+qk",
            "linear+matmul", "full", "full-smoothed", "qordered".
        calibration_data: Examples to calibrate on: a .csv, .tsv, .jsonl, .json or .txt file, a
            folder of classes, CoNLL columns, `hub:NAME@SPLIT`; in Python also a list, DataFrame or
            `datasets.Dataset`. Built-in English sentences by default.
        task: Name of the task in transformers. Inferred from the checkpoint by default. One of
            "feature-extraction", "fill-mask", "multiple-choice", "next-sentence-prediction",
            "question-answering", "reranking", "text-classification", "text-generation",
            "token-classification".
        pooling: How an embedder makes one vector of a text's tokens. Read from the checkpoint by
            default. One of "mean", "cls", "max", "mean_sqrt_len_tokens".
        max_examples: Number of examples to measure on at most. Everything is measured on them about
            twice for each unit.
        max_length: Longest input in tokens. The limit of the task or the checkpoint by default.
        batch_size: Number of examples in a batch.
        seed: Seed that draws the calibration examples.
        plot: File for a plot, .svg, .png or .pdf. Needs matplotlib (extra `train`).
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
        tokenizer: Folder or hub id of the tokenizer and config of an .onnx file. The folder of the
            file by default.
        input_names: Names of the inputs of an .onnx file by transformers' names, where they differ:
            `{"input_ids": "tokens"}`.
        output_names: Names of the outputs of an .onnx file by transformers' names, where they
            differ: `{"logits": "scores"}`.
        progress: Show progress bars on stderr. A `Progress` object receives the stages instead.

    Returns:
        The cost of each unit: SQNR, changed predictions, and the loss of the metric.

    Raises:
        UserInputError: An argument or a file cannot be used.
        SpecError: Options of the quantizers contradict each other, or a pattern matches nothing.
        CalibrationError: A site saw no usable value.

    Example:
        >>> report = qdqbert.analyze("./my-classifier", calibration_data="train.csv")
        >>> report.units[0].name
    """
    # The parameters are the fields of the options, which a test checks.
    arguments = dict(locals())
    shown = progress_of(arguments.pop("progress"))
    require_quantize("`analyze`")
    options = AnalyzeOptions(**arguments)
    check_data(options)
    from qdqbert.verbs.analyze.run import run

    return run(options, shown)
