"""Options of `benchmark`."""

from __future__ import annotations

import dataclasses

from qdqbert.choices import EngineName, ProviderName
from qdqbert.errors import UserInputError
from qdqbert.options import Options, option


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class BenchmarkOptions(Options):
    """Options of `benchmark`, whose docstring describes them."""

    models: tuple[str, ...]
    engines: tuple[EngineName, ...] = option((), flag="engine")
    provider: ProviderName | None = None
    batches: tuple[int, ...] = option((1, 8), flag="batch", at_least=1)
    sequences: tuple[int, ...] = option((32, 128), flag="sequence", at_least=1)
    threads: int | None = option(None, at_least=1)
    rounds: int = option(5, at_least=1)
    seconds: float = option(0.5, above=0)

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            UserInputError: A value is not allowed, or two options contradict each other.
        """
        super().__post_init__()
        if not self.models:
            raise UserInputError("`models` is missing. Name at least one.", argument="models")
        for name in ("batches", "sequences"):
            if not getattr(self, name):
                raise UserInputError(f"`{name}` must not be empty.", argument=name)
        if self.provider is not None and self.engines not in ((), ("onnxruntime",)):
            raise UserInputError(
                f"`provider={self.provider!r}` belongs to ONNX Runtime, and `engines` names "
                f"{', '.join(self.engines)}. Leave one of the two out.",
                argument="provider",
            )
