"""Read parts of a model from the tensors of a checkpoint."""

from __future__ import annotations

import dataclasses

import numpy as np

from qdqbert.common.errors import CheckpointError
from qdqbert.encoders.config import Config
from qdqbert.encoders.model import Floats, Later, Linear, Norm, Table
from qdqbert.encoders.weights import Weights


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reader:
    """Tensors below a path of a checkpoint, and its config.

    Methods raise `CheckpointError` for a tensor that is missing, or has another shape.

    Attributes:
        weights: All tensors.
        path: Path of the module that names are relative to, with a dot at its end; empty for the
            root.
        module: The same path in a model of transformers for the task, whose encoder may have a
            prefix that the checkpoint lacks, or none.
    """

    weights: Weights
    config: Config
    path: str = ""
    module: str = ""

    def at(self, path: str) -> Reader:
        """Return a reader of a module below this one."""
        return dataclasses.replace(self, path=f"{self.path}{path}.", module=f"{self.module}{path}.")

    def has(self, name: str) -> bool:
        """Return whether there is a tensor."""
        return f"{self.path}{name}" in self.weights

    def tensor(self, name: str, shape: tuple[int | None, ...] | None = None) -> Floats:
        """Return a tensor in float32.

        Args:
            name: Its name below the path.
            shape: Its shape, with `None` for sizes that may be any; not checked by default.
        """
        return np.asarray(self.later(name, shape), np.float32)

    def later(self, name: str, shape: tuple[int | None, ...] | None = None) -> Later:
        """Return a tensor that is converted to float32 when it is read; see `tensor`."""
        found = self.weights.later(f"{self.path}{name}")
        if shape is not None and (
            len(shape) != len(found.shape)
            or any(want not in (None, have) for want, have in zip(shape, found.shape, strict=True))
        ):
            wanted = ", ".join("any" if each is None else str(each) for each in shape)
            raise CheckpointError(
                f"Tensor `{self.path}{name}` has shape {found.shape}, but {self.config.path} "
                f"describes ({wanted}). Use the config.json that belongs to the weights."
            )
        return found

    def linear(
        self,
        name: str,
        *,
        inputs: int | None = None,
        outputs: int | None = None,
        has_bias: bool = True,
    ) -> Linear:
        """Return a linear layer; its bias is zeros if it has none.

        Args:
            name: Path of the layer.
            inputs: Number of its inputs, if it is known.
            outputs: Number of its outputs, if it is known.
            has_bias: Whether the model has a bias. One that only the checkpoint has is left out.
        """
        weight = self.later(f"{name}.weight", (outputs, inputs))
        return Linear(
            weight=weight,
            bias=self._bias(name, len(weight), has_bias),
            module=f"{self.module}{name}",
        )

    def norm(self, name: str, *, size: int, epsilon: float, has_bias: bool = True) -> Norm:
        """Return a LayerNorm; its bias is zeros if it has none. `has_bias` is as in `linear`."""
        weight = self.tensor(f"{name}.weight", (size,))
        return Norm(weight=weight, bias=self._bias(name, size, has_bias), epsilon=epsilon)

    def table(self, name: str, *, rows: str, width: int) -> Table:
        """Return an embedding table `(rows, width)`.

        `rows` is the name of the config's field with their number.
        """
        found = self.later(f"{name}.weight", (None, width))
        if self.config.integer(rows, least=1) != len(found):
            raise self.config.refuse(
                rows,
                f"`{self.path}{name}.weight` has {len(found)} rows. Use the config.json that "
                "belongs to the weights.",
            )
        return Table(rows=found, module=f"{self.module}{name}")

    def zeros(self, size: int) -> Floats:
        """Return the bias of a layer without one."""
        return np.zeros(size, np.float32)

    def _bias(self, name: str, size: int, has_bias: bool) -> Floats:
        is_there = has_bias and self.has(f"{name}.bias")
        return self.tensor(f"{name}.bias", (size,)) if is_there else self.zeros(size)
