"""Scores of pairs of texts, with the interface of sentence-transformers' `CrossEncoder`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qdqbert.errors import UserInputError, naming
from qdqbert.inference.classification import (
    Classify,
    Function,
    TextClassifier,
    apply,
    check_function,
    is_pair,
)
from qdqbert.inference.inputs import check_text, listed, listed_texts

# Names in config.json of what turns logits into scores, and what they stand for.
_ACTIVATIONS: dict[str, Function] = {"Sigmoid": "sigmoid", "Softmax": "softmax", "Identity": "none"}


class Reranker(TextClassifier):
    """Scores how well documents answer a query, or otherwise compares two texts."""

    def predict(self, sentences: Any, *, activation: Function | None = None) -> Any:
        """Score pairs, as `CrossEncoder.predict` of sentence-transformers does.

        Args:
            sentences: A pair of texts, or a list of pairs.
            activation: What turns logits into scores. The one that config.json names by default;
                else "sigmoid" for a model with one output, and "none" for others.

        Returns:
            float32 `(pairs,)` for a model with one output, `(pairs, classes)` for others. For one
            pair without the first dimension.

        Raises:
            UserInputError: `sentences` is not a pair or a list of pairs.
        """
        is_one = is_pair(sentences)
        wanted = "a pair of texts or a list of them"
        pairs = [sentences] if is_one else listed(sentences, "sentences", wanted)
        rows = self._all(self.scoring_job(activation=activation), pairs)
        scores = np.stack(rows) if rows else np.zeros((0, self.num_labels), np.float32)
        scores = scores[:, 0] if scores.shape[1] == 1 else scores
        return scores[0] if is_one else scores

    def rank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_k: int | None = None,
        return_documents: bool = False,
        activation: Function | None = None,
    ) -> list[dict[str, Any]]:
        """Sort documents by how well they answer a query, as `CrossEncoder.rank` does.

        Args:
            query: The query.
            documents: The documents.
            top_k: Number of documents to return; `None` for all.
            return_documents: Whether the result contains the texts.
            activation: What turns logits into scores; see `predict`.

        Returns:
            For each document, best first, its index as `corpus_id`, its `score` and, if
            requested, its `text`. Documents whose scores round to the same number are in the
            order of their logits.

        Raises:
            UserInputError: The model has several outputs, `query` is not a text, or `documents`
                is not a list of texts.

        Example:
            >>> documents = ["The music was good.", "The river is near the house."]
            >>> [each["corpus_id"] for each in model.rank("where is the river", documents)]
            [1, 0]
        """
        if self.num_labels != 1:
            raise UserInputError(
                f"`rank` needs a model with one output, and {str(self.directory)!r} has "
                f"{self.num_labels}. Use `predict`."
            )
        texts = listed_texts(documents, "documents", takes_one=False)
        with naming("query"):
            check_text(query)
        logits = self.predict([(query, each) for each in texts], activation="none")
        function = check_function(activation, "activation") or self.activation
        scores = apply(function, logits[:, None])[:, 0]
        order = np.argsort(-logits, kind="stable")[:top_k]
        ranked: list[dict[str, Any]] = [
            {"corpus_id": int(index), "score": scores[index]} for index in order
        ]
        if return_documents:
            for each in ranked:
                each["text"] = texts[each["corpus_id"]]
        return ranked

    def scoring_job(self, *, activation: Function | None = None) -> Classify:
        """Return the job of `predict` with these options, for `stream`.

        Its answers are scores `(classes,)`.
        """
        return Classify(
            tokenizer=self._loaded.tokenizer,
            input_names=self._loaded.artifact.input_names,
            function=check_function(activation, "activation") or self.activation,
        )

    @property
    def num_labels(self) -> int:
        """Number of scores of a pair."""
        return len(self._loaded.id2label)

    @property
    def activation(self) -> Function:
        """What turns logits into scores, unless a call says otherwise."""
        config = self._loaded.config
        named = (config.get("sentence_transformers") or {}).get("activation_fn") or config.get(
            "sbert_ce_default_activation_function"
        )
        default: Function = "sigmoid" if self.num_labels == 1 else "none"
        # The path of a class of torch: torch.nn.modules.linear.Identity.
        return _ACTIVATIONS.get(str(named).rpartition(".")[2], default) if named else default
