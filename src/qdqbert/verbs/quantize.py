"""`qdqbert quantize`: a float checkpoint in, a proven INT8 folder out."""

from __future__ import annotations

import dataclasses
import platform
import random
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import onnx_ir as ir
import torch

from qdqbert import resources
from qdqbert.artifact import (
    MODEL,
    QUANTIZATION,
    RANGES,
    REPORT,
    is_artifact,
    size_bytes,
    write_json,
    writing,
)
from qdqbert.calibration.ranges_file import write_ranges
from qdqbert.calibration.session import Calibration, calibrate
from qdqbert.checkpoint.demo import demo_checkpoint
from qdqbert.checkpoint.load import Checkpoint, load_checkpoint
from qdqbert.engines.runner import ENGINES, EngineName, is_installed, open_runner
from qdqbert.errors import UserInputError
from qdqbert.evidence.fidelity import Fidelity, compare
from qdqbert.evidence.latency import Candidate, Timing, speedup, time_candidates
from qdqbert.evidence.lowering import LoweringCheck, check_lowering, make_references
from qdqbert.graph.check import save_graph
from qdqbert.graph.export import GraphBody, export_sited
from qdqbert.graph.qdq import float_graph
from qdqbert.insert.sited import SitedModel, insert_quantizers_, quantizing
from qdqbert.numerics.affine import parameters_of
from qdqbert.numerics.ranges import Calibrator, Entropy, Max, Mse, Percentile
from qdqbert.progress import Progress, Silent
from qdqbert.recipes import Embeddings
from qdqbert.targets import target_named
from qdqbert.targets.target import Plan, lower, make_plan
from qdqbert.tasks import TASKS
from qdqbert.tasks.data import Columns, Dataset, Example, digest_examples, read_dataset
from qdqbert.tasks.task import Rows, Task
from qdqbert.verbs.inference import EncodedExamples, TorchRunner, encode_examples, rows_of

