"""How sites are quantized, and which."""

from __future__ import annotations

from qdqbert.common.choices import Embeddings, WeightsFor
from qdqbert.common.objects import Several
from qdqbert.common.options.declared import Options, option


class QuantizerChanges(Options):
    """Quantizers.

    Most are options of QDQBERT's SQuAD example, which change the quantizers of a recipe.

    Attributes:
        weights_for: CPUs that the weights are encoded for: "vnni" uses all 8 bits, which is exact
            only on CPUs with VNNI and on GPUs; "any" is exact on all of them. By default "any", or
            what a checkpoint with quantizers was trained for.
        embeddings: How embedding tables are stored. By default "int8", or as a checkpoint with
            quantizers was trained.
        wprec: Bits of weights, 2 to 8. Embedding tables keep 8.
        aprec: Bits of activations, 2 to 8.
        quant_per_tensor: Use one scale per weight instead of one per output channel.
        quant_disable: Leave everything in float, except for `quant_enable_layer_module`.
        quant_disable_keyword: Regular expressions. Quantizers whose name matches stay in float.
        quant_disable_layer_module: Regular expression that follows `layer.N.` in the name.
            Quantizers that match stay in float in every layer.
        quant_enable_layer_module: Regular expression that follows `layer.N.` in the name.
            Quantizers that match are quantized in every layer, whatever disables them.
        fuse_qkv: Use one range for query, key and value. With `quant_per_tensor`, also for their
            weights.
        clip_gelu: Largest value that the output of a GELU can take.
    """

    weights_for: WeightsFor | None = None
    embeddings: Embeddings | None = None
    wprec: int = option(default=8, at_least=2, at_most=8)
    aprec: int = option(default=8, at_least=2, at_most=8)
    quant_per_tensor: bool = False
    quant_disable: bool = False
    quant_disable_keyword: Several[str] = option(default=())
    quant_disable_layer_module: str | None = None
    quant_enable_layer_module: str | None = None
    fuse_qkv: bool = False
    clip_gelu: float | None = option(default=None, above=0)


class Quantizers(QuantizerChanges):
    """Quantizers.

    Most are options of QDQBERT's SQuAD example, which change the quantizers of a recipe.

    Attributes:
        dedicated_qdq_pairs: Write one Q/DQ pair for each reader of an activation instead of one
            per activation.
    """

    dedicated_qdq_pairs: bool = False
