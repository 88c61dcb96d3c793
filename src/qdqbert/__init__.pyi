"""Public names of the package, and where they come from.

Type checkers read this file, and `__init__.py` imports each name when it is first used.
"""

from .common.errors import CalibrationError as CalibrationError
from .common.errors import CheckpointError as CheckpointError
from .common.errors import DataFileError as DataFileError
from .common.errors import GraphError as GraphError
from .common.errors import MissingExtraError as MissingExtraError
from .common.errors import ModelClosedError as ModelClosedError
from .common.errors import OutputExistsError as OutputExistsError
from .common.errors import QdqBertError as QdqBertError
from .common.errors import SpecError as SpecError
from .common.errors import TrainingError as TrainingError
from .common.errors import UncalibratedError as UncalibratedError
from .common.errors import UnmatchedRuleError as UnmatchedRuleError
from .common.errors import UserInputError as UserInputError
from .common.options.calibration import Calibration as Calibration
from .common.options.columns import Columns as Columns
from .common.options.limits import Limits as Limits
from .common.options.onnx import Onnx as Onnx
from .common.options.quantizers import Quantizers as Quantizers
from .common.options.tasks import TaskOptions as TaskOptions
from .common.progress import Progress as Progress
from .compat.nn.tensor_quantizer import TensorQuantizer as TensorQuantizer
from .compat.tensor_quant import QuantDescriptor as QuantDescriptor
from .encoders.checkpoint.configuration import QDQBertConfig as QDQBertConfig
from .evidence.fidelity import Fidelity as Fidelity
from .evidence.latency import Timing as Timing
from .evidence.lowering import LoweringCheck as LoweringCheck
from .evidence.reporting.analyze import AnalyzeReport as AnalyzeReport
from .evidence.reporting.benchmark import BenchmarkReport as BenchmarkReport
from .evidence.reporting.doctor import DoctorReport as DoctorReport
from .evidence.reporting.evaluate import EvaluateReport as EvaluateReport
from .evidence.reporting.export import ExportReport as ExportReport
from .evidence.reporting.push import PushReport as PushReport
from .evidence.reporting.quantize import QuantizeReport as QuantizeReport
from .evidence.reporting.run import RunReport as RunReport
from .evidence.reporting.serve import ServeReport as ServeReport
from .evidence.reporting.train import TrainReport as TrainReport
from .evidence.reporting.verify import VerifyReport as VerifyReport
from .evidence.reports import LatencyReport as LatencyReport
from .evidence.reports import TargetReport as TargetReport
from .loading.typed_load import load as load
from .quantization.recipes import QuantizerOptions as QuantizerOptions
from .tasks.embedder import Embedder as Embedder
from .tasks.entity_extraction import EntityExtractor as EntityExtractor
from .tasks.fill_mask import MaskFiller as MaskFiller
from .tasks.gliner2 import SchemaExtractor as SchemaExtractor
from .tasks.multi_vector_embedding import MultiVectorEmbedder as MultiVectorEmbedder
from .tasks.multiple_choice import ChoiceSelector as ChoiceSelector
from .tasks.next_sentence_prediction import NextSentencePredictor as NextSentencePredictor
from .tasks.question_answerer import QuestionAnswerer as QuestionAnswerer
from .tasks.regression import Regressor as Regressor
from .tasks.reranking import Reranker as Reranker
from .tasks.sparse_embedding import SparseEmbedder as SparseEmbedder
from .tasks.sparse_vectors import SparseEmbeddings as SparseEmbeddings
from .tasks.task import Metric as Metric
from .tasks.text_classification import TextClassifier as TextClassifier
from .tasks.token_classification import TokenClassifier as TokenClassifier
from .tasks.zero_shot_classification import ZeroShotClassifier as ZeroShotClassifier
from .training.models.calibrate import calibrate as calibrate
from .training.models.modeling import QDQBertForMaskedLM as QDQBertForMaskedLM
from .training.models.modeling import QDQBertForMultipleChoice as QDQBertForMultipleChoice
from .training.models.modeling import (
    QDQBertForNextSentencePrediction as QDQBertForNextSentencePrediction,
)
from .training.models.modeling import QDQBertForQuestionAnswering as QDQBertForQuestionAnswering
from .training.models.modeling import (
    QDQBertForSequenceClassification as QDQBertForSequenceClassification,
)
from .training.models.modeling import QDQBertForTokenClassification as QDQBertForTokenClassification
from .training.models.modeling import QDQBertLMHeadModel as QDQBertLMHeadModel
from .training.models.modeling import QDQBertModel as QDQBertModel
from .training.models.modeling import QDQBertPreTrainedModel as QDQBertPreTrainedModel
from .training.models.prepare import prepare as prepare
from .training.trainer.distillation import Distillation as Distillation
from .verbs.analyze import analyze as analyze
from .verbs.benchmark import benchmark as benchmark
from .verbs.doctor import doctor as doctor
from .verbs.evaluate import evaluate as evaluate
from .verbs.export import export as export
from .verbs.push import push as push
from .verbs.quantize import quantize as quantize
from .verbs.run import run as run
from .verbs.serve import serve as serve
from .verbs.train import train as train
from .verbs.train.options import Optimization as Optimization
from .verbs.verify import verify as verify

__version__: str
