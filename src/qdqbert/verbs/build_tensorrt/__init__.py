"""Build a TensorRT engine and measure its latency."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from qdqbert.extras import require_quantize
from qdqbert.progress import Progress, progress_of
from qdqbert.verbs.build_tensorrt.options import BuildTensorRTOptions

if TYPE_CHECKING:
    from qdqbert.evidence.reports import TensorRTReport


def build_tensorrt(
    model: str | Path,
    output: str | Path | None = None,
    *,
    batches: Sequence[int] = (1, 8),
    sequences: Sequence[int] = (),
    runs: int = 100,
    dry_run: bool = False,
    tensorrt_version: str | None = None,
    progress: Progress | bool = False,
) -> TensorRTReport:
    """Build the TensorRT engine of a quantized folder, and measure its latency.

    Args:
        model: Folder that `quantize` wrote with the target "tensorrt".
        output: File to write. By default `model.engine` next to the graph.
        batches: Batch sizes. The TensorRT engine is tuned for the largest and takes all smaller
            ones.
        sequences: Lengths in tokens, likewise. By default 32 and 128, or the model's limit.
        runs: Number of timed runs for each shape.
        dry_run: Return the trtexec command line, and build nothing.
        tensorrt_version: Version of TensorRT to write the command line for, with `dry_run`. The
            installed one by default.
        progress: Show progress bars on stderr. A `Progress` object receives the stages instead.

    Returns:
        The file, and the latency of each shape. With `dry_run`, the trtexec command line only.

    Raises:
        UserInputError: The folder has no graph for TensorRT, or torch finds no GPU.
        MissingExtraError: TensorRT is not installed.
        GraphError: TensorRT cannot read the graph, or cannot build it.

    Example:
        >>> report = qdqbert.build_tensorrt("./my-classifier-int8", batches=[1, 8])
        >>> report.timings
    """
    # The parameters are the fields of the options, which a test checks.
    arguments = dict(locals())
    shown = progress_of(arguments.pop("progress"))
    require_quantize("`build_tensorrt`")
    from qdqbert.verbs.build_tensorrt.run import run

    return run(BuildTensorRTOptions(**arguments), shown)
