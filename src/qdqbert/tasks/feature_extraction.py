"""Embeddings, scored by how well the cosine of two texts agrees with human scores.

The model has the interface of sentence-transformers' `SentenceTransformer`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import numpy as np
import tokenizers
from numpy.typing import NDArray

from qdqbert.artifact import quantize_command
from qdqbert.checkpoint.sentence import MODEL_SETTINGS, model_settings
from qdqbert.choices import OUTPUT_DTYPES, OutputDtype
from qdqbert.encoders.heads import EMBEDDING
from qdqbert.encoding import Encoded, encode, feature_of, padding_of
from qdqbert.errors import DataFileError, UserInputError
from qdqbert.keywords import plain, suggest_keywords
from qdqbert.objects import Rows
from qdqbert.progress import progress_of
from qdqbert.runtime.batches import Results
from qdqbert.runtime.inputs import (
    check_device,
    check_text,
    check_whole,
    listed_texts,
)
from qdqbert.runtime.model import Loaded
from qdqbert.runtime.options import AnswerOptions
from qdqbert.runtime.rows import RowFormat
from qdqbert.runtime.scheduler import EncodedItem, Job
from qdqbert.runtime.tensors import converted
from qdqbert.tables.rows import Column
from qdqbert.task_kinds import TaskSettings
from qdqbert.tasks.columns import Row, quoted, resolve_columns
from qdqbert.tasks.data import (
    Columns,
    Dataset,
    Example,
    check_each,
    open_table,
    read_table,
)
from qdqbert.tasks.lines import counted, row_name
from qdqbert.tasks.logits import score_answers
from qdqbert.tasks.prompts import (
    CallOptions,
    Prompted,
    PromptedModel,
    Texts,
    encode_in_turn,
    prompts_of,
)
from qdqbert.tasks.scores import (
    check_scores_differ,
    correlations,
    scaled_scores,
    score_of,
)
from qdqbert.tasks.small_vectors import (
    DTYPES,
    LENGTH_TOLERANCE,
    RANGED,
    VectorRanges,
    checked_limits,
    quantize_vectors,
    shared_limits,
)
from qdqbert.tasks.task import (
    Answer,
    CalibrationEncoder,
    Features,
    Labels,
    Prediction,
    Predictions,
    Score,
    Task,
)
from qdqbert.tasks.texts import check_label_column, truncation_notice
from qdqbert.tokenizing.tokenizer import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

# Names of columns of second texts, next to those of first ones. Other tasks use them for labels.
_POSITIVES = ("positive", "answer", "response")
_ANCHORS = ("anchor", "query", "question")
# Names of columns of texts that do not belong to the first one.
_NEGATIVE = re.compile(r"(hard_)?negatives?(_?[0-9]+)?")
# More dimensions than embeddings have.
_MOST = 2**31


@dataclasses.dataclass(frozen=True, kw_only=True)
class ContrastExample(Example):
    """A text, one that belongs to it, and others that do not.

    Attributes:
        negatives: The others, equally many for each example of a data set.
    """

    negatives: tuple[str, ...]

    @property
    def content(self) -> tuple[str, ...]:
        """The texts that a model reads."""
        return (*super().content, *self.negatives)


def read_pairs(data: str | Rows, *, columns: Columns, max_examples: int | None) -> Dataset:
    """Read texts, pairs of texts, or pairs with negatives; see `read_dataset`.

    Raises:
        DataFileError: As `read_dataset`, or a negative is blank.
    """
    table = open_table(data, columns)
    known = {name.strip().lower(): name for name in table.names}
    positive = next((known[name] for name in _POSITIVES if name in known), None)
    if positive is not None and not known.keys().isdisjoint(_ANCHORS):
        resolved, _ = resolve_columns(table, columns)
        if resolved.text_pair is None and positive not in (resolved.text, resolved.label):
            columns = dataclasses.replace(columns, text_pair=positive)
    names = [name for name in table.names if _NEGATIVE.fullmatch(name.strip().lower())]
    found: dict[int, tuple[str, ...]] = {}
    if names:
        table.rows = _with_negatives(table.rows, table.path, names, found)
    dataset = read_table(table, columns, max_examples=max_examples)
    if not names or dataset.columns.text_pair is None:
        return dataset
    examples = tuple(
        ContrastExample(
            text=each.text,
            text_pair=each.text_pair,
            label=each.label,
            row=each.row,
            negatives=found[each.row],
        )
        for each in dataset.examples
    )
    return dataclasses.replace(dataset, examples=examples)


def _with_negatives(
    rows: Iterator[Row], path: str, names: Sequence[str], found: dict[int, tuple[str, ...]]
) -> Iterator[Row]:
    """Yield rows, and record their negatives by the number of the row."""
    count = None
    for number, fields in rows:
        values = [fields.get(name) for name in names]
        listed = [x for each in values for x in (each if isinstance(each, list) else [each])]
        texts = tuple(each for each in listed if isinstance(each, str) and each.strip())
        count = len(listed) if count is None else count
        if len(texts) != count or len(listed) != count:
            raise DataFileError(
                f"{row_name(path, number)} must have {counted(count, 'text')} in "
                f"{quoted(names)}, as the first row, got {len(texts)}. Fill it in, or remove the "
                "row."
            )
        found[number] = texts
        yield number, fields


def _check_labels(dataset: Dataset, id2label: Mapping[int, str]) -> None:
    del id2label
    if dataset.examples[0].text_pair is None:
        raise DataFileError(
            f"The data `{dataset.path}` have one text per row; embeddings are scored on pairs of "
            "texts with a score. Name the second text with `text_pair_column`.",
            argument="text_pair_column",
        )
    check_label_column(dataset)
    check_each(dataset, score_of)


def _encode(
    examples: Sequence[Example],
    tokenizer: Tokenizer,
    *,
    input_names: Sequence[str],
    max_length: int,
    options: TaskSettings,
) -> Features:
    """Make a feature of each text: of all first texts, then of all second ones."""
    del options
    texts = _texts_of(examples)
    encoded = encode(tokenizer, texts, input_names=input_names, max_length=max_length)
    return Features(
        examples=tuple(examples),
        encoded=encoded,
        notices=truncation_notice(encoded.truncated, len(texts), max_length),
    )


def _calibration_jobs(
    head: Any, tokenizer: Tokenizer, input_names: Sequence[str], max_length: int
) -> list[Prompted]:
    """Return a job for each prompt of the model."""
    cutting = tokenizer.cutting(max_length)
    return [
        Prompted(tokenizer=cutting, input_names=input_names, prompt=prompt)
        for prompt in prompts_of(model_settings(head.files.get(MODEL_SETTINGS)))
    ]


def by_jobs_in_turn(
    jobs_of: Callable[[Any, Tokenizer, Sequence[str], int], Sequence[Prompted]],
) -> CalibrationEncoder:
    """Return a function that makes a feature of each text, by several jobs in turn.

    Args:
        jobs_of: Returns the jobs, from the head, the tokenizer, the names of the inputs and the
            longest input in tokens. See `encode_in_turn`.
    """

    def encode_calibration(
        examples: Sequence[Example],
        tokenizer: Tokenizer,
        *,
        input_names: Sequence[str],
        max_length: int,
        options: TaskSettings,
        head: Any,
    ) -> Features:
        del options
        texts, jobs = _texts_of(examples), jobs_of(head, tokenizer, input_names, max_length)
        features, truncated = encode_in_turn(texts, jobs, max_length=max_length)
        padding = padding_of(jobs[0].tokenizer, input_names)
        return Features(
            examples=tuple(examples),
            encoded=Encoded(
                inputs=tuple(map(dict, features)), padding=padding, truncated=truncated
            ),
            notices=truncation_notice(truncated, len(texts), max_length),
        )

    return encode_calibration


def _texts_of(examples: Sequence[Example]) -> list[str]:
    """Return all first texts, then all second ones, and so on."""
    columns = zip(*(example.content for example in examples), strict=True)
    return list(itertools.chain.from_iterable(columns))


def sentence_vectors(results: Results) -> NDArray[np.float32]:
    """Return the sentence embeddings or, for a plain encoder, the mean of the token states.

    Returns:
        Shape `(batch, hidden)`.
    """
    if EMBEDDING in results.outputs:
        return results.outputs[EMBEDDING]
    mask = results.inputs["attention_mask"][..., None].astype(np.float32)
    sums = (results.outputs["last_hidden_state"] * mask).sum(axis=1)
    means: NDArray[np.float32] = sums / mask.sum(axis=1)
    return means


def _predictions(results: Results) -> list[Prediction]:
    return list(sentence_vectors(results))


def _scores(
    predictions: Predictions,
    features: Features,
    id2label: Mapping[int, str],
    options: TaskSettings,
) -> list[Score]:
    """Return the correlations of cosine and score, x 100, as in STS benchmarks."""
    del id2label, options
    return correlations(
        _cosines(predictions, features), [score_of(each) for each in features.examples]
    )


def _cosines(predictions: Predictions, features: Features) -> NDArray[np.float64]:
    """Return the cosine of both texts of each example."""
    stacked = np.stack(predictions).astype(np.float64)
    count = len(features.examples)
    first, second = stacked[:count], stacked[count:]
    cosines: NDArray[np.float64] = (first * second).sum(axis=1) / (
        np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    )
    return cosines


def _answers(
    predictions: Predictions,
    features: Features,
    *,
    tokenizer: Any,
    id2label: Mapping[int, str],
    options: TaskSettings,
) -> list[Answer]:
    del tokenizer, id2label, options
    given = [example.given for example in features.examples]
    return score_answers(_cosines(predictions, features), given, "cosine")


def _labels(features: Features, id2label: Mapping[int, str]) -> list[Labels]:
    """Return the score of each pair, scaled to 0 to 1 if it is not in that range."""
    del id2label
    return [{"scores": score} for score in scaled_scores(features.examples)]


Embedding = NDArray[np.float32]
SmallEmbedding = NDArray[Any]
"""An embedding of any kind: float32, int8 or uint8."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Embed(Prompted):
    """The job of `encode`; see `Job`.

    Attributes:
        normalize: Whether vectors are scaled to length 1.
        dimensions: Number of leading values to keep; `None` for all.
        keep_length: Whether the kept values of a vector of length 1 are scaled to length 1.
        output_dtype: Kind of the values of the result.
        limits: Smallest and largest values `(2, dimensions)`, if codes depend on them.
        reads: See `ReadsSome`.
    """

    normalize: bool
    dimensions: int | None
    keep_length: bool = False
    output_dtype: OutputDtype = "float32"
    limits: Embedding | None = None
    reads: Collection[str] | None = None

    def split(self, results: Results) -> Sequence[SmallEmbedding]:
        return list(self._finished(sentence_vectors(results)))

    def answer(
        self, item: str, encoded: EncodedItem, values: Sequence[SmallEmbedding]
    ) -> SmallEmbedding:
        del item, encoded
        return values[0]

    def _finished(self, vectors: Embedding) -> SmallEmbedding:
        """Return vectors `(..., dimensions)`, cut, scaled and quantized as requested."""
        return quantize_vectors(self._cut(vectors), self.output_dtype, self.limits)

    def _cut(self, vectors: Embedding) -> Embedding:
        """Return vectors `(..., dimensions)`, cut and scaled as requested."""
        cut = vectors[..., : self.dimensions]
        if self.normalize:
            return _scaled(cut)
        if self.keep_length and cut.shape != vectors.shape:
            return np.where(_have_length_1(vectors), _scaled(cut), cut)
        return cut


