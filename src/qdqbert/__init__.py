"""Quantize BERT-family models to INT8, measure the result, and run them fast."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

# onnxruntime 1.29 and later sends telemetry from the moment it is imported, unless this is set.
# Every module of this package imports this file first. A user's own setting wins.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

if TYPE_CHECKING:
    __version__: str
    from qdqbert.common.errors import CalibrationError as CalibrationError
    from qdqbert.common.errors import CheckpointError as CheckpointError
    from qdqbert.common.errors import DataFileError as DataFileError
    from qdqbert.common.errors import GraphError as GraphError
    from qdqbert.common.errors import MissingExtraError as MissingExtraError
    from qdqbert.common.errors import ModelClosedError as ModelClosedError
    from qdqbert.common.errors import OutputExistsError as OutputExistsError
    from qdqbert.common.errors import QdqBertError as QdqBertError
    from qdqbert.common.errors import SpecError as SpecError
    from qdqbert.common.errors import TrainingError as TrainingError
    from qdqbert.common.errors import UncalibratedError as UncalibratedError
    from qdqbert.common.errors import UnmatchedRuleError as UnmatchedRuleError
    from qdqbert.common.errors import UserInputError as UserInputError
    from qdqbert.common.options.calibration import Calibration as Calibration
    from qdqbert.common.options.columns import Columns as Columns
    from qdqbert.common.options.limits import Limits as Limits
    from qdqbert.common.options.onnx import Onnx as Onnx
    from qdqbert.common.options.quantizers import Quantizers as Quantizers
    from qdqbert.common.options.tasks import TaskOptions as TaskOptions
    from qdqbert.common.progress import Progress as Progress
    from qdqbert.compat.nn.tensor_quantizer import TensorQuantizer as TensorQuantizer
    from qdqbert.compat.tensor_quant import QuantDescriptor as QuantDescriptor
    from qdqbert.encoders.checkpoint.configuration import QDQBertConfig as QDQBertConfig
    from qdqbert.evidence.fidelity import Fidelity as Fidelity
    from qdqbert.evidence.latency import Timing as Timing
    from qdqbert.evidence.lowering import LoweringCheck as LoweringCheck
    from qdqbert.evidence.reporting.analyze import AnalyzeReport as AnalyzeReport
    from qdqbert.evidence.reporting.benchmark import BenchmarkReport as BenchmarkReport
    from qdqbert.evidence.reporting.doctor import DoctorReport as DoctorReport
    from qdqbert.evidence.reporting.evaluate import EvaluateReport as EvaluateReport
    from qdqbert.evidence.reporting.export import ExportReport as ExportReport
    from qdqbert.evidence.reporting.push import PushReport as PushReport
    from qdqbert.evidence.reporting.quantize import QuantizeReport as QuantizeReport
    from qdqbert.evidence.reporting.run import RunReport as RunReport
    from qdqbert.evidence.reporting.serve import ServeReport as ServeReport
    from qdqbert.evidence.reporting.train import TrainReport as TrainReport
    from qdqbert.evidence.reporting.verify import VerifyReport as VerifyReport
    from qdqbert.evidence.reports import LatencyReport as LatencyReport
    from qdqbert.evidence.reports import TargetReport as TargetReport
    from qdqbert.loading.typed_load import load as load
    from qdqbert.quantization.recipes import QuantizerOptions as QuantizerOptions
    from qdqbert.tasks.embedder import Embedder as Embedder
    from qdqbert.tasks.fill_mask import MaskFiller as MaskFiller
    from qdqbert.tasks.multi_vector_embedding import MultiVectorEmbedder as MultiVectorEmbedder
    from qdqbert.tasks.multiple_choice import ChoiceSelector as ChoiceSelector
    from qdqbert.tasks.next_sentence_prediction import (
        NextSentencePredictor as NextSentencePredictor,
    )
    from qdqbert.tasks.question_answerer import QuestionAnswerer as QuestionAnswerer
    from qdqbert.tasks.regression import Regressor as Regressor
    from qdqbert.tasks.reranking import Reranker as Reranker
    from qdqbert.tasks.sparse_embedding import SparseEmbedder as SparseEmbedder
    from qdqbert.tasks.sparse_embedding import SparseEmbeddings as SparseEmbeddings
    from qdqbert.tasks.task import Metric as Metric
    from qdqbert.tasks.text_classification import TextClassifier as TextClassifier
    from qdqbert.tasks.token_classification import TokenClassifier as TokenClassifier
    from qdqbert.training.models.calibrate import calibrate as calibrate
    from qdqbert.training.models.modeling import QDQBertForMaskedLM as QDQBertForMaskedLM
    from qdqbert.training.models.modeling import (
        QDQBertForMultipleChoice as QDQBertForMultipleChoice,
    )
    from qdqbert.training.models.modeling import (
        QDQBertForNextSentencePrediction as QDQBertForNextSentencePrediction,
    )
    from qdqbert.training.models.modeling import (
        QDQBertForQuestionAnswering as QDQBertForQuestionAnswering,
    )
    from qdqbert.training.models.modeling import (
        QDQBertForSequenceClassification as QDQBertForSequenceClassification,
    )
    from qdqbert.training.models.modeling import (
        QDQBertForTokenClassification as QDQBertForTokenClassification,
    )
    from qdqbert.training.models.modeling import QDQBertLMHeadModel as QDQBertLMHeadModel
    from qdqbert.training.models.modeling import QDQBertModel as QDQBertModel
    from qdqbert.training.models.modeling import QDQBertPreTrainedModel as QDQBertPreTrainedModel
    from qdqbert.training.models.prepare import prepare as prepare
    from qdqbert.training.trainer.distillation import Distillation as Distillation
    from qdqbert.verbs.analyze import analyze as analyze
    from qdqbert.verbs.benchmark import benchmark as benchmark
    from qdqbert.verbs.doctor import doctor as doctor
    from qdqbert.verbs.evaluate import evaluate as evaluate
    from qdqbert.verbs.export import export as export
    from qdqbert.verbs.push import push as push
    from qdqbert.verbs.quantize import quantize as quantize
    from qdqbert.verbs.run import run as run
    from qdqbert.verbs.serve import serve as serve
    from qdqbert.verbs.train import train as train
    from qdqbert.verbs.train.options import Optimization as Optimization
    from qdqbert.verbs.verify import verify as verify

_MODULES = {
    "analyze": "qdqbert.verbs.analyze",
    "AnalyzeReport": "qdqbert.evidence.reporting.analyze",
    "benchmark": "qdqbert.verbs.benchmark",
    "BenchmarkReport": "qdqbert.evidence.reporting.benchmark",
    "calibrate": "qdqbert.training.models.calibrate",
    "Calibration": "qdqbert.common.options.calibration",
    "CalibrationError": "qdqbert.common.errors",
    "CheckpointError": "qdqbert.common.errors",
    "ChoiceSelector": "qdqbert.tasks.multiple_choice",
    "Columns": "qdqbert.common.options.columns",
    "DataFileError": "qdqbert.common.errors",
    "Distillation": "qdqbert.training.trainer.distillation",
    "doctor": "qdqbert.verbs.doctor",
    "DoctorReport": "qdqbert.evidence.reporting.doctor",
    "Embedder": "qdqbert.tasks.embedder",
    "evaluate": "qdqbert.verbs.evaluate",
    "EvaluateReport": "qdqbert.evidence.reporting.evaluate",
    "export": "qdqbert.verbs.export",
    "ExportReport": "qdqbert.evidence.reporting.export",
    "Fidelity": "qdqbert.evidence.fidelity",
    "GraphError": "qdqbert.common.errors",
    "LatencyReport": "qdqbert.evidence.reports",
    "Limits": "qdqbert.common.options.limits",
    "load": "qdqbert.loading.load",
    "LoweringCheck": "qdqbert.evidence.lowering",
    "MaskFiller": "qdqbert.tasks.fill_mask",
    "Metric": "qdqbert.tasks.task",
    "MissingExtraError": "qdqbert.common.errors",
    "NextSentencePredictor": "qdqbert.tasks.next_sentence_prediction",
    "ModelClosedError": "qdqbert.common.errors",
    "MultiVectorEmbedder": "qdqbert.tasks.multi_vector_embedding",
    "Onnx": "qdqbert.common.options.onnx",
    "Optimization": "qdqbert.verbs.train.options",
    "OutputExistsError": "qdqbert.common.errors",
    "prepare": "qdqbert.training.models.prepare",
    "Progress": "qdqbert.common.progress",
    "push": "qdqbert.verbs.push",
    "PushReport": "qdqbert.evidence.reporting.push",
    "QDQBertConfig": "qdqbert.encoders.checkpoint.configuration",
    "QdqBertError": "qdqbert.common.errors",
    "QDQBertForMaskedLM": "qdqbert.training.models.modeling",
    "QDQBertForMultipleChoice": "qdqbert.training.models.modeling",
    "QDQBertForNextSentencePrediction": "qdqbert.training.models.modeling",
    "QDQBertForQuestionAnswering": "qdqbert.training.models.modeling",
    "QDQBertForSequenceClassification": "qdqbert.training.models.modeling",
    "QDQBertForTokenClassification": "qdqbert.training.models.modeling",
    "QDQBertLMHeadModel": "qdqbert.training.models.modeling",
    "QDQBertModel": "qdqbert.training.models.modeling",
    "QDQBertPreTrainedModel": "qdqbert.training.models.modeling",
    "QuantDescriptor": "qdqbert.compat.tensor_quant",
    "quantize": "qdqbert.verbs.quantize",
    "QuantizeReport": "qdqbert.evidence.reporting.quantize",
    "QuantizerOptions": "qdqbert.quantization.recipes",
    "Quantizers": "qdqbert.common.options.quantizers",
    "QuestionAnswerer": "qdqbert.tasks.question_answerer",
    "Regressor": "qdqbert.tasks.regression",
    "Reranker": "qdqbert.tasks.reranking",
    "run": "qdqbert.verbs.run",
    "RunReport": "qdqbert.evidence.reporting.run",
    "serve": "qdqbert.verbs.serve",
    "ServeReport": "qdqbert.evidence.reporting.serve",
    "SparseEmbedder": "qdqbert.tasks.sparse_embedding",
    "SparseEmbeddings": "qdqbert.tasks.sparse_embedding",
    "SpecError": "qdqbert.common.errors",
    "TargetReport": "qdqbert.evidence.reports",
    "TaskOptions": "qdqbert.common.options.tasks",
    "TensorQuantizer": "qdqbert.compat.nn.tensor_quantizer",
    "TextClassifier": "qdqbert.tasks.text_classification",
    "Timing": "qdqbert.evidence.latency",
    "TokenClassifier": "qdqbert.tasks.token_classification",
    "train": "qdqbert.verbs.train",
    "TrainingError": "qdqbert.common.errors",
    "TrainReport": "qdqbert.evidence.reporting.train",
    "UncalibratedError": "qdqbert.common.errors",
    "UnmatchedRuleError": "qdqbert.common.errors",
    "UserInputError": "qdqbert.common.errors",
    "verify": "qdqbert.verbs.verify",
    "VerifyReport": "qdqbert.evidence.reporting.verify",
}

__all__ = sorted(_MODULES, key=str.casefold)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("qdqbert")
    # Importing torch takes seconds, so that names are imported when they are first used.
    if name not in _MODULES:
        raise AttributeError(f"module 'qdqbert' has no attribute {name!r}")
    try:
        module = importlib.import_module(_MODULES[name])
    except ModuleNotFoundError:
        from qdqbert.common.extras import require

        require(f"`qdqbert.{name}`", "quantize")
        raise
    return getattr(module, name)


def __dir__() -> list[str]:
    return __all__
