"""Where a tensor can be quantized, and how, as plain data. Does not import torch."""

from __future__ import annotations

import dataclasses
import fnmatch
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from qdqbert.common.errors import SpecError, UnmatchedRuleError
from qdqbert.quantization.hadamard import Hadamard, hadamard_of

# The `adjacent_sum_limit` that keeps 16-bit sums of two products from overflowing. A uint8 code is
# at most 255, and 255 * 128 = 32640 < 2^15.
SAFE_ADJACENT_SUM_LIMIT = 128


def code_bounds(bits: int, *, signed: bool, narrow: bool = False) -> tuple[int, int]:
    """Return the lowest and highest code of `bits` bits; `narrow` drops the lowest signed one."""
    if not signed:
        return 0, (1 << bits) - 1
    highest = (1 << (bits - 1)) - 1
    return -highest - int(not narrow), highest


@dataclasses.dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """How one tensor is quantized.

    The codes and zero points of each choice:

    ======  ======  =========  ======  ===========  ==========
    bits    signed  symmetric  narrow  codes        zero point
    ======  ======  =========  ======  ===========  ==========
    8       yes     yes        yes     -127 .. 127  0
    8       yes     yes        no      -128 .. 127  0
    8       no      yes        no      0 .. 255     0
    8       no      no         no      0 .. 255     0 .. 255
    8       yes     no         no      -128 .. 127  -128 .. 127
    7       yes     yes        yes     -63 .. 63    0
    ======  ======  =========  ======  ===========  ==========

    Attributes:
        bits: Width of the codes, 2 to 8. They are stored in 8-bit integers.
        signed: Whether the codes are signed.
        symmetric: Whether the zero point is fixed at 0. Otherwise the range may be any that
            contains zero.
        narrow: Drop the lowest code, so that int8 is [-127, 127].
        axis: Axis with one scale for each index (per channel); `None` for a single scale.
        adjacent_sum_limit: For weights of linear layers: limit on the magnitude of the sum of two
            codes that are multiplied with adjacent inputs. x86 CPUs without VNNI add two products
            of a uint8 and an int8 code in 16 bits; a limit of 128 keeps every such sum within
            `255 * 128 = 32640 < 2^15`. `None` sets no limit.
        dynamic: Compute scale and zero point from each tensor at run time, as ONNX's
            DynamicQuantizeLinear does. Only for unsigned affine codes of 8 bits, and for narrow
            symmetric ones.
        per_row: Compute them for each row, the last axis of a tensor: for each token.
        hadamard: Matrix that the last axis is multiplied by before it is quantized: of the input
            and of the weight of a linear layer, whose product it does not change.
    """

    bits: int = 8
    signed: bool = True
    symmetric: bool = True
    narrow: bool = False
    axis: int | None = None
    adjacent_sum_limit: int | None = None
    dynamic: bool = False
    per_row: bool = False
    hadamard: Hadamard | None = None

    def __post_init__(self) -> None:
        if self.per_row and not self.dynamic:
            raise SpecError("`per_row` needs `dynamic=True`.")
        if not 2 <= self.bits <= 8:
            raise SpecError(f"`bits` must be between 2 and 8, got {self.bits}.")
        if self.narrow and not (self.signed and self.symmetric):
            raise SpecError(
                "`narrow` needs a signed symmetric range; set `narrow=False`, or "
                "`signed=True, symmetric=True`."
            )
        # Rounding uses up to 1 of the limit, so the limit has to be at least 2.
        least = max(self.qmax, 2)
        if self.adjacent_sum_limit is not None and not (
            self.symmetric and self.adjacent_sum_limit >= least
        ):
            raise SpecError(
                "`adjacent_sum_limit` needs symmetric codes and at least `qmax`, got "
                f"{self.adjacent_sum_limit}."
            )
        is_affine = not (self.signed or self.symmetric)
        if self.dynamic and (
            self.bits != 8 or self.axis is not None or not (is_affine or self.narrow)
        ):
            raise SpecError(
                "`dynamic` needs unsigned affine codes of 8 bits with one scale, or narrow "
                f"symmetric ones, got {dataclasses.replace(self, dynamic=False, per_row=False)}."
            )

    @property
    def qmin(self) -> int:
        """Lowest code."""
        return code_bounds(self.bits, signed=self.signed, narrow=self.narrow)[0]

    @property
    def qmax(self) -> int:
        """Highest code."""
        return code_bounds(self.bits, signed=self.signed, narrow=self.narrow)[1]

    def __str__(self) -> str:
        sign = "int" if self.signed else "uint"
        kind = ("narrow symmetric" if self.narrow else "symmetric") if self.symmetric else "affine"
        place = "per-tensor" if self.axis is None else f"per-channel axis {self.axis}"
        place = "per-row" if self.per_row else place
        limit = self.adjacent_sum_limit
        sums = "" if limit is None else f" adjacent sums <= {limit}"
        dynamic = " dynamic" if self.dynamic else ""
        matrix = "" if self.hadamard is None else f" Hadamard {self.hadamard}"
        return f"{sign}{self.bits} {kind} {place}{sums}{dynamic}{matrix}"


