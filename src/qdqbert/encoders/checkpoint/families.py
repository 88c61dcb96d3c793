"""The supported encoder families of transformers and their sites, as one table.

LayerNorms, softmax, activation functions, poolers and heads stay in float in all families. These
parts stay in float too:

* `mpnet`: the table of relative positions, 32 rows of a bias that is added to the scores.
* `deberta-v2`: everything about relative positions: the table, its projections and both matmuls
  with it. Checkpoints that share projections (v3) project positions with the float weights of
  query and key, which the graph holds next to the int8 ones. Also `embed_proj`, and the
  convolution of v2.
* `modernbert`: the rotation of query and key, and the multiplication by the gate.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Literal

from qdqbert.common.errors import CheckpointError
from qdqbert.encoders.families import FAMILIES as ENCODERS
from qdqbert.quantization.spec import Source

MaskKind = Literal["additive", "plain"]
"""The `attention_mask` of a family's models: `additive` is added to the scores, shape
`(batch, 1, 1, seq)`; `plain` is the tokenizer's, shape `(batch, seq)`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerSites:
    """Paths of the sites of a layer or of its cross-attention, relative to the layer.

    Attributes:
        linear_layers: Paths of all linear layers, by the source of their input.
        attention: Path of the module that computes the attention matmuls.
        residual_outputs: Paths of modules of the form
            `LayerNorm(dropout(dense(x)) + residual)`.
        branches: Paths of modules whose output is added to a residual by the module around them.
        activation: Path of a module of the form `activation(dense(x))`, in families that recipes
            with sites on outputs support.
    """

    linear_layers: Mapping[Source, tuple[str, ...]]
    attention: str
    residual_outputs: tuple[str, ...] = ()
    branches: tuple[str, ...] = ()
    activation: str | None = None

    @property
    def reads_encoder(self) -> bool:
        """Whether key and value are computed from another model's states: cross-attention."""
        return "encoder" in self.linear_layers


BERT_LAYER = LayerSites(
    linear_layers={
        "norm": (
            "attention.self.query",
            "attention.self.key",
            "attention.self.value",
            "intermediate.dense",
        ),
        "attention": ("attention.output.dense",),
        "activation": ("output.dense",),
    },
    attention="attention.self",
    residual_outputs=("attention.output", "output"),
    activation="intermediate",
)
"""20 sites: 6 linear layers x (input, weight), 4 inputs of matmuls, 2 residual adds x 2."""

BERT_CROSS_ATTENTION = LayerSites(
    linear_layers={
        "norm": ("crossattention.self.query",),
        "encoder": ("crossattention.self.key", "crossattention.self.value"),
        "attention": ("crossattention.output.dense",),
    },
    attention="crossattention.self",
    residual_outputs=("crossattention.output",),
)
"""14 sites: 4 linear layers x 2, 4 inputs of matmuls, 1 residual add x 2."""

DISTILBERT_LAYER = LayerSites(
    linear_layers={
        "norm": ("attention.q_lin", "attention.k_lin", "attention.v_lin", "ffn.lin1"),
        "attention": ("attention.out_lin",),
        "activation": ("ffn.lin2",),
    },
    attention="attention",
    branches=("attention", "ffn"),
)
"""20 sites, as `BERT_LAYER`."""

MPNET_LAYER = LayerSites(
    linear_layers={
        "norm": ("attention.attn.q", "attention.attn.k", "attention.attn.v", "intermediate.dense"),
        "attention": ("attention.attn.o",),
        "activation": ("output.dense",),
    },
    attention="attention.attn",
    residual_outputs=("output",),
    branches=("attention.attn",),
)
"""20 sites, as `BERT_LAYER`."""

DEBERTA_LAYER = LayerSites(
    linear_layers={
        "norm": (
            "attention.self.query_proj",
            "attention.self.key_proj",
            "attention.self.value_proj",
            "intermediate.dense",
        ),
        "attention": ("attention.output.dense",),
        "activation": ("output.dense",),
    },
    attention="attention.self",
    residual_outputs=("attention.output", "output"),
)
"""20 sites, as `BERT_LAYER`; the attention matmuls multiply content with content."""

