"""GTE (Zhang et al. 2024, arXiv:2407.19669), also under its older name `new`."""

from __future__ import annotations

from collections.abc import Mapping

from qdqbert.encoders.families.bert import BERT_DEFAULTS, classify, classify_tokens
from qdqbert.encoders.families.nomic_bert import ROTATED_LAYER, check_expected, read_rotated
from qdqbert.encoders.families.roberta import fill_mask
from qdqbert.encoders.family import Encoder, Family, Heads
from qdqbert.encoders.reader import Reader
from qdqbert.encoders.weights import Conversion

# Fields of older files, and the only values of them that are read.
_EXPECTED: Mapping[str, object] = {
    "layer_norm_type": "layer_norm",
    "logn_attention_scale": False,
    "position_embedding_type": "rope",
}
_CONVERSION = Conversion(
    renames=(
        (r"^new\.", ""),
        (r"encoder\.layer\.", "layers."),
        (r"attention\.o_proj", "self_attn.o_proj"),
        (r"attn_ln", "post_attention_layernorm"),
        (r"mlp_ln", "post_mlp_layernorm"),
        (r"lm_head\.norm", "lm_head.layer_norm"),
    ),
    splits={
        ".attention.qkv_proj": (".self_attn.q_proj", ".self_attn.k_proj", ".self_attn.v_proj"),
        ".mlp.up_gate_proj": (".mlp.up_proj", ".mlp.gate_proj"),
    },
)


def read_gte(reader: Reader) -> Encoder:
    """Read a model whose queries and keys are rotated, with gates."""
    check_expected(reader.config, _EXPECTED)
    return read_rotated(
        reader, ROTATED_LAYER, knows_ntk=reader.config.text("model_type") == NEW.model_type
    )


GTE, NEW = (
    Family(
        model_type=name,
        prefix="gte",
        encoder=read_gte,
        heads=Heads(fill_mask=fill_mask, classify=classify, classify_tokens=classify_tokens),
        code=tuple(
            f"{start}{end}"
            for start in ("New", "Gte")
            for end in (
                "Model",
                "ForMaskedLM",
                "ForSequenceClassification",
                "ForTokenClassification",
            )
        ),
        defaults={
            **BERT_DEFAULTS,
            **_EXPECTED,
            "head_dim": None,
            "max_position_embeddings": 8192,
            "rope_theta": theta,
            "type_vocab_size": 1,
            "vocab_size": 250048,
        },
        conversion=_CONVERSION,
        # transformers has no such model.
        is_quantized=name != "new",
    )
    # The older code has another default than transformers'.
    for name, theta in (("gte", 160_000.0), ("new", 10_000.0))
)