DEAD_AMAX = 2.0**-24
"""Ranges up to this width cover only 0: values that are quantized with one become 0.

Source: pytorch-quantization's smallest range, `1 / (1 << 24)`.
"""

DEAD_STEP = 2.0**15
"""Scale of an activation with such a range: so large that all codes are that of 0. A float16."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Range:
    """The range that calibration chose for one site, in real units.

    It has a symmetric and an affine range from the same statistics, so that one calibration serves
    every target. Invariants: `0 <= amax`, `low <= 0 <= high`, all finite.

    Attributes:
        amax: Largest magnitude that symmetric codes cover.
        low: Smallest value that affine codes cover.
        high: Largest value that affine codes cover.
    """

    amax: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not all(math.isfinite(value) for value in (self.amax, self.low, self.high)):
            raise SpecError(f"A range must be finite, got {self}.")
        if self.amax < 0 or self.low > 0 or self.high < 0:
            raise SpecError(f"A range needs `0 <= amax` and `low <= 0 <= high`, got {self}.")

    def covers_only_zero(self, spec: TensorSpec) -> bool:
        """Return whether all values that are quantized with this range become 0."""
        return (self.amax if spec.symmetric else self.high - self.low) <= DEAD_AMAX


# Kinds of inputs of a linear layer: the output of a LayerNorm, of the attention or of an activation
# function, such an output times a gate, or the states of an encoder that a decoder attends to.
Source = Literal["norm", "attention", "activation", "gate", "encoder"]


# Groups of sites:
# - `layer`: the sites of QDQBERT's encoder layers, which most recipes place
# - `table`: embedding tables
# - `output`: outputs that no site of `layer` reads; see `qdqbert.training.insert.outputs`
SiteGroup = Literal["layer", "table", "output"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Site:
    """A named place where a tensor can be quantized.

    Attributes:
        name: QDQBERT's name of the quantizer, after the path of its module:
            `encoder.layer.3.attention.self.matmul_q_input_quantizer`.
        kind: `weight` for a constant, `activation` for a tensor that depends on the input.
        sequence_axes: Axes of an activation that run over token positions, so that [PAD] can be
            left out. Axis 0 is the batch. Empty for a weight.
        channel_axis: Axis of a weight with one scale for each index.
        source: Kind of a linear layer's input; `None` for other sites.
        group: The group of sites that it belongs to. A recipe names the groups that it places.
        hadamard: Matrix that can spread the channels of a linear layer's input, for the sites of
            its input and weight. `None` if it would gain nothing.
    """

    name: str
    kind: Literal["weight", "activation"]
    sequence_axes: tuple[int, ...] = ()
    channel_axis: int | None = None
    source: Source | None = None
    group: SiteGroup = "layer"
    hadamard: Hadamard | None = None


# Axes of the inputs of the attention matmuls that run over tokens. q and v are
# `(batch, heads, seq, head_dim)`, k is transposed, and a holds the probabilities
# `(batch, heads, seq, seq)`.
MATMUL_SEQUENCE_AXES = {"q": (2,), "k": (3,), "a": (2, 3), "v": (2,)}

# The same axes for cross-attention, whose keys and values run over another text.
CROSS_SEQUENCE_AXES = {"q": (2,), "k": (), "a": (2,), "v": ()}


def linear_sites(
    path: str, source: Source, channels: int | None = None, *, over_tokens: bool = True
) -> tuple[Site, Site]:
    """Return the sites of a linear layer's input and of its weight.

    Axis 1 of the input runs `over_tokens` of the model's own text. The input has `channels`, if
    they are known.
    """
    # Weighted sums of values have no outlier channels to spread.
    matrix = None
    if channels is not None and source != "attention":
        found = hadamard_of(channels, gated=source == "gate")
        matrix = found if found.order > 1 else None
    return (
        Site(
            name=f"{path}._input_quantizer",
            kind="activation",
            sequence_axes=(1,) if over_tokens else (),
            source=source,
            hadamard=matrix,
        ),
        Site(name=f"{path}._weight_quantizer", kind="weight", channel_axis=0, hadamard=matrix),
    )


def matmul_sites(
    path: str, axes: Mapping[str, tuple[int, ...]] = MATMUL_SEQUENCE_AXES
) -> dict[str, Site]:
    """Return the sites of the inputs q, k, a and v of the matmuls of an attention module."""
    return {
        letter: Site(
            name=f"{path}.matmul_{letter}_input_quantizer", kind="activation", sequence_axes=each
        )
        for letter, each in axes.items()
    }


def residual_sites(path: str) -> tuple[Site, Site]:
    """Return the sites of the local input and of the residual of an add."""
    local, residual = (
        Site(name=f"{path}{end}", kind="activation", sequence_axes=(1,))
        for end in (LOCAL, RESIDUAL)
    )
    return local, residual


def output_sites(
    attention: str, activation: str, sums: Sequence[str], *, is_last: bool
) -> tuple[Site, ...]:
    """Return the sites of outputs of a layer that no other site reads.

    `attention`, `activation` and `sums` are paths of the modules that compute the attention
    matmuls, the activation function, and the residual adds with a LayerNorm, in order. In the last
    layer, no other layer reads the result.

    Source: onnxruntime-inference-examples, `quantization/qat/transformer_qat/qat_utils.py`.
    """
    places: dict[str, tuple[int, ...]] = {
        f"{attention}.softmax_input_quantizer": (2, 3),
        f"{activation}.activation_input_quantizer": (1,),
        **{f"{path}.layernorm_input_quantizer": (1,) for path in sums},
        **({f"{sums[-1]}.layernorm_output_quantizer": (1,)} if is_last else {}),
    }
    return tuple(
        Site(name=name, kind="activation", sequence_axes=axes, group="output")
        for name, axes in places.items()
    )


def table_site(path: str) -> Site:
    """Return the site of an embedding table."""
    return Site(name=f"{path}._weight_quantizer", kind="weight", channel_axis=1, group="table")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
    """A spec for the sites whose name matches a glob; `spec=None` leaves them in float.

    Attributes:
        site: Glob over names of sites.
        spec: How the sites are quantized.
    """

    site: str
    spec: TensorSpec | None

    def matches(self, site: Site) -> bool:
        """Return whether the rule matches a site."""
        return fnmatch.fnmatchcase(site.name, self.site)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Smoothing:
    """Which inputs get a `pre_quant_scale`, and how strong it is.

    Attributes:
        sites: Globs over names of inputs of linear layers. The weights of these layers are divided
            by the scale.
        alpha: Share of the difficulty that moves into the weights, 0 to 1.
        alphas: Shares of inputs with single sources, where they differ from `alpha`.
        sources: Smooth only inputs with one of these sources; `None` smooths all that match.
        sums: Whether both inputs of residual adds get a scale too. An add has no weight, so its
            inputs are divided by the scale after their Q/DQ pair. Each channel then uses the whole
            range of codes.
        search: How far scales move, 0 to 1, from SmoothQuant's formula to those with the least
            noise.
    """

    sites: tuple[str, ...]
    alpha: float
    alphas: tuple[tuple[Source, float], ...] = ()
    sources: tuple[Source, ...] | None = None
    sums: bool = False
    search: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("alpha", self.alpha), ("search", self.search)):
            if not 0 <= value <= 1:
                raise SpecError(f"`{name}` must be between 0 and 1, got {value}.")
        for source, alpha in self.alphas:
            if not 0 <= alpha <= 1:
                raise SpecError(f"`alphas` must be between 0 and 1, got {alpha} for {source!r}.")
            if self.sources is not None and source not in self.sources:
                raise SpecError(
                    f"`alphas` has a value for {source!r}, which is not one of the `sources` that "
                    f"are smoothed: {', '.join(self.sources)}."
                )

    def matches(self, site: Site) -> bool:
        """Return whether a site is smoothed."""
        if is_residual_input(site.name):
            return self.sums
        named = any(fnmatch.fnmatchcase(site.name, glob) for glob in self.sites)
        return named and (self.sources is None or site.source in self.sources)

    def alpha_of(self, site: Site) -> float:
        """Return the share of a site's difficulty that moves into the weights."""
        return next((alpha for source, alpha in self.alphas if source == site.source), self.alpha)


