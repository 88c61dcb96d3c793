"""Makes BERT-family checkpoints INT8, proves that they are still right, and runs them fast."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qdqbert.errors import QdqBertError as QdqBertError
    from qdqbert.evidence.record import BenchmarkReport as BenchmarkReport
    from qdqbert.evidence.record import EvaluateReport as EvaluateReport
    from qdqbert.evidence.record import QuantizeReport as QuantizeReport
    from qdqbert.tasks.data import Columns as Columns
    from qdqbert.verbs.benchmark import benchmark as benchmark
    from qdqbert.verbs.evaluate import evaluate as evaluate
    from qdqbert.verbs.quantize import quantize as quantize

_HOMES = {
    "benchmark": "qdqbert.verbs.benchmark",
    "BenchmarkReport": "qdqbert.evidence.record",
    "Columns": "qdqbert.tasks.data",
    "evaluate": "qdqbert.verbs.evaluate",
    "EvaluateReport": "qdqbert.evidence.record",
    "QdqBertError": "qdqbert.errors",
    "quantize": "qdqbert.verbs.quantize",
    "QuantizeReport": "qdqbert.evidence.record",
}

__all__ = sorted(_HOMES, key=str.casefold)


def __getattr__(name: str) -> Any:
    # torch takes seconds to import; a name costs that only once it is used.
    if name not in _HOMES:
        raise AttributeError(f"module 'qdqbert' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
