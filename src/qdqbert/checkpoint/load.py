"""Loads a checkpoint: a local folder or a hub id, safetensors only, no remote code."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from transformers.utils.hub import cached_file

from qdqbert.checkpoint.families import Family, family_of
from qdqbert.checkpoint.sentence import SentenceHead, read_sentence_head
from qdqbert.checkpoint.task_names import TASK_NAMES, TaskName, task_of_architecture
from qdqbert.errors import CheckpointError, UserInputError

_CLASSIFIERS = ("text-classification", "token-classification", "multiple-choice")
# Their heads are all called `classifier`.

_AUTO_CLASSES: dict[TaskName, str] = {
    "feature-extraction": "AutoModel",
    "text-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "question-answering": "AutoModelForQuestionAnswering",
    "fill-mask": "AutoModelForMaskedLM",
    "multiple-choice": "AutoModelForMultipleChoice",
    "next-sentence-prediction": "AutoModelForNextSentencePrediction",
    "text-generation": "AutoModelForCausalLM",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A float model with all that is needed to feed it.

    Attributes:
        name: As the user gave it.
        task: What its head is for.
        family: Where its sites stand.
        model: In evaluation mode, float32, on the CPU.
        tokenizer: Its tokenizer.
        head: Pooling and normalisation, for sentence-transformers folders.
        max_length: Longest input in tokens.
        input_names: Those of `input_ids`, `attention_mask`, `token_type_ids` that it takes.
    """

    name: str
    task: TaskName
    family: Family
    model: torch.nn.Module
    tokenizer: Any
    head: SentenceHead | None
    max_length: int
    input_names: tuple[str, ...]

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
) -> Checkpoint:
    """Loads model, tokenizer and config.

    Args:
        name: A local folder or a hub id.
        task: A task name of transformers; inferred from the config's `architectures` if `None`.
        class_for: From the model's class and its config to the class to load it with.
        new_head: A head that the checkpoint lacks is made, for training, with these classes (none
            for heads that have no classes). `None` refuses such a checkpoint.

    Raises:
        CheckpointError: There is no such checkpoint, it holds no safetensors weights, its
            family is unknown, or its head is not there.
        UserInputError: The task is unknown or not supported.
    """
    _check_name(name)
    head, config = _read_configs(name)
    subfolder = head.subfolder if head else ""
    family = family_of(config.model_type)
    chosen = _choose_task(task, config)
    _check_config(config, chosen)
    if new_head is None:
        _check_head(name, config, chosen)
    if getattr(config, "problem_type", None) == "multi_label_classification":
        raise CheckpointError(
            f"Checkpoint {name!r} is a multi-label classifier, which is not supported yet: "
            "flips and accuracy would be of its largest label only."
        )
    if new_head and not _has_head(config, chosen):
        config.id2label = dict(enumerate(new_head))
        config.label2id = {label: index for index, label in config.id2label.items()}
    model, info = _call(
        name,
        class_for(_model_class(chosen, config), config).from_pretrained,
        name,
        subfolder=subfolder,
        config=config,
        use_safetensors=True,
        dtype=torch.float32,
        output_loading_info=True,
    )
    _check_loaded(name, chosen, info, may_lack_head=new_head is not None)
    tokenizer = _call(
        name, transformers.AutoTokenizer.from_pretrained, name, subfolder=subfolder, use_fast=True
    )
    if len(tokenizer) <= len(tokenizer.all_special_tokens):
        raise CheckpointError(
            f"Checkpoint {name!r} holds no tokenizer; expected tokenizer.json or a vocabulary."
        )
    usable = config.max_position_embeddings - family.reserved_positions
    limits = [usable, tokenizer.model_max_length, (head and head.max_length) or usable]
    return Checkpoint(
        name=name,
        task=chosen,
        family=family,
        model=model.eval(),
        tokenizer=tokenizer,
        head=head if chosen == "feature-extraction" else None,
        max_length=int(min(limits)),
        input_names=_input_names(tokenizer, config),
    )


def _input_names(tokenizer: Any, config: Any) -> tuple[str, ...]:
    """What the tokenizer makes and the model reads: not each model has a table of segments."""
    segments = ("token_type_ids",) if getattr(config, "type_vocab_size", 0) else ()
    known = ("input_ids", "attention_mask", *segments)
    return tuple(name for name in known if name in tokenizer.model_input_names)


