"""`qdqbert doctor`."""

from __future__ import annotations

from qdqbert.cli._command import Command
from qdqbert.cli._tables import doctor_table
from qdqbert.verbs.doctor import doctor
from qdqbert.verbs.doctor.options import DoctorOptions

COMMAND = Command(
    name="doctor",
    function=doctor,
    options=DoctorOptions,
    positional=(),
    render=doctor_table,
    example="qdqbert doctor",
    runs_artifacts=True,
)
