"""Options of `benchmark`."""

from __future__ import annotations

from qdqbert.common.choices import EngineName, ProviderName
from qdqbert.common.errors import UserInputError
from qdqbert.common.objects import DeviceName, Several, SeveralModels
from qdqbert.common.options.declared import option
from qdqbert.engines.cuda.device import check_device
from qdqbert.pipeline.calls import Call

_SEQUENCES = (32, 128)


class BenchmarkOptions(Call):
    """Common options.

    Attributes:
        models: Folders that `quantize` wrote, float checkpoints, .onnx files or OpenVINO .xml
            files, or their URLs; in Python also models in memory, as in `quantize`. The others are
            compared with the first. Checkpoints are exported in float; the native engine runs them
            in INT8, as `load` does.
        engines: Engines to run them on. By default all installed engines that run the model. For
            the native engine, ONNX Runtime runs the float models, too.
        device: Where the native engine runs, as in `load`. On a GPU, only the native engine is
            measured, in float16 and in INT8.
        provider: Execution provider of ONNX Runtime; "cpu" by default. With it, only ONNX Runtime
            is measured.
        batches: Batch sizes.
        sequences: Lengths in tokens. Of the usual ones, those that the models take are timed.
        threads: Number of threads of one inference. The engine's choice by default.
        rounds: Number of time slices for each model and shape. The models take turns, and the
            result is the median over the slices.
        seconds: Length of a time slice in seconds.
    """

    models: SeveralModels = option(kw_only=False)
    engines: Several[EngineName] = option(default=(), flag="engine")
    device: DeviceName = option(default=None)
    provider: ProviderName | None = None
    batches: Several[int] = option(default=(1, 8), flag="batch", at_least=1)
    sequences: Several[int] = option(default=_SEQUENCES, flag="sequence", at_least=1)
    threads: int | None = option(default=None, at_least=1)
    rounds: int = option(default=5, at_least=1)
    seconds: float = option(default=0.5, above=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.models:
            raise UserInputError("`models` is missing. Name at least one.", argument="models")
        for name in ("batches", "sequences"):
            if not getattr(self, name):
                raise UserInputError(f"`{name}` must not be empty.", argument=name)
        if self.device is not None:
            check_device(self.device)
        if self.device not in (None, "cpu") and (self.provider or self.engines != ()):
            name = "provider" if self.provider else "engines"
            raise UserInputError(
                f"`device={self.device!r}` is of the native engine. Leave `{name}` out.",
                argument="device",
            )
        if self.provider is not None and self.engines not in ((), ("onnxruntime",)):
            raise UserInputError(
                f"`provider={self.provider!r}` belongs to ONNX Runtime, and `engines` names "
                f"{', '.join(self.engines)}. Leave one of the two out.",
                argument="provider",
            )

    @property
    def given_sequences(self) -> tuple[int, ...]:
        """Lengths that were asked for; none for the usual ones."""
        return () if self.sequences == _SEQUENCES else self.sequences
