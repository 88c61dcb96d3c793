"""Load a checkpoint from a local folder or the hub: safetensors only, no remote code."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from tokenizers import normalizers
from transformers.utils import logging as transformers_logging
from transformers.utils.hub import cached_file

from qdqbert.checkpoint.families import Family, family_of
from qdqbert.checkpoint.hub import check_hub_model
from qdqbert.checkpoint.sentence import SentenceHead, read_sentence_head
from qdqbert.checkpoint.task_names import AUTO_CLASSES, check_outputs, head_of, tasks_of
from qdqbert.choices import POOLING_MODES, TASK_NAMES, PoolingMode, TaskName
from qdqbert.errors import CheckpointError, UserInputError

# Tasks whose heads are all called `classifier`.
_CLASSIFIERS = ("text-classification", "token-classification", "multiple-choice")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A float model with everything that is needed to feed it.

    Attributes:
        name: Folder or hub id, as the user gave it.
        task: The task of its head.
        family: Where its sites are.
        model: The model, in evaluation mode, float32, on the CPU.
        tokenizer: Its tokenizer.
        head: Pooling and normalization of an embedder, if they are known.
        max_length: Longest input in tokens.
        input_names: Those of `input_ids`, `attention_mask`, `token_type_ids` that the model reads.
        notices: Sentences for the user.
    """

    name: str
    task: TaskName
    family: Family
    model: torch.nn.Module
    tokenizer: Any
    head: SentenceHead | None
    max_length: int
    input_names: tuple[str, ...]
    notices: tuple[str, ...] = ()

    @property
    def config(self) -> Any:
        """The transformers config of the model."""
        return self.model.config


def load_checkpoint(
    name: str,
    *,
    task: str | None = None,
    class_for: Callable[[Any, Any], Any] = lambda float_class, config: float_class,
    new_head: Sequence[str] | None = None,
    pooling: str | None = None,
) -> Checkpoint:
    """Load model, tokenizer and config.

    Args:
        name: A local folder or a hub id.
        task: A task name of transformers; inferred from the config's `architectures` if `None`.
        class_for: Returns the class to load, given the model's class and its config.
        new_head: Classes of a head that is created for training if the checkpoint has none; empty
            for heads without classes. `None` refuses such a checkpoint.
        pooling: How an embedder's token states become one vector; `None` for what the checkpoint
            specifies.

    Raises:
        CheckpointError: The checkpoint does not exist, has no safetensors weights, lacks weights
            or has weights of other shapes, has a tokenizer with more ids than embeddings, its
            family is unknown, or its head is missing.
        UserInputError: The task is unknown or not supported, or `pooling` cannot be used.
    """
    _check_name(name)
    stored_head, config = _read_configs(name)
    subfolder = stored_head.subfolder if stored_head else ""
    family = family_of(config.model_type)
    chosen = _choose_task(task, config)
    head, notices = _choose_head(name, stored_head, chosen, pooling)
    _check_config(config, chosen)
    if new_head is None:
        _check_other_heads(name, config, head_of(chosen))
    elif new_head and head_of(chosen) not in tasks_of(config):
        config.id2label = dict(enumerate(new_head))
        config.label2id = {label: index for index, label in config.id2label.items()}
    check_outputs(chosen, config.num_labels)
    model, info = _from_transformers(
        name,
        class_for(_model_class(chosen, config), config).from_pretrained,
        name,
        subfolder=subfolder,
        config=config,
        use_safetensors=True,
        dtype=torch.float32,
        output_loading_info=True,
        # Reported by `_check_weights`, because transformers' error does not name the weight.
        ignore_mismatched_sizes=True,
    )
    _check_weights(name, model, chosen, info, needs_head=new_head is None)
    tokenizer = _load_tokenizer(name, subfolder, lower_case=bool(head and head.lower_case))
    _check_vocabulary(name, model, tokenizer)
    usable = family.longest_input(config)
    stored_length = (stored_head and stored_head.max_length) or usable
    return Checkpoint(
        name=name,
        task=chosen,
        family=family,
        model=model.eval(),
        tokenizer=tokenizer,
        head=head,
        max_length=int(min(usable, tokenizer.model_max_length, stored_length)),
        input_names=_input_names(tokenizer, config),
        notices=notices,
    )


def read_config(name: str) -> Any:
    """Return the config of a checkpoint.

    Raises:
        CheckpointError: The checkpoint does not exist, or its config cannot be read.
    """
    _check_name(name)
    _, config = _read_configs(name)
    return config


def check_positions(config: Any) -> None:
    """Raise `CheckpointError` for positions that transformers 5 does not compute."""
    kind = getattr(config, "position_embedding_type", None) or "absolute"
    if kind != "absolute":
        raise CheckpointError(
            f"`position_embedding_type={kind!r}` is not computed by transformers 5; only "
            "'absolute' is supported."
        )


