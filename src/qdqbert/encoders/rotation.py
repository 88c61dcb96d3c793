"""Rotary position embeddings by the fields of a config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from qdqbert.encoders.config import Config
from qdqbert.encoders.model import Floats, Rotary


def rotation(size: int, theta: float, limit: int, *, factor: float = 1.0) -> Rotary:
    """Return the rotation of heads of a size, computed in float32 as transformers does.

    Args:
        size: Channels of a head.
        theta: Base of the frequencies.
        limit: Number of positions.
        factor: Divisor of the frequencies.
    """
    exponents = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
    return rotary_of(np.float32(1) / np.float32(theta) ** exponents / np.float32(factor), limit)


def rotary_of(frequencies: Floats, limit: int) -> Rotary:
    """Return the rotation by frequencies, `(size / 2,)`, at `limit` positions."""
    angles = np.arange(limit, dtype=np.float32)[:, None] * frequencies
    return Rotary(cos=np.cos(angles), sin=np.sin(angles))


def rope_parameters(config: Config) -> Mapping[str, Any]:
    """Return the settings of the rotation of all layers.

    As in transformers, `rope_scaling` counts before `rope_parameters`, and both before the fields
    next to them.
    """
    own = rope_settings(config, "rope_scaling") or rope_settings(config, "rope_parameters")
    others = ("rope_theta", "partial_rotary_factor")
    return {**{name: config.values[name] for name in others if name in config.values}, **own}


def rope_settings(config: Config, name: str) -> Mapping[str, Any]:
    """Return a field with settings of rotations, which are none if it is null or not there."""
    found = config.values.get(name)
    if not isinstance(found, dict | None):
        raise config.refuse(name, "expected an object with settings of the rotation.")
    return found or {}


def read_rotation(
    config: Config, size: int, limit: int, parameters: Mapping[str, Any], *, knows_ntk: bool = False
) -> Rotary:
    """Return the rotation that a config describes.

    Args:
        config: The config, for messages.
        size: Channels of a head.
        limit: Number of positions.
        parameters: Settings of the rotation, as in `rope_parameters` of a config.
        knows_ntk: Whether the type "ntk" is read, as in the code of Alibaba-NLP/new-impl.
    """
    fields = ("rope_scaling", "rope_parameters", "rope_theta", "partial_rotary_factor")
    source = next((each for each in fields if each in config), fields[-1])
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    theta: Any = parameters["rope_theta"]
    factor: Any = 1 if kind == "default" else parameters.get("factor")
    share = parameters.get("partial_rotary_factor")
    knows_kind = kind in ("default", "linear", "dynamic") or (knows_ntk and kind == "ntk")
    if not knows_kind or parameters.get("mixed_b") is not None:
        raise config.refuse(source, f"rotations of type {kind!r:.40} are not supported.")
    for name, value, most in (("rope_theta", theta, 1e12), ("factor", factor, 1e6)):
        if type(value) not in (int, float) or not 0 < value < most:
            raise config.refuse(source, f"expected a positive `{name}`.")
    if share not in (None, 1):
        raise config.refuse(source, f"`partial_rotary_factor={share!r:.40}`: only 1 is supported.")
    if kind == "linear":
        return rotation(size, theta, limit, factor=factor)
    if kind == "ntk":
        # Scaled for texts of any length.
        return rotation(size, theta * factor, limit, factor=factor ** (2 / size))
    # "dynamic" changes the frequencies of texts that are too long for the model.
    return rotation(size, theta, limit)
