"""`qdqbert doctor`."""

from __future__ import annotations

from qdqbert.cli._command import Command
from qdqbert.cli._tables import doctor_table
from qdqbert.verbs.call import Call
from qdqbert.verbs.doctor import doctor

COMMAND = Command(
    name="doctor",
    function=doctor,
    options=Call,
    positional=(),
    render=doctor_table,
    example="qdqbert doctor",
    runs_artifacts=True,
)
