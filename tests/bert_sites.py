"""Places of quantizers in a small BERT, by QDQBERT's names."""

from transformers import BertConfig, BertModel

from qdqbert.encoders.families import quantized_family
from qdqbert.quantization.spec import Site
from qdqbert.training.insert.sited import insert_quantizers_

# As transformers 4.40's modeling_qdqbert.py has them.
LINEARS = (
    "attention.self.query",
    "attention.self.key",
    "attention.self.value",
    "attention.output.dense",
    "intermediate.dense",
    "output.dense",
)


def sites_of_bert(layers: int) -> tuple[Site, ...]:
    config = BertConfig(
        vocab_size=11,
        hidden_size=4,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=6,
        max_position_embeddings=8,
    )
    return insert_quantizers_(BertModel(config), quantized_family("bert")).sites
