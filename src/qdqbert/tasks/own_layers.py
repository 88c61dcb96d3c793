"""Tasks of models with layers after the encoder that are not part of the graph."""

from __future__ import annotations

from pathlib import Path

from qdqbert.common.file_names import CONFIG
from qdqbert.common.json_files import read_json
from qdqbert.encoders.checkpoint.gliclass import GLICLASS, LabelHead, label_head
from qdqbert.encoders.checkpoint.gliner2 import CLASSIFIER, Gliner2Head
from qdqbert.encoders.checkpoint.own_layers import SPAN_WEIGHTS, SpanHead, read_own_weights
from qdqbert.encoders.checkpoint.sentence_files import FindFile, file_finder, text_reader
from qdqbert.encoders.checkpoint.text_heads import read_span_head
from qdqbert.encoders.task_kinds import LABELS
from qdqbert.tasks.entity_extraction import of_scorer
from qdqbert.tasks.gliclass import joint_task
from qdqbert.tasks.gliner2 import schema_task
from qdqbert.tasks.label_scores import LabelScorer
from qdqbert.tasks.span_layers import Tensors
from qdqbert.tasks.span_scores import SpanScorer
from qdqbert.tasks.task import Task


def task_of_head(task: Task, head: object, find: FindFile) -> Task:
    """Return a task, with the layers after the encoder of a checkpoint if a call names its labels.

    `find` finds files of the checkpoint.
    """
    if isinstance(head, Gliner2Head) and task.name == LABELS:
        return schema_task(head, Tensors(head.tensors(find), Path(head.file)))
    if isinstance(head, SpanHead):
        return of_scorer(SpanScorer.of(head, head.tensors(find), Path(head.file)))
    if isinstance(head, LabelHead):
        return joint_task(LabelScorer.of(head, head.tensors(find), Path(CONFIG)))
    return task


def task_of_folder(task: Task, folder: Path) -> Task:
    """Return a task, with the layers after the encoder in a folder with graphs if it has some."""
    head = read_span_head(text_reader(file_finder(folder)))
    if isinstance(head, Gliner2Head) and task.name == LABELS:
        weights = read_own_weights(folder, SPAN_WEIGHTS, CLASSIFIER)
        return schema_task(head, Tensors(weights, folder / SPAN_WEIGHTS))
    if head is not None:
        return of_scorer(SpanScorer.of_folder(head, folder))
    settings = read_json(folder / CONFIG).get(GLICLASS)
    if settings is None:
        return task
    return joint_task(LabelScorer.of_folder(label_head(settings), folder))