MODERNBERT_LAYER = LayerSites(
    linear_layers={
        "norm": ("attn.Wqkv", "mlp.Wi"),
        "attention": ("attn.Wo",),
        "gate": ("mlp.Wo",),
    },
    attention="attn",
    branches=("attn", "mlp"),
)
"""16 sites: 4 linear layers x 2, 4 inputs of matmuls, 2 residual adds x 2."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """Paths of the parts of an encoder, and the inputs of its models.

    Attributes:
        model_type: transformers' name of the family, as in `config.json`.
        layer: Regular expression that matches the end of a layer's path.
        layer_example: Such a path, for messages.
        sites: The sites of each layer; `None` for families whose modules get no quantizers.
        cross_attention: Additional sites of a decoder's layer with cross-attention.
        tables: Names of the embedding tables.
        positions_follow: Token id after which positions are numbered: the id of the config's
            padding token, or a fixed one. `None` if positions start at the first row of their
            table.
        mask: The `attention_mask` that its models take.
    """

    model_type: str
    layer: str = r"(^|\.)encoder\.layer\.\d+$"
    layer_example: str = "encoder.layer.0"
    sites: LayerSites | None = BERT_LAYER
    cross_attention: LayerSites | None = None
    tables: tuple[str, ...] = ("word_embeddings", "position_embeddings", "token_type_embeddings")
    positions_follow: int | Literal["padding"] | None = None
    mask: MaskKind = "additive"

    def longest_input(self, config: Any) -> int | None:
        """Return the longest input that the table of positions allows; `None` if unlimited.

        Raises:
            CheckpointError: The config does not name the padding token that positions follow.
        """
        rows = getattr(config, "max_position_embeddings", None)
        before = self.positions_follow
        if before == "padding":
            before = config.pad_token_id
            if before is None:
                raise CheckpointError(
                    f"config.json has no `pad_token_id`, after which `{self.model_type}` numbers "
                    "positions. Add the tokenizer's `pad_token_id`."
                )
        if not rows or before is None:
            return rows
        return int(rows - (before + 1))

    def is_layer(self, path: str) -> bool:
        """Return whether a path names an encoder layer."""
        return re.search(self.layer, path) is not None

    def is_embedding_table(self, path: str) -> bool:
        """Return whether a path names an embedding table."""
        return path.rpartition(".")[2] in self.tables


FAMILIES = {
    family.model_type: family
    for family in (
        Family(model_type="bert", cross_attention=BERT_CROSS_ATTENTION),
        Family(
            model_type="camembert",
            cross_attention=BERT_CROSS_ATTENTION,
            positions_follow="padding",
        ),
        Family(model_type="deberta-v2", sites=DEBERTA_LAYER, mask="plain"),
        Family(
            model_type="distilbert",
            layer=r"(^|\.)transformer\.layer\.\d+$",
            layer_example="transformer.layer.0",
            sites=DISTILBERT_LAYER,
        ),
        Family(model_type="electra", cross_attention=BERT_CROSS_ATTENTION),
        Family(
            model_type="modernbert",
            layer=r"(^|\.)layers\.\d+$",
            layer_example="layers.0",
            sites=MODERNBERT_LAYER,
            tables=("tok_embeddings",),
            # transformers makes the masks of its sliding windows from the tokenizer's mask.
            mask="plain",
        ),
        # transformers' class reads 1, whatever the config says.
        Family(model_type="mpnet", sites=MPNET_LAYER, positions_follow=1),
        Family(
            model_type="roberta", cross_attention=BERT_CROSS_ATTENTION, positions_follow="padding"
        ),
        Family(
            model_type="xlm-roberta",
            cross_attention=BERT_CROSS_ATTENTION,
            positions_follow="padding",
        ),
    )
}


QDQBERT = "qdqbert"
"""`model_type` of BERT models with quantizers; see `qdqbert.training.models`."""

# Families that only `load` runs: layers of ALBERT share their weights, which ONNX Runtime refuses
# in INT8 on some CPUs, encoders of DPR have no token states, and transformers has no Jina v2.
_RUN_ONLY = ("albert", "dpr", "jina-bert")
_NOT_IN_TRANSFORMERS = ("new",)

# Families that are quantized as data only: modules of transformers get no quantizers.
_AS_DATA = tuple(
    name for name in ENCODERS if name not in (*FAMILIES, *_RUN_ONLY, *_NOT_IN_TRANSFORMERS, QDQBERT)
)


def family_of(model_type: str) -> Family:
    """Return the family of a checkpoint, by the `model_type` of its config.

    Raises:
        CheckpointError: The family is not supported. The message lists the supported ones.
    """
    if model_type == QDQBERT:
        return FAMILIES["bert"]
    if model_type in _AS_DATA:
        return Family(model_type=model_type, sites=None, mask="plain")
    if model_type in _RUN_ONLY:
        raise CheckpointError(
            f"`quantize` does not support checkpoints of type `{model_type}`. `qdqbert.load` runs "
            "them in INT8."
        )
    if model_type not in FAMILIES:
        raise CheckpointError(
            f"Checkpoints of type `{model_type}` are not supported. "
            f"Supported families: {', '.join(sorted((*FAMILIES, *_AS_DATA)))}."
        )
    return FAMILIES[model_type]
