"""Tasks of models with layers after the encoder that are not part of the graph."""

from __future__ import annotations

from pathlib import Path

from qdqbert.encoders.checkpoint.gliclass import LabelHead
from qdqbert.encoders.checkpoint.gliner2 import Gliner2Head
from qdqbert.encoders.checkpoint.own_layers import OwnLayers, SpanHead
from qdqbert.encoders.checkpoint.sentence_files import FindFile
from qdqbert.encoders.checkpoint.text_heads import head_of_folder
from qdqbert.encoders.task_kinds import LABELS
from qdqbert.tasks.entity_extraction import check_encoder_of_labels, of_scorer
from qdqbert.tasks.gliclass import joint_task
from qdqbert.tasks.gliner2 import schema_task
from qdqbert.tasks.label_scores import LabelScorer
from qdqbert.tasks.label_vectors import EmbedLabels
from qdqbert.tasks.span_layers import Tensors
from qdqbert.tasks.span_scores import SpanScorer
from qdqbert.tasks.task import Task


def task_of_head(
    task: Task, head: object, find: FindFile, embed: EmbedLabels | None = None
) -> Task:
    """Return a task, with the layers after the encoder of a checkpoint if a call names its labels.

    `find` finds files of the checkpoint, and `embed` makes vectors of labels if it has an encoder
    for them.

    Raises:
        CheckpointError: The layers do not fit their settings.
    """
    if not isinstance(head, OwnLayers):
        return task
    return _with_layers(task, head, Tensors.of_checkpoint(head, find), embed)


def task_of_folder(task: Task, folder: Path, embed: EmbedLabels | None = None) -> Task:
    """Return a task, with the layers after the encoder in a folder with graphs if it has some.

    Raises:
        CheckpointError: The folder lacks these layers, or their encoder of labels.
    """
    head = head_of_folder(folder)
    if head is None:
        return task
    check_encoder_of_labels(head, embed, folder)
    return _with_layers(task, head, Tensors.of_folder(folder, head), embed)


def _with_layers(task: Task, head: OwnLayers, tensors: Tensors, embed: EmbedLabels | None) -> Task:
    if isinstance(head, LabelHead):
        return joint_task(LabelScorer.of(head, tensors))
    if isinstance(head, Gliner2Head) and not (head.finds_spans and task.name != LABELS):
        return schema_task(head, tensors)
    assert isinstance(head, SpanHead), "there are three packages"
    return of_scorer(SpanScorer.of(head, tensors), embed)
