"""What is shown of the stages of a call, in a log and on a terminal."""

from __future__ import annotations

import io
import json
import sys
import types

import pytest
from rich.console import Console

from qdqbert.common.errors import UserInputError
from qdqbert.common.progress import Bars, Events, Silent, progress_of


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
    assert lines[:2] == ["Running ...", "Running ... 25 %, 0.3 texts/s, 2.6 tokens/s"]
    assert len(lines) == 3


def test_a_log_shows_the_speed_the_time_that_is_left_and_what_was_written(clock, capsys) -> None:
    shown = Bars(clock)
    with shown.throughput("Running", 200) as advance, shown.throughput("Reading") as other:
        clock.seconds += 10
        # A run that goes on begins within its input.
        advance(rows=100, tokens=1000, position=100)
        clock.seconds += 30
        advance(rows=100, tokens=1000, position=160, written=2_500_000)
        other(rows=80, tokens=400, position=7)
    assert capsys.readouterr().err.splitlines()[2:4] == [
        "Running ... 80 %, 5.0 texts/s, 50 tokens/s, 2.5 MB written, 20.0 s left",
        "Reading ... 2.0 texts/s, 10 tokens/s",
    ]


def test_lines_of_json_have_the_numbers_of_a_dashboard(clock, capsys) -> None:
    with progress_of("json").throughput("x"):
        assert json.loads(capsys.readouterr().err)["event"] == "start"
    capsys.readouterr()
    with Events(clock).throughput("Running", 200) as advance:
        for _ in range(4):
            clock.seconds += 0.5
            advance(rows=10, tokens=90, position=int(100 * clock.seconds), written=1000)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    # At most one a second.
    assert [(each["event"], each["seconds"], each["rows"]) for each in lines] == [
        ("start", 0, 0),
        ("progress", 1, 20),
        ("progress", 2, 40),
        ("end", 2, 40),
    ]
    assert lines[1] == {
        "event": "progress",
        "stage": "Running",
        "seconds": 1,
        "rows": 20,
        "tokens": 180,
        "bytes": 2000,
        "rows_per_second": 20,
        "tokens_per_second": 180,
        "share": 0.5,
        "remaining_seconds": 1,
    }
    assert lines[2]["remaining_seconds"] == 0


def test_lines_of_json_about_a_size_that_is_not_known(clock, capsys) -> None:
    shown = Events(clock)
    with shown.throughput("Reading \u00e9") as advance, shown.stage("Searching", 8) as step:
        clock.seconds += 1
        advance(rows=1, tokens=9, position=70)
        step()
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [each["event"] for each in lines] == ["start", "start", *["progress"] * 2, *["end"] * 2]
    assert (lines[2]["share"], lines[2]["remaining_seconds"]) == (None, None)
    assert lines[3] == {
        "event": "progress",
        "stage": "Searching",
        "seconds": 1,
        "done": 1,
        "total": 8,
    }


def test_lines_of_json_have_no_end_of_a_stage_that_failed(clock, capsys) -> None:
    def fail() -> None:
        with Events(clock).stage("Calibrating"):
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_log_shows_no_percentage_of_an_unknown_size(clock, capsys) -> None:
    with Bars(clock).stage("Searching") as advance:
        clock.seconds += 60
        advance()
    assert "%" not in capsys.readouterr().err


def test_what_is_no_progress_is_refused() -> None:
    with pytest.raises(
        UserInputError, match=r"`progress` must be True, False, 'json' or .*, got 3 \(int"
    ):
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
