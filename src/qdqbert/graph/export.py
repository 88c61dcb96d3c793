"""Export a model to a float ONNX graph in which every site is a node.

Each quantizer of the model becomes a `qdqbert::Site` node, whose attribute `site` is the site's
name. A model is exported once. Each target then replaces the nodes with Q/DQ pairs, as its recipe
specifies, or removes them (`graph/qdq.py`). Existing ONNX models get the same nodes, so that the
same code handles both.
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
from qdqbert.encoders.heads import POOLINGS
from qdqbert.insert.sited import SitedModel, marking
from qdqbert.insert.sited_encoder import pool as pool_states

OPSET = 21
"""Opset of exported graphs.

It has LayerNormalization (since 17), Q/DQ with scales of every float type (19), Gelu (20) and int4
(21).
"""

OUTPUTS = {
    "feature-extraction": ("last_hidden_state",),
    "question-answering": ("start_logits", "end_logits"),
}
"""Names of the model outputs that a task uses. Tasks that are not listed use `logits`."""

OF_TOKENS = ("feature-extraction", "token-classification", "fill-mask", "text-generation")
"""Tasks whose first output has shape `(batch, seq, n)`. In all other tasks it is `(batch, n)`."""

CHOICES = 4
"""Choices per example when a multiple-choice model is traced. The graph accepts any number."""

SENTENCE_EMBEDDING = "sentence_embedding"
"""Name of the pooled output of embedders."""

_EXPORTER_LOGGERS = (
    "torch.onnx._internal.exporter._registration",
    "onnxscript.optimizer._constant_folding",
)


class GraphBody(nn.Module):
    """Wraps a transformers model so that it returns a tuple of tensors, which can be exported.

    Attributes:
        model: The transformers model.
        head: Pooling of an embedder. The pooled vectors are then the last output.
        mask: Kind of attention mask that `model` is called with.
        output_names: Names of the tensors that `forward` returns, in order.
    """

    def __init__(
        self, model: nn.Module, *, task: str, head: SentenceHead | None, mask: MaskKind
    ) -> None:
        super().__init__()
        self.model = model
        self.head = head
        # transformers computes causal masks, and masks of inputs with choices, itself.
        self.mask = "plain" if task in ("text-generation", "multiple-choice") else mask
        outputs = OUTPUTS.get(task, ("logits",))
        self.output_names = (*outputs, *([SENTENCE_EMBEDDING] if head else []))

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Self:
        """Wrap the model of a checkpoint."""
        return cls(
            checkpoint.model,
            task=checkpoint.task,
            head=checkpoint.head,
            mask=checkpoint.family.mask,
        )

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Run the model.

        Args:
            input_ids: `(batch, seq)` or `(batch, choices, seq)`, int64.
            attention_mask: Same shape and dtype, 0 for [PAD].
            token_type_ids: Same shape and dtype, if the model takes them.

        Returns:
            One tensor for each of `output_names`.
        """
        segments = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        mask = additive_mask(attention_mask) if self.mask == "additive" else attention_mask
        outputs = self.model(input_ids=input_ids, attention_mask=mask, **segments)
        if self.head is None:
            return tuple(outputs[name] for name in self.output_names)
        main: Tensor = outputs[self.output_names[0]]
        return main, pool(main, attention_mask, self.head)


def choices_of(task: str) -> int | None:
    """Return the choices per feature of an example input, or `None` if a feature is one text."""
    return CHOICES if task == "multiple-choice" else None


def additive_mask(attention_mask: Tensor) -> Tensor:
    """Return the mask that is added to attention scores: 0 for text, lowest float32 for [PAD].

    transformers uses a mask of this shape as it is. Its own mask costs a dozen nodes and a
    `(batch, 1, seq, seq)` tensor.

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
    """Pool token states into one vector per text, as sentence-transformers does.

    Args:
        states: Token states `(batch, seq, hidden)`.
        attention_mask: `(batch, seq)`, 0 for [PAD].
        head: Kind of pooling, and whether vectors are normalized to length 1.

    Returns:
        `(batch, hidden)`.

    Source: sentence-transformers, `Pooling.forward` and `Normalize.forward`.
    """
    pooled = pool_states(states, attention_mask, POOLINGS[head.pooling])
    return functional.normalize(pooled, dim=-1) if head.normalize else pooled


def example_inputs(input_names: Sequence[str], task: str) -> dict[str, Tensor]:
    """Return inputs with which the exporter traces a model: two features, one with padding.

    Args:
        input_names: Names of the model's inputs.
        task: transformers' name of the task.

    Returns:
        int64 tensors by name, `(2, 8)`, or `(2, choices, 8)` for multiple choice.
    """
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


def trace_decoder(sited: SitedModel, checkpoint: Checkpoint) -> ir.Model:
    """Return the float graph of a decoder, whose model got quantizers, with a node at each site."""
    example = example_inputs(checkpoint.input_names, checkpoint.task)
    return export_sited(sited, GraphBody.of(checkpoint), example)


def export_sited(sited: SitedModel, body: GraphBody, example: Mapping[str, Tensor]) -> ir.Model:
    """Export a float graph with a node at every site. Batch, choices and sequence are dynamic.

    Args:
        sited: The model with quantizers.
        body: The same model, wrapped.
        example: Inputs by name, `(batch, seq)` or `(batch, choices, seq)`. Every dimension has to
            be at least 2, and some tokens have to be padding. The exporter would treat a dimension
            of 1, or a mask of ones, as a constant.
    """
    choices = ("choices",) if example["input_ids"].dim() == 3 else ()
    dims = [torch.export.Dim(name) for name in ("batch", *choices, "sequence")]
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
    # The exporter stores paths of this machine in the metadata of each node.
    cleared: ir.Model = common.ClearMetadataAndDocStringPass()(program.model).model
    return cleared


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Silence the exporter's messages about deprecations, torchvision and constant folding."""
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
    """Return the outputs of a `GraphBody` as arrays by name, like those of an engine."""
    return {name: output.cpu().numpy() for name, output in zip(names, outputs, strict=True)}
