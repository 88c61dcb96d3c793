"""What a ready .onnx file does not hold: tokenizer, config, names of classes, longest input."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import AutoConfig, AutoTokenizer, PretrainedConfig

from qdqbert.checkpoint.families import FAMILIES
from qdqbert.choices import EngineName
from qdqbert.engines.runner import Outputs, Runner, open_runner
from qdqbert.errors import QdqBertError, UserInputError
from qdqbert.graph.export import OF_TOKENS, SENTENCE_EMBEDDING
from qdqbert.graph.imported.renamed_copy import write_renamed_copy
from qdqbert.tasks import TASKS

_PREDICTS_WORDS = ("fill-mask", "text-generation")
_CLASSIFIES = ("text-classification", "token-classification")
_USUAL_LENGTH = 512
_UNLIMITED = 1_000_000
# Tokenizers without a limit say a number far above.
_PADDING = 64
# Tables of words and heads are filled up to a multiple of 8 or 64, for speed.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Companions:
    """What goes with a graph.

    Attributes:
        tokenizer: Its tokenizer.
        config: Its config, or as much of one as the graph tells.
        model_type: transformers' name of its family; `None` without a config.
        max_length: Longest input in tokens.
        notices: What the user should know.
    """

    tokenizer: Any
    config: Any
    model_type: str | None
    max_length: int
    notices: tuple[str, ...]


def is_graph_file(name: str | Path) -> bool:
    """Whether a model is an .onnx file rather than a checkpoint or a folder."""
    return str(name).lower().endswith(".onnx") and not Path(name).is_dir()


class GraphRunner:
    """A user's graph on an engine, whose failures are told in one line; a `Runner`.

    Attributes:
        vocabulary: Rows of its table of word embeddings, if that is found.
        named: transformers' names of inputs that were found by what the user said.
    """

    def __init__(
        self,
        runner: Runner,
        path: Path,
        *,
        vocabulary: int | None,
        named: frozenset[str] = frozenset(),
    ) -> None:
        self._runner, self._path = runner, path
        self.vocabulary, self.named = vocabulary, named
        self.input_names, self.output_names = runner.input_names, runner.output_names
        self.precision = runner.precision

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Outputs:
        """One forward pass.

        Raises:
            UserInputError: It fails, or the graph does not know one of the words.
        """
        check_words(inputs, self._path, self.vocabulary)
        with running(self._path):
            return self._runner.run(inputs)


def check_words(inputs: Mapping[str, NDArray[Any]], path: Path, vocabulary: int | None) -> None:
    """Refuses ids beyond a graph's words, which some engines read as others without a word.

    Raises:
        UserInputError: There is one.
    """
    largest = int(inputs["input_ids"].max())
    if vocabulary is not None and largest >= vocabulary:
        raise UserInputError(
            f"Graph {path.name!r} has embeddings of {vocabulary} words, and the tokenizer gives id "
            f"{largest}. Pass the `--tokenizer` of this model."
        )


@contextlib.contextmanager
def running(path: Path) -> Iterator[None]:
    """Turns what an engine says of a graph that fails while it runs into one line.

    Raises:
        UserInputError: It fails.
    """
    try:
        yield
    except QdqBertError:
        raise
    except Exception as error:  # engines' have no common class
        reason = " ".join(str(error).split())[:200].rstrip(".")
        raise UserInputError(
            f"Graph {path.name!r} fails when it runs: {reason}. Pass the `--tokenizer` that it was "
            "made for, and a `--max-length` that it takes."
        ) from error


def check_task(task: str | None) -> str:
    """The task of a graph, which it cannot tell itself.

    Raises:
        UserInputError: It is missing or unknown.
    """
    if task not in TASKS:
        said = (
            "`--task` is missing: a graph does not say what it is for"
            if task is None
            else f"`--task {task}` is unknown"
        )
        raise UserInputError(f"{said}. Pass one of: {', '.join(TASKS)}.")
    return task


def open_any_graph(
    path: Path,
    *,
    task: str,
    engine: EngineName,
    provider: str | None = None,
    input_names: Mapping[str, str],
    others: bool = False,
) -> GraphRunner:
    """Loads an .onnx file as it is, float or quantized, under transformers' names.

    Args:
        path: The .onnx file.
        task: What it is for.
        engine: What runs it.
        provider: Of ONNX Runtime.
        input_names: As in `write_renamed_copy`.
        others: As in `write_renamed_copy`.

    Raises:
        UserInputError: It cannot be read, is another task's, or does not run on the engine.
    """
    with tempfile.TemporaryDirectory() as scratch:
        graph = write_renamed_copy(
            path, task=task, input_names=input_names, scratch=Path(scratch), others=others
        )
        try:
            runner = open_runner(engine, graph.path, provider=provider)
        except QdqBertError:
            raise
        except Exception as error:  # engines' have no common class
            reason = " ".join(str(error).split())[:200].rstrip(".")
            raise UserInputError(
                f"Graph {path.name!r} does not run on {engine}: {reason}. Pass another `--engine`."
            ) from error
    return GraphRunner(runner, path, vocabulary=graph.vocabulary, named=graph.named)


def read_companions(
    path: Path, *, task: str, tokenizer: str | None, runner: GraphRunner
) -> Companions:
    """Loads what goes with a graph.

    Args:
        path: The .onnx file.
        task: What it is for.
        tokenizer: Folder or hub id of its tokenizer, and config if there is one; the file's own
            folder if `None`.
        runner: The graph, loaded; it tells how many classes and words there are.

    Raises:
        UserInputError: There is no tokenizer, or it or the config is of another model.
    """
    loaded, config, has_labels = _load_tokenizer(tokenizer, path)
    # So that it makes what the graph reads: RoBERTa's would make no token types.
    loaded.model_input_names = list(runner.input_names)
    _check_vocabulary(path, runner.vocabulary, config)
    model_type = getattr(config, "model_type", None)
    reserved = FAMILIES[model_type].reserved_positions if model_type in FAMILIES else 0
    positions = getattr(config, "max_position_embeddings", None)
    limits = [positions and positions - reserved, loaded.model_max_length]
    known = [limit for limit in limits if limit and limit < _UNLIMITED]
    notices: tuple[str, ...] = ()
    shape = _shape_of(runner, path, task)
    words = runner.vocabulary
    if task in _PREDICTS_WORDS and words is not None and words - shape[-1] >= _PADDING:
        raise UserInputError(
            f"Graph {path.name!r} gives {shape[-1]} numbers a token, and task `{task}` reads one "
            f"for each of its {words} words. Pass another `--task`."
        )
    classes = shape[-1] if task in _CLASSIFIES else None
    if config is None:
        config = PretrainedConfig(vocab_size=len(loaded))
        if classes is not None:
            config.num_labels = classes
        notices = ("There is no config.json beside the tokenizer: classes have numbers.",)
    elif classes is not None and not has_labels:
        config.num_labels = classes
        notices = ("The config.json beside the tokenizer names no classes: they have numbers.",)
    elif classes not in (None, config.num_labels):
        raise UserInputError(
            f"Graph {path.name!r} has {classes} classes, and the config.json beside the "
            f"tokenizer {config.num_labels}. Pass the `--tokenizer` of this model."
        )
    return Companions(
        tokenizer=loaded,
        config=config,
        model_type=model_type,
        max_length=int(min(known)) if known else _USUAL_LENGTH,
        notices=notices,
    )


def _shape_of(runner: Runner, path: Path, task: str) -> tuple[int, ...]:
    """The shape of what a graph gives, by a run: its own word may be missing, or untrue."""
    ones = np.ones((1, 2, 4) if task == "multiple-choice" else (1, 4), np.int64)
    inputs = dict.fromkeys(runner.input_names, ones)
    if "token_type_ids" in inputs:  # some models know no other type
        inputs["token_type_ids"] = np.zeros_like(ones)
    name = runner.output_names[0]
    shape: tuple[int, ...] = runner.run(inputs)[name].shape
    rank = 3 if task in OF_TOKENS and name != SENTENCE_EMBEDDING else 2
    if len(shape) != rank:
        raise UserInputError(
            f"Graph {path.name!r} gives {len(shape)} dimensions, and task `{task}` reads {rank}: "
            f"a number for each {'token' if rank == 3 else 'text'}. Pass another `--task`."
        )
    return shape


def _check_vocabulary(path: Path, words: int | None, config: Any) -> None:
    """Refuses a config of other words; that there are enough is checked when texts are read."""
    said = getattr(config, "vocab_size", None)
    if words is None or said is None or 0 <= words - said < _PADDING:
        return
    raise UserInputError(
        f"Graph {path.name!r} has embeddings of {words} words, and the config.json beside the "
        f"tokenizer {said}. Pass the `--tokenizer` of this model."
    )


def _load_tokenizer(given: str | None, path: Path) -> tuple[Any, Any, bool]:
    """Tokenizer and config of a folder or a hub id, and whether the config names classes.

    No config is `None`.
    """
    name = given or str(path.parent)
    said = f"`--tokenizer {given}`" if given else f"The tokenizer beside graph {path.name!r}"
    wayout = "" if given else "Put it there, or pass `--tokenizer`. "
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, use_fast=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = str(error).strip().split("\n")[0]
        raise UserInputError(
            f"{said} cannot be loaded: {reason.rstrip('.')}. {wayout}Expected a folder with "
            "tokenizer.json, or a hub id."
        ) from error
    if len(tokenizer) <= len(tokenizer.all_special_tokens):
        raise UserInputError(
            f"{said} holds no vocabulary; expected tokenizer.json or vocab.txt. {wayout}".rstrip()
        )
    try:
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
        fields, _ = PretrainedConfig.get_config_dict(name)
    except (OSError, ValueError, KeyError, TypeError):
        return tokenizer, None, False
    return tokenizer, config, "id2label" in fields or "num_labels" in fields
