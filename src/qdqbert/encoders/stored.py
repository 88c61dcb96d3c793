"""Quantizers that a checkpoint stores: their states in config.json, their ranges in its tensors.

`quantizers` in config.json has the shapes of the tensors of each quantizer, by the kind of tensor
and by name, and in `changed` the settings that differ from the defaults. Quantizers have the names
of their sites, without the path of the encoder in a model with a head.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.common.errors import CheckpointError, GraphError, SpecError
from qdqbert.common.json_files import LARGEST_FLOAT, Fields, damaged
from qdqbert.encoders.config import Config
from qdqbert.encoders.model import EncoderModel, Floats
from qdqbert.encoders.quantize import Choices, Specs
from qdqbert.encoders.sites import linear_layers_of, parent_of, sites_of, tables_of
from qdqbert.encoders.weights import Weights
from qdqbert.quantization.spec import (
    LOCAL,
    RESIDUAL,
    SAFE_ADJACENT_SUM_LIMIT,
    Range,
    Site,
    SiteGroup,
    TensorSpec,
    is_linear_input,
    weight_site_of,
)

FORMAT = 3
"""Version of the keys in config.json that describe quantizers.

From 3 on, embedding tables have quantizers and weights obey the limit on adjacent codes, unless
`quantizer_options` say otherwise. QDQBERT models have neither, and stay at 2.
"""

QDQBERT_FORMAT = 2
"""Version of the keys in config.json of QDQBERT models."""

STATE_VERSION = 1
"""Version of the key `quantizers`."""

BUFFERS = ("_amax", "_range", "_pre_quant_scale")
"""Names of a quantizer's tensors in a checkpoint."""

ENDS = ("clip.clip_value_min", "clip.clip_value_max")
"""Names of the learned ends of a range in a checkpoint, the low one first."""

TENSORS = tuple(buffer.removeprefix("_") for buffer in BUFFERS)
"""Names of these tensors in config.json."""

TOOLKIT_DEFAULTS: Mapping[str, Any] = {
    "scale_amax": None,
    "fake_quant": True,
    "if_quant": True,
    "if_clip": False,
}
"""Values of the entries of a state that only quantizers of pytorch-quantization change."""

STATE_DEFAULTS: Mapping[str, Any] = {
    "num_bits": 8,
    "unsigned": False,
    "narrow_range": False,
    "symmetric": True,
    "moving": None,
    "learn_amax": False,
    "disabled": False,
    **TOOLKIT_DEFAULTS,
}
"""Defaults that a stored state leaves out, besides `axis`; see `default_state`."""


def problem_of(
    tensor: str, values: NDArray[Any], shapes: Sequence[tuple[int, ...]] = ()
) -> str | None:
    """Return what is wrong with a stored range or scale, to follow "has"; `None` if it is right.

    A range of 0 is right: it covers the value 0 alone, and all others become 0.

    Args:
        tensor: Its name, of which the last part counts: one of `BUFFERS`, or `clip` for the learned
            ends of a range, the low one first.
        values: Its values.
        shapes: Shapes that it may have; all of them if there is none. If one value may be for all
            channels, it may have any shape.
    """
    kind = tensor.rpartition(".")[2]
    is_one = values.size == 1 and () in shapes and kind in ("_amax", "_pre_quant_scale")
    if shapes and values.shape not in shapes and not is_one:
        return f"shape {values.shape}, not {shapes[0]}"
    if not values.size:
        return "no value"
    lowest, highest = float(values.min()), float(values.max())
    if math.isnan(lowest):
        return "the value NaN"
    if math.isinf(lowest) or math.isinf(highest):
        return "an infinite value"
    if max(-lowest, highest) > LARGEST_FLOAT:
        return f"a value as large as {max(-lowest, highest):g}"
    if kind == "_amax" and lowest < 0:
        return f"the negative value {lowest:g}"
    if kind == "_pre_quant_scale" and lowest <= 0:
        return f"the value {lowest:g}, where only positive ones are factors"
    first, last = values.flat[0], values.flat[-1]
    if kind == "_range" and not first <= 0 <= last:
        return f"the ends {first:g} and {last:g}, without 0 in between"
    if kind == "clip" and first > last:
        return f"the ends {first:g} and {last:g} in the wrong order"
    return None


def wrong_range(tensor: str, problem: str, where: str) -> str:
    """Return the message about a stored range or scale with a problem."""
    return (
        f"Tensor `{tensor}` of {where!r} has {problem}. Save the model again, or calibrate it "
        "again."
    )


def problem_of_inverse(scale: NDArray[Any] | None, inverse: NDArray[Any] | None) -> str | None:
    """Return what is wrong with the factors of a weight, if they do not undo those of its input."""
    if scale is None and inverse is None:
        return None
    if scale is not None and inverse is not None and np.allclose(scale * inverse, 1, rtol=1e-3):
        return None
    return "factors that do not undo those of its input"


def default_state(site: Site) -> dict[str, Any]:
    """Return the defaults that the stored state of a quantizer leaves out."""
    # Quantizers with the toolkit's interface have no limit.
    return {**STATE_DEFAULTS, "axis": site.channel_axis, "adjacent_sum_limit": None}


