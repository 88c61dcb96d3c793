"""What sentence-transformers' files say about an encoder, and the pooling after it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import tokenizers

from qdqbert.common.choices import POOLING_MODES, PoolingMode
from qdqbert.common.errors import CheckpointError
from qdqbert.common.file_names import (
    ADDED_TOKENS,
    CHAT_TEMPLATE,
    CONFIG,
    MODEL_SETTINGS,
    SETTINGS,
    SPECIAL_TOKENS,
    TOKENIZER_CONFIG,
)
from qdqbert.common.json_files import Fields, damaged, parse_object
from qdqbert.data.tokenizing.pair_template import PairTemplate
from qdqbert.data.tokenizing.tokenizer_files import merged_settings, put_lower_case_first_
from qdqbert.encoders.checkpoint.chat_template import Chat, read_chat, read_pair_template
from qdqbert.encoders.checkpoint.model_settings import ModelSettings
from qdqbert.encoders.checkpoint.sentence_files import FindFile, SentenceFiles, join
from qdqbert.encoders.checkpoint.sentence_modules import (
    MODULES_AFTER_POOLING,
    MODULES_WITHOUT_EFFECT,
    HeadModule,
    ModuleName,
    steps_of,
)
from qdqbert.encoders.heads import POOLINGS
from qdqbert.encoders.model import Head, Pooling, Step
from qdqbert.encoders.task_kinds import TaskName
from qdqbert.encoders.weights import Weights

# In the order in which sentence-transformers joins their vectors.
POOLING_FLAGS: Mapping[str, PoolingMode] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
POOLING_FOLDER = "1_Pooling"
POOLING_CONFIG = f"{POOLING_FOLDER}/{CONFIG}"

# Other names of the settings of the encoder.
_OLD_SETTINGS = tuple(
    f"sentence_{name}_config.json" for name in ("roberta", "distilbert", "camembert", "xlm-roberta")
)
# Arguments of the tokenizer that batches need, and that do not change the text.
_PLAIN_ARGUMENTS: Mapping[str, tuple[object, ...]] = {
    "padding": (True, "longest", "max_length"),
    "truncation": (True, "longest_first"),
    "return_tensors": ("pt",),
}

# Arguments for transformers' classes that do not change a vector, by the names of their fields.
_LOADING = (
    "cache_dir",
    "force_download",
    "local_files_only",
    "revision",
    "token",
    "use_auth_token",
)
_HARMLESS: Mapping[str, tuple[str, ...]] = {
    "config": (
        *("attn_implementation", "output_attentions", "output_hidden_states", "torch_dtype"),
        *("trust_remote_code", "unpad_inputs", "use_cache", "use_memory_efficient_attention"),
    ),
    "model": (
        *("add_pooling_layer", "attn_implementation", "device_map", "dtype", "low_cpu_mem_usage"),
        *("torch_dtype", "trust_remote_code", "use_safetensors"),
    ),
    "processor": ("fix_mistral_regex", "padding_side", "trust_remote_code", "use_fast"),
}
# Their older names.
_OLD_ARGUMENTS: Mapping[str, str] = {
    "config": "config_args",
    "model": "model_args",
    "processor": "tokenizer_args",
}

# sentence-transformers' names of the transformer's task, and of its output.
_TRANSFORMERS: Mapping[Returned, tuple[str, str]] = {
    "states": ("feature-extraction", "last_hidden_state"),
    "words": ("fill-mask", "logits"),
    "classes": ("sequence-classification", "logits"),
    "features": ("feature-extraction", "pooler_output"),
    "next": ("text-generation", "logits"),
}
# Methods of transformers' classes that are not `forward`.
_METHODS: Mapping[Returned, str] = {"features": "get_text_features"}

# Settings may name a length without a limit.
_LONGEST = 2**63

Returned = Literal["states", "words", "classes", "features", "next"]
"""Output of an encoder: states of tokens, scores of words for each token, of classes, or of the
next token, or the vector of a text."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """The encoder's settings in sentence-transformers' files.

    Attributes:
        max_length: Longest input in tokens that the checkpoint is meant for; `None` if not given.
        subfolder: Folder of the encoder in the checkpoint; empty for its root.
        lower_case: Whether texts are converted to lower case before they are tokenized.
        default_prompt: Prompt that sentence-transformers puts before each text; empty for none.
        chat: How pairs are put into the tokenizer's chat template; `None` if they are not.
        files: Files of the checkpoint to copy, with their texts by path in the new folder.
    """

    max_length: int | None
    subfolder: str = ""
    lower_case: bool = False
    default_prompt: str = ""
    chat: Chat | None = None
    files: Mapping[str, str] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    @property
    def task(self) -> TaskName | None:
        """The task of the model; `None` if they do not say it."""
        return None

    def of_encoder(self, weights: Weights) -> Weights:
        """Return the tensors of the encoder, of all tensors of the file."""
        return weights

    @property
    def settings(self) -> ModelSettings:
        """Settings of the whole model."""
        return ModelSettings.of_text(self.files.get(MODEL_SETTINGS))

    def longest_input(self, given: int | None) -> int | None:
        """Return the longest input in tokens; `None` for any.

        `given` is the tokenizer's, `None` if it has none. sentence-transformers replaces it by its
        own.
        """
        return given if self.max_length is None else self.max_length

    def prepare_tokenizer_(self, backend: tokenizers.Tokenizer) -> None:
        """Change a tokenizer to what the settings say."""
        if self.lower_case:
            put_lower_case_first_(backend)

    @property
    def weight_files(self) -> tuple[str, ...]:
        """Paths in the checkpoint of files with weights of the head, besides those in folders."""
        return ()

    def token_heads(self, find: FindFile) -> tuple[Head, ...]:
        """Return heads of an embedder on the states of tokens, in float, besides its embedding."""
        del find
        return ()

    def write(self, folder: Path, *, hidden: int, find: FindFile) -> None:
        """Write the settings to a folder with graphs.

        There is no modules.json if sentence-transformers cannot run these graphs.

        `hidden` is the number of channels of the encoder's states. `find` finds files of the
        checkpoint.
        """
        del hidden
        for path, text in self.files.items():
            (folder / path).write_text(text, encoding="utf-8")
        self.write_settings(folder, find)

    def write_settings(self, folder: Path, find: FindFile) -> None:
        """Write settings that the loaded model reads to a folder, besides `files`.

        `find` finds files of the checkpoint.
        """


def pair_template_of(layout: Layout | None, files: SentenceFiles, name: str) -> PairTemplate | None:
    """Return the text around the pairs of a checkpoint, which is rendered now; `None` for none.

    `name` is the user's name for it. For errors see `read_pair_template`.
    """
    if layout is None or layout.chat is None:
        return None
    folder = layout.subfolder
    stored = (
        parse_object(files.read(join(folder, each)) or "{}", join(folder, each))
        for each in (TOKENIZER_CONFIG, SPECIAL_TOKENS, ADDED_TOKENS)
    )
    return read_pair_template(
        layout.chat,
        files.read,
        folder,
        merged_settings(*stored),
        default_prompt=layout.default_prompt,
        name=name,
    )


class Modular:
    """A head whose `modules` change vectors, in order."""

    modules: tuple[HeadModule, ...]

    @property
    def weight_folders(self) -> tuple[str, ...]:
        """Paths in the checkpoint of the folders of the modules, some of which have no weights."""
        return tuple(each.path for each in self.modules)

    def steps(self, find: FindFile) -> tuple[Step, ...]:
        """Return the modules as steps of a head, in float."""
        return steps_of(self.modules, find)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PooledHead(Modular, Layout):
    """Modules of sentence-transformers that begin with a pooling.

    Attributes:
        poolings: How token states become one vector; [PAD] is always ignored. The vectors of
            several poolings are joined.
        modules: Modules that change the vector, in order.
        skips_prompt: Whether the tokens of a prompt are not pooled.
    """

    poolings: tuple[PoolingMode, ...]
    modules: tuple[HeadModule, ...] = ()
    skips_prompt: bool = False

    @property
    def after_pooling(self) -> tuple[str, ...]:
        """Names of the modules after the pooling, as sentence-transformers names them."""
        return tuple(each.name for each in self.modules)

    @property
    def row_poolings(self) -> tuple[Pooling, ...]:
        """The poolings as `encoders.model.Head` names them."""
        return tuple(POOLINGS[each] for each in self.poolings)


def prompt_notices(layout: Layout) -> list[str]:
    """Return a notice about the prompt before each text, if there is one."""
    if not layout.default_prompt:
        return []
    return [
        f"sentence-transformers puts the prompt {layout.default_prompt!r} before each text. "
        "Examples that INT8 and float are compared on do not get it: add it to the data."
    ]


def refuse_skipped_prompts(layout: object) -> None:
    """Refuse a pooling that leaves out prompts, which graphs of other tools cannot tell."""
    if isinstance(layout, PooledHead) and layout.skips_prompt:
        raise CheckpointError(
            "The pooling leaves out the tokens of a prompt (`include_prompt: false` in "
            f"{POOLING_CONFIG}), but a graph cannot tell them from the text. `qdqbert.load` runs "
            "such an embedder. To run the model without prompts, set it to true in a copy of the "
            "folder."
        )


def begins_with_pooling(kinds: Sequence[str]) -> bool:
    """Return whether modules are an encoder, its pooling, and known modules after it."""
    return [*kinds[:2]] == ["Transformer", "Pooling"] and knows_modules(kinds[2:])


def knows_modules(kinds: Iterable[str]) -> bool:
    """Return whether modules after the vector of a text are known."""
    return {*kinds} <= {*MODULES_AFTER_POOLING, *MODULES_WITHOUT_EFFECT}


def with_effect(modules: Iterable[tuple[str, str]]) -> list[tuple[ModuleName, str]]:
    """Return the modules after the vector of a text that act outside of training, too."""
    names = {str(name): name for name in MODULES_AFTER_POOLING}
    return [(names[kind], path) for kind, path in modules if kind in names]


def read_pooling(
    files: SentenceFiles, *, chats: bool = False
) -> tuple[dict[str, Any], list[tuple[ModuleName, str]]]:
    """Return the fields of a `PooledHead` but for `modules`, and the modules after the pooling.

    The modules must be an encoder, its pooling, and known modules after it.
    """
    (_, encoder_path), (_, pooling_path), *rest = files.modules or []
    place = join(pooling_path, CONFIG)
    pooling = files.read(place)
    if pooling is None:
        raise damaged(place, "it is missing")
    fields = read_layout_fields(files, encoder_path, "states", chats=chats)
    fields["files"] = {POOLING_CONFIG: pooling, **fields["files"]}
    content = parse_object(pooling, POOLING_CONFIG)
    fields["poolings"] = _pooling_modes(content)
    fields["skips_prompt"] = not content.get("include_prompt", True)
    return fields, with_effect(rest)


def read_layout_fields(
    files: SentenceFiles, subfolder: str, returned: Returned, *, chats: bool = False
) -> dict[str, Any]:
    """Return the fields of a `Layout`.

    `returned` is the output that the encoder must have. With `chats`, texts may be put into a chat
    template.
    """
    names = [join(subfolder, name) for name in (SETTINGS, *_OLD_SETTINGS)]
    text = next((text for name in names if (text := files.read(name)) is not None), None)
    fields = Fields.of_text(text or "{}", SETTINGS)
    _check_arguments(fields)
    method = _METHODS.get(returned, "forward")
    chat = _check_transformer(fields, *_TRANSFORMERS[returned], method, chats=chats)
    copied = {SETTINGS: text, MODEL_SETTINGS: files.read(MODEL_SETTINGS)}
    if chat is not None:
        copied[CHAT_TEMPLATE] = files.read(join(subfolder, CHAT_TEMPLATE))
    return {
        "max_length": _longest_input(fields),
        "subfolder": subfolder,
        "lower_case": bool(fields.optional(fields.truth, "do_lower_case")),
        "default_prompt": ModelSettings.of_text(copied[MODEL_SETTINGS]).default_prompt,
        "chat": chat,
        "files": {path: text for path, text in copied.items() if text is not None},
    }


def _check_arguments(fields: Fields) -> None:
    """Refuse arguments for transformers' classes that change what the model computes."""
    for kind, harmless in _HARMLESS.items():
        for name in (f"{kind}_kwargs", _OLD_ARGUMENTS[kind]):
            given = fields.optional(fields.child, name)
            for key, value in given.values.items() if given is not None else ():
                if key not in (*harmless, *_LOADING) and value is not None:
                    raise CheckpointError(
                        f"{SETTINGS} has {name}.{key}={value!r:.60}, which is not supported. Write "
                        "it into config.json or tokenizer_config.json of a copy of the folder, and "
                        "remove it here."
                    )


