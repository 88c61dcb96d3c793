"""Options of `run`."""

from __future__ import annotations

import dataclasses

from qdqbert.choices import InputFormat, OnError, OutputFormat
from qdqbert.errors import UserInputError
from qdqbert.inference.options import RowOptions
from qdqbert.options import option
from qdqbert.tables.inputs import STDIN
from qdqbert.tables.outputs import STDOUT


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions(RowOptions):
    """Options of `run`, whose docstring describes them."""

    input: str = option(short="i", takes_dash=True)
    output: str = option(short="o", takes_dash=True)
    input_format: InputFormat | None = None
    header: bool = True
    output_format: OutputFormat | None = None
    on_error: OnError = "stop"
    resume: bool = False
    overwrite: bool = False
    ray: bool | str | None = None

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            UserInputError: A value is not allowed, or two options contradict each other.
        """
        super().__post_init__()
        if self.ray is False:
            object.__setattr__(self, "ray", None)
        if self.ray is not None and self.input == STDIN:
            raise UserInputError(
                f"`ray={self.ray!r}`: the nodes of a cluster cannot read stdin. Pass files.",
                argument="ray",
            )
        if self.resume and self.overwrite:
            raise UserInputError(
                "`resume=True` continues an interrupted run, and `overwrite=True` discards it. "
                "Pass one of them.",
                argument="resume",
            )
        if self.resume and (self.input == STDIN or self.output == STDOUT):
            stream = "stdin cannot be read" if self.input == STDIN else "stdout cannot be written"
            raise UserInputError(
                f"`resume=True`: {stream} again. Pass files, or leave it out.", argument="resume"
            )
