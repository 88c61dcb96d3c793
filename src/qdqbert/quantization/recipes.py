"""Named recipes: which sites are quantized, and how, as data.

The names of sites are QDQBERT's, so the globs below read as its paper does. `._input_quantizer` and
`._weight_quantizer` belong to linear layers, `matmul_*` to the two attention matmuls, and `add_*`
to the residual adds. No glob names a module of one family: `Site.source` is the kind of a linear
layer's input, whatever the layer is called.

Probabilities have unsigned codes, which are symmetric too: they are never negative (decision 17).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any, Self

from qdqbert.common.choices import CalibratorName, Embeddings
from qdqbert.common.errors import SpecError, UnmatchedRuleError, UserInputError
from qdqbert.common.options.declared import option
from qdqbert.common.options.quantizers import QuantizerChanges
from qdqbert.quantization.spec import (
    Range,
    Recipe,
    Rule,
    Site,
    Smoothing,
    TensorSpec,
    is_linear_input,
    is_weight,
)

# The paper's weights: [-127, 127], one scale for each output channel.
WEIGHT = TensorSpec(bits=8, narrow=True, axis=0)

# Inputs with a scale for each token.
TOKENS = TensorSpec(narrow=True, dynamic=True, per_row=True)

# [-128, 127] with zero point 0, for activations. This is int8 in ONNX's QuantizeLinear.
SYMMETRIC = TensorSpec(bits=8)

# [0, 255] with zero point 0, for probabilities. They are never negative, so signed codes would
# leave half of the range unused.
PROBABILITIES = TensorSpec(bits=8, signed=False)

# [0, 255] with a zero point, for activations. GELU's outputs start at -0.17 and exceed 20, so
# symmetric codes leave half of the range unused.
AFFINE = TensorSpec(bits=8, signed=False, symmetric=False)

# The wide channels of BERT are outputs of its LayerNorms and GELUs. GELU's outputs differ most in
# width, and their rounding is most of the error. `benchmarks/recipes.py` compares the choices.
WIDE_INPUTS = Smoothing(
    sites=("*._input_quantizer",),
    sources=("norm", "activation", "gate"),
    alpha=0.7,
    alphas=(("activation", 0.8),),
    search=0.5,
)

# Outputs of activation functions only, of whose range symmetric codes use little more than half.
ACTIVATED_INPUTS = dataclasses.replace(WIDE_INPUTS, sources=("activation", "gate"))

_LINEAR_WEIGHTS = Rule(site="*._weight_quantizer", spec=WEIGHT)
_LINEAR = (_LINEAR_WEIGHTS, Rule(site="*._input_quantizer", spec=AFFINE))

_TABLE = (
    # The most faithful recipe.
    Recipe(
        name="linear",
        summary="inputs and weights of the encoder's linear layers, affine inputs, smoothed",
        rules=_LINEAR,
        smoothing=WIDE_INPUTS,
    ),
    # Two thirds of a layer's multiplications. Attention stays in float, where engines with a fused
    # float kernel for it are fast. Families call it `attention`, `crossattention` or `attn`.
    Recipe(
        name="ffn",
        summary="linear layers of the feed-forward blocks only, affine inputs, smoothed",
        rules=(Rule(site="*att[en]*", spec=None), *_LINEAR),
        smoothing=WIDE_INPUTS,
    ),
    # NNCF's placement for transformers on CPUs: the scores are an int8 product, the context is not.
    # OpenVINO computes it wrongly on some CPUs: docs/decisions/0020-attention-on-openvino.md.
    Recipe(
        name="linear+qk",
        summary="`linear`, and queries and keys of the attention scores, symmetric",
        rules=(*_LINEAR, Rule(site="*.matmul_[qk]_input_quantizer", spec=SYMMETRIC)),
        smoothing=WIDE_INPUTS,
    ),
    # The paper's quantizers, except at residual adds. Attention matmuls have no bias that could
    # take a zero point, and a zero point costs engines time, so they are symmetric.
    Recipe(
        name="linear+matmul",
        summary="`linear`, and the attention matmuls, symmetric",
        rules=(
            *_LINEAR,
            Rule(site="*.matmul_a_input_quantizer", spec=PROBABILITIES),
            Rule(site="*.matmul_*_input_quantizer", spec=SYMMETRIC),
        ),
        smoothing=WIDE_INPUTS,
    ),
    # The paper's quantizers (Wu et al. 2020, arXiv:2004.09602; transformers 4.40's `QDQBertModel`):
    # 20 in each layer of BERT. Unlike in the paper, the range of the summand of a residual is
    # clipped by the error behind the LayerNorm (`benchmarks/calibrators.py` compares both), GELU's
    # outputs are smoothed, where symmetric codes lose most (`benchmarks/recipes.py`), and
    # probabilities have unsigned codes.
    Recipe(
        name="full",
        summary="linear layers, attention matmuls and residual adds, symmetric: every site",
        rules=(
            _LINEAR_WEIGHTS,
            Rule(site="*.matmul_a_input_quantizer", spec=PROBABILITIES),
            Rule(site="*_input_quantizer", spec=SYMMETRIC),
        ),
        smoothing=ACTIVATED_INPUTS,
        clips_residuals=True,
    ),
    # `full` loses accuracy at GELU's outputs, where symmetric codes waste half of their range even
    # if they are smoothed, and at the adds, where a few channels set the step for all:
    # `benchmarks/sensitivity.py`. This recipe avoids both. It costs a multiplication before and
    # after the pair of each add.
    Recipe(
        name="full-smoothed",
        summary="linear layers, attention matmuls and residual adds, affine, smoothed: every site",
        rules=(_LINEAR_WEIGHTS, Rule(site="*_input_quantizer", spec=AFFINE)),
        smoothing=dataclasses.replace(WIDE_INPUTS, sums=True),
    ),
    # Q/DQ on every output, for kernels that are int8 from end to end: 12 tensors and 6 weights in
    # each layer, as in onnxruntime-inference-examples,
    # `quantization/qat/transformer_qat/qat_utils.py`. The tensors are:
    # - the outputs of query, key and value
    # - the scores before they are scaled, the probabilities, and the context
    # - the sum in front of each LayerNorm, and the output of each LayerNorm
    # - the input and the output of the activation function
    # Sites are at inputs, so each output is quantized at the input that reads it. Query, key, value
    # and a residual read one tensor and share its pair. The summand of a residual stays float,
    # because the sum is quantized.
    Recipe(
        name="qordered",
        summary="every output of the encoder, symmetric: for end-to-end int8 kernels",
        rules=(
            _LINEAR_WEIGHTS,
            Rule(site="*.add_local_input_quantizer", spec=None),
            Rule(site="*_input_quantizer", spec=SYMMETRIC),
            Rule(site="*.layernorm_output_quantizer", spec=SYMMETRIC),
        ),
        groups=("layer", "output"),
    ),
)

# Recipes by name, without embedding tables, for which `build_recipe` adds a rule.
RECIPES = {recipe.name: recipe for recipe in _TABLE}

# The float model. Its name is not a choice, since it is the target that decides.
FLOAT_RECIPE = Recipe(name="float", summary="nothing", rules=())


def build_recipe(name: str, *, embeddings: Embeddings | None = "int8") -> Recipe:
    """Return the recipe with a name. Embeddings that are `None` are left out of it.

    Raises:
        UserInputError: No recipe has that name.
    """
    found = RECIPES.get(name)
    if found is None:
        known = ", ".join(sorted(RECIPES))
        raise UserInputError(f"Recipe {name!r} is unknown. Known: {known}.", argument="recipe")
    return found if embeddings is None else _with_tables(found, embeddings)


def stored_recipe(embeddings: Embeddings = "int8", placed_by: str | None = None) -> Recipe:
    """Return the recipe of a QDQBERT checkpoint, which has quantizers of its own.

    The recipe only places the quantizers of embedding tables. The checkpoint has the specs of all
    other sites. `placed_by` is the recipe that placed them, if known: it decides how they are
    calibrated.
    """
    placed = None if placed_by is None else build_recipe(placed_by, embeddings=None)
    return _with_tables(
        Recipe(
            name="stored",
            summary="the checkpoint's own quantizers",
            rules=(),
            groups=("layer",) if placed is None else placed.groups,
            smoothing=None if placed is None else placed.smoothing,
            clips_residuals=placed is not None and placed.clips_residuals,
        ),
        embeddings,
    )


_LAYER_MODULE = r"layers?\.\d+\."

QKV_MATMULS = (
    ("matmul_q_input_quantizer", "matmul_k_input_quantizer", "matmul_v_input_quantizer"),
)
QKV_WEIGHTS = tuple(
    tuple(f"{name}._weight_quantizer" for name in names)
    for names in (
        ("query", "key", "value"),
        ("query_proj", "key_proj", "value_proj"),
        ("q_lin", "k_lin", "v_lin"),
        ("q", "k", "v"),
    )
)
"""Weights of query, key and value, which `fuse_qkv` gives a common range, by end of name."""


class QuantizerOptions(QuantizerChanges):
    """Changes to a recipe, and the calibrator: the options of QDQBERT's SQuAD example.

    Patterns are regular expressions, searched in the names of quantizers and of the linear layers
    that these belong to. Disabling patterns apply first, then `quant_enable_layer_module`: together
    with `quant_disable`, only its modules are quantized. For the other options, see
    `Quantizers`.

    Attributes:
        calibrator: Rule that turns statistics into a range.
        percentile: Share of the magnitudes to cover, in percent. Required by the calibrator
            `percentile`, and only allowed with it.
        recalibrate_weights: Use the ranges of the weights' values, not those that are stored.

    Source: transformers' `quantization-qdqbert` example, `quant_trainer.py`. Differs from upstream:
    options work in any order and while calibrating, `mse` and `entropy` work, a pattern that
    matches nothing is an error, and options are stored with the checkpoint.
    """

    calibrator: CalibratorName = "max"
    percentile: float | None = option(default=None, above=0, at_most=100)
    recalibrate_weights: bool = False

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            SpecError: A value is not allowed, or two options contradict each other.
        """
        try:
            super().__post_init__()
        except UserInputError as error:
            raise SpecError(str(error), argument=error.argument) from error
        if self.calibrator == "percentile" and self.percentile is None:
            raise SpecError(
                "Specify `percentile` when using the percentile calibrator.", argument="percentile"
            )
        if self.percentile is not None and self.calibrator != "percentile":
            raise SpecError(
                f"`percentile={self.percentile}` needs `calibrator='percentile'`, got "
                f"{self.calibrator!r}.",
                argument="percentile",
            )
        self._check_patterns()

    def _check_patterns(self) -> None:
        for name, pattern, _, _ in self._patterns():
            try:
                re.compile(pattern)
            except re.error as error:
                raise SpecError(
                    f"`{name}` {pattern!r} is not a regular expression: {error}.", argument=name
                ) from error

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the options that `to_dict` wrote.

        Raises:
            SpecError: An option is unknown.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise SpecError(
                f"Unknown quantizer options {unknown}. Known: {', '.join(sorted(known))}."
            )
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Return the options that differ from their defaults, as plain values."""
        return {
            field.name: list(value) if isinstance(value, tuple) else value
            for field in dataclasses.fields(self)
            if (value := getattr(self, field.name)) != field.default
        }

    def apply(
        self, specs: Mapping[str, TensorSpec | None], sites: Iterable[Site]
    ) -> dict[str, TensorSpec | None]:
        """Return the specs of all sites by name, with bits and patterns applied to a recipe's.

        Raises:
            UnmatchedRuleError: A pattern matches no quantizer.
        """
        sites = list(sites)
        quantized = [site for site in sites if specs[site.name] is not None]
        on = dict.fromkeys((site.name for site in quantized), not self.quant_disable)
        for switch, pattern, prefix, value in self._patterns():
            found = [site.name for site in quantized if _finds(prefix + pattern, site)]
            if not found:
                example = f", such as `{quantized[0].name}`" if quantized else ""
                raise UnmatchedRuleError(
                    f"`{switch}` {pattern!r} matches none of the {len(quantized)} quantizers of "
                    f"the recipe{example}. Check its spelling.",
                    argument=switch,
                )
            on.update(dict.fromkeys(found, value))
        return {
            site.name: self._precision(specs[site.name], site) if on.get(site.name) else None
            for site in sites
        }

    def adjust(self, ranges: Mapping[str, Range], sites: Iterable[Site]) -> dict[str, Range]:
        """Clip the ranges of GELU's outputs, and share one range among query, key and value."""
        adjusted = dict(ranges)
        for site in sites:
            if self.clip_gelu is not None and site.source == "activation" and site.name in adjusted:
                adjusted[site.name] = _clipped(adjusted[site.name], self.clip_gelu)
        if self.fuse_qkv:
            for names in fused_groups(adjusted, QKV_MATMULS):
                shared = _hull([adjusted[name] for name in names])
                adjusted.update(dict.fromkeys(names, shared))
        return adjusted

    @property
    def shares_weights(self) -> bool:
        """Whether the weights of query, key and value share one range."""
        return self.fuse_qkv and self.quant_per_tensor

    def shared_weight_amax(self, amax: Mapping[str, float]) -> dict[str, float]:
        """Return the ranges that weights share, by site, of the largest magnitude of each."""
        shared: dict[str, float] = {}
        if self.shares_weights:
            for names in fused_groups(amax, QKV_WEIGHTS):
                shared.update(dict.fromkeys(names, max(amax[name] for name in names)))
        return shared

    def _precision(self, spec: TensorSpec | None, site: Site) -> TensorSpec | None:
        if spec is None:
            return None
        if site.kind == "activation":
            return dataclasses.replace(spec, bits=self.aprec)
        if site.group == "table":
            # They are read by row, and QDQBERT does not quantize them.
            return spec
        per_tensor = self.quant_per_tensor and site.channel_axis == 0
        return dataclasses.replace(spec, bits=self.wprec, axis=None if per_tensor else spec.axis)

    def _patterns(self) -> list[tuple[str, str, str, bool]]:
        """Return option, pattern, the text before it, and whether it enables, in order."""
        found = [("quant_disable_keyword", word, "", False) for word in self.quant_disable_keyword]
        for switch, value in (
            ("quant_disable_layer_module", False),
            ("quant_enable_layer_module", True),
        ):
            pattern = getattr(self, switch)
            if pattern is not None:
                found.append((switch, pattern, _LAYER_MODULE, value))
        return found


