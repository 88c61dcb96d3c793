"""`quantize` with checkpoints that have quantizers of their own."""

from __future__ import annotations

import dataclasses
import functools
import json
import shutil
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import transformers
from onnx import numpy_helper
from safetensors.torch import load_file, save_file

import flat
import qdqbert
from qdqbert import QuantizeReport
from qdqbert.calibration.calibration import CalibrationResult
from qdqbert.calibration.ranges_file import read_ranges
from qdqbert.calibration.reference.sited_model import sited_model
from qdqbert.common.errors import CheckpointError, UserInputError
from qdqbert.evidence.fidelity import sqnr_db
from qdqbert.pipeline.plans import Scheme
from qdqbert.pipeline.ranges import choose_range_source
from qdqbert.pipeline.source import StoredQuantizers
from qdqbert.quantization.spec import SAFE_ADJACENT_SUM_LIMIT
from qdqbert.runtime.artifact import open_artifact, read_training
from qdqbert.training.models.quantized import load_model
from qdqbert.training.models.state import fix_ranges_, learn_ranges_, stored_calibration

TEXTS = [f"the cat is on the book and in the night {word}" for word in "abcdefgh"]
HELDOUT = [f"{word} dog went to the river" for word in "ijklmnopqrstuvwx"]
MADE = [("bert", "full"), ("roberta", "linear")]
EACH = pytest.mark.parametrize("made", MADE, indirect=True, ids="-".join)


@dataclasses.dataclass(frozen=True)
class Stored:
    """A trained checkpoint with quantizers, and the folder that `quantize` wrote.

    Attributes:
        folder: The checkpoint.
        calibration: Ranges of its quantizers.
        weights: Weights of its linear layers, float64, by name of the layer.
        report: Report of `quantize`, for three targets.
        output: Folder that `quantize` wrote.
    """

    folder: Path
    calibration: CalibrationResult
    weights: dict[str, np.ndarray]
    report: QuantizeReport
    output: Path

    def constants(self) -> dict[str, np.ndarray]:
        """Return the constants of the portable graph, in which weights keep their names."""
        return constants_of(self.output / "portable" / "model.onnx")


def constants_of(path: Path) -> dict[str, np.ndarray]:
    return {x.name: numpy_helper.to_array(x) for x in onnx.load(path).graph.initializer}


def encoded(folder: Path) -> list[dict[str, torch.Tensor]]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    halves = (TEXTS[:4], TEXTS[4:])
    return [dict(tokenizer(half, padding=True, return_tensors="pt")) for half in halves]


def train_a_little(model: Any, batches: list[dict[str, torch.Tensor]]) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model.train()
    for step in range(3):
        optimizer.zero_grad()
        labels = torch.tensor([0, 1, 2, step % 3])
        model(**batches[step % 2], labels=labels).loss.backward()
        optimizer.step()
    model.eval()


def quantize(folder: Path, output: Path, data: Path, **options: Any) -> QuantizeReport:
    options = {"targets": ["portable"], **options}
    return flat.quantize(
        str(folder),
        output,
        calibration_data=str(data),
        calibration_samples=8,
        benchmark=False,
        **options,
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("data") / "texts.txt"
    path.write_text("\n".join(TEXTS + HELDOUT))
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory, save_tiny):
    """Make the folder of a trained classifier with quantizers."""
    root = tmp_path_factory.mktemp("trained")

    @functools.cache
    def make(family: str, recipe: str) -> Path:
        auto = transformers.AutoModelForSequenceClassification
        floats = save_tiny(
            root / f"{family}-{recipe}-float", family, auto, num_labels=3, num_hidden_layers=1
        )
        model = auto.from_pretrained(floats)
        batches = encoded(floats)
        qdqbert.calibrate(qdqbert.prepare(model, recipe), batches)
        train_a_little(model, batches)
        with torch.no_grad():
            # Training moves weights out of their calibrated ranges. Move them far, up in one layer
            # and down in another.
            for name, parameter in model.named_parameters():
                if name.endswith("intermediate.dense.weight"):
                    parameter[::2] *= 1.5
                if name.endswith("attention.self.value.weight"):
                    parameter *= 0.75
        folder = root / f"{family}-{recipe}"
        model.save_pretrained(folder)
        transformers.AutoTokenizer.from_pretrained(floats).save_pretrained(folder)
        return folder

    return make


