"""`qdqbert benchmark`: latency of checkpoints, quantized folders and .onnx files, side by side."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path

from qdqbert.artifact import is_artifact, open_artifact
from qdqbert.checkpoint.load import Checkpoint
from qdqbert.choices import ENGINE_NAMES, EngineName
from qdqbert.engines.providers import check_provider
from qdqbert.engines.runner import check_engine, is_installed
from qdqbert.errors import UserInputError
from qdqbert.evidence.latency import Candidate, Timing, speedup, time_candidates
from qdqbert.evidence.reports import BenchmarkReport
from qdqbert.graph.check import save_graph
from qdqbert.graph.export import GraphBody, choices_of, example_inputs, export_sited
from qdqbert.graph.qdq import float_graph
from qdqbert.insert.sited import insert_quantizers_
from qdqbert.models.loading import load_model
from qdqbert.progress import Progress, Silent

_ANY_VOCABULARY = 1000
# A bare .onnx file does not tell its vocabulary; BERT's are all larger than this.


def benchmark(
    models: Sequence[str | Path],
    *,
    engines: Sequence[EngineName] | None = None,
    provider: str | None = None,
    batches: Sequence[int] = (1, 8),
    sequences: Sequence[int] = (32, 128),
    threads: int | None = None,
    rounds: int = 5,
    seconds: float = 0.5,
    progress: Progress | None = None,
) -> BenchmarkReport:
    """Times models against each other; on each engine the first is the others' measure.

    Args:
        models: Folders that `quantize` wrote, checkpoints (exported in float), .onnx and
            OpenVINO .xml files.
        engines: What runs them; all that are installed and fit if `None`.
        provider: Which of ONNX Runtime's execution providers; times that engine alone.
        batches: Texts at once.
        sequences: Tokens a text.
        threads: Threads of one inference; each engine's own choice if `None`.
        rounds: Slices of time that each model gets at each shape, in turns.
        seconds: Length of a slice.
        progress: Shows stages; silent if `None`.

    Raises:
        UserInputError: Something that was named cannot be used.
    """
    progress = progress or Silent()
    if (
        not models
        or min([*batches, *sequences, rounds, 1 if threads is None else threads]) < 1
        or seconds <= 0
    ):
        raise UserInputError(
            "`benchmark` needs at least one model, and batches, sequences, rounds and threads of "
            "at least 1."
        )
    for engine in engines or ():
        check_engine(engine)
    if provider is not None:
        check_provider(provider)
        if list(engines or ["onnxruntime"]) != ["onnxruntime"]:
            raise UserInputError(
                f"`--provider {provider}` is ONNX Runtime's, and `--engine` names "
                f"{', '.join(engines or ())}. Leave one of them out."
            )
        engines = ["onnxruntime"]
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        candidates: list[Candidate] = []
        for index, model in enumerate(models):
            with progress.stage(f"Loading {Path(model).name}"):
                found = _candidates(str(model), engines, scratch / f"{index}.onnx", sequences)
                candidates += [dataclasses.replace(each, provider=provider) for each in found]
        shapes = [(batch, sequence) for batch in batches for sequence in sequences]
        if not candidates:
            raise UserInputError(
                f"No installed engine runs {', '.join(map(str, models))}. Name one with `--engine`."
            )
        total = len(candidates) * len(shapes) * rounds
        with progress.stage("Timing", total) as advance:
            timings = time_candidates(
                candidates,
                shapes,
                threads=threads,
                rounds=rounds,
                seconds=seconds,
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
        threads=threads,
    )


def _candidates(
    model: str,
    engines: Sequence[EngineName] | None,
    exported: Path,
    sequences: Sequence[int],
) -> list[Candidate]:
    """A model on each engine that is asked for, or on each that can run it."""
    path, installed = Path(model), [engine for engine in ENGINE_NAMES if is_installed(engine)]
    if is_artifact(path):
        artifact = open_artifact(path)
        config = artifact.load_config()
        usable = [engine for engine in installed if engine in artifact.engines]
        _check_length(model, artifact.max_length, sequences)
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
    if path.suffix in (".onnx", ".xml"):
        if not path.is_file():
            raise UserInputError(f"Model {model!r} does not exist.")
        return [
            Candidate(name=model, engine=engine, model=path, vocab_size=_ANY_VOCABULARY)
            for engine in engines or (("openvino",) if path.suffix == ".xml" else installed)
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
    """Writes the float graph of a checkpoint, which is returned."""
    checkpoint = load_model(model)
    _check_length(model, checkpoint.max_length, sequences)
    body = GraphBody.of(checkpoint)
    sited = insert_quantizers_(checkpoint.model, checkpoint.family)
    sited_graph = export_sited(sited, body, example_inputs(checkpoint.input_names, checkpoint.task))
    save_graph(float_graph(sited_graph), path)
    return checkpoint


def _check_length(model: str, max_length: int, sequences: Sequence[int]) -> None:
    if max(sequences) > max_length:
        raise UserInputError(
            f"`--sequence {max(sequences)}` is more than the {max_length} tokens that {model!r} "
            "takes."
        )