def _check_transformer(
    fields: Fields, task: str, output: str, method: str, *, chats: bool
) -> Chat | None:
    """Refuse a transformer that returns something else.

    Returns:
        How it makes messages of a chat of texts; `None` if it does not.
    """
    named = fields.optional(fields.text, "transformer_task")
    if named not in (None, task):
        raise CheckpointError(
            f"{SETTINGS} has transformer_task={named!r}, which is not supported: these modules "
            f"need {task!r}."
        )
    given = fields.optional(fields.child, "modality_config")
    if given is None:
        return None
    has_messages = given.has("message")
    if has_messages and not chats:
        raise CheckpointError(
            f"`modality_config` in {SETTINGS} has 'message': texts are put into a chat template, "
            "which is not supported. Remove it in a copy of the folder if it does not matter."
        )
    expected = {"method": method, "method_output_name": output}
    for kind in ("message",) if has_messages else ("text",):
        found = {each: given.child(kind).values.get(each) for each in expected}
        if found != expected:
            raise CheckpointError(
                f"`modality_config` in {SETTINGS} has {kind}={found}, which is not supported; "
                f"expected {expected}."
            )
    return read_chat(fields, given.child("message")) if has_messages else None


def _longest_input(fields: Fields) -> int | None:
    """Return the longest input in tokens; `None` if there is none."""
    arguments: dict[str, Any] = {}
    if fields.has("processing_kwargs"):
        given = fields.child("processing_kwargs")
        for each in map(given.child, filter(given.has, ("common", "text"))):
            each.optional(each.integer, "max_length", 1, _LONGEST)
            arguments |= each.values
    own = fields.integer("max_seq_length", 1, _LONGEST) if fields.has("max_seq_length") else None
    # It counts before the other one.
    length: int | None = arguments.pop("max_length", None) or own
    for key, value in arguments.items():
        if value not in _PLAIN_ARGUMENTS.get(key, ()):
            raise CheckpointError(
                f"`processing_kwargs` in {SETTINGS} has {key}={value!r} for the tokenizer, which "
                "is not supported. Remove it in a copy of the folder if it does not matter."
            )
    return length


def _pooling_modes(config: dict[str, Any]) -> tuple[PoolingMode, ...]:
    # sentence-transformers 5 and earlier write a flag for each mode, version 6 writes names.
    named = config.get("pooling_mode")
    if named is None:
        return tuple(mode for flag, mode in POOLING_FLAGS.items() if config.get(flag)) or ("mean",)
    modes = named if isinstance(named, list) else [named]
    if not modes or any(mode not in POOLING_MODES for mode in modes):
        raise CheckpointError(
            f"The pooling {config} is not supported; expected some of {', '.join(POOLING_MODES)}."
        )
    return tuple(modes)
