"""Options of `run`."""

from __future__ import annotations

import dataclasses

from qdqbert.choices import (
    AggregationStrategy,
    EngineName,
    InputFormat,
    OnError,
    OutputFormat,
    ProviderName,
    TargetName,
)
from qdqbert.errors import UserInputError
from qdqbert.options import check_options, normalize_options, option
from qdqbert.tables.inputs import STDIN
from qdqbert.tables.outputs import STDOUT


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextColumnOptions:
    """Columns of the data.

    Attributes:
        text_column: Column of the text or question: a name, or a number that counts from 0. Guessed
            from the names of the columns by default.
        text_pair_column: Column of the second text of a pair, or of the context of a question.
    """

    text_column: str | None = None
    text_pair_column: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnswerOptions:
    """Answers.

    Attributes:
        normalize: Scale embeddings to length 1.
        truncate_dim: Number of leading dimensions of embeddings to keep, for models trained for
            it. The folder's setting by default.
        prompt: Text that is put before each text to embed.
        prompt_name: Name of the prompt of the folder that is put before each text to embed. The
            folder's default prompt, if it has one, by default.
        top_k: Number of answers to write for each row, best first: classes, spans, or tokens for a
            mask. By default 1, and 5 tokens.
        aggregation_strategy: How tokens are joined to entities; "simple" by default. See
            `TokenClassifier`.
        max_new_tokens: Number of tokens that a text is continued by at most; 256 by default.
    """

    normalize: bool = False
    truncate_dim: int | None = option(None, at_least=1)
    prompt: str | None = None
    prompt_name: str | None = None
    top_k: int | None = option(None, at_least=1)
    aggregation_strategy: AggregationStrategy | None = None
    max_new_tokens: int | None = option(None, at_least=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions(TextColumnOptions, AnswerOptions):
    """Common options.

    Attributes:
        model: Folder that `quantize` wrote.
        input: A .txt, .csv, .tsv, .jsonl or .parquet file, a folder of them, a pattern such as
            "part-*.csv.gz", or "-" for stdin. All but .parquet files can be compressed (.gz).
        output: A .jsonl, .csv, .tsv, .parquet or, for embeddings, .npy file, a folder, or "-" for
            stdout. All but .parquet and .npy files can be compressed (.gz).
        input_format: Format of the input. By the suffix by default; "jsonl" for stdin.
        output_format: Format of the output. By the suffix by default; "parquet" for a folder, and
            "jsonl" for stdout.
        engine: Library that runs the graph. By default the fastest one that is installed.
        provider: Execution provider of ONNX Runtime; "cpu" by default.
        target: Graph to run, if the folder has several for one engine. By default the one that was
            made for the engine.
        threads: Number of threads in all. By default one for each core.
        on_error: What to do with a row that cannot be used: stop, or skip it and write it to a file
            next to the output, `OUTPUT.errors.jsonl`.
        resume: Continue a run that was interrupted, if there is one.
        overwrite: Replace the output if it exists, and discard an interrupted run.
    """

    model: str
    input: str = option(short="i", takes_dash=True)
    output: str = option(short="o", takes_dash=True)
    input_format: InputFormat | None = None
    output_format: OutputFormat | None = None
    engine: EngineName | None = None
    provider: ProviderName | None = None
    target: TargetName | None = None
    threads: int | None = option(None, at_least=1)
    on_error: OnError = "stop"
    resume: bool = False
    overwrite: bool = False

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            UserInputError: A value is not allowed, or two options contradict each other.
        """
        normalize_options(self)
        check_options(self)
        if self.resume and self.overwrite:
            raise UserInputError(
                "`resume=True` continues an interrupted run, and `overwrite=True` discards it. "
                "Pass one of them.",
                argument="resume",
            )
        if self.resume and (self.input == STDIN or self.output == STDOUT):
            stream = "stdin cannot be read" if self.input == STDIN else "stdout cannot be written"
            raise UserInputError(
                f"`resume=True`: {stream} again. Pass files, or leave it out.", argument="resume"
            )
