"""Multi-vector embeddings: a vector for each token of a text, as ColBERT's. MaxSim compares them.

The model has the interface of sentence-transformers' `MultiVectorEncoder`. Data are pairs of texts
with a score, as of other embedders. All tokens of both texts count there.

Source: Khattab and Zaharia 2020, arXiv:2004.12832.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, Unpack, get_args, overload

import numpy as np
from numpy.typing import NDArray

from qdqbert.common.errors import CheckpointError, UserInputError
from qdqbert.common.keywords import suggest_keywords
from qdqbert.data.tokenizing.tokenizer import Tokenizer
from qdqbert.encoders.checkpoint.model_settings import Kind
from qdqbert.encoders.checkpoint.multi_vector import MultiVectorHead, TokenRules, read_token_rules
from qdqbert.encoders.task_kinds import TASK_KINDS
from qdqbert.runtime.batches import Feature, Results
from qdqbert.runtime.inputs import check_choice, listed_texts
from qdqbert.runtime.model import Loaded
from qdqbert.runtime.rows import RowFormat, always
from qdqbert.runtime.scheduler import EncodedItem
from qdqbert.runtime.tensors import converted
from qdqbert.tasks.feature_extraction import FEATURE_EXTRACTION, by_jobs_in_turn
from qdqbert.tasks.logits import pair_answers
from qdqbert.tasks.max_sim import VECTORS_COLUMN, Vectors, max_sim
from qdqbert.tasks.prompts import (
    DOCUMENT_PROMPTS,
    QUERY_PROMPTS,
    CallOptions,
    Prompted,
    PromptedModel,
    Texts,
    check_as_many,
)
from qdqbert.tasks.ranked import check_ranking, ranked
from qdqbert.tasks.scores import correlations, score_of
from qdqbert.tasks.task import Outcome, Score, Tokenization

_NAME = "multi-vector-embedding"
(_OUTPUT,) = TASK_KINDS[_NAME].outputs

Many = Sequence[Vectors] | NDArray[Any]
"""Vectors of texts, each `(tokens, dimensions)`, or of a single text."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Padding:
    """Tokens that are put after a query.

    Attributes:
        length: Number of tokens that it is filled up to.
        values: Value of each input for these tokens, by name.
        is_scored: Whether these tokens have vectors.
    """

    length: int
    values: Mapping[str, int]
    is_scored: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Encode(Prompted):
    """The job of `encode`; see `Job`. `tokenizer` cuts texts to the length of their kind.

    Attributes:
        expansion: Tokens that are put after texts; `None` for none.
        skipped: Ids of tokens without vectors, `(ids,)`.
        kept: Ids of the only tokens that have vectors, `(ids,)`; `None` for all.
    """

    expansion: _Padding | None
    skipped: NDArray[np.int64]
    kept: NDArray[np.int64] | None

    def encode(self, items: Sequence[Any]) -> list[EncodedItem]:
        """Return the model inputs of each text, and which tokens have vectors as its place."""
        return [self._expanded(each) for each in super().encode(items)]

    def split(self, results: Results) -> Sequence[Vectors]:
        rows = results.rows(_OUTPUT)
        return [each[place] for each, place in zip(rows, results.places, strict=True)]

    def _expanded(self, encoded: EncodedItem) -> EncodedItem:
        (feature,) = encoded.features
        count = len(feature["input_ids"])
        if self.expansion is not None:
            feature = _filled(feature, self.expansion)
        ids = feature["input_ids"]
        has_vector = ~np.isin(ids, self.skipped)
        if self.kept is not None:
            has_vector &= np.isin(ids, self.kept)
        if self.expansion is not None and not self.expansion.is_scored:
            has_vector[count:] = False
        return encoded._replace(features=(feature,), places=(has_vector,))


def _filled(feature: Feature, padding: _Padding) -> Feature:
    """Return a feature with tokens at its end, up to their length."""
    missing = max(padding.length - len(feature["input_ids"]), 0)
    return {
        name: np.append(values, np.full(missing, padding.values[name], values.dtype))
        for name, values in feature.items()
    }