QUERY = "encoder.layer.0.attention.self.query"
DAMAGE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "NaN": lambda x: torch.full_like(x, torch.nan),
    "infinite": lambda x: torch.full_like(x, torch.inf),
    "negative": lambda x: -x,
    "one more": lambda x: torch.cat([x.reshape(-1), x.reshape(-1)[:1]]),
}
VERBS: dict[str, Callable[[Path, Path, Path], Any]] = {
    "load": lambda folder, data, out: qdqbert.load(folder),
    "run": lambda folder, data, out: qdqbert.run(folder, data, out / "answers.jsonl"),
    "quantize": lambda folder, data, out: quantize(folder, out / "int8", data),
    "analyze": lambda folder, data, out: qdqbert.analyze(folder, calibration_data=data),
    "evaluate": lambda folder, data, out: qdqbert.evaluate(folder, data),
    "evaluate native": lambda folder, data, out: qdqbert.evaluate(folder, data, engine="native"),
    "train": lambda folder, data, out: qdqbert.train(folder, out / "qat", train_data=data),
    # The other engines run the float model.
    "benchmark": lambda folder, data, out: qdqbert.benchmark(folder, engines="native"),
}


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("kind", ["input", "weight"])
def test_every_verb_refuses_a_range_that_is_none(trained, tmp_path, verb, damage, kind) -> None:
    folder = Path(shutil.copytree(trained("bert", "full"), tmp_path / "damaged"))
    tensors = load_file(folder / "model.safetensors")
    name = next(each for each in tensors if each.endswith(f"{QUERY}._{kind}_quantizer._amax"))
    tensors[name] = DAMAGE[damage](tensors[name])
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    data = tmp_path / "labeled.csv"
    rows = [f"{text},LABEL_{index % 3}" for index, text in enumerate(TEXTS + HELDOUT)]
    data.write_text("\n".join(["text,label", *rows]))
    with pytest.raises(CheckpointError, match=rf"query\._{kind}_quantizer\._amax"):
        VERBS[verb](folder, data, tmp_path)


@pytest.fixture(scope="module")
def made(request, tmp_path_factory, trained, data) -> Stored:
    folder = trained(*request.param)
    model = load_model(str(folder)).model
    sited = sited_model(model)
    output = tmp_path_factory.mktemp("quantized") / "out"
    report = quantize(folder, output, data, targets=("onnxruntime", "portable", "native"))
    weights = {
        name.rpartition(".")[0]: model.get_parameter(name.replace("._weight_quantizer", ".weight"))
        for name in sited.quantizers
        if name.endswith("._weight_quantizer") and ".layer." in name
    }
    return Stored(
        folder=folder,
        calibration=stored_calibration(sited),
        weights={name: weight.detach().double().numpy() for name, weight in weights.items()},
        report=report,
        output=output,
    )


def scaled_weight(made: Stored, linear: str) -> np.ndarray:
    scale = made.calibration.scales.get(f"{linear}._input_quantizer")
    weight = made.weights[linear]
    return weight if scale is None else weight / scale.double().numpy()


@EACH
@pytest.mark.usual("bert-full")
def test_the_graph_computes_what_was_trained(made) -> None:
    assert {target.target for target in made.report.targets} == {
        "onnxruntime",
        "portable",
        "native",
    }
    for target in made.report.targets:
        assert target.lowering.is_exact
        assert target.recipe == "stored"
    assert any("checkpoint's own quantizers" in notice for notice in made.report.notices)
    assert not any("The checkpoint was trained with" in notice for notice in made.report.notices)


