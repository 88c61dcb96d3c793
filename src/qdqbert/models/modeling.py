"""The QDQBERT classes: transformers' own BERT with quantizers put in.

Nothing of BERT is copied: each class is built as its float one, then its linears and outputs are
swapped and its attention is called through transformers' attention interface. Per layer stand 20
quantizers under QDQBERT's names (34 with cross-attention); embeddings, LayerNorms, softmax, GELU,
pooler and heads stay float.

Source: transformers 4.40's `modeling_qdqbert.py`; Wu et al. 2020, arXiv:2004.09602.
"""

from __future__ import annotations

import transformers

from qdqbert.compat.factory import ToolkitFactory
from qdqbert.models.configuration import QDQBertConfig
from qdqbert.models.quantized import QuantizedModel


class QDQBertPreTrainedModel(QuantizedModel, transformers.BertPreTrainedModel):  # type: ignore[misc]
    """What the QDQBERT classes share; comes before a class of BERT in the list of bases."""

    config_class = QDQBertConfig
    base_model_prefix = "bert"
    # Their quantizers have pytorch-quantization's interface.
    _quantizer_factory = ToolkitFactory()


class QDQBertModel(QDQBertPreTrainedModel, transformers.BertModel):  # type: ignore[misc]
    """`BertModel` with quantizers."""


class QDQBertLMHeadModel(QDQBertPreTrainedModel, transformers.BertLMHeadModel):  # type: ignore[misc]
    """`BertLMHeadModel` with quantizers: causal language modelling, with `is_decoder=True`."""


class QDQBertForMaskedLM(QDQBertPreTrainedModel, transformers.BertForMaskedLM):  # type: ignore[misc]
    """`BertForMaskedLM` with quantizers."""


class QDQBertForSequenceClassification(
    QDQBertPreTrainedModel,
    transformers.BertForSequenceClassification,  # type: ignore[misc]
):
    """`BertForSequenceClassification` with quantizers."""


class QDQBertForNextSentencePrediction(
    QDQBertPreTrainedModel,
    transformers.BertForNextSentencePrediction,  # type: ignore[misc]
):
    """`BertForNextSentencePrediction` with quantizers."""


class QDQBertForMultipleChoice(QDQBertPreTrainedModel, transformers.BertForMultipleChoice):  # type: ignore[misc]
    """`BertForMultipleChoice` with quantizers."""


class QDQBertForTokenClassification(
    QDQBertPreTrainedModel,
    transformers.BertForTokenClassification,  # type: ignore[misc]
):
    """`BertForTokenClassification` with quantizers."""


class QDQBertForQuestionAnswering(
    QDQBertPreTrainedModel,
    transformers.BertForQuestionAnswering,  # type: ignore[misc]
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
"""transformers' auto classes and what each loads for a `qdqbert` config."""


def register() -> None:
    """Makes the classes known to transformers' auto classes and pipelines; harmless to repeat."""
    transformers.AutoConfig.register(QDQBertConfig.model_type, QDQBertConfig, exist_ok=True)
    for name, model in AUTO_CLASSES.items():
        getattr(transformers, name).register(QDQBertConfig, model, exist_ok=True)
    transformers.AutoTokenizer.register(
        QDQBertConfig,
        slow_tokenizer_class=transformers.BertTokenizer,
        fast_tokenizer_class=transformers.BertTokenizerFast,
        exist_ok=True,
    )