@dataclasses.dataclass(frozen=True, kw_only=True)
class _EmbedInChunks(_Embed):
    """The job of `encode` with `chunk_overlap`; see `Job`.

    A long text makes a feature for each chunk: the special tokens, the prompt, and a part of the
    text.

    Attributes:
        overlap: Number of tokens of a text that neighboring chunks share.
        prompt_tokens: Number of tokens of the prompt alone.
    """

    overlap: int
    prompt_tokens: int

    def encode(self, items: Sequence[Any]) -> list[EncodedItem]:
        """Return the model inputs of each chunk of each text."""
        encodings = self.tokenizer.cutting(None).encode_batch(
            [self.prompt + check_text(item) for item in items], offsets=bool(self.prompt)
        )
        return [self._chunks(each) for each in encodings]

    def split(self, results: Results) -> Sequence[Embedding]:
        """Return the embedding of each feature as the graph computes it."""
        return list(sentence_vectors(results))

    def answer(
        self, item: str, encoded: EncodedItem, values: Sequence[Embedding]
    ) -> SmallEmbedding:
        """Return the embedding of a text from the embeddings of its chunks."""
        del item
        if len(values) == 1:
            return self._finished(values[0])
        stacked = np.stack(values)
        vector = np.average(stacked, axis=0, weights=encoded.places).astype(np.float32)
        if _have_length_1(stacked).all():
            vector = _scaled(vector)
        return self._finished(vector)

    def _chunks(self, encoding: tokenizers.Encoding) -> EncodedItem:
        feature = feature_of(encoding, self.input_names)
        count, limit = len(encoding.ids), self.tokenizer.max_length
        if limit is None or count <= limit:
            return EncodedItem(features=(feature,))
        own = np.flatnonzero(np.array(encoding.special_tokens_mask) == 0)
        end = int(own[-1]) + 1
        start = int(own[0]) + self._prompt_part(encoding, own)
        room = limit - start - (count - end)
        places = [
            (first, min(first + room, end))
            for first in range(start, end - self.overlap, room - self.overlap)
        ]
        return EncodedItem(
            features=tuple(
                {
                    name: np.concatenate([values[:start], values[first:last], values[end:]])
                    for name, values in feature.items()
                }
                for first, last in places
            ),
            places=[last - first for first, last in places],
        )

    def _prompt_part(self, encoding: tokenizers.Encoding, own: NDArray[np.int64]) -> int:
        """Return the number of tokens that are in the prompt only."""
        if not self.prompt:
            return 0
        ends = np.array([end for _, end in encoding.offsets])[own]
        # The first token of the text can contain the last character of the prompt, a space.
        return min(int((ends <= len(self.prompt)).sum()), self.prompt_tokens)


