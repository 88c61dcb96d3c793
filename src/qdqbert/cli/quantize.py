"""`qdqbert quantize`."""

from __future__ import annotations

from qdqbert.cli._command import Command
from qdqbert.cli._ray_address import with_ray_address
from qdqbert.cli._tables import quantize_table
from qdqbert.reporting.usage import closing_lines
from qdqbert.verbs.quantize import quantize
from qdqbert.verbs.quantize.options import QuantizeOptions

COMMAND = Command(
    name="quantize",
    function=quantize,
    options=QuantizeOptions,
    positional=("model",),
    first=("model", "output", "targets", "calibration_data", "eval_data", "max_drop"),
    render=quantize_table,
    closing=closing_lines,
    rewrite=with_ray_address,
    example=("qdqbert quantize ./my-classifier --calibration-data train.csv --eval-data dev.csv"),
)