class EncodeOptions(CallOptions, total=False):
    """Options of `MultiVectorEmbedder.encode` that do not change the type of its result."""

    task: Kind | None


class MultiVectorEmbedder(PromptedModel[Any]):
    """Computes a vector for each token of texts, and compares texts by them."""

    has_kinds = True
    similarities = MappingProxyType(
        {"maxsim": max_sim, "meanmaxsim": functools.partial(max_sim, is_mean=True)}
    )

    rows = RowFormat(
        name="a multi-vector embedder",
        options=("prompt", "prompt_name"),
        columns=always(VECTORS_COLUMN),
        job=lambda model, options: model.job_of_prompt(options.prompt_name, options.prompt),
        values=lambda answer, _: (answer,),
    )

    def __init__(self, loaded: Loaded) -> None:
        super().__init__(loaded)
        self._rules = read_token_rules(loaded.artifact.directory)
        self._skipped = _skipped_ids(self._rules, loaded.tokenizer)

    @property
    def similarity_fn_name(self) -> str:
        """Name of the function that `similarity` computes.

        It is "maxsim" if the folder names another one, as in sentence-transformers: "MaxSim", of
        PyLate, or one that compares single vectors.
        """
        found = super().similarity_fn_name
        return found if found in self.similarities else "maxsim"

    @overload
    def encode(  # type: ignore[overload-overlap]  # a text is a sequence of texts
        self,
        inputs: str,
        *,
        convert_to_numpy: Literal[True] = True,
        **options: Unpack[EncodeOptions],
    ) -> Vectors: ...

    @overload
    def encode(
        self,
        inputs: Sequence[str],
        *,
        convert_to_numpy: Literal[True] = True,
        **options: Unpack[EncodeOptions],
    ) -> list[Vectors]: ...

    @overload
    def encode(
        self, inputs: Texts, *, convert_to_numpy: bool, **options: Unpack[EncodeOptions]
    ) -> Any: ...

    @suggest_keywords
    def encode(
        self,
        inputs: Texts,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        *,
        task: Kind | None = None,
        convert_to_numpy: bool = True,
        device: str | None = None,
    ) -> Any:
        """Compute vectors of tokens, as `MultiVectorEncoder.encode` of sentence-transformers does.

        Use `encode_query` and `encode_document`, which choose the prompt and the `task`.

        Args:
            inputs: A text, or a list of texts.
            prompt_name: Name of the prompt, a key of `prompts`, that is put before each text. The
                folder's default prompt, if it has one, is used by default.
            prompt: Text that is put before each text, instead of a named prompt.
            batch_size: Has no effect. It is there for code that passes it to sentence-transformers.
            show_progress_bar: Whether to show a bar on stderr.
            task: Whether texts are queries or documents, which have lengths of their own. Queries
                are expanded, if the model does that. Documents, and texts of which a call does not
                say what they are, have no vectors for tokens that the model skips.
            convert_to_numpy: Whether results are arrays, instead of tensors of torch.
            device: Has no effect, and can be "cpu" only.

        Returns:
            float32 `(tokens, dimensions)` for a text, and a list of these for a list.

        Raises:
            UserInputError: `prompt_name` or `task` is unknown, or `inputs` is not a text or a
                list of texts.

        Example:
            >>> queries = model.encode_query(["how to fix a leaking kitchen tap"])
            >>> documents = model.encode_document(["Repair of taps", "A fine film"])
            >>> model.similarity(queries, documents)
            array([[26.4, 14.1]], dtype=float32)
        """
        job = self.job(prompt_name=prompt_name, prompt=prompt, task=task)
        texts = listed_texts(inputs, "inputs")
        vectors = self._call(
            job,
            texts,
            batch_size=batch_size,
            show_progress_bar=show_progress_bar,
            device=device,
            max_length=job.tokenizer.max_length,
        )
        is_one = isinstance(inputs, str)
        return converted(
            vectors[0] if is_one else vectors,
            convert_to_numpy=convert_to_numpy,
            convert_to_tensor=False,
            is_one=is_one,
        )

    def similarity(self, queries: Many, documents: Many) -> NDArray[np.float32]:
        """Compare all queries with all documents, as `MultiVectorEncoder.similarity` does.

        Args:
            queries: Vectors of queries, as `encode_query` returns them.
            documents: Vectors of documents, as `encode_document` returns them.

        Returns:
            float32 `(queries, documents)`: MaxSim, the sum over the vectors of a query of their
            largest products with vectors of a document; or their mean, if the folder's
            `similarity_fn_name` is "meanmaxsim". A document without vectors has -1e9.

        Raises:
            UserInputError: They are not vectors of tokens, or differ in their dimensions.
        """
        given = {"queries": queries, "documents": documents}
        sides = [_listed(each, name) for name, each in given.items()]
        widths = {each.shape[1] for side in sides for each in side}
        if len(widths) > 1:
            raise UserInputError(
                "`queries` and `documents` must have the same number of dimensions; got "
                f"{', '.join(map(str, sorted(widths)))}.",
                argument="documents",
            )
        return self._compare(*sides)

    def similarity_pairwise(self, queries: Many, documents: Many) -> NDArray[np.float32]:
        """Compare each query with the document in its place; see `similarity`.

        Args:
            queries: Vectors of queries.
            documents: Vectors of as many documents.

        Returns:
            float32 `(queries,)`.

        Raises:
            UserInputError: The numbers differ, or as in `similarity`.
        """
        one, other = _listed(queries, "queries"), _listed(documents, "documents")
        check_as_many(one, other, "documents")
        return np.array(
            [self.similarity([a], [b])[0, 0] for a, b in zip(one, other, strict=True)], np.float32
        )

    @suggest_keywords
    def rank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_k: int | None = None,
        return_documents: bool = False,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
    ) -> list[dict[str, Any]]:
        """Sort documents by how well they answer a query, as rerankers do.

        Args:
            query: The query.
            documents: The documents.
            top_k: Number of documents to return; `None` for all.
            return_documents: Whether the result contains the texts.
            batch_size: Has no effect; see `encode`.
            show_progress_bar: Whether to show a bar on stderr.

        Returns:
            For each document, best first, its index as `corpus_id`, its `score` and, if requested,
            its `text`.

        Raises:
            UserInputError: `query` is not a text, or `documents` is not a list of texts.
        """
        texts = check_ranking(query, documents, top_k)
        vectors = self.encode_document(
            texts, batch_size=batch_size, show_progress_bar=show_progress_bar
        )
        scores = self.similarity([self.encode_query(query)], vectors)[0]
        values = scores.tolist()
        return ranked(texts, scores, values, top_k=top_k, return_documents=return_documents)

    @suggest_keywords
    def job(
        self, *, prompt_name: str | None = None, prompt: str | None = None, task: Kind | None = None
    ) -> _Encode:
        """Return the job of `encode` with these options, for `stream`."""
        if task is not None:
            check_choice("task", task, get_args(Kind))
        return _job(
            self._rules,
            self._loaded.tokenizer,
            self._loaded.artifact.input_names,
            task,
            self._prompt(prompt_name, prompt),
            max_length=self.max_length,
            skipped=self._skipped,
        )

    def job_of_kind(self, task: Kind, *, prompt: str | None = None) -> _Encode:
        """Return the job of `encode_query` or `encode_document`, for `stream`.

        `prompt` is put before each text, instead of the prompt of this kind.
        """
        return self.job(task=task, **self._with_prompt(task, {"prompt": prompt}))

    def job_of_prompt(self, prompt_name: str | None, prompt: str | None = None) -> _Encode:
        """Return the job for texts, which are documents unless the prompt is for queries.

        "query", "document", "passage" and "corpus" are names of kinds, too, of which the model may
        have no prompt.

        Args:
            prompt_name: Name of the prompt, if one was named.
            prompt: Text that is put before each text, instead of a named prompt.
        """
        kind: Kind | None = None
        if prompt_name in (None, *DOCUMENT_PROMPTS):
            kind = "document"
        elif prompt_name in QUERY_PROMPTS:
            kind = "query"
        if kind is None or prompt_name in self.prompts:
            return self.job(task=kind, prompt_name=prompt_name, prompt=prompt)
        return self.job_of_kind(kind, prompt=prompt)


