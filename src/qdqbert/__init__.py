"""Quantize BERT-family models to INT8, measure the result, and run them fast."""

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
    from qdqbert.errors import CalibrationError as CalibrationError
    from qdqbert.errors import CheckpointError as CheckpointError
    from qdqbert.errors import DataFileError as DataFileError
    from qdqbert.errors import GraphError as GraphError
    from qdqbert.errors import MissingExtraError as MissingExtraError
    from qdqbert.errors import ModelClosedError as ModelClosedError
    from qdqbert.errors import OutputExistsError as OutputExistsError
    from qdqbert.errors import QdqBertError as QdqBertError
    from qdqbert.errors import SpecError as SpecError
    from qdqbert.errors import TrainingError as TrainingError
    from qdqbert.errors import UncalibratedError as UncalibratedError
    from qdqbert.errors import UnmatchedRuleError as UnmatchedRuleError
    from qdqbert.errors import UserInputError as UserInputError
    from qdqbert.evidence.fidelity import Fidelity as Fidelity
    from qdqbert.evidence.latency import Timing as Timing
    from qdqbert.evidence.lowering import LoweringCheck as LoweringCheck
    from qdqbert.evidence.reports import AnalyzeReport as AnalyzeReport
    from qdqbert.evidence.reports import BenchmarkReport as BenchmarkReport
    from qdqbert.evidence.reports import EvaluateReport as EvaluateReport
    from qdqbert.evidence.reports import LatencyReport as LatencyReport
    from qdqbert.evidence.reports import QuantizeReport as QuantizeReport
    from qdqbert.evidence.reports import TargetReport as TargetReport
    from qdqbert.evidence.reports import TrainReport as TrainReport
    from qdqbert.inference.load import load as load
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
    from qdqbert.options import Calibration as Calibration
    from qdqbert.options import Columns as Columns
    from qdqbert.options import Limits as Limits
    from qdqbert.options import Onnx as Onnx
    from qdqbert.options import Quantizers as Quantizers
    from qdqbert.options import TaskOptions as TaskOptions
    from qdqbert.progress import Progress as Progress
    from qdqbert.recipes import QuantizerOptions as QuantizerOptions
    from qdqbert.tasks.feature_extraction import Embedder as Embedder
    from qdqbert.tasks.fill_mask import MaskFiller as MaskFiller
    from qdqbert.tasks.multiple_choice import ChoiceSelector as ChoiceSelector
    from qdqbert.tasks.next_sentence_prediction import (
        NextSentencePredictor as NextSentencePredictor,
    )
    from qdqbert.tasks.question_answering import QuestionAnswerer as QuestionAnswerer
    from qdqbert.tasks.reranking import Reranker as Reranker
    from qdqbert.tasks.task import Metric as Metric
    from qdqbert.tasks.text_classification import TextClassifier as TextClassifier
    from qdqbert.tasks.token_classification import TokenClassifier as TokenClassifier
    from qdqbert.training.distillation import Distillation as Distillation
    from qdqbert.verbs.analyze import analyze as analyze
    from qdqbert.verbs.benchmark import benchmark as benchmark
    from qdqbert.verbs.doctor import doctor as doctor
    from qdqbert.verbs.doctor.report import DoctorReport as DoctorReport
    from qdqbert.verbs.evaluate import evaluate as evaluate
    from qdqbert.verbs.export import export as export
    from qdqbert.verbs.export.report import ExportReport as ExportReport
    from qdqbert.verbs.push import push as push
    from qdqbert.verbs.push.report import PushReport as PushReport
    from qdqbert.verbs.quantize import quantize as quantize
    from qdqbert.verbs.run import run as run
    from qdqbert.verbs.run.report import RunReport as RunReport
    from qdqbert.verbs.serve import serve as serve
    from qdqbert.verbs.serve.report import ServeReport as ServeReport
    from qdqbert.verbs.train import train as train
    from qdqbert.verbs.train.options import Optimization as Optimization
    from qdqbert.verbs.verify import verify as verify
    from qdqbert.verbs.verify.report import VerifyReport as VerifyReport

