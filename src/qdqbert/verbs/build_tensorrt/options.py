"""Options of `build_tensorrt`."""

from __future__ import annotations

import dataclasses

from qdqbert.errors import UserInputError
from qdqbert.options import check_options, normalize_options, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class BuildTensorRTOptions:
    """Common options.

    Attributes:
        model: Folder that `quantize` wrote with the target "tensorrt".
        output: File to write. By default `model.engine` next to the graph.
        batches: Batch sizes. The TensorRT engine is tuned for the largest and takes all smaller
            ones.
        sequences: Lengths in tokens, likewise. By default 32 and 128, or the model's limit.
        runs: Number of timed runs for each shape.
        dry_run: Return the trtexec command line, and build nothing.
        tensorrt_version: Version of TensorRT to write the command line for, with `dry_run`. The
            installed one by default.
    """

    model: str
    output: str | None = option(None, short="o")
    batches: tuple[int, ...] = option((1, 8), flag="batch", at_least=1)
    sequences: tuple[int, ...] = option((), flag="sequence", at_least=1)
    runs: int = option(100, at_least=1)
    dry_run: bool = False
    tensorrt_version: str | None = None

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            UserInputError: A value is not allowed.
        """
        normalize_options(self)
        check_options(self)
        if not self.batches:
            raise UserInputError("`batches` must not be empty.", argument="batches")
        if self.tensorrt_version is not None and not self.dry_run:
            raise UserInputError(
                f"`tensorrt_version={self.tensorrt_version!r}` requires `dry_run=True`. Without "
                "it, the installed TensorRT builds the engine.",
                argument="tensorrt_version",
            )
