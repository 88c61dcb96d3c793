"""An engine of our own: INT8 kernels generated through LLVM, and texts packed without padding."""

from __future__ import annotations

from pathlib import Path

from qdqbert.engines.native.static import KIND, StaticRunner
from qdqbert.engines.native.storage import Packed, load_packed
from qdqbert.engines.runner import Runner


def open_packed(
    model: Path | Packed, *, threads: int | None = None, streams: int = 1, kernel: str | None = None
) -> Runner:
    """Return what runs a packed model, or the file of one.

    Raises:
        CheckpointError: The file is damaged or has another format.
        UserInputError: This CPU does not have the kernel.
    """
    packed = load_packed(model) if isinstance(model, Path) else model
    if KIND in packed.settings:
        return StaticRunner(packed)
    # It compiles kernels, which static embeddings have none of.
    from qdqbert.engines.native.runner import NativeRunner

    return NativeRunner(packed, threads=threads, streams=streams, kernel=kernel)
