"""Compute the metrics of a model on labeled data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from qdqbert.choices import EngineName, PoolingMode, ProviderName, TargetName, TaskName
from qdqbert.extras import require_quantize
from qdqbert.objects import Data
from qdqbert.progress import Progress, progress_of
from qdqbert.verbs.evaluate.options import EvaluateOptions
from qdqbert.verbs.settings import check_data

if TYPE_CHECKING:
    from qdqbert.evidence.reports import EvaluateReport


def evaluate(
    model: str | Path,
    data: Data,
    *,
    reference: str | Path | None = None,
    task: TaskName | None = None,
    engine: EngineName | None = None,
    provider: ProviderName | None = None,
    target: TargetName | None = None,
    pooling: PoolingMode | None = None,
    max_examples: int | None = None,
    max_length: int | None = None,
    batch_size: int = 8,
    allow_leakage: bool = False,
    output: str | Path | None = None,
    max_drop: float | None = None,
    max_flips: float | None = None,
    min_sqnr: float | None = None,
    min_cosine: float | None = None,
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
) -> EvaluateReport:
    """Compute the metrics of a task for a quantized folder, a checkpoint or an ONNX model.

    Args:
        model: Folder that `quantize` wrote, a checkpoint (a local folder or a hub id), or an .onnx
            file, float or quantized.
        data: Labeled examples: a .csv, .tsv, .jsonl or .json file, a folder of classes, CoNLL
            columns, `hub:NAME@SPLIT`; in Python also a list, DataFrame or `datasets.Dataset`.
        reference: Float checkpoint or .onnx file to compare with, example by example. An .onnx file
            runs on ONNX Runtime.
        task: Name of the task in transformers. Inferred from the model by default. One of
            "feature-extraction", "fill-mask", "multiple-choice", "next-sentence-prediction",
            "question-answering", "reranking", "text-classification", "text-generation",
            "token-classification".
        engine: Library that runs the model. By default the one that `load` takes for a quantized
            folder, ONNX Runtime for an .onnx file, and PyTorch for a checkpoint, which the native
            engine runs in INT8, as `load` does. One of "onnxruntime", "openvino", "native".
        provider: Execution provider of ONNX Runtime; "cpu" by default. One of "cpu", "cuda",
            "tensorrt", "openvino".
        target: Graph to evaluate, if a folder has several for one engine. By default the one that
            was made for the engine. One of "portable", "onnxruntime", "onnxruntime-dynamic",
            "openvino", "native", "native-dynamic", "tensorrt", "qordered", "float".
        pooling: How an embedder makes one vector of a text's tokens. Read from the checkpoint by
            default. One of "mean", "cls", "max", "mean_sqrt_len_tokens".
        max_examples: Number of examples to read at most. All by default.
        max_length: Longest input in tokens. The limit that the model was quantized with, or that of
            the task or the checkpoint, by default.
        batch_size: Number of examples in a batch.
        allow_leakage: Also score examples that the model was calibrated on. The report has their
            number.
        output: Folder for `predictions.jsonl`, `report.html` and the files of the task. With a
            reference, `changed.jsonl` lists the predictions that differ, the largest change first.
        max_drop: Largest loss of the main metric against the reference, in the unit of the metric.
        max_flips: Largest percentage of predictions that differ from the reference's.
        min_sqnr: Lowest SQNR to the reference, in dB.
        min_cosine: Lowest cosine of the embedding of any text to the reference's.
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
        The metrics, and the fidelity to the reference if one was given. A limit is met if it holds
        for the whole 95 % interval of what was measured; `limits` has the verdicts, and
        `meets_limits` tells whether all limits are met.

    Raises:
        UserInputError: An argument or a file cannot be used, or the model was calibrated on some
            of the examples.

    Example:
        >>> report = qdqbert.evaluate(
        ...     "./my-classifier-int8", "dev.csv", reference="./my-classifier"
        ... )
        >>> report.metrics
    """
    # The parameters are the fields of the options, which a test checks.
    arguments = dict(locals())
    shown = progress_of(arguments.pop("progress"))
    require_quantize("`evaluate`")
    options = EvaluateOptions(**arguments)
    check_data(options)
    from qdqbert.verbs.evaluate.run import run

    return run(options, shown)
