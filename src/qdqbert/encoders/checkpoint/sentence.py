"""The layout of sentence-transformers folders: how token states become one vector."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import tokenizers

from qdqbert.common.choices import POOLING_MODES, PoolingMode
from qdqbert.common.errors import CheckpointError, UserInputError
from qdqbert.common.json_files import Fields, damaged, parse_json, parse_object, read_text
from qdqbert.data.tokenizing.tokenizer_files import put_lower_case_first_
from qdqbert.encoders.checkpoint.sentence_modules import (
    MODULES_AFTER_POOLING,
    MODULES_WITHOUT_EFFECT,
    FindFile,
    HeadModule,
    ModuleName,
    head_module,
    steps_of,
    write_modules,
)
from qdqbert.encoders.family import is_jina_v5
from qdqbert.encoders.heads import POOLINGS
from qdqbert.encoders.model import Pooling, Step
from qdqbert.encoders.task_kinds import TaskName

# In the order in which sentence-transformers joins their vectors.
_POOLING_FLAGS: dict[str, PoolingMode] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}

# Package of the module classes in modules.json, which all versions of sentence-transformers read.
_PACKAGE = "sentence_transformers.models"

MODULES = "modules.json"
MODEL_SETTINGS = "config_sentence_transformers.json"
SETTINGS = "sentence_bert_config.json"

# Other names of the settings of the encoder.
_OLD_SETTINGS = tuple(
    f"sentence_{name}_config.json" for name in ("roberta", "distilbert", "camembert", "xlm-roberta")
)
# Arguments of the tokenizer that batches need, and that do not change the text.
_PLAIN_ARGUMENTS: Mapping[str, tuple[object, ...]] = {
    "padding": (True, "longest"),
    "truncation": (True, "longest_first"),
    "return_tensors": ("pt",),
}

# sentence-transformers' names of the transformer's task, and of its output.
_TRANSFORMERS: Mapping[Returned, tuple[str, str]] = {
    "states": ("feature-extraction", "last_hidden_state"),
    "words": ("fill-mask", "logits"),
    "classes": ("sequence-classification", "logits"),
}

_POOLING_FOLDER = "1_Pooling"
POOLING_CONFIG = f"{_POOLING_FOLDER}/config.json"

# Settings may name a length without a limit.
_LONGEST = 2**63

Kind = Literal["query", "document"]
"""Kind of a text, for models that encode queries and documents differently."""

Returned = Literal["states", "words", "classes"]
"""Output of an encoder: states of tokens, scores of words for each token, or of classes."""

ReadFile = Callable[[str], str | None]
"""Returns the text of a file of the checkpoint by its path in it, `None` if it does not exist."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """Settings of a whole model of sentence-transformers.

    Attributes:
        prompts: Texts that can be put before a text, by name.
        default_prompt_name: Name of the prompt that is used by default; `None` for none.
        similarity: Name of the function that compares two embeddings; `None` for the cosine.
        truncate_dim: Number of dimensions of an embedding to keep; `None` for all.
        max_active_dims: Most words of a sparse embedding that have a weight; `None` for any number.
        activation: Path of the class that turns a cross-encoder's logits into scores; `None` if it
            is not named.
    """

    prompts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    default_prompt_name: str | None = None
    similarity: str | None = None
    truncate_dim: int | None = None
    max_active_dims: int | None = None
    activation: str | None = None

    @property
    def default_prompt(self) -> str:
        """Prompt that is put before each text by default; empty for none."""
        return str(self.prompts.get(self.default_prompt_name or "") or "")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """The encoder's settings in sentence-transformers' files.

    Attributes:
        max_length: Longest input in tokens that the checkpoint is meant for; `None` if not given.
        subfolder: Folder of the encoder in the checkpoint; empty for its root.
        lower_case: Whether texts are converted to lower case before they are tokenized.
        default_prompt: Prompt that sentence-transformers puts before each text; empty for none.
        files: Files of the checkpoint to copy, with their texts by path in the new folder.
    """

    max_length: int | None
    subfolder: str = ""
    lower_case: bool = False
    default_prompt: str = ""
    files: Mapping[str, str] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    @property
    def task(self) -> TaskName | None:
        """The task of the model; `None` if they do not say it."""
        return None

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

    def write_settings(self, folder: Path, find: FindFile) -> None:
        """Write settings that the loaded model reads to a folder, besides `files`.

        `find` finds files of the checkpoint.

        Raises:
            CheckpointError: A file is missing or damaged.
        """


@dataclasses.dataclass(frozen=True, kw_only=True)
class PooledHead(Layout):
    """Modules of sentence-transformers that begin with a pooling.

    Attributes:
        poolings: How token states become one vector; [PAD] is always ignored. The vectors of
            several poolings are joined.
        modules: Modules that change the vector, in order.
    """

    poolings: tuple[PoolingMode, ...]
    modules: tuple[HeadModule, ...] = ()

    @property
    def row_poolings(self) -> tuple[Pooling, ...]:
        """The poolings as `encoders.model.Head` names them."""
        return tuple(POOLINGS[each] for each in self.poolings)

    @property
    def weight_folders(self) -> tuple[str, ...]:
        """Paths in the checkpoint of the folders of the modules, some of which have no weights."""
        return tuple(each.path for each in self.modules)

    def steps(self, find: FindFile) -> tuple[Step, ...]:
        """Return the modules after the pooling as steps of a head, in float.

        Raises:
            CheckpointError: See `sentence_modules.steps_of`.
        """
        return steps_of(self.modules, find)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentenceHead(PooledHead):
    """The modules of an embedder after the encoder.

    Attributes:
        normalize: Whether the vector is scaled to length 1 after the modules.
    """

    task: ClassVar[TaskName] = "feature-extraction"
    normalize: bool

    def steps(self, find: FindFile) -> tuple[Step, ...]:
        """Return the modules after the pooling as steps of a head, in float.

        Raises:
            CheckpointError: See `sentence_modules.steps_of`.
        """
        return (*super().steps(find), *self.last_steps)

    @property
    def last_steps(self) -> tuple[Step, ...]:
        """Steps after the modules: all of `steps` if there are no modules."""
        return ("normalize",) if self.normalize else ()

    def write(self, folder: Path, *, hidden: int, find: FindFile) -> None:
        """Make a folder with an encoder or its graph readable by sentence-transformers.

        See `write_sentence_head`.
        """
        write_sentence_head(self, folder, hidden=hidden, find=find)

    def with_pooling(self, pooling: PoolingMode) -> SentenceHead:
        """Return the same head with another pooling."""
        files = {path: text for path, text in self.files.items() if path != POOLING_CONFIG}
        return dataclasses.replace(self, poolings=(pooling,), files=files)


def prompt_notices(layout: Layout) -> list[str]:
    """Return a notice about the prompt before each text, if there is one."""
    if not layout.default_prompt:
        return []
    return [
        f"sentence-transformers puts the prompt {layout.default_prompt!r} before each text. "
        "Examples that INT8 and float are compared on do not get it: add it to the data."
    ]


def text_reader(find: FindFile) -> ReadFile:
    """Return a reader of the text files that a finder finds."""

    def read(path: str) -> str | None:
        found = find(path)
        return None if found is None else read_text(found)

    return read


def folder_reader(folder: Path) -> ReadFile:
    """Return a reader of the text files of a folder."""
    return text_reader(file_finder(folder))


def is_cross_encoder(read: ReadFile) -> bool:
    """Return whether sentence-transformers saved a checkpoint as a cross-encoder."""
    return bool(_content(read, MODEL_SETTINGS).get("model_type") == "CrossEncoder")


def file_finder(folder: Path) -> FindFile:
    """Return a finder of the files of a folder."""
    return lambda path: folder / path if (folder / path).is_file() else None


def read_modules(read: ReadFile) -> list[tuple[str, str]] | None:
    """Return the names of the classes in modules.json with their paths; `None` without the file.

    Raises:
        CheckpointError: The file is damaged, or a path leads out of the folder.
    """
    modules = read(MODULES)
    if modules is None:
        return None
    entries = Fields(
        {"modules": parse_json(modules, MODULES)}, lambda reason: damaged(MODULES, reason)
    )
    found = []
    for each in entries.children("modules"):
        path = each.text("path")
        check_path(path, MODULES)
        found.append((each.text("type").rpartition(".")[2], path))
    return found


def check_path(path: str, place: str) -> None:
    """Refuse the path of a module that leads out of the folder.

    Raises:
        CheckpointError: It does. The error names the file `place`, which has the path.
    """
    if Path(path).is_absolute() or ".." in Path(path).parts:
        raise damaged(place, f"the path {path!r} leads out of the folder")


def read_sentence_head(read: ReadFile) -> SentenceHead | None:
    """Return the head of a sentence-transformers folder; `None` for any other folder.

    Raises:
        CheckpointError: It has a module or a pooling that cannot be put into a graph, such as one
            that leaves out prompts.
    """
    found = read_modules(read)
    if is_jina_v5(_content(read, "config.json")) and [kind for kind, _ in found or ()] in (
        [],
        ["Transformer"],
    ):
        # Its own code does the rest.
        fields = read_layout_fields(read, "", "states")
        return SentenceHead(poolings=("lasttoken",), normalize=True, **fields)
    if found is None or is_cross_encoder(read):
        return None
    if not begins_with_pooling(found):
        raise CheckpointError(
            f"modules.json lists {shown_kinds(found)}; only Transformer, Pooling and then "
            f"{', '.join(MODULES_AFTER_POOLING)} are supported. The encoder alone computes other "
            "embeddings. To quantize it for another use, remove modules.json from a copy of the "
            "folder."
        )
    fields, rest = read_pooling(read, found)
    normalize = bool(rest) and rest[-1][0] == "Normalize"
    return SentenceHead(
        normalize=normalize,
        modules=tuple(
            head_module(kind, path, read(join(path, "config.json")))
            for kind, path in (rest[:-1] if normalize else rest)
        ),
        **fields,
    )


def shown_kinds(modules: Sequence[tuple[str, str]]) -> str:
    """Return the names of the classes of modules, for messages."""
    return ", ".join(kind for kind, _ in modules) or "none"


def begins_with_pooling(modules: Sequence[tuple[str, str]]) -> bool:
    """Return whether modules are an encoder, its pooling, and known modules after it."""
    kinds = [kind for kind, _ in modules]
    known = {*MODULES_AFTER_POOLING, *MODULES_WITHOUT_EFFECT}
    return kinds[:2] == ["Transformer", "Pooling"] and {*kinds[2:]} <= known


def read_pooling(
    read: ReadFile, modules: Sequence[tuple[str, str]]
) -> tuple[dict[str, Any], list[tuple[ModuleName, str]]]:
    """Return the fields of a `PooledHead` but for `modules`, and the modules after the pooling.

    `modules` are the kinds and paths of an encoder, its pooling, and known modules after it.

    Raises:
        CheckpointError: The pooling or a setting is not supported.
    """
    (_, encoder_path), (_, pooling_path), *rest = modules
    place = join(pooling_path, "config.json")
    pooling = read(place)
    if pooling is None:
        raise damaged(place, "it is missing")
    fields = read_layout_fields(read, encoder_path, "states")
    fields["files"] = {POOLING_CONFIG: pooling, **fields["files"]}
    fields["poolings"] = _pooling_modes(parse_object(pooling, POOLING_CONFIG))
    kept: Any = [each for each in rest if each[0] not in MODULES_WITHOUT_EFFECT]
    return fields, kept


def read_layout_fields(read: ReadFile, subfolder: str, returned: Returned) -> dict[str, Any]:
    """Return the fields of a `Layout`.

    Args:
        read: Reads files of the checkpoint.
        subfolder: Folder of the encoder.
        returned: The output that the encoder must have.

    Raises:
        CheckpointError: The settings change how texts are tokenized, or what the transformer
            returns, in a way that is not supported.
    """
    names = [join(subfolder, name) for name in (SETTINGS, *_OLD_SETTINGS)]
    text = next((text for name in names if (text := read(name)) is not None), None)
    settings = parse_object(text or "{}", SETTINGS)
    fields = Fields(settings, lambda reason: damaged(SETTINGS, reason))
    if fields.has("max_seq_length"):
        fields.integer("max_seq_length", 1, _LONGEST)
    if fields.has("do_lower_case"):
        fields.truth("do_lower_case")
    _check_transformer(fields, *_TRANSFORMERS[returned])
    if fields.has("processing_kwargs"):
        arguments = fields.child("processing_kwargs")
        for name in ("common", "text"):
            if arguments.has(name) and arguments.child(name).has("max_length"):
                arguments.child(name).integer("max_length", 1, _LONGEST)
    files = {SETTINGS: text, MODEL_SETTINGS: read(MODEL_SETTINGS)}
    return {
        "max_length": settings.get("max_seq_length") or _length_of(settings),
        "subfolder": subfolder,
        "lower_case": bool(settings.get("do_lower_case")),
        "default_prompt": model_settings(read(MODEL_SETTINGS)).default_prompt,
        "files": {path: text for path, text in files.items() if text is not None},
    }


def _check_transformer(fields: Fields, task: str, output: str) -> None:
    """Refuse a transformer that returns something else, or reads texts as messages of a chat."""
    named = fields.text("transformer_task") if fields.has("transformer_task") else task
    if named != task:
        raise CheckpointError(
            f"{SETTINGS} has transformer_task={named!r}, which is not supported: these modules "
            f"need {task!r}."
        )
    if not fields.has("modality_config"):
        return
    given = fields.child("modality_config")
    if given.has("message"):
        raise CheckpointError(
            f"`modality_config` in {SETTINGS} has 'message': texts are put into a chat template, "
            "which is not supported. Remove it in a copy of the folder if it does not matter."
        )
    text = given.child("text").values
    expected = {"method": "forward", "method_output_name": output}
    if text != expected:
        raise CheckpointError(
            f"`modality_config` in {SETTINGS} has text={dict(text)}, which is not supported; "
            f"expected {expected}."
        )


def _length_of(settings: Mapping[str, Any]) -> int | None:
    """Return the longest input in the tokenizer's arguments; refuse arguments that change texts."""
    given = settings.get("processing_kwargs") or {}
    arguments = {**(given.get("common") or {}), **(given.get("text") or {})}
    length: int | None = arguments.pop("max_length", None)
    for key, value in arguments.items():
        if value not in _PLAIN_ARGUMENTS.get(key, ()):
            raise CheckpointError(
                f"`processing_kwargs` in {SETTINGS} has {key}={value!r} for the tokenizer, which "
                "is not supported. Remove it in a copy of the folder if it does not matter."
            )
    return length


