"""`qdqbert export`."""

from __future__ import annotations

from qdqbert.cli._command import Command
from qdqbert.cli._tables import export_table
from qdqbert.verbs.export import export
from qdqbert.verbs.export.options import ExportOptions

COMMAND = Command(
    name="export",
    function=export,
    options=ExportOptions,
    positional=("model",),
    render=export_table,
    example="qdqbert export ./my-embedder-int8 --to openvino",
)
