"""Plot loss and metrics over the steps of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qdqbert.common.extras import require

_PREFIX = "eval_"


def curves_of(history: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """Return steps and values by name: `loss` and each metric."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for entry in history:
        for name, value in entry.items():
            if name == "loss" or name.startswith(_PREFIX):
                point = (int(entry["step"]), float(value))
                curves.setdefault(name.removeprefix(_PREFIX), []).append(point)
    return curves


def plot_curves(history: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Plot the loss and each metric, one panel each."""
    require("Plotting the curves", "train", "matplotlib")
    from matplotlib.figure import Figure

    curves = curves_of(history)
    figure = Figure(figsize=(4.5 * max(len(curves), 1), 3.2), layout="constrained")
    for index, (name, points) in enumerate(curves.items(), start=1):
        axes = figure.add_subplot(1, len(curves), index)
        steps, values = zip(*points, strict=True)
        axes.plot(steps, values, marker="." if len(points) < 30 else None)
        axes.set(title=name, xlabel="step")
        axes.grid(alpha=0.3)
    figure.savefig(path)
