"""Functions of the toolkit's modules."""

from qdqbert.calibration.quantizers.clip import ClipFunction, clip

__all__ = ["ClipFunction", "clip"]
