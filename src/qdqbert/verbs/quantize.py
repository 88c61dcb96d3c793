"""`qdqbert quantize`: a float checkpoint in, a proven INT8 folder out."""

from __future__ import annotations

import dataclasses
import random
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from qdqbert import resources
from qdqbert.artifact import (
    MODEL,
    QUANTIZATION,
    RANGES,
    REPORT,
    Artifact,
    is_artifact,
    open_artifact,
    read_training,
    size_bytes,
    write_json,
    writing,
)
from qdqbert.calibration.calibration import Calibration
from qdqbert.calibration.ranges_file import read_ranges, write_ranges
from qdqbert.calibration.tensorrt_cache import write_calibration_cache
from qdqbert.checkpoint.demo import DEMO_NAME, demo_checkpoint
from qdqbert.checkpoint.sentence import write_sentence_head
from qdqbert.errors import CheckpointError, UserInputError
from qdqbert.evidence.reports import QuantizeReport, json_ready
from qdqbert.evidence.saturation import SaturationCheck
from qdqbert.graph.check import save_graph
from qdqbert.graph.qdq import float_graph, value_names
from qdqbert.models.configuration import recipe_of
from qdqbert.models.loading import load_model
from qdqbert.progress import Progress, Silent
from qdqbert.recipes import QuantizerOptions, build_recipe
from qdqbert.spec import Site
from qdqbert.targets import target_named
from qdqbert.targets.lowering import lower
from qdqbert.targets.target import Plan, make_plan
from qdqbert.tasks import TASKS
from qdqbert.tasks.data import Dataset, fingerprint
from qdqbert.tasks.task import Predictions, Task
from qdqbert.verbs.doors import CheckpointDoor, Door, GraphDoor
from qdqbert.verbs.inference import EncodedExamples, encode_examples, predict
from qdqbert.verbs.manifest import digest_weights, quantization_json, trained_source
from qdqbert.verbs.options import QuantizeOptions
from qdqbert.verbs.prove import Evidence, Written, prove

_HELDOUT = 120


