"""Models that put a prompt before each text, as sentence-transformers does."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypedDict, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from qdqbert.common.errors import CheckpointError, UserInputError
from qdqbert.common.file_names import MODEL_SETTINGS
from qdqbert.common.forks import repair_in_child
from qdqbert.common.input_names import POOLED
from qdqbert.data.tokenizing.chunks import in_chunks
from qdqbert.data.tokenizing.encoding import feature_of
from qdqbert.encoders.checkpoint.model_settings import Kind, ModelSettings, choose_prompt
from qdqbert.encoders.family import is_jina_v5
from qdqbert.runtime.batches import Feature
from qdqbert.runtime.inputs import check_text
from qdqbert.runtime.model import Loaded, Model, TextEncoder
from qdqbert.runtime.scheduler import EncodedItem, Job, Scheduler, adapter_of

if TYPE_CHECKING:
    from torch import Tensor

Texts = str | Sequence[str]

_Vectors = TypeVar("_Vectors")


class TokenIds(tuple[int, ...]):
    """Token ids of a text, as the model's tokenizer makes them, with special tokens."""

    __slots__ = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prompted(TextEncoder):
    """Puts a prompt before each text.

    Attributes:
        prompt: The prompt; empty for none. Token ids get none.
        adapter: Adapter of the model that runs the texts; `None` for the model without one.
    """

    prompt: str
    adapter: str | None = None

    def encode(self, items: Sequence[Any]) -> list[EncodedItem]:
        """Return the model inputs of each text, or of its token ids."""
        texts = [self.prompt + check_text(item) for item in items if not isinstance(item, TokenIds)]
        made = map(self._without_prompt, super().encode(texts))
        return [self._of_ids(item) if isinstance(item, TokenIds) else next(made) for item in items]

    def _without_prompt(self, item: EncodedItem) -> EncodedItem:
        """Return the inputs of a text, whose prompt is not pooled if the model says so.

        As in sentence-transformers, these are as many as the prompt alone has.
        """
        if POOLED not in self.input_names or not self.prompt:
            return item
        features = []
        for feature in item.features:
            pooled = feature[POOLED].copy()
            pooled[: self._length_of_prompt] = 0
            features.append({**feature, POOLED: pooled})
        return item._replace(features=tuple(features))

    @functools.cached_property
    def _length_of_prompt(self) -> int:
        """The number of tokens of the prompt alone, without a special token at its end."""
        (encoding,) = self.tokenizer.cutting(None).encode_batch([self.prompt])
        return len(encoding.ids) - (encoding.special_tokens_mask[-1:] == [1])

    def _of_ids(self, ids: TokenIds) -> EncodedItem:
        kept = self.tokenizer.keep_ids(ids)
        return EncodedItem(features=(feature_of(kept, self.input_names),), truncated=kept.truncated)


QUERY_PROMPTS = ("query",)
DOCUMENT_PROMPTS = ("document", "passage", "corpus")
"""Names of the adapters for queries and documents, and of the prompts that servers give them."""


def prompts_of(settings: ModelSettings) -> list[str]:
    """Return the prompts that texts to embed can have, each once; the empty one means none.

    They are the default, those of documents and queries, and all others.
    """
    named = [settings.prompts.get(kind, "") for kind in ("document", "query")]
    return [*dict.fromkeys([settings.default_prompt, *named, *settings.prompts.values()])]


def encode_in_turn(
    texts: Sequence[str], jobs: Sequence[Prompted], *, max_length: int
) -> tuple[tuple[Feature, ...], int]:
    """Return the model inputs of texts that several jobs take in turn, to calibrate on.

    A text that begins with the prompt of a job belongs to this job, and gets no further prompt.

    The jobs have different prompts, and `max_length` is in tokens.

    Returns:
        A feature for each text, and the number of texts that were longer than `max_length`.
    """
    chosen: dict[int, list[int]] = {}
    bare = list(texts)
    by_length = sorted(range(len(jobs)), key=lambda index: -len(jobs[index].prompt))
    for position, text in enumerate(texts):
        begun = (each for each in by_length if text.startswith(jobs[each].prompt or "\0"))
        turn = next(begun, None)
        if turn is None:
            turn = position % len(jobs)
        else:
            bare[position] = text.removeprefix(jobs[turn].prompt)
        chosen.setdefault(turn, []).append(position)
    features: dict[int, Feature] = {}
    truncated = 0
    for turn, positions in chosen.items():
        job = jobs[turn]
        for chunk in in_chunks(positions):
            for position, item in zip(
                chunk, job.encode([bare[each] for each in chunk]), strict=True
            ):
                (features[position],) = item.features
                # Queries and documents can have a shorter limit of their own, which is no loss.
                truncated += item.truncated and job.tokenizer.max_length == max_length
    return tuple(features[position] for position in range(len(texts))), truncated


