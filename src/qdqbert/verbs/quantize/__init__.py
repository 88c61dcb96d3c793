"""Quantize a float model to INT8 and measure the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from qdqbert.choices import (
    CalibratorName,
    Embeddings,
    PoolingMode,
    RecipeName,
    TargetChoice,
    TaskName,
    VerificationData,
    WeightsFor,
)
from qdqbert.extras import require_quantize
from qdqbert.objects import Data, ModelLike, saved
from qdqbert.progress import Progress, progress_of
from qdqbert.verbs.quantize.options import QuantizeOptions
from qdqbert.verbs.settings import check_data

if TYPE_CHECKING:
    from qdqbert.evidence.reports import QuantizeReport


def quantize(
    model: ModelLike | None = None,
    output: str | Path | None = None,
    *,
    targets: Sequence[TargetChoice] = (),
    recipe: RecipeName | None = None,
    calibration_data: Data | None = None,
    eval_data: Data | None = None,
    task: TaskName | None = None,
    pooling: PoolingMode | None = None,
    max_length: int | None = None,
    batch_size: int = 8,
    benchmark: bool = True,
    overwrite: bool = False,
    report: str | Path | None = None,
    verification_data: VerificationData = "built-in",
    recalibrate: bool = False,
    recalibrate_weights: bool = False,
    ranges_from: str | Path | None = None,
    seed: int = 0,
    ray: bool | str | None = None,
    calibrator: CalibratorName | None = None,
    percentile: float | None = None,
    calibration_samples: int = 300,
    max_drop: float | None = None,
    max_flips: float | None = None,
    min_sqnr: float | None = None,
    min_cosine: float | None = None,
    wprec: int | None = None,
    aprec: int | None = None,
    quant_per_tensor: bool = False,
    quant_disable: bool = False,
    quant_disable_keyword: Sequence[str] = (),
    quant_disable_layer_module: str | None = None,
    quant_enable_layer_module: str | None = None,
    fuse_qkv: bool = False,
    clip_gelu: float | None = None,
    weights_for: WeightsFor = "any",
    embeddings: Embeddings = "int8",
    dedicated_qdq_pairs: bool = False,
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
) -> QuantizeReport:
    """Quantize a checkpoint or an ONNX model to INT8, and measure the result.

    Writes a folder with one graph for each target, the tokenizer, the config, the ranges and a
    report. The folder is written completely or not at all.

    Limits such as `max_drop` are met by leaving the most sensitive linear layers in float. The
    reference is the float model. If a limit cannot be met, or there are too few examples to show
    it, no folder is written, and the report says why.

    Args:
        model: Checkpoint: a local folder or a hub id; or an .onnx file. In Python also `(model,
            tokenizer)` of transformers, a pipeline, a `SentenceTransformer` or a `CrossEncoder`. By
            default the packaged all-MiniLM-L6-v2 (extra `demo`).
        output: Folder to write: by default, the name of the model and `-int8`, in the current
            folder.
        targets: Runtimes to write a graph for, all from one calibration. By default those of the
            engines that are installed here: "native", "onnxruntime" and "openvino". "auto" measures
            all of these engines on the calibration data, and writes the fastest graph that is close
            enough to float. One of "portable", "onnxruntime",
            "onnxruntime-dynamic", "openvino", "native", "native-dynamic", "tensorrt", "qordered",
            "float", "auto".
        recipe: Which tensors to quantize. By default those of the checkpoint's own quantizers, or
            the target's default recipe. One of "ffn", "linear", "linear+qk",
            "linear+matmul", "full", "full-smoothed", "qordered".
        calibration_data: Examples to calibrate on: a .csv, .tsv, .jsonl, .json or .txt file, a
            folder of classes, CoNLL columns, `hub:NAME@SPLIT`; in Python also a list, DataFrame or
            `datasets.Dataset`. Built-in English sentences by default.
        eval_data: Labeled examples to compare INT8 with float on, in the form of
            `calibration_data`. If only one of the two is given, it is split: a part calibrates, and
            INT8 is compared with float on the rest, with metrics if there are labels.
        task: Name of the task in transformers. Inferred from the checkpoint by default. One of
            "feature-extraction", "fill-mask", "multiple-choice", "next-sentence-prediction",
            "question-answering", "reranking", "text-classification", "text-generation",
            "token-classification".
        pooling: How an embedder makes one vector of a text's tokens. Read from the checkpoint by
            default. One of "mean", "cls", "max", "mean_sqrt_len_tokens".
        max_length: Longest input in tokens. The limit of the task or the checkpoint by default.
        batch_size: Number of examples in a batch.
        benchmark: Measure the latency of INT8 and of float, which takes 10 seconds or more for
            each graph and engine. Measured by default.
        overwrite: Replace an output folder that an earlier call wrote.
        report: File for the report, which is also written if a limit is not met. HTML if its name
            ends in .html, JSON otherwise.
        verification_data: Inputs that are stored with their results in float, for `verify`.
            "built-in" are English sentences of this package. "held-out" are examples of
            `calibration_data` or `eval_data`, whose tokens can be turned back into their texts. One
            of "built-in", "held-out", "none".
        recalibrate: Calibrate again, even if the checkpoint's own quantizers have ranges.
        recalibrate_weights: Take the ranges of weights from the weights, even if the checkpoint
            stores some.
        ranges_from: Folder that an earlier call wrote for the same model. Its ranges are used
            again, for other targets or settings.
        seed: Seed that draws the calibration examples.
        ray: Calibrate on a Ray cluster, or on the one with this address. Ray is started on this
            machine if there is none.
        calibrator: Rule that turns statistics into ranges. The default is "percentile" when
            quantizing and "mse" when training. One of "max", "percentile", "mse", "entropy".
        percentile: Percentage of magnitudes that a range covers, for the calibrator "percentile";
            99.999 by default.
        calibration_samples: Number of examples to calibrate on.
        max_drop: Largest loss of the main metric against the reference, in the unit of the metric.
        max_flips: Largest percentage of predictions that differ from the reference's.
        min_sqnr: Lowest SQNR to the reference, in dB.
        min_cosine: Lowest cosine of the embedding of any text to the reference's.
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
        weights_for: CPUs that the weights are encoded for: "vnni" uses all 8 bits, which is exact
            only on CPUs with VNNI; "any" is exact on all of them. One of "any", "vnni".
        embeddings: How embedding tables are stored. One of "int8", "float".
        dedicated_qdq_pairs: Write one Q/DQ pair for each reader of an activation instead of one per
            activation.
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
        What was written and measured: fidelity to the float model on held-out examples, agreement
        with PyTorch's fake quantization, size and latency. The same is in `report.json`
        and, for people, in `report.html`.

    Raises:
        UserInputError: An argument or a file cannot be used.
        SpecError: Options of the quantizers contradict each other, or a pattern matches nothing.
        CalibrationError: A site saw no usable value.
        GraphError: A graph does not have the expected form.

    Example:
        >>> report = qdqbert.quantize(
        ...     "./my-classifier",
        ...     "./my-classifier-int8",
        ...     calibration_data="train.csv",
        ...     targets=["onnxruntime", "openvino"],
        ... )
        >>> report.targets[0].fidelity.sqnr_db
    """
    # The parameters are the fields of the options, which a test checks.
    arguments = dict(locals())
    shown = progress_of(arguments.pop("progress"))
    require_quantize("`quantize`")
    with saved(model, "model") as arguments["model"]:
        options = QuantizeOptions(**arguments)
        check_data(options)
        from qdqbert.verbs.quantize.run import run

        return run(options, shown)
