"""What is shown of the stages of a call, in a log and on a terminal."""

from __future__ import annotations

import io
import sys
import types

import pytest
from rich.console import Console

from qdqbert.common.errors import UserInputError
from qdqbert.common.progress import Bars, Silent, progress_of


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.mark.parametrize("kind", ["stage", "throughput"])
def test_a_log_shows_how_long_a_stage_took(clock, capsys, kind) -> None:
    with getattr(Bars(clock), kind)("Calibrating", 8):
        assert capsys.readouterr().err == "Calibrating ...\n"
        clock.seconds += 35.2
    assert capsys.readouterr() == ("", "Calibrating ... done in 35.2 s\n")


def test_a_log_shows_minutes_and_hours_as_a_bar_does(clock, capsys) -> None:
    for seconds in (725.4, 7_325.0):
        with Bars(clock).stage("Training"):
            clock.seconds += seconds
    ends = capsys.readouterr().err.splitlines()[1::2]
    assert ends == ["Training ... done in 0:12:05", "Training ... done in 2:02:05"]


def test_a_log_has_one_line_for_a_short_stage(clock, capsys) -> None:
    with Bars(clock).stage("Exporting the graph"):
        clock.seconds += 0.9
    assert capsys.readouterr().err == "Exporting the graph ...\n"


def test_a_log_does_not_call_a_stage_done_that_failed(clock, capsys) -> None:
    def fail() -> None:
        with Bars(clock).stage("Calibrating"):
            clock.seconds += 5
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    assert capsys.readouterr().err == "Calibrating ...\n"


def test_stages_within_stages_stay_readable_in_a_log(clock, capsys) -> None:
    shown = Bars(clock)
    with shown.stage("Training"):
        with shown.stage("Evaluating"):
            clock.seconds += 2
        clock.seconds += 2
    assert capsys.readouterr().err.splitlines() == [
        "Training ...",
        "Evaluating ...",
        "Evaluating ... done in 2.0 s",
        "Training ... done in 4.0 s",
    ]


def test_a_log_shows_titles_as_they_are(clock, capsys) -> None:
    title = f"Loading [bold] {'model' * 40}"
    with Bars(clock).stage(title):
        pass
    assert capsys.readouterr().err == f"{title} ...\n"


@pytest.mark.parametrize("kind", ["stage", "throughput"])
def test_a_terminal_shows_titles_as_they_are(monkeypatch, kind) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(
        "rich.console.Console",
        lambda **options: Console(file=shown, force_terminal=True, width=120),
    )
    with getattr(Bars(), kind)("Loading [bold] model"):
        pass
    assert "Loading [bold] model" in shown.getvalue()


def test_a_log_shows_a_percentage_every_30_seconds(clock, capsys) -> None:
    with Bars(clock).stage("Calibrating", 10) as advance:
        for _ in range(10):
            clock.seconds += 10
            advance()
    assert capsys.readouterr().err.splitlines() == [
        "Calibrating ...",
        "Calibrating ... 30 %",
        "Calibrating ... 60 %",
        "Calibrating ... 90 %",
        "Calibrating ... done in 0:01:40",
    ]


def test_a_log_shows_how_much_of_an_input_is_processed(clock, capsys) -> None:
    with Bars(clock).throughput("Running", 200) as advance:
        clock.seconds += 31
        advance(rows=8, tokens=80, position=50)
        advance(rows=8, tokens=80, position=60)
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["Running ...", "Running ... 25 %"]
    assert len(lines) == 3


def test_a_log_shows_no_percentage_of_an_unknown_size(clock, capsys) -> None:
    with Bars(clock).stage("Searching") as advance:
        clock.seconds += 60
        advance()
    assert "%" not in capsys.readouterr().err


def test_what_is_no_progress_is_refused() -> None:
    with pytest.raises(UserInputError, match=r"`progress` must be True, False or .*, got 3 \(int"):
        progress_of(3)


@pytest.mark.parametrize(
    ("config", "shown"), [({"IPKernelApp": {}}, Bars), ({"TerminalIPythonApp": {}}, Silent)]
)
def test_bars_are_the_default_in_notebooks_only(monkeypatch, config, shown) -> None:
    assert isinstance(progress_of(None), Silent)
    shell = types.SimpleNamespace(config=config)
    ipython = types.SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "ipykernel", types.SimpleNamespace())
    assert isinstance(progress_of(None), shown)
    assert isinstance(progress_of(False), Silent)
    assert isinstance(progress_of(True), Bars)