def _choose_task(task: str | None, config: Any) -> TaskName:
    known = ", ".join(TASK_NAMES)
    if task is not None:
        if task not in TASK_NAMES:
            raise UserInputError(
                f"`task={task!r}` is unknown. Known tasks: {known}.", argument="task"
            )
        return task
    inferred = tasks_of(config)[0]
    if inferred is None:
        raise UserInputError(
            f"The task of architecture `{config.architectures[0]}` is not known. Pass `task`, one "
            f"of: {known}.",
            argument="task",
        )
    return inferred


def _choose_head(
    name: str, stored: SentenceHead | None, task: TaskName, pooling: str | None
) -> tuple[SentenceHead | None, tuple[str, ...]]:
    """Return the pooling and normalization of an embedder, and notices about them."""
    if task != "feature-extraction":
        if pooling is not None:
            raise UserInputError(
                f"`pooling={pooling!r}` is for task `feature-extraction`, got task `{task}`. Leave "
                "it out.",
                argument="pooling",
            )
        return None, ()
    if pooling is None and stored is None:
        return None, (
            f"{name!r} has no modules.json, so its pooling is not known: the mean of the token "
            f"states is used. If it was trained with another one, pass `pooling`: "
            f"{', '.join(POOLING_MODES)}. BGE models, for example, use cls.",
        )
    notices = []
    if stored is not None and stored.default_prompt:
        notices.append(
            f"sentence-transformers puts the prompt {stored.default_prompt!r} before each text. "
            "qdqbert does not: add it to the data."
        )
    if pooling is None:
        return stored, tuple(notices)
    mode = _pooling_mode(pooling)
    if stored is None:
        return SentenceHead(pooling=mode, normalize=False, max_length=None), ()
    if stored.pooling != mode:
        notices.append(
            f"modules.json specifies pooling {stored.pooling}; {mode} is used, as requested."
        )
    return (stored if stored.pooling == mode else stored.with_pooling(mode)), tuple(notices)


def _pooling_mode(pooling: str) -> PoolingMode:
    for mode in POOLING_MODES:
        if mode == pooling:
            return mode
    raise UserInputError(
        f"`pooling={pooling!r}` is unknown. Known: {', '.join(POOLING_MODES)}.", argument="pooling"
    )


def _check_config(config: Any, task: TaskName) -> None:
    check_positions(config)
    if task == "text-generation":
        # Without it BERT's causal head would see the tokens that it has to predict.
        config.is_decoder, config.use_cache = True, False
    elif getattr(config, "is_decoder", False):
        raise CheckpointError(
            "`is_decoder=True` in config.json is for task `text-generation` only; all other tasks "
            "read a text in both directions."
        )


def _check_other_heads(name: str, config: Any, task: TaskName) -> None:
    """Refuse a head of another task whose weights have equal names, and would be loaded."""
    classifiers = [each for each in tasks_of(config) if each in _CLASSIFIERS]
    if task in _CLASSIFIERS and classifiers and task not in classifiers:
        raise UserInputError(
            f"`task={task!r}` was given, but checkpoint {name!r} has a head for "
            f"`{classifiers[0]}` ({config.architectures[0]}). Pass that task, or leave it out.",
            argument="task",
        )


def _model_class(task: TaskName, config: Any) -> Any:
    mapping = getattr(transformers, AUTO_CLASSES[task])._model_mapping
    if type(config) not in mapping:
        raise UserInputError(
            f"`task={task!r}`: transformers has no such head for `{config.model_type}`.",
            argument="task",
        )
    return mapping[type(config)]


def _check_weights(
    name: str, model: Any, task: TaskName, info: dict[str, Any], *, needs_head: bool
) -> None:
    """Refuse missing weights, and weights of other shapes, which are random after loading."""
    for weight, stored, expected in sorted(info["mismatched_keys"]):
        raise CheckpointError(
            f"Weight `{weight}` of checkpoint {name!r} has shape {tuple(stored)}, but its "
            f"config.json describes shape {tuple(expected)}. Use the config.json that belongs to "
            "the weights."
        )
    missing = sorted(info["missing_keys"])
    # transformers adds a pooler to encoders; it is a part of the heads that read it.
    encoder = {key for key in missing if "pooler." not in key and _is_in_encoder(model, key)}
    if encoder:
        raise CheckpointError(
            f"Checkpoint {name!r} is incomplete: its files lack {_weights(len(encoder))} of the "
            f"encoder that its config.json describes, among them `{min(encoder)}`. Download or "
            "copy it again, or correct config.json."
        )
    head = [] if task == "feature-extraction" else [key for key in missing if key not in encoder]
    if head and needs_head:
        raise CheckpointError(
            f"Checkpoint {name!r} has no head for task `{task}`: it lacks {_weights(len(head))}, "
            f"among them `{head[0]}`. Fine-tune it for the task first, or pass another `task`.",
            argument="task",
        )


def _is_in_encoder(model: Any, key: str) -> bool:
    """Return whether a weight belongs to the encoder, under a head or on its own."""
    has_head = hasattr(model, model.base_model_prefix)
    return not has_head or key.startswith(f"{model.base_model_prefix}.")