def check_as_many(one: Sized, other: Sized, argument: str) -> None:
    """Refuse embeddings that are compared in pairs, and are not as many."""
    if len(one) != len(other):
        raise UserInputError(
            f"`{argument}` must be as many as the others, {len(one)}, to be compared with them in "
            f"pairs; got {len(other)}.",
            argument=argument,
        )


class CallOptions(TypedDict, total=False):
    """Options of sentence-transformers' calls that do not change the type of their results."""

    prompt_name: str | None
    prompt: str | None
    batch_size: int | None
    show_progress_bar: bool | None
    device: str | None


class NoCard:
    """The place of a model card, which evaluators of sentence-transformers write metrics to."""

    def set_evaluation_metrics(self, *metrics: Any) -> None:
        """Keep nothing: evaluators return their metrics, too."""


class HasPrompts(Model):
    """A model that can put a prompt before a text.

    Attributes:
        prompts: Texts that can be put before a text, by name.
    """

    # Names that a default prompt can have without a text of its own.
    _empty_prompts: ClassVar[tuple[str, ...]] = ()

    def __init__(self, loaded: Loaded) -> None:
        super().__init__(loaded)
        self._settings = ModelSettings.of_folder(loaded.artifact.directory)
        self.prompts: dict[str, str] = dict(self._settings.prompts)
        self.default_prompt_name = self._settings.default_prompt_name

    @property
    def default_prompt_name(self) -> str | None:
        """Name of the prompt that is put before texts without another; `None` for none."""
        return self._default_prompt_name

    @default_prompt_name.setter
    def default_prompt_name(self, name: str | None) -> None:
        if name in self._empty_prompts:
            self.prompts.setdefault(name, "")
        if name is not None and name not in self.prompts:
            known = ", ".join(map(repr, self.prompts)) or "none"
            raise UserInputError(
                f"`default_prompt_name={name!r:.100}` is unknown; {self.name!r} has: {known}. Add "
                "it to `prompts`.",
                argument="default_prompt_name",
            )
        self._default_prompt_name = name

    @property
    def default_prompt(self) -> str:
        """Prompt of texts that get no other; empty for none."""
        return self.prompts.get(self.default_prompt_name or "", "")

    def _prompt(self, name: str | None, text: str | None) -> str:
        """Return the prompt that a call asks for; see `choose_prompt`."""
        empty = {each: "" for each in self._empty_prompts if each not in self.prompts}
        prompts = {**self.prompts, **empty}
        return choose_prompt(prompts, self.default_prompt_name, name=name, text=text)


