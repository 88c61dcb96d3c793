"""The embedder that `load` returns, with the interface of `SentenceTransformer`."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import numpy as np

from qdqbert.common.choices import OUTPUT_DTYPES, VECTOR_KINDS, OutputDtype, VectorKind
from qdqbert.common.errors import UserInputError
from qdqbert.common.keywords import plain, suggest_keywords
from qdqbert.data.rows.columns import quoted
from qdqbert.data.rows.lines import counted
from qdqbert.data.tables.rows import Column
from qdqbert.encoders.checkpoint.token_heads import TOKEN_HEAD_FILES
from qdqbert.encoders.heads import EMBEDDING
from qdqbert.runtime.artifact import quantize_command
from qdqbert.runtime.inputs import check_choice, check_whole, listed_texts
from qdqbert.runtime.model import Loaded
from qdqbert.runtime.options import AnswerOptions
from qdqbert.runtime.rows import RowFormat
from qdqbert.runtime.scheduler import Job
from qdqbert.runtime.tensors import converted
from qdqbert.tasks.embedding_jobs import (
    Embed,
    Embedding,
    EmbedInChunks,
    SmallEmbedding,
    States,
    have_length_1,
    scaled,
)
from qdqbert.tasks.prompts import CallOptions, PromptedModel, Texts
from qdqbert.tasks.small_vectors import DTYPES, RANGED, VectorRanges, checked_limits, shared_limits
from qdqbert.tasks.text_vectors import (
    OUTPUTS,
    EmbedByKinds,
    by_name,
    columns_of,
    kinds_asked_for,
    unweighed_ids,
)

if TYPE_CHECKING:
    from torch import Tensor

# Values of `output_value`.
_OF_TEXTS, _OF_TOKENS = "sentence_embedding", "token_embeddings"
# More dimensions than embeddings have.
_MOST = 2**31


def _embed(model: Embedder, options: AnswerOptions) -> Job[Any, Any]:
    model._check_width(options.truncate_dim)
    return model.job(
        prompt_name=options.prompt_name,
        prompt=options.prompt,
        normalize_embeddings=options.normalize,
        truncate_dim=options.truncate_dim,
        chunk_overlap=options.chunk_overlap,
        output_dtype=options.output_dtype,
        vectors=options.vectors,
    )


def _columns(options: AnswerOptions) -> tuple[Column, ...]:
    dense = Column(name="embedding", kind="numbers", dtype=DTYPES[options.output_dtype])
    return columns_of(options.vectors or ("dense",), dense)


def _values(answer: Any, options: AnswerOptions) -> tuple[Any, ...]:
    values: tuple[Any, ...] = answer.values if options.vectors else (answer,)
    return values


def _first_length(model: Embedder, options: AnswerOptions) -> int | None:
    if options.vectors and "dense" not in options.vectors:
        return None
    return model._length(options.truncate_dim, options.output_dtype)


class EncodeOptions(CallOptions, total=False):
    """Options of `Embedder.encode` that do not change the type of its result."""

    task: str | None
    normalize_embeddings: bool
    truncate_dim: int | None
    chunk_overlap: int | None
    output_dtype: OutputDtype | None
    precision: OutputDtype | None
    ranges: Any
    max_length: int | None


class Embedder(PromptedModel[SmallEmbedding]):
    """Computes embeddings of texts."""

    similarities = MappingProxyType(
        {
            "cosine": lambda a, b: scaled(a) @ scaled(b).T,
            "dot": lambda a, b: a @ b.T,
            "euclidean": lambda a, b: -np.linalg.norm(a[:, None] - b[None], axis=-1),
            "manhattan": lambda a, b: -np.abs(a[:, None] - b[None]).sum(axis=-1),
        }
    )
    rows = RowFormat(
        name="an embedder",
        options=(
            *("normalize", "truncate_dim", "prompt", "prompt_name", "chunk_overlap"),
            *("output_dtype", "vectors"),
        ),
        columns=_columns,
        length=_first_length,
        job=_embed,
        values=_values,
    )

    def __init__(self, loaded: Loaded) -> None:
        super().__init__(loaded)
        self._truncate_dim = self._settings.truncate_dim
        stored = loaded.artifact.embedding_ranges
        self._stored_ranges = None if stored is None else VectorRanges.of_json(stored)

    @property
    def facts(self) -> dict[str, Any]:
        """How a text gets one vector: `pooling`, `normalize` and `prompt`; see `Model.facts`.

        The pooling is one of sentence-transformers' names, several with commas between them, or
        "model" if the model itself makes the vector.
        """
        artifact = self._loaded.artifact
        head = artifact.checkpoint.get("sentence_head")
        if isinstance(head, Mapping):
            pooling = ", ".join(map(str, head.get("poolings") or ("model",)))
            normalize = bool(head.get("normalize"))
        else:
            # All families are read, which takes longer than to load a model from the cache.
            from qdqbert.encoders.families import FAMILIES

            family = FAMILIES.get(artifact.model_type or "")
            # Graphs of checkpoints without a known pooling return states. Existing graphs may pool.
            is_graph = EMBEDDING in artifact.output_names and "key" not in artifact.checkpoint
            is_own = is_graph or (family is not None and family.embedding is not None)
            pooling, normalize = "model" if is_own else "mean", False
        return {"pooling": pooling, "normalize": normalize, **super().facts}

    @overload
    def encode(
        self,
        inputs: Texts,
        *,
        output_value: Literal["sentence_embedding"] = "sentence_embedding",
        convert_to_numpy: Literal[True] = True,
        convert_to_tensor: Literal[False] = False,
        **options: Unpack[EncodeOptions],
    ) -> SmallEmbedding: ...

    @overload
    def encode(
        self,
        inputs: Texts,
        *,
        output_value: Literal["sentence_embedding"] = "sentence_embedding",
        convert_to_numpy: bool = True,
        convert_to_tensor: Literal[True],
        **options: Unpack[EncodeOptions],
    ) -> Tensor: ...

    @overload
    def encode(
        self,
        inputs: Texts,
        *,
        output_value: Literal["sentence_embedding", "token_embeddings"] = "sentence_embedding",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        return_dense: bool | None = None,
        return_sparse: bool | None = None,
        return_colbert_vecs: bool | None = None,
        **options: Unpack[EncodeOptions],
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
        output_value: Literal["sentence_embedding", "token_embeddings"] = "sentence_embedding",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        task: str | None = None,
        device: str | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        chunk_overlap: int | None = None,
        output_dtype: OutputDtype | None = None,
        precision: OutputDtype | None = None,
        ranges: Any = None,
        max_length: int | None = None,
        return_dense: bool | None = None,
        return_sparse: bool | None = None,
        return_colbert_vecs: bool | None = None,
    ) -> Any:
        """Compute embeddings, as `SentenceTransformer.encode` of sentence-transformers does.

        A model without sentence-transformers' files returns the mean of the token states. BGE-M3
        also gives words weights and tokens vectors, in one pass: pass `return_sparse` or
        `return_colbert_vecs`. The result is then that of FlagEmbedding's `M3Embedder.encode`.

        Args:
            inputs: A text, or a list of texts.
            prompt_name: Name of the prompt, a key of `prompts`, that is put before each text. The
                folder's default prompt, if it has one, is used by default. The name of an adapter
                also chooses the adapter.
            prompt: Text that is put before each text, instead of a named prompt.
            batch_size: Has no effect. It is there for code that passes it to sentence-transformers.
                Texts of similar length are put into batches by their tokens.
            show_progress_bar: Whether to show a bar on stderr.
            output_value: The result for each text: its embedding, or the states of all of its
                tokens.
            convert_to_numpy: Whether the result is an array. Otherwise it is a list of tensors of
                torch.
            convert_to_tensor: Whether the result is a tensor of torch, instead of an array.
            task: Adapter that the model is run with, such as "retrieval.query" of a float
                checkpoint of jina-embeddings-v3, and with its prompt unless another one is given.
                It is merged into the weights when it is first used, and needs as much memory as
                the model.
            device: Has no effect, and can be "cpu" only.
            normalize_embeddings: Whether embeddings are scaled to length 1. Models that
                end with normalization always scale them.
            truncate_dim: Number of leading dimensions to keep, for models trained for it. The
                folder's setting by default.
            chunk_overlap: If given, texts that are longer than `max_length` are embedded in chunks
                that share this number of tokens, 0 or more, instead of being cut. Each chunk has
                the prompt. The embedding of the text is the mean of its chunks' embeddings,
                weighted by their numbers of tokens, and scaled to length 1 if these are.
            output_dtype: Kind of the values, float32 by default. "int8" has a byte for each
                dimension: the value times a number, the same for all, rounded. "uint8" has the
                same codes plus 128. "binary" (int8) and "ubinary" (uint8) have a bit, which is 1
                for values above 0, eight bits to a byte. The values equal sentence-transformers'
                `quantize_embeddings` with the same ranges.
            precision: Name of `output_dtype` in sentence-transformers.
            ranges: Smallest and largest value of each dimension for "int8" and "uint8", `(2,
                dimensions)`, which are divided into 256 steps. By default `embedding_ranges`.
            max_length: Longest text in tokens, which may be less than the model's. Longer ones are
                cut.
            return_dense: Whether a result by name has the embedding: `dense_vecs`.
            return_sparse: Whether it has weights of words: `lexical_weights`, for each text a dict
                with the largest weight of each token id that is above 0. Ids are texts. Special
                tokens have no weight.
            return_colbert_vecs: Whether it has vectors of tokens: `colbert_vecs`, for each text
                float32 `(tokens - 1, dimensions)`, of all tokens but the first, of length 1.

        Returns:
            float32, `(dimensions,)` for a text and `(texts, dimensions)` for a list. For
            "token_embeddings" `(tokens, hidden)`, or a list of such arrays. With `output_dtype`
            int8 or uint8; bits take an eighth of the dimensions. If one of the last three arguments
            is given, a dict with the three names, `None` for what was not asked for. Embeddings
            that `truncate_dim` cuts are then scaled to length 1 again, as in FlagEmbedding.

        Raises:
            MissingExtraError: A tensor is asked for, and torch is not installed.
            UserInputError: `prompt_name` is unknown, or `inputs` is not a text or a list of
                texts, or the graph has no token states, or `chunk_overlap` is too large or used
                with token states. Or `output_dtype` is unknown, used with token states, or needs
                ranges that the folder does not have. Or the model makes no weights of words or
                vectors of tokens, or they are used with `output_value` or `chunk_overlap`.

        Example:
            >>> vectors = model.encode(["Where is the river?", "It is near the house."])
            >>> vectors.shape
            (2, 384)
        """
        if precision is not None and output_dtype not in (None, precision):
            raise UserInputError(
                f"`output_dtype={output_dtype!r}` and `precision={precision!r}` are two names of "
                "one option. Pass one of them.",
                argument="precision",
            )
        self._check_width(truncate_dim)
        is_one = isinstance(inputs, str)
        kinds = kinds_asked_for(return_dense, return_sparse, return_colbert_vecs)
        job = self.job(
            prompt_name=prompt_name,
            prompt=prompt,
            task=task,
            output_value=output_value,
            normalize_embeddings=normalize_embeddings,
            truncate_dim=truncate_dim,
            chunk_overlap=chunk_overlap,
            output_dtype=output_dtype or precision or "float32",
            ranges=ranges,
            max_length=max_length,
            keep_length=bool(kinds),
            vectors=kinds,
        )
        texts = listed_texts(inputs, "inputs")
        vectors: list[Any] = self._call(
            job,
            texts,
            batch_size=batch_size,
            show_progress_bar=show_progress_bar,
            device=device,
            max_length=max_length,
        )
        as_asked = functools.partial(
            converted,
            convert_to_numpy=convert_to_numpy,
            convert_to_tensor=convert_to_tensor,
            is_one=is_one,
        )
        if output_value == _OF_TOKENS:
            return as_asked(vectors[0] if is_one else vectors)
        # A list of no texts has as many dimensions.
        every = vectors or self._all(job, ["a"])
        if not kinds:
            return as_asked(vectors[0] if is_one else np.stack(every)[: len(vectors)])
        return by_name(every[: len(vectors)], every[0], as_asked, is_one=is_one)

    @suggest_keywords
    def embedding_ranges(
        self,
        *,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        per_dimension: bool = False,
    ) -> Embedding:
        """Return the ranges that `quantize` found on its calibration data, for these options.

        They decide what the codes of `output_dtype` "int8" and "uint8" mean. By default all
        dimensions share one range, so that codes of "int8" compare texts as the values do.

        Args:
            normalize_embeddings: Whether embeddings are scaled to length 1 after they are cut. The
                ranges are then divided by the mean length that the embeddings of the calibration
                data have before.
            truncate_dim: Number of leading dimensions to keep. The folder's setting by default.
            per_dimension: Whether to return a range for each dimension, as
                `quantize_embeddings` of sentence-transformers finds them. With these `ranges`,
                codes have smaller steps, and weigh the dimensions otherwise than the values do:
                restore the values before they are compared.

        Returns:
            float32, `(2, dimensions)`: the smallest and the largest value of each dimension; the
            same for all of them without `per_dimension`.

        Raises:
            UserInputError: The folder has no ranges.
        """
        self._check_width(truncate_dim)
        limits = self._ranges().limits(
            truncate_dim or self._truncate_dim, is_scaled=normalize_embeddings
        )
        return limits if per_dimension else shared_limits(limits)

    def _ranges(self) -> VectorRanges:
        if self._stored_ranges is None:
            made_from = self._loaded.artifact.checkpoint.get("name", self.name)
            raise UserInputError(
                "`output_dtype` 'int8' and 'uint8' need the range of the embeddings, which "
                f"{self.name!r} does not have. Quantize the float model, which finds them on the "
                f"`calibration_data` and stores them: {quantize_command(str(made_from))}. Or pass "
                "`ranges` to `encode`. 'binary' and 'ubinary' need none.",
                argument="output_dtype",
            )
        return self._stored_ranges

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Embedding:
        """Compare all pairs of embeddings, as `SentenceTransformer.similarity` does.

        Args:
            embeddings1: Embeddings `(texts, dimensions)`, or one of them, `(dimensions,)`.
            embeddings2: The same.

        Returns:
            float32, `(texts of embeddings1, texts of embeddings2)`: cosines, or what the folder's
            `similarity_fn_name` says: "dot", "euclidean" or "manhattan". The last two are distances
            with a minus sign.

        Raises:
            UserInputError: The shapes do not fit, or the folder's function is unknown.
        """
        a, b = (np.atleast_2d(np.asarray(each, np.float32)) for each in (embeddings1, embeddings2))
        if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1]:
            raise UserInputError(
                "`embeddings1` and `embeddings2` have to be (texts, dimensions) with the same "
                f"number of dimensions; got shapes {a.shape} and {b.shape}.",
                argument="embeddings2",
            )
        return self._compare(a, b)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Embedding:
        """Compare embeddings with those in the same places, as sentence-transformers does.

        Args:
            embeddings1: Embeddings `(texts, dimensions)`, or one of them, `(dimensions,)`.
            embeddings2: The same number of them.

        Returns:
            float32 `(texts,)`; see `similarity`.

        Raises:
            UserInputError: The shapes differ, or the folder's function is unknown.
        """
        a, b = (np.atleast_2d(np.asarray(each, np.float32)) for each in (embeddings1, embeddings2))
        if a.shape != b.shape:
            raise UserInputError(
                "`embeddings1` and `embeddings2` have to have the same shape; got "
                f"{a.shape} and {b.shape}.",
                argument="embeddings2",
            )
        rows = [self.similarity(one, other)[0] for one, other in zip(a, b, strict=True)]
        return np.concatenate([np.zeros(0, np.float32), *rows])

    @property
    def truncate_dim(self) -> int | None:
        """Number of leading dimensions to keep, the folder's at first; `None` for all."""
        return self._truncate_dim

    @truncate_dim.setter
    def truncate_dim(self, value: int | None) -> None:
        value = plain(value)
        if value != self._truncate_dim:
            self._check_width(value)
        self._truncate_dim = value

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
        job = self.job(output_value=_OF_TOKENS, prompt="")
        return [each[None] for each in self._all(job, listed_texts(texts, "texts"))]

    @suggest_keywords
    def job(
        self,
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        task: str | None = None,
        output_value: str = _OF_TEXTS,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        chunk_overlap: int | None = None,
        keep_length: bool = False,
        output_dtype: OutputDtype = "float32",
        ranges: Any = None,
        max_length: int | None = None,
        vectors: Collection[VectorKind] = (),
    ) -> Job[str, Any]:
        """Return the job of `encode` with these options, for `stream`.

        With `keep_length`, embeddings of length 1 are scaled to length 1 again after a cut to fewer
        dimensions, unlike in sentence-transformers. With `vectors`, it returns `TextVectors` of
        these kinds; with none, embeddings.
        """
        check_choice("output_value", output_value, (_OF_TEXTS, _OF_TOKENS))
        check_choice("output_dtype", output_dtype, OUTPUT_DTYPES)
        check_whole("truncate_dim", truncate_dim, at_least=1)
        check_whole("chunk_overlap", chunk_overlap, at_least=0)
        for each in vectors:
            check_choice("vectors", each, VECTOR_KINDS)
        adapter, prompt_name = self._chosen(task, prompt_name, prompt)
        prompt = self._prompt(prompt_name, prompt)
        tokenizer = self._loaded.tokenizer
        if max_length is not None:
            tokenizer = self._cutting(max_length, "max_length")
        shared: dict[str, Any] = {
            "tokenizer": tokenizer,
            "input_names": self._loaded.artifact.input_names,
            "prompt": prompt,
            "adapter": adapter,
        }
        outputs = self._with(adapter)._loaded.runners.single.output_names
        if output_value == _OF_TOKENS:
            _check_states(
                outputs,
                output_dtype=output_dtype,
                chunk_overlap=chunk_overlap,
                vectors=tuple(vectors) or None,
            )
        dimensions = truncate_dim or self._truncate_dim
        limits = self._limits(output_dtype, ranges, dimensions, normalize_embeddings, keep_length)
        if output_value == _OF_TOKENS:
            return States(**shared)
        shared |= {
            "normalize": normalize_embeddings,
            "dimensions": dimensions,
            "keep_length": keep_length,
            "output_dtype": output_dtype,
            "limits": limits,
            "reads": (EMBEDDING,) if EMBEDDING in outputs else None,
        }
        if vectors:
            return self._job_of_kinds(vectors, shared, chunk_overlap)
        if chunk_overlap is None:
            return Embed(**shared)
        prompt_tokens = self._prompt_tokens(prompt, chunk_overlap)
        return EmbedInChunks(**shared, overlap=chunk_overlap, prompt_tokens=prompt_tokens)

    def _job_of_kinds(
        self, vectors: Collection[VectorKind], shared: Mapping[str, Any], chunk_overlap: int | None
    ) -> EmbedByKinds:
        """Return the job that makes vectors of some kinds, with the fields of other jobs."""
        if chunk_overlap is not None:
            raise UserInputError(
                f"`chunk_overlap={chunk_overlap}` joins the embeddings of chunks, and not the "
                f"other vectors of a text, {quoted(vectors)}. Leave it out.",
                argument="chunk_overlap",
            )
        if missing := [each for each in vectors if each not in self.vector_kinds]:
            raise UserInputError(
                f"{self.name!r} makes no {missing[0]} vectors of a text, only "
                f"{quoted(self.vector_kinds)}. BGE-M3 does, whose folder has "
                f"{' and '.join(TOKEN_HEAD_FILES)} next to the weights.",
                argument="vectors",
            )
        reads = tuple(OUTPUTS[each] for each in vectors)
        return EmbedByKinds(
            **{**shared, "reads": reads if shared["reads"] else None},
            kinds=tuple(each for each in VECTOR_KINDS if each in vectors),
            unweighed=unweighed_ids(self._loaded.tokenizer),
        )

    @property
    def vector_kinds(self) -> tuple[VectorKind, ...]:
        """What the model makes of a text: "dense", an embedding, and what BGE-M3 makes besides."""
        outputs = self._loaded.runners.single.output_names
        # Without its own, embeddings are made of the token states.
        return tuple(each for each in VECTOR_KINDS if each == "dense" or OUTPUTS[each] in outputs)

    def _check_width(self, truncate_dim: int | None) -> None:
        """Refuse a number of dimensions that embeddings do not have."""
        check_whole("truncate_dim", truncate_dim, at_least=1)
        if truncate_dim is not None and truncate_dim > self._width:
            raise UserInputError(
                f"`truncate_dim={truncate_dim}`: embeddings of {self.name!r} have {self._width} "
                "dimensions. Pass this number or less.",
                argument="truncate_dim",
            )

    @functools.cached_property
    def _width(self) -> int:
        """Number of dimensions of an embedding that is not cut."""
        if self._stored_ranges is not None:
            return len(self._stored_ranges.low)
        return len(self._whole)

    @functools.cached_property
    def have_length_1(self) -> bool:
        """Whether the model itself scales embeddings to length 1."""
        if self._stored_ranges is not None:
            return self._stored_ranges.have_length_1
        return bool(have_length_1(self._whole))

    @functools.cached_property
    def _whole(self) -> Embedding:
        """An embedding with all dimensions, as nothing else tells their number."""
        whole: Embedding = self._all(self.job(prompt="", truncate_dim=_MOST), ["a"])[0]
        return whole

    def _length(self, truncate_dim: int | None, output_dtype: OutputDtype) -> int:
        """Return the number of values of an embedding; bits are packed, eight to a byte."""
        self._check_width(truncate_dim)
        kept = truncate_dim or self._truncate_dim or self._width
        values = min(kept, self._width)
        return -(-values // 8) if output_dtype in ("binary", "ubinary") else values

    def _limits(
        self,
        output_dtype: OutputDtype,
        given: Any,
        dimensions: int | None,
        normalize: bool,
        keep_length: bool,
    ) -> Embedding | None:
        """Return the ranges of codes, if they depend on some: those given, or the folder's.

        The folder's are those of vectors that are cut and scaled by these options.
        """
        if output_dtype not in RANGED:
            if given is not None:
                raise UserInputError(
                    f"`ranges` applies to `output_dtype` 'int8' and 'uint8', got {output_dtype!r}. "
                    "Leave it out.",
                    argument="ranges",
                )
            return None
        if given is not None:
            return checked_limits(given)
        ranges = self._ranges()
        keeps = keep_length and ranges.have_length_1
        return shared_limits(ranges.limits(dimensions, is_scaled=normalize or keeps))

    def _prompt_tokens(self, prompt: str, overlap: int) -> int:
        """Return the number of tokens of a prompt; refuse chunks that share all of their text."""
        tokenizer = self._loaded.tokenizer.cutting(None)
        special = len(tokenizer.encode("").ids)
        tokens = len(tokenizer.encode(prompt).ids) - special
        room = self.max_length - special - tokens
        if not 0 <= overlap < room:
            prompts = f" and {counted(tokens, 'token')} of the prompt" if tokens else ""
            raise UserInputError(
                f"`chunk_overlap` must be at least 0 and below {max(room, 0)}, the number of "
                f"tokens of a text that fit into {self.max_length} next to {special} special "
                f"ones{prompts}; got {overlap}.",
                argument="chunk_overlap",
            )
        return tokens


def _check_states(outputs: Collection[str], **given: Any) -> None:
    """Refuse options that states of tokens do not have, and graphs without states."""
    for name, value in given.items():
        if value not in (None, "float32"):
            raise UserInputError(
                f"`{name}={value!r}` applies to sentence embeddings only. Leave it out.",
                argument=name,
            )
    if "last_hidden_state" not in outputs:
        raise UserInputError(
            f"`output_value={_OF_TOKENS!r}`: the graph returns sentence embeddings only.",
            argument="output_value",
        )