def choose_prompt(
    prompts: Mapping[str, str], default_name: str | None, *, name: str | None, text: str | None
) -> str:
    """Return the prompt before a text; empty for none.

    The `name` and the `text` are what a call asks for. The text takes precedence.

    Raises:
        UserInputError: There is no prompt of that name, or the text is something else.
    """
    if text is not None:
        if not isinstance(text, str):
            raise UserInputError(
                f"`prompt` must be a text, got {text!r:.100} ({type(text).__name__}).",
                argument="prompt",
            )
        return text
    name = name or default_name
    if name is None:
        return ""
    if name not in prompts:
        known = ", ".join(repr(each) for each in prompts) or "none"
        raise UserInputError(
            f"`prompt_name={name!r}` is unknown; the model has: {known}.", argument="prompt_name"
        )
    return prompts[name]


def read_model_settings(folder: Path) -> ModelSettings:
    """Return the settings of a folder; the defaults if sentence-transformers did not write it."""
    return model_settings(folder_reader(folder)(MODEL_SETTINGS))


def model_settings(text: str | None) -> ModelSettings:
    """Return the settings in the text of config_sentence_transformers.json; `None` for no file."""
    config = parse_object(text or "{}", MODEL_SETTINGS)
    fields = Fields(config, lambda reason: damaged(MODEL_SETTINGS, reason))
    prompts = fields.child("prompts") if fields.has("prompts") else None
    for name in ("default_prompt_name", "similarity_fn_name", "activation_fn"):
        if fields.has(name):
            fields.text(name)
    for name in ("truncate_dim", "max_active_dims"):
        if fields.has(name):
            fields.integer(name)
    named = {}
    if prompts is not None:
        named = {name: prompts.text(name) if prompts.has(name) else "" for name in prompts.values}
    for name in ("query", "document"):
        # PyLate 3 and earlier store the start of a prompt by itself.
        if fields.has(f"{name}_prefix"):
            start = fields.text(f"{name}_prefix")
            named[name] = start + named.get(name, "").removeprefix(start)
    return ModelSettings(
        prompts=named,
        default_prompt_name=config.get("default_prompt_name"),
        similarity=config.get("similarity_fn_name"),
        truncate_dim=config.get("truncate_dim"),
        max_active_dims=config.get("max_active_dims"),
        activation=config.get("activation_fn"),
    )


