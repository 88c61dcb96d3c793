"""The QDQBERT classes: transformers' own BERT with quantizers.

No code of BERT is copied. Each class is built like its float class; then its linear layers and
outputs are replaced, and its attention goes through transformers' attention interface. Each layer
has 20 quantizers with QDQBERT's names (34 with cross-attention). Embeddings, LayerNorms, softmax,
GELU, pooler and heads stay in float.

Source: transformers 4.40's `modeling_qdqbert.py`; Wu et al. 2020, arXiv:2004.09602.
"""

from __future__ import annotations

import transformers

from qdqbert.compat.factory import ToolkitFactory
from qdqbert.encoders.checkpoint.configuration import QDQBertConfig, register_config
from qdqbert.encoders.checkpoint.docstrings import importing_models
from qdqbert.training.models.quantized import QuantizedModel

with importing_models():
    from transformers.models.bert import modeling_bert as bert


class QDQBertPreTrainedModel(QuantizedModel, bert.BertPreTrainedModel):  # type: ignore[misc]
    """Base class of the QDQBERT classes. It precedes the class of BERT in the list of bases."""

    config_class = QDQBertConfig
    base_model_prefix = "bert"
    # Their quantizers have pytorch-quantization's interface.
    _quantizer_factory = ToolkitFactory()


class QDQBertModel(QDQBertPreTrainedModel, bert.BertModel):  # type: ignore[misc]
    """`BertModel` with quantizers."""


class QDQBertLMHeadModel(QDQBertPreTrainedModel, bert.BertLMHeadModel):  # type: ignore[misc]
    """`BertLMHeadModel` with quantizers, for causal language modeling with `is_decoder=True`."""


class QDQBertForMaskedLM(QDQBertPreTrainedModel, bert.BertForMaskedLM):  # type: ignore[misc]
    """`BertForMaskedLM` with quantizers."""


class QDQBertForSequenceClassification(
    QDQBertPreTrainedModel,
    bert.BertForSequenceClassification,  # type: ignore[misc]
):
    """`BertForSequenceClassification` with quantizers."""


class QDQBertForNextSentencePrediction(
    QDQBertPreTrainedModel,
    bert.BertForNextSentencePrediction,  # type: ignore[misc]
):
    """`BertForNextSentencePrediction` with quantizers."""


class QDQBertForMultipleChoice(QDQBertPreTrainedModel, bert.BertForMultipleChoice):  # type: ignore[misc]
    """`BertForMultipleChoice` with quantizers."""


class QDQBertForTokenClassification(
    QDQBertPreTrainedModel,
    bert.BertForTokenClassification,  # type: ignore[misc]
):
    """`BertForTokenClassification` with quantizers."""


class QDQBertForQuestionAnswering(
    QDQBertPreTrainedModel,
    bert.BertForQuestionAnswering,  # type: ignore[misc]
):
    """`BertForQuestionAnswering` with quantizers."""


AUTO_CLASSES: dict[str, type[QDQBertPreTrainedModel]] = {
    "AutoModel": QDQBertModel,
    "AutoModelForCausalLM": QDQBertLMHeadModel,
    "AutoModelForMaskedLM": QDQBertForMaskedLM,
    "AutoModelForSequenceClassification": QDQBertForSequenceClassification,
    "AutoModelForNextSentencePrediction": QDQBertForNextSentencePrediction,
    "AutoModelForMultipleChoice": QDQBertForMultipleChoice,
    "AutoModelForTokenClassification": QDQBertForTokenClassification,
    "AutoModelForQuestionAnswering": QDQBertForQuestionAnswering,
}
"""The class that each of transformers' auto classes loads for a `qdqbert` config."""


def register() -> None:
    """Register the classes with transformers' auto classes and pipelines. Can be repeated."""
    register_config()
    for name, model in AUTO_CLASSES.items():
        getattr(transformers, name).register(QDQBertConfig, model, exist_ok=True)
