"""Run a quantized model on files of texts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from qdqbert.choices import (
    AggregationStrategy,
    EngineName,
    InputFormat,
    KernelName,
    OnError,
    OutputFormat,
    ProviderName,
    TargetName,
)
from qdqbert.progress import Progress, progress_of
from qdqbert.verbs.run.options import RunOptions

if TYPE_CHECKING:
    from qdqbert.verbs.run.report import RunReport


def run(
    model: str | Path,
    input: str | Path,
    output: str | Path,
    *,
    input_format: InputFormat | None = None,
    header: bool = True,
    output_format: OutputFormat | None = None,
    engine: EngineName | None = None,
    provider: ProviderName | None = None,
    kernel: KernelName | None = None,
    target: TargetName | None = None,
    threads: int | None = None,
    batch_invariant: bool = False,
    on_error: OnError = "stop",
    resume: bool = False,
    overwrite: bool = False,
    ray: bool | str | None = None,
    text_column: str | None = None,
    text_pair_column: str | None = None,
    normalize: bool = False,
    truncate_dim: int | None = None,
    prompt: str | None = None,
    prompt_name: str | None = None,
    chunk_overlap: int | None = None,
    top_k: int | None = None,
    threshold: float | None = None,
    aggregation_strategy: AggregationStrategy | None = None,
    progress: Progress | bool = False,
) -> RunReport:
    """Run a model in INT8 on files of texts of any size, and write its answers.

    Rows keep their order and their other columns. Finished parts of the answers are kept when the
    call is interrupted.

    Args:
        model: Folder that `quantize` wrote, or a float checkpoint; or its name on the hub.
        input: A .txt, .csv, .tsv, .jsonl or .parquet file, a folder of them, a pattern such as
            `part-*.csv.gz`, or "-" for stdin. All but .parquet files can be compressed (.gz).
        output: A .jsonl, .csv, .tsv, .parquet or, for embeddings, .npy file, a folder, or "-" for
            stdout. All but .parquet and .npy files can be compressed (.gz).
        input_format: Format of the input. By the suffix by default; "jsonl" for stdin.
        header: Whether the first row of .csv and .tsv files has the names of the columns. Otherwise
            columns are named by their numbers from 0.
        output_format: Format of the output. By the suffix by default; "parquet" for a folder, and
            "jsonl" for stdout.
        engine: Library that runs the graph. By default the fastest one that is installed.
        provider: Execution provider of ONNX Runtime; "cpu" by default.
        kernel: Instruction set of the native engine, which this CPU must have. By default the
            fastest one.
        target: Graph to run, if the folder has several for one engine. By default the one that was
            made for the engine.
        threads: Number of threads in all. By default one for each core.
        batch_invariant: Run each row alone and without padding, so that its answer does not depend
            on the other rows. This is slower, except on the native engine, where it never does.
        on_error: What to do with a row that cannot be used: stop, or skip it and write it to a file
            next to the output, `OUTPUT.errors.jsonl`.
        resume: Continue a run that was interrupted, if there is one.
        overwrite: Replace the output if it exists, and discard an interrupted run.
        ray: Run on a Ray cluster, or on the one with this address. Ray is started on this machine
            if there is none.
        text_column: Column of the text or question: a name, or a number that counts from 0. Guessed
            from the names of the columns by default.
        text_pair_column: Column of the second text of a pair, or of the context of a question.
        normalize: Scale embeddings to length 1.
        truncate_dim: Number of leading dimensions of embeddings to keep, for models trained for it.
            The folder's setting by default.
        prompt: Text that is put before each text to embed.
        prompt_name: Name of the prompt of the folder that is put before each text to embed. The
            folder's default prompt, if it has one, by default.
        chunk_overlap: If given, texts to embed that are longer than the model's limit are embedded
            in chunks that share this number of tokens, and the embeddings of the chunks are
            averaged. By default such texts are cut.
        top_k: Number of answers to write for each row, best first: classes, spans, or tokens for a
            mask. By default 1, and 5 tokens.
        threshold: Write all classes whose score is above it, instead of the best ones. 0.5 is usual
            for models with any number of classes for each text.
        aggregation_strategy: How tokens are joined to entities; "simple" by default. See
            `TokenClassifier`.
        progress: Show progress bars on stderr. A `Progress` object receives the stages instead.

    Returns:
        Numbers of rows and tokens, and the speed.

    Raises:
        UserInputError: An argument or a file cannot be used, or a row of the input.
        MissingExtraError: pyarrow, the engine or Ray is not installed.

    Example:
        >>> report = qdqbert.run("./my-embedder-int8", "texts.parquet", "vectors.parquet")
        >>> report.rows_per_second
    """
    arguments = dict(locals())
    shown = progress_of(arguments.pop("progress"))
    from qdqbert.verbs.run.pipeline import run_pipeline

    return run_pipeline(RunOptions(**arguments), shown)
