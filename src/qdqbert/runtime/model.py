"""Base class of the models of all tasks: a loaded graph, its tokenizer, and calls on them."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from qdqbert.common.choices import EngineName
from qdqbert.common.errors import ModelClosedError, UserInputError
from qdqbert.common.forks import repair_in_child
from qdqbert.common.keywords import plain
from qdqbert.common.progress import Progress, Silent, progress_of
from qdqbert.data.rows.lines import cut_notice
from qdqbert.data.tokenizing.encoding import Encoded, Inputs, feature_of, make_batch, padding_of
from qdqbert.data.tokenizing.long_texts import Kept
from qdqbert.data.tokenizing.tokenizer import Tokenizer
from qdqbert.engines.runner import Outputs
from qdqbert.runtime.artifact import Artifact
from qdqbert.runtime.inputs import check_device, check_whole, listed, located, text_or_pair
from qdqbert.runtime.options import AnswerOptions
from qdqbert.runtime.prefixes import Prefixes
from qdqbert.runtime.rows import RowFormat
from qdqbert.runtime.runners import Runners
from qdqbert.runtime.scheduler import Done, EncodedItem, Job, Scheduler
from qdqbert.runtime.tokens import Decode, Token, Tokenize

_I = TypeVar("_I")
_A = TypeVar("_A")

_LOGGER = logging.getLogger("qdqbert")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loaded:
    """The parts of a loaded model of any task.

    Attributes:
        name: The folder, or the model of the hub, as the caller named it.
        artifact: The folder that runs. For a float checkpoint, it is one of the cache.
        engine: Engine that runs the graph.
        target: Target of the graph.
        runners: The graph.
        scheduler: Runs inputs on it.
        tokenizer: Cuts inputs to the folder's `max_length`.
        config: Content of the folder's `config.json`, with a name for each class.
        reopen: Loads the model again, with the same options or others.
        adapters: Names of the adapters that the model can be loaded with.
        closeness: How close the answers of INT8 are to those of float, by name; empty if that was
            not measured.
    """

    name: str
    artifact: Artifact
    engine: EngineName
    target: str
    runners: Runners
    scheduler: Scheduler
    tokenizer: Tokenizer
    config: Mapping[str, Any]
    reopen: Callable[..., Model]
    adapters: tuple[str, ...] = ()
    closeness: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    labels_encoder: Loaded | None = None

    @property
    def id2label(self) -> dict[int, str]:
        """Names of the classes by number."""
        names: dict[int, str] = self.config["id2label"]
        return names

    @property
    def labels(self) -> list[str]:
        """Names of the classes, in the order of the outputs."""
        return [name for _, name in sorted(self.id2label.items())]


class Model:
    """A quantized model that is ready to run. Made by `qdqbert.load`.

    Several threads can call it at once. Calls release the interpreter's lock while the graph runs,
    so that `await asyncio.to_thread(model, texts)` does not block an event loop.

    Use it in a `with` block, or call `close`, to release the graph and its threads. Processes that
    are forked from this one can use it: each loads its own graph when it needs it. A pickle has the
    path and the options, and loads the model again, as a copy does.

    Attributes:
        reads_windows: Whether inputs longer than the limit are read whole, in windows.
        pairs_labels: Whether a text is run with each label of a call by itself.
    """

    reads_windows: ClassVar[bool] = False
    pairs_labels: ClassVar[bool] = False
    # Columns that the model reads from rows, and adds to them.
    rows: ClassVar[RowFormat]

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self._changed = threading.Condition()
        self._users: list[int] = []
        self._is_closed = False
        self._truncated = 0
        repair_in_child(self, Model._leave_to_parent)

    @property
    def name(self) -> str:
        """The folder or the model of the hub that was loaded."""
        return self._loaded.name

    @property
    def directory(self) -> Path:
        """The folder that runs. For a float checkpoint, it is one of the cache."""
        return self._loaded.artifact.directory

    @property
    def task(self) -> str:
        """Name of the task in transformers."""
        return self._loaded.artifact.task

    @property
    def engine(self) -> EngineName:
        """Engine that runs the graph."""
        return self._loaded.engine

    @property
    def target(self) -> str:
        """Target of the graph that runs."""
        return self._loaded.target

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of the adapters of a float checkpoint, if it has some and none is merged."""
        return self._loaded.adapters

    @property
    def precision(self) -> str:
        """Float type that the engine computes in between int8 operators. Loads the graph."""
        return self._loaded.runners.single.precision

    @property
    def max_length(self) -> int:
        """Longest input in tokens."""
        limit = self._loaded.tokenizer.max_length
        return self._loaded.artifact.max_length if limit is None else limit

    @property
    def max_seq_length(self) -> int:
        """Longest input in tokens, under sentence-transformers' name. It can be lowered."""
        return self.max_length

    @max_seq_length.setter
    def max_seq_length(self, value: int) -> None:
        tokenizer = self._cutting(plain(value), "max_seq_length")
        self._loaded = dataclasses.replace(self._loaded, tokenizer=tokenizer)

    def get_max_seq_length(self) -> int:
        """Return `max_seq_length`, as the method of sentence-transformers does."""
        return self.max_seq_length

    @property
    def device(self) -> str:
        """The device of the results, as torch names it."""
        return "cpu"

    def start_multi_process_pool(self, target_devices: Any = None) -> dict[str, Any]:
        """Return a pool without processes, for code for sentence-transformers.

        Calls take it as `pool`. It changes nothing: the threads of a model use all cores.

        Raises:
            UserInputError: `target_devices` has another device than the CPU.
        """
        check_device(target_devices)
        return {"input": None, "output": None, "processes": []}

    @staticmethod
    def stop_multi_process_pool(pool: Any) -> None:
        """Do nothing: the pool has no processes."""

    def _cutting(self, limit: int, argument: str) -> Tokenizer:
        """Return the tokenizer with another limit in tokens.

        Raises:
            UserInputError: Special tokens alone are as long, or the model reads fewer tokens.
        """
        check_whole(argument, limit, at_least=1)
        tokenizer, longest = self._loaded.tokenizer, self._loaded.artifact.max_length
        special = tokenizer.backend.num_special_tokens_to_add(is_pair=True)
        if not special < limit <= longest:
            raise UserInputError(
                f"`{argument}` must be above {special}, the number of special tokens, and at most "
                f"{longest}, the longest input of {self.name!r}, got {limit}.",
                argument=argument,
            )
        return tokenizer.cutting(limit)

    def tokenize(self, texts: Sequence[Any]) -> Inputs:
        """Return the token ids of texts or pairs of texts, padded to the longest, for `forward`.

        Args:
            texts: A list of texts, or of pairs as `(first, second)` or `{"text": ..., "text_pair":
                ...}`.

        Returns:
            int64 `(texts, tokens)` by name: `input_ids`, and others that the graph has.

        Raises:
            UserInputError: `texts` is something else.
        """
        items = listed(texts, "texts", "a list of texts or pairs")
        names = self._loaded.artifact.input_names
        encoder = TextEncoder(tokenizer=self._loaded.tokenizer, input_names=names)
        found = encoder.encode([text_or_pair(each) for each in items])
        encoded = Encoded(
            inputs=tuple(dict(each.features[0]) for each in found),
            padding=padding_of(self._loaded.tokenizer, names),
            truncated=0,
        )
        if not found:
            return {name: np.zeros((0, 0), np.int64) for name in names}
        return make_batch(encoded, range(len(found))).inputs

    @property
    def window(self) -> int:
        """Number of inputs that `stream` groups into batches together.

        The batches of a window do not depend on the inputs before and after it.
        """
        return self._loaded.scheduler.window

    def close(self) -> None:
        """Wait for calls of other threads, release the graph and stop the threads.

        Later calls raise `ModelClosedError`, and so do streams that have not ended.
        """
        with self._changed:
            self._is_closed = True
            # A handler of a signal may close the model within a call of its own thread.
            self._changed.wait_for(lambda: not set(self._users) - {threading.get_ident()})
        self._loaded.scheduler.close()
        self._loaded.runners.close()

    @contextlib.contextmanager
    def _using(self) -> Iterator[None]:
        """Keep the model open in the `with` block.

        Raises:
            ModelClosedError: It was closed.
        """
        self._enter()
        try:
            yield
        finally:
            self._leave()

    def _enter(self) -> None:
        with self._changed:
            if self._is_closed:
                raise ModelClosedError(f"{self.name!r} was closed. Load it again.")
            self._users.append(threading.get_ident())

    def _leave(self) -> None:
        with self._changed:
            self._users.remove(threading.get_ident())
            if self._is_closed:
                self._changed.notify_all()

    def _leave_to_parent(self) -> None:
        """Forget the calls of other threads, which a fork does not copy."""
        self._changed = threading.Condition()
        self._users = [each for each in self._users if each == threading.get_ident()]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what loads the model again, and the attributes that a caller can change."""
        found = [name for name in vars(self) if not name.startswith("_")]
        for kind in type(self).__mro__:
            found += [name for name, each in vars(kind).items() if getattr(each, "fset", None)]
        return _reopened, (self._loaded.reopen, {name: getattr(self, name) for name in found})

    def row_format(self, options: AnswerOptions) -> RowFormat:
        """Return the columns that the model reads and adds with these options of a call."""
        del options
        return self.rows

    @property
    def facts(self) -> dict[str, Any]:
        """What answers depend on besides the weights, by name: the pooling, the prompt and so on.

        It is printed with the model, and a server shows it, because nothing else does if it is
        wrong.
        """
        return {}

    def __repr__(self) -> str:
        shown = {"engine": self.engine, "target": self.target, **self.facts}
        named = "".join(f", {name}={value!r:.80}" for name, value in shown.items())
        return f"{type(self).__name__}({self.name!r}{named})"

    def stream(
        self,
        job: Job[_I, _A],
        inputs: Iterable[_I],
        *,
        advance: Callable[[Done], None] = lambda done: None,
        continues: bool = False,
        return_errors: bool = False,
    ) -> Iterator[_A]:
        """Yield the answer to each input, in order, with bounded memory.

        Args:
            job: The job for the inputs: the result of the model's `job`, which takes the
                options of a call.
            inputs: Any number of inputs. They are read as they are needed.
            advance: Called after each batch, with what it added.
            continues: Whether a whole number of windows of these inputs ran in an earlier call.
                Batches are then as if that call had gone on.
            return_errors: Whether to yield the `UserInputError` about an input in the place of its
                answer, instead of raising it. An input can be such an error itself.

        Raises:
            UserInputError: An input is not what the task needs.
        """
        found = self._open_while_read(
            self._scheduler(job).run(job, inputs, advance, continues=continues)
        )
        # The caller asked for errors between the answers.
        return found if return_errors else _raising(found)  # type: ignore[return-value]

    def _open_while_read(self, found: Generator[_A]) -> Generator[_A]:
        """Yield the items of a stream as long as the model is open."""
        with contextlib.closing(found):
            while True:
                # A context manager for each answer takes longer than the answer.
                self._enter()
                try:
                    each = next(found)
                except StopIteration:
                    return
                finally:
                    self._leave()
                yield each

    def forward(self, inputs: Mapping[str, NDArray[Any]]) -> Outputs:
        """Return the outputs of the graph for token ids, computed by all threads.

        Args:
            inputs: The result of a tokenizer, `(batch, tokens)` each, whole numbers: `input_ids`,
                and `attention_mask` and `token_type_ids` if the graph has them. Others are ignored.

        Returns:
            The outputs by name, float32.

        Raises:
            UserInputError: An input is missing, or longer than `max_length`.
        """
        runner = self._loaded.runners.single
        missing = [name for name in runner.input_names if name not in inputs]
        if missing:
            raise UserInputError(
                f"`inputs` lacks {', '.join(map(repr, missing))}. The graph reads "
                f"{', '.join(runner.input_names)}.",
                argument="inputs",
            )
        taken = {name: np.asarray(inputs[name], dtype=np.int64) for name in runner.input_names}
        tokens = taken["input_ids"].shape[-1]
        if tokens > self.max_length:
            raise UserInputError(
                f"`inputs` has {tokens} tokens, and the model reads {self.max_length} at most. "
                "Truncate texts in the tokenizer.",
                argument="inputs",
            )
        with self._using():
            return runner.run(taken)

    def run_in_stream(
        self,
        job: Job[_I, _A],
        items: Sequence[_I],
        *,
        pause: Callable[[], None] = lambda: None,
        prefixes: Prefixes | None = None,
    ) -> list[_A | UserInputError]:
        """Return the answer to each input or the error about it, computed on one core.

        A server calls this from as many threads as `streams` says.

        Args:
            job: The job for the inputs: the result of the model's `job`.
            items: The inputs; all are in memory together.
            pause: Called between batches. What it raises ends the call.
            prefixes: What texts of the same request begin with, if the inputs are a part of one.
        """
        with self._using():
            scheduler = self._scheduler(job)
            return scheduler.run_in_stream(job, items, pause=pause, prefixes=prefixes)

    def _scheduler(self, job: Job[Any, Any]) -> Scheduler:
        """Return what runs a job."""
        del job
        return self._loaded.scheduler

    def tokenizing_job(self, *, add_special_tokens: bool = True) -> Job[str, list[Token]]:
        """Return the job that tokenizes texts and runs nothing, for `stream`."""
        whole = self._loaded.tokenizer.cutting(None)
        return Tokenize(tokenizer=whole, add_special_tokens=add_special_tokens)

    def decoding_job(self, *, skip_special_tokens: bool = True) -> Job[Sequence[int], str]:
        """Return the job that makes texts of token ids and runs nothing, for `stream`."""
        return Decode(tokenizer=self._loaded.tokenizer, skip_special_tokens=skip_special_tokens)

    @property
    def mask_token(self) -> str | None:
        """The token that stands for a hidden word; `None` if the tokenizer has none."""
        return self._loaded.tokenizer.special_token("mask_token")

    @property
    def streams(self) -> int:
        """Number of batches that run at once."""
        return self._loaded.scheduler.streams

    @property
    def served_tokens(self) -> int:
        """Tokens of requests that a server runs together, about."""
        return self._loaded.scheduler.served_tokens

    def _all(
        self,
        job: Job[_I, _A],
        items: Sequence[_I],
        *,
        max_length: int | None = None,
        progress: Progress | None = None,
    ) -> list[_A]:
        """Return the answers to all items. The first ones that are truncated are logged.

        `max_length` is the limit of the job in tokens, the model's by default.
        """
        truncated = finished = 0
        shown = (progress or Silent()).throughput("Running the model", len(items))

        def count(done: Done) -> None:
            nonlocal truncated, finished
            truncated += done.truncated
            finished += done.items
            advance(rows=done.items, tokens=done.tokens, position=finished)

        # The position of a single input says nothing.
        with shown as advance, self._using():
            found = self._scheduler(job).run(job, items, count)
            answers = list(_raising(found, has_positions=len(items) > 1))
        if truncated:
            self._count_truncated(truncated, len(items), max_length or self.max_length)
        return answers

    def _call(
        self,
        job: Job[_I, _A],
        items: Sequence[_I],
        *,
        batch_size: int | None,
        show_progress_bar: bool | None,
        device: Any = None,
        max_length: int | None = None,
    ) -> list[_A]:
        """Return the answers to all items, for calls with arguments of sentence-transformers."""
        check_whole("batch_size", batch_size, at_least=1)
        check_device(device)
        progress = progress_of(bool(show_progress_bar))
        return self._all(job, items, max_length=max_length, progress=progress)

    @property
    def truncated_inputs(self) -> int:
        """Number of inputs of calls that were cut so far. Inputs of `stream` do not count."""
        return self._truncated

    def _count_truncated(self, truncated: int, items: int, max_length: int) -> None:
        with self._changed:
            is_first = not self._truncated
            self._truncated += truncated
        if is_first:
            _LOGGER.warning(
                "%s This is logged once; `truncated_inputs` of the model has the number so far.",
                self.describe_truncation(truncated, items, max_length),
            )

    def describe_truncation(self, truncated: int, items: int, max_length: int) -> str:
        """Return a sentence about truncated inputs."""
        return cut_notice(truncated, items, "input", f"{max_length} tokens")


def _reopened(reopen: Callable[[], Model], attributes: Mapping[str, Any]) -> Model:
    """Return a model that was pickled."""
    model = reopen()
    for name, value in attributes.items():
        setattr(model, name, value)
    return model


def _raising(found: Generator[_A | UserInputError], *, has_positions: bool = True) -> Generator[_A]:
    """Yield answers, and raise the first error, with the position of its input."""
    with contextlib.closing(found):
        for position, each in enumerate(found):
            if isinstance(each, UserInputError):
                raise located(each, position) if has_positions else each
            yield each


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextEncoder:
    """Makes one feature of each text or pair of texts."""

    tokenizer: Tokenizer
    input_names: Sequence[str]

    def encode(self, items: Sequence[Any]) -> list[EncodedItem]:
        """Return the model inputs of each item."""
        return self.encode_kept(self.tokenizer.encode_start(items))

    def encode_kept(self, kept: Sequence[Kept]) -> list[EncodedItem]:
        """Return the model inputs of items that were tokenized."""
        return [
            EncodedItem(features=(feature_of(each, self.input_names),), truncated=each.truncated)
            for each in kept
        ]

    def answer(self, _: Any, __: EncodedItem, values: Sequence[Any], /) -> Any:
        """Return what `split` kept of the item's only feature."""
        return values[0]
