"""The sentence-transformers folder layout: how token states become one vector."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from qdqbert.errors import CheckpointError

PoolingMode = Literal["mean", "cls", "max", "mean_sqrt_len_tokens"]

_LEGACY_FLAGS: dict[str, PoolingMode] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
}
_MODES = tuple(_LEGACY_FLAGS.values())
_MODULES = "sentence_transformers.models"

ReadFile = Callable[[str], str | None]
"""Text of a file of the checkpoint by its path in it, or `None` where it has no such file."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentenceHead:
    """What sentence-transformers does after the encoder.

    Attributes:
        pooling: How token states become one vector; [PAD] never counts.
        normalize: Whether the vector is scaled to length 1.
        max_length: Longest input in tokens that the checkpoint was meant for, if it says so.
        subfolder: Where in the checkpoint the encoder stands; empty for its root.
    """

    pooling: PoolingMode
    normalize: bool
    max_length: int | None
    subfolder: str = ""


def read_sentence_head(read: ReadFile) -> SentenceHead | None:
    """The sentence head of a checkpoint, or `None` if it is no sentence-transformers folder.

    Raises:
        CheckpointError: It has a module or a pooling that we cannot put into a graph.
    """
    modules_text = read("modules.json")
    if modules_text is None:
        return None
    paths = {
        str(entry["type"]).rpartition(".")[2]: str(entry["path"])
        for entry in json.loads(modules_text)
    }
    unknown = set(paths) - {"Transformer", "Pooling", "Normalize"}
    if unknown or "Transformer" not in paths or "Pooling" not in paths:
        raise CheckpointError(
            f"modules.json lists {', '.join(paths)}; only Transformer, Pooling and, if wanted, "
            'Normalize are supported. Pass `task="feature-extraction"` on a folder without '
            "modules.json to quantize the encoder alone."
        )
    transformer = paths["Transformer"]
    settings = json.loads(read(_join(transformer, "sentence_bert_config.json")) or "{}")
    return SentenceHead(
        pooling=_pooling_mode(json.loads(read(_join(paths["Pooling"], "config.json")) or "{}")),
        normalize="Normalize" in paths,
        max_length=settings.get("max_seq_length"),
        subfolder=transformer,
    )


def write_sentence_head(head: SentenceHead, folder: Path, *, hidden: int) -> None:
    """Makes a folder with an encoder in it one of sentence-transformers.

    Args:
        head: What comes after the encoder.
        folder: Where the encoder stands, in the folder's root.
        hidden: Size of a token's state.
    """
    paths = {"Transformer": "", "Pooling": "1_Pooling"}
    paths |= {"Normalize": "2_Normalize"} if head.normalize else {}
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"{_MODULES}.{kind}"}
        for index, (kind, path) in enumerate(paths.items())
    ]
    pooling = {flag: mode == head.pooling for flag, mode in _LEGACY_FLAGS.items()}
    settings = {"max_seq_length": head.max_length, "do_lower_case": False}
    for path in paths.values():
        (folder / path).mkdir(exist_ok=True)
    for name, content in (
        ("modules.json", modules),
        ("1_Pooling/config.json", {"word_embedding_dimension": hidden, **pooling}),
        ("sentence_bert_config.json", settings),
    ):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _pooling_mode(config: dict[str, Any]) -> PoolingMode:
    # sentence-transformers 5 and before write a flag for each mode, 6 writes one name.
    modes = [mode for flag, mode in _LEGACY_FLAGS.items() if config.get(flag)]
    if "pooling_mode" in config:
        named = config["pooling_mode"]
        modes = [mode for mode in _MODES if mode == named or [mode] == named]
    if len(modes) != 1 or modes[0] not in _MODES:
        raise CheckpointError(
            f"The pooling {config} is not supported; expected one of {', '.join(_MODES)}."
        )
    mode: PoolingMode = modes[0]
    return mode


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name
