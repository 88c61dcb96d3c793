"""`qdqbert run` on the command line: what it prints where, and its exit codes."""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from rich.console import Console

import qdqbert
from qdqbert.cli._commands import COMMANDS
from qdqbert.cli.app import main
from qdqbert.common.progress import Bars
from qdqbert.data.tables.outputs import Writer
from qdqbert.engines.native.instruction_sets import choose_set
from qdqbert.verbs.run import pipeline


def run(*words: object, stdin: bytes = b"") -> tuple[int, str, str]:
    """Run the command; return its exit code and what it printed."""
    out, err = io.TextIOWrapper(io.BytesIO()), io.StringIO()
    code = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main(["run", *map(str, words)])
            except SystemExit as stop:
                code = int(stop.code or 0)
    out.flush()
    return code, out.buffer.getvalue().decode(), err.getvalue()  # type: ignore[attr-defined]


def test_a_table_and_a_report(classifier, reviews, tmp_path) -> None:
    code, out, err = run(classifier, "-i", reviews, "-o", tmp_path / "a.csv")
    assert code == 0
    assert "rows/s" in out
    assert "Running on onnxruntime ..." in err
    code, out, _ = run(
        classifier, "--input", reviews, "--output", tmp_path / "a.csv", "--overwrite", "--json"
    )
    report = json.loads(out)
    assert code == 0
    assert (report["rows"], report["engine"], report["output"]) == (
        *(11, "onnxruntime"),
        str(tmp_path / "a.csv"),
    )


def test_progress_as_lines_of_json(classifier, reviews, tmp_path) -> None:
    output = tmp_path / "a.jsonl"
    code, _, err = run(classifier, "-i", reviews, "-o", output, "--progress", "json")
    assert code == 0
    lines = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
    (end,) = [each for each in lines if each["event"] == "end" and "rows" in each]
    assert (end["stage"], end["rows"], end["share"]) == ("Running on onnxruntime", 11, 1)
    assert end["bytes"] == output.stat().st_size
    code, _, err = run(classifier, "-i", reviews, "-o", output, "--overwrite", "--progress", "none")
    assert code == 0
    assert "Running on onnxruntime ..." not in err
    code, _, err = run(classifier, "-i", reviews, "-o", output, "--progress", "bar")
    assert code == 2
    assert "`--progress bar` is unknown. Choose one of: bars, json, none." in err


