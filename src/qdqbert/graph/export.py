"""Exports a model with sites to one float ONNX graph in which every site is a named node.

The graph holds a `qdqbert::Site` node with attribute `site` wherever a quantizer stood. It is
exported once; each target then turns sites into Q/DQ pairs as its recipe says, or drops them
(`graph/qdq.py`). A graph that came ready-made is given the same nodes, and is one with ours.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import onnx_ir as ir
import torch
from onnx_ir.passes import common
from torch import Tensor, nn
from torch.nn import functional

from qdqbert.checkpoint.families import MaskKind
from qdqbert.checkpoint.load import Checkpoint
from qdqbert.checkpoint.sentence import SentenceHead
from qdqbert.insert.sited import SitedModel, marking

OPSET = 21
"""LayerNormalization (17), Gelu (20), Q/DQ with any float type of scale (19) and int4 (21)."""

OUTPUTS = {
    "feature-extraction": ("last_hidden_state",),
    "question-answering": ("start_logits", "end_logits"),
}
"""transformers' names of what a task reads; `logits` of every other."""

OF_TOKENS = ("feature-extraction", "token-classification", "fill-mask", "text-generation")
"""Tasks whose first output is `(batch, seq, n)`; those of all others are `(batch, n)`."""

CHOICES = 4
"""Choices of the example that a multiple-choice graph is traced with; any number runs."""

SENTENCE_EMBEDDING = "sentence_embedding"
"""Name of the pooled output of sentence-transformers folders."""

_EXPORTER_LOGGERS = (
    "torch.onnx._internal.exporter._registration",
    "onnxscript.optimizer._constant_folding",
)


class GraphBody(nn.Module):
    """A transformers model that takes and returns plain tensors, pooled if it has a head.

    Attributes:
        output_names: Names of what `forward` returns, in order.
    """

    def __init__(
        self, model: nn.Module, *, task: str, head: SentenceHead | None, mask: MaskKind
    ) -> None:
        super().__init__()
        self.model = model
        self.head = head
        # A causal mask is for transformers to make, and so is one that choices are folded into.
        self.mask = "plain" if task in ("text-generation", "multiple-choice") else mask
        outputs = OUTPUTS.get(task, ("logits",))
        self.output_names = (*outputs, *([SENTENCE_EMBEDDING] if head else []))

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Self:
        """The body of a checkpoint's model."""
        return cls(
            checkpoint.model,
            task=checkpoint.task,
            head=checkpoint.head,
            mask=checkpoint.family.mask,
        )

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """All inputs `(batch, seq)`, or `(batch, choices, seq)`, int64. Returns `output_names`."""
        segments = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        mask = additive_mask(attention_mask) if self.mask == "additive" else attention_mask
        outputs = self.model(input_ids=input_ids, attention_mask=mask, **segments)
        if self.head is None:
            return tuple(outputs[name] for name in self.output_names)
        main: Tensor = outputs[self.output_names[0]]
        return main, pool(main, attention_mask, self.head)


def choices_of(task: str) -> int | None:
    """How many choices an input row of the task holds; `None` where it holds one text."""
    return CHOICES if task == "multiple-choice" else None


def additive_mask(attention_mask: Tensor) -> Tensor:
    """What is added to attention scores: 0 for text, the lowest float32 for [PAD].

    Given ready-made, transformers takes it as it is; its own mask, for any kind of attention,
    costs a dozen nodes and a `(batch, 1, seq, seq)` tensor.

    Args:
        attention_mask: `(batch, seq)`, 0 for [PAD].

    Returns:
        `(batch, 1, 1, seq)`, float32.
    """
    return torch.where(
        attention_mask[:, None, None, :] == 0,
        torch.tensor(torch.finfo(torch.float32).min),
        torch.tensor(0.0),
    )


def pool(states: Tensor, attention_mask: Tensor, head: SentenceHead) -> Tensor:
    """One vector a text, as sentence-transformers makes it.

    Args:
        states: Token states `(batch, seq, hidden)`.
        attention_mask: `(batch, seq)`, 0 for [PAD].
        head: Which pooling, and whether to to_canonical_form.

    Returns:
        `(batch, hidden)`.

    Source: sentence-transformers, `Pooling.forward` and `Normalize.forward`.
    """
    mask = attention_mask.unsqueeze(-1).to(states.dtype)
    count = mask.sum(dim=1).clamp_min(1e-9)
    match head.pooling:
        case "cls":
            pooled = states[:, 0]
        case "max":
            pooled = states.masked_fill(mask == 0, torch.finfo(states.dtype).min).amax(dim=1)
        case "mean":
            pooled = (states * mask).sum(dim=1) / count
        case "mean_sqrt_len_tokens":
            pooled = (states * mask).sum(dim=1) / count.sqrt()
    return functional.normalize(pooled, dim=-1) if head.normalize else pooled


def example_inputs(input_names: Sequence[str], task: str) -> dict[str, Tensor]:
    """Two rows of tokens, one with padding, for the exporter to trace; which tokens is all one."""
    known = {
        "input_ids": torch.full((2, 8), 5),
        "attention_mask": torch.ones((2, 8), dtype=torch.int64),
        "token_type_ids": torch.zeros((2, 8), dtype=torch.int64),
    }
    known["attention_mask"][1, -1] = 0
    choices = choices_of(task)
    if choices is not None:
        known = {name: x[:, None].repeat(1, choices, 1) for name, x in known.items()}
    return {name: known[name] for name in input_names}


def export_sited(sited: SitedModel, body: GraphBody, example: Mapping[str, Tensor]) -> ir.Model:
    """The float graph with a node at every site; batch and sequence are dynamic.

    Args:
        sited: The model with quantizers.
        body: The same model, wrapped.
        example: Inputs by name, each `(batch, seq)` or `(batch, choices, seq)` with all at least
            2, some of it padding: the exporter takes a dimension of 1, or a mask of ones, for a
            constant.
    """
    axes = {3: ("batch", "choices", "sequence")}.get(example["input_ids"].dim())
    dims = [torch.export.Dim(name) for name in axes or ("batch", "sequence")]
    with marking(sited), torch.no_grad(), _quiet_exporter():
        program = torch.onnx.export(
            body,
            (),
            kwargs=dict(example),
            dynamic_shapes={name: dict(enumerate(dims)) for name in example},
            input_names=list(example),
            output_names=list(body.output_names),
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    # The exporter notes where in the sources of this machine each node came from.
    cleared: ir.Model = common.ClearMetadataAndDocStringPass()(program.model).model
    return cleared


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Silences the exporter's notes on its own deprecations, torchvision and constant folding."""
    loggers = [logging.getLogger(name) for name in _EXPORTER_LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def to_numpy(outputs: tuple[Tensor, ...], names: Sequence[str]) -> dict[str, Any]:
    """Outputs of a `GraphBody` by name, as an engine would return them."""
    return {name: output.cpu().numpy() for name, output in zip(names, outputs, strict=True)}
