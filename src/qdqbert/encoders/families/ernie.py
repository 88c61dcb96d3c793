"""ERNIE (Sun et al. 2019, arXiv:1907.12412)."""

from __future__ import annotations

import dataclasses

from qdqbert.encoders.families.bert import BERT_DEFAULTS, BERT_HEADS, read_bert_like
from qdqbert.encoders.family import Encoder, Family
from qdqbert.encoders.reader import Reader


def read_ernie(reader: Reader) -> Encoder:
    """Read a model that may also have an embedding of the kind of task."""
    encoder = read_bert_like(reader)
    if not reader.config.flag("use_task_id"):
        return encoder
    # Nothing passes a kind of task, so that each token has the first one.
    positions = encoder.embeddings.positions
    assert positions is not None
    table = reader.at("embeddings").table(
        "task_type_embeddings", rows="task_type_vocab_size", width=positions.rows.shape[1]
    )
    changed = dataclasses.replace(positions, rows=positions.rows[:] + table.rows[:1])
    embeddings = dataclasses.replace(encoder.embeddings, positions=changed)
    return dataclasses.replace(encoder, embeddings=embeddings)


ERNIE = Family(
    model_type="ernie",
    prefix="ernie",
    encoder=read_ernie,
    heads=BERT_HEADS,
    defaults={**BERT_DEFAULTS, "task_type_vocab_size": 3, "use_task_id": False},
)
