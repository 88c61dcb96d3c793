"""The QDQBERT classes: transformers' own BERT with quantizers put in.

Nothing of BERT is copied: each class is built as its float one, then its linears and outputs are
swapped and its attention is called through transformers' attention interface. Per layer stand 20
quantizers under QDQBERT's names (34 with cross-attention); embeddings, LayerNorms, softmax, GELU,
pooler and heads stay float.

Source: transformers 4.40's `modeling_qdqbert.py`; Wu et al. 2020, arXiv:2004.09602.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import transformers

from qdqbert.checkpoint.families import family_of
from qdqbert.checkpoint.load import check_positions
from qdqbert.errors import CheckpointError, UserInputError
from qdqbert.insert.modules import ATTENTION
from qdqbert.insert.sited import insert_quantizers_, sited_model
from qdqbert.models.configuration import QDQBertConfig
from qdqbert.models.state import configure_, restore_, stored_state
from qdqbert.recipes import Switches

_RANGES = ("_quantizer._amax", "_quantizer._pre_quant_scale")


class QDQBertPreTrainedModel(transformers.BertPreTrainedModel):  # type: ignore[misc]
    """What the QDQBERT classes share; comes before a class of BERT in the list of bases."""

    config_class = QDQBertConfig
    base_model_prefix = "bert"
    _keep_in_fp32_modules_strict = ("_quantizer",)

    def __init__(self, config: QDQBertConfig, *args: Any, **kwargs: Any) -> None:
        """Builds the float model and puts quantizers in.

        Args:
            config: A `QDQBertConfig`; its `recipe`, if any, sets bits and switches.
            args: For the float class.
            kwargs: For the float class.
        """
        check_positions(config)
        super().__init__(config, *args, **kwargs)
        training = self.training
        sited = insert_quantizers_(self, family_of("bert"), tables=False)
        for quantizer in sited.quantizers.values():
            quantizer.enable()
        if config.switches is not None:
            configure_(sited, config.switches)
        if config.quantizers is not None:
            restore_(sited, config.quantizers)
        self.train(training)

    def apply_recipe(self, recipe: Switches) -> None:
        """Sets bits and switches of all quantizers; they are saved with the model.

        Raises:
            UnmatchedRuleError: A pattern finds nothing.
        """
        configure_(sited_model(self), recipe)
        self.config.recipe = recipe.to_dict()

    def set_attn_implementation(self, attn_implementation: Any, *args: Any, **kwargs: Any) -> None:
        """As transformers, but only for the attention that has quantizers in it.

        Raises:
            UserInputError: Another one is asked for.
        """
        if attn_implementation != ATTENTION:
            raise UserInputError(
                f"`attn_implementation={attn_implementation!r}` has no place for the quantizers of "
                f"the attention products; QDQBERT models keep to {ATTENTION!r}."
            )

    def save_pretrained(self, save_directory: str | Path, *args: Any, **kwargs: Any) -> None:
        """As transformers: safetensors, and config.json with what quantizers need."""
        self.config.quantizers = stored_state(sited_model(self))
        super().save_pretrained(save_directory, *args, **kwargs)

    @classmethod
    def from_pretrained(cls, *args: Any, output_loading_info: bool = False, **kwargs: Any) -> Any:
        """As transformers, for any BERT checkpoint and those that were saved by these classes.

        Raises:
            CheckpointError: The checkpoint is of another family, or its ranges are not complete.
        """
        model, info = super().from_pretrained(*args, output_loading_info=True, **kwargs)
        # transformers fills what is missing with whatever lies in memory, and drops what is left.
        for keys, what in (("missing_keys", "lack"), ("unexpected_keys", "hold, unannounced")):
            ranges = sorted(key for key in info[keys] if key.endswith(_RANGES))
            if ranges:
                raise CheckpointError(
                    f"The checkpoint's weights {what} {len(ranges)} ranges, among them "
                    f"`{ranges[0]}`; its config.json says otherwise. Save it again with "
                    "`save_pretrained`, or calibrate anew from the float checkpoint."
                )
        if model.config.quantizers is None:
            # Built on the meta device, where numbers are lost; a float checkpoint has none.
            for quantizer in sited_model(model).quantizers.values():
                if quantizer._learn_amax:
                    quantizer.start_learning()
        return (model, info) if output_loading_info else model


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
