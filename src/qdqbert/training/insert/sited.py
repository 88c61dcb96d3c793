"""Insert quantizers into a model of transformers."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import nn

from qdqbert.calibration.reference.factory import PLAIN, QuantizerFactory
from qdqbert.calibration.reference.modules import QuantEmbedding
from qdqbert.calibration.reference.sited_model import SitedModel, sited_model
from qdqbert.common.errors import CheckpointError
from qdqbert.encoders.family import Family
from qdqbert.encoders.layer_sites import LayerSites, TrainingSites
from qdqbert.quantization.spec import (
    CROSS_SEQUENCE_AXES,
    MATMUL_SEQUENCE_AXES,
    SiteGroup,
    is_residual_input,
    matmul_sites,
    residual_sites,
)
from qdqbert.training.insert.blocks import BLOCKS, quantized_block
from qdqbert.training.insert.modules import (
    ATTENTION,
    QuantResidualOutput,
    add_quantizers_,
    quantized_linear,
    register_attention,
)
from qdqbert.training.insert.outputs import add_output_quantizers_, check_outputs


def insert_quantizers_(
    model: nn.Module,
    family: Family,
    groups: Collection[SiteGroup] = ("layer", "table"),
    *,
    factory: QuantizerFactory = PLAIN,
) -> SitedModel:
    """Insert a quantizer at every site of a family's layers. Changes `model` in place.

    A layer of BERT gets 20 quantizers, as in QDQBERT: 6 linear layers x (input, weight), 4 inputs
    of the attention matmuls, and 2 inputs at each of 2 residual adds. For other families see
    `qdqbert.encoders.families`. Each embedding table gets one. Parameters keep their
    names. All quantizers are disabled.

    Args:
        model: A transformers model.
        family: Layout of its layers.
        groups: Groups of sites that get quantizers, as `Recipe.groups`.
        factory: Makes the quantizers of layers.

    Raises:
        CheckpointError: The model has no encoder layer of this family, or a group of sites is not
            known for the family.
    """
    known = family.training
    if known is None:
        raise CheckpointError(
            f"Modules of family `{family.model_type}` get no quantizers, so it has no QAT. "
            "`quantize` calibrates its checkpoints."
        )
    layers = [name for name, _ in model.named_modules() if known.is_layer(name)]
    if not layers:
        raise CheckpointError(
            f"The model ({type(model).__name__}) has no encoder layer of family "
            f"`{family.model_type}`; expected modules named like `{known.layers}.0`."
        )
    register_attention()
    config: Any = model.config
    config._attn_implementation = ATTENTION
    # A QDQBERT model has quantizers already.
    if not sited_model(model).quantizers:
        if "output" in groups:
            check_outputs(family)
        for name in layers:
            _insert_in_layer_(model, name, known, factory)
        if "output" in groups:
            add_output_quantizers_(model, layers, family, factory)
    for name, module in list(model.named_modules()):
        if (
            "table" in groups
            and known.is_embedding_table(name)
            and isinstance(module, nn.Embedding)
        ):
            model.set_submodule(name, QuantEmbedding.from_float(module, name=name))
    sited = sited_model(model.eval())
    for name, quantizer in sited.quantizers.items():
        quantizer.disable()
        if is_residual_input(name):
            quantizer.sizes = (config.hidden_size,)
    return sited


def _insert_in_layer_(
    model: nn.Module, layer: str, sites: TrainingSites, factory: QuantizerFactory
) -> None:
    _insert_at_(model, layer, sites.layer, factory)
    cross = sites.cross_attention
    if cross is not None and f"{layer}.{cross.attention}" in dict(model.named_modules()):
        _insert_at_(model, layer, cross, factory)
    for path, module in list(model.get_submodule(layer).named_modules()):
        if type(module) in BLOCKS:
            model.set_submodule(f"{layer}.{path}".removesuffix("."), quantized_block(module))


def _insert_at_(model: nn.Module, layer: str, sites: LayerSites, factory: QuantizerFactory) -> None:
    for source, paths in sites.linear_layers.items():
        for path in paths:
            name = f"{layer}.{path}"
            linear = model.get_submodule(name)
            assert isinstance(linear, nn.Linear), name
            new = quantized_linear(
                linear, name=name, source=source, over_tokens=source != "encoder", factory=factory
            )
            model.set_submodule(name, new)
    name = f"{layer}.{sites.attention}"
    axes = CROSS_SEQUENCE_AXES if sites.reads_encoder else MATMUL_SEQUENCE_AXES
    add_quantizers_(model.get_submodule(name), matmul_sites(name, axes).values(), factory)
    for path in sites.residual_outputs:
        name = f"{layer}.{path}"
        output = QuantResidualOutput(model.get_submodule(name), name=name, factory=factory)
        model.set_submodule(name, output)
    for path in sites.branches:
        name = f"{layer}.{path}"
        add_quantizers_(model.get_submodule(name), residual_sites(name), factory)
