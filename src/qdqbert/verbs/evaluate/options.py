"""Options of `evaluate`."""

from __future__ import annotations

import dataclasses

from qdqbert.choices import EngineName, ProviderName, TargetName, TaskName
from qdqbert.errors import UserInputError
from qdqbert.objects import Rows
from qdqbert.options import (
    Columns,
    Limits,
    Onnx,
    Options,
    TaskOptions,
    check_onnx_options,
    is_onnx_file,
    option,
)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class EvaluateOptions(Options):
    """Options of `evaluate`, whose docstring describes them."""

    model: str
    data: str | Rows
    reference: str | None = None
    task: TaskName | None = None
    engine: EngineName | None = None
    provider: ProviderName | None = None
    target: TargetName | None = None
    max_examples: int | None = option(None, at_least=1)
    max_length: int | None = option(None, at_least=3)
    batch_size: int = option(8, at_least=1)
    allow_leakage: bool = False
    output: str | None = option(None, short="o")
    limits: Limits = Limits()
    columns: Columns = Columns()
    task_options: TaskOptions = TaskOptions()
    onnx: Onnx = Onnx()

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            UserInputError: A value is not allowed, or two options contradict each other.
        """
        super().__post_init__()
        if self.limits.given() and self.reference is None:
            name, value = next(iter(self.limits.given().items()))
            raise UserInputError(
                f"`{name}={value:g}` compares the model with a reference. Pass the float model as "
                "`reference`.",
                argument=name,
            )
        if not self.onnx_files:
            check_onnx_options(self.onnx, self.model)

    @property
    def onnx_files(self) -> tuple[str, ...]:
        """The .onnx files among the model and the reference."""
        models = (self.model, self.reference)
        return tuple(name for name in models if name is not None and is_onnx_file(name))