@pytest.mark.parametrize("name", ["answers.jsonl", "answers.csv"])
def test_answers_end_quietly_if_nobody_reads_them(
    classifier, reviews, monkeypatch, capsys, name
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    form = name.rpartition(".")[2]
    words = ["run", classifier, "-i", reviews, "-o", "-", "--output-format", form]
    with os.fdopen(writer, "w") as stream, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        with pytest.raises(SystemExit) as stop:
            main([*map(str, words)])
        assert stop.value.code == 141
    assert "Error" not in capsys.readouterr().err


def test_a_kernel_of_the_native_engine_is_chosen(embedder, reviews, tmp_path) -> None:
    words = (embedder, "-i", reviews, "-o", tmp_path / "a.npy", "--engine", "native")
    code, out, err = run(*words, "--kernel", choose_set().name, "--json")
    assert code == 0, err
    report = json.loads(out)
    assert (report["engine"], report["target"], report["rows"]) == ("native", "native", 11)
    code, _, err = run(*words, "--kernel", "mmx", "--overwrite")
    assert code == 2
    assert "Error: `--kernel mmx` is unknown. Choose one of: amx, avx512-vnni, avx-vnni" in err
    code, _, err = run(*words[:-1], "onnxruntime", "--kernel", "avx2", "--overwrite")
    assert code == 2
    assert (
        "Error: `--kernel avx2` is a kernel of the native engine; engine 'onnxruntime' has" in err
    )


def test_answers_on_stdout_are_alone(classifier) -> None:
    words = (classifier, "-i", "-", "-o", "-", "--input-format", "txt")
    code, out, err = run(*words, "--on-error", "skip", "--top-k", 2, stdin=b"the cat\n\na dog\n")
    assert code == 0
    assert [len(json.loads(line)["labels"]) for line in out.splitlines()] == [2, 2]
    assert "Skipped Line 2 of `stdin`: column 'text' is blank." in err
    assert "Note: 1 row was skipped." in err
    code, out, err = run(*words, "--json", stdin=b"the cat\n")
    assert len(out.splitlines()) == 1
    assert json.loads(err[err.index("{\n") :])["rows"] == 1


@pytest.mark.parametrize("form", ["txt", "jsonl", "csv"])
def test_answers_to_a_slow_stdin_do_not_wait_for_more_rows(classifier, monkeypatch, form) -> None:
    monkeypatch.setattr(pipeline, "_PATIENCE", 0.01)
    lines = {
        "txt": ["the cat\n", "a dog\n", "books\n"],
        "jsonl": [f"{json.dumps({'text': text})}\n" for text in ("the cat", "a dog", "books")],
        "csv": ["text\nthe cat\n", '"a dog"\n', "books"],
    }[form]
    given, asked = os.pipe()
    answered, taken = os.pipe()
    with (
        os.fdopen(given) as stdin,
        os.fdopen(asked, "w") as source,
        os.fdopen(answered) as answers,
        os.fdopen(taken, "w") as stdout,
        ThreadPoolExecutor(1) as thread,
    ):
        monkeypatch.setattr(sys, "stdin", stdin)
        monkeypatch.setattr(sys, "stdout", stdout)
        running = thread.submit(qdqbert.run, classifier, "-", "-", input_format=form)
        for number, line in enumerate(lines, start=1):
            source.write(line)
            if number == len(lines):
                source.close()
            else:
                source.flush()
            # Stdin is still open, but for the last line.
            assert select.select([answers], [], [], 60)[0]
            assert "label" in json.loads(answers.readline())
        assert running.result().rows == 3


def test_errors_name_flags(classifier, reviews, tmp_path) -> None:
    words = (classifier, "-i", reviews, "-o")
    code, _, err = run(*words, tmp_path / "a.jsonl", "--normalize")
    assert code == 2
    assert "Error: `--normalize` does not apply to a classifier, which `MODEL " in err
    (tmp_path / "bad.txt").write_text("\n")
    code, _, err = run(classifier, "-i", tmp_path / "bad.txt", "-o", tmp_path / "a.jsonl")
    assert code == 2
    assert "Line 1 of" in err
    assert "`--on-error skip`" in err
    (tmp_path / "bad.csv").write_text("the cat,fine\na dog,dull\n")
    code, _, err = run(classifier, "-i", tmp_path / "bad.csv", "-o", tmp_path / "a.jsonl")
    assert code == 2
    assert "If the first row is not a header, pass `--no-header`." in err
    code, _, err = run(tmp_path, "-i", reviews, "-o", tmp_path / "a.jsonl")
    assert code == 2
    assert "is neither a quantized model nor a float checkpoint" in err


@pytest.mark.parametrize(
    ("stop", "code", "message"),
    [
        (KeyboardInterrupt(), 130, "Interrupted. Finished parts are kept."),
        (signal.SIGTERM, 143, "Stopped by SIGTERM. Finished parts are kept."),
    ],
)
def test_a_run_that_is_stopped_says_how_to_continue(
    classifier, reviews, tmp_path, monkeypatch, stop, code, message
) -> None:
    calls: list[int] = []
    block = Writer.block

    def stopping(*args: Any) -> bytes:
        calls.append(1)
        if len(calls) == 2:
            if isinstance(stop, BaseException):
                raise stop
            signal.raise_signal(stop)
        return block(*args)

    words = (classifier, "-i", reviews, "-o", tmp_path / "a.jsonl")
    with monkeypatch.context() as patch:
        patch.setattr(Writer, "block", stopping)
        found, _, err = run(*words)
    assert found == code
    assert f"Error: {message} Continue with `--resume`." in err
    found, _, err = run(*words)
    assert found == 2
    assert "Pass `--resume` to continue it, or `--overwrite` to discard it." in err
    found, out, _ = run(*words, "--resume")
    assert found == 0
    assert "Continued after 4 rows." in out


def test_runs_with_stdin_cannot_be_continued() -> None:
    given = {"input": "-", "output": "a.jsonl"}
    (run,) = (each for each in COMMANDS if each.name == "run")
    assert "cannot be continued" in run.after_interrupt(given)


def test_the_bar_shows_texts_and_tokens_per_second(monkeypatch) -> None:
    shown = io.StringIO()

    def console(**options: Any) -> Console:
        return Console(file=shown, force_terminal=True, width=120)

    monkeypatch.setattr("rich.console.Console", console)
    for total in (100, None):
        with Bars().throughput("Running", total) as advance:
            advance(rows=5, tokens=50, position=40)
    assert "40%" in shown.getvalue()
    assert "texts/s" in shown.getvalue()
    assert "tokens/s" in shown.getvalue()
