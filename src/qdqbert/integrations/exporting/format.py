"""What a format of `export` is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from qdqbert.common.choices import EngineName, ExportedOutputs
from qdqbert.common.storage import Place
from qdqbert.evidence.agreement import Agreement
from qdqbert.integrations.exporting.source import Source


@dataclasses.dataclass(frozen=True, kw_only=True)
class Format:
    """A format.

    Attributes:
        engine: Engine whose graphs the format takes.
        tasks: Tasks that it has a place for.
        default_outputs: Outputs of an embedder by default.
        refuse: Raises `UserInputError` if the format has no place for a model.
        write: Writes a model to a folder.
        check: Runs the exported model, and compares it with the original folder. Raises
            `UserInputError` if it gives other tokens or results.
        usage: Returns an example of use for a folder, as Python code or a command.
        notices: Returns notices for the user.
    """

    engine: EngineName
    tasks: Sequence[str]
    default_outputs: ExportedOutputs
    refuse: Callable[[Source], None]
    write: Callable[[Source, Path], None]
    check: Callable[[Source, Path], Sequence[Agreement]]
    usage: Callable[[Source, Place], str]
    notices: Callable[[Source], Sequence[str]]
