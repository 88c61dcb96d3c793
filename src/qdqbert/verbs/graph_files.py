"""Recognizes .onnx files among the models that a user passes."""

from __future__ import annotations

from pathlib import Path


def is_graph_file(name: str | Path) -> bool:
    """Return whether a model is an .onnx file, not a checkpoint or a folder."""
    return str(name).lower().endswith(".onnx") and not Path(name).is_dir()
