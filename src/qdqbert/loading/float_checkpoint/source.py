"""The settings of a float checkpoint, and its name in the cache."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qdqbert.common.cache import kept_digest
from qdqbert.common.errors import CheckpointError
from qdqbert.common.file_names import (
    ADDED_TOKENS,
    CONFIG,
    SPECIAL_TOKENS,
    TOKENIZER,
    TOKENIZER_CONFIG,
)
from qdqbert.common.json_files import parse_object, read_json
from qdqbert.data.tokenizing.pair_template import PairTemplate
from qdqbert.data.tokenizing.tokenizer import check_settings
from qdqbert.data.tokenizing.tokenizer_files import merged_settings
from qdqbert.encoders.adapters import (
    ADAPTERS,
    adapter_names,
    check_adapter,
    has_adapter_weights,
    merged,
)
from qdqbert.encoders.checkpoint.base_model import (
    completed_folder,
    config_of_encoder,
    labels_folder,
)
from qdqbert.encoders.checkpoint.cross_encoder import ScoreHead, generator_head, task_of_files
from qdqbert.encoders.checkpoint.gliclass import (
    encoder_values,
    is_gliclass,
    label_head,
)
from qdqbert.encoders.checkpoint.gliner import LABELS_FIELDS, GlinerHead
from qdqbert.encoders.checkpoint.labels_encoder import LabelsEncoder
from qdqbert.encoders.checkpoint.layout import Layout, pair_template_of
from qdqbert.encoders.checkpoint.own_layers import GLICLASS, OwnLayers, SpanHead
from qdqbert.encoders.checkpoint.sentence import MODEL2VEC, SentenceHead
from qdqbert.encoders.checkpoint.sentence_files import SentenceFiles, join
from qdqbert.encoders.checkpoint.text_heads import TextHead, own_head, read_layout
from qdqbert.encoders.config import Config
from qdqbert.encoders.families import family_of
from qdqbert.encoders.peft import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from qdqbert.encoders.relative_limit import reading
from qdqbert.encoders.task_kinds import (
    ENCODER,
    LABELS,
    TASK_KINDS,
    TaskName,
    architectures_of,
    check_classes,
    is_use_of,
    unknown_task,
)
from qdqbert.encoders.tensor_files import files_of, has_weights
from qdqbert.encoders.weights import Weights
from qdqbert.engines.native.instruction_sets import choose_set

NO_LIMIT = 10**9
"""transformers' value of `model_max_length` for no limit is far above."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FloatCheckpoint:
    """A checkpoint, apart from its weights.

    Attributes:
        config: The encoder's config.
        encoder_folder: Folder of the encoder in it.
        tokenizer_folder: Folder of the tokenizer: the encoder's, or one of the cache.
        layout: The files of sentence-transformers, if there are some.
        task: The task of its head.
        adapter: Adapter that is merged into its weights; `None` for none.
        is_guess: Whether no file says what the task is.
        labels: The second encoder of the checkpoint, which reads labels, if it has one.
    """

    folder: Path
    config: Config
    encoder_folder: Path
    tokenizer_folder: Path
    layout: Any
    task: TaskName
    tokenizer_config: Mapping[str, Any]
    adapter: str | None = None
    is_guess: bool = False
    labels: FloatCheckpoint | None = None

    def read_weights(self) -> Weights:
        """Return the weights of the encoder."""
        stored = Weights(self.encoder_folder)
        if isinstance(self.layout, Layout):
            stored = self.layout.of_encoder(stored)
        return merged(stored, self.config, self.adapter)

    def other_adapters(self) -> tuple[str, ...]:
        """Return the adapters that could be merged if none is."""
        if self.adapter is not None:
            return ()
        weights = Weights(self.encoder_folder)
        return adapter_names(self.config) if has_adapter_weights(weights, self.config) else ()

    def guesses(self, name: str, *, is_named: bool) -> tuple[str, ...]:
        """Return sentences on what no file says.

        `name` is the user's name for the checkpoint; `is_named`, whether the user named the task.
        """
        if isinstance(self.layout, SpanHead) and not self.layout.finds_spans:
            return (
                f"{name} is of gliner2's architecture 'boundary': it chooses among labels, and "
                "decides. Its entities, structures and relations are not computed.",
            )
        if self.layout is not None or family_of(self.config).embedding is not None:
            return ()
        if self.task == ENCODER:
            return (
                f"{name} has no modules.json, so its pooling is not known: the mean of the token "
                "states is used. `quantize` takes another one, as `pooling`.",
            )
        # SPLADE reads the scores of a masked language model.
        read_by_splade = {kind.head for kind in TASK_KINDS.values() if kind.vectors == "sparse"}
        if self.task in read_by_splade and not is_named:
            return (
                f"{name} runs as a masked language model. If it is a SPLADE model, whose files of "
                "sentence-transformers are missing, pass `task='sparse-embedding'`.",
            )
        return own_head(None, name, self.task)[1]

    def read_pair_template(self) -> PairTemplate | None:
        """Return the text around pairs, which is rendered now; `None` if there is none."""
        files, name = SentenceFiles.of_folder(self.folder), str(Path(self.config.path).parent)
        return pair_template_of(self.layout, files, name)

    @property
    def head(self) -> TextHead | None:
        """What is after the encoder in modules or layers of their own, if it is known."""
        found, _ = own_head(self.layout, str(self.folder), self.task)
        return found or (self.layout if isinstance(self.layout, SentenceHead) else None)