def spec_of(state: Mapping[str, Any]) -> TensorSpec | None:
    """Return the spec of a quantizer in a state; `None` if it does not quantize.

    Raises:
        SpecError: No `TensorSpec` describes it.
    """
    if state["disabled"] or not state.get("if_quant", True):
        return None
    bits, axis = state["num_bits"], state["axis"]
    axis = axis[0] if isinstance(axis, tuple | list) and len(axis) == 1 else axis
    if not isinstance(bits, int) or not isinstance(axis, int | None):
        raise SpecError(f"num_bits={bits} and axis={axis} have no integer spec.")
    limit = state.get("adjacent_sum_limit")
    if limit not in (None, SAFE_ADJACENT_SUM_LIMIT):
        raise SpecError(f"adjacent_sum_limit={limit!r} is not {SAFE_ADJACENT_SUM_LIMIT}.")
    if not state["symmetric"]:
        return TensorSpec(bits=bits, signed=False, symmetric=False)
    signed = not state["unsigned"]
    return TensorSpec(
        bits=bits,
        signed=signed,
        narrow=state["narrow_range"] and signed,
        axis=axis,
        adjacent_sum_limit=limit,
    )


def check_format(values: Mapping[str, Any]) -> None:
    """Refuse a config.json that a newer version wrote."""
    found = values.get("qdqbert_format") or FORMAT
    if type(found) is not int or found > FORMAT:
        raise CheckpointError(
            f"config.json describes quantizers in format {found!r:.80}. This version of qdqbert "
            f"reads formats up to {FORMAT}: install a newer version."
        )


def quantizes_like_graphs(values: Mapping[str, Any]) -> bool:
    """Return whether quantizers of a config are at all that graphs round; see `FORMAT`."""
    return int(values.get("qdqbert_format") or QDQBERT_FORMAT) > QDQBERT_FORMAT


def names_of(stored: Mapping[str, Any]) -> set[str]:
    """Return the names of the quantizers that `quantizers` in config.json describes."""
    if stored.get("version") != STATE_VERSION:
        raise CheckpointError(
            f"`quantizers` in config.json has version {stored.get('version')!r}, and this version "
            f"of qdqbert reads version {STATE_VERSION}. Install the version that wrote the "
            "checkpoint."
        )
    return {name for part in (*TENSORS, "changed") for name in stored.get(part, ())}


def read_stored(
    weights: Weights, config: Config, model: EncoderModel, prefix: str
) -> tuple[Specs, Choices]:
    """Read the quantizers of a checkpoint: their specs, ranges and scales.

    `prefix` is the name of the encoder in models of its family with a head.

    Raises:
        CheckpointError: A state or a tensor is missing or damaged, or is of another version.
        GraphError: There is a quantizer at a place that the native engine does not have.
    """
    check_format(config.values)
    reader = _Reader(weights, config, f"{prefix}.")
    groups: tuple[SiteGroup, ...] = ("layer",)
    if quantizes_like_graphs(config.values):
        groups = ("table", *groups)
    sites = {site.name.removeprefix(f"{prefix}."): site for site in sites_of(model, groups)}
    if unknown := sorted(reader.names() - sites.keys()):
        raise GraphError(f"The native engine has no place for the quantizer `{unknown[0]}`.")
    reader.check_names()
    channels = dict(channels_of(model))
    specs: dict[str, TensorSpec | None] = {}
    ranges: dict[str, Range] = {}
    scales: dict[str, Floats] = {}
    weight_amax: dict[str, Floats] = {}
    for name, site in sites.items():
        state = reader.state(name, site)
        specs[site.name] = spec = reader.spec(name, site, state)
        if spec is None:
            continue
        count = channels.get(site.name)
        if site.kind == "weight":
            shape = (count or 1, 1) if site.group == "layer" else (1, count or 1)
            amax = reader.amax(name, state, [shape, ()])
            if amax is not None:
                weight_amax[site.name] = amax.reshape(()) if amax.size == 1 else amax
            continue
        found = reader.range_of(name, state)
        if found is not None:
            ranges[site.name] = found
        scale = reader.scale(name, count)
        if scale is not None:
            scales[site.name] = scale
    return specs, Choices(ranges=ranges, scales=scales, weight_amax=weight_amax)


