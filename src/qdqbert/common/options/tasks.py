"""Settings of tasks that several commands share."""

from __future__ import annotations

from qdqbert.common.choices import PoolingMode
from qdqbert.common.options.declared import Options, option


class TaskOptions(Options):
    """Tasks.

    By default, values that the model was trained or quantized with, if there are any.

    Attributes:
        pooling: How an embedder makes one vector of a text's tokens. Read from the checkpoint by
            default.
        adapter: Adapter of the checkpoint that is merged into its weights, by its name, such as
            "retrieval.query" of jina-embeddings-v3. By default none is.
        doc_stride: Tokens that neighboring windows of a long context share, in question answering;
            128 by default.
        n_best_size: Number of start and end positions that are combined, in question answering;
            20 by default.
        max_answer_length: Longest answer in tokens, in question answering; 30 by default.
        null_score_diff_threshold: Margin by which the score of "no answer" has to exceed the best
            answer's, in question answering with unanswerable questions; 0 by default.
        mlm_probability: Fraction of tokens that are masked, in fill-mask; 0.15 by default.
        hypothesis_template: Sentence about a label, whose place is `{}`, in zero-shot
            classification; "This example is {}." by default.
        entailment_label: Name of the class of entailment, in zero-shot classification. By default
            the one whose name begins so.
        decision_temperature: What logits of labels are divided by before they become the
            probabilities of decisions, in zero-shot classification. `quantize` fits it on labeled
            examples that it calibrates on; else it is 1.
    """

    pooling: PoolingMode | None = None
    adapter: str | None = None
    doc_stride: int | None = option(default=None, at_least=0)
    n_best_size: int | None = option(default=None, at_least=1)
    max_answer_length: int | None = option(default=None, at_least=1)
    null_score_diff_threshold: float | None = None
    mlm_probability: float | None = option(default=None, above=0, below=1)
    hypothesis_template: str | None = None
    entailment_label: str | None = None
    decision_temperature: float | None = option(default=None, above=0)
