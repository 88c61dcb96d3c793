"""Measure what other tools make of the model, on the same examples."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from qdqbert.checkpoint.demo import demo_checkpoint
from qdqbert.encoders.heads import choices_of
from qdqbert.encoding import make_batches
from qdqbert.engines.runner import is_installed, open_runner
from qdqbert.errors import QdqBertError
from qdqbert.evidence.latency import Candidate, Timing
from qdqbert.evidence.reports import RivalReport
from qdqbert.evidence.rivals import RIVALS, run_rival
from qdqbert.progress import Progress
from qdqbert.verbs.inference import Baseline, EncodedExamples, predict
from qdqbert.verbs.quantize.options import QuantizeOptions
from qdqbert.verbs.quantize.source import ModelSource

_PYTORCH = "PyTorch"
_PYTORCH_WORKER = "qdqbert.verbs.quantize.pytorch_worker"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rivals:
    """What other tools made of a model.

    Attributes:
        candidates: What is timed: the graphs of the tools, and the checkpoint in PyTorch.
        notices: Messages about tools that are missing or failed.
    """

    candidates: tuple[Candidate, ...] = ()
    notices: tuple[str, ...] = ()


def make_rivals(
    options: QuantizeOptions,
    source: ModelSource,
    calibration: EncodedExamples,
    float_model: Path,
    folder: Path,
    progress: Progress,
) -> Rivals:
    """Quantize the float graph with all other tools that are installed.

    Args:
        options: Options of the call.
        source: The float model.
        calibration: Examples that the tools calibrate on.
        float_model: File of the float graph.
        folder: Folder for their graphs.
        progress: Receives the stages.
    """
    candidates, notices = [], []
    batches = make_batches(calibration.features.encoded, batch_size=1)
    vocab_size, choices = source.config.vocab_size, choices_of(source.task)
    for rival in RIVALS.values():
        if not (rival.is_installed and is_installed(rival.engine)):
            notices.append(
                f"{rival.name} is not installed, so it was not compared with. Install it with: "
                f"pip install {' '.join(rival.packages)}"
            )
            continue
        with progress.stage(f"Quantizing with {rival.name}"):
            try:
                model = run_rival(rival, float_model, folder, [each.inputs for each in batches])
            except QdqBertError as error:
                notices.append(f"It was not compared with: {error}")
                continue
        candidates.append(
            Candidate(
                name=rival.name,
                engine=rival.engine,
                model=model,
                vocab_size=vocab_size,
                choices=choices,
            )
        )
    if options.is_onnx:
        notices.append("PyTorch was not compared with: it runs checkpoints, and not .onnx files.")
    elif options.benchmark:
        # Only its latency is measured: it is the model that the others are compared with.
        model = demo_checkpoint() if options.model is None else Path(options.model)
        candidates.append(
            Candidate(
                name=_PYTORCH,
                engine="pytorch",
                model=model,
                vocab_size=vocab_size,
                choices=choices,
                worker=_PYTORCH_WORKER,
                settings={"task": source.task, "pooling": options.pooling},
            )
        )
    return Rivals(candidates=tuple(candidates), notices=tuple(notices))


def measure_rivals(
    rivals: Rivals, timings: Sequence[Timing], baseline: Baseline, progress: Progress
) -> tuple[RivalReport, ...]:
    """Compare what other tools made with the float model.

    Args:
        rivals: What they made.
        timings: Their latencies, those of other candidates among them; none if nothing was timed.
        baseline: The float model's results.
        progress: Receives the stages.
    """
    reports = []
    for each in rivals.candidates:
        mine = [timing for timing in timings if timing.name == each.name]
        compared, precision = None, "float32"
        if each.name != _PYTORCH:
            title = f"Checking {each.name} on {each.engine}"
            with progress.stage(title, len(baseline.encoded.batches)) as advance:
                runner = open_runner(RIVALS[each.name].engine, each.model, low_memory=True)
                precision = runner.precision
                compared = baseline.compare(
                    predict(baseline.task, runner, baseline.encoded, advance)
                )
        reports.append(
            RivalReport(
                name=each.name,
                engine=each.engine,
                precision=precision,
                fidelity=None if compared is None else compared.fidelity,
                differences=() if compared is None else compared.differences,
                size_bytes=None if compared is None else _size_bytes(each.model),
                latency_ms={
                    f"{timing.batch} x {timing.sequence}": timing.median_ms for timing in mine
                },
            )
        )
    return tuple(reports)


def _size_bytes(model: Path) -> int:
    """Return the size of a graph and of the files next to it that have its weights."""
    return sum(each.stat().st_size for each in model.parent.glob(f"{model.stem}.*"))
