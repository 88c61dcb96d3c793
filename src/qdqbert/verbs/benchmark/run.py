"""Measure the latency of checkpoints, quantized folders and .onnx files."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from qdqbert.common.choices import ENGINE_NAMES, EngineName
from qdqbert.common.errors import CheckpointError, GraphError, UserInputError, naming
from qdqbert.common.files import name_of
from qdqbert.common.options.onnx import is_onnx_file
from qdqbert.common.progress import Progress
from qdqbert.encoders.task_kinds import TASK_KINDS
from qdqbert.engines.cuda.device import Device
from qdqbert.engines.native.storage import load_packed
from qdqbert.engines.registry import check_engine, float_engine, is_installed
from qdqbert.evidence.latency import Candidate, Timing, speedup, time_candidates
from qdqbert.evidence.reporting.benchmark import BenchmarkReport
from qdqbert.loading.device_choice import ON_GPU, choose_place
from qdqbert.loading.load import open_folder
from qdqbert.loading.options import LoadOptions
from qdqbert.pipeline.settings import check_sequences
from qdqbert.runtime.artifact import Artifact, is_artifact, open_artifact
from qdqbert.verbs.benchmark.options import BenchmarkOptions


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Found:
    """The graphs of a model that can be timed.

    Attributes:
        candidates: A float checkpoint is also one in INT8, as `load` runs it.
        max_length: Longest input in tokens; `None` if it is not known.
        notices: Messages for the user.
    """

    candidates: Sequence[Candidate]
    max_length: int | None = None
    notices: tuple[str, ...] = ()


def run(options: BenchmarkOptions, progress: Progress) -> BenchmarkReport:
    """Measure the latency of models, all on a GPU or all on the CPU."""
    place = choose_place(options.device)
    try:
        return _measure(options, progress, place.device)
    except UserInputError as error:
        if place.device is None or place.is_needed or error.argument != "device":
            raise
        place.leave("`benchmark`", str(error))
    return _measure(options, progress, None)


def _measure(
    options: BenchmarkOptions, progress: Progress, device: Device | None
) -> BenchmarkReport:
    engines = options.engines
    if device is not None:
        engines = ("native",)
    elif options.provider is not None:
        engines = ("onnxruntime",)
    for engine in () if device else engines:
        check_engine(engine, provider=options.provider)
    found: list[_Found] = []
    for model in options.models:
        with progress.stage(f"Loading {name_of(model)}"), naming("models"):
            each = _find(os.fspath(model), engines, options.given_sequences, device)
        if device is not None:
            _check_on_gpu(os.fspath(model), each.candidates)
        found.append(each)
    candidates = [
        dataclasses.replace(each, provider=options.provider, device=device)
        for each in _shared_engines(found, options, engines)
    ]
    sequences = options.given_sequences or _usual_sequences(options.sequences, found)
    shapes = [(batch, length) for batch in options.batches for length in sequences]
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
        speedups=tuple(
            speedup(_compared(timing, timings, is_alone=len(found) == 1), timing)
            for timing in timings
        ),
        threads=options.threads,
        notices=tuple(notice for each in found for notice in each.notices),
    )


def _usual_sequences(usual: Sequence[int], found: Sequence[_Found]) -> Sequence[int]:
    """Return the usual lengths that all models take, or the longest one that they do."""
    longest = min((each.max_length for each in found if each.max_length), default=max(usual))
    return [each for each in usual if each <= longest] or [longest]


def _compared(timing: Timing, timings: Sequence[Timing], *, is_alone: bool) -> Timing:
    """Return the timing that another one is compared with.

    It is that of the first model on the same engine, or on the first engine if the first model does
    not run on this one, or there is no other model.
    """
    first = timings[0]
    own = () if is_alone else (timing.engine, float_engine(timing.engine))
    return next(
        each
        for engine in (*own, first.engine)
        for each in timings
        if (each.name, each.engine) == (first.name, engine)
        and (each.batch, each.sequence) == (timing.batch, timing.sequence)
    )


def _shared_engines(
    found: Sequence[_Found], options: BenchmarkOptions, engines: Sequence[EngineName]
) -> list[Candidate]:
    """Leave out engines that run only some of the models, unless they were asked for."""
    candidates = [each for model in found for each in model.candidates]
    if engines:
        return candidates
    usable = [{each.engine for each in model.candidates} for model in found]
    shared = {
        engine
        for engine in ENGINE_NAMES
        if any(engine in each for each in usable)
        and all({engine, float_engine(engine)} & each for each in usable)
    }
    if not shared:
        raise UserInputError(
            f"No installed engine runs all of {', '.join(map(str, options.models))}. Pass the "
            "`engines` to measure, or models that run on the same engine.",
            argument="engines",
        )
    kept = shared | {float_engine(engine) for engine in shared}
    return [each for each in candidates if each.engine in kept]


def _find(
    model: str,
    engines: Sequence[EngineName],
    sequences: Sequence[int],
    device: Device | None = None,
) -> _Found:
    """Pair a model with each engine that was asked for, or with each that runs it.

    On a GPU, `device`, a folder's target `native-dynamic` runs.
    """
    path, installed = Path(model), [engine for engine in ENGINE_NAMES if is_installed(engine)]
    float_engines = tuple(dict.fromkeys(float_engine(engine) for engine in engines or installed))
    if is_artifact(path):
        artifact = open_artifact(path)
        if device is not None and ON_GPU not in artifact.targets:
            raise _not_on_gpu(model, f"its targets are {', '.join(artifact.targets)}")
        usable = [engine for engine in installed if engine in artifact.engines]
        check_sequences(sequences, model, artifact.max_length)
        return _Found(
            candidates=_graphs(
                model, artifact, engines or usable, ON_GPU if device is not None else None
            ),
            max_length=artifact.max_length,
        )
    is_openvino = path.suffix.lower() == ".xml" and not path.is_dir()
    if is_onnx_file(model) or is_openvino:
        if device is not None:
            raise _not_on_gpu(model, "it is a graph")
        if not path.is_file():
            raise UserInputError(f"{model!r} does not exist.")
        return _Found(
            candidates=[
                Candidate(name=model, engine=engine, model=path)
                for engine in (engines or ("openvino",) if is_openvino else float_engines)
            ]
        )
    if device is not None or (not engines and "onnxruntime" not in installed):
        # GPUs run packed models, and the extra of ONNX Runtime has what writes float graphs.
        float_engines = ("native",)
    times_native, notices = "native" in (engines or installed), list[str]()
    try:
        in_float, longest = _in_float(model, float_engines, sequences, device)
    except CheckpointError as error:
        if not times_native or "native" in float_engines:
            raise
        # Some models have no graph.
        in_float, longest = _in_float(model, ["native"], sequences, device)
        notices.append(f"{model} was timed in float on the native engine. {error}")
    if not times_native and device is None:
        return _Found(candidates=in_float, max_length=longest)
    try:
        rounded = open_folder(model, LoadOptions(check=False), device)
    except (CheckpointError, UserInputError) as error:
        if engines:
            raise
        notices.append(f"{model} was not timed in INT8 on the native engine. {error}")
        return _Found(candidates=in_float, max_length=longest, notices=tuple(notices))
    candidates = [*in_float, *_graphs(f"{model} in INT8", rounded, ["native"])]
    return _Found(candidates=candidates, max_length=longest, notices=tuple(notices))


def _check_on_gpu(model: str, candidates: Sequence[Candidate]) -> None:
    """Refuse packed models that the kernels for GPUs do not compute."""
    from qdqbert.engines.cuda.weights import check_supported

    for each in candidates:
        try:
            check_supported(load_packed(each.model))
        except GraphError as error:
            raise _not_on_gpu(model, str(error).rstrip(".")) from error


def _not_on_gpu(model: str, reason: str) -> UserInputError:
    return UserInputError(
        f"`device`: {model!r} does not run on GPUs, which run float checkpoints and the target "
        f"{ON_GPU!r}: {reason}. Pass `device='cpu'`, or leave it out.",
        argument="device",
    )


def _in_float(
    model: str, engines: Sequence[str], sequences: Sequence[int], device: Device | None
) -> tuple[list[Candidate], int]:
    """Return a float checkpoint with each engine, and its longest input in tokens."""
    found: list[Candidate] = []
    longest = 0
    for engine in cast(Sequence[EngineName], engines):
        made_for: EngineName = "native" if engine == "native" else "onnxruntime"
        chosen = LoadOptions(precision="float", engine=made_for, check=False)
        exported = open_folder(model, chosen, device)
        check_sequences(sequences, model, exported.max_length)
        longest = exported.max_length
        found += _graphs(model, exported, [engine])
    return found, longest


def _graphs(
    name: str, artifact: Artifact, engines: Sequence[EngineName], target: str | None = None
) -> list[Candidate]:
    """Return the graphs of a folder that engines run, of a target or of the one made for each."""
    is_float = artifact.targets.keys() == {"float"}
    return [
        Candidate(
            name=name,
            engine=engine,
            # Each engine runs the graph of a float checkpoint.
            model=artifact.model_for(artifact.engines[0] if is_float else engine, target),
            choices=TASK_KINDS[artifact.task].choices,
        )
        for engine in engines
    ]
