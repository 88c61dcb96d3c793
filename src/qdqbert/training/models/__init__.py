"""The QDQBERT family of transformers 4.40, on transformers 5's own BERT.

Importing this module registers it with `AutoModel`, `AutoModelFor...`, `AutoConfig` and `pipeline`.
"""

from qdqbert.encoders.checkpoint.configuration import QDQBertConfig
from qdqbert.training.models.modeling import (
    QDQBertForMaskedLM,
    QDQBertForMultipleChoice,
    QDQBertForNextSentencePrediction,
    QDQBertForQuestionAnswering,
    QDQBertForSequenceClassification,
    QDQBertForTokenClassification,
    QDQBertLMHeadModel,
    QDQBertModel,
    QDQBertPreTrainedModel,
    register,
)

__all__ = [
    "QDQBertConfig",
    "QDQBertForMaskedLM",
    "QDQBertForMultipleChoice",
    "QDQBertForNextSentencePrediction",
    "QDQBertForQuestionAnswering",
    "QDQBertForSequenceClassification",
    "QDQBertForTokenClassification",
    "QDQBertLMHeadModel",
    "QDQBertModel",
    "QDQBertPreTrainedModel",
    "register",
]

register()
