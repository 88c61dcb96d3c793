"""`qdqbert benchmark`."""

from __future__ import annotations

from qdqbert.cli._command import Command
from qdqbert.cli._tables import benchmark_table
from qdqbert.verbs.benchmark import benchmark
from qdqbert.verbs.benchmark.options import BenchmarkOptions

COMMAND = Command(
    name="benchmark",
    function=benchmark,
    options=BenchmarkOptions,
    positional=("models",),
    render=benchmark_table,
    example=(
        "qdqbert benchmark ./my-classifier ./my-classifier-int8 --batch 1,8 --sequence 32,128 "
        "--threads 2"
    ),
)
