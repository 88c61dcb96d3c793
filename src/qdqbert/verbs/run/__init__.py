"""Run a quantized model on files of texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdqbert.common.objects import fetched
from qdqbert.common.progress import Progress
from qdqbert.verbs.call import public
from qdqbert.verbs.run.options import RunOptions

if TYPE_CHECKING:
    from qdqbert.evidence.reporting.run import RunReport


@public(RunOptions)
def run(options: RunOptions, progress: Progress) -> RunReport:
    """Run a model in INT8 on files of texts of any size, and write its answers.

    Rows keep their order and their other columns. Finished parts of the answers are kept when the
    call is interrupted.

    Returns:
        Numbers of rows and tokens, and the speed.

    Raises:
        UserInputError: An argument or a file cannot be used, or a row of the input.
        MissingExtraError: pyarrow, the engine or Ray is not installed.

    Example:
        >>> report = qdqbert.run("./my-embedder-int8", "texts.parquet", "vectors.parquet")
        >>> report.rows_per_second
    """
    from qdqbert.verbs.run.pipeline import run_pipeline

    with fetched(options.model, "model", progress=progress):
        return run_pipeline(options, progress)
