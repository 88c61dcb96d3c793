"""Makes BERT-family checkpoints INT8, proves that they are still right, and runs them fast."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

# onnxruntime 1.29 and later sends telemetry from the moment it is imported, unless this is set.
# Every module of this package imports this file first. A user's own setting wins.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

if TYPE_CHECKING:
    from qdqbert.compat.nn.tensor_quantizer import TensorQuantizer as TensorQuantizer
    from qdqbert.compat.tensor_quant import QuantDescriptor as QuantDescriptor
    from qdqbert.errors import QdqBertError as QdqBertError
    from qdqbert.evidence.reports import BenchmarkReport as BenchmarkReport
    from qdqbert.evidence.reports import EvaluateReport as EvaluateReport
    from qdqbert.evidence.reports import QuantizeReport as QuantizeReport
    from qdqbert.evidence.reports import TrainReport as TrainReport
    from qdqbert.models.calibrate import calibrate as calibrate
    from qdqbert.models.configuration import QDQBertConfig as QDQBertConfig
    from qdqbert.models.modeling import QDQBertForMaskedLM as QDQBertForMaskedLM
    from qdqbert.models.modeling import QDQBertForMultipleChoice as QDQBertForMultipleChoice
    from qdqbert.models.modeling import (
        QDQBertForNextSentencePrediction as QDQBertForNextSentencePrediction,
    )
    from qdqbert.models.modeling import QDQBertForQuestionAnswering as QDQBertForQuestionAnswering
    from qdqbert.models.modeling import (
        QDQBertForSequenceClassification as QDQBertForSequenceClassification,
    )
    from qdqbert.models.modeling import (
        QDQBertForTokenClassification as QDQBertForTokenClassification,
    )
    from qdqbert.models.modeling import QDQBertLMHeadModel as QDQBertLMHeadModel
    from qdqbert.models.modeling import QDQBertModel as QDQBertModel
    from qdqbert.models.modeling import QDQBertPreTrainedModel as QDQBertPreTrainedModel
    from qdqbert.models.prepare import prepare as prepare
    from qdqbert.recipes import QuantizerOptions as QuantizerOptions
    from qdqbert.tasks.data import Columns as Columns
    from qdqbert.tasks.task import TaskOptions as TaskOptions
    from qdqbert.training.distillation import Distillation as Distillation
    from qdqbert.verbs.benchmark import benchmark as benchmark
    from qdqbert.verbs.engine import EngineReport as EngineReport
    from qdqbert.verbs.engine import engine as engine
    from qdqbert.verbs.evaluate import evaluate as evaluate
    from qdqbert.verbs.quantize import quantize as quantize
    from qdqbert.verbs.train import train as train

_HOMES = {
    "benchmark": "qdqbert.verbs.benchmark",
    "BenchmarkReport": "qdqbert.evidence.reports",
    "calibrate": "qdqbert.models.calibrate",
    "Columns": "qdqbert.tasks.data",
    "Distillation": "qdqbert.training.distillation",
    "engine": "qdqbert.verbs.engine",
    "EngineReport": "qdqbert.verbs.engine",
    "evaluate": "qdqbert.verbs.evaluate",
    "EvaluateReport": "qdqbert.evidence.reports",
    "prepare": "qdqbert.models.prepare",
    "QDQBertConfig": "qdqbert.models.configuration",
    "QdqBertError": "qdqbert.errors",
    "QDQBertForMaskedLM": "qdqbert.models.modeling",
    "QDQBertForMultipleChoice": "qdqbert.models.modeling",
    "QDQBertForNextSentencePrediction": "qdqbert.models.modeling",
    "QDQBertForQuestionAnswering": "qdqbert.models.modeling",
    "QDQBertForSequenceClassification": "qdqbert.models.modeling",
    "QDQBertForTokenClassification": "qdqbert.models.modeling",
    "QDQBertLMHeadModel": "qdqbert.models.modeling",
    "QDQBertModel": "qdqbert.models.modeling",
    "QDQBertPreTrainedModel": "qdqbert.models.modeling",
    "QuantDescriptor": "qdqbert.compat.tensor_quant",
    "quantize": "qdqbert.verbs.quantize",
    "QuantizeReport": "qdqbert.evidence.reports",
    "QuantizerOptions": "qdqbert.recipes",
    "TaskOptions": "qdqbert.tasks.task",
    "TensorQuantizer": "qdqbert.compat.nn.tensor_quantizer",
    "train": "qdqbert.verbs.train",
    "TrainReport": "qdqbert.evidence.reports",
}

__all__ = sorted(_HOMES, key=str.casefold)


def __getattr__(name: str) -> Any:
    # torch takes seconds to import; a name costs that only once it is used.
    if name not in _HOMES:
        raise AttributeError(f"module 'qdqbert' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