def _call(name: str, function: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls transformers without remote code; its errors become one line that names `name`."""
    try:
        return function(*args, trust_remote_code=False, **kwargs)
    except CheckpointError:
        raise
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        reason = str(error).strip().split("\n")[0]
        raise CheckpointError(
            f"Checkpoint {name!r} cannot be loaded: {reason} Expected a local folder with "
            "config.json, model.safetensors and a tokenizer, or the id of a hub model that has "
            "them."
        ) from error


def _read(name: str, path: str) -> str | None:
    """Text of a file of the checkpoint, `None` if it has none of that name."""
    found = _call(name, _find_file, name, path)
    return None if found is None else Path(found).read_text(encoding="utf-8")


def _read_head(name: str, *, trust_remote_code: bool) -> SentenceHead | None:
    del trust_remote_code
    return read_sentence_head(lambda path: _read(name, path))


def _read_configs(name: str) -> tuple[SentenceHead | None, Any]:
    """The sentence head of a checkpoint, if it has one, and its encoder's config."""
    head: SentenceHead | None = _call(name, _read_head, name)
    subfolder = head.subfolder if head else ""
    return head, _call(name, transformers.AutoConfig.from_pretrained, name, subfolder=subfolder)


def _find_file(name: str, path: str, *, trust_remote_code: bool) -> str | None:
    del trust_remote_code
    found: str | None = cached_file(name, path, _raise_exceptions_for_missing_entries=False)
    return found


def _check_name(name: str) -> None:
    """Refuses a path that is not there, a file, and a folder without safetensors."""
    folder = Path(name)
    if not folder.exists():
        # A hub id is `name` or `owner/name`.
        if name.startswith((".", "/", "~")) or name.count("/") > 1:
            raise CheckpointError(f"Checkpoint folder {name!r} does not exist. Check the path.")
        return
    if not folder.is_dir():
        raise CheckpointError(f"{name!r} is a file; expected a checkpoint folder or a hub id.")
    weights = [path.name for path in folder.rglob("*") if path.is_file()]
    if any(name.endswith(".safetensors") for name in weights):
        return
    pickles = sorted(name for name in weights if name.endswith((".bin", ".pt", ".pth", ".ckpt")))
    if pickles:
        raise CheckpointError(
            f"Checkpoint {str(folder)!r} holds only pickled weights ({pickles[0]}), which can run "
            "code when they are read, so they are refused. Convert them once where you trust "
            "them: `AutoModel.from_pretrained(folder).save_pretrained(new_folder)` writes "
            "model.safetensors."
        )
    graphs = sorted(path for path in folder.rglob("*.onnx") if path.is_file())
    if graphs:
        raise CheckpointError(
            f"Checkpoint {str(folder)!r} holds no weights but a graph, which `quantize`, "
            f"`evaluate` and `benchmark` take by its own name: {str(graphs[0])!r}."
        )
    raise CheckpointError(
        f"Checkpoint {str(folder)!r} holds no weights; expected config.json and model.safetensors."
    )


def check_positions(config: Any) -> None:
    """Refuses positions that transformers 5 leaves out, with a `CheckpointError`."""
    kind = getattr(config, "position_embedding_type", None) or "absolute"
    if kind != "absolute":
        raise CheckpointError(
            f"`position_embedding_type={kind!r}` is not computed by transformers 5; only "
            "'absolute' is supported."
        )


def _check_config(config: Any, task: TaskName) -> None:
    check_positions(config)
    if task == "text-generation":
        # Without it BERT's causal head would see the tokens that it is asked for.
        config.is_decoder, config.use_cache = True, False
    elif getattr(config, "is_decoder", False):
        raise CheckpointError(
            "`is_decoder=True` is for `--task text-generation` only; every other task reads a text "
            "in both directions."
        )


def _choose_task(task: str | None, config: Any) -> TaskName:
    known = ", ".join(TASK_NAMES)
    if task is not None:
        if task not in TASK_NAMES:
            raise UserInputError(f"`--task {task}` is unknown. Known: {known}.")
        return task
    architecture = (getattr(config, "architectures", None) or ["Model"])[0]
    inferred = task_of_architecture(architecture)
    if inferred is None:
        raise UserInputError(
            f"The task of architecture `{architecture}` is not known. Pass `--task`, one of: "
            f"{known}."
        )
    return inferred


def has_head(name: str, task: TaskName) -> bool:
    """Whether a checkpoint's config says that it was trained for a task.

    Raises:
        CheckpointError: There is no such checkpoint, or its config cannot be read.
    """
    _check_name(name)
    _, config = _read_configs(name)
    return _has_head(config, task)


def _has_head(config: Any, task: TaskName) -> bool:
    return task in _made_for(config)


def _made_for(config: Any) -> list[TaskName | None]:
    """The task of each architecture that a config names."""
    architectures = getattr(config, "architectures", None) or ["Model"]
    return [task_of_architecture(each) for each in architectures]


def _check_head(name: str, config: Any, task: TaskName) -> None:
    """Refuses a head of another task whose weights have the same names, and would be taken."""
    others = [each for each in _made_for(config) if each in _CLASSIFIERS]
    if task in _CLASSIFIERS and others and task not in others:
        raise UserInputError(
            f"`--task {task}`: checkpoint {name!r} has a head for `{others[0]}` "
            f"({config.architectures[0]}). Pass that `--task`, or leave it out."
        )


def _model_class(task: TaskName, config: Any) -> Any:
    mapping = getattr(transformers, _AUTO_CLASSES[task])._model_mapping
    if type(config) not in mapping:
        raise UserInputError(
            f"`--task {task}`: transformers has no such head for `{config.model_type}`."
        )
    return mapping[type(config)]


def _check_loaded(name: str, task: TaskName, info: dict[str, Any], *, may_lack_head: bool) -> None:
    # transformers fills what a checkpoint lacks with random numbers. An unused pooler may lack.
    unused = "pooler." if task == "feature-extraction" else ()
    missing = [key for key in sorted(info["missing_keys"]) if not key.startswith(unused)]
    if may_lack_head:
        missing = [key for key in missing if "embeddings." in key or ".layer" in key]
    if missing:
        raise CheckpointError(
            f"Checkpoint {name!r} lacks {len(missing)} weights that task `{task}` needs, among "
            f"them `{missing[0]}`. Fine-tune it for the task first, or pass another `--task`."
        )