@dataclasses.dataclass(frozen=True, kw_only=True)
class QdqStyle:
    """How a graph is written.

    Attributes:
        unsigned_activations: Store int8 codes as uint8 with the zero point moved by 128. The
            values are the same, in the type that some kernels take.
        dedicated_pairs: Give each site its own Q/DQ pair.
        absorbs_zero_points: Make the codes of inputs of linear layers symmetric, and let biases
            absorb their zero points.
        onnxruntime_operators: Write operators that only ONNX Runtime has, and sums that it does not
            fuse.
        qordered: Write encoder layers as int8 CUDA operators of ONNX Runtime.
        float16: Compute in float16 instead of float32, except where that gives wrong results.
    """

    unsigned_activations: bool = False
    dedicated_pairs: bool = False
    absorbs_zero_points: bool = False
    onnxruntime_operators: bool = False
    qordered: bool = False
    float16: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """A named placement of quantizers: ordered rules, of which the first that matches decides.

    Attributes:
        name: Name of the recipe.
        summary: One line that describes it.
        rules: Rules, matched in order against the names of all sites.
        smoothing: Inputs that are smoothed before they are quantized; `None` for no smoothing.
        groups: Groups of sites that it places. Sites of other groups are left in float.
        clips_residuals: Whether the ranges of residual adds are clipped by the error behind the
            LayerNorm; see `calibration.residual_clipping`.
    """

    name: str
    summary: str
    rules: tuple[Rule, ...]
    smoothing: Smoothing | None = None
    groups: tuple[SiteGroup, ...] = ("layer",)
    clips_residuals: bool = False

    def resolve(self, sites: Iterable[Site]) -> dict[str, TensorSpec | None]:
        """Return the spec of every site by name; `None` is float. See `resolve`."""
        sites = list(sites)
        placed = resolve(self.rules, [site for site in sites if site.group in self.groups])
        return {site.name: placed.get(site.name) for site in sites}