# Codes are the same; a sum in another order can move an input to the next code, in one text of
# eight. INT8 tables or limited weights that training has not seen are below 30 dB.
LEAST_DB = 45.0
TRAINED: dict[str, tuple[str, dict[str, Any]]] = {
    "default": ("fixed", {}),
    "float tables": ("fixed", {"embeddings": "float"}),
    "vnni": ("fixed", {"weights_for": "vnni"}),
    "per tensor": ("fixed", {"quant_per_tensor": True}),
    "6 bits": ("fixed", {"wprec": 6}),
    "learned": ("learned", {}),
    "moving": ("moving", {}),
}


@pytest.mark.parametrize(
    ("made", "name"),
    [
        pytest.param(
            made,
            name,
            id="-".join((*made, name)),
            marks=[] if (made, name) == (MADE[0], "default") else pytest.mark.slow,
        )
        for made in MADE
        for name in TRAINED
    ],
)
def test_engines_compute_what_was_trained(save_tiny, data, tmp_path, made, name) -> None:
    (family, recipe), (ranges, options) = made, TRAINED[name]
    auto = transformers.AutoModelForSequenceClassification
    floats = save_tiny(tmp_path / "float", family, auto, num_labels=3, num_hidden_layers=1)
    model, batches = auto.from_pretrained(floats), encoded(floats)
    qdqbert.prepare(model, recipe, quantizers=qdqbert.Quantizers(**options))
    qdqbert.calibrate(model, batches)
    learn_ranges_(sited_model(model), ranges)
    train_a_little(model, batches)
    fix_ranges_(sited_model(model))
    folder = tmp_path / "qat"
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(floats).save_pretrained(folder)
    with torch.no_grad():
        expected = torch.cat([model(**batch).logits for batch in batches]).numpy()
    report = quantize(folder, tmp_path / "int8", data, targets=["onnxruntime", "native"])
    assert not any("The checkpoint was trained with" in notice for notice in report.notices)
    for where, engine in [
        (tmp_path / "int8", "onnxruntime"),
        (tmp_path / "int8", "native"),
        (folder, "native"),
    ]:
        with qdqbert.load(where, engine=engine) as runs:
            answers = runs(TEXTS, top_k=None, function_to_apply="none")
        scores = [{each["label"]: each["score"] for each in answer} for answer in answers]
        found = np.array([[each[f"LABEL_{k}"] for k in range(3)] for each in scores])
        closest = np.abs(found - expected).max(axis=1).argsort()[:-1]
        assert sqnr_db(expected[closest], found[closest]) >= LEAST_DB, (where, engine)


def test_options_that_contradict_the_training_are_named_and_obeyed(trained, data, tmp_path) -> None:
    changes = {"embeddings": "float", "weights_for": "vnni", "wprec": 6}
    report = quantize(trained("bert", "full"), tmp_path / "out", data, **changes)
    notices = "\n".join(report.notices)
    assert "trained with INT8 embedding tables, and its graphs have embedding tables in" in notices
    assert "trained with weights for all CPUs, and its graphs have weights for CPUs with" in notices
    assert "`wprec` changes the quantizers that the checkpoint was trained with" in notices
    constants = constants_of(tmp_path / "out" / "model.onnx")
    assert constants["bert.embeddings.word_embeddings.weight"].dtype == np.float32
    codes = [x for name, x in constants.items() if name.endswith("query.weight_codes")]
    assert np.abs(codes[0]).max() == 31


@pytest.mark.slow
def test_tables_and_weights_that_were_not_trained_are_named(checkpoints, data, tmp_path) -> None:
    folder = Path(shutil.copytree(checkpoints("classifier"), tmp_path / "qdqbert"))
    model = qdqbert.QDQBertForSequenceClassification.from_pretrained(folder)
    qdqbert.calibrate(model, encoded(folder)).save_pretrained(folder)
    notices = "\n".join(quantize(folder, tmp_path / "int8", data).notices)
    assert "Pass `embeddings='float'` to keep what was trained." in notices
    assert "Pass `weights_for='vnni'` to keep what was trained." in notices
    same = {"embeddings": "float", "weights_for": "vnni"}
    report = quantize(folder, tmp_path / "same", data, **same)
    assert not any("to keep what was trained" in notice for notice in report.notices)


