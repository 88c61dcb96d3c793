"""The arrays of a packed model as tensors of a GPU, in the plain order of rows and channels."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import triton
from numpy.typing import NDArray

from qdqbert.common.errors import GraphError
from qdqbert.common.input_names import POOLED
from qdqbert.encoders.shared_table import joined
from qdqbert.engines.native.checks import check_packed
from qdqbert.engines.native.features import Features
from qdqbert.engines.native.memory import padded
from qdqbert.engines.native.schema import NORMS
from qdqbert.engines.native.static import KIND
from qdqbert.engines.native.storage import Packed
from qdqbert.quantization.hadamard import Hadamard

# Side of the matrices that tensor cores multiply, at least.
_LEAST = 16
_COLUMNS = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spread:
    """The channels of a row as a matrix of groups, which a Hadamard matrix multiplies, if any.

    The fields are arguments of kernels.

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Linear:
    """A linear layer.

    Attributes:
        weights: `(columns, depth)`, int8, float16 or float32.
        bias: `(columns,)` float32.
        columns: Number of columns of the result, half of all if the layer has a gate.
        factors: `(columns,)` float32, scales of int8 weights; `None` for floats.
        multiplier: `(depth,)` float32, what inputs are multiplied by before they become codes;
            `None` for floats.
    """

    weights: torch.Tensor
    bias: torch.Tensor
    columns: int
    factors: torch.Tensor | None = None
    multiplier: torch.Tensor | None = None

    @property
    def is_gated(self) -> bool:
        """Whether the columns of a gate follow those of the result."""
        return len(self.weights) > self.columns


@dataclasses.dataclass(frozen=True, kw_only=True)
class Norm:
    """A LayerNorm or RMSNorm.

    Attributes:
        values: `(3, channels)` float32: weights, biases, and what is added to the variance.
        subtracts_mean: Whether it is a LayerNorm.
    """

    values: torch.Tensor
    subtracts_mean: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layer:
    """An encoder layer. Linear layers of queries, keys and values are one.

    Attributes:
        norms: Its norms by part; see `engines.native.schema.NORMS`.
        head_norms: `(2, 3, channels)`, the values of the norms of queries and of keys, if it has
            them: of all heads, or of each.
        position_bias: `(heads, 2 * limit - 1)`, and some more values; `None` without.
        window: As in `encoders.model.Attention`.
        rotation: `(limit, 2, head_size / 2)`, cosines and sines; `None` without.
    """

    projections: Linear
    output: Linear
    up: Linear
    down: Linear
    norms: Mapping[str, Norm]
    head_norms: torch.Tensor | None
    position_bias: torch.Tensor | None
    window: int | None
    rotation: torch.Tensor | None


