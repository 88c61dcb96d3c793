"""The quantizer: the one module of ours that stands at every site."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from qdqbert.spec import Site

Action = Callable[[Tensor], Tensor]
"""What a quantizer does to a tensor: observe it, fake-quantize it, mark it in a graph."""


class TensorQuantizer(nn.Module):
    """Stands at one site of a model, and does nothing until it is given an action.

    Actions are set by the context managers of `qdqbert.insert.sited`, which put back what was
    there before, so that no run can leave a model half switched.

    Attributes:
        site: Where it stands.
        action: Called with the tensor, any shape; returns a tensor of the same shape. `None`
            passes the tensor through.
    """

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.site = site
        self.action: Action | None = None

    def forward(self, x: Tensor) -> Tensor:
        """The tensor as the action leaves it. Shape of `x`."""
        return x if self.action is None else self.action(x)

    def extra_repr(self) -> str:
        """The site's name, for `print(model)`."""
        return self.site.name


def mark(x: Tensor, name: str) -> Tensor:
    """Passes `x` on; in an exported graph, a `qdqbert::Site` node stands there and tells the name.

    Only for use under `torch.onnx.export(dynamo=True)`.
    """
    marked = torch.onnx.ops.symbolic(
        "qdqbert::Site", (x,), {"site": name}, dtype=x.dtype, shape=x.shape, version=1
    )
    assert isinstance(marked, Tensor)
    return marked
