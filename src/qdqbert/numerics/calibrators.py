"""Calibrators of pytorch-quantization, under the path that code imports them from."""

from qdqbert.compat.calibrators import (
    METHODS,
    Calibrator,
    HistogramCalibrator,
    MaxCalibrator,
    calibrate_weights,
)

__all__ = [
    "METHODS",
    "Calibrator",
    "HistogramCalibrator",
    "MaxCalibrator",
    "calibrate_weights",
]
