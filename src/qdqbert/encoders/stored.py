"""Quantizers that a checkpoint stores: their states in config.json, their ranges in its tensors.

`quantizers` in config.json has the shapes of the tensors of each quantizer, by the kind of tensor
and by name, and in `changed` the settings that differ from the defaults. Quantizers have the names
of their sites, without the path of the encoder in a model with a head.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from qdqbert.encoders.config import Config
from qdqbert.encoders.model import EncoderModel, Floats
from qdqbert.encoders.quantize import Choices, Specs
from qdqbert.encoders.sites import linear_layers_of, parent_of, sites_of
from qdqbert.encoders.weights import Weights
from qdqbert.errors import CheckpointError, GraphError, SpecError
from qdqbert.json_files import Fields, damaged
from qdqbert.spec import LOCAL, RESIDUAL, Range, Site, TensorSpec

FORMAT = 2
"""Version of the keys in config.json that describe quantizers."""

STATE_VERSION = 1
"""Version of the key `quantizers`."""

BUFFERS = ("_amax", "_range", "_pre_quant_scale")
"""Names of a quantizer's tensors in a checkpoint."""

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


def default_state(site: Site) -> dict[str, Any]:
    """Return the defaults that the stored state of a quantizer leaves out."""
    return {**STATE_DEFAULTS, "axis": site.channel_axis}


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
    if not state["symmetric"]:
        return TensorSpec(bits=bits, signed=False, symmetric=False)
    signed = not state["unsigned"]
    return TensorSpec(bits=bits, signed=signed, narrow=state["narrow_range"] and signed, axis=axis)


def check_format(values: Mapping[str, Any]) -> None:
    """Refuse a config.json that a newer version wrote.

    Raises:
        CheckpointError: Its format is newer.
    """
    found = values.get("qdqbert_format") or FORMAT
    if type(found) is not int or found > FORMAT:
        raise CheckpointError(
            f"config.json describes quantizers in format {found!r:.80}. This version of qdqbert "
            f"reads formats up to {FORMAT}: install a newer version."
        )


def names_of(stored: Mapping[str, Any]) -> set[str]:
    """Return the names of the quantizers that `quantizers` in config.json describes.

    Raises:
        CheckpointError: It has another version.
    """
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

    Args:
        weights: Tensors of the checkpoint.
        config: Its config, with `quantizers`.
        model: The model in float.
        prefix: Name of the encoder in models of its family with a head.

    Raises:
        CheckpointError: A state or a tensor is missing or damaged, or is of another version.
        GraphError: There is a quantizer at a place that the native engine does not have.
    """
    check_format(config.values)
    reader = _Reader(weights, config, f"{prefix}.")
    sites = {
        site.name.removeprefix(f"{prefix}."): site
        for site in sites_of(model)
        if site.group == "layer"
    }
    if unknown := sorted(reader.names() - sites.keys()):
        raise GraphError(f"The native engine has no place for the quantizer `{unknown[0]}`.")
    channels = dict(_channels(model))
    specs: dict[str, TensorSpec | None] = {}
    ranges: dict[str, Range] = {}
    scales: dict[str, Floats] = {}
    weight_amax: dict[str, Floats] = {}
    for name, site in sites.items():
        state = reader.state(name, site)
        specs[site.name] = spec = reader.spec(name, site, state)
        if spec is None:
            continue
        count = channels.get(site.name, 1)
        if site.kind == "weight":
            amax = reader.amax(name, state, (1, count))
            if amax is not None:
                weight_amax[site.name] = amax.reshape(()) if amax.size == 1 else amax
            continue
        found = reader.range_of(name, state)
        if found is not None:
            ranges[site.name] = found
        scale = reader.tensor("pre_quant_scale", name, (count,))
        if scale is not None:
            scales[site.name] = scale
    return specs, Choices(ranges=ranges, scales=scales, weight_amax=weight_amax)


@dataclasses.dataclass(frozen=True)
class _Reader:
    """Reader of the quantizers in a checkpoint.

    Attributes:
        weights: Tensors of the checkpoint.
        config: Its config.
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

    def tensor(self, kind: str, name: str, sizes: tuple[int, ...]) -> Floats | None:
        """Return a tensor of a quantizer as a vector, if config.json says that there is one."""
        if name not in self.part(kind).values:
            return None
        found = self._read(f"{name}._{kind}", sizes)
        # The ends of ranges are checked with the ranges.
        if kind != "range" and not (found >= 0 if kind == "amax" else found > 0).all():
            raise self._wrong(f"{name}._{kind}", "values that are not positive")
        return found

    def amax(self, name: str, state: Mapping[str, Any], sizes: tuple[int, ...]) -> Floats | None:
        """Return the largest magnitude that the symmetric codes of a quantizer cover."""
        ends = self._learned(name, state)
        found = (
            self.tensor("amax", name, sizes) if ends is None else np.abs(ends).max(keepdims=True)
        )
        factor = state["scale_amax"]
        return found if found is None or factor is None else found * np.float32(factor)

    def range_of(self, name: str, state: Mapping[str, Any]) -> Range | None:
        """Return the range of the quantizer of an activation."""
        if state["symmetric"]:
            amax = self.amax(name, state, (1,))
            ends = None if amax is None else np.array([-amax[0], amax[0]])
        else:
            ends = self._learned(name, state)
            ends = self.tensor("range", name, (2,)) if ends is None else ends
        if ends is None:
            return None
        low, high = ends.tolist()
        if not low <= 0 <= high:
            raise self._wrong(f"{name}._range", f"the ends {low} and {high}, without 0 in between")
        return Range(amax=max(-low, high), low=low, high=high)

    def _learned(self, name: str, state: Mapping[str, Any]) -> Floats | None:
        """Return the learned ends of a range, at most and at least 0."""
        if not state["learn_amax"]:
            return None
        low, high = (self._read(f"{name}.clip.clip_value_{end}", (1,)) for end in ("min", "max"))
        return np.concatenate([np.minimum(low, 0), np.maximum(high, 0)])

    def _read(self, name: str, sizes: tuple[int, ...]) -> Floats:
        start = self.base if f"{self.base}{name}" in self.weights else ""
        found = self.weights.read(f"{start}{name}").reshape(-1)
        if found.size not in sizes:
            raise self._wrong(name, f"{found.size} values, not {sizes[-1]}")
        return found

    def _wrong(self, name: str, what: str) -> CheckpointError:
        return CheckpointError(
            f"Tensor `{name}` of {str(self.weights.path)!r} has {what}. Save the model again, or "
            "calibrate it again."
        )


def _channels(model: EncoderModel) -> Iterator[tuple[str, int]]:
    """Yield the number of channels of each weight, and of each activation that has a scale."""
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
