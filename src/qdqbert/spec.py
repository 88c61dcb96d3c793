"""The words of this package: where a tensor can be quantized, and how. Imports nothing of torch."""

from __future__ import annotations

import dataclasses
import fnmatch
import math
from collections.abc import Iterable, Sequence
from typing import Literal

from qdqbert.errors import SpecError, UnmatchedRuleError

SAFE_ADJACENT_SUM_LIMIT = 128
"""The `adjacent_sum_limit` that keeps 16-bit sums of two products from overflowing.

A uint8 code is at most 255, and 255 * 128 = 32640 < 2^15.
"""


def code_bounds(bits: int, *, signed: bool, narrow: bool = False) -> tuple[int, int]:
    """Lowest and highest code of that many bits; `narrow` drops the lowest signed one."""
    if not signed:
        return 0, (1 << bits) - 1
    highest = (1 << (bits - 1)) - 1
    return -highest - int(not narrow), highest


@dataclasses.dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """How one tensor is quantized.

    The codes of each choice (verifying this table is verifying the class):

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
        symmetric: Zero point fixed at 0; otherwise the range may sit anywhere around zero.
        narrow: Drop the lowest code, so that int8 is [-127, 127].
        axis: Axis that keeps one scale per index (per channel); `None` for one scale in all.
        adjacent_sum_limit: For weights of linear layers: limit on the magnitude of the sum of two
            codes that are multiplied with adjacent inputs. x86 CPUs without VNNI add two products
            of a uint8 and an int8 code in 16 bits; a limit of 128 keeps every such sum within
            `255 * 128 = 32640 < 2^15`. `None` sets no limit.
        dynamic: Take scale and zero point from each tensor when it comes, as ONNX's
            DynamicQuantizeLinear does; for unsigned affine codes of 8 bits.
    """

    bits: int = 8
    signed: bool = True
    symmetric: bool = True
    narrow: bool = False
    axis: int | None = None
    adjacent_sum_limit: int | None = None
    dynamic: bool = False

    def __post_init__(self) -> None:
        if not 2 <= self.bits <= 8:
            raise SpecError(f"`bits` must be between 2 and 8, got {self.bits}.")
        if self.narrow and not (self.signed and self.symmetric):
            raise SpecError(
                "`narrow` needs a signed symmetric range; set `narrow=False`, or "
                "`signed=True, symmetric=True`."
            )
        # Rounding takes up to 1 of the limit, so that something has to be left.
        least = max(self.qmax, 2)
        if self.adjacent_sum_limit is not None and not (
            self.symmetric and self.adjacent_sum_limit >= least
        ):
            raise SpecError(
                "`adjacent_sum_limit` needs symmetric codes and at least `qmax`, got "
                f"{self.adjacent_sum_limit}."
            )

        if self.dynamic and (
            self.bits != 8 or self.signed or self.symmetric or self.axis is not None
        ):
            raise SpecError(
                "`dynamic` needs unsigned affine codes of 8 bits in one scale, got "
                f"{dataclasses.replace(self, dynamic=False)}."
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
        limit = (
            "" if self.adjacent_sum_limit is None else f" pair sums <= {self.adjacent_sum_limit}"
        )
        dynamic = " dynamic" if self.dynamic else ""
        return f"{sign}{self.bits} {kind} {place}{limit}{dynamic}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Range:
    """What calibration chose for one site: a symmetric and an affine range, in real units.

    Both come from the same statistics, so that one calibration serves every target.
    Invariants: `0 <= amax`, `low <= 0 <= high`, all finite.

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
            raise SpecError(f"A range must hold `0 <= amax` and `low <= 0 <= high`, got {self}.")


Source = Literal["norm", "attention", "activation", "gate", "encoder"]
"""What the input of a linear is: a LayerNorm's output, the attention's, an activation function's,
that times a gate, or the states of an encoder that a decoder attends to."""


SiteGroup = Literal["layer", "table", "output"]
"""Groups of sites.

- `layer`: the sites of QDQBERT's encoder layers, which most recipes place.
- `table`: embedding tables.
- `output`: outputs that no site of `layer` reads; see `qdqbert.insert.outputs`.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Site:
    """A named place where a tensor can be quantized.

    Attributes:
        name: QDQBERT's name of the quantizer there, with the path of its module:
            `encoder.layer.3.attention.self.matmul_q_input_quantizer`.
        kind: A constant `weight`, or an `activation` that depends on the input.
        sequence_axes: Axes of an activation that run over token positions, for leaving out
            [PAD]. Axis 0 is the batch. Empty for a weight.
        channel_axis: Axis of a weight that keeps one scale per index.
        source: What the input of a linear is; `None` elsewhere.
        group: The group of sites that it belongs to. A recipe names the groups that it places.
    """

    name: str
    kind: Literal["weight", "activation"]
    sequence_axes: tuple[int, ...] = ()
    channel_axis: int | None = None
    source: Source | None = None
    group: SiteGroup = "layer"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
    """Binds a spec to the sites whose name matches the glob; `spec=None` leaves them in float.

    Attributes:
        site: Glob over names of sites.
        spec: How they are quantized.
    """

    site: str
    spec: TensorSpec | None

    def matches(self, site: Site) -> bool:
        """Whether the rule is about a site."""
        return fnmatch.fnmatchcase(site.name, self.site)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Smoothing:
    """Which inputs get a `pre_quant_scale`, and how strong.

    Attributes:
        sites: Globs over names of inputs of linears, whose weights are divided by it.
        alpha: Share of the difficulty that moves into the weights, 0 to 1.
        sources: Smooths only inputs that are one of these; `None` smooths whatever matches.
        sums: Whether both inputs of residual adds get one too. They are divided by it after their
            pair, as no weight can be: each channel has the whole range of codes then.
    """

    sites: tuple[str, ...]
    alpha: float
    sources: tuple[Source, ...] | None = None
    sums: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise SpecError(f"`alpha` must be between 0 and 1, got {self.alpha}.")

    def matches(self, site: Site) -> bool:
        """Whether a site is smoothed."""
        if is_residual_input(site.name):
            return self.sums
        named = any(fnmatch.fnmatchcase(site.name, glob) for glob in self.sites)
        return named and (self.sources is None or site.source in self.sources)


@dataclasses.dataclass(frozen=True, kw_only=True)
class QdqStyle:
    """How Q/DQ pairs are written into a graph.

    Attributes:
        unsigned_activations: Store int8 codes as uint8 with the zero point moved by 128. The
            values are the same, in the type that some kernels take.
        dedicated_pairs: Give each reader of an activation its own Q/DQ pair.
    """

    unsigned_activations: bool = False
    dedicated_pairs: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """Ordered rules: which sites are quantized, and how. The first rule that matches decides.

    Attributes:
        name: The word for it on the command line.
        summary: One line for people.
        rules: Matched in order against the names of all sites.
        smoothing: Which inputs are smoothed first, if any.
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
        """Return the spec of every site by name; `None` is float.

        Raises:
            UnmatchedRuleError: A rule decides no site.
        """
        sites = list(sites)
        placed = resolve(self.rules, [site for site in sites if site.group in self.groups])
        return {site.name: placed.get(site.name) for site in sites}


def resolve(rules: Sequence[Rule], sites: Iterable[Site]) -> dict[str, TensorSpec | None]:
    """Gives every site the spec of the first rule that matches it; no match means float.

    A spec with per-channel weights takes the axis from the site, which knows its layout.

    Raises:
        UnmatchedRuleError: A rule decided no site: a typo, or a shadowed rule.
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
                f"Rule {index} ({rule.site!r}) decided none of {len(resolved)} sites. "
                "Check its spelling, or move it before the rule that shadows it."
            )
    return resolved


def _at_site(spec: TensorSpec | None, site: Site) -> TensorSpec | None:
    if spec is None or spec.axis is None or site.channel_axis is None:
        return spec
    return dataclasses.replace(spec, axis=site.channel_axis)


def input_site_of(name: str) -> str:
    """The site of a linear's input, given any site of that linear."""
    return name.rpartition(".")[0] + "._input_quantizer"


def weight_site_of(name: str) -> str:
    """Return the site of a linear layer's weight, given any site of that layer."""
    return name.rpartition(".")[0] + "._weight_quantizer"


LOCAL, RESIDUAL = ".add_local_input_quantizer", ".add_residual_input_quantizer"
"""How the names of both sites of a residual add end."""


def is_residual_input(name: str) -> bool:
    """Whether a site is an input of a residual add."""
    return name.endswith((LOCAL, RESIDUAL))
