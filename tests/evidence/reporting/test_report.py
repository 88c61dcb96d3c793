"""What `print` and a notebook show of every report."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from qdqbert.evidence.agreement import Agreement
from qdqbert.evidence.checksums import FileCheck
from qdqbert.evidence.latency import Timing
from qdqbert.evidence.reporting.analyze import AnalyzeReport, Cost, UnitReport
from qdqbert.evidence.reporting.benchmark import BenchmarkReport
from qdqbert.evidence.reporting.doctor import Cache, DoctorReport, Part
from qdqbert.evidence.reporting.export import ExportReport
from qdqbert.evidence.reporting.push import PushReport
from qdqbert.evidence.reporting.report import Report, json_ready
from qdqbert.evidence.reporting.run import RunReport
from qdqbert.evidence.reporting.serve import ServeReport
from qdqbert.evidence.reporting.train import TrainReport
from qdqbert.evidence.reporting.verify import FidelityCheck, VerifyReport, VersionCheck
from qdqbert.tasks.task import Metric

COST = Cost(sqnr_db=31.25, flips_percent=1.5, drop=-0.25)
ERROR = dataclasses.replace(COST, drop=0.00123, is_error=True)
# A report of each command, and what is in one of its lines, or in one of the table's rows.
REPORTS: tuple[tuple[Report, tuple[str, ...]], ...] = (
    (
        AnalyzeReport(
            model="./my-model",
            task="text-classification",
            target="portable",
            recipe="linear",
            metric="f1",
            examples=8,
            whole=dataclasses.replace(COST, sqnr_db=math.inf),
            units=(
                UnitReport(
                    name="layer.0", sites=("s",), share_percent=12.5, alone=COST, left=ERROR
                ),
            ),
            notices=("Few <examples>.",),
        ),
        (
            "layer.0 12.5 % 31.2 dB, 1.50 % changed, f1 +0.25",
            "changed, f1 +0.00123",
            "everything 100.0 % equal, 1.50 %",
        ),
    ),
    (
        BenchmarkReport(
            timings=(
                Timing(
                    name="int8",
                    engine="native",
                    precision="float32",
                    batch=8,
                    sequence=32,
                    median_ms=2.5,
                    rounds_ms=(2.5,),
                ),
            ),
            speedups=(1.0,),
            threads=2,
            notices=("Few <examples>.",),
        ),
        ("Median latency, 2 threads", "8 x 32 int8 native float32 2.50 ms 1.00 x"),
    ),
    (
        DoctorReport(
            verdict="INT8 is fast.",
            cpu="Example CPU",
            cpu_features={"avx2": "256 bits"},
            cores=2,
            gpus=("Example GPU",),
            system="Linux",
            python="3.11.0",
            engines=(
                Part(
                    name="openvino",
                    purpose="an engine",
                    version=None,
                    details=(),
                    install="pip install 'qdqbert[openvino]'",
                ),
            ),
            extras=(),
            cache=Cache(folder="/c", models=1, size_bytes=12_500_000, limit_bytes=10**9),
            notices=("Few <examples>.",),
        ),
        (
            "INT8 is fast.",
            "CPU Example CPU, 2 cores",
            "openvino missing: pip install 'qdqbert[openvino]' an engine",
        ),
    ),
    (
        ExportReport(
            model="./my-int8",
            to="openvino",
            target="openvino",
            task="feature-extraction",
            name="my",
            inputs=("texts",),
            outputs=("embeddings",),
            max_length=128,
            agreement=(
                Agreement(output="embeddings", texts=4, sqnr_db=math.inf, worst_sqnr_db=99.5),
            ),
            files={"model.xml": 12_500_000},
            size_bytes=12_500_000,
            usage="import openvino",
            notices=("Few <examples>.",),
            directory="out",
        ),
        ("embeddings 4 equal 99.5 dB", "1 file, 12.5 MB", "import openvino", "Written to out"),
    ),
    (
        PushReport(
            model="./my-int8",
            repo="me/my-int8",
            files={"model.onnx": 12_500_000},
            size_bytes=12_500_000,
            url=None,
            notices=("Few <examples>.",),
        ),
        ("./my-int8 to me/my-int8", "Nothing was uploaded.", "model.onnx 12.5 MB", "all 12.5 MB"),
    ),
    (
        RunReport(
            model="./my-int8",
            task="text-classification",
            engine="native",
            target="native",
            input="a.csv",
            output="b.csv",
            rows=1200,
            skipped=0,
            truncated=0,
            tokens=24_000,
            resumed_rows=1,
            seconds=2.0,
            rows_per_second=600.0,
            tokens_per_second=12_000.0,
            notices=("Few <examples>.",),
        ),
        ("my-int8: a.csv to b.csv", "Continued after 1 row.", "1,200 24,000 2.0 600 12,000"),
    ),
    (
        ServeReport(requests=1, inputs=2, tokens=1024, seconds=3.0),
        ("Answered 1 request with 2 inputs (1,024 tokens) in 3 s.",),
    ),
    (
        TrainReport(
            directory="out",
            checkpoint="./my-model",
            task="text-classification",
            training_examples=16,
            evaluation_examples=4,
            quantizers=20,
            steps=12,
            resumed_at=None,
            before=(Metric(name="accuracy", value=50.0, examples=4),),
            after=(Metric(name="accuracy", value=87.5, examples=4),),
            notices=("Few <examples>.",),
        ),
        ("my-model: QAT with 20 quantizers", "accuracy 50.00 87.50", "Written to out"),
    ),
    (
        VerifyReport(
            model="./my-int8",
            files=(
                FileCheck(name="model.onnx", verdict="changed"),
                FileCheck(name="config.json", verdict="intact"),
            ),
            has_checksums=True,
            versions=(VersionCheck(name="numpy", stored="2.0", installed=None),),
            fidelity=(
                FidelityCheck(
                    target="portable",
                    engine="onnxruntime",
                    stored_db=40.0,
                    sqnr_db=39.5,
                    lowest_db=37.0,
                ),
            ),
            cpu="Example CPU",
            cpu_features=(),
            notices=("Few <examples>.",),
        ),
        (
            "Not verified.",
            "model.onnx changed",
            "numpy 2.0 not installed",
            "portable on onnxruntime 40.0 dB 39.5 dB 37.0 dB",
        ),
    ),
)


@pytest.mark.parametrize(("report", "words"), REPORTS, ids=lambda each: type(each).__name__)
def test_print_shows_the_tables_and_a_notebook_the_page(report, words) -> None:
    printed = " ".join(str(report).replace("│", " ").split())
    for each in words:
        assert each in printed
    html = report._repr_html_()
    assert html.startswith("<style>.qdqbert {")
    assert '<div class="qdqbert"><h1>' in html
    assert "<html" not in html
    if hasattr(report, "notices"):
        assert "Note: Few <examples>." in printed
        assert "Few &lt;examples&gt;." in html
    # The fields stay readable, and are the JSON.
    assert repr(report).startswith(f"{type(report).__name__}(")
    json.dumps(json_ready(report), allow_nan=False)


def test_no_report_is_missing(quantize_report, evaluate_report) -> None:
    tested = {type(each) for each, _ in REPORTS} | {type(quantize_report), type(evaluate_report)}
    assert tested == {each for each in Report.__subclasses__() if each.__module__.startswith("qdq")}
