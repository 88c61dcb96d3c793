"""Time an .onnx file and its float reference next to each other, on the same engine."""

from __future__ import annotations

import os
from pathlib import Path

from qdqbert.common.files import temporary_folder
from qdqbert.common.options.onnx import is_onnx_file
from qdqbert.common.progress import Progress
from qdqbert.encoders.task_kinds import TASK_KINDS
from qdqbert.evidence.latency import ROUNDS, Candidate, time_candidates, usual_shapes
from qdqbert.evidence.reports import LatencyReport, latency_reports
from qdqbert.graphs.check import save_graph
from qdqbert.graphs.imported.graph_runner import copy_to_run
from qdqbert.graphs.of_checkpoint import encoder_of
from qdqbert.graphs.writer import make_graph
from qdqbert.training.models.quantized import load_model
from qdqbert.verbs.evaluate.options import EvaluateOptions
from qdqbert.verbs.evaluate.subject import Subject, names_of


def time_both(
    options: EvaluateOptions, subject: Subject, progress: Progress
) -> tuple[LatencyReport, ...]:
    """Return the latency of the model of a call and of its reference, shape by shape.

    Each runs in a process of its own, and they take turns.
    """
    assert options.reference is not None
    with temporary_folder() as scratch:
        files = []
        for name, model in (("float", options.reference), ("int8", options.model)):
            files.append(scratch / f"{name}.onnx")
            _write(model, files[-1], subject.task.name, options)
        candidates = [
            Candidate(
                name=path.stem,
                engine=subject.engine,
                model=path,
                choices=TASK_KINDS[subject.task.name].choices,
                provider=options.provider,
            )
            for path in files
        ]
        shapes = usual_shapes(subject.max_length)
        with progress.stage("Timing both", len(files) * len(shapes) * ROUNDS) as advance:
            timings = time_candidates(candidates, shapes, rounds=ROUNDS, advance=advance)
    floats, int8 = ([x for x in timings if x.name == each.name] for each in candidates)
    return latency_reports(floats, int8)


def _write(model: str | os.PathLike[str], path: Path, task: str, options: EvaluateOptions) -> None:
    """Write a checkpoint or an .onnx file as a graph with transformers' names."""
    if not is_onnx_file(model):
        given = options.task_options
        checkpoint = load_model(
            os.fspath(model), task=task, pooling=given.pooling, adapter=given.adapter
        )
        save_graph(make_graph(encoder_of(checkpoint)), path, temporary=True)
        return
    copy_to_run(Path(model), path, task=task, names=names_of(options))