@dataclasses.dataclass(frozen=True)
class _Reader:
    """Reader of the quantizers in a checkpoint.

    Attributes:
        base: Prefix of the names of tensors in a model with a head.
    """

    weights: Weights
    config: Config
    base: str

    def part(self, name: str) -> Fields:
        """Return a part of `quantizers` in config.json."""
        path = self.config.path
        stored = Fields(
            self.config.values["quantizers"], lambda reason: damaged(path, reason), "quantizers."
        )
        return stored.child(name)

    def names(self) -> set[str]:
        for part in (*TENSORS, "changed"):
            self.part(part)
        return names_of(self.config.values["quantizers"])

    def check_names(self) -> None:
        """Refuse ranges and scales that config.json does not describe."""
        described = {f"{name}._{kind}" for kind in TENSORS for name in self.part(kind).values}
        ends = tuple(f"_quantizer.{buffer}" for buffer in BUFFERS)
        found = {name.removeprefix(self.base) for name in self.weights if name.endswith(ends)}
        if unknown := sorted(found - described):
            raise CheckpointError(
                f"{str(self.weights.path)!r} has the tensor `{unknown[0]}`, which config.json does "
                "not describe. Save the model again, or calibrate it again."
            )

    def state(self, name: str, site: Site) -> dict[str, Any]:
        changed = self.part("changed")
        return {
            **default_state(site),
            **(changed.child(name).values if changed.has(name) else {}),
        }

    def spec(self, name: str, site: Site, state: Mapping[str, Any]) -> TensorSpec | None:
        try:
            found = spec_of(state)
            if found is not None and found.axis not in (None, site.channel_axis):
                raise SpecError(f"axis={found.axis} is not the axis of its channels.")
            if found is not None and site.kind == "weight" and not found.signed:
                raise SpecError("weights need signed codes around 0.")
        except (SpecError, TypeError) as error:
            raise GraphError(f"The quantizer `{name}` has no codes: {error}") from error
        return found

    def scale(self, name: str, channels: int | None) -> Floats | None:
        """Return the factors of an activation before it is quantized.

        Those of a weight that reads it have to be their inverses.
        """
        shapes = [] if channels is None else [(channels,), ()]
        found = self.tensor("pre_quant_scale", name, shapes)
        if is_linear_input(name):
            weight = weight_site_of(name)
            inverse = self.tensor("pre_quant_scale", weight, shapes)
            problem = problem_of_inverse(found, inverse)
            if problem is not None:
                raise self._wrong(f"{weight}._pre_quant_scale", problem)
        return found if found is None or channels is None else np.resize(found, channels)

    def tensor(self, kind: str, name: str, shapes: Sequence[tuple[int, ...]]) -> Floats | None:
        """Return a tensor of a quantizer as a vector, if config.json says that there is one."""
        if name not in self.part(kind).values:
            return None
        return self._read(f"{name}._{kind}", shapes)

    def amax(
        self, name: str, state: Mapping[str, Any], shapes: Sequence[tuple[int, ...]]
    ) -> Floats | None:
        """Return the largest magnitude that the symmetric codes of a quantizer cover."""
        found, ends = self.tensor("amax", name, shapes), self._learned(name, state)
        found = found if ends is None else np.abs(ends).max(keepdims=True)
        factor = state["scale_amax"]
        return found if found is None or factor is None else found * np.float32(factor)

    def range_of(self, name: str, state: Mapping[str, Any]) -> Range | None:
        """Return the range of the quantizer of an activation."""
        if state["symmetric"]:
            amax = self.amax(name, state, [()])
            ends = None if amax is None else np.array([-amax[0], amax[0]])
        else:
            fixed, learned = self.tensor("range", name, [(2,)]), self._learned(name, state)
            ends = fixed if learned is None else learned
        if ends is None:
            return None
        low, high = ends.tolist()
        return Range(amax=max(-low, high), low=low, high=high)

    def _learned(self, name: str, state: Mapping[str, Any]) -> Floats | None:
        """Return the learned ends of a range, at most and at least 0."""
        if not state["learn_amax"]:
            return None
        low, high = (self._read(f"{name}.{end}", [()]) for end in ENDS)
        self._check(f"{name}.clip", np.concatenate([low, high]))
        return np.concatenate([np.minimum(low, 0), np.maximum(high, 0)])

    def _read(self, name: str, shapes: Sequence[tuple[int, ...]]) -> Floats:
        start = self.base if f"{self.base}{name}" in self.weights else ""
        found = self.weights.read(f"{start}{name}")
        self._check(name, found, shapes)
        return found.reshape(-1)

    def _check(self, name: str, values: Floats, shapes: Sequence[tuple[int, ...]] = ()) -> None:
        problem = problem_of(name, values, shapes)
        if problem is not None:
            raise self._wrong(name, problem)

    def _wrong(self, name: str, what: str) -> CheckpointError:
        return CheckpointError(wrong_range(name, what, str(self.weights.path)))


def channels_of(model: EncoderModel) -> Iterator[tuple[str, int]]:
    """Yield the number of channels of each weight, and of each activation that has a scale."""
    for table in tables_of(model):
        yield f"{table.module}._weight_quantizer", table.rows.shape[1]
    for layer in model.layers:
        outputs: dict[str, int] = {}
        for linear, _ in linear_layers_of(layer):
            count, inputs = linear.weight.shape
            outputs[linear.module] = outputs.get(linear.module, 0) + count
            yield f"{linear.module}._input_quantizer", inputs
        yield from ((f"{name}._weight_quantizer", count) for name, count in outputs.items())
        for linear in (layer.attention.output, layer.down):
            for end in (LOCAL, RESIDUAL):
                yield f"{parent_of(linear)}{end}", len(linear.bias)
