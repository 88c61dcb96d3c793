"""Open a model for a class of a framework, with the arguments of the framework's own classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from qdqbert.common.errors import UserInputError
from qdqbert.common.keywords import plain
from qdqbert.common.objects import ModelLike
from qdqbert.loading.load import load
from qdqbert.runtime.model import Model

_M = TypeVar("_M", bound=Model)

_IN_FOLDER = "The folder has this setting. Leave it out."
_CORES = "One process uses all cores. Pass `threads`."
# Arguments of sentence-transformers that are attributes of a model.
_SET = ("max_seq_length", "prompts", "default_prompt_name", "truncate_dim")
# What to do instead, by arguments of sentence-transformers, LangChain and LlamaIndex.
_ADVICE: Mapping[str, str] = {
    "backend": "Pass `engine`.",
    "cache_dir": "Set the environment variable HF_HUB_CACHE.",
    "cache_folder": "Set the environment variable HF_HUB_CACHE.",
    "config_kwargs": _IN_FOLDER,
    "device": "Pass `provider` for another device than the CPU.",
    "local_files_only": "Set the environment variable HF_HUB_OFFLINE=1.",
    "model_kwargs": _IN_FOLDER,
    "multi_process": _CORES,
    "num_labels": _IN_FOLDER,
    "parallel_process": _CORES,
    "pooling": "Pass `qdqbert.TaskOptions(pooling=...)` to `quantize`.",
    "processor_kwargs": _IN_FOLDER,
    "revision": "Download it with `huggingface_hub.snapshot_download`, and pass the folder.",
    "similarity_fn_name": "The vector store compares embeddings. Leave it out.",
    "target_devices": _CORES,
    "token": "Set the environment variable HF_TOKEN.",
    "tokenizer": _IN_FOLDER,
    "tokenizer_kwargs": _IN_FOLDER,
    "tokenizer_name": _IN_FOLDER,
    "use_auth_token": "Set the environment variable HF_TOKEN.",
}


def open_model(
    name: ModelLike, kind: type[_M], framework: str, wanted: str, given: Mapping[str, Any]
) -> _M:
    """Load a model of a kind.

    Args:
        name: As the argument `path` of `load`.
        kind: Class that the model must be of.
        framework: Name of the framework, for errors.
        wanted: What its class needs, for errors.
        given: Options of `load`, and arguments of models in sentence-transformers. Those that ask
            for what is done anyway change nothing; `trust_remote_code` too, as no code of a
            checkpoint is run.

    Raises:
        UserInputError: The model is of another kind, or an argument cannot be obeyed.
        CheckpointError: See `qdqbert.load`.
    """
    options = {each: plain(value) for each, value in given.items() if each != "trust_remote_code"}
    for each in _ADVICE.keys() & options.keys():
        value = options.pop(each)
        if value and (each, str(value)) != ("device", "cpu"):
            raise UserInputError(
                f"`{each}={value!r:.100}` is not an option of {framework}'s class for qdqbert. "
                f"{_ADVICE[each]}",
                argument=each,
            )
    names = {"max_length": "max_seq_length", **dict(zip(_SET, _SET, strict=True))}
    changes = {each: options.pop(each, None) for each in names}
    model = load(name, **options)
    try:
        if not isinstance(model, kind):
            raise UserInputError(
                f"`model_name={model.name!r}` is a model for {model.task!r}. {framework}'s "
                f"{wanted}.",
                argument="model_name",
            )
        for each, value in changes.items():
            if value is not None and not hasattr(model, names[each]):
                raise UserInputError(
                    f"`{each}={value!r:.100}` does not apply to {model.name!r}, a model for "
                    f"{model.task!r}. Leave it out.",
                    argument=each,
                )
            if value is not None:
                setattr(model, names[each], value)
    except UserInputError:
        model.close()
        raise
    return model
