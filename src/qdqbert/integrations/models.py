"""Open a model for a class of a framework, with the arguments of the framework's own classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from qdqbert.common.errors import UserInputError
from qdqbert.common.keywords import plain
from qdqbert.common.objects import IN_MEMORY, ModelLike, fetched
from qdqbert.loading.load import load
from qdqbert.runtime.inputs import described
from qdqbert.runtime.model import Model

_M = TypeVar("_M", bound=Model)

_OF_TEXTS = "sentence_embedding"
# Attributes of a model, in the order in which they are set, and arguments of sentence-transformers
# that set them.
_SET = {
    "prompts": ("prompts",),
    "default_prompt_name": ("default_prompt_name",),
    "activation": ("activation", "activation_fn", "default_activation_function"),
    "max_seq_length": ("max_length", "max_seq_length"),
    "truncate_dim": ("truncate_dim",),
}
_ATTRIBUTES = {name: attribute for attribute, names in _SET.items() for name in names}
# What to do instead, for arguments of sentence-transformers, LangChain and LlamaIndex.
_INSTEAD = {
    "The folder has this setting. Leave it out.": (
        *("attn_implementation", "automodel_args", "config_args", "config_kwargs", "dtype"),
        *("model_kwargs", "num_labels", "processor_kwargs", "tokenizer", "tokenizer_args"),
        *("tokenizer_kwargs", "tokenizer_name", "torch_dtype"),
    ),
    "Pass the model itself, or its folder, as the first argument.": (
        *("model", "model_name", "model_name_or_path", "modules", "path"),
    ),
    "One process uses all cores. Pass `threads`.": (
        *("multi_process", "parallel_process", "target_devices"),
    ),
    "Set the environment variable HF_HUB_CACHE.": ("cache_dir", "cache_folder"),
    "Set the environment variable HF_HUB_OFFLINE=1.": ("local_files_only",),
    "Set the environment variable HF_TOKEN.": ("token", "use_auth_token"),
    "Download it with `huggingface_hub.snapshot_download`, and pass the folder.": ("revision",),
    "Pass `engine`.": ("backend",),
    "Pass `prompts={'document': ...}`.": ("embed_instruction",),
    "Pass `prompts={'query': ...}`.": ("query_instruction",),
    "Pass `qdqbert.TaskOptions(pooling=...)` to `quantize`.": ("pooling",),
    "Pass `quantize` a recipe that leaves them in float.": ("keep_in_fp32_modules",),
    "It is for training. Leave it out.": ("classifier_dropout",),
    "It is for models that are saved. Leave it out.": ("model_card_data",),
    "Texts are put into batches by their tokens. Leave it out.": ("batch_size",),
    "The vector store compares embeddings. Leave it out.": ("similarity_fn_name",),
}
_ADVICE = {name: advice for advice, names in _INSTEAD.items() for name in names}


def joined(options: Mapping[str, Any], **groups: Any) -> dict[str, Any]:
    """Return the arguments of a call with those in its dicts, such as `model_kwargs`.

    `None` is as good as not given, and numbers of NumPy become Python's.

    Raises:
        UserInputError: A group is not a dict with names, or an argument has two values.
    """
    found = {each: plain(value) for each, value in options.items()}
    for name, group in groups.items():
        given = {} if group is None else group
        if not isinstance(given, Mapping) or not all(isinstance(each, str) for each in given):
            raise UserInputError(
                f"`{name}` must be a dict with the names of arguments, got {described(group)}.",
                argument=name,
            )
        for each, value in given.items():
            _check_same(found.get(each), plain(value), each, each, f" in `{name}`")
            found[each] = plain(value) if found.get(each) is None else found[each]
    return found


def encode_options(**group: Any) -> dict[str, Any]:
    """Return options of `encode` for embeddings that become lists of numbers.

    Raises:
        UserInputError: They are not a dict, or ask for something else than embeddings.
    """
    found = joined({}, **group)
    wanted = found.pop("output_value", _OF_TEXTS)
    if wanted != _OF_TEXTS:
        (name,) = group
        raise UserInputError(
            f"`output_value={wanted!r:.100}` in `{name}`: the result is an embedding of each text. "
            "Leave it out, or call `encode` of `qdqbert.load`.",
            argument=name,
        )
    return {each: found[each] for each in found if not each.startswith("convert_to_")}


def _check_same(one: Any, other: Any, name: str, again: str, place: str = "") -> None:
    """Refuse two different values for one thing."""
    if one is not None and other is not None and one != other:
        raise UserInputError(
            f"`{name}={one!r:.100}` and `{again}={other!r:.100}`{place} contradict each other. "
            "Pass one of them.",
            argument=name,
        )


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
            checkpoint is run. Prompts are added to those of the folder, as there.

    Raises:
        UserInputError: The model is of another kind, or an argument cannot be obeyed.
        CheckpointError: See `qdqbert.load`.
    """
    if isinstance(name, str) and name.endswith(IN_MEMORY):
        raise UserInputError(
            f"`model_name={name!r}` was a model in memory, which is gone. Save it with "
            "`save_pretrained`, with its tokenizer, and pass the folder.",
            argument="model_name",
        )
    options = {each: value for each, value in given.items() if each != "trust_remote_code"}
    for each in _ADVICE.keys() & options.keys():
        value = options.pop(each)
        if value:
            raise UserInputError(
                f"`{each}={value!r:.100}` is not an option of {framework}'s class for qdqbert. "
                f"{_ADVICE[each]}",
                argument=each,
            )
    changes: dict[str, tuple[str, Any]] = {}
    for each, attribute in _ATTRIBUTES.items():
        value = options.pop(each, None)
        other, before = changes.get(attribute, (each, None))
        _check_same(before, value, other, each)
        if value is not None:
            changes[attribute] = each, value
    if "prompts" in changes:
        _check_prompts(changes["prompts"][1])
    # An error about a URL names the parameter of the framework's class.
    with fetched(name, "model_name"):
        model = load(name, **options)
    try:
        if not isinstance(model, kind):
            raise UserInputError(
                f"`model_name={model.name!r}` is a model for {model.task!r}. {framework}'s "
                f"{wanted}.",
                argument="model_name",
            )
        for attribute, (each, value) in changes.items():
            if not hasattr(model, attribute):
                raise UserInputError(
                    f"`{each}={value!r:.100}` does not apply to {model.name!r}, a model for "
                    f"{model.task!r}. Leave it out.",
                    argument=each,
                )
            if attribute == "prompts":
                own = vars(model)["prompts"]
                value = own | {k: own.get(k, "") if v is None else v for k, v in value.items()}
            setattr(model, attribute, value)
    except UserInputError:
        model.close()
        raise
    return model


def _check_prompts(prompts: Any) -> None:
    texts = [*prompts, *prompts.values()] if isinstance(prompts, Mapping) else [prompts, 0]
    if not all(isinstance(each, str | None) for each in texts):
        raise UserInputError(
            "`prompts` must be a dict of texts by their names, as {'query': 'query: '}, got "
            f"{described(prompts)}.",
            argument="prompts",
        )