def read_checkpoint(
    folder: Path,
    *,
    name: str | None = None,
    task: TaskName | None = None,
    adapter: str | None = None,
) -> FloatCheckpoint:
    """Read the settings of a folder that transformers or sentence-transformers saved.

    Args:
        folder: The folder.
        name: The user's name for it, for messages; the folder by default.
        task: The task that was asked for. A masked language model is then a sparse embedder, and
            the encoder of any model an embedder; otherwise the files say what the task is.
        adapter: See `FloatCheckpoint`.

    Raises:
        CheckpointError: A file is missing or damaged, or there is an adapter of PEFT.
        UserInputError: The task of its architecture is not known, or it has no such adapter.
    """
    name = name or str(folder)
    files = SentenceFiles.of_folder(folder)
    layout: Any = read_layout(files)
    subfolder = layout.subfolder if layout else ""
    path = folder / join(subfolder, CONFIG)
    if any((folder / join(each, ADAPTER_CONFIG)).is_file() for each in ("", subfolder)):
        raise CheckpointError(
            f"{str(folder)!r} has an adapter next to the model, which would be left out. Merge it "
            "with PEFT's `merge_and_unload()`, and save the whole model."
        )
    completed = completed_folder(layout, files.find, name, subfolder)
    values = _config_of(layout, path, completed)
    if is_gliclass(values):
        values = encoder_values(values)
        layout = label_head(values[GLICLASS])
    layout = layout or generator_head(files, values.get("architectures"), task, name)
    if isinstance(layout, ScoreHead):
        values["num_labels"] = layout.outputs
    is_span = isinstance(layout, SpanHead)
    place = layout.config_place(name) if is_span else f"{name}/{join(subfolder, CONFIG)}"
    config = Config(values=values, path=place)
    family_of(config)
    chosen = _task(config, layout, task)
    config = config.with_classes(chosen)
    if task is not None and is_use_of(task, chosen):
        check_classes(task, config.class_names(), where=config.path)
    check_adapter(config, adapter, name)
    tokenizer_folder = completed or folder / subfolder
    read = SentenceFiles.of_folder(tokenizer_folder).read
    stored = (
        parse_object(read(each) or "{}", f"{name}/{join(subfolder, each)}")
        for each in (TOKENIZER_CONFIG, SPECIAL_TOKENS, ADDED_TOKENS)
    )
    tokenizer_config = check_settings(
        merged_settings(*stored), Path(name) / subfolder / TOKENIZER_CONFIG
    )
    if not isinstance(layout, SpanHead):
        values = reading(config.values, longest_input(layout, tokenizer_config))
        config = dataclasses.replace(config, values=values)
    return FloatCheckpoint(
        folder=folder,
        config=config,
        encoder_folder=folder / subfolder,
        tokenizer_folder=tokenizer_folder,
        layout=layout,
        task=chosen,
        tokenizer_config=tokenizer_config,
        adapter=adapter,
        is_guess=not (task or layout or config.values.get("architectures")),
        labels=_labels_encoder(folder, layout, files, name),
    )


