"""The layout of sentence-transformers folders: how token states become one vector."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from qdqbert.choices import POOLING_MODES, PoolingMode
from qdqbert.errors import CheckpointError

_POOLING_FLAGS: dict[str, PoolingMode] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
}

# Package of the module classes in modules.json, which all versions of sentence-transformers read.
_MODULES = "sentence_transformers.models"

# Names of the settings of the encoder, the current one first.
_SETTINGS = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "xlm-roberta")
)

_MODEL_SETTINGS = "config_sentence_transformers.json"

_POOLING_FOLDER = "1_Pooling"
_POOLING_CONFIG = f"{_POOLING_FOLDER}/config.json"

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
    """

    prompts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    default_prompt_name: str | None = None
    similarity: Literal["cosine", "dot", "euclidean", "manhattan"] | None = None
    truncate_dim: int | None = None

    @property
    def default_prompt(self) -> str:
        """Prompt that is put before each text by default; empty for none."""
        return str(self.prompts.get(self.default_prompt_name or "") or "")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentenceHead:
    """What sentence-transformers computes after the encoder.

    Attributes:
        pooling: How token states become one vector; [PAD] is always ignored.
        normalize: Whether the vector is scaled to length 1.
        max_length: Longest input in tokens that the checkpoint is meant for; `None` if not given.
        subfolder: Folder of the encoder in the checkpoint; empty for its root.
        lower_case: Whether texts are converted to lower case before they are tokenized.
        default_prompt: Prompt that sentence-transformers puts before each text; empty for none.
        files: Files of the checkpoint to copy, with their texts by path in the new folder.
    """

    pooling: PoolingMode
    normalize: bool
    max_length: int | None
    subfolder: str = ""
    lower_case: bool = False
    default_prompt: str = ""
    files: Mapping[str, str] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    def with_pooling(self, pooling: PoolingMode) -> SentenceHead:
        """Return the same head with another pooling."""
        files = {path: text for path, text in self.files.items() if path != _POOLING_CONFIG}
        return dataclasses.replace(self, pooling=pooling, files=files)


def read_sentence_head(read: ReadFile) -> SentenceHead | None:
    """Return the head of a sentence-transformers folder; `None` for any other folder.

    Raises:
        CheckpointError: It has a module or a pooling that cannot be put into a graph, such as one
            that leaves out prompts.
    """
    modules = read("modules.json")
    if modules is None:
        return None
    paths = {
        str(entry["type"]).rpartition(".")[2]: str(entry["path"]) for entry in json.loads(modules)
    }
    unknown = set(paths) - {"Transformer", "Pooling", "Normalize"}
    if unknown or "Transformer" not in paths or "Pooling" not in paths:
        raise CheckpointError(
            f"modules.json lists {', '.join(paths)}; only Transformer, Pooling and, optionally, "
            "Normalize are supported. To quantize the encoder alone, remove modules.json from a "
            "copy of the folder."
        )
    subfolder = paths["Transformer"]
    settings = next(
        (text for name in _SETTINGS if (text := read(_join(subfolder, name))) is not None), None
    )
    files = {
        _POOLING_CONFIG: read(_join(paths["Pooling"], "config.json")),
        _SETTINGS[0]: settings,
        _MODEL_SETTINGS: read(_MODEL_SETTINGS),
    }
    loaded = {path: json.loads(text or "{}") for path, text in files.items()}
    return SentenceHead(
        pooling=_pooling_mode(loaded[_POOLING_CONFIG]),
        normalize="Normalize" in paths,
        max_length=loaded[_SETTINGS[0]].get("max_seq_length"),
        subfolder=subfolder,
        lower_case=bool(loaded[_SETTINGS[0]].get("do_lower_case")),
        default_prompt=_model_settings(loaded[_MODEL_SETTINGS]).default_prompt,
        files={path: text for path, text in files.items() if text is not None},
    )


def read_model_settings(folder: Path) -> ModelSettings:
    """Return the settings of a folder; the defaults if sentence-transformers did not write it."""
    path = folder / _MODEL_SETTINGS
    return _model_settings(json.loads(path.read_text("utf-8")) if path.is_file() else {})


def write_sentence_head(head: SentenceHead, folder: Path, *, hidden: int) -> None:
    """Make a folder with an encoder or its graph readable by sentence-transformers.

    Writes modules.json, the pooling and the settings. What the checkpoint had is copied: prompts,
    the similarity function, the longest input and so on. sentence-transformers' ONNX backend reads
    `last_hidden_state` of a graph and applies these modules to it.

    Args:
        head: The head of the checkpoint.
        folder: Folder in whose root the encoder is.
        hidden: Size of a token's state.
    """
    paths = {"Transformer": "", "Pooling": _POOLING_FOLDER}
    paths |= {"Normalize": "2_Normalize"} if head.normalize else {}
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"{_MODULES}.{kind}"}
        for index, (kind, path) in enumerate(paths.items())
    ]
    pooling = {flag: mode == head.pooling for flag, mode in _POOLING_FLAGS.items()}
    settings = {"max_seq_length": head.max_length, "do_lower_case": head.lower_case}
    defaults = {
        _POOLING_CONFIG: {"word_embedding_dimension": hidden, **pooling},
        _SETTINGS[0]: settings,
    }
    texts = {path: json.dumps(content, indent=2) + "\n" for path, content in defaults.items()}
    texts |= {**head.files, "modules.json": json.dumps(modules, indent=2) + "\n"}
    for path in paths.values():
        (folder / path).mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")


def _pooling_mode(config: dict[str, Any]) -> PoolingMode:
    if not config.get("include_prompt", True):
        raise CheckpointError(
            "The pooling leaves out the tokens of a prompt (`include_prompt: false` in "
            f"{_POOLING_CONFIG}), but a graph cannot tell them from the text. To run the model "
            "without prompts, set it to true in a copy of the folder."
        )
    # sentence-transformers 5 and earlier write a flag for each mode, version 6 writes one name.
    modes = [mode for flag, mode in _POOLING_FLAGS.items() if config.get(flag)]
    if "pooling_mode" in config:
        named = config["pooling_mode"]
        modes = [mode for mode in POOLING_MODES if mode == named or [mode] == named]
    if len(modes) != 1:
        raise CheckpointError(
            f"The pooling {config} is not supported; expected one of {', '.join(POOLING_MODES)}."
        )
    return modes[0]


def _model_settings(config: Mapping[str, Any]) -> ModelSettings:
    return ModelSettings(
        prompts=dict(config.get("prompts") or {}),
        default_prompt_name=config.get("default_prompt_name"),
        similarity=config.get("similarity_fn_name"),
        truncate_dim=config.get("truncate_dim"),
    )


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name
