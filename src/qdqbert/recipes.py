"""Named recipes: which sites are quantized, and how, as data.

The names of sites are QDQBERT's, so the globs below read as its paper does: `._input_quantizer`
and `._weight_quantizer` belong to linears, `matmul_*` to the two attention products and `add_*`
to the residual adds. What differs among families is not named: a site says what a linear's input
is, whatever the linear is called.
"""

from __future__ import annotations

from typing import Literal

from qdqbert.errors import UserInputError
from qdqbert.spec import Recipe, Rule, Smoothing, TensorSpec

WEIGHT = TensorSpec(bits=8, narrow=True, axis=0)
"""[-127, 127], one scale per output channel: the paper's weights."""

SYMMETRIC = TensorSpec(bits=8)
"""[-128, 127] with zero point 0: what ONNX QuantizeLinear makes of int8, for activations."""

AFFINE = TensorSpec(bits=8, signed=False, symmetric=False)
"""[0, 255] with a zero point: GELU's outputs start at -0.17 and go past 20, so that symmetric
codes leave half of the range unused."""

LAYER_NORM_OUTPUTS = Smoothing(sites=("*._input_quantizer",), source="norm", alpha=0.7)
"""BERT's wide channels are those of its LayerNorms' outputs. `benchmarks/recipes.py` compares."""

Embeddings = Literal["int8", "float"]


def linear(embeddings: Embeddings = "int8") -> Recipe:
    """Inputs and weights of the encoder's linears only, with affine inputs: most faithful."""
    return Recipe(
        name="linear",
        summary="encoder linears, affine inputs, smoothed",
        rules=(
            _embedding_rule(embeddings),
            Rule(site="*._weight_quantizer", spec=WEIGHT),
            Rule(site="*._input_quantizer", spec=AFFINE),
        ),
        smoothing=LAYER_NORM_OUTPUTS,
    )


def linear_signed(embeddings: Embeddings = "int8") -> Recipe:
    """As `linear`, but signed symmetric inputs wherever values fall on both sides of zero.

    For engines that pay for a zero point. GELU's outputs, which hardly go below zero, stay
    affine: signed codes would leave half of the range unused. A gate has them on both sides.
    """
    return Recipe(
        name="linear-signed",
        summary="encoder linears, signed inputs but for GELU's outputs, smoothed",
        rules=(
            _embedding_rule(embeddings),
            Rule(site="*._weight_quantizer", spec=WEIGHT),
            Rule(site="*._input_quantizer", source="activation", spec=AFFINE),
            Rule(site="*._input_quantizer", spec=SYMMETRIC),
        ),
        smoothing=LAYER_NORM_OUTPUTS,
    )


def qdqbert(embeddings: Embeddings = "int8") -> Recipe:
    """The paper's quantizers, 20 a layer of BERT: linears, attention products, residual adds.

    Source: Wu et al. 2020, arXiv:2004.09602; transformers 4.40's `QDQBertModel`.
    """
    return Recipe(
        name="qdqbert",
        summary="linears, attention products and residual adds, symmetric: every site",
        rules=(
            _embedding_rule(embeddings),
            Rule(site="*._weight_quantizer", spec=WEIGHT),
            Rule(site="*_input_quantizer", spec=SYMMETRIC),
        ),
    )


RECIPES = {"linear": linear, "linear-signed": linear_signed, "qdqbert": qdqbert}


def build_recipe(name: str, *, embeddings: Embeddings = "int8") -> Recipe:
    """The recipe of that name.

    Raises:
        UserInputError: No recipe has that name.
    """
    if name not in RECIPES:
        raise UserInputError(f"Recipe {name!r} is unknown. Known: {', '.join(sorted(RECIPES))}.")
    return RECIPES[name](embeddings)


def _embedding_rule(embeddings: Embeddings) -> Rule:
    # A table is read by row, so its scales stand per hidden channel: one vector for any token.
    return Rule(site="*embeddings._weight_quantizer", spec=WEIGHT if embeddings == "int8" else None)