def _job(
    rules: TokenRules,
    tokenizer: Tokenizer,
    input_names: Sequence[str],
    task: Kind | None,
    prompt: str,
    *,
    max_length: int,
    skipped: NDArray[np.int64],
) -> _Encode:
    """Return the job for texts of a kind; of any kind, if a call does not say the `task`.

    `skipped` are ids of tokens without vectors, in the kinds that have such tokens.
    """
    length = min(rules.longest(task) or max_length, max_length)
    is_skipped = (task or "document") in rules.skipped_in
    return _Encode(
        tokenizer=tokenizer.cutting(length),
        input_names=input_names,
        prompt=prompt,
        expansion=_padding(rules, tokenizer, max_length) if task == "query" else None,
        skipped=skipped if is_skipped else np.zeros(0, np.int64),
        kept=None if rules.kept_ids is None or task == "query" else np.array(rules.kept_ids),
    )


def _padding(rules: TokenRules, tokenizer: Tokenizer, max_length: int) -> _Padding | None:
    expansion = rules.expansion
    token = rules.expansion_token(tokenizer.special_token)
    if expansion is None or token is None:
        return None
    index = tokenizer.backend.token_to_id(token)
    if index is None:
        raise CheckpointError(f"The tokenizer has no token {token!r}, which expands queries.")
    return _Padding(
        length=min(expansion.length, max_length),
        values={
            **tokenizer.padding,
            "input_ids": index,
            "attention_mask": int(expansion.attends),
        },
        is_scored=expansion.is_scored,
    )


