"""Embeddings of texts, with the interface of sentence-transformers' `SentenceTransformer`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from qdqbert.engines.runner import Outputs
from qdqbert.errors import UserInputError
from qdqbert.inference.batches import Feature
from qdqbert.inference.model import Loaded, Model, TextEncoder, rows_of
from qdqbert.inference.scheduler import Encoded, Job
from qdqbert.tasks.feature_extraction import sentence_vectors

Embedding = NDArray[np.float32]

# Prompts, the default prompt, and the number of dimensions to keep.
_SETTINGS = "config_sentence_transformers.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Prompted(TextEncoder):
    """Puts a prompt before each text.

    Attributes:
        prompt: The prompt; empty for none.
    """

    prompt: str

    def encode(self, items: Sequence[Any]) -> list[Encoded]:
        """Return the model inputs of each text."""
        return super().encode([self.prompt + item for item in items] if self.prompt else items)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Embed(_Prompted):
    """The job of `encode`; see `Job`.

    Attributes:
        normalize: Whether vectors are scaled to length 1.
        dimensions: Number of leading values to keep; `None` for all.
    """

    normalize: bool
    dimensions: int | None

    def split(
        self, outputs: Outputs, inputs: Mapping[str, NDArray[Any]], features: Sequence[Feature]
    ) -> Sequence[Embedding]:
        del features
        vectors = sentence_vectors(outputs, inputs["attention_mask"])[:, : self.dimensions]
        if self.normalize:
            norms = np.linalg.norm(vectors, axis=1, keepdims=True)
            # As torch.nn.functional.normalize, which returns zeros for zeros.
            vectors = vectors / np.maximum(norms, 1e-12)
        return list(vectors)

    def answer(self, item: str, encoded: Encoded, values: Sequence[Embedding]) -> Embedding:
        del item, encoded
        return values[0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _States(_Prompted):
    """The job of `output_value="token_embeddings"` and of calls; see `Job`."""

    def split(
        self, outputs: Outputs, inputs: Mapping[str, NDArray[Any]], features: Sequence[Feature]
    ) -> Sequence[Embedding]:
        del inputs
        return rows_of(features, outputs["last_hidden_state"])

    def answer(self, item: str, encoded: Encoded, values: Sequence[Embedding]) -> Embedding:
        del item, encoded
        return values[0]


class Embedder(Model):
    """Computes embeddings of texts."""

    def __init__(self, loaded: Loaded) -> None:
        """Read the prompts of the folder."""
        super().__init__(loaded)
        path = loaded.artifact.directory / _SETTINGS
        settings = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        self._default_prompt_name: str | None = settings.get("default_prompt_name")
        self._truncate_dim: int | None = settings.get("truncate_dim")
        self.prompts: dict[str, str] = dict(settings.get("prompts") or {})

    def encode(
        self,
        sentences: str | Sequence[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        output_value: Literal["sentence_embedding", "token_embeddings"] = "sentence_embedding",
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
    ) -> Any:
        """Compute embeddings, as `SentenceTransformer.encode` of sentence-transformers does.

        A model without sentence-transformers' files returns the mean of the token states.

        Args:
            sentences: A text, or a list of texts.
            prompt_name: Name of the prompt, a key of `prompts`, that is put before each text. The
                folder's default prompt, if it has one, is used by default.
            prompt: Text that is put before each text, instead of a named prompt.
            output_value: What is returned for each text: its embedding, or the states of all of
                its tokens.
            normalize_embeddings: Whether embeddings are scaled to length 1. Those of models that
                end with normalization are, in any case.
            truncate_dim: Number of leading dimensions to keep, for models trained for it. The
                folder's setting by default.

        Returns:
            float32, `(dimensions,)` for a text and `(texts, dimensions)` for a list. For
            "token_embeddings" `(tokens, hidden)`, or a list of such arrays.

        Raises:
            UserInputError: `prompt_name` is unknown, or `sentences` is not a text or a list of
                texts, or the graph has no token states.
        """
        is_one = isinstance(sentences, str)
        job = self.job(
            prompt_name=prompt_name,
            prompt=prompt,
            output_value=output_value,
            normalize_embeddings=normalize_embeddings,
            truncate_dim=truncate_dim,
        )
        vectors = self._all(job, check_texts(sentences, "sentences"))
        if is_one:
            return vectors[0]
        if output_value == "token_embeddings":
            return vectors
        return np.stack(vectors) if vectors else np.zeros((0, 0), np.float32)

    def encode_query(self, sentences: str | Sequence[str], **options: Any) -> Any:
        """Compute embeddings of queries: `encode` with the prompt "query", if there is one."""
        return self.encode(sentences, **self._with_prompt("query", options))

    def encode_document(self, sentences: str | Sequence[str], **options: Any) -> Any:
        """Compute embeddings of documents: `encode` with the document prompt, if there is one.

        It is the first of the prompts "document", "passage" and "corpus" that the folder has.
        """
        names = ("document", "passage", "corpus")
        name = next((each for each in names if each in self.prompts), "document")
        return self.encode(sentences, **self._with_prompt(name, options))

    def __call__(self, texts: str | Sequence[str]) -> list[Any]:
        """Return the states of all tokens, as transformers' pipeline "feature-extraction" does.

        Args:
            texts: A text, or a list of texts.

        Returns:
            For each text a float32 array `(1, tokens, hidden)`. A list of lists of arrays for a
            list of texts.

        Raises:
            UserInputError: The graph has no token states.
        """
        job = self.job(output_value="token_embeddings", prompt="")
        return [each[None] for each in self._all(job, check_texts(texts, "texts"))]

    def job(
        self,
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        output_value: str = "sentence_embedding",
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
    ) -> Job[str, Embedding]:
        """Return the job of `encode` with these options, for `stream`."""
        loaded = self._loaded
        shared: dict[str, Any] = {
            "tokenizer": loaded.tokenizer,
            "input_names": loaded.artifact.input_names,
            "prompt": self._prompt(prompt_name, prompt),
        }
        if output_value == "sentence_embedding":
            return _Embed(
                **shared,
                normalize=normalize_embeddings,
                dimensions=truncate_dim or self._truncate_dim,
            )
        if output_value != "token_embeddings":
            raise UserInputError(
                f"`output_value={output_value!r}` is unknown. Known: sentence_embedding, "
                "token_embeddings.",
                argument="output_value",
            )
        if "last_hidden_state" not in loaded.runners.single.output_names:
            raise UserInputError(
                "`output_value='token_embeddings'`: the graph returns sentence embeddings only.",
                argument="output_value",
            )
        return _States(**shared)

    def _prompt(self, name: str | None, text: str | None) -> str:
        if text is not None:
            return text
        name = name or self._default_prompt_name
        if name is None:
            return ""
        if name not in self.prompts:
            known = ", ".join(repr(each) for each in self.prompts) or "none"
            raise UserInputError(
                f"`prompt_name={name!r}` is unknown; the model has: {known}.",
                argument="prompt_name",
            )
        return self.prompts[name]

    def _with_prompt(self, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
        if options.get("prompt") is not None or options.get("prompt_name") is not None:
            return dict(options)
        # No fallback to the default prompt, as in sentence-transformers.
        return {**options, "prompt": self.prompts.get(name, "")}


def check_texts(texts: Any, argument: str) -> list[str]:
    """Return a text as a list, and a list of texts as it is.

    Raises:
        UserInputError: `texts` is something else.
    """
    if isinstance(texts, str):
        return [texts]
    listed = list(texts)
    wrong = next((index for index, each in enumerate(listed) if not isinstance(each, str)), None)
    if wrong is not None:
        raise UserInputError(
            f"`{argument}` has to be a text or a list of texts; item {wrong} is "
            f"{type(listed[wrong]).__name__}.",
            argument=argument,
        )
    return listed