def _labels_encoder(
    folder: Path, layout: object, files: SentenceFiles, name: str
) -> FloatCheckpoint | None:
    """Return the second encoder of a checkpoint of gliner, if it has one."""
    if not isinstance(layout, GlinerHead) or not layout.has_labels_encoder:
        return None
    made = labels_folder(layout, files.find, name)
    place = layout.config_place(name, LABELS_FIELDS)
    config = Config(values=read_json(made / CONFIG), path=place)
    family_of(config)
    return FloatCheckpoint(
        folder=folder,
        config=config.with_classes(ENCODER),
        encoder_folder=folder,
        tokenizer_folder=made,
        layout=LabelsEncoder(poolings=("mean",), normalize=False, max_length=None),
        task=ENCODER,
        tokenizer_config=check_settings(
            read_json(made / TOKENIZER_CONFIG), Path(name) / TOKENIZER_CONFIG
        ),
    )


def longest_input(layout: Any, settings: Mapping[str, Any]) -> int | None:
    """Return the longest text in tokens by the settings of the tokenizer; `None` for any."""
    # The second name is an older one.
    given = settings.get("model_max_length", settings.get("max_len"))
    is_limit = isinstance(given, int | float) and 0 < given < NO_LIMIT
    length = int(given) if is_limit else None
    return length if layout is None else layout.longest_input(length)


def _config_of(layout: Any, path: Path, completed: Path | None) -> dict[str, Any]:
    """Return the encoder's config.json, which static embeddings and gliner's need not have."""
    if isinstance(layout, SpanHead):
        return config_of_encoder(layout, completed)
    if not (isinstance(layout, SentenceHead) and layout.is_static):
        return read_json(path)
    return {**(read_json(path) if path.is_file() else {}), "model_type": MODEL2VEC}


def _task(config: Config, layout: Any, wanted: TaskName | None) -> TaskName:
    named = architectures_of(config.values.get("architectures"))
    if isinstance(layout, OwnLayers) and layout.task == LABELS:
        # Of the graph; the layers after it are not in it.
        return ENCODER
    if not named and wanted is not None and not isinstance(layout, Layout):
        return wanted
    task = task_of_files(named or ["Model"], config, layout)
    if task is None:
        if wanted is None:
            raise unknown_task(named[0])
        return wanted
    if wanted is None or isinstance(layout, Layout):
        return task
    kind = TASK_KINDS[wanted]
    is_other_use = (kind.vectors == "sparse" and kind.head == task) or wanted == ENCODER
    return wanted if is_other_use else task


def limits_pairs() -> bool:
    """Return whether limits on pairs of weights make this CPU much faster; see rounding."""
    return not choose_set().dot.is_exact


def key_of(checkpoint: FloatCheckpoint, settings: str) -> str:
    """Return the name of a folder in the cache that is made of a checkpoint.

    Args:
        checkpoint: The checkpoint.
        settings: Other settings that the content of the folder depends on.
    """
    digest = hashlib.sha256(settings.encode())
    names = (TOKENIZER, TOKENIZER_CONFIG, SPECIAL_TOKENS, ADDED_TOKENS)
    places = [checkpoint.encoder_folder / CONFIG]
    places += [checkpoint.tokenizer_folder / name for name in names]
    if checkpoint.tokenizer_folder != checkpoint.encoder_folder:
        places.append(checkpoint.tokenizer_folder / CONFIG)
    if checkpoint.adapter is not None:
        own = checkpoint.encoder_folder / ADAPTERS / checkpoint.adapter
        places += [own / name for name in (ADAPTER_CONFIG, *ADAPTER_WEIGHTS)]
    for path in (*files_of(checkpoint.encoder_folder)[1], *places):
        digest.update(path.name.encode())
        if path.is_file():
            digest.update(_digest(path))
    for name, text in sorted(checkpoint.layout.files.items() if checkpoint.layout else ()):
        digest.update(f"{name}\n{text}".encode())
    head = checkpoint.head
    digest.update(repr((checkpoint.task, head, checkpoint.adapter)).encode())
    if checkpoint.is_guess:
        digest.update(b"guess")
    for each in head.weight_folders if head else ():
        folder = checkpoint.folder / each
        for path in files_of(folder)[1] if has_weights(folder) else ():
            digest.update(_digest(path))
    for each in head.weight_files if head else ():
        digest.update(_digest(checkpoint.folder / each))
    if checkpoint.labels is not None:
        digest.update(key_of(checkpoint.labels, settings).encode())
    return digest.hexdigest()[:32]


def _digest(path: Path) -> bytes:
    try:
        return bytes.fromhex(kept_digest(path))
    except OSError as error:
        raise CheckpointError(f"{str(path)!r} cannot be read: {error.strerror}.") from error
