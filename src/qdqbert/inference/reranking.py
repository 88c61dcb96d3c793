"""Scores of pairs of texts, with the interface of sentence-transformers' `CrossEncoder`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from qdqbert.checkpoint.cross_encoder import activation_of
from qdqbert.checkpoint.sentence import choose_prompt, read_model_settings
from qdqbert.errors import UserInputError, naming
from qdqbert.inference.classification import (
    Classify,
    Function,
    Text,
    TextClassifier,
    apply,
    check_function,
    is_pair,
    text_or_pair,
)
from qdqbert.progress import progress_of
from qdqbert.runtime.inputs import check_batch_size, check_text, listed, listed_texts
from qdqbert.runtime.model import Loaded
from qdqbert.runtime.rows import SCORE, RowFormat, always
from qdqbert.runtime.scheduler import Encoded


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Score(Classify):
    """The job of `predict`; see `Job`.

    Attributes:
        prompt: Text that is put before the first text of each pair; empty for none.
    """

    prompt: str

    def encode(self, items: Sequence[Any]) -> list[Encoded]:
        """Return the model inputs of each pair."""
        if not self.prompt:
            return super().encode(items)
        return super().encode([self._prompted(text_or_pair(item)) for item in items])

    def _prompted(self, item: Text) -> Text:
        if isinstance(item, str):
            return self.prompt + item
        return self.prompt + item[0], item[1]


class Reranker(TextClassifier):
    """Scores how well documents answer a query, or otherwise compares two texts."""

    rows = RowFormat(
        name="a reranker",
        pair="required",
        columns=always(SCORE),
        job=lambda model, _: model.scoring_job(),
        values=lambda answer, _: (float(answer[0]),),
    )

    def __init__(self, loaded: Loaded) -> None:
        """Read the prompts and the activation function of the folder."""
        super().__init__(loaded)
        settings = read_model_settings(loaded.artifact.directory)
        self._activation = activation_of(loaded.config, settings, self.num_labels)
        self._default_prompt_name = settings.default_prompt_name
        self.prompts: dict[str, str] = dict(settings.prompts)

    def predict(
        self,
        sentences: Any,
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        activation: Function | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
    ) -> Any:
        """Score pairs, as `CrossEncoder.predict` of sentence-transformers does.

        Args:
            sentences: A pair of texts, or a list of pairs.
            prompt_name: Name of the prompt, a key of `prompts`, that is put before the first text
                of each pair. The folder's default prompt, if it has one, is used by default.
            prompt: Text that is put before the first texts, instead of a named prompt.
            activation: What turns logits into scores. The one that the model's files name by
                default; else "sigmoid" for a model with one output, and "none" for others.
            batch_size: Has no effect. It is there for code that passes it to sentence-transformers.
            show_progress_bar: Whether to show a bar on stderr.

        Returns:
            float32 `(pairs,)` for a model with one output, `(pairs, classes)` for others. For one
            pair without the first dimension.

        Raises:
            UserInputError: `sentences` is not a pair or a list of pairs, or `prompt_name` is
                unknown.
        """
        check_batch_size(batch_size)
        is_one = is_pair(sentences)
        wanted = "a pair of texts or a list of them"
        pairs = [sentences] if is_one else listed(sentences, "sentences", wanted)
        job = self.scoring_job(prompt_name=prompt_name, prompt=prompt, activation=activation)
        rows = self._all(job, pairs, progress=progress_of(bool(show_progress_bar)))
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
        prompt_name: str | None = None,
        prompt: str | None = None,
        activation: Function | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
    ) -> list[dict[str, Any]]:
        """Sort documents by how well they answer a query, as `CrossEncoder.rank` does.

        Args:
            query: The query.
            documents: The documents.
            top_k: Number of documents to return; `None` for all.
            return_documents: Whether the result contains the texts.
            prompt_name: Name of the prompt that is put before the query; see `predict`.
            prompt: Text that is put before the query, instead of a named prompt.
            activation: What turns logits into scores; see `predict`.
            batch_size: Has no effect; see `predict`.
            show_progress_bar: Whether to show a bar on stderr.

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
                f"`rank` needs a model with one output, and {self.name!r} has "
                f"{self.num_labels}. Use `predict`."
            )
        texts = listed_texts(documents, "documents", takes_one=False)
        with naming("query"):
            check_text(query)
        pairs = [(query, each) for each in texts]
        logits = self.predict(
            pairs,
            prompt_name=prompt_name,
            prompt=prompt,
            activation="none",
            batch_size=batch_size,
            show_progress_bar=show_progress_bar,
        )
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

    def scoring_job(
        self,
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        activation: Function | None = None,
    ) -> Classify:
        """Return the job of `predict` with these options, for `stream`.

        Its answers are scores `(classes,)`.
        """
        return _Score(
            tokenizer=self._loaded.tokenizer,
            input_names=self._loaded.artifact.input_names,
            function=check_function(activation, "activation") or self.activation,
            prompt=choose_prompt(
                self.prompts, self._default_prompt_name, name=prompt_name, text=prompt
            ),
        )

    @property
    def num_labels(self) -> int:
        """Number of scores of a pair."""
        return len(self._loaded.id2label)

    @property
    def activation(self) -> Function:
        """The function from logits to scores, unless a call names another."""
        return self._activation
