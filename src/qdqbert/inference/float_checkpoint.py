"""Run a float checkpoint in INT8 at once: its weights are rounded, packed and kept in the cache.

The cache has a folder for each checkpoint, of the form that `quantize` writes, with the one target
`native-dynamic`. It takes no data: the scale of each activation is computed while the model runs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import logging
import math
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qdqbert.artifact import CONFIG, QUANTIZATION, QUANTIZATION_FORMAT, Artifact, open_artifact
from qdqbert.cache import kept_folder
from qdqbert.checkpoint.cross_encoder import is_reranker, read_layout
from qdqbert.checkpoint.sentence import SentenceHead, folder_reader, join
from qdqbert.checkpoint.task_names import tasks_of
from qdqbert.choices import PoolingMode, TaskName
from qdqbert.encoders.checkpoint import family_of, read_encoder
from qdqbert.encoders.config import Config
from qdqbert.encoders.heads import EMBEDDING
from qdqbert.encoders.model import EncoderModel, Pooling
from qdqbert.encoders.reference import run_text
from qdqbert.encoders.rounding import round_encoder
from qdqbert.encoders.weights import Weights
from qdqbert.engines.native.instruction_sets import choose_set
from qdqbert.engines.native.packed import pack_model
from qdqbert.engines.native.runner import NativeRunner
from qdqbert.engines.native.storage import FORMAT, save_packed
from qdqbert.errors import CheckpointError, UserInputError
from qdqbert.files import write_json
from qdqbert.json_files import parse_object, read_json
from qdqbert.machine import usable_cores
from qdqbert.resources import heldout_examples
from qdqbert.tokenizer_files import (
    TOKENIZER,
    TOKENIZER_CONFIG,
    put_lower_case_first_,
    read_tokenizer,
)

_LOGGER = logging.getLogger("qdqbert")

_TARGET = "native-dynamic"
_MODEL = "model.safetensors"
_SPECIAL_TOKENS = "special_tokens_map.json"

_CLOSENESS = "closeness.json"
# Built-in texts that are compared, and their longest length in tokens.
_TEXTS, _LONGEST_TEXT = 16, 128

# Part of the key of a folder: what the content depends on, apart from the checkpoint.
_VERSION = f"2.{FORMAT}"

_POOLINGS: Mapping[PoolingMode, Pooling] = {
    "cls": "first",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
}
# Tokenizers that make no token types, although tokenizer.json may have some.
_WITHOUT_TYPES = ("Camembert", "DistilBert", "MPNet", "Roberta", "XLMRoberta", "Esm")
# Tokens that classes of tokenizers have without saying so, by their roles.
_USUAL_TOKENS = {
    "cls_token": ("[CLS]", "<s>"),
    "mask_token": ("[MASK]", "<mask>"),
    "pad_token": ("[PAD]", "<pad>"),
    "sep_token": ("[SEP]", "</s>"),
    "unk_token": ("[UNK]", "<unk>"),
}
# transformers' value of `model_max_length` for no limit is far above.
_NO_LIMIT = 10**9


@dataclasses.dataclass(frozen=True, kw_only=True)
class Closeness:
    """How close INT8 is to float on built-in texts.

    Attributes:
        texts: Number of texts.
        sqnr_db: Signal-to-quantization-noise ratio of the output, dB.
        worst_cosine: Lowest cosine of an embedding to that of the float model; `None` for other
            outputs.
    """

    texts: int
    sqnr_db: float
    worst_cosine: float | None

    def __str__(self) -> str:
        """Return it in words."""
        cosine = "" if self.worst_cosine is None else f", worst cosine {self.worst_cosine:.4f}"
        return f"{self.sqnr_db:.1f} dB of {self.texts} built-in texts{cosine}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Source:
    """A checkpoint, apart from its weights.

    Attributes:
        folder: Its folder.
        config: The encoder's config.
        encoder_folder: Folder of the encoder in it.
        layout: The files of sentence-transformers, if there are some.
        task: The task of its head.
        tokenizer_config: Settings of its tokenizer.
    """

    folder: Path
    config: Config
    encoder_folder: Path
    layout: Any
    task: TaskName
    tokenizer_config: Mapping[str, Any]

    @property
    def head(self) -> SentenceHead | None:
        """Pooling and normalization of an embedder, if they are known."""
        return self.layout if isinstance(self.layout, SentenceHead) else None


def is_float_checkpoint(folder: Path) -> bool:
    """Return whether a folder is a checkpoint whose weights are safetensors."""
    return has_settings(folder) and any(folder.rglob("*.safetensors"))


def has_settings(folder: Path) -> bool:
    """Return whether a folder has the settings of a checkpoint."""
    return (folder / CONFIG).is_file() or (folder / "modules.json").is_file()


def check_settings(folder: Path) -> None:
    """Refuse a checkpoint of which the settings say that it is not run. Weights are not read.

    Raises:
        CheckpointError: The family is not supported, or a setting is missing or damaged.
        UserInputError: The task is not known.
    """
    family_of(_read_source(folder).config)


def open_float_checkpoint(folder: Path, *, name: str, check: bool = True) -> Artifact:
    """Return the folder of the cache that runs a checkpoint, which is made if it is not there.

    Args:
        folder: A folder that transformers or sentence-transformers saved.
        name: What the user calls it, for the log.
        check: Whether to say in the log how close INT8 is to float.

    Raises:
        CheckpointError: A file is missing, damaged, or of a kind that is not supported.
        UserInputError: The family has no head for the checkpoint's task.
    """
    source = _read_source(folder)
    weights = Weights(source.encoder_folder)
    # It is packed, compared, both or neither.
    model = functools.cache(functools.partial(_read_model, source, weights))
    key = _key(source, weights)
    made = kept_folder(key, lambda new: _write(source, model(), new, key))
    if check:
        found = _kept_closeness(model, made)
        _LOGGER.info("INT8 of %s compared with float: %s.", name, found)
    return open_artifact(made)


def _kept_closeness(model: Callable[[], EncoderModel], folder: Path) -> Closeness:
    """Return how close INT8 is to float, which is computed once for a folder."""
    path = folder / _CLOSENESS
    with contextlib.suppress(CheckpointError, TypeError):
        return Closeness(**read_json(path))
    found = _closeness(model(), folder)
    # Without it, the next process computes it again.
    with contextlib.suppress(OSError):
        write_json(path, dataclasses.asdict(found))
    return found


def _closeness(model: EncoderModel, folder: Path) -> Closeness:
    """Run texts in INT8 and in float, and compare the last output of each."""
    tokenizer = read_tokenizer(folder / TOKENIZER).tokenizer
    tokenizer.enable_truncation(min(model.limit, _LONGEST_TEXT))
    runner = NativeRunner(folder / _MODEL, threads=usable_cores())
    name = model.heads[-1].outputs[-1].name
    signal = noise = 0.0
    cosines = []
    for example in heldout_examples()[:_TEXTS]:
        encoding = tokenizer.encode(example.text)
        ids, types = np.array(encoding.ids), np.array(encoding.type_ids)
        if "token_type_ids" not in model.input_names:
            types = np.zeros_like(ids)
        wanted = run_text(model, ids, types)[name].astype(np.float64)
        shape = (1, 1, -1) if model.has_choices else (1, -1)
        arrays = {
            "input_ids": ids,
            "attention_mask": np.ones_like(ids),
            "token_type_ids": types,
        }
        inputs = {each: arrays[each].reshape(shape) for each in model.input_names}
        found = runner.run(inputs)[name].reshape(wanted.shape).astype(np.float64)
        signal += float((wanted**2).sum())
        noise += float(((found - wanted) ** 2).sum())
        lengths = np.linalg.norm(wanted) * np.linalg.norm(found)
        cosines.append(float((wanted * found).sum() / lengths))
    return Closeness(
        texts=len(cosines),
        sqnr_db=10 * math.log10(signal / noise),
        worst_cosine=min(cosines) if name == EMBEDDING else None,
    )


def _read_source(folder: Path) -> _Source:
    read = folder_reader(folder)
    layout = read_layout(read)
    subfolder = layout.subfolder if layout else ""
    path = folder / join(subfolder, CONFIG)
    if any((folder / join(each, "adapter_config.json")).is_file() for each in ("", subfolder)):
        raise CheckpointError(
            f"{str(folder)!r} has an adapter next to the model, which would be left out. Merge it "
            "with PEFT's `merge_and_unload()`, and save the whole model."
        )
    config = Config(values=read_json(path), path=str(path))
    tokenizer_config = {
        **parse_object(read(join(subfolder, _SPECIAL_TOKENS)) or "{}", _SPECIAL_TOKENS),
        **parse_object(read(join(subfolder, TOKENIZER_CONFIG)) or "{}", TOKENIZER_CONFIG),
    }
    return _Source(
        folder=folder,
        config=config,
        encoder_folder=folder / subfolder,
        layout=layout,
        task=_task(config, layout),
        tokenizer_config=tokenizer_config,
    )


def _task(config: Config, layout: Any) -> TaskName:
    if isinstance(layout, SentenceHead):
        return "feature-extraction"
    named = config.values.get("architectures") or []
    task = tasks_of(types.SimpleNamespace(architectures=named))[0]
    if task is None:
        raise UserInputError(
            f"The task of architecture `{named[0]}` in {config.path} is not known, so the "
            "checkpoint cannot be run as it is. `quantize` takes the task as an option.",
        )
    if task == "text-classification" and is_reranker(config.values, layout):
        return "reranking"
    return task


def _key(source: _Source, weights: Weights) -> str:
    """Return the name of the folder in the cache."""
    digest = hashlib.sha256(f"{_VERSION} {_limits_pairs()}".encode())
    settings = [
        source.encoder_folder / name
        for name in (CONFIG, TOKENIZER, TOKENIZER_CONFIG, _SPECIAL_TOKENS)
    ]
    for path in (*weights.files, *settings):
        digest.update(path.name.encode())
        if path.is_file():
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    for name, text in sorted(source.layout.files.items() if source.layout else ()):
        digest.update(f"{name}\n{text}".encode())
    head = source.head
    digest.update(repr((source.task, head and (head.pooling, head.normalize))).encode())
    return digest.hexdigest()[:32]


def _limits_pairs() -> bool:
    """Return whether this CPU runs weights much faster whose pairs are limited; see rounding."""
    return not choose_set().is_exact


def _write(source: _Source, model: EncoderModel, folder: Path, key: str) -> None:
    """Write a folder that runs a checkpoint."""
    tokenizer = read_tokenizer(source.encoder_folder / TOKENIZER)
    rows = len(model.embeddings.words.rows)
    if tokenizer.largest_id >= rows:
        raise CheckpointError(
            f"The tokenizer of {str(source.folder)!r} has ids up to {tokenizer.largest_id}, but "
            f"the model has {rows} embeddings. Use the tokenizer that the model was trained with."
        )
    backend = tokenizer.tokenizer
    if source.layout is not None and source.layout.lower_case:
        put_lower_case_first_(backend)
    backend.save(str(folder / TOKENIZER))
    rounded = round_encoder(model, limits_pairs=_limits_pairs(), threads=usable_cores())
    save_packed(pack_model(rounded), folder / _MODEL)
    length = _max_length(source, model)
    write_json(folder / CONFIG, dict(source.config.values))
    write_json(folder / TOKENIZER_CONFIG, _tokenizer_settings(source, backend, length))
    for path, text in source.layout.files.items() if source.layout else ():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    write_json(folder / QUANTIZATION, _description(source, model, length, key))


def _read_model(source: _Source, weights: Weights) -> EncoderModel:
    family_of(source.config)
    if not (source.encoder_folder / TOKENIZER).is_file():
        raise CheckpointError(
            f"{str(source.encoder_folder)!r} has no {TOKENIZER}. Write it with transformers: "
            "`AutoTokenizer.from_pretrained(folder).save_pretrained(folder)`."
        )
    head = source.head
    pooling: PoolingMode = "mean" if head is None else head.pooling
    return read_encoder(
        weights,
        source.config,
        source.task,
        pooling=_POOLINGS[pooling],
        normalize=head is not None and head.normalize,
        reads_token_types=_reads_token_types(source.tokenizer_config),
    )


def _reads_token_types(settings: Mapping[str, Any]) -> bool:
    names = settings.get("model_input_names")
    if isinstance(names, list):
        return "token_type_ids" in names
    kind = str(settings.get("tokenizer_class") or "").removesuffix("Fast")
    return kind.removesuffix("Tokenizer") not in _WITHOUT_TYPES


def _max_length(source: _Source, model: EncoderModel) -> int:
    given = [source.tokenizer_config.get("model_max_length")]
    given.append(source.layout.max_length if source.layout else None)
    numbers = [each for each in given if isinstance(each, int | float)]
    limits = [int(each) for each in numbers if 0 < each < _NO_LIMIT]
    return min(model.limit, *limits) if limits else model.limit


def _tokenizer_settings(source: _Source, backend: Any, length: int) -> dict[str, Any]:
    usual = {
        role: next((each for each in tokens if backend.token_to_id(each) is not None), None)
        for role, tokens in _USUAL_TOKENS.items()
    }
    found = {role: token for role, token in usual.items() if token is not None}
    return {**found, **source.tokenizer_config, "model_max_length": length}


def _description(source: _Source, model: EncoderModel, length: int, key: str) -> dict[str, Any]:
    """Return the content of quantization.json. It differs if the weights do."""
    return {
        "format": QUANTIZATION_FORMAT,
        "checkpoint": {
            "key": key,
            "task": source.task,
            "model_type": source.config.values.get("model_type"),
            "sentence_head": source.head and dataclasses.asdict(source.head),
        },
        "max_length": length,
        "inputs": list(model.input_names),
        "outputs": [output.name for head in model.heads for output in head.outputs],
        "task_options": {},
        "calibration": {},
        "targets": {
            _TARGET: {
                "model": _MODEL,
                "engines": ["native"],
                "is_proxy": False,
                "recipe": {"name": "linear", "rules": [], "smoothing": None},
                "rewrites": [],
                "sites": {},
            }
        },
    }
