"""What a command prints: text as it is, for a reader that may have enough of it."""

from __future__ import annotations

import dataclasses
import os
import sys

import pytest

from qdqbert.cli._errors import fail
from qdqbert.cli._output import print_report
from qdqbert.cli.app import main
from qdqbert.common.options.declared import declared_options
from qdqbert.evidence.reporting.doctor import Cache, DoctorReport, Part
from qdqbert.evidence.reporting.document import Document
from qdqbert.evidence.reporting.report import Report
from qdqbert.verbs.quantize.options import QuantizeOptions


@dataclasses.dataclass(frozen=True, kw_only=True)
class Noted(Report):
    """A report with messages."""

    warnings: tuple[str, ...]
    notices: tuple[str, ...]
    directory: str

    def document(self) -> Document:
        return Document(title="reviews[bold]", summary="Pass `eval_data`.")


def test_text_from_outside_is_no_markup_and_options_are_flags(capsys) -> None:
    report = Noted(
        warnings=("Label '[bold]' has no examples. Pass more `calibration_data`.",),
        notices=("Column '[/red]' and ':smile:' are left out. Pass `overwrite=True`.",),
        directory="[x]/:smile:",
    )
    print_report(report, declared_options(QuantizeOptions), as_json=False)
    with pytest.raises(SystemExit):
        fail("`--input [x]` and ':smile:' are no [/files].", 2, as_json=False)
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [
        "reviews[bold]",
        "Pass `--eval-data`.",
        "WARNING: Label '[bold]' has no examples. Pass more `--calibration-data`.",
        "Note: Column '[/red]' and ':smile:' are left out. Pass `--overwrite`.",
        "Written to [x]/:smile:",
    ]
    assert printed.err == "Error: `--input [x]` and ':smile:' are no [/files].\n"


@pytest.mark.parametrize(
    ("models", "words"),
    [
        (1, "/[c]: 1 model, 12.5 MB of at most 20 GB"),
        (0, "/[c]: 0 models, 0.0 MB of at most 20 GB"),
        (None, "/[c] cannot be read (Permission denied), at most 20 GB"),
    ],
)
def test_doctor_shows_the_cache_and_the_extra_that_is_missing(capsys, models, words) -> None:
    part = Part(
        name="openvino",
        version=None,
        purpose="an engine",
        install="pip install 'qdqbert[openvino]'",
        details=(),
    )
    report = DoctorReport(
        python="3.13",
        system="Linux",
        cpu="[x]",
        cores=2,
        cpu_features={},
        gpus=(),
        engines=(part,),
        extras=(),
        verdict="[bold]",
        cache=Cache(
            folder="/[c]",
            models=models,
            size_bytes=None if models is None else models * 12_500_000,
            limit_bytes=20 * 10**9,
            problem="Permission denied" if models is None else None,
        ),
        notices=(),
    )
    print_report(report, (), as_json=False)
    printed = capsys.readouterr().out
    assert "missing: pip install 'qdqbert[openvino]'" in printed
    assert words in printed


@pytest.mark.parametrize(
    "words", [["--help"], ["quantize", "--help"], ["doctor"], ["doctor", "--json"]]
)
def test_a_command_ends_quietly_if_nobody_reads_its_output(monkeypatch, capsys, words) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        with pytest.raises(SystemExit) as stop:
            main(words)
        assert stop.value.code == 141
    assert capsys.readouterr().err.replace("Looking at this machine ...\n", "") == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["quantize", "--engine", "native"],
            "Error: `--engine` is an option of `qdqbert evaluate`, `qdqbert benchmark`, "
            "`qdqbert run`, `qdqbert serve`, not of `qdqbert quantize`. Did you mean `--target`?\n",
        ),
        (
            ["serve", "--recipe=full"],
            "Error: `--recipe` is an option of `qdqbert quantize`, `qdqbert analyze`, "
            "`qdqbert train`, not of `qdqbert serve`.\n",
        ),
        (
            ["train", "--max-steps", "10"],
            "Error: `--max-steps` is no option of `qdqbert train`. Did you mean "
            "`--max-train-examples`?\n",
        ),
        (
            ["quantize", "--outptu", "x"],
            "Error: `--outptu` is no option of `qdqbert quantize`. Did you mean `--output`?\n",
        ),
        (
            # Its name would be missing, too.
            ["run", "m", "x.txt", "--ouput", "x.csv"],
            "Error: `--ouput` is no option of `qdqbert run`. Did you mean `--output`?\n",
        ),
        (
            ["run", "m", "--precision=float"],
            "Error: `--precision` is no option of `qdqbert run`. Did you mean `--target float`?\n",
        ),
        (["run", "m", "--qqq"], "Error: `--qqq` is no option of `qdqbert run`.\n"),
    ],
)
def test_an_option_of_another_command_is_recognized(capsys, words, message) -> None:
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    assert capsys.readouterr().err == message
