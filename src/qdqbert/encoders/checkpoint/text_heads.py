"""Heads of sentence-transformers' models: the modules after the encoder."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from qdqbert.common.errors import CheckpointError, UserInputError
from qdqbert.common.file_names import CONFIG
from qdqbert.common.json_files import read_json
from qdqbert.encoders.checkpoint.cross_encoder import (
    CrossEncoderFiles,
    ScoreHead,
    read_cross_encoder,
)
from qdqbert.encoders.checkpoint.gliclass import LabelHead, label_head
from qdqbert.encoders.checkpoint.gliner import LABELS_FOLDER, read_gliner_head
from qdqbert.encoders.checkpoint.gliner2 import read_gliner2_head
from qdqbert.encoders.checkpoint.layout import prompt_notices
from qdqbert.encoders.checkpoint.multi_vector import (
    MultiVectorHead,
    is_multi_vector,
    read_multi_vector_head,
)
from qdqbert.encoders.checkpoint.own_layers import GLICLASS, OwnLayers, SpanHead
from qdqbert.encoders.checkpoint.sentence import SentenceHead, read_sentence_head
from qdqbert.encoders.checkpoint.sentence_files import (
    ReadFile,
    SentenceFiles,
    file_finder,
    text_reader,
)
from qdqbert.encoders.checkpoint.sparse_encoder import (
    SpladeHead,
    is_sparse_encoder,
    read_splade_head,
    splade_head,
)
from qdqbert.encoders.task_kinds import TASK_KINDS

OWN_FILES = (SpanHead.weights_file, LabelHead.weights_file, f"{LABELS_FOLDER}/*")
"""Files of a folder with graphs that have what runs after, or next to, the encoder of texts."""

_Own = TypeVar("_Own", bound=OwnLayers)

TextHead = SentenceHead | SpladeHead | MultiVectorHead | ScoreHead | SpanHead | LabelHead
"""A head, which makes vectors or scores of token states, or of scores of words."""


def read_span_head(read: ReadFile) -> SpanHead | None:
    """Read the settings of a checkpoint whose labels a call names, or of a folder made of one.

    Returns:
        The settings; `None` for other checkpoints.

    Raises:
        CheckpointError: A setting has a wrong value, or asks for layers that are not computed.
    """
    return read_gliner_head(read) or read_gliner2_head(read)


def head_of_folder(folder: Path) -> SpanHead | LabelHead | None:
    """Return the settings of the layers after the encoder in a folder with graphs, if it has some.

    Raises:
        CheckpointError: A setting has a wrong value.
    """
    if (spans := read_span_head(text_reader(file_finder(folder)))) is not None:
        return spans
    settings = read_json(folder / CONFIG).get(GLICLASS)
    return None if settings is None else label_head(settings)


def stored_head(folder: Path, kind: type[_Own]) -> _Own:
    """Return these settings of a folder that has to have them; see `head_of_folder`.

    Raises:
        CheckpointError: It has none, or a setting has a wrong value.
    """
    head = head_of_folder(folder)
    if not isinstance(head, kind):
        raise CheckpointError(
            f"{str(folder)!r} is incomplete: the settings of {kind.weights_file} are missing."
        )
    return head


def read_layout(files: SentenceFiles) -> TextHead | CrossEncoderFiles | None:
    """Read the files of sentence-transformers, gliner or gliner2 of a checkpoint; `None` without.

    Raises:
        CheckpointError: It has a module or a setting that is not supported.
    """
    if (spans := read_span_head(files.read)) is not None:
        return spans
    if files.is_cross_encoder:
        return read_cross_encoder(files)
    if is_multi_vector(files):
        return read_multi_vector_head(files)
    return read_splade_head(files) if is_sparse_encoder(files) else read_sentence_head(files)


def own_head(
    layout: object, name: str, task: str
) -> tuple[SpladeHead | MultiVectorHead | ScoreHead | SpanHead | LabelHead | None, tuple[str, ...]]:
    """Return the head of a model that is no plain embedder, if it has one, and notices.

    Raises:
        UserInputError: The files of a multi-vector embedder, or of gliner or gliner2, are missing.
    """
    kind = TASK_KINDS[task]
    if isinstance(layout, LabelHead):
        return layout, ()
    if isinstance(layout, SpanHead) and (kind.names_labels or not layout.finds_spans):
        return layout, ()
    if kind.vectors == "spans":
        if not isinstance(layout, SpanHead):
            raise UserInputError(
                f"`task={task!r}`: {name!r} has no settings of gliner or gliner2. Pass a "
                "checkpoint that one of these packages saved.",
                argument="task",
            )
        return layout, ()
    if kind.vectors == "sparse":
        return splade_head(layout, name)
    if isinstance(layout, ScoreHead) and layout.task == task:
        # `used_files` has the notices of rerankers.
        return layout, ()
    if kind.vectors != "tokens":
        return None, ()
    if not isinstance(layout, MultiVectorHead):
        raise UserInputError(
            f"`task={task!r}`: {name!r} has no files of a multi-vector encoder. Save the model "
            "with `MultiVectorEncoder` of sentence-transformers.",
            argument="task",
        )
    return layout, tuple(prompt_notices(layout))