def _have_length_1(vectors: Embedding) -> NDArray[np.bool_]:
    """Return whether the graph scaled vectors `(..., dimensions)` to length 1. Shape `(..., 1)`."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(np.abs(lengths - 1) < LENGTH_TOLERANCE)


def _scaled(vectors: Embedding) -> Embedding:
    """Return vectors `(..., dimensions)`, scaled to length 1."""
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    # As torch.nn.functional.normalize, which returns zeros for zeros.
    return np.asarray(vectors / np.maximum(norms, 1e-12), dtype=np.float32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _States(Prompted):
    """The job of `output_value="token_embeddings"` and of calls; see `Job`."""

    def split(self, results: Results) -> Sequence[Embedding]:
        return results.rows("last_hidden_state")

    def answer(self, item: str, encoded: EncodedItem, values: Sequence[Embedding]) -> Embedding:
        del item, encoded
        return values[0]


def _embed(model: Embedder, options: AnswerOptions) -> Job[Any, Any]:
    model._check_width(options.truncate_dim)
    return model.job(
        prompt_name=options.prompt_name,
        prompt=options.prompt,
        normalize_embeddings=options.normalize,
        truncate_dim=options.truncate_dim,
        chunk_overlap=options.chunk_overlap,
        output_dtype=options.output_dtype,
    )


def _columns(options: AnswerOptions) -> tuple[Column, ...]:
    return (Column(name="embedding", kind="numbers", dtype=DTYPES[options.output_dtype]),)


class EncodeOptions(CallOptions, total=False):
    """Options of `Embedder.encode` that do not change the type of its result."""

    task: str | None
    normalize_embeddings: bool
    truncate_dim: int | None
    chunk_overlap: int | None
    output_dtype: OutputDtype | None
    precision: OutputDtype | None
    ranges: Any


class Embedder(PromptedModel[SmallEmbedding]):
    """Computes embeddings of texts."""

    rows = RowFormat(
        name="an embedder",
        options=(
            *("normalize", "truncate_dim", "prompt", "prompt_name", "chunk_overlap"),
            "output_dtype",
        ),
        columns=_columns,
        length=lambda model, options: model._length(options.truncate_dim, options.output_dtype),
        job=_embed,
        values=lambda answer, _: (answer,),
    )

    def __init__(self, loaded: Loaded) -> None:
        """Read the settings of the folder."""
        super().__init__(loaded)
        self._truncate_dim = self._settings.truncate_dim
        stored = loaded.artifact.quantization.get("embedding_ranges")
        self._stored_ranges = None if stored is None else VectorRanges.of_json(stored)

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
    ) -> Any:
        """Compute embeddings, as `SentenceTransformer.encode` of sentence-transformers does.

        A model without sentence-transformers' files returns the mean of the token states.

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

        Returns:
            float32, `(dimensions,)` for a text and `(texts, dimensions)` for a list. For
            "token_embeddings" `(tokens, hidden)`, or a list of such arrays. With `output_dtype`
            int8 or uint8; bits take an eighth of the dimensions.

        Raises:
            MissingExtraError: A tensor is asked for, and torch is not installed.
            UserInputError: `prompt_name` is unknown, or `inputs` is not a text or a list of
                texts, or the graph has no token states, or `chunk_overlap` is too large or used
                with token states. Or `output_dtype` is unknown, used with token states, or needs
                ranges that the folder does not have.

        Example:
            >>> vectors = model.encode(["Where is the river?", "It is near the house."])
            >>> vectors.shape
            (2, 384)
        """
        check_whole("batch_size", batch_size, at_least=1)
        check_device(device)
        if precision is not None and output_dtype not in (None, precision):
            raise UserInputError(
                f"`output_dtype={output_dtype!r}` and `precision={precision!r}` are two names of "
                "one option. Pass one of them.",
                argument="precision",
            )
        self._check_width(truncate_dim)
        is_one = isinstance(inputs, str)
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
        )
        texts = listed_texts(inputs, "inputs")
        vectors = self._all(job, texts, progress=progress_of(bool(show_progress_bar)))
        found: Any = vectors
        if is_one:
            found = vectors[0]
        elif output_value != "token_embeddings":
            found = np.stack(vectors or self._all(job, ["a"]))[: len(vectors)]
        return converted(
            found,
            convert_to_numpy=convert_to_numpy,
            convert_to_tensor=convert_to_tensor,
            is_one=is_one,
        )

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
            made_from = self._loaded.artifact.quantization["checkpoint"].get("name", self.name)
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
        match self.similarity_fn_name:
            case "dot":
                return np.asarray(a @ b.T)
            case "euclidean":
                return np.asarray(-np.linalg.norm(a[:, None] - b[None], axis=-1))
            case "manhattan":
                return np.asarray(-np.abs(a[:, None] - b[None]).sum(axis=-1))
            case "cosine":
                return np.asarray(_scaled(a) @ _scaled(b).T)
            case name:
                raise UserInputError(
                    f"`similarity_fn_name={name!r:.80}` in the folder's "
                    "config_sentence_transformers.json is unknown. Known: cosine, dot, euclidean, "
                    "manhattan."
                )

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
        job = self.job(output_value="token_embeddings", prompt="")
        return [each[None] for each in self._all(job, listed_texts(texts, "texts"))]

    @suggest_keywords
    def job(
        self,
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        task: str | None = None,
        output_value: str = "sentence_embedding",
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        chunk_overlap: int | None = None,
        keep_length: bool = False,
        output_dtype: OutputDtype = "float32",
        ranges: Any = None,
    ) -> Job[str, SmallEmbedding]:
        """Return the job of `encode` with these options, for `stream`.

        With `keep_length`, embeddings of length 1 are scaled to length 1 again after a cut to fewer
        dimensions, unlike in sentence-transformers.
        """
        if output_dtype not in OUTPUT_DTYPES:
            raise UserInputError(
                f"`output_dtype={output_dtype!r}` is unknown. Known: {', '.join(OUTPUT_DTYPES)}.",
                argument="output_dtype",
            )
        check_whole("truncate_dim", truncate_dim, at_least=1)
        check_whole("chunk_overlap", chunk_overlap, at_least=0)
        if ranges is not None and output_dtype not in RANGED:
            raise UserInputError(
                f"`ranges` applies to `output_dtype` 'int8' and 'uint8', got {output_dtype!r}. "
                "Leave it out.",
                argument="ranges",
            )
        adapter, prompt_name = self._chosen(task, prompt_name, prompt)
        runners = self._with(adapter)._loaded.runners
        shared: dict[str, Any] = {
            "tokenizer": self._loaded.tokenizer,
            "input_names": self._loaded.artifact.input_names,
            "prompt": self._prompt(prompt_name, prompt),
            "adapter": adapter,
        }
        if output_value == "sentence_embedding":
            if EMBEDDING in runners.single.output_names:
                shared["reads"] = (EMBEDDING,)
            shared["normalize"] = normalize_embeddings
            shared["dimensions"] = truncate_dim or self._truncate_dim
            shared["keep_length"] = keep_length
            shared["output_dtype"] = output_dtype
            if output_dtype in RANGED:
                shared["limits"] = (
                    self._limits(shared["dimensions"], normalize_embeddings, keep_length)
                    if ranges is None
                    else checked_limits(ranges)
                )
            if chunk_overlap is None:
                return _Embed(**shared)
            prompt_tokens = self._prompt_tokens(shared["prompt"], chunk_overlap)
            return _EmbedInChunks(**shared, overlap=chunk_overlap, prompt_tokens=prompt_tokens)
        if output_value != "token_embeddings":
            raise UserInputError(
                f"`output_value={output_value!r}` is unknown. Known: sentence_embedding, "
                "token_embeddings.",
                argument="output_value",
            )
        if output_dtype != "float32":
            raise UserInputError(
                f"`output_dtype={output_dtype!r}` applies to sentence embeddings only. Leave it "
                "out.",
                argument="output_dtype",
            )
        if chunk_overlap is not None:
            raise UserInputError(
                f"`chunk_overlap={chunk_overlap}` applies to sentence embeddings only. Leave it "
                "out.",
                argument="chunk_overlap",
            )
        if "last_hidden_state" not in runners.single.output_names:
            raise UserInputError(
                "`output_value='token_embeddings'`: the graph returns sentence embeddings only.",
                argument="output_value",
            )
        return _States(**shared)

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
        return len(self._all(self.job(prompt="", truncate_dim=_MOST), ["a"])[0])

    @functools.cached_property
    def have_length_1(self) -> bool:
        """Whether the model itself scales embeddings to length 1."""
        if self._stored_ranges is not None:
            return self._stored_ranges.have_length_1
        return bool(_have_length_1(self._all(self.job(prompt="", truncate_dim=_MOST), ["a"])[0]))

    def _length(self, truncate_dim: int | None, output_dtype: OutputDtype) -> int:
        """Return the number of values of an embedding; bits are packed, eight to a byte."""
        self._check_width(truncate_dim)
        kept = truncate_dim or self._truncate_dim or self._width
        values = min(kept, self._width)
        return -(-values // 8) if output_dtype in ("binary", "ubinary") else values

    def _limits(self, dimensions: int | None, normalize: bool, keep_length: bool) -> Embedding:
        """Return the folder's range of vectors that are cut and scaled by these options."""
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


FEATURE_EXTRACTION = Task(
    name="feature-extraction",
    read=read_pairs,
    encode=_encode,
    encode_calibration=by_jobs_in_turn(_calibration_jobs),
    check_labels=_check_labels,
    check_metrics=lambda dataset, id2label: check_scores_differ(dataset),
    predictions=_predictions,
    scores=_scores,
    decisions=lambda predictions, features, options: None,
    labels=_labels,
    answers=_answers,
    model=Embedder,
)