CalibratorName = Literal["max", "percentile", "mse", "entropy"]
BENCHMARK_SHAPES = ((1, 32), (8, 128))
_HELDOUT = 120
_CHECKED_TEXTS = 16
_VERSIONED = ("qdqbert", "torch", "transformers", "onnx", "onnx-ir", "onnxruntime", "openvino")


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuantizeOptions:
    """What `quantize` was asked for; see its arguments."""

    model: str | None = None
    output: str | None = None
    task: str | None = None
    calibration_data: str | None = None
    columns: Columns = dataclasses.field(default_factory=Columns)
    calibration_samples: int = 300
    max_length: int | None = None
    batch_size: int = 8
    calibrator: CalibratorName = "max"
    percentile: float | None = None
    recipe: str | None = None
    targets: tuple[str, ...] = ()
    embeddings: Embeddings = "int8"
    seed: int = 0
    overwrite: bool = False
    benchmark: bool = True

    def __post_init__(self) -> None:
        for name, least in (("calibration_samples", 1), ("batch_size", 1), ("max_length", 3)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UserInputError(
                    f"`--{name.replace('_', '-')}` must be at least {least}, got {value}."
                )
        if self.percentile is not None and self.calibrator != "percentile":
            raise UserInputError(
                f"`--percentile {self.percentile}` needs `--calibrator percentile`, got "
                f"`{self.calibrator}`."
            )
        if self.percentile is not None and not 0 < self.percentile <= 100:
            raise UserInputError(
                f"`--percentile` must be above 0 and at most 100, got {self.percentile}."
            )
        choices = (("calibrator", _CALIBRATORS), ("embeddings", ("int8", "float")))
        for name, known in choices:
            if getattr(self, name) not in known:
                raise UserInputError(
                    f"`--{name} {getattr(self, name)}` is unknown. Known: {', '.join(known)}."
                )
        if self.model is not None and self.output is None:
            raise UserInputError("`--output` is missing: the folder to write.")

    def command(self) -> str:
        """The command line that does the same."""
        words = ["qdqbert", "quantize", *([self.model] if self.model else [])]
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in ("model", "targets", "columns", "benchmark", "overwrite"):
                continue
            if value is not None and value != field.default:
                words += [f"--{field.name.replace('_', '-')}", str(value)]
        for role in dataclasses.fields(self.columns):
            column = getattr(self.columns, role.name)
            if column is not None:
                words += [f"--{role.name.replace('_', '-')}-column", column]
        words += [word for name in self.targets for word in ("--target", name)]
        return shlex.join(words)


_CALIBRATORS = ("max", "percentile", "mse", "entropy")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TargetReport:
    """What was measured of one target's graph on one engine.

    Attributes:
        target: What the graph was made for.
        engine: What ran it.
        recipe: Which recipe placed its Q/DQ pairs.
        model: The .onnx file, relative to the folder.
        fidelity: To the float checkpoint, on held-out texts.
        lowering: To the fake-quantized PyTorch model.
        size_bytes: Of the graph.
        size_ratio: To the float graph.
        latency: Of this graph and of the float one, by shape, side by side.
    """

    target: str
    engine: str
    recipe: str
    model: str
    fidelity: Fidelity
    lowering: LoweringCheck
    size_bytes: int
    size_ratio: float
    latency: tuple[LatencyReport, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LatencyReport:
    """INT8 beside float at one shape.

    Attributes:
        batch: Texts at once.
        sequence: Tokens a text.
        float_ms: Median of the float graph on the same engine.
        int8_ms: Median of the INT8 graph.
        speedup: Median over rounds of their ratio.
    """

    batch: int
    sequence: int
    float_ms: float
    int8_ms: float
    speedup: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuantizeReport:
    """What `quantize` did and measured.

    Attributes:
        directory: The folder that it wrote.
        checkpoint: What was quantized.
        task: What it is for.
        calibration_texts: Texts that ranges were taken from.
        heldout_texts: Other texts that fidelity was measured on.
        float_size_bytes: Of the float graph.
        targets: One report a target and engine.
        notices: What a user should know.
    """

    directory: str
    checkpoint: str
    task: str
    calibration_texts: int
    heldout_texts: int
    float_size_bytes: int
    targets: tuple[TargetReport, ...]
    notices: tuple[str, ...]


def quantize(
    model: str | None = None,
    output: str | Path | None = None,
    *,
    progress: Progress | None = None,
    **options: Any,
) -> QuantizeReport:
    """Quantizes a checkpoint and proves the result.

    Args:
        model: A local folder or a hub id; `None` takes the packaged all-MiniLM-L6-v2 (extra
            `demo`).
        output: The folder to write.
        progress: Shows stages; silent if `None`.
        **options: The other fields of `QuantizeOptions`: `task`, `calibration_data`, `columns`,
            `calibration_samples`, `max_length`, `batch_size`, `calibrator`, `percentile`,
            `recipe`, `targets`, `embeddings`, `seed`, `overwrite`, `benchmark`.

    Raises:
        UserInputError: Something that was named cannot be used; nothing was written.
        CalibrationError: A site saw no usable value; nothing was written.
    """
    chosen = QuantizeOptions(model=model, output=None if output is None else str(output), **options)
    return _Run(chosen, progress or Silent()).run()


class _Run:
    """One call of `quantize`: the stages in order, each a method."""

    def __init__(self, options: QuantizeOptions, progress: Progress) -> None:
        self.options = options
        self.progress = progress
        self.notices: list[str] = []

    def run(self) -> QuantizeReport:
        options = self.options
        is_demo = options.model is None
        names = options.targets or (("onnxruntime", "openvino") if is_demo else ("portable",))
        targets = [target_named(name) for name in dict.fromkeys(names)]
        output = Path(options.output or "qdqbert-all-MiniLM-L6-v2")
        if options.model is not None and is_artifact(Path(options.model)):
            raise UserInputError(
                f"{options.model!r} is quantized already; expected a float checkpoint."
            )
        with writing(output, overwrite=options.overwrite or is_demo) as folder:
            with self.progress.stage("Loading the checkpoint"):
                source = str(demo_checkpoint()) if options.model is None else options.model
                checkpoint = load_checkpoint(source, task=options.task)
            task = TASKS[checkpoint.task]
            used, heldout = self._examples()
            calibration_batches = self._encode(checkpoint, used, "calibration")
            heldout_batches = self._encode(checkpoint, heldout, "held-out")
            body = GraphBody(checkpoint.model, task=checkpoint.task, head=checkpoint.head)
            float_rows = self._float_rows(task, body, heldout_batches, checkpoint)

            sited = insert_quantizers_(checkpoint.model, checkpoint.family)
            plans = [
                make_plan(target, sited.sites, recipe=options.recipe, embeddings=options.embeddings)
                for target in targets
            ]
            calibration = self._calibrate(sited, body, calibration_batches, plans)
            with self.progress.stage("Exporting the graph"):
                example = _example_inputs(heldout_batches)
                graph = export_sited(sited, body, example)
            for plan in plans:
                with self.progress.stage(f"Lowering for {plan.target.name}"):
                    path = folder / _model_path(plan, plans)
                    path.parent.mkdir(exist_ok=True)
                    scales = {k: v.numpy() for k, v in calibration.scales.items()}
                    save_graph(lower(graph, plan, calibration.ranges, scales), path)
            self._write_inputs(folder, checkpoint, calibration, plans, used, body)
            with tempfile.TemporaryDirectory() as scratch:
                float_model = Path(scratch) / MODEL
                save_graph(float_graph(graph), float_model)
                prover = _Prover(self, checkpoint, folder, plans, float_model)
                reports = prover.prove(sited, body, graph, calibration, heldout_batches, float_rows)
                report = QuantizeReport(
                    directory=str(output),
                    checkpoint=checkpoint.name if options.model else "all-MiniLM-L6-v2",
                    task=checkpoint.task,
                    calibration_texts=calibration_batches.texts,
                    heldout_texts=heldout_batches.texts,
                    float_size_bytes=size_bytes(float_model),
                    targets=tuple(reports),
                    notices=tuple(dict.fromkeys(self.notices)),
                )
            write_json(folder / REPORT, dataclasses.asdict(report))
        return report

    def _examples(self) -> tuple[list[Example], list[Example]]:
        """Examples to calibrate on, and others to compare on."""
        wanted = self.options.calibration_samples
        if self.options.calibration_data is None:
            if self.options.model is not None:
                self.notices.append(
                    "Calibrated on the built-in English sentences; pass --calibration-data with "
                    "texts of your own for ranges that fit them."
                )
            pool, heldout = list(resources.calibration_examples()), resources.heldout_examples()
        else:
            dataset = self._read(self.options.calibration_data)
            pool, heldout = list(dataset.examples), ()
        random.Random(self.options.seed).shuffle(pool)
        used, rest = pool[:wanted], pool[wanted : wanted + _HELDOUT]
        if len(used) < wanted:
            self.notices.append(f"Calibrated on {len(used)} examples; {wanted} were asked for.")
        if not heldout and len(rest) < 16:
            self.notices.append(
                f"The data has {len(rest)} examples beyond those used for calibration; fidelity "
                "is measured on built-in sentences instead."
            )
            heldout = resources.heldout_examples()
        return used, list(heldout or rest)

    def _read(self, path: str) -> Dataset:
        dataset = read_dataset(path, columns=self.options.columns)
        self.notices += dataset.notices
        return dataset

    def _encode(
        self, checkpoint: Checkpoint, examples: Sequence[Example], what: str
    ) -> EncodedExamples:
        limit = self._max_length(checkpoint)
        encoded = encode_examples(
            TASKS[checkpoint.task],
            checkpoint.tokenizer,
            examples,
            input_names=checkpoint.input_names,
            max_length=limit,
            batch_size=self.options.batch_size,
        )
        if encoded.truncated:
            self.notices.append(
                f"{encoded.truncated} of {encoded.texts} {what} texts were longer than {limit} "
                "tokens and were cut."
            )
        return encoded

    def _max_length(self, checkpoint: Checkpoint) -> int:
        asked = self.options.max_length
        if asked is not None and asked > checkpoint.max_length:
            self.notices.append(
                f"--max-length {asked} is more than the checkpoint takes; {checkpoint.max_length} "
                "is used."
            )
        return min(asked or checkpoint.max_length, checkpoint.max_length)

    def _float_rows(
        self, task: Task, body: GraphBody, encoded: EncodedExamples, checkpoint: Checkpoint
    ) -> Rows:
        with self.progress.stage("Running the float model", len(encoded.batches)) as advance:
            return rows_of(task, TorchRunner(body, checkpoint.input_names), encoded, advance)

    def _calibrate(
        self, sited: SitedModel, body: GraphBody, encoded: EncodedExamples, plans: Sequence[Plan]
    ) -> Calibration:
        smoothings = {plan.recipe.smoothing for plan in plans}
        if len(smoothings) > 1:
            names = ", ".join(f"{plan.target.name}: {plan.recipe.name}" for plan in plans)
            raise UserInputError(
                f"These targets cannot share one calibration, since their recipes smooth "
                f"differently ({names}). Name one `--recipe` for all, or quantize twice."
            )
        smoothing = smoothings.pop()
        passes = 1 if smoothing is None else 2
        with self.progress.stage("Calibrating", passes * len(encoded.batches)) as advance:
            return calibrate(
                sited,
                lambda inputs: body(**inputs),
                encoded.batches,
                sites=[
                    site.name
                    for site in sited.sites
                    if any(site.name in plan.activations for plan in plans)
                ],
                calibrator=_calibrator(self.options),
                smoothing=smoothing,
                advance=advance,
            )

    def _write_inputs(
        self,
        folder: Path,
        checkpoint: Checkpoint,
        calibration: Calibration,
        plans: Sequence[Plan],
        used: Sequence[Example],
        body: GraphBody,
    ) -> None:
        checkpoint.config.save_pretrained(folder)
        checkpoint.tokenizer.save_pretrained(folder)
        write_ranges(calibration, folder / RANGES)
        options = self.options
        content = {
            "format": "qdqbert-quantization/1",
            "command": options.command(),
            "seed": options.seed,
            "checkpoint": {
                "name": options.model or "all-MiniLM-L6-v2",
                "task": checkpoint.task,
                "model_type": checkpoint.family.model_type,
                "sentence_head": checkpoint.head and dataclasses.asdict(checkpoint.head),
            },
            "max_length": self._max_length(checkpoint),
            "inputs": list(checkpoint.input_names),
            "outputs": list(body.output_names),
            "embeddings": options.embeddings,
            "calibration": {
                "calibrator": options.calibrator,
                "percentile": _percentile(options),
                "data": options.calibration_data or "built-in",
                "examples": len(used),
                "examples_sha256": digest_examples(used),
            },
            "targets": {
                plan.target.name: {
                    "model": _model_path(plan, plans),
                    "recipe": _recipe_json(plan),
                    "rewrites": [rewrite.__name__ for rewrite in plan.target.rewrites],
                    "sites": _sites_json(plan, calibration),
                }
                for plan in plans
            },
            "ranges": {name: dataclasses.asdict(r) for name, r in calibration.ranges.items()},
            "pre_quant_scales": sorted(calibration.scales),
            "versions": {"python": platform.python_version(), **_versions()},
        }
        write_json(folder / QUANTIZATION, content)


@dataclasses.dataclass(frozen=True)
class _Prover:
    """Measures what was written: lowering, fidelity, speed and size."""

    call: _Run
    checkpoint: Checkpoint
    folder: Path
    plans: Sequence[Plan]
    float_model: Path

    def prove(
        self,
        sited: SitedModel,
        body: GraphBody,
        graph: ir.Model,
        calibration: Calibration,
        heldout: EncodedExamples,
        float_rows: Rows,
    ) -> list[TargetReport]:
        """One report for each target and engine that is installed."""
        jobs = [(plan, engine) for plan in self.plans for engine in self._engines(plan)]
        timings = self._time(jobs)
        reports = []
        for plan, engine in jobs:
            title = f"Checking {plan.target.name} on {engine}"
            with self.call.progress.stage(title, len(heldout.batches)) as advance:
                path = self.folder / _model_path(plan, self.plans)
                lowering = self._lowering(plan, engine, sited, body, graph, calibration, heldout)
                rows = rows_of(
                    TASKS[self.checkpoint.task], open_runner(engine, path), heldout, advance
                )
                reports.append(
                    TargetReport(
                        target=plan.target.name,
                        engine=engine,
                        recipe=plan.recipe.name,
                        model=_model_path(plan, self.plans),
                        fidelity=compare(
                            float_rows, rows, kind=TASKS[self.checkpoint.task].kind(float_rows)
                        ),
                        lowering=lowering,
                        size_bytes=size_bytes(path),
                        size_ratio=size_bytes(path) / size_bytes(self.float_model),
                        latency=tuple(_latency(timings, plan, engine)),
                    )
                )
            slower = [each for each in reports[-1].latency if each.speedup < 1]
            if slower:
                shapes = " and ".join(f"{each.batch} x {each.sequence}" for each in slower)
                self.call.notices.append(
                    f"On this machine {engine} runs INT8 slower than float at {shapes}. Its int8 "
                    "kernels gain on CPUs with VNNI or AMX instructions."
                )
        return reports

    def _engines(self, plan: Plan) -> list[EngineName]:
        found = []
        for engine in plan.target.engines:
            if is_installed(engine):
                found.append(engine)
            else:
                self.call.notices.append(
                    f"Engine {engine} is not installed, so nothing was measured on it. Install "
                    f"it with: pip install 'qdqbert[{engine}]'"
                )
        return found

    def _time(self, jobs: Sequence[tuple[Plan, EngineName]]) -> list[Timing]:
        if not self.call.options.benchmark:
            return []
        engines = [engine for engine in ENGINES if any(engine == used for _, used in jobs)]
        models = [("float", engine, self.float_model) for engine in engines]
        models += [
            (plan.target.name, engine, self.folder / _model_path(plan, self.plans))
            for plan, engine in jobs
        ]
        candidates = [
            Candidate(
                name=name, engine=engine, model=model, vocab_size=self.checkpoint.config.vocab_size
            )
            for name, engine, model in models
        ]
        rounds = 3
        total = len(candidates) * len(BENCHMARK_SHAPES) * rounds
        with self.call.progress.stage("Timing float and INT8", total) as advance:
            return time_candidates(candidates, BENCHMARK_SHAPES, rounds=rounds, advance=advance)

    def _lowering(
        self,
        plan: Plan,
        engine: EngineName,
        sited: SitedModel,
        body: GraphBody,
        graph: ir.Model,
        calibration: Calibration,
        heldout: EncodedExamples,
    ) -> LoweringCheck:
        layers = [
            name
            for name, _ in self.checkpoint.model.named_modules()
            if self.checkpoint.family.is_layer(name)
        ]
        count = max(1, _CHECKED_TEXTS // self.call.options.batch_size)
        batches = heldout.batches[-count:]
        scales = {name: scale.numpy() for name, scale in calibration.scales.items()}
        with quantizing(sited, plan.specs, calibration.ranges, calibration.scales):
            references = make_references(sited, body, graph, layers, batches)
        lowered = lower(graph, plan, calibration.ranges, scales)
        check = check_lowering(lowered, references, engine)
        if not check.is_exact:
            self.call.notices.append(
                f"On {engine} the graph differs from the fake-quantized PyTorch model: "
                f"{check.worst_layer_db:.1f} dB at `{check.worst_layer}`, where 40 dB is expected "
                f"(rounding ties alone give {check.ties_db:.1f} dB)."
            )
        if check.saturates:
            self.call.notices.append(
                f"On this CPU {engine}'s int8 sums saturate: {check.native_db:.1f} dB where exact "
                f"arithmetic gives {check.worst_layer_db:.1f} dB."
            )
        return check


def _calibrator(options: QuantizeOptions) -> Calibrator:
    match options.calibrator:
        case "max":
            return Max()
        case "percentile":
            return Percentile(_percentile(options) or 0)
        case "mse":
            return Mse()
        case "entropy":
            return Entropy()


def _percentile(options: QuantizeOptions) -> float | None:
    if options.calibrator != "percentile":
        return None
    return Percentile().percentile if options.percentile is None else options.percentile


def _model_path(plan: Plan, plans: Sequence[Plan]) -> str:
    return MODEL if len(plans) == 1 else f"{plan.target.name}/{MODEL}"


def _example_inputs(encoded: EncodedExamples) -> dict[str, torch.Tensor]:
    """Two short texts, one with padding, for the exporter to trace."""
    inputs = {
        name: torch.from_numpy(array[:1]).repeat(2, 1)
        for name, array in encoded.batches[-1].inputs.items()
    }
    inputs["attention_mask"][1, -1] = 0
    return inputs


def _latency(timings: Sequence[Timing], plan: Plan, engine: EngineName) -> list[LatencyReport]:
    by_key = {(each.name, each.engine, each.batch, each.sequence): each for each in timings}
    reports = []
    for batch, sequence in BENCHMARK_SHAPES if timings else ():
        slow = by_key["float", engine, batch, sequence]
        fast = by_key[plan.target.name, engine, batch, sequence]
        reports.append(
            LatencyReport(
                batch=batch,
                sequence=sequence,
                float_ms=slow.median_ms,
                int8_ms=fast.median_ms,
                speedup=speedup(slow, fast),
            )
        )
    return reports


def _recipe_json(plan: Plan) -> Mapping[str, Any]:
    recipe = plan.recipe
    return {
        "name": recipe.name,
        "rules": [
            {
                "site": rule.site,
                "spec": None if rule.spec is None else dataclasses.asdict(rule.spec),
            }
            for rule in recipe.rules
        ],
        "smoothing": recipe.smoothing and dataclasses.asdict(recipe.smoothing),
    }


def _sites_json(plan: Plan, calibration: Calibration) -> Mapping[str, Any]:
    """What each quantized site became; weights' scales are in the graph."""
    sites: dict[str, Any] = {}
    for name, spec in plan.specs.items():
        if spec is None:
            continue
        sites[name] = {"spec": str(spec)}
        if name in calibration.ranges:
            parameters = parameters_of(calibration.ranges[name], spec)
            sites[name] |= {
                "scale": float(parameters.scale),
                "zero_point": int(parameters.zero_point),
            }
    return sites


def _versions() -> dict[str, str]:
    versions = {}
    for package in _VERSIONED:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions
