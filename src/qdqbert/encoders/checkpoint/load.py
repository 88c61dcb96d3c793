"""Load a checkpoint from a local folder or the hub, without remote code."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from qdqbert.common.errors import UserInputError
from qdqbert.common.file_names import CONFIG
from qdqbert.encoders.adapters import merged
from qdqbert.encoders.checkpoint.calls import call
from qdqbert.encoders.checkpoint.description import Description, describe_checkpoint
from qdqbert.encoders.checkpoint.docstrings import importing_models
from qdqbert.encoders.checkpoint.tokenizer import check_vocabulary
from qdqbert.encoders.checkpoint.weights import check_weights
from qdqbert.encoders.config import Config
from qdqbert.encoders.families import FAMILIES
from qdqbert.encoders.task_kinds import TASK_KINDS, TaskName
from qdqbert.encoders.tensor_files import SAFETENSORS
from qdqbert.encoders.weights import Weights


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoint(Description):
    """A float model in PyTorch, with its config, tokenizer and settings.

    Attributes:
        model: The model of transformers, in evaluation mode, float32, on the CPU.
    """

    model: torch.nn.Module


def load_checkpoint(
    name: str,
    *,
    task: str | None = None,
    class_for: Callable[[Any, Any], Any] = lambda float_class, config: float_class,
    new_head: Sequence[str] | None = None,
    pooling: str | None = None,
    adapter: str | None = None,
) -> Checkpoint:
    """Load a checkpoint as a model of transformers. See `describe_checkpoint`.

    `class_for` returns the class to load, given the model's class and its config.

    Raises:
        CheckpointError: Weights are missing or have other shapes, the head is missing, or the
            tokenizer has more ids than there are embeddings.
        UserInputError: See `describe_checkpoint`.
    """
    found = describe_checkpoint(
        name, task=task, pooling=pooling, adapter=adapter, new_head=new_head
    )
    return load_described(found, class_for=class_for, needs_head=new_head is None)


def load_described(
    found: Description, *, class_for: Callable[[Any, Any], Any], needs_head: bool = True
) -> Checkpoint:
    """Load the weights of a checkpoint as a model of transformers.

    `class_for` returns the class to load, given the model's class and its config. Without
    `needs_head`, the files may lack the head of the task.
    """
    name, left_out = found.name, list[str]()
    with found.reading_weights() as folder:
        # Refuses two values for one tensor, of which transformers takes one.
        tensors = _tensors(folder, found, left_out)
    model, info = call(
        name,
        class_for(_model_class(found.model_task, found.config), found.config).from_pretrained,
        str(folder) if tensors is None else None,
        config=found.config,
        trust_remote_code=False,
        use_safetensors=True,
        state_dict=tensors,
        dtype=torch.float32,
        output_loading_info=True,
        # Reported by `check_weights`, because transformers' error does not name the weight.
        ignore_mismatched_sizes=True,
    )
    notices = check_weights(name, model, found.model_task, info, needs_head=needs_head)
    notices += check_vocabulary(name, found.tokenizer, model.get_input_embeddings().weight.shape[0])
    fields = {each.name: getattr(found, each.name) for each in dataclasses.fields(found)}
    fields |= {"config": model.config, "notices": (*found.notices, *left_out, *notices)}
    return Checkpoint(model=model.eval(), **fields)


def _tensors(
    folder: Path, found: Description, notices: list[str]
) -> dict[str, torch.Tensor] | None:
    """Return the weights for a model of transformers, or `None` if it reads them itself.

    It would unpickle files of torch, and knows neither adapters nor the layouts of Jina's XLM-R and
    of Nomic's models with heads.
    `notices` receives sentences for the user.
    """
    stored = Weights(folder)
    config = Config(values=found.config.to_dict(), path=f"{found.name}/{CONFIG}")
    weights = merged(stored, config, found.adapter, notices)
    conversion = FAMILIES[found.config.model_type].conversion
    own = None if conversion is None else conversion.own
    is_own = own is not None and any(re.search(own, name) for name in stored)
    if stored.path.name.startswith(SAFETENSORS) and weights is stored and not is_own:
        return None
    if is_own and conversion is not None:
        weights = weights.converted(conversion)
    # Copies can be trained, and do not depend on the file.
    return {name: torch.tensor(weights.read(name)) for name in weights}


def _model_class(task: TaskName, config: Any) -> Any:
    kind = TASK_KINDS[task]
    auto = kind.auto_class if kind.has_head else FAMILIES[config.model_type].encoder_class
    mapping = getattr(transformers, auto)._model_mapping
    if type(config) not in mapping:
        raise UserInputError(
            f"`task={task!r}`: transformers has no such head for `{config.model_type}`.",
            argument="task",
        )
    with importing_models():
        return mapping[type(config)]
