"""Rotary position embeddings by the fields of a config."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.common.errors import CheckpointError
from qdqbert.encoders.config import Config
from qdqbert.encoders.model import Floats, Rotary

# Types of rotations that transformers scales by the length of the texts of the first training.
_BY_LENGTH = ("llama3", "yarn")
_KINDS = ("default", "linear", "dynamic", *_BY_LENGTH)


def rotation(size: int, theta: float, limit: int, *, factor: float = 1.0) -> Rotary:
    """Return the rotation of heads of a size, computed in float32 as transformers does.

    Args:
        size: Channels of a head.
        theta: Base of the frequencies.
        limit: Number of positions.
        factor: Divisor of the frequencies.
    """
    return rotary_of(np.float32(1) / _wavelengths(size, theta) / np.float32(factor), limit)


def _wavelengths(size: int, theta: float) -> Floats:
    """Return the tokens in which each pair of channels turns by 1."""
    found: Floats = np.float32(theta) ** (
        np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
    )
    return found


def rotary_of(frequencies: Floats, limit: int, *, scale: float = 1.0) -> Rotary:
    """Return the rotation by frequencies, `(size / 2,)`, at `limit` positions, times a scale."""
    angles, by = np.arange(limit, dtype=np.float32)[:, None] * frequencies, np.float32(scale)
    return Rotary(cos=np.cos(angles) * by, sin=np.sin(angles) * by)


def halves(heads: int, size: int) -> NDArray[np.intp]:
    """Return the order of channels in which the even ones of each head come first.

    With queries and keys in this order, a rotation of neighboring channels is one of halves.
    """
    own = np.concatenate([np.arange(0, size, 2), np.arange(1, size, 2)])
    return np.asarray(np.add.outer(np.arange(heads) * size, own).ravel())


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
    if size % 2:
        raise config.refuse("head_dim", f"heads of {size} channels have no halves to rotate.")
    fields = ("rope_scaling", "rope_parameters", "rope_theta", "partial_rotary_factor")
    found = _Settings(
        config=config,
        field=next((each for each in fields if each in config), fields[-1]),
        values=parameters,
    )
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    known = (*_KINDS, "ntk") if knows_ntk else _KINDS
    if kind not in known or parameters.get("mixed_b") is not None:
        raise found.refuse(f"rotations of type {kind!r:.40} are not supported.")
    theta = found.number("rope_theta", most=1e12)
    factor = 1.0 if kind == "default" else found.number("factor")
    share = parameters.get("partial_rotary_factor")
    if share not in (None, 1):
        raise found.refuse(f"`partial_rotary_factor={share!r:.40}`: only 1 is supported.")
    if kind == "linear":
        return rotation(size, theta, limit, factor=factor)
    if kind == "ntk":
        # Scaled for texts of any length.
        return rotation(size, theta * factor, limit, factor=factor ** (2 / size))
    if kind in _BY_LENGTH:
        name = "original_max_position_embeddings"
        # The field next to the settings counts first.
        own = config.integer(name, least=1) if name in config else None
        trained = found.number(name, limit, most=1e9) if own is None else float(own)
        read = _read_llama3 if kind == "llama3" else _read_yarn
        return read(found, size, limit, theta, factor, trained)
    # "dynamic" changes the frequencies of texts that are too long for the model.
    return rotation(size, theta, limit)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Settings:
    """Settings of a rotation, and the field that has them, for messages."""

    config: Config
    field: str
    values: Mapping[str, Any]

    def number(self, name: str, usual: float | None = None, *, most: float = 1e6) -> float:
        """Return a positive number. `usual` is what null stands for, if anything."""
        given = self.values.get(name)
        found: Any = usual if given is None else given
        if type(found) not in (int, float) or not 0 < found < most:
            raise self.refuse(f"expected a positive `{name}`.")
        return float(found)

    def refuse(self, reason: str) -> CheckpointError:
        return self.config.refuse(self.field, reason)


def _read_llama3(
    settings: _Settings, size: int, limit: int, theta: float, factor: float, trained: float
) -> Rotary:
    """Return a rotation whose slow pairs of channels are slower, by `factor`.

    Pairs that turn more often than `high_freq_factor` times in `trained` tokens are as before, and
    those that turn less often than `low_freq_factor` times are slowed down.
    """
    low, high = settings.number("low_freq_factor"), settings.number("high_freq_factor")
    if low >= high:
        raise settings.refuse("`high_freq_factor` has to be larger than `low_freq_factor`.")
    frequencies = np.float32(1) / _wavelengths(size, theta)
    turns = np.float32(trained) * frequencies / np.float32(2 * math.pi)
    share = np.clip((turns - np.float32(low)) / np.float32(high - low), 0, 1)
    slow = frequencies / np.float32(factor)
    return rotary_of((1 - share) * slow + share * frequencies, limit)


def _read_yarn(
    settings: _Settings, size: int, limit: int, theta: float, factor: float, trained: float
) -> Rotary:
    """Return a rotation whose slow pairs of channels are slower (Peng et al. 2023).

    Source: arXiv:2309.00071, with the length of queries and keys that it gives.
    """
    truncates = settings.values.get("truncate", True)
    if theta <= 1 or not isinstance(truncates, bool):
        raise settings.refuse("expected a `rope_theta` above 1, and true or false as `truncate`.")
    first, last = (
        size * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(theta))
        for turns in (settings.number("beta_fast", 32), settings.number("beta_slow", 1))
    )
    if truncates:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, size - 1)
    # The same place has to be a step.
    width = last - first or 0.001
    places = np.arange(size // 2, dtype=np.float32)
    share = 1 - np.clip((places - np.float32(first)) / np.float32(width), 0, 1)
    wavelengths = _wavelengths(size, theta)
    frequencies, slow = (np.float32(1) / (each * wavelengths) for each in (1, np.float32(factor)))
    scale = settings.values.get("attention_factor")
    if scale is None:
        names = ("mscale", "mscale_all_dim")
        both = all(settings.values.get(name) for name in names)
        by = [settings.number(name, 1) if both else 1.0 for name in names]
        lengths = [1 + 0.1 * each * math.log(max(factor, 1)) for each in by]
        scale = lengths[0] / lengths[1] if both else lengths[0]
    else:
        scale = settings.number("attention_factor")
    return rotary_of(slow * (1 - share) + frequencies * share, limit, scale=scale)