def _weights(count: int) -> str:
    return "1 weight" if count == 1 else f"{count} weights"


def _load_tokenizer(name: str, subfolder: str, *, lower_case: bool) -> Any:
    tokenizer = _from_transformers(
        name, transformers.AutoTokenizer.from_pretrained, name, subfolder=subfolder, use_fast=True
    )
    if len(tokenizer) <= len(tokenizer.all_special_tokens):
        raise CheckpointError(
            f"Checkpoint {name!r} has no tokenizer; expected tokenizer.json or a vocabulary."
        )
    if lower_case:
        # As sentence-transformers does for `do_lower_case` in its settings.
        backend = tokenizer.backend_tokenizer
        steps = [normalizers.Lowercase(), *([backend.normalizer] if backend.normalizer else [])]
        backend.normalizer = normalizers.Sequence(steps)
    return tokenizer


def _check_vocabulary(name: str, model: Any, tokenizer: Any) -> None:
    """Refuse a tokenizer with ids that have no embedding. Unused embeddings are allowed."""
    embeddings = model.get_input_embeddings().weight.shape[0]
    token, largest = max(tokenizer.get_vocab().items(), key=lambda item: item[1])
    if largest >= embeddings:
        raise CheckpointError(
            f"The tokenizer of checkpoint {name!r} has ids up to {largest} ({token!r}), but the "
            f"model has only {embeddings} embeddings, for ids up to {embeddings - 1}. Use the "
            "tokenizer that the model was trained with."
        )


def _input_names(tokenizer: Any, config: Any) -> tuple[str, ...]:
    """Return the inputs that the tokenizer makes and the model reads."""
    # Not all models have a table of segments.
    segments = ("token_type_ids",) if getattr(config, "type_vocab_size", 0) else ()
    known = ("input_ids", "attention_mask", *segments)
    return tuple(name for name in known if name in tokenizer.model_input_names)


def _from_transformers(name: str, function: Any, *args: Any, **kwargs: Any) -> Any:
    """Call transformers without remote code; see `_call`."""
    return _call(name, function, *args, trust_remote_code=False, **kwargs)


def _call(name: str, function: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a function without progress bars and warnings.

    Its errors become a `CheckpointError` of one line that names the checkpoint.
    """
    try:
        with _quiet():
            return function(*args, **kwargs)
    except CheckpointError:
        raise
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        reason = str(error).strip().split("\n")[0]
        raise CheckpointError(
            f"Checkpoint {name!r} cannot be loaded: {reason} Expected a local folder with "
            "config.json, model.safetensors and a tokenizer, or the id of a hub model that has "
            "them."
        ) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide progress bars, reports on weights, which are checked here, and repeated requests."""
    hub = logging.getLogger("huggingface_hub")
    hub_level = hub.level
    level, has_bars = (
        transformers_logging.get_verbosity(),
        transformers_logging.is_progress_bar_enabled(),
    )
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    hub.setLevel(logging.ERROR)
    try:
        yield
    finally:
        hub.setLevel(hub_level)
        transformers_logging.set_verbosity(level)
        if has_bars:
            transformers_logging.enable_progress_bar()


def _read_configs(name: str) -> tuple[SentenceHead | None, Any]:
    """Return the sentence head of a checkpoint, if it has one, and its encoder's config."""

    def read(path: str) -> str | None:
        found = _call(name, cached_file, name, path, _raise_exceptions_for_missing_entries=False)
        return None if found is None else Path(found).read_text(encoding="utf-8")

    head: SentenceHead | None = _call(name, read_sentence_head, read)
    subfolder = head.subfolder if head else ""
    load_config = transformers.AutoConfig.from_pretrained
    return head, _from_transformers(name, load_config, name, subfolder=subfolder)


def _check_name(name: str) -> None:
    """Refuse a model that is nowhere, a file, and a folder without safetensors weights."""
    folder = Path(name)
    if not folder.exists():
        check_hub_model(name)
        return
    if not folder.is_dir():
        raise CheckpointError(f"{name!r} is a file; expected a checkpoint folder or a hub id.")
    files = [path.name for path in folder.rglob("*") if path.is_file()]
    if any(file.endswith(".safetensors") for file in files):
        return
    pickles = sorted(file for file in files if file.endswith((".bin", ".pt", ".pth", ".ckpt")))
    if pickles:
        raise CheckpointError(
            f"Checkpoint {str(folder)!r} has only pickled weights ({pickles[0]}), which can run "
            "code when they are read, so they are refused. Convert them once where you trust "
            "them: `AutoModel.from_pretrained(folder).save_pretrained(new_folder)` writes "
            "model.safetensors."
        )
    graphs = sorted(path for path in folder.rglob("*.onnx") if path.is_file())
    if graphs:
        raise CheckpointError(
            f"Checkpoint {str(folder)!r} has no weights but an ONNX model. To use it, pass the "
            f"path of the file: {str(graphs[0])!r}."
        )
    raise CheckpointError(
        f"Checkpoint {str(folder)!r} has no weights; expected config.json and model.safetensors."
    )