@EACH
def test_no_example_counts_as_calibrated_on(made) -> None:
    manifest = json.loads((made.output / "quantization.json").read_text())
    # There is no training.json that lists calibration examples.
    assert manifest["calibration"] == {"calibrator": "stored", "examples": 0, "fingerprints": []}
    assert manifest["checkpoint"]["placement"] == load_model(str(made.folder)).config.recipe
    assert made.report.calibration_texts == 0
    assert not any("were taken from" in warning for warning in made.report.warnings)
    assert not any("Calibrated" in notice for notice in made.report.notices)
    assert not any("built-in sentences" in notice for notice in made.report.notices)


def test_examples_that_a_folder_was_trained_on_stay_known(tmp_path) -> None:
    content = {
        "format": "qdqbert-training/2",
        "max_length": 9,
        "task_options": {},
        "calibration": {"fingerprints": ["a", "b"]},
    }
    (tmp_path / "training.json").write_text(json.dumps(content))
    stored = StoredQuantizers(
        specs={}, calibration=CalibrationResult(ranges={}, scales={}), recipe="linear"
    )
    source = types.SimpleNamespace(name="model", stored=stored, training=read_training(tmp_path))
    ranges = choose_range_source(source, Scheme(), None)
    assert (ranges.kind, ranges.known) == ("stored", ("a", "b"))


def test_the_folder_of_a_qdqbert_model_has_berts_config(checkpoints, data, tmp_path) -> None:
    """Other programs know this."""
    folder = Path(shutil.copytree(checkpoints("classifier"), tmp_path / "qdqbert"))
    model = qdqbert.QDQBertForSequenceClassification.from_pretrained(folder)
    qdqbert.calibrate(model, encoded(folder)).save_pretrained(folder)
    quantize(folder, tmp_path / "int8", data, targets=["native"])
    written = json.loads((tmp_path / "int8" / "config.json").read_text())
    original = json.loads((checkpoints("classifier") / "config.json").read_text())
    assert written == original
    # A folder of an earlier version, in a process that has not imported the classes.
    stored = json.loads((folder / "config.json").read_text())
    (tmp_path / "int8" / "config.json").write_text(json.dumps(stored))
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(transformers.CONFIG_MAPPING._extra_content, "qdqbert")
        assert open_artifact(tmp_path / "int8").load_config().id2label == model.config.id2label


@EACH
def test_ranges_of_the_checkpoint_are_written(made) -> None:
    written = read_ranges(made.output / "ranges.safetensors")
    assert written.ranges == made.calibration.ranges
    assert written.ranges
    assert written.scales.keys() == made.calibration.scales.keys()
    # Training has seen the nearest codes.
    assert not written.roundings
    assert not written.means
    for name, scale in made.calibration.scales.items():
        assert torch.equal(written.scales[name], scale), name


@EACH
def test_weights_are_encoded_with_their_trained_ranges(made) -> None:
    constants = made.constants()
    differing = 0
    assert len(made.weights) == 6
    for linear in made.weights:
        amax = made.calibration.weight_amax[f"{linear}._weight_quantizer"].numpy()
        weight = scaled_weight(made, linear)
        scale, codes = (constants[f"{linear}.weight_{kind}"] for kind in ("scale", "codes"))
        # Channels with large adjacent weights get a larger step, for CPUs without VNNI.
        usual = scale == amax / np.float32(127)
        assert (scale[~usual] > amax[~usual] / np.float32(127)).all(), linear
        clipped = np.clip(weight, -amax[:, None], amax[:, None])
        assert not may_reach_limit(clipped[~usual]).size or may_reach_limit(clipped[~usual]).all()
        ratio = clipped[usual] / scale[usual, None]
        # 1e-3 of a step: w / s and its quotient by the step are float32, 127 codes * 2^-24.
        is_clear = np.abs(ratio - np.floor(ratio) - 0.5) > 1e-3
        found = codes.T[usual]
        np.testing.assert_array_equal(found[is_clear], np.rint(ratio)[is_clear], err_msg=linear)
        own = np.abs(weight).max(axis=1)[usual]
        by_own = np.rint(weight[usual] * 127 / own[:, None])
        differing += int((by_own != found).sum())
    # The ranges of the weights themselves would give other codes.
    assert differing > 500


