"""Describe this machine and this installation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdqbert.common.progress import Progress
from qdqbert.pipeline.calls import Call
from qdqbert.verbs.call import public

if TYPE_CHECKING:
    from qdqbert.evidence.reporting.doctor import DoctorReport


@public(Call)
def doctor(options: Call, progress: Progress) -> DoctorReport:
    """Describe this machine and this installation: what runs INT8 here, and what is missing.

    Returns:
        The CPU with its features and what they mean for INT8, the GPUs, the engines with their
        versions, and what is not installed with the command that installs it.

    Example:
        >>> qdqbert.doctor().verdict
        'INT8 is much faster than float32 on this CPU: it has matrix tiles for INT8 (AMX).'
    """
    from qdqbert.verbs.doctor.run import run

    with progress.stage("Looking at this machine"):
        return run()
