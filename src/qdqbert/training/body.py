"""A model of transformers as a function of its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from torch import Tensor, nn

from qdqbert.calibration.reference.body import pool as pool_states
from qdqbert.calibration.reference.body import run_head, run_steps, tensor_of
from qdqbert.encoders.checkpoint.cross_encoder import ScoreHead
from qdqbert.encoders.checkpoint.layout import PooledHead
from qdqbert.encoders.checkpoint.load import Checkpoint
from qdqbert.encoders.checkpoint.multi_vector import MultiVectorHead
from qdqbert.encoders.checkpoint.own_layers import OwnLayers
from qdqbert.encoders.checkpoint.sparse_encoder import SpladeHead
from qdqbert.encoders.checkpoint.text_heads import TextHead
from qdqbert.encoders.heads import EMBEDDING, pooled_words
from qdqbert.encoders.model import Head, Step
from qdqbert.encoders.task_kinds import TASK_KINDS

# The scores that a model of transformers gives the vocabulary for each token.
_SCORES = Head(poolings=("none",), steps=(), outputs=())


class GraphBody(nn.Module):
    """A model of transformers that returns a tuple of tensors, like a graph.

    Attributes:
        head: The modules of sentence-transformers. Vectors of texts are the last output.
        steps: Their steps besides pooling; see `steps` of the `head`.
        output_names: Names of the tensors that `forward` returns, in order.
    """

    def __init__(
        self, model: nn.Module, *, task: str, head: TextHead | None, steps: Sequence[Step]
    ) -> None:
        super().__init__()
        self.model = model
        self.head, self.steps = head, steps
        kind = TASK_KINDS[task]
        self.output_names = (
            *kind.outputs,
            *([EMBEDDING] if head and kind.vectors == "sentence" else []),
        )

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Self:
        """Wrap the model of a checkpoint."""
        return cls(
            checkpoint.model,
            task=checkpoint.task,
            head=checkpoint.head,
            steps=checkpoint.head_steps,
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
        outputs = self.model(input_ids=input_ids, attention_mask=attention_mask, **segments)
        if self.head is None or isinstance(self.head, OwnLayers):
            return tuple(outputs[name] for name in self.output_names)
        if isinstance(self.head, MultiVectorHead):
            return (run_steps(outputs["last_hidden_state"], self.steps, tensor_of),)
        if isinstance(self.head, SpladeHead):
            weigher = pooled_words(_SCORES, self.head.row_poolings, self.steps)[0]
            return (run_head(outputs["logits"], attention_mask, weigher, tensor_of),)
        states: Tensor = outputs["last_hidden_state"]
        pooled = pool(states, attention_mask, self.head, self.steps)
        return (pooled,) if isinstance(self.head, ScoreHead) else (states, pooled)


def pool(states: Tensor, attention_mask: Tensor, head: PooledHead, steps: Sequence[Step]) -> Tensor:
    """Make one vector per text of token states, as sentence-transformers does.

    Args:
        states: Token states `(batch, seq, hidden)`.
        attention_mask: `(batch, seq)`, 0 for [PAD].
        head: Kinds of pooling.
        steps: Steps after the pooling; see `steps` of the `head`.

    Returns:
        `(batch, channels)`, of as many channels as the last step has.

    Source: sentence-transformers, `Pooling.forward` and `Normalize.forward`.
    """
    pooled = pool_states(states, attention_mask, head.row_poolings)
    return run_steps(pooled, steps, tensor_of)
