"""The arrays of a packed model as tensors of a GPU, in the plain order of rows and channels."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from qdqbert.encoders.shared_table import joined
from qdqbert.engines.cuda.supported import check_supported
from qdqbert.engines.native.storage import Packed
from qdqbert.quantization.hadamard import Hadamard

# Side of the matrices that tensor cores multiply, at least.
_LEAST = 16
_COLUMNS = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spread:
    """The channels of a row as a matrix of groups, which a Hadamard matrix multiplies, if any.

    Attributes:
        width: Number of channels.
        members: Members of a group; see `Hadamard`.
        block: Channels of a block.
        repeats: Groups of the matrix in a row of it.
        groups: Rows of it, a power of 2.
        matrix: `(columns, columns)` float16, blocks of the Hadamard matrix; `None` without one.
    """

    width: int
    members: int
    block: int
    repeats: int
    groups: int
    matrix: torch.Tensor | None

    @property
    def constants(self) -> dict[str, Any]:
        """The constants of kernels."""
        sizes = {each: getattr(self, each) for each in ("members", "block", "repeats", "groups")}
        return {"spread": self.matrix is not None, **sizes}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinearTensors:
    """A linear layer.

    Attributes:
        weights: `(columns, depth)`, int8, float16 or float32.
        factors: `(columns,)` float32, scales of int8 weights.
        bias: `(columns,)` float32.
        multiplier: `(depth,)` float32, what inputs are multiplied by before they become codes.
        columns: Number of columns of the result, half of all if the layer has a gate.
    """

    weights: torch.Tensor
    factors: torch.Tensor
    bias: torch.Tensor
    multiplier: torch.Tensor
    columns: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class NormTensors:
    """A LayerNorm or RMSNorm.

    Attributes:
        weight: `(channels,)` float32.
        bias: `(channels,)` float32.
        epsilon: Added to the variance.
        subtracts_mean: Whether it is a LayerNorm.
    """

    weight: torch.Tensor
    bias: torch.Tensor
    epsilon: float
    subtracts_mean: bool

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of kernels."""
        return {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerTensors:
    """An encoder layer. Linear layers of queries, keys and values are one.

    Attributes:
        norms: Its norms by part; see `engines.native.schema.NORMS`.
        head_norms: `(2, 2, channels)`, weights and biases of the norms of queries and of keys, if
            it has them: of all heads, or of each.
        position_bias: `(heads, 2 * limit - 1)`, and some more values; `None` without.
        window: As in `encoders.model.Attention`.
        rotation: Index of its rotation; `None` without.
    """

    projections: LinearTensors
    output: LinearTensors
    up: LinearTensors
    down: LinearTensors
    norms: dict[str, NormTensors]
    head_norms: torch.Tensor | None
    position_bias: torch.Tensor | None
    window: int | None
    rotation: int | None


def spread_of(width: int, matrix: Hadamard | None, device: torch.device) -> Spread:
    """Return how kernels read the channels of a row, with a Hadamard matrix or without."""
    order = matrix.order if matrix else min(width & -width, _COLUMNS)
    repeats = max((_COLUMNS if matrix is None else _LEAST) // order, 1)
    rows = -(-width // (order * repeats))
    groups = 1 << (rows - 1).bit_length()
    if matrix is None:
        return Spread(
            width=width, members=1, block=order, repeats=repeats, groups=groups, matrix=None
        )
    eye = np.eye(order, dtype=np.float32)
    # Of a single group, the members follow each other.
    whole = np.kron(np.eye(repeats, dtype=np.float32), matrix.spread(eye))
    return Spread(
        width=width,
        members=matrix.members,
        block=matrix.block,
        repeats=repeats,
        groups=max(groups, _LEAST),
        matrix=torch.from_numpy(whole).to(device, torch.float16),
    )


class Tensors:
    """The tensors of a packed model on a device.

    Attributes:
        device: The device.
        packed: The packed model.
        features: Its features.
    """

    def __init__(self, packed: Packed, device: torch.device) -> None:
        """Check the model. Tensors are copied when they are asked for."""
        self.features = check_supported(packed)
        self.packed, self.device = packed, device
        self.settings = packed.settings

    def of(self, name: str) -> torch.Tensor:
        """Return an array as a tensor."""
        return self.copied(self.packed.arrays[name])

    def copied(self, array: NDArray[Any]) -> torch.Tensor:
        """Return a copy of an array on the device, row by row."""
        # Mapped arrays cannot be written, of which torch warns.
        return torch.from_numpy(np.array(array, order="C")).to(self.device)

    def none(self) -> torch.Tensor:
        """Return what a kernel gets for a tensor that it does not read."""
        return torch.zeros(1, dtype=torch.float32, device=self.device)

    def norm(self, name: str, settings: dict[str, Any] | None) -> NormTensors | None:
        """Return a norm, if the model has it."""
        if settings is None:
            return None
        return NormTensors(
            weight=self.of(f"{name}.weight"),
            bias=self.of(f"{name}.bias"),
            epsilon=settings["epsilon"],
            subtracts_mean=settings["subtracts_mean"],
        )

    def layer(self, index: int) -> LayerTensors:
        """Return a layer."""
        name, settings = f"layers.{index}", self.settings["layers"][index]
        norms = {
            part: found
            for part in settings
            if part.endswith("norm") or part == "attention_again"
            if (found := self.norm(f"{name}.{part}", settings[part])) is not None
        }
        bias = f"{name}.position_bias"
        return LayerTensors(
            projections=self._linear(*(f"{name}.{part}" for part in ("query", "key", "value"))),
            output=self._linear(f"{name}.output"),
            up=self._linear(f"{name}.up", gated=self.features.gated),
            down=self._linear(f"{name}.down"),
            norms=norms,
            head_norms=self._of_heads(norms),
            position_bias=self.of(bias) if bias in self.packed.arrays else None,
            window=settings["window"],
            rotation=settings["rotation"],
        )

    def _linear(self, *names: str, gated: bool = False) -> LinearTensors:
        """Return linear layers with one input as one, in int8 or float16."""
        arrays = self.packed.arrays
        bias = np.concatenate([arrays[f"{name}.bias"] for name in names])
        plain = np.concatenate([_plain(arrays[f"{name}.weights"]) for name in names])
        weights = self.copied(plain)
        if self.features.floats:
            none = self.none()
            factors, multiplier, weights = none, none, weights.to(torch.float16)
        else:
            found = np.concatenate([arrays[f"{name}.factor"] for name in names])
            factors, multiplier = self.copied(found), self.of(f"{names[0]}.multiplier")
        return LinearTensors(
            weights=weights,
            factors=factors,
            bias=self.copied(bias),
            multiplier=multiplier,
            columns=len(bias) // (2 if gated else 1),
        )

    def _of_heads(self, norms: dict[str, NormTensors]) -> torch.Tensor | None:
        if not self.features.normalizes_heads:
            return None
        heads = 1 if self.features.norms_each_head else self.settings["heads"]
        channels = heads * self.settings["head_size"]
        both = [norms[f"{part}_norm"] for part in ("query", "key")]
        parts = [torch.stack([each.weight, each.bias])[:, :channels] for each in both]
        return torch.stack(parts).contiguous()

    def float_linear(self, name: str, settings: dict[str, Any]) -> LinearTensors:
        """Return a linear layer of a head or of the embeddings, in float32."""
        weights = (
            self._words_as_weights()
            if settings["tied"]
            else _plain(self.packed.arrays[f"{name}.weights"])
        )
        columns = settings["width"]
        none = self.none()
        return LinearTensors(
            weights=self.copied(weights[:columns]),
            factors=none,
            bias=self.of(f"{name}.bias"),
            multiplier=none,
            columns=columns,
        )

    def _words_as_weights(self) -> NDArray[np.float32]:
        arrays = self.packed.arrays
        if "word_rest" not in arrays:
            return np.asarray(arrays["words"], np.float32)
        return joined(arrays["words"], arrays["word_rest"], arrays["word_scale"])


def _plain(weights: NDArray[Any]) -> NDArray[Any]:
    """Return weights `(columns, depth)` of panels; see `kernels.dot.pack` and `pack_floats`."""
    panels = weights.shape[0]
    if weights.ndim == 4:
        return weights.transpose(0, 2, 1, 3).reshape(panels * weights.shape[2], -1)
    return weights.transpose(0, 2, 1).reshape(panels * weights.shape[2], -1)
