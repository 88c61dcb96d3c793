"""Compare INT8 with float on built-in texts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qdqbert.common.errors import GraphError, UserInputError
from qdqbert.common.machine import usable_cores
from qdqbert.data.texts import heldout_examples
from qdqbert.data.tokenizing.encoding import Batch, encode
from qdqbert.data.tokenizing.tokenizer import Tokenizer
from qdqbert.encoders.checkpoint.gliner import LABELS_FOLDER
from qdqbert.encoders.checkpoint.own_layers import SpanHead
from qdqbert.encoders.heads import EMBEDDING, TOKEN_VECTORS, WORDS
from qdqbert.encoders.model import EncoderModel
from qdqbert.encoders.task_kinds import TaskSettings
from qdqbert.engines.cuda.device import Device, open_on
from qdqbert.engines.native import open_packed
from qdqbert.engines.native.parts import run_in_parts
from qdqbert.engines.native.storage import Packed, load_packed
from qdqbert.engines.runner import Outputs, Runner
from qdqbert.evidence.fidelity import compare, to_decibels
from qdqbert.loading.float_checkpoint.closeness import Closeness
from qdqbert.loading.float_checkpoint.folder import read_model
from qdqbert.loading.float_checkpoint.source import FloatCheckpoint
from qdqbert.runtime.artifact import open_artifact
from qdqbert.tasks.entity_extraction import of_scorer
from qdqbert.tasks.label_vectors import EmbedLabels
from qdqbert.tasks.span_layers import Tensors
from qdqbert.tasks.span_scores import SpanScorer
from qdqbert.tasks.task import Features, Outcome, Prediction, Task, Tokenization

# Texts that are compared, and their longest length in tokens.
_TEXTS, _LONGEST_TEXT = 16, 128
# The labels are a part of the texts of models that find entities.
_LONGEST_SPANS = 256


def measure_closeness(
    checkpoint: FloatCheckpoint, packed: Path, device: Device | None = None
) -> Closeness:
    """Compare the last output of INT8 with float32 on the native engine.

    The packed model is next to its tokenizer. On a GPU, `device`, INT8 runs there. What its kernels
    do not compute, or its memory does not hold, is compared on the CPU. Float always runs on the
    CPU, a few layers at a time.
    """
    model = read_model(checkpoint, checkpoint.read_weights())
    shape = (1, 1, -1) if model.has_choices else (1, -1)
    runner = _open(load_packed(packed), device)
    if isinstance(checkpoint.layout, SpanHead) and checkpoint.layout.finds_spans:
        embeds = _label_embeddings(checkpoint.labels, packed, device) or (None, None)
        return _compare_spans(model, runner, packed.parent, checkpoint.layout, embeds)
    # Pairs of a model with a template are in it.
    encoded = encode(
        Tokenizer.from_folder(packed.parent, max_length=None),
        [each.text for each in heldout_examples()[:_TEXTS]],
        input_names=runner.input_names,
        max_length=min(model.limit, _LONGEST_TEXT),
    )
    texts = [
        {name: array.astype(np.int64).reshape(shape) for name, array in each.items()}
        for each in encoded.inputs
    ]
    name = runner.output_names[-1]
    in_float = run_in_parts(model, texts, threads=usable_cores())
    return _compare(
        name,
        (
            (runner.run(text)[name], wanted[name])
            for text, wanted in zip(texts, in_float, strict=True)
        ),
    )


def _open(model: Packed, device: Device | None) -> Runner:
    if device is not None:
        # A GPU can be full, too.
        with contextlib.suppress(GraphError, UserInputError):
            return open_on(device, model)
    return open_packed(model, threads=usable_cores())


def _compare(
    name: str, outputs: Iterable[tuple[NDArray[np.float32], NDArray[np.float32]]]
) -> Closeness:
    """Return how close outputs of INT8 are to those of float, text by text."""
    signal = noise = 0.0
    cosines = []
    for found, wanted in outputs:
        found, wanted = found.astype(np.float64), wanted.astype(np.float64)
        signal += float((wanted**2).sum())
        noise += float(((found - wanted) ** 2).sum())
        lengths = np.linalg.norm(wanted, axis=-1) * np.linalg.norm(found, axis=-1)
        # No word of a short text may have a weight.
        is_zero = lengths == 0
        products = (wanted * found).sum(axis=-1)
        cosines.append(float(np.where(is_zero, 1, products / np.where(is_zero, 1, lengths)).min()))
    return Closeness(
        texts=len(cosines),
        sqnr_db=to_decibels(signal, noise),
        worst_cosine=min(cosines) if name in (EMBEDDING, TOKEN_VECTORS, WORDS) else None,
    )


def _label_embeddings(
    labels: FloatCheckpoint | None, packed: Path, device: Device | None
) -> tuple[EmbedLabels, EmbedLabels] | None:
    """Return functions that make vectors of labels in float and in INT8, if an encoder does."""
    if labels is None:
        return None
    folder = packed.parent / LABELS_FOLDER
    model = read_model(labels, labels.read_weights())
    runner = _open(load_packed(folder / packed.name), device)
    tokenizer = Tokenizer.from_folder(folder, max_length=None)

    def inputs(texts: Sequence[str]) -> list[dict[str, NDArray[np.int64]]]:
        encoded = encode(
            tokenizer, list(texts), input_names=runner.input_names, max_length=model.limit
        )
        return [
            {name: array.astype(np.int64)[None] for name, array in each.items()}
            for each in encoded.inputs
        ]

    def in_float(texts: Sequence[str]) -> NDArray[np.float32]:
        found = run_in_parts(model, inputs(texts), threads=usable_cores())
        return np.concatenate([each[EMBEDDING] for each in found])

    def in_int8(texts: Sequence[str]) -> NDArray[np.float32]:
        return np.concatenate([runner.run(each)[EMBEDDING] for each in inputs(texts)])

    return in_float, in_int8


def _compare_spans(
    model: EncoderModel,
    runner: Runner,
    folder: Path,
    head: SpanHead,
    embeds: tuple[EmbedLabels | None, EmbedLabels | None],
) -> Closeness:
    """Compare the entities that the layers in a folder find in the states of both.

    `embeds` make vectors of labels, in float and in INT8, for a model with an encoder for them.
    """
    scorer = SpanScorer.of(head, Tensors.of_folder(folder, head))
    how = Tokenization(
        tokenizer=Tokenizer.from_folder(folder, max_length=None),
        input_names=runner.input_names,
        max_length=min(_LONGEST_SPANS, open_artifact(folder).max_length),
        settings=TaskSettings(),
    )
    task, rounded = (of_scorer(scorer, embed) for embed in embeds)
    examples = heldout_examples()[:_TEXTS]
    features, same = (each.encode(examples, how) for each in (task, rounded))
    inputs = [
        {name: each.astype(np.int64)[None] for name, each in feature.items()}
        for feature in features.encoded.inputs
    ]
    in_float = run_in_parts(model, inputs, threads=usable_cores())
    found = _outcome(map(runner.run, inputs), inputs, same, rounded)
    wanted = _outcome(in_float, inputs, features, task)
    entities = (task.entities(wanted) or (), task.entities(found) or ())
    fidelity = compare(wanted.predictions, found.predictions, vectors="spans", entities=entities)
    agreement = fidelity.entities
    assert agreement is not None, "entities were given"
    return Closeness(
        texts=len(features.examples),
        sqnr_db=fidelity.sqnr_db,
        entities=agreement.entities,
        changed_entities=sum(len(one ^ other) for one, other in zip(*entities, strict=True)),
        largest_difference=agreement.largest_difference or 0.0,
    )


def _outcome(
    outputs: Iterable[Outputs],
    inputs: Sequence[Mapping[str, NDArray[np.int64]]],
    features: Features,
    task: Task,
) -> Outcome:
    """Return what the outputs of a model for each feature, which ran alone, mean."""
    predictions: list[Prediction] = []
    for index, (given, found) in enumerate(zip(inputs, outputs, strict=True)):
        batch = Batch(indices=(index,), inputs=dict(given))
        predictions += task.predictions(features.results(batch, found))
    return Outcome(predictions, features)
