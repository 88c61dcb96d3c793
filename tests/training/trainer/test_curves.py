from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree

import pytest

from qdqbert.common.errors import MissingExtraError
from qdqbert.training.trainer.curves import curves_of, plot_curves

HISTORY = [
    {"loss": 2.0, "grad_norm": 1.5, "learning_rate": 1e-3, "epoch": 0.5, "step": 1},
    {"eval_accuracy": 50.0, "eval_f1": 40.0, "epoch": 0.5, "step": 1},
    {"loss": 1.0, "grad_norm": 0.5, "learning_rate": 5e-4, "epoch": 1.0, "step": 2},
    {"eval_accuracy": 75.0, "eval_f1": 80.0, "epoch": 1.0, "step": 2},
    {"train_runtime": 3.0, "train_loss": 1.5, "epoch": 1.0, "step": 2},
]


def test_curves_are_loss_and_metrics_over_steps() -> None:
    assert curves_of(HISTORY) == {
        "loss": [(1, 2.0), (2, 1.0)],
        "accuracy": [(1, 50.0), (2, 75.0)],
        "f1": [(1, 40.0), (2, 80.0)],
    }


@pytest.mark.parametrize(
    ("history", "panels"),
    [(HISTORY, 3), (HISTORY[:1], 1), ([], 0)],
    ids=["loss-and-two-metrics", "loss-only", "nothing"],
)
def test_the_plot_is_an_svg_with_a_panel_for_each_curve(history, panels, tmp_path) -> None:
    pytest.importorskip("matplotlib")
    plot_curves(history, tmp_path / "curves.svg")
    root = ElementTree.parse(tmp_path / "curves.svg").getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    axes = [each for each in root.iter() if each.get("id", "").startswith("axes_")]
    assert len(axes) == panels


def test_error_without_matplotlib_shows_how_to_install_it(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'qdqbert\[train\]'"):
        plot_curves(HISTORY, tmp_path / "curves.svg")
    assert not (tmp_path / "curves.svg").exists()
