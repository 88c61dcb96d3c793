"""Rotary position embeddings by the fields of a config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from qdqbert.encoders.config import Config
from qdqbert.encoders.model import Rotary


def rotation(size: int, theta: float, limit: int, *, factor: float = 1.0) -> Rotary:
    """Return the rotation of heads of a size, computed in float32 as transformers does.

    Args:
        size: Channels of a head.
        theta: Base of the frequencies.
        limit: Number of positions.
        factor: Divisor of the frequencies.
    """
    exponents = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
    frequencies = np.float32(1) / np.float32(theta) ** exponents / np.float32(factor)
    angles = np.arange(limit, dtype=np.float32)[:, None] * frequencies
    return Rotary(cos=np.cos(angles), sin=np.sin(angles))


def read_rotation(
    config: Config, size: int, limit: int, *, theta: float, kind: str | None = None
) -> Rotary:
    """Return the rotation that a config describes.

    Args:
        config: The config. `rope_parameters` has the values of today's files, `rope_theta` and
            `rope_scaling` the values of older ones.
        size: Channels of a head.
        limit: Number of positions.
        theta: Base of the frequencies, if the config has none.
        kind: Kind of layer, if each kind has a rotation of its own.

    Raises:
        CheckpointError: The rotation is scaled in a way that is not supported.
    """
    parameters = _mapping(config.values.get("rope_parameters"))
    if kind is not None:
        parameters = _mapping(parameters.get(kind))
    scaling = _mapping(config.values.get("rope_scaling"))
    name = parameters.get("rope_type") or scaling.get("rope_type") or scaling.get("type")
    base = parameters.get("rope_theta", config.number("rope_theta", theta))
    share = parameters.get("partial_rotary_factor", config.number("partial_rotary_factor", 1.0))
    if type(base) not in (int, float) or not 0 < base < 1e12:
        raise config.refuse("rope_parameters", "expected a positive `rope_theta`.")
    if share != 1:
        raise config.refuse("partial_rotary_factor", "only whole heads can be rotated.")
    if name in (None, "default"):
        return rotation(size, base, limit)
    factor = scaling.get("factor")
    if name == "ntk" and isinstance(factor, int | float) and 1 <= factor < 1e6:
        # As the code of Alibaba-NLP/new-impl: scaled for texts of any length.
        return rotation(size, base * factor, limit, factor=factor ** (2 / size))
    raise config.refuse(
        "rope_scaling" if scaling else "rope_parameters", "this scaling is not supported."
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