_MODULES = {
    "analyze": "qdqbert.verbs.analyze",
    "AnalyzeReport": "qdqbert.evidence.reports",
    "benchmark": "qdqbert.verbs.benchmark",
    "BenchmarkReport": "qdqbert.evidence.reports",
    "calibrate": "qdqbert.models.calibrate",
    "Calibration": "qdqbert.options",
    "CalibrationError": "qdqbert.errors",
    "CheckpointError": "qdqbert.errors",
    "ChoiceSelector": "qdqbert.tasks.multiple_choice",
    "Columns": "qdqbert.options",
    "DataFileError": "qdqbert.errors",
    "Distillation": "qdqbert.training.distillation",
    "doctor": "qdqbert.verbs.doctor",
    "DoctorReport": "qdqbert.verbs.doctor.report",
    "Embedder": "qdqbert.tasks.feature_extraction",
    "evaluate": "qdqbert.verbs.evaluate",
    "EvaluateReport": "qdqbert.evidence.reports",
    "export": "qdqbert.verbs.export",
    "ExportReport": "qdqbert.verbs.export.report",
    "Fidelity": "qdqbert.evidence.fidelity",
    "GraphError": "qdqbert.errors",
    "LatencyReport": "qdqbert.evidence.reports",
    "Limits": "qdqbert.options",
    "load": "qdqbert.inference.load",
    "LoweringCheck": "qdqbert.evidence.lowering",
    "MaskFiller": "qdqbert.tasks.fill_mask",
    "Metric": "qdqbert.tasks.task",
    "MissingExtraError": "qdqbert.errors",
    "NextSentencePredictor": "qdqbert.tasks.next_sentence_prediction",
    "ModelClosedError": "qdqbert.errors",
    "Onnx": "qdqbert.options",
    "Optimization": "qdqbert.verbs.train.options",
    "OutputExistsError": "qdqbert.errors",
    "prepare": "qdqbert.models.prepare",
    "Progress": "qdqbert.progress",
    "push": "qdqbert.verbs.push",
    "PushReport": "qdqbert.verbs.push.report",
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
    "Quantizers": "qdqbert.options",
    "QuestionAnswerer": "qdqbert.tasks.question_answering",
    "Reranker": "qdqbert.tasks.reranking",
    "run": "qdqbert.verbs.run",
    "RunReport": "qdqbert.verbs.run.report",
    "serve": "qdqbert.verbs.serve",
    "ServeReport": "qdqbert.verbs.serve.report",
    "SpecError": "qdqbert.errors",
    "TargetReport": "qdqbert.evidence.reports",
    "TaskOptions": "qdqbert.options",
    "TensorQuantizer": "qdqbert.compat.nn.tensor_quantizer",
    "TextClassifier": "qdqbert.tasks.text_classification",
    "Timing": "qdqbert.evidence.latency",
    "TokenClassifier": "qdqbert.tasks.token_classification",
    "train": "qdqbert.verbs.train",
    "TrainingError": "qdqbert.errors",
    "TrainReport": "qdqbert.evidence.reports",
    "UncalibratedError": "qdqbert.errors",
    "UnmatchedRuleError": "qdqbert.errors",
    "UserInputError": "qdqbert.errors",
    "verify": "qdqbert.verbs.verify",
    "VerifyReport": "qdqbert.verbs.verify.report",
}

__all__ = sorted(_MODULES, key=str.casefold)


def __getattr__(name: str) -> Any:
    # Importing torch takes seconds, so that names are imported when they are first used.
    if name not in _MODULES:
        raise AttributeError(f"module 'qdqbert' has no attribute {name!r}")
    try:
        module = importlib.import_module(_MODULES[name])
    except ModuleNotFoundError:
        from qdqbert.extras import require_quantize

        require_quantize(f"`qdqbert.{name}`")
        raise
    return getattr(module, name)


def __dir__() -> list[str]:
    return __all__
