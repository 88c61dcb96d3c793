"""Folders that `quantize` wrote, next to the checkpoints they came from."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import transformers

import qdqbert
from task_files import DOC_STRIDE, HEADS


@pytest.fixture(scope="session")
def tiny_artifact(save_tiny, tmp_path_factory) -> Callable[..., tuple[Path, Path]]:
    """Make a tiny checkpoint with a head and quantize it; return both folders.

    Weights stay float32 where quantization is not the subject: `quantize` is called with
    `quant_disable=True`, so that results equal those of transformers up to rounding. Without
    `is_float`, the folder has INT8 graphs for ONNX Runtime and the native engine.
    """
    root = tmp_path_factory.mktemp("artifacts")
    made: dict[str, tuple[Path, Path]] = {}

    def make(
        head: str = "AutoModel", family: str = "bert", *, is_float: bool = True, **changes
    ) -> tuple[Path, Path]:
        key = f"{head}-{family}-{is_float}-{abs(hash(repr(sorted(changes.items()))))}"
        if key not in made:
            checkpoint = save_tiny(
                root / f"{key}-float", family, getattr(transformers, head), **changes
            )
            kind = next(each for each in HEADS.values() if each.auto_class == head)
            data = root / f"{key}-{kind.file}"
            data.write_text(kind.write(random.Random(0), 24))
            qdqbert.quantize(
                str(checkpoint),
                root / key,
                calibration_data=str(data),
                calibration_samples=4,
                targets=("onnxruntime",) if is_float else ("onnxruntime", "native"),
                doc_stride=DOC_STRIDE,
                quant_disable=is_float,
                benchmark=False,
            )
            made[key] = checkpoint, root / key
        return made[key]

    return make
