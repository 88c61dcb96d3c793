"""Options of `run`."""

from __future__ import annotations

from qdqbert.common.choices import InputFormat, OutputFormat
from qdqbert.common.errors import UserInputError
from qdqbert.common.objects import PathOption, Several
from qdqbert.common.options.declared import option
from qdqbert.data.tables.inputs import STDIN
from qdqbert.data.tables.outputs import STDOUT
from qdqbert.pipeline.calls import Call
from qdqbert.runtime.options import RowOptions
from qdqbert.verbs.run.shards import shard_of


class RunOptions(RowOptions, Call):
    """Common options.

    Attributes:
        input: A .txt, .csv, .tsv, .jsonl or .parquet file, a folder of them, a pattern such as
            `part-*.csv.gz`, the URL of one of these, such as "s3://bucket/texts/", or "-" for
            stdin. All but .parquet files can be compressed (.gz).
        output: A .jsonl, .csv, .tsv, .parquet or, for embeddings, .npy file, a folder, the URL of
            one of these, or "-" for stdout. All but .parquet and .npy files can be compressed
            (.gz).
        input_format: Format of the input. By the suffix by default; "jsonl" for stdin.
        header: Whether the first row of .csv and .tsv files has the names of the columns. Otherwise
            columns are named by their numbers from 0.
        output_format: Format of the output. By the suffix by default; "parquet" for a folder, and
            "jsonl" for stdout.
        partition_by: Columns whose values name folders of the output, a folder of .parquet files,
            as in `lang=en/day=1/part-00000.parquet`.
        on_error: What to do with a row that cannot be used: stop, or skip it and write it to a file
            next to the output, `OUTPUT.errors.jsonl`.
        max_errors: With `on_error="skip"`, stop when more rows than this had to be skipped, those
            of an interrupted run included.
        resume: Continue a run that was interrupted, if there is one.
        overwrite: Replace the output if it exists, and discard an interrupted run.
        shard: Run a part of the input only, for array jobs without a cluster. "3/100" is the
            fourth of 100 parts; "auto/100" takes its number from `JOB_COMPLETION_INDEX` of
            Kubernetes or `SLURM_ARRAY_TASK_ID`. The output is a folder that all parts share.
        ray: Run on the Ray cluster with this address, such as "10.0.0.1:6379". For "auto", the one
            that `RAY_ADDRESS` or a running Ray on this machine names. If there is none, or for
            "local", Ray is started on this machine.
    """

    input: PathOption = option(kw_only=False, short="i", takes_dash=True)
    output: PathOption = option(kw_only=False, short="o", takes_dash=True, writes="replaced")
    input_format: InputFormat | None = None
    header: bool = True
    output_format: OutputFormat | None = None
    partition_by: Several[str] = option(default=())
    max_errors: int | None = option(default=None, at_least=0)
    resume: bool = False
    overwrite: bool = False
    shard: str | None = None
    ray: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ray is not None and self.input == STDIN:
            raise UserInputError(
                f"`ray={self.ray!r}`: the nodes of a cluster cannot read stdin. Pass files.",
                argument="ray",
            )
        if self.shard is not None:
            shard_of(self.shard)
            if self.input == STDIN or self.output == STDOUT:
                stream = "stdin" if self.input == STDIN else "stdout"
                raise UserInputError(
                    f"`shard={self.shard!r}`: {stream} cannot be divided. Pass files.",
                    argument="shard",
                )
        if self.max_errors is not None and self.on_error == "stop":
            raise UserInputError(
                f"`max_errors={self.max_errors}` is for rows that are skipped. Pass "
                "`on_error='skip'`, too, or leave it out.",
                argument="max_errors",
            )
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