def quantize(
    model: str | Path | None = None,
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
            `ranges` (a folder of an earlier call, whose ranges are used again),
            `calibration_samples`, `max_length`, `batch_size`, `calibrator`, `percentile`,
            `recipe`, `switches`, `targets`, `dedicated_qdq_pairs`, `embeddings`, `seed`,
            `overwrite`, `benchmark`.

    Raises:
        UserInputError: Something that was named cannot be used; nothing was written.
        CalibrationError: A site saw no usable value; nothing was written.
    """
    chosen = QuantizeOptions(model=model, output=output, **options)  # type: ignore[arg-type]
    if chosen.model is not None:
        chosen = chosen.trained(read_training(Path(chosen.model)))
    return _Run(chosen, progress or Silent()).run()


class _Run:
    """One call of `quantize`: the stages in order, each a method."""

    def __init__(self, options: QuantizeOptions, progress: Progress) -> None:
        self.options = options
        self.progress = progress
        self.notices: list[str] = []
        self.earlier: Artifact | None = None
        # Whether a checkpoint's own quantizers have the ranges.
        self.keeps = False
        # Where ranges came from, if not from the calibration data.
        self.source: Mapping[str, Any] | None = None

    def run(self) -> QuantizeReport:
        options = self.options
        is_demo = options.model is None
        names = options.targets or (("onnxruntime", "openvino") if is_demo else ("portable",))
        targets = [target_named(name) for name in dict.fromkeys(names)]
        if options.isa == "vnni":
            targets = [dataclasses.replace(target, adjacent_sum_limit=None) for target in targets]
        output = Path(options.output or f"qdqbert-{DEMO_NAME}")
        if options.model is not None and is_artifact(Path(options.model)):
            raise UserInputError(
                f"{options.model!r} is quantized already. Pass the float checkpoint that it was "
                "made of; `--ranges` with this folder takes its ranges again."
            )
        if options.ranges is not None:
            self.earlier = _open_earlier(options.ranges)
        # The demo may replace its own folder, not one that was named with MODEL forgotten.
        overwrite = options.overwrite or (is_demo and options.output is None)
        with (
            tempfile.TemporaryDirectory() as scratch,
            writing(output, overwrite=overwrite) as folder,
        ):
            door = self._open(Path(scratch))
            task = TASKS[door.task]
            self._settle_ranges(door)
            used, heldout = self._examples(task)
            limit = self._max_length(door, task)
            heldout_batches = self._encode(door, heldout, "held-out", limit)
            seen_batches = (
                self._encode(door, used, "calibration", limit) if used else heldout_batches
            )
            float_rows = self._float_rows(task, door, heldout_batches)
            recipes = {options.recipe or target.recipe for target in targets}
            door.open_sites({group for name in recipes for group in build_recipe(name).groups})
            plans = [
                make_plan(
                    target,
                    door.sites,
                    recipe=options.recipe,
                    embeddings=options.embeddings,
                    # QuantizerOptions at rest would say 8 bits to quantizers that have fewer.
                    quantizer_options=options.quantizer_options
                    if options.quantizer_options != QuantizerOptions()
                    else None,
                    stored=None if door.stored is None else door.stored.specs,
                    placement=recipe_of(door.config),
                    dedicated_pairs=options.dedicated_qdq_pairs,
                )
                for target in targets
            ]
            calibration = self._calibrate(door, seen_batches, plans)
            if not all(np.isfinite(row).all() for row in float_rows):
                # What calibration did not see: a head that stays in float.
                raise CheckpointError(
                    f"The float checkpoint {door.name!r} answers with NaN or infinite "
                    "values. Check its weights."
                )
            if options.isa == "vnni":
                for plan in plans:
                    self._check_saturation(door, seen_batches, calibration, plan)
            with self.progress.stage("Exporting the graph"):
                graph = door.graph()
            written = [self._write_graph(plan, plans, graph, calibration, folder) for plan in plans]
            self._write_inputs(folder, door, calibration, written, used, limit)
            float_model = Path(scratch) / MODEL
            save_graph(float_graph(graph), float_model, temporary=True)
            evidence = Evidence(
                door=door,
                calibration=calibration,
                heldout=heldout_batches,
                float_rows=float_rows,
                float_model=float_model,
                max_length=limit,
                options=options.task_options,
            )
            reports = prove(
                written,
                evidence,
                benchmark=options.benchmark,
                progress=self.progress,
                notices=self.notices,
            )
            report = QuantizeReport(
                directory=str(output),
                checkpoint=options.model or DEMO_NAME,
                task=door.task,
                calibration_texts=(
                    seen_batches.texts if self.source is None else self.source["examples"]
                ),
                heldout_texts=heldout_batches.texts,
                float_size_bytes=size_bytes(float_model),
                targets=tuple(reports),
                notices=tuple(dict.fromkeys(self.notices)),
            )
            write_json(folder / REPORT, json_ready(report))
        return report

    def _open(self, scratch: Path) -> Door:
        options = self.options
        if options.is_graph:
            with self.progress.stage("Reading the graph"):
                door = GraphDoor(
                    Path(options.model or ""),
                    task=options.task,
                    tokenizer=options.tokenizer,
                    input_names=options.input_names,
                    scratch=scratch,
                )
            self.notices += door.notices
            return door
        with self.progress.stage("Loading the checkpoint"):
            source = str(demo_checkpoint()) if options.model is None else options.model
            return CheckpointDoor(load_model(source, task=options.task))

    def _settle_ranges(self, door: Door) -> None:
        """Whether ranges are those of the checkpoint's own quantizers.

        Raises:
            UserInputError: They are, and how to take others is named all the same.
        """
        if door.stored is None or self.earlier is not None:
            return
        asked, stored = self.options, door.stored
        if asked.recalibrate or asked.recipe is not None:
            if not asked.recalibrate:
                self.notices.append(
                    "The checkpoint's own quantizers, and the ranges that it was trained with, "
                    f"give way to `--recipe {asked.recipe}`. Leave it out to keep them."
                )
            return
        wanted = {
            name
            for name, spec in stored.specs.items()
            if spec is not None and not name.endswith("_weight_quantizer")
        }
        self.keeps = wanted <= set(stored.calibration.ranges)
        for name in ("calibrator", "percentile"):
            value = getattr(asked, name)
            if self.keeps and value is not None:
                raise UserInputError(
                    f"`--{name} {value}` is about taking ranges; the checkpoint {door.name!r} has "
                    "its own. Add `--recalibrate` to take others, or leave it out."
                )

    def _examples(self, task: Task) -> tuple[list[Any], list[Any]]:
        """Examples to calibrate on, and others to compare on."""
        wanted = self.options.calibration_samples
        if self.options.calibration_data is None:
            if not task.reads_texts:
                raise UserInputError(
                    f"`--calibration-data` is missing: task `{task.name}` can neither take ranges "
                    "from the built-in sentences nor be compared with float on them. Pass "
                    "training data of the task."
                )
            pool, heldout = list(resources.calibration_examples()), resources.heldout_examples()
            if self.earlier is not None or self.keeps:
                self.notices.append(
                    "Fidelity is measured on built-in sentences. Name the task's own with "
                    "`--calibration-data`."
                )
        else:
            dataset = self._read(task, self.options.calibration_data)
            pool, heldout = list(dataset.examples), ()
        if self.earlier is not None or self.keeps:
            known, wanted = self._known_examples(), 0
            pool = [example for example in pool if fingerprint(example) not in known]
        random.Random(self.options.seed).shuffle(pool)
        used, rest = pool[:wanted], pool[wanted : wanted + _HELDOUT]
        if len(used) < wanted:
            self.notices.append(f"Calibrated on {len(used)} examples; {wanted} were asked for.")
        if not heldout and not rest and not task.reads_texts:
            raise UserInputError(
                f"All examples of `--calibration-data` ({len(used)}) are calibrated on; none is "
                "left to compare with float. Pass more, or fewer `--calibration-samples`."
                if wanted
                else "`--calibration-data` holds only examples that ranges were taken from; "
                "none is left to compare with float. Pass others."
            )
        if not heldout and len(rest) < 16 and task.reads_texts:
            self.notices.append(
                f"Of the data {len(rest) or 'no'} examples are left beside those that ranges are "
                "taken from; fidelity is measured on built-in sentences instead. Pass more data, "
                "or fewer `--calibration-samples`."
            )
            heldout = resources.heldout_examples()
        return used, list(heldout or rest)

    def _known_examples(self) -> Collection[str]:
        """Fingerprints of what ranges that are there were taken from."""
        if self.earlier is not None:
            return self.earlier.calibration_fingerprints
        return set(trained_source(self.options)["fingerprints"])

    def _read(self, task: Task, path: str) -> Dataset:
        dataset = task.read(path, columns=self.options.columns, max_examples=None)
        self.notices += dataset.notices
        return dataset

    def _encode(
        self, door: Door, examples: Sequence[Any], what: str, limit: int
    ) -> EncodedExamples:
        encoded = encode_examples(
            TASKS[door.task],
            door.tokenizer,
            examples,
            input_names=door.input_names,
            max_length=limit,
            batch_size=self.options.batch_size,
            options=self.options.task_options,
        )
        self.notices += [f"Of the {what} texts: {each}" for each in encoded.features.notices]
        return encoded

    def _max_length(self, door: Door, task: Task) -> int:
        asked = self.options.max_length
        if asked is not None and asked > door.max_length:
            self.notices.append(
                f"--max-length {asked} is more than the checkpoint takes; {door.max_length} "
                "is used."
            )
        usual = task.max_length or door.max_length
        return min(asked or usual, door.max_length)

    def _float_rows(self, task: Task, door: Door, encoded: EncodedExamples) -> Predictions:
        with self.progress.stage("Running the float model", len(encoded.batches)) as advance:
            return predict(task, door.runner(), encoded, advance)

    def _calibrate(
        self, door: Door, encoded: EncodedExamples, plans: Sequence[Plan]
    ) -> Calibration:
        stored = door.stored
        wanted = {name for plan in plans for name in plan.activations}
        if self.earlier is not None:
            return self._earlier_calibration(self.earlier, door, plans)
        if stored is not None and self.keeps:
            self.notices.append(
                "Ranges are those of the checkpoint's own quantizers; pass --recalibrate to "
                "take them from the data."
            )
            self.source = trained_source(self.options)
            return self._stored_calibration(stored.calibration, door.sites, wanted)
        if self.options.calibration_data is None and self.options.model is not None:
            self.notices.append(
                "Calibrated on the built-in English sentences; pass --calibration-data with texts "
                "of your own for ranges that fit them."
            )
        # Defaults of targets that smooth do it alike, and a recipe that is named is for all.
        smoothing = next((plan.recipe.smoothing for plan in plans if plan.recipe.smoothing), None)
        # A calibration cache is about a float graph, which has no scales.
        plain = [
            plan.activations
            for plan in plans
            if plan.recipe.smoothing is None or plan.target.calibration_cache
        ]
        passes = 1 if smoothing is None else 2
        with self.progress.stage("Calibrating", passes * len(encoded.batches)) as advance:
            return door.calibrate(
                encoded.batches,
                sites=[
                    site.name
                    for site in door.sites
                    if any(site.name in plan.activations for plan in plans)
                ],
                calibrator=self.options.make_calibrator(),
                smoothing=smoothing,
                unsmoothed_sites=frozenset().union(*plain),
                clips_residuals=any(plan.recipe.clips_residuals for plan in plans),
                quantizer_options=self.options.recipe_switches,
                advance=advance,
            )

    def _check_saturation(
        self,
        door: Door,
        encoded: EncodedExamples,
        calibration: Calibration,
        plan: Plan,
    ) -> None:
        """Says which layers would not survive on a CPU without VNNI."""
        if target_named(plan.target.name).adjacent_sum_limit is None:
            return  # it is for no CPU
        chosen = calibration.for_recipe(plan.recipe)
        check = SaturationCheck(plan.specs, chosen.ranges, door.weights(), chosen.scales)
        with self.progress.stage(f"Checking {plan.target.name} for saturation"):
            door.check_saturation(check, encoded.batches[:: max(1, len(encoded.batches) // 8)])
        worst = ", ".join(f"{each.site} ({each.percent:.3f} %)" for each in check.overflows[:3])
        count = len(check.overflows)
        self.notices.append(
            f"{plan.target.name} is made for CPUs with VNNI: elsewhere int8 sums would saturate in "
            + (f"{count} linears, most in {worst}. " if count else "no linear on this data. ")
            + "Leave `--isa` out for weights that are safe everywhere."
        )

    def _stored_calibration(
        self, stored: Calibration, sites: Sequence[Site], wanted: Collection[str]
    ) -> Calibration:
        quantizer_options = self.options.quantizer_options
        ranges = quantizer_options.adjust(stored.ranges, sites)
        # Ranges of a weight that was trained with them, unless bits or axes are others now.
        same_weights = not (
            quantizer_options.quant_per_tensor or quantizer_options.recalibrate_weights
        )
        return Calibration(
            ranges={name: ranges[name] for name in sorted(wanted)},
            scales={name: stored.scales[name] for name in sorted(set(stored.scales) & set(wanted))},
            weight_amax=stored.weight_amax if same_weights else {},
        )

    def _earlier_calibration(
        self, earlier: Artifact, door: Door, plans: Sequence[Plan]
    ) -> Calibration:
        """The ranges of an earlier call, if they are for these weights and these recipes."""
        name = self.options.ranges
        theirs = earlier.quantization["checkpoint"]
        if "weights_sha256" not in theirs:
            raise UserInputError(
                f"`--ranges {name}` was written by an older version, which does not say of which "
                "weights. Leave it out, to calibrate."
            )
        if theirs["weights_sha256"] != digest_weights(door.graph()):
            raise UserInputError(
                f"`--ranges {name}` holds ranges for the weights of {theirs['name']!r}, which are "
                f"not those of {door.name!r}. Leave it out, to calibrate."
            )
        _check_switches(earlier, self.options)
        calibration = read_ranges(earlier.directory / RANGES)
        for plan in plans:
            chosen, smoothing = calibration.for_recipe(plan.recipe), plan.recipe.smoothing
            smoothed = {
                site.name
                for site in door.sites
                if smoothing is not None and smoothing.matches(site)
            }
            ranged = plan.activations if plan.target.dynamic else set(chosen.ranges)
            unfit = sorted(
                plan.activations - ranged | plan.activations & (smoothed ^ set(chosen.scales))
            )
            if unfit:
                recipes = {
                    each["recipe"]["name"] for each in earlier.quantization["targets"].values()
                }
                raise UserInputError(
                    f"`--ranges {name}` has no fitting ranges for {len(unfit)} of "
                    f"{len(plan.activations)} sites of recipe `{plan.recipe.name}`, such as "
                    f"`{unfit[0]}`: it was made for {', '.join(sorted(recipes))}. Name its recipe "
                    "with `--recipe`, or calibrate for all targets in one call."
                )
        self.source = {**earlier.quantization["calibration"], "ranges": name}
        return calibration

    def _write_graph(
        self,
        plan: Plan,
        plans: Sequence[Plan],
        graph: ir.Model,
        calibration: Calibration,
        folder: Path,
    ) -> Written:
        name = MODEL if len(plans) == 1 else f"{plan.target.name}/{MODEL}"
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        with self.progress.stage(f"Lowering for {plan.target.name}"):
            chosen = calibration.for_recipe(plan.recipe)
            scales = {site: scale.numpy() for site, scale in chosen.scales.items()}
            model = lower(graph, plan, chosen.ranges, scales, chosen.weight_amax)
            save_graph(model, path)
            if plan.target.calibration_cache:
                self._write_cache(path.with_name(plan.target.calibration_cache), graph, calibration)
        return Written(plan=plan, model=model, path=path, name=name)

    def _write_cache(self, path: Path, graph: ir.Model, calibration: Calibration) -> None:
        plain = calibration.without_smoothing or calibration
        if plain.scales:
            self.notices.append(
                f"No {path.name} is written: the ranges are those of smoothed inputs, and the "
                "float graph that it is for has none. Calibrate anew for one."
            )
            return
        write_calibration_cache(plain.ranges, value_names(graph), path)

    def _write_inputs(
        self,
        folder: Path,
        door: Door,
        calibration: Calibration,
        written: Sequence[Written],
        used: Sequence[Any],
        limit: int,
    ) -> None:
        door.config.save_pretrained(folder)
        door.tokenizer.save_pretrained(folder)
        if door.head is not None:
            write_sentence_head(door.head, folder, hidden=door.config.hidden_size)
        write_ranges(calibration, folder / RANGES)
        content = quantization_json(
            self.options,
            door,
            calibration,
            {each.plan.target.name: each.name for each in written},
            [each.plan for each in written],
            used,
            max_length=limit,
            weights_sha256=(
                digest_weights(door.graph())
                if self.earlier is None
                else self.earlier.quantization["checkpoint"]["weights_sha256"]  # compared by now
            ),
            source=self.source,
        )
        write_json(folder / QUANTIZATION, content)


def _check_switches(earlier: Artifact, options: QuantizeOptions) -> None:
    """Refuses switches that shape ranges, where they are others than those that did."""
    theirs, ours = earlier.quantization["switches"], options.recipe_switches.to_dict()
    for name in ("aprec", "fuse_qkv", "clip_gelu", "quant_per_tensor", "recalibrate_weights"):
        if theirs.get(name) != ours.get(name):
            default = getattr(QuantizerOptions(), name)
            raise UserInputError(
                f"`--{name.replace('_', '-')}` shapes ranges: it is {ours.get(name, default)} now, "
                f"and was {theirs.get(name, default)} for `--ranges {options.ranges}`. Give it as "
                "it was, or leave `--ranges` out."
            )


def _open_earlier(folder: str) -> Artifact:
    """The folder that `--ranges` names.

    Raises:
        UserInputError: It is none that `quantize` wrote.
    """
    try:
        return open_artifact(Path(folder))
    except CheckpointError as error:
        raise UserInputError(f"`--ranges`: {error}") from error