def may_reach_limit(rows: np.ndarray) -> np.ndarray:
    """Return rows with adjacent codes that might sum to more than 127, if the largest is 127."""
    pairs = np.abs(rows.reshape(len(rows), -1, 2).sum(axis=2)).max(axis=1, initial=0)
    return pairs > np.abs(rows).max(axis=1, initial=0) * (1 - 1e-6)


@EACH
def test_adjacent_codes_sum_to_no_more_than_the_limit(made) -> None:
    constants = made.constants()
    for linear in made.weights:
        codes = constants[f"{linear}.weight_codes"].T.astype(np.int64)
        sums = np.abs(codes.reshape(len(codes), -1, 2).sum(axis=2))
        assert sums.max() <= SAFE_ADJACENT_SUM_LIMIT, linear


@pytest.mark.parametrize("made", [("roberta", "linear")], indirect=True, ids="-".join)
def test_recalibrating_takes_ranges_from_the_data(made, data, tmp_path) -> None:
    report = quantize(made.folder, tmp_path / "out", data, recalibrate=True)
    assert report.targets[0].lowering.is_exact
    assert not any("checkpoint's own quantizers" in notice for notice in report.notices)
    written = read_ranges(tmp_path / "out" / "ranges.safetensors")
    assert written.ranges.keys() == made.calibration.ranges.keys()
    changed = [n for n, chosen in made.calibration.ranges.items() if written.ranges[n] != chosen]
    assert changed
    constants = constants_of(tmp_path / "out" / "model.onnx")
    for linear in made.weights:
        scale = written.scales.get(f"{linear}._input_quantizer", torch.ones(1)).double().numpy()
        own = np.abs(made.weights[linear] / scale).max(axis=1)
        found = constants[f"{linear}.weight_scale"]
        # The step of the weight itself, or a larger one for adjacent weights, up to rounding.
        assert (found >= own / 127 * (1 - 2.0**-21)).all(), linear
        assert (found <= own / 127 * 2.02).all(), linear


@pytest.mark.parametrize("made", [("bert", "full")], indirect=True, ids="-".join)
def test_a_recipe_replaces_the_quantizers_of_the_checkpoint(made, data, tmp_path) -> None:
    report = quantize(
        made.folder, tmp_path / "out", data, recipe="linear", targets=("onnxruntime",)
    )
    (target,) = report.targets
    assert target.recipe == "linear"
    assert target.lowering.is_exact
    assert any("`recipe='linear'` replaces the quantizers" in notice for notice in report.notices)
    written = read_ranges(tmp_path / "out" / "ranges.safetensors")
    assert all(name.endswith("._input_quantizer") for name in written.ranges)
    assert len(written.ranges) == 6
    assert written.scales


@pytest.mark.parametrize("made", [("bert", "full")], indirect=True, ids="-".join)
def test_a_calibrator_is_refused_where_nothing_is_calibrated(made, data, tmp_path) -> None:
    message = r"`calibrator='max'` applies to a new calibration.*Add `recalibrate=True`"
    with pytest.raises(UserInputError, match=message) as caught:
        quantize(made.folder, tmp_path / "out", data, calibrator="max")
    assert caught.value.argument == "calibrator"
    assert not (tmp_path / "out").exists()
