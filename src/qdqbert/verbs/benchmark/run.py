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
from qdqbert.engines.runner import check_engine, float_engine, is_installed
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
    return BenchmarkReport(
        timings=tuple(timings),
        speedups=tuple(speedup(_first_model(timing, timings), timing) for timing in timings),
        threads=options.threads,
    )


def _first_model(timing: Timing, timings: Sequence[Timing]) -> Timing:
    """Return the timing of the first model that another timing is compared with."""
    for engine in (timing.engine, float_engine(timing.engine)):
        for each in timings:
            is_first = each.name == timings[0].name and each.engine == engine
            if is_first and (each.batch, each.sequence) == (timing.batch, timing.sequence):
                return each
    return timing


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
    shared = {
        engine
        for engine in ENGINE_NAMES
        if any(engine in each for each in usable)
        and all({engine, float_engine(engine)} & each for each in usable)
    }
    if not shared:
        raise UserInputError(
            f"No installed engine runs all of {', '.join(options.models)}. Pass the `engines` to "
            "measure, or models that run on the same engine.",
            argument="engines",
        )
    kept = shared | {float_engine(engine) for engine in shared}
    return [each for each in candidates if each.engine in kept]


def _candidates(
    model: str,
    engines: Sequence[EngineName],
    exported: Path,
    sequences: Sequence[int],
) -> list[Candidate]:
    """Pair a model with each engine that was asked for, or with each that runs it."""
    path, installed = Path(model), [engine for engine in ENGINE_NAMES if is_installed(engine)]
    float_engines = tuple(dict.fromkeys(float_engine(engine) for engine in engines or installed))
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
            for engine in (engines or ("openvino",) if is_openvino else float_engines)
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
        for engine in float_engines
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