# Percentile if none is given; `quantize` uses it by default. It is closer to float than `max` for
# every task and engine in `docs/benchmarks.md`, since one outlier does not determine the scale.
PERCENTILE = 99.999


def fused_groups(names: Iterable[str], members: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Group names that differ only in their last part.

    `members` are tuples of last parts. Of each, the groups are returned whose names are all known.
    """
    known = set(names)
    groups = []
    for endings in members:
        bases = [name.removesuffix(endings[0]) for name in known if name.endswith(f".{endings[0]}")]
        candidates = [tuple(base + ending for ending in endings) for base in sorted(bases)]
        groups += [group for group in candidates if known.issuperset(group)]
    return groups


def _finds(pattern: str, site: Site) -> bool:
    owner = site.name.rpartition(".")[0]
    of_linear = is_linear_input(site.name) or is_weight(site.name)
    return bool(re.search(pattern, site.name) or (of_linear and re.search(pattern, owner)))


def _clipped(chosen: Range, limit: float) -> Range:
    return Range(
        amax=min(chosen.amax, limit), low=max(chosen.low, -limit), high=min(chosen.high, limit)
    )


def _hull(ranges: list[Range]) -> Range:
    return Range(
        amax=max(chosen.amax for chosen in ranges),
        low=min(chosen.low for chosen in ranges),
        high=max(chosen.high for chosen in ranges),
    )


def _with_tables(recipe: Recipe, embeddings: Embeddings) -> Recipe:
    # A table is read by row. With one scale for each hidden channel, one vector of scales serves
    # every token.
    rule = Rule(site="*embed*s._weight_quantizer", spec=WEIGHT if embeddings == "int8" else None)
    return dataclasses.replace(
        recipe, rules=(rule, *recipe.rules), groups=("table", *recipe.groups)
    )
