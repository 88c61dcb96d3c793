"""Load the parts that an .onnx file lacks: tokenizer, config, class names, longest input."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING, AutoConfig, PretrainedConfig

from qdqbert.common.errors import UserInputError, naming, one_line
from qdqbert.common.file_names import CONFIG
from qdqbert.encoders.checkpoint.calls import files_of
from qdqbert.encoders.checkpoint.cross_encoder import CrossEncoderFiles, task_of_files, used_files
from qdqbert.encoders.checkpoint.description import Described, known_task, set_classes_
from qdqbert.encoders.checkpoint.hub import check_hub_model
from qdqbert.encoders.checkpoint.layout import pair_template_of
from qdqbert.encoders.checkpoint.sentence import SentenceHead
from qdqbert.encoders.checkpoint.text_heads import TextHead, read_layout
from qdqbert.encoders.checkpoint.tokenizer import LoadedTokenizer, lacking_tokens, load_tokenizer
from qdqbert.encoders.config import Config
from qdqbert.encoders.families import FAMILIES
from qdqbert.encoders.task_kinds import TASK_KINDS, TASK_NAMES, TaskName, check_classes

_DEFAULT_LENGTH = 512
# Tokenizers without a limit have a `model_max_length` far above this.
_UNLIMITED = 1_000_000
# Embedding tables are padded to a multiple of 8 or 64 rows, for speed.
_ROW_PADDING = 64
_UNREADABLE = (OSError, ValueError, KeyError, TypeError)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GraphFacts:
    """Facts about the tokenizer and the config, read from a graph.

    Attributes:
        input_names: transformers' names of its inputs.
        outputs: Numbers that its first output has for each text or token.
        is_pooled: Whether it makes one embedding of each text.
        vocabulary_size: Rows of its table of word embeddings, if there is such a table.
        max_length: Longest input in tokens that it takes; `None` for any.
    """

    input_names: tuple[str, ...]
    outputs: int
    is_pooled: bool
    vocabulary_size: int | None
    max_length: int | None


def choose_task(path: Path, *, task: str | None, tokenizer: str | None) -> TaskName:
    """Return the task of an .onnx file.

    Args:
        path: The .onnx file.
        task: The task that the user named; it takes precedence.
        tokenizer: Folder or hub id of the tokenizer, whose config names the architecture; the
            file's own folder if `None`.

    Raises:
        UserInputError: The task is unknown, or is missing and cannot be inferred, or .onnx files
            of its models are not read.
    """
    if task is not None:
        return _supported(known_task(task), path)
    fields = _config_fields(tokenizer, path)
    architectures = [each for each in fields.get("architectures") or [] if isinstance(each, str)]
    config = Config(values=fields, path=_config_path(tokenizer, path))
    inferred = task_of_files(architectures, config, _read_layout(tokenizer, path))
    if inferred is None:
        reason = (
            f"its config names the architecture {architectures[0]}"
            if architectures
            else "there is no config.json next to its tokenizer that names an architecture"
        )
        raise UserInputError(
            f"`task` is missing, and cannot be inferred for graph {path.name!r}: {reason}. Pass "
            f"one of: {', '.join(TASK_NAMES)}.",
            argument="task",
        )
    return _supported(inferred, path)


def _supported(task: TaskName, path: Path) -> TaskName:
    """Return a task, unless .onnx files of its models are not read."""
    if TASK_KINDS[task].vectors in ("sparse", "tokens"):
        raise UserInputError(
            f"Graph {path.name!r}: .onnx files are not read for the task `{task}`. Pass the folder "
            "of the checkpoint as the model.",
            argument="task",
        )
    return task


def _config_fields(tokenizer: str | None, path: Path) -> dict[str, Any]:
    """Return the fields of the config.json next to the tokenizer, or nothing if there is none.

    Raises:
        UserInputError: The file cannot be read.
        CheckpointError: The tokenizer is neither a folder nor a model of the hub.
    """
    if tokenizer and not Path(tokenizer).exists():
        with naming("tokenizer"):
            check_hub_model(tokenizer)
    try:
        fields, _ = PretrainedConfig.get_config_dict(tokenizer or str(path.parent))
        return dict(fields)
    except _UNREADABLE as error:
        raise _unusable_config(tokenizer, path, error) from error


def _config_path(tokenizer: str | None, path: Path) -> str:
    return str(Path(tokenizer or path.parent) / CONFIG)


def _unusable_config(tokenizer: str | None, path: Path, error: Exception) -> UserInputError:
    place = f"`tokenizer={tokenizer!r}`" if tokenizer else f"graph {path.name!r}"
    return UserInputError(
        f"The config.json of {place} cannot be used: {one_line(error)}. Repair or replace it, or "
        "pass another `tokenizer`.",
        argument="tokenizer",
    )


def load_tokenizer_and_config(
    path: Path, *, task: TaskName, tokenizer: str | None, graph: GraphFacts
) -> Described:
    """Load the tokenizer and the config of an .onnx file, and check that they fit it.

    `tokenizer` is the folder or hub id of its tokenizer, and of its config if there is one; the
    file's own folder if `None`. `graph` is what the graph shows of them.

    Raises:
        UserInputError: There is no tokenizer, or tokenizer or config belong to another model.
    """
    (loaded, token_notices), config, has_labels = _load(tokenizer, path)
    # The tokenizer has to return the graph's inputs: RoBERTa's returns no token types.
    loaded.model_input_names = list(graph.input_names)
    _check_vocabulary(path, graph.vocabulary_size, config)
    with naming("tokenizer"):
        # Whether there are enough embeddings is checked when texts are read.
        lacking = lacking_tokens(loaded, graph.vocabulary_size or 0, tokenizer or str(path.parent))
    classes = graph.outputs if TASK_KINDS[task].has_classes else None
    notices: tuple[str, ...] = ()
    model_type = getattr(config, "model_type", None)
    layout: TextHead | CrossEncoderFiles | None = None
    # A pooled graph is complete, whatever modules it was made of.
    if TASK_KINDS[task].is_of_whole_texts and not graph.is_pooled:
        layout = _read_layout(tokenizer, path)
    if layout:
        layout.prepare_tokenizer_(loaded.backend_tokenizer)
    stored_length = layout.max_length if layout else None
    lengths = (_max_length(loaded, config), graph.max_length, stored_length)
    if config is None:
        config = PretrainedConfig(vocab_size=len(loaded))
        if classes is not None:
            config.num_labels = classes
        notices = (
            "There is no config.json of a known model type next to the tokenizer: classes have "
            "numbers.",
        )
    elif classes is not None and not has_labels:
        config.num_labels = classes
        notices = ("The config.json next to the tokenizer names no classes: they have numbers.",)
    elif classes not in (None, config.num_labels):
        raise UserInputError(
            f"Graph {path.name!r} has {classes} classes, and the config.json next to the "
            f"tokenizer has {config.num_labels}. Pass the `tokenizer` of this model.",
            argument="tokenizer",
        )
    check_classes(task, config.id2label, where=_config_path(tokenizer, path))
    cross_encoder, pair_notices = used_files(layout, Config(values=config.to_dict()), task)
    pools = TASK_KINDS[task].vectors == "sentence" and not graph.is_pooled
    pooling_notices = _pooling_notices(path, layout) if pools else ()
    return Described(
        input_names=graph.input_names,
        tokenizer=loaded,
        config=config,
        model_type=model_type,
        max_length=min(filter(None, lengths)),
        cross_encoder=cross_encoder,
        pair_template=pair_template_of(layout, files_of(tokenizer or str(path.parent)), path.name),
        notices=(*notices, *pooling_notices, *pair_notices, *token_notices, *lacking),
    )


def _read_layout(tokenizer: str | None, path: Path) -> TextHead | CrossEncoderFiles | None:
    """Read the files of sentence-transformers next to the tokenizer."""
    return read_layout(files_of(tokenizer or str(path.parent)))


def _pooling_notices(path: Path, layout: object) -> tuple[str, ...]:
    """Return notices about the pooling of token states, if it may be wrong."""
    use = f"graph {path.name!r} returns token states only, and their mean is used."
    advice = (
        "Export the graph with an output `sentence_embedding`, or quantize the checkpoint instead"
    )
    if not isinstance(layout, SentenceHead):
        return (
            f"There is no modules.json next to the tokenizer, so the pooling is not known: {use} "
            "If the model was trained with another pooling, as BGE models are with cls, "
            f"embeddings are wrong. {advice}, with `pooling`.",
        )
    left_out = ", ".join(layout.after_pooling)
    is_mean = layout.poolings == ("mean",)
    if not is_mean or left_out:
        named = ", ".join(layout.poolings)
        what = f"{left_out} after the pooling" if is_mean else f"pooling {named}"
        return (
            f"modules.json specifies {what}, but {use} So embeddings differ from the model's. "
            f"{advice}.",
        )
    if layout.normalize:
        return (
            f"modules.json specifies vectors of length 1, but {use} Pass "
            "`normalize_embeddings=True` to `encode`.",
        )
    return ()


def _max_length(tokenizer: Any, config: Any) -> int:
    model_type = getattr(config, "model_type", None)
    positions = getattr(config, "max_position_embeddings", None)
    if model_type in FAMILIES:
        positions = FAMILIES[model_type].longest_input(config)
    limits = [positions, tokenizer.model_max_length]
    known = [limit for limit in limits if limit and limit < _UNLIMITED]
    return int(min(known)) if known else _DEFAULT_LENGTH


def _check_vocabulary(path: Path, rows: int | None, config: Any) -> None:
    """Refuse a config with another vocabulary."""
    size = getattr(config, "vocab_size", None)
    if rows is None or size is None or 0 <= rows - size < _ROW_PADDING:
        return
    raise UserInputError(
        f"Graph {path.name!r} has embeddings for {rows} token ids, and the config.json next to "
        f"the tokenizer has `vocab_size` {size}. Pass the `tokenizer` of this model.",
        argument="tokenizer",
    )


def _load(given: str | None, path: Path) -> tuple[LoadedTokenizer, Any, bool]:
    """Return the tokenizer, the config or `None`, and whether the config names classes."""
    name = given or str(path.parent)
    subject = f"`tokenizer={given!r}`" if given else f"The tokenizer next to graph {path.name!r}"
    hint = "" if given else "Put it there, or pass `tokenizer`. "
    fields = _config_fields(given, path)
    names = Config(values=fields, path=_config_path(given, path)).class_names()
    try:
        loaded = load_tokenizer(name)
    except _UNREADABLE as error:
        reason = one_line(str(error).strip().partition("\n")[0])
        raise UserInputError(
            f"{subject} cannot be loaded: {reason}. {hint}Expected a folder with "
            "tokenizer.json, or a hub id.",
            argument="tokenizer",
        ) from error
    if len(loaded.tokenizer) <= len(loaded.tokenizer.all_special_tokens):
        raise UserInputError(
            f"{subject} has no vocabulary; expected tokenizer.json or vocab.txt. {hint}".rstrip(),
            argument="tokenizer",
        )
    # A family that transformers does not know needs no config: its graph is enough.
    if fields.get("model_type") not in CONFIG_MAPPING:
        return loaded, None, False
    try:
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
    except _UNREADABLE as error:
        raise _unusable_config(given, path, error) from error
    set_classes_(config, names)
    return loaded, config, fields.get("id2label") is not None or "num_labels" in fields
