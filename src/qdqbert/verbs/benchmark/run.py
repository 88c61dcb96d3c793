"""Measure the latency of checkpoints, quantized folders and .onnx files."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path

from qdqbert.artifact import is_artifact, open_artifact
from qdqbert.checkpoint.load import Checkpoint
from qdqbert.choices import ENGINE_NAMES, EngineName
from qdqbert.engines.providers import check_provider
from qdqbert.engines.runner import check_engine, is_installed
from qdqbert.errors import UserInputError, naming
from qdqbert.evidence.latency import Candidate, Timing, speedup, time_candidates
from qdqbert.evidence.reports import BenchmarkReport
from qdqbert.graph.check import save_graph
from qdqbert.graph.export import GraphBody, choices_of, example_inputs, export_sited
from qdqbert.graph.qdq import float_graph
from qdqbert.insert.sited import insert_quantizers_
from qdqbert.models.loading import load_model
from qdqbert.options import is_onnx_file
from qdqbert.progress import Progress
from qdqbert.verbs.benchmark.options import BenchmarkOptions
from qdqbert.verbs.settings import check_sequences

# An .onnx file does not hold the size of its vocabulary. Those of BERT models are all larger.
_ANY_VOCABULARY = 1000


def run(options: BenchmarkOptions, progress: Progress) -> BenchmarkReport:
    """Measure the latency of models.

    Raises:
        UserInputError: A model cannot be used, or no installed engine runs it.
    """
    engines = options.engines
    if options.provider is not None:
        check_provider(options.provider)
        engines = ("onnxruntime",)
    for engine in engines:
        check_engine(engine)
    with tempfile.TemporaryDirectory() as scratch:
        candidates: list[Candidate] = []
        for index, model in enumerate(options.models):
            exported = Path(scratch) / f"{index}.onnx"
            with progress.stage(f"Loading {Path(model).name}"), naming("models"):
                candidates += _candidates(model, engines, exported, options.sequences)
        candidates = [
            dataclasses.replace(each, provider=options.provider)
            for each in _shared_engines(candidates, options, engines)
        ]
        shapes = [(batch, length) for batch in options.batches for length in options.sequences]
        total = len(candidates) * len(shapes) * options.rounds
        with progress.stage("Timing", total) as advance:
            timings = time_candidates(
                candidates,
                shapes,
                threads=options.threads,
                rounds=options.rounds,
                seconds=options.seconds,
                advance=advance,
            )
    first: dict[tuple[str, int, int], Timing] = {}
    for timing in timings:
        first.setdefault((timing.engine, timing.batch, timing.sequence), timing)
    return BenchmarkReport(
        timings=tuple(timings),
        speedups=tuple(
            speedup(first[timing.engine, timing.batch, timing.sequence], timing)
            for timing in timings
        ),
        threads=options.threads,
    )


def _shared_engines(
    candidates: Sequence[Candidate], options: BenchmarkOptions, engines: Sequence[EngineName]
) -> list[Candidate]:
    """Leave out engines that run only some of the models, unless they were asked for.

    Raises:
        UserInputError: No engine runs all models.
    """
    if engines:
        return list(candidates)
    usable = [
        {each.engine for each in candidates if each.name == model} for model in options.models
    ]
    shared = set.intersection(*usable)
    if not shared:
        raise UserInputError(
            f"No installed engine runs all of {', '.join(options.models)}. Pass the `engines` to "
            "measure, or models that run on the same engine.",
            argument="engines",
        )
    return [each for each in candidates if each.engine in shared]


def _candidates(
    model: str,
    engines: Sequence[EngineName],
    exported: Path,
    sequences: Sequence[int],
) -> list[Candidate]:
    """Pair a model with each engine that was asked for, or with each that runs it."""
    path, installed = Path(model), [engine for engine in ENGINE_NAMES if is_installed(engine)]
    if is_artifact(path):
        artifact = open_artifact(path)
        config = artifact.load_config()
        usable = [engine for engine in installed if engine in artifact.engines]
        check_sequences(sequences, model, artifact.max_length)
        return [
            Candidate(
                name=model,
                engine=engine,
                model=artifact.model_for(engine),
                vocab_size=config.vocab_size,
                choices=choices_of(artifact.task),
            )
            for engine in engines or usable
        ]
    is_openvino = path.suffix.lower() == ".xml" and not path.is_dir()
    if is_onnx_file(model) or is_openvino:
        if not path.is_file():
            raise UserInputError(f"{model!r} does not exist.")
        return [
            Candidate(name=model, engine=engine, model=path, vocab_size=_ANY_VOCABULARY)
            for engine in engines or (("openvino",) if is_openvino else installed)
        ]
    checkpoint = export_float(model, exported, sequences)
    return [
        Candidate(
            name=model,
            engine=engine,
            model=exported,
            vocab_size=checkpoint.config.vocab_size,
            choices=choices_of(checkpoint.task),
        )
        for engine in engines or installed
    ]


def export_float(model: str, path: Path, sequences: Sequence[int]) -> Checkpoint:
    """Write the float graph of a checkpoint, and return the checkpoint."""
    checkpoint = load_model(model)
    check_sequences(sequences, model, checkpoint.max_length)
    body = GraphBody.of(checkpoint)
    sited = insert_quantizers_(checkpoint.model, checkpoint.family)
    sited_graph = export_sited(sited, body, example_inputs(checkpoint.input_names, checkpoint.task))
    save_graph(float_graph(sited_graph), path)
    return checkpoint