def _calibration_jobs(head: MultiVectorHead, how: Tokenization) -> list[_Encode]:
    """Return the jobs for documents and for expanded queries."""
    settings = head.settings
    kinds: tuple[Kind, ...] = ("document", "query")
    return [
        _job(
            head.rules,
            how.tokenizer,
            how.input_names,
            kind,
            settings.prompts.get(kind, ""),
            max_length=how.max_length,
            skipped=_skipped_ids(head.rules, how.tokenizer),
        )
        for kind in kinds
    ]


def _skipped_ids(rules: TokenRules, tokenizer: Tokenizer) -> NDArray[np.int64]:
    """Return the ids of the tokens without vectors that the vocabulary has."""
    unknown = tokenizer.special_token("unk_token")
    ids = map(tokenizer.backend.token_to_id, rules.skipped_words)
    found = {
        index
        for word, index in zip(rules.skipped_words, ids, strict=True)
        if index is not None and (word == unknown or index != tokenizer.special_id("unk_token"))
    }
    return np.array(sorted(found), np.int64)


def _listed(given: Any, name: str) -> list[Vectors]:
    """Return the vectors of texts as a list of arrays, which has one array for a single text."""
    is_one = getattr(given, "ndim", None) == 2
    found = [np.asarray(each, np.float32) for each in ([given] if is_one else given)]
    if wrong := [each.shape for each in found if each.ndim != 2]:
        raise UserInputError(
            f"`{name}` must be arrays `(tokens, dimensions)`, got one of shape {wrong[0]}.",
            argument=name,
        )
    return found


def _pair_scores(outcome: Outcome) -> NDArray[np.float64]:
    """Return the mean MaxSim of both texts of each example."""
    count = len(outcome.examples)
    pairs = zip(outcome.predictions[:count], outcome.predictions[count:], strict=True)
    return np.array([max_sim([a], [b], is_mean=True)[0, 0] for a, b in pairs], np.float64)


def _scores(outcome: Outcome) -> list[Score]:
    """Return the correlations of mean MaxSim and score, x 100."""
    return correlations(_pair_scores(outcome), list(map(score_of, outcome.examples)))


MULTI_VECTOR_EMBEDDING = dataclasses.replace(
    FEATURE_EXTRACTION,
    name=_NAME,
    encode_calibration=by_jobs_in_turn(_calibration_jobs),
    predictions=lambda results: results.rows(_OUTPUT),
    scores=_scores,
    labels=None,
    answers=lambda outcome: pair_answers(outcome, "mean MaxSim", _pair_scores),
    model=MultiVectorEmbedder,
)