def spread_of(width: int, matrix: Hadamard | None, device: torch.device) -> Spread:
    """Return how kernels read the channels of a row, with a Hadamard matrix or without."""
    # Without a matrix, parts of a row are groups, as long as they can be.
    group = matrix or Hadamard(block=min(width & -width, _COLUMNS))
    repeats = max((_LEAST if matrix else _COLUMNS) // group.order, 1)
    groups, whole = triton.next_power_of_2(triton.cdiv(width, group.order * repeats)), None
    if matrix is not None:
        groups = max(groups, _LEAST)
        # Of a single group, the members follow each other.
        one = matrix.spread(np.eye(matrix.order, dtype=np.float32))
        found = np.kron(np.eye(repeats, dtype=np.float32), one)
        whole = torch.from_numpy(found).to(device, torch.float16)
    return Spread(
        width=width,
        members=group.members,
        block=group.block,
        repeats=repeats,
        groups=groups,
        matrix=whole,
    )


class Model:
    """A packed model on a device.

    Attributes:
        device: The device.
        capability: Compute capability of the GPU, times 10.
        features: Its features.
        settings: Its settings.
        hidden: Number of channels of states, with padding.
        words: Table of words, `(vocabulary, channels)`, int8 or float32.
        word_scale: Scales of its channels; `None` for floats.
        positions: Table of positions; `None` without.
        types: Table of token types.
        embedding_norm: Norm of the embeddings; `None` without.
        projection: Linear layer that follows it; `None` without.
        layers: The encoder layers.
        final_norm: Norm of the last states; `None` without.
        width: Number of channels of all heads, with padding.
        spreads: How the channels of states, contexts and inner rows become codes, by name.
    """

    def __init__(self, packed: Packed, device: torch.device, capability: int) -> None:
        """Check a model, and copy its arrays to a device.

        Raises:
            CheckpointError: The file is damaged.
            GraphError: The kernels do not compute a part of the model.
        """
        self.features = check_supported(packed)
        self.device, self.capability = device, capability
        self.settings, self._arrays = packed.settings, packed.arrays
        settings, embeddings = self.settings, self.settings["embeddings"]
        self.hidden = padded(settings["hidden"])
        self.words, self.types = self._tensor("words"), self._tensor("token_types")
        self.word_scale = self._optional("word_scale")
        self.positions = self._tensor("positions") if embeddings["has_positions"] else None
        self.embedding_norm = self._norm_if("embedding_norm", embeddings["norm"])
        projection = embeddings["projection"]
        self.projection = self.float_linear("projection", projection) if projection else None
        rotations = [self._tensor(f"rotations.{n}") for n in range(settings["rotations"])]
        self.layers = [self._layer(each, rotations) for each in range(len(settings["layers"]))]
        self.final_norm = self._norm_if("final_norm", settings["final_norm"])
        self.width = len(self.layers[0].projections.bias) // 3
        channels = {
            "states": (settings["hidden"], self.features.spread_states),
            "contexts": (settings["heads"] * settings["head_size"], None),
            "inner": (settings["inner"], self.features.spread_inner),
        }
        self.spreads = {name: spread_of(*each, device) for name, each in channels.items()}

    def norm(self, name: str, settings: Mapping[str, Any]) -> Norm:
        """Return a norm."""
        weight, bias = (self._arrays[f"{name}.{part}"] for part in ("weight", "bias"))
        values = np.stack([weight, bias, np.full_like(weight, settings["epsilon"])])
        return Norm(values=self._copied(values), subtracts_mean=settings["subtracts_mean"])

    def float_linear(self, name: str, settings: Mapping[str, Any]) -> Linear:
        """Return a linear layer of a head or of the embeddings, in float32."""
        columns, arrays = settings["width"], self._arrays
        if not settings["tied"]:
            weights = _plain(arrays[f"{name}.weights"])
        elif "word_rest" in arrays:
            weights = joined(arrays["words"], arrays["word_rest"], arrays["word_scale"])
        else:
            weights = arrays["words"]
        return Linear(
            weights=self._copied(weights[:columns]),
            bias=self._tensor(f"{name}.bias"),
            columns=columns,
        )

    def _tensor(self, name: str) -> torch.Tensor:
        return self._copied(self._arrays[name])

    def _optional(self, name: str) -> torch.Tensor | None:
        return self._tensor(name) if name in self._arrays else None

    def _copied(self, array: NDArray[Any]) -> torch.Tensor:
        # Mapped arrays cannot be written, of which torch warns.
        return torch.from_numpy(np.array(array, order="C")).to(self.device)

    def _norm_if(self, name: str, settings: Mapping[str, Any] | None) -> Norm | None:
        return None if settings is None else self.norm(name, settings)

    def _layer(self, index: int, rotations: list[torch.Tensor]) -> Layer:
        name, settings = f"layers.{index}", self.settings["layers"][index]
        norms = {
            part: self.norm(f"{name}.{part}", settings[part])
            for part in NORMS
            if settings.get(part) is not None
        }
        rotation = settings["rotation"]
        return Layer(
            projections=self._linear(*(f"{name}.{part}" for part in ("query", "key", "value"))),
            output=self._linear(f"{name}.output"),
            up=self._linear(f"{name}.up", gated=self.features.gated),
            down=self._linear(f"{name}.down"),
            norms=norms,
            head_norms=self._of_heads(norms),
            position_bias=self._optional(f"{name}.position_bias"),
            window=settings["window"],
            rotation=None if rotation is None else rotations[rotation],
        )

    def _linear(self, *names: str, gated: bool = False) -> Linear:
        """Return linear layers with one input as one, in int8 or float16."""
        arrays = self._arrays

        def joined_parts(part: str) -> torch.Tensor:
            return self._copied(np.concatenate([arrays[f"{each}.{part}"] for each in names]))

        plain = np.concatenate([_plain(arrays[f"{each}.weights"]) for each in names])
        weights, is_float = self._copied(plain), self.features.floats
        return Linear(
            weights=weights.half() if is_float else weights,
            bias=joined_parts("bias"),
            columns=len(weights) // (2 if gated else 1),
            factors=None if is_float else joined_parts("factor"),
            multiplier=None if is_float else self._tensor(f"{names[0]}.multiplier"),
        )

    def _of_heads(self, norms: Mapping[str, Norm]) -> torch.Tensor | None:
        if not self.features.normalizes_heads:
            return None
        heads = 1 if self.features.norms_each_head else self.settings["heads"]
        channels = heads * self.settings["head_size"]
        both = [norms[part].values[:, :channels] for part in ("query_norm", "key_norm")]
        return torch.stack(both).contiguous()


def _plain(weights: NDArray[Any]) -> NDArray[Any]:
    """Return weights `(columns, depth)` of panels; see `kernels.dot.pack` and `pack_floats`."""
    if weights.ndim == 3:
        weights = weights[..., None]
    panels, _, columns, _ = weights.shape
    return weights.transpose(0, 2, 1, 3).reshape(panels * columns, -1)


def check_supported(packed: Packed) -> Features:
    """Refuse a packed model with parts that the kernels do not compute; return its features.

    Raises:
        CheckpointError: The file is damaged.
        GraphError: It has such a part. The message names it.
    """
    if KIND in packed.settings:
        raise GraphError("The kernels for GPUs do not compute static embeddings.")
    features, settings = check_packed(packed), packed.settings
    parts = {
        "relative positions (DeBERTa)": settings.get("relative") is not None,
        "a convolution of the embeddings": settings.get("convolution") is not None,
        "operations of an .onnx file that are not known": settings.get("tail") is not None,
        "fake quantization of attention or residual adds": (
            features.rounds_attention or features.rounds_adds
        ),
        "poolings that leave out prompts": POOLED in settings["input_names"],
        "stored ranges of activations (target 'native')": not (features.floats or features.dynamic),
        "experts, of which each token takes some": features.has_experts,
        "other codes for queries than for keys or values": not all(
            layer["shares_codes"] for layer in settings["layers"]
        ),
    }
    if found := [words for words, is_there in parts.items() if is_there]:
        raise GraphError(f"The kernels for GPUs do not compute {' and '.join(found)}.")
    return features