class PromptedModel(HasPrompts, Generic[_Vectors]):
    """Encodes texts with a prompt.

    Attributes:
        has_kinds: Whether `encode` takes the kind of texts, as `task`.
        similarities: Functions that `similarity` computes, by the names that a folder gives them,
            the usual one first.
        model_card_data: Takes the metrics of sentence-transformers' evaluators, and keeps none.
    """

    # As in sentence-transformers.
    _empty_prompts = ("query", "document")
    has_kinds: ClassVar[bool] = False
    similarities: ClassVar[Mapping[str, Callable[[Any, Any], NDArray[np.float32]]]]
    model_card_data: ClassVar[NoCard] = NoCard()

    def __init__(self, loaded: Loaded) -> None:
        super().__init__(loaded)
        self._adapted: dict[str, Model] = {}
        self._unlock()
        repair_in_child(self, PromptedModel._unlock)

    @property
    def facts(self) -> dict[str, Any]:
        """The prompt before texts that get no other, as `prompt`; see `Model.facts`."""
        return {"prompt": self.default_prompt}

    def _unlock(self) -> None:
        # Another thread may have the lock when a process is forked.
        self._adapting = threading.Lock()

    def _chosen(
        self, task: str | None, name: str | None, text: str | None
    ) -> tuple[str | None, str | None]:
        """Return the adapter that a call asks for, and the name of its prompt.

        Both are chosen by the task, or by the prompt's name. "retrieval.query" is an adapter and a
        prompt of jina-embeddings-v3. In jina-embeddings-v5 it is the adapter "retrieval" and the
        prompt "query".

        Raises:
            UserInputError: The model has no adapter for the task, or needs one.
        """
        known = self.adapters
        default = self.default_prompt_name if text is None else None
        asked = task or name or default
        adapter, _, kind = (asked or "").partition(".")
        kinds = DOCUMENT_PROMPTS if kind in DOCUMENT_PROMPTS else (kind,)
        own = next((each for each in kinds if each in self.prompts), None)
        if asked in known:
            own = asked if task is not None and asked in self.prompts else None
            return asked, name or own
        if adapter in known and own is not None:
            return adapter, own if task is None else name or own
        has = f"It has: {', '.join(known)}." if known else "It has none: leave it out."
        if task is not None:
            raise UserInputError(
                f"`task={task!r}` is not an adapter of {self.name!r}. {has}", argument="task"
            )
        if known and text is None and is_jina_v5(self._loaded.config):
            raise UserInputError(
                f"{self.name!r} needs an adapter for what its embeddings are used for. {has} Pass "
                "its name as `task`, or load the model with it, as `adapter`.",
                argument="task",
            )
        return None, name

    def _with(self, adapter: str | None) -> Model:
        """Return the model with an adapter, which is loaded when it is first needed."""
        if adapter is None:
            return self
        with self._using(), self._adapting:
            if adapter not in self._adapted:
                self._adapted[adapter] = self._loaded.reopen(adapter=adapter)
            return self._adapted[adapter]

    def _scheduler(self, job: Job[Any, Any]) -> Scheduler:
        """Return what runs a job: the model with the adapter that it asks for."""
        return self._with(adapter_of(job))._loaded.scheduler

    def close(self) -> None:
        """Close the model, and what was loaded with adapters; see `Model.close`."""
        super().close()
        for each in self._adapted.values():
            each.close()

    @overload
    def encode_query(
        self, inputs: Texts, *, convert_to_tensor: Literal[True], **options: Any
    ) -> Tensor: ...

    @overload
    def encode_query(self, inputs: Texts, **options: Any) -> _Vectors: ...

    def encode_query(self, inputs: Texts, **options: Any) -> Any:
        """Compute embeddings of queries: `encode` with the prompt "query", if there is one."""
        return self._encode("query", QUERY_PROMPTS, inputs, options)

    @overload
    def encode_document(
        self, inputs: Texts, *, convert_to_tensor: Literal[True], **options: Any
    ) -> Tensor: ...

    @overload
    def encode_document(self, inputs: Texts, **options: Any) -> _Vectors: ...

    def encode_document(self, inputs: Texts, **options: Any) -> Any:
        """Compute embeddings of documents: `encode` with the prompt "document", if there is one.

        As in sentence-transformers 5 and later, whose models all have it, empty or not, a prompt of
        another name, such as "passage", is not used. Pass it as `prompt_name`.
        """
        return self._encode("document", DOCUMENT_PROMPTS, inputs, options)

    def _encode(
        self, kind: Kind, names: Sequence[str], inputs: Texts, options: Mapping[str, Any]
    ) -> Any:
        model: Any = self
        task = {"task": kind} if self.has_kinds else {}
        own = [each for each in self.adapters if each.rpartition(".")[2] in names]
        if own and not options.keys() & {"task", "prompt_name"}:
            # "retrieval.query" of jina-embeddings-v3, with its prompt.
            return model.encode(inputs, **{"task": own[0], **options})
        if "retrieval" in self.adapters:
            options = {"task": "retrieval", **options}
        return model.encode(inputs, **{**task, **self._with_prompt(kind, options)})

    @property
    def similarity_fn_name(self) -> str:
        """Name of the function that `similarity` computes."""
        return self._settings.similarity or next(iter(self.similarities))

    def _compare(self, one: Any, other: Any) -> NDArray[np.float32]:
        """Return the similarities of embeddings that were checked."""
        self._check_similarity()
        return np.asarray(self.similarities[self.similarity_fn_name](one, other))

    def _check_similarity(self) -> None:
        """Refuse a function that the folder names and that embeddings are not compared by."""
        name = self.similarity_fn_name
        if name not in self.similarities:
            raise CheckpointError(
                f"`similarity_fn_name={name!r:.80}` in the folder's {MODEL_SETTINGS} is unknown "
                f"for {self.rows.name}. Known: {', '.join(self.similarities)}."
            )

    def get_embedding_dimension(self) -> int:
        """Return the number of dimensions of an embedding, as sentence-transformers does."""
        model: Any = self
        return int(model.encode("a", prompt="").shape[-1])

    # Its name before version 5.4 of sentence-transformers.
    get_sentence_embedding_dimension = get_embedding_dimension

    def _with_prompt(self, kind: Kind, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of `encode`, with the prompt of a kind of texts, empty without one.

        A prompt among the options takes precedence. There is no fallback to the default prompt, as
        in sentence-transformers.
        """
        if options.get("prompt") is not None or options.get("prompt_name") is not None:
            return dict(options)
        return {**options, "prompt": self.prompts.get(kind, "")}