def write_sentence_head(head: SentenceHead, folder: Path, *, hidden: int, find: FindFile) -> None:
    """Make a folder with an encoder or its graph readable by sentence-transformers.

    Writes modules.json, the pooling and the settings. The checkpoint's own settings are copied:
    prompts, the similarity function, the longest input and so on. sentence-transformers' ONNX
    backend reads `last_hidden_state` of a graph and applies these modules to it.
    """
    modules = [("Transformer", ""), ("Pooling", _POOLING_FOLDER)]
    modules += write_modules(head.modules, folder, find)
    if head.normalize:
        modules.append(("Normalize", f"{len(modules)}_Normalize"))
    pooling = {flag: mode in head.poolings for flag, mode in _POOLING_FLAGS.items()}
    settings = {"max_seq_length": head.max_length, "do_lower_case": head.lower_case}
    defaults = {
        POOLING_CONFIG: {"word_embedding_dimension": hidden, **pooling},
        SETTINGS: settings,
    }
    texts = {path: json.dumps(content, indent=2) + "\n" for path, content in defaults.items()}
    write_files(folder, modules, {**texts, **head.files})


def write_files(folder: Path, modules: Sequence[tuple[str, str]], texts: Mapping[str, str]) -> None:
    """Write modules.json, the folders of the modules, and other files.

    `modules` are the names of their classes with their paths, and `texts` the contents of the other
    files by their paths.
    """
    listed = [
        {"idx": index, "name": str(index), "path": path, "type": f"{_PACKAGE}.{kind}"}
        for index, (kind, path) in enumerate(modules)
    ]
    for _, path in modules:
        (folder / path).mkdir(exist_ok=True)
    for name, text in {**texts, MODULES: json.dumps(listed, indent=2) + "\n"}.items():
        (folder / name).write_text(text, encoding="utf-8")


def _pooling_modes(config: dict[str, Any]) -> tuple[PoolingMode, ...]:
    if not config.get("include_prompt", True):
        raise CheckpointError(
            "The pooling leaves out the tokens of a prompt (`include_prompt: false` in "
            f"{POOLING_CONFIG}), but a graph cannot tell them from the text. To run the model "
            "without prompts, set it to true in a copy of the folder."
        )
    # sentence-transformers 5 and earlier write a flag for each mode, version 6 writes names.
    named = config.get("pooling_mode")
    if named is None:
        return tuple(mode for flag, mode in _POOLING_FLAGS.items() if config.get(flag)) or ("mean",)
    modes = named if isinstance(named, list) else [named]
    if not modes or any(mode not in POOLING_MODES for mode in modes):
        raise CheckpointError(
            f"The pooling {config} is not supported; expected some of {', '.join(POOLING_MODES)}."
        )
    return tuple(modes)


def _content(read: ReadFile, path: str) -> dict[str, Any]:
    return parse_object(read(path) or "{}", path)


def join(folder: str, name: str) -> str:
    """Return the path of a file of a module."""
    return f"{folder}/{name}" if folder else name
