"""Quantizers on outputs that no other quantizer reads, for the recipe `qordered`.

The outputs of linear layers, of the softmax and of LayerNorms are read by quantizers of the group
`layer`. Four tensors of a layer are not: the attention scores, both sums in front of a LayerNorm,
and the input of the activation function. In the last layer, its result is a fifth one.

Source: onnxruntime-inference-examples, `quantization/qat/transformer_qat/qat_utils.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from qdqbert.calibration.quantizers.quantizer import Quantizer
from qdqbert.calibration.reference.factory import QuantizerFactory
from qdqbert.common.errors import CheckpointError
from qdqbert.encoders.family import Family
from qdqbert.quantization.spec import output_sites


def check_outputs(family: Family) -> None:
    """Refuse a family whose layers differ from BERT's, as their outputs are not known."""
    if family.training is None or family.training.layer.activation is None:
        raise CheckpointError(
            "Quantizers on all outputs need encoder layers like BERT's, and the layers of family "
            f"`{family.model_type}` differ. Choose another `recipe`.",
            argument="recipe",
        )


def add_output_quantizers_(
    model: nn.Module, layers: Sequence[str], family: Family, factory: QuantizerFactory
) -> None:
    """Add quantizers to the outputs that no quantizer of the layers reads.

    The layers, by their paths in order, have theirs, and `check_outputs` accepts the family.
    """
    assert family.training is not None
    sites = family.training.layer
    assert sites.activation is not None
    for layer in layers:
        for site in output_sites(
            f"{layer}.{sites.attention}",
            f"{layer}.{sites.activation}",
            [f"{layer}.{path}" for path in sites.residual_outputs],
            is_last=layer == layers[-1],
        ):
            path, _, attribute = site.name.rpartition(".")
            model.get_submodule(path).add_module(attribute, factory.activation(site))
        activation: Any = model.get_submodule(f"{layer}.{sites.activation}")
        activation.intermediate_act_fn = _QuantizedActivation(
            activation.intermediate_act_fn, activation.activation_input_quantizer
        )


class _QuantizedActivation(nn.Module):
    """An activation function, and the quantizer of its input, which another module owns."""

    def __init__(self, function: Any, quantizer: Quantizer) -> None:
        super().__init__()
        self.function = function
        # In a tuple, so that it is not registered as a child of this module too.
        self._quantizer = (quantizer,)

    def forward(self, x: Tensor) -> Tensor:
        """Return the activation of the quantized input; shape of `x`."""
        result: Tensor = self.function(self._quantizer[0](x))
        return result