def resolve(rules: Sequence[Rule], sites: Iterable[Site]) -> dict[str, TensorSpec | None]:
    """Return the spec of the first rule that matches each site; no match means float.

    A spec with one scale for each channel takes its axis from the site, which knows its layout.

    Raises:
        UnmatchedRuleError: A rule decides no site, because of a typo or because earlier rules match
            all of its sites.
    """
    resolved: dict[str, TensorSpec | None] = {}
    used: set[int] = set()
    for site in sites:
        resolved[site.name] = None
        for index, rule in enumerate(rules):
            if rule.matches(site):
                resolved[site.name] = _at_site(rule.spec, site)
                used.add(index)
                break
    for index, rule in enumerate(rules):
        if index not in used:
            raise UnmatchedRuleError(
                f"Rule {index} ({rule.site!r}) decides none of {len(resolved)} sites. Check its "
                "spelling, or move it in front of the rule that matches its sites first."
            )
    return resolved


def _at_site(spec: TensorSpec | None, site: Site) -> TensorSpec | None:
    if spec is None or spec.axis is None or site.channel_axis is None:
        return spec
    return dataclasses.replace(spec, axis=site.channel_axis)


def input_site_of(name: str) -> str:
    """Return the site of a linear layer's input, given any site of that layer."""
    return name.rpartition(".")[0] + "._input_quantizer"


def weight_site_of(name: str) -> str:
    """Return the site of a linear layer's weight, given any site of that layer."""
    return name.rpartition(".")[0] + "._weight_quantizer"


def is_linear_input(name: str) -> bool:
    """Return whether a site is the input of a linear layer."""
    return name.endswith("._input_quantizer")


def is_weight(name: str) -> bool:
    """Return whether a site is the weight of a linear layer or an embedding table."""
    return name.endswith("._weight_quantizer")


# Ends of the names of the two sites of a residual add.
LOCAL, RESIDUAL = ".add_local_input_quantizer", ".add_residual_input_quantizer"


def is_residual_input(name: str) -> bool:
    """Return whether a site is an input of a residual add."""
    return name.endswith((LOCAL, RESIDUAL))
