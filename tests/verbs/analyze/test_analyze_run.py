from __future__ import annotations

from pathlib import Path

import pytest

import bert_sites
import flat
from conftest import WORDS
from qdqbert.common.errors import UserInputError

LINEARS = {
    f"bert.encoder.layer.{layer}.{name}" for layer in range(2) for name in bert_sites.LINEARS
}


def analyze(made, **options):
    return flat.analyze(
        made.checkpoint,
        **{
            "calibration_data": made.data,
            "calibration_samples": 24,
            "max_examples": 24,
            **options,
        },
    )


def test_each_linear_layer_is_measured_by_itself_and_with_those_above(quantized) -> None:
    report = analyze(quantized("classifier"))
    # Embedding tables are int8, too.
    assert {unit.name for unit in report.units} >= LINEARS
    assert report.examples == 24
    assert report.metric is None
    assert sum(unit.share_percent for unit in report.units) == pytest.approx(100)
    costs = [unit.alone.sqnr_db for unit in report.units]
    assert costs == sorted(costs)
    # A part costs less than everything, and nothing is left in the end.
    assert report.whole.sqnr_db < costs[0] + 3
    # Another implementation of float attention.
    assert report.units[-1].left.sqnr_db > 90
    assert report.units[-1].left.flips_percent == 0
    assert report.units[-2].left.sqnr_db == pytest.approx(costs[-1])


def test_the_cost_of_everything_is_that_of_quantize(quantized) -> None:
    made = quantized("classifier")
    # As many held-out examples as `quantize` compares on.
    report = analyze(made, max_examples=1000)
    [target] = [each for each in made.report.targets if each.engine == "onnxruntime"]
    assert report.whole.sqnr_db == pytest.approx(target.fidelity.sqnr_db, abs=0.5)


def test_labels_give_the_loss_of_the_metric(quantized, tmp_path: Path) -> None:
    labels = ("Negative", "Neutral", "Positive")
    path = tmp_path / "labeled.csv"
    rows = [
        f'"{text}",{labels[index % 3]}'
        for index, text in enumerate(f"the {word} was good" for word in WORDS[:40])
    ]
    path.write_text("\n".join(["text,label", *rows]))
    made = quantized("classifier")
    report = analyze(made, data=path, granularity="layer", max_examples=1000, wprec=3)
    evaluated = flat.evaluate(made.checkpoint, path)
    assert report.metric == evaluated.metrics[0].name
    assert report.units[-1].left.drop == 0
    assert all(unit.alone.drop is not None for unit in report.units)


def test_options_are_checked_before_the_model_is_loaded() -> None:
    with pytest.raises(UserInputError, match=r"`percentile=0\.5` is too small"):
        flat.analyze("./missing", percentile=0.5)


def test_the_plot_names_each_unit(quantized, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report = analyze(quantized("classifier"), granularity="layer", plot=tmp_path / "costs.svg")
    text = (tmp_path / "costs.svg").read_text()
    assert all(f"<!-- {unit.name} -->" in text for unit in report.units)


def test_a_plot_of_another_format_is_refused_before_the_model_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(UserInputError, match=r"must end in \.svg, \.png, \.pdf"):
        flat.analyze("missing", plot=tmp_path / "costs.xyz")
