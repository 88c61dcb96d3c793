"""Accuracy of recipes, smoothing and calibrators, simulated in PyTorch on a whole test file.

    python benchmarks/recipes.py MODEL --test TEST.csv [--calibration TRAIN.csv]

MODEL is a checkpoint folder, a hub id, or `demo` for the packaged all-MiniLM-L6-v2.
"""

from __future__ import annotations

import argparse
import dataclasses
import random

from qdqbert import resources
from qdqbert.calibration.session import calibrate
from qdqbert.checkpoint.demo import demo_checkpoint
from qdqbert.checkpoint.load import load_checkpoint
from qdqbert.graph.export import GraphBody
from qdqbert.insert.sited import insert_quantizers_, quantizing
from qdqbert.numerics.ranges import Calibrator, Entropy, Max, Mse, Percentile
from qdqbert.recipes import WIDE_INPUTS, build_recipe
from qdqbert.spec import Recipe, Smoothing, resolve
from qdqbert.targets import TARGETS
from qdqbert.tasks import TASKS
from qdqbert.tasks.data import Columns
from qdqbert.tasks.task import TaskOptions
from qdqbert.verbs.inference import TorchRunner, encode_examples, fidelity_of, rows_of

OPTIONS = TaskOptions()

FFN_ONLY = Smoothing(sites=("*.intermediate.dense._input_quantizer",), alpha=0.7)
EVERY_INPUT = Smoothing(sites=("*._input_quantizer",), alpha=0.7)
NORMS_ONLY = dataclasses.replace(WIDE_INPUTS, sources=("norm",))


def with_smoothing(name: str, smoothing: Smoothing | None) -> Recipe:
    return dataclasses.replace(build_recipe(name), smoothing=smoothing)


def at_alpha(alpha: float) -> Smoothing:
    return dataclasses.replace(WIDE_INPUTS, alpha=alpha)


CASES: tuple[tuple[str, Recipe, Calibrator], ...] = (
    ("linear", build_recipe("linear"), Max()),
    ("linear, alpha 0.5", with_smoothing("linear", at_alpha(0.5)), Max()),
    ("linear, FFN smoothed only", with_smoothing("linear", FFN_ONLY), Max()),
    ("linear, every input smoothed", with_smoothing("linear", EVERY_INPUT), Max()),
    ("linear, LayerNorms' outputs smoothed only", with_smoothing("linear", NORMS_ONLY), Max()),
    ("linear, not smoothed", with_smoothing("linear", None), Max()),
    ("linear", build_recipe("linear"), Percentile(99.999)),
    ("linear", build_recipe("linear"), Mse()),
    ("linear", build_recipe("linear"), Entropy()),
    ("linear-signed", build_recipe("linear-signed"), Max()),
    ("linear-signed, not smoothed", with_smoothing("linear-signed", None), Max()),
    ("qdqbert", build_recipe("qdqbert"), Max()),
    ("qdqbert", build_recipe("qdqbert"), Percentile(99.999)),
    ("qdqbert", build_recipe("qdqbert"), Mse()),
    ("qdqbert", build_recipe("qdqbert"), Entropy()),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--test", required=True)
    parser.add_argument("--calibration")
    parser.add_argument("--only", default="", help="cases whose name or calibrator has this")
    arguments = parser.parse_args()
    model = str(demo_checkpoint()) if arguments.model == "demo" else arguments.model
    checkpoint = load_checkpoint(model)
    task = TASKS[checkpoint.task]
    test = task.read(arguments.test, columns=Columns(), max_examples=None).examples
    texts = list(
        task.read(arguments.calibration, columns=Columns(), max_examples=None).examples
        if arguments.calibration
        else resources.calibration_examples()
    )
    random.Random(0).shuffle(texts)

    def encode(examples, batch_size):  # type: ignore[no-untyped-def]
        return encode_examples(
            task,
            checkpoint.tokenizer,
            examples,
            input_names=checkpoint.input_names,
            max_length=min(task.max_length or checkpoint.max_length, checkpoint.max_length),
            batch_size=batch_size,
            options=OPTIONS,
        )

    calibration_batches, encoded = encode(texts[:300], 8).batches, encode(test, 32)
    body = GraphBody.of(checkpoint)
    runner = TorchRunner(body, checkpoint.input_names)
    expected = rows_of(task, runner, encoded)
    labels = checkpoint.config.id2label
    sited = insert_quantizers_(checkpoint.model, checkpoint.family)
    metric = task.metrics(expected, encoded.features, labels, OPTIONS)[0]
    print(f"float: {metric.name} {metric.value:.2f} on {metric.examples} examples\n")
    print(f"| recipe | calibrator | {metric.name} | cosine mean / worst | flips % | SQNR dB |")
    print("|---|---|---|---|---|---|")
    for name, recipe, calibrator in CASES:
        if arguments.only not in f"{name} {calibrator}":
            continue
        specs = plan_specs(recipe, sited.sites)
        calibration = calibrate(
            sited,
            lambda inputs: body(**inputs),
            calibration_batches,
            sites=[s.name for s in sited.sites if s.kind == "activation" and specs[s.name]],
            calibrator=calibrator,
            smoothing=recipe.smoothing,
        )
        with quantizing(sited, specs, calibration.ranges, calibration.scales):
            made = rows_of(task, runner, encoded)
        value = task.metrics(made, encoded.features, labels, OPTIONS)[0].value
        fidelity = fidelity_of(task, expected, made, encoded.features, OPTIONS)
        cosine = (
            ""
            if fidelity.cosine_mean is None
            else f"{fidelity.cosine_mean:.4f} / {fidelity.cosine_min:.4f}"
        )
        flips = "" if fidelity.flips_percent is None else f"{fidelity.flips_percent:.2f}"
        cells = (name, calibrator, f"{value:.2f}", cosine, flips, f"{fidelity.sqnr_db:.1f}")
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def plan_specs(recipe, sites):  # type: ignore[no-untyped-def]
    """A recipe as the CPU targets run it."""
    resolved = resolve(recipe.rules, sites)
    return {site.name: TARGETS["portable"].adapt(site, resolved[site.name]) for site in sites}


if __name__ == "__main__":
    main()
