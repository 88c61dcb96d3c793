"""Plot what each unit costs."""

from __future__ import annotations

import io

from qdqbert.common.errors import UserInputError
from qdqbert.common.extras import require
from qdqbert.common.storage import Place, write_place
from qdqbert.evidence.reporting.analyze import AnalyzeReport

FORMATS = (".svg", ".png", ".pdf")
# Units that are shown. Those after them cost hardly anything.
_MOST = 40


def check_plot(path: Place) -> None:
    """Refuse a file that cannot be plotted to, before anything is measured."""
    if path.suffix not in FORMATS:
        raise UserInputError(
            f"`plot={str(path)!r}` must end in {', '.join(FORMATS)}.", argument="plot"
        )
    require(f"`plot={str(path)!r}`", "train", "matplotlib", argument="plot")


def plot_costs(report: AnalyzeReport, path: Place) -> None:
    """Plot the SQNR of each unit alone, and of the rest if the units above it stay in float."""
    from matplotlib.figure import Figure

    units = report.units[:_MOST]
    rows = range(len(units))
    figure = Figure(figsize=(8, 1.5 + 0.22 * len(units)), layout="constrained")
    axes = figure.add_subplot()
    axes.barh(rows, [unit.alone.sqnr_db for unit in units], color="#9db7d5", label="alone")
    # If everything is in float, only the last bits differ.
    rest = [unit.left.sqnr_db for unit in report.units[:-1]][:_MOST]
    axes.plot(rest, range(len(rest)), marker=".", color="#c44e52", label="the rest")
    axes.axvline(report.whole.sqnr_db, linestyle=":", color="black", label="everything")
    axes.set_yticks(rows, [unit.name for unit in units], fontsize=7)
    axes.invert_yaxis()
    axes.set(xlabel="SQNR to float, dB", title=f"{report.model}, recipe {report.recipe}")
    axes.grid(axis="x", alpha=0.3)
    axes.legend(loc="lower right")
    content = io.BytesIO()
    figure.savefig(content, format=path.suffix[1:].lower())
    try:
        write_place(path, content.getvalue())
    except OSError as error:
        raise UserInputError(
            f"`plot={str(path)!r}` cannot be written: {error.strerror or error}. Pass another "
            "file.",
            argument="plot",
        ) from error
