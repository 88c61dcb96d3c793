"""The families of models that can be read, one file each, and which of them a config is of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from qdqbert.common.errors import CheckpointError
from qdqbert.encoders.config import Config
from qdqbert.encoders.families.albert import ALBERT
from qdqbert.encoders.families.bert import BERT, QDQBERT
from qdqbert.encoders.families.bert_generation import BERT_GENERATION
from qdqbert.encoders.families.clip import CLIP, CLIP_TEXT, SIGLIP, SIGLIP_TEXT
from qdqbert.encoders.families.data2vec_text import DATA2VEC_TEXT
from qdqbert.encoders.families.deberta import DEBERTA
from qdqbert.encoders.families.deberta_v2 import DEBERTA_V2
from qdqbert.encoders.families.distilbert import DISTILBERT
from qdqbert.encoders.families.dpr import DPR
from qdqbert.encoders.families.electra import ELECTRA
from qdqbert.encoders.families.ernie import ERNIE
from qdqbert.encoders.families.esm import ESM
from qdqbert.encoders.families.esmc import ESMC
from qdqbert.encoders.families.eurobert import EUROBERT
from qdqbert.encoders.families.gemma import GEMMA
from qdqbert.encoders.families.gemma3 import GEMMA3_TEXT
from qdqbert.encoders.families.gte import GTE, NEW
from qdqbert.encoders.families.jina_bert import JINA_BERT
from qdqbert.encoders.families.jina_embeddings_v3 import JINA_EMBEDDINGS_V3
from qdqbert.encoders.families.llama import LLAMA
from qdqbert.encoders.families.longformer import LONGFORMER
from qdqbert.encoders.families.megatron_bert import MEGATRON_BERT
from qdqbert.encoders.families.mistral import MISTRAL
from qdqbert.encoders.families.model2vec import MODEL2VEC
from qdqbert.encoders.families.modernbert import MODERNBERT
from qdqbert.encoders.families.modernbert_decoder import MODERNBERT_DECODER
from qdqbert.encoders.families.mosaic_bert import MOSAIC_BERT
from qdqbert.encoders.families.mpnet import MPNET
from qdqbert.encoders.families.neobert import NEOBERT
from qdqbert.encoders.families.nomic_bert import NOMIC_BERT
from qdqbert.encoders.families.qwen2 import QWEN2
from qdqbert.encoders.families.qwen3 import QWEN3
from qdqbert.encoders.families.rembert import REMBERT
from qdqbert.encoders.families.roberta import CAMEMBERT, ROBERTA, XLM_ROBERTA
from qdqbert.encoders.families.roberta_prelayernorm import ROBERTA_PRELAYERNORM
from qdqbert.encoders.families.roformer import ROFORMER
from qdqbert.encoders.families.t5 import MT5, T5, UMT5
from qdqbert.encoders.families.ultrabert import ULTRABERT
from qdqbert.encoders.families.xlm_roberta_xl import XLM_ROBERTA_XL
from qdqbert.encoders.family import Family, family_name

FAMILIES = {
    family.model_type: family
    for family in (
        ALBERT,
        BERT,
        BERT_GENERATION,
        CAMEMBERT,
        CLIP,
        CLIP_TEXT,
        DATA2VEC_TEXT,
        DEBERTA,
        DEBERTA_V2,
        DISTILBERT,
        DPR,
        ELECTRA,
        ERNIE,
        ESM,
        ESMC,
        EUROBERT,
        GEMMA,
        GEMMA3_TEXT,
        GTE,
        JINA_BERT,
        JINA_EMBEDDINGS_V3,
        LLAMA,
        LONGFORMER,
        MEGATRON_BERT,
        MISTRAL,
        MODEL2VEC,
        MODERNBERT,
        MODERNBERT_DECODER,
        MOSAIC_BERT,
        MPNET,
        MT5,
        NEOBERT,
        NEW,
        NOMIC_BERT,
        QDQBERT,
        QWEN2,
        QWEN3,
        REMBERT,
        ROBERTA,
        ROBERTA_PRELAYERNORM,
        ROFORMER,
        SIGLIP,
        SIGLIP_TEXT,
        T5,
        ULTRABERT,
        UMT5,
        XLM_ROBERTA,
        XLM_ROBERTA_XL,
    )
}
"""The families by `model_type`."""


_CROSS = "a decoder that reads an encoder"
_EXPERTS = "experts with gates"
_INEXACT = "an approximation of attention"

LACKING: Mapping[str, str] = {
    **dict.fromkeys(("bart", "bigbird_pegasus", "led", "longt5", "mbart", "pegasus"), _CROSS),
    **dict.fromkeys(("mra", "nystromformer", "reformer", "yoso"), _INEXACT),
    **dict.fromkeys(("gpt_oss", "mixtral", "qwen2_moe", "qwen3_moe"), _EXPERTS),
    "big_bird": "attention to blocks of tokens, some of them random",
    "canine": "convolutions of characters",
    "convbert": "convolutions next to attention",
    "embedding_gemma2": "heads whose size depends on the layer, and three parts in each layer",
    "fnet": "Fourier transforms in place of attention",
    "funnel": "layers that shorten a text",
    "gemma2": "scores that are limited by tanh (`attn_logit_softcapping`)",
    "layoutlm": "the place of each word on a page",
    "lfm2": "convolutions between layers with attention",
    "luke": "entities among the tokens",
    "mobilebert": "narrow parts of layers, and several feed-forward parts in each",
    "openai_privacy_filter": f"{_EXPERTS}, and scores of attention that belong to no token",
    "squeezebert": "linear layers in groups",
    "xlnet": "two streams of states",
    "xmod": "a part of each layer for each language",
}
"""What models have that are not read and that people ask for, by `model_type`."""


def _unknown(kind: object, families: Iterable[str]) -> str:
    """Return the sentences about a model type that is not known."""
    lacking = LACKING.get(str(kind))
    why = "" if lacking is None else f": they have {lacking}, which no engine here computes"
    named = ", ".join(sorted(families))
    return (
        f"Checkpoints of type `{kind!s:.80}` are not supported{why}. Supported families: {named}."
    )


def family_of(config: Config) -> Family:
    """Return the family of a config.

    Raises:
        CheckpointError: It is not known, or its model is code of the checkpoint.
    """
    kind = family_name(config.values)
    if not kind:
        raise CheckpointError(
            f"{config.path} names no `model_type`, so its family is not known. Expected one that "
            "transformers wrote."
        )
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None:
        raise CheckpointError(_unknown(kind, FAMILIES))
    if family.other_code(config.values) is not None:
        raise config.refuse(
            "auto_map",
            f"the model is code of its own, which is never run, and a model of type `{kind}` "
            "may compute something else. If both compute the same, remove `auto_map` in a copy "
            "of the folder.",
        )
    return family


class LoadAloneError(CheckpointError):
    """A checkpoint of a family that `load` runs, and that nothing reads in PyTorch."""


def _of_load_alone(kind: str) -> LoadAloneError:
    return LoadAloneError(
        f"`quantize`, `train` and `evaluate` in PyTorch do not support checkpoints {kind}. "
        "`qdqbert.load` runs them in INT8, as does `evaluate` with `engine='native'`."
    )


def quantized_family(model_type: str, fields: Mapping[str, Any] | None = None) -> Family:
    """Return the family of a checkpoint that `quantize` takes; BERT for QDQBERT's.

    `fields` are those of its config, if they are to be checked, too.

    Raises:
        LoadAloneError: It takes none of this family, or none with such a config, and `load` does.
        CheckpointError: The family is not known.
    """
    family = FAMILIES.get(model_type)
    if family is None:
        known = {name for name, each in FAMILIES.items() if each.is_quantized}
        raise CheckpointError(_unknown(model_type, known - {QDQBERT.model_type}))
    if not family.is_quantized:
        raise _of_load_alone(f"of type `{model_type}`")
    for name, value in family.quantized_fields.items():
        if (found := (fields or {}).get(name, value)) not in (None, value):
            raise _of_load_alone(f"of type `{model_type}` with `{name}={found!r:.80}`")
    return BERT if family is QDQBERT else family
