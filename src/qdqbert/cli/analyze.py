"""`qdqbert analyze`."""

from __future__ import annotations

from qdqbert.cli._command import Command
from qdqbert.cli._tables import analyze_table
from qdqbert.verbs.analyze import analyze
from qdqbert.verbs.analyze.options import AnalyzeOptions

COMMAND = Command(
    name="analyze",
    function=analyze,
    options=AnalyzeOptions,
    positional=("model",),
    first=("model", "data", "calibration_data", "granularity", "target", "plot"),
    render=analyze_table,
    example="qdqbert analyze ./my-classifier --calibration-data train.csv --data dev.csv",
)
