"""`run` on Ray: windows of rows in workers, and a real cluster of which a worker is killed."""

from __future__ import annotations

import dataclasses
import json
import pickle
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import qdqbert
from python_process import call_python, run_python
from qdqbert.common.errors import DataFileError, UserInputError
from qdqbert.data.tables.inputs import START, open_source
from qdqbert.data.tables.parquet import import_pyarrow
from qdqbert.loading.answers import load_model
from qdqbert.verbs.run import cluster, pipeline
from qdqbert.verbs.run.cluster import WindowWorker, file_groups, read_windows
from qdqbert.verbs.run.windows import Block


@pytest.fixture
def folder(tmp_path) -> Path:
    """Two files with 11 rows in all, of which two are bad."""
    path = tmp_path / "rows"
    path.mkdir()
    lines = [json.dumps({"id": index, "text": f"the cat {index}"}) for index in range(11)]
    lines[2], lines[9] = "{", json.dumps({"id": 9, "text": " "})
    (path / "a.jsonl").write_text("\n".join(lines[:6]))
    (path / "b.jsonl").write_text("\n".join(lines[6:]))
    return path


@pytest.fixture
def in_process(monkeypatch) -> list[Any]:
    """Run the windows in this process instead of a cluster; return what the worker got."""
    seen = []

    def blocks(run, source, start):
        options = dataclasses.replace(run.options, engine="onnxruntime", threads=1)
        worker = WindowWorker(options, run.columns, run.writer)
        for each in file_groups(source, start, run.model.window):
            for window in read_windows({"value": [pickle.dumps(each)]}):
                seen.append(pickle.loads(window["value"][0]))
                (value,) = worker(window)["value"]
                block = pickle.loads(value)
                if isinstance(block, UserInputError):
                    raise block
                assert isinstance(block, Block)
                yield block

    monkeypatch.setattr(pipeline, "cluster_blocks", blocks)
    # Ray does not have to be installed for this.
    monkeypatch.setattr(pipeline, "import_ray", lambda: None)
    return seen


def test_skipped_rows_are_counted_on_ray(classifier, folder, tmp_path, in_process) -> None:
    options: dict[str, Any] = {"on_error": "skip", "engine": "onnxruntime", "ray": "auto"}
    with pytest.raises(DataFileError, match=r"`max_errors=1`: 2 rows .* Line 4 of `.*b.jsonl`"):
        qdqbert.run(classifier, folder, tmp_path / "a.jsonl", max_errors=1, **options)
    options["resume"] = True
    assert qdqbert.run(classifier, folder, tmp_path / "a.jsonl", max_errors=2, **options).rows == 9


def rows_of(path: Path) -> list[Any]:
    return [dict(row.values) for row in open_source(str(path)).rows()]


def test_answers_are_those_of_a_run_without_ray(classifier, folder, tmp_path, in_process) -> None:
    options: dict[str, Any] = {"on_error": "skip", "engine": "onnxruntime"}
    expected = qdqbert.run(classifier, folder, tmp_path / "a.parquet", **options)
    report = qdqbert.run(classifier, folder, tmp_path / "b.parquet", ray="auto", **options)
    assert [row["id"] for row in rows_of(tmp_path / "b.parquet")] == [0, 1, 3, 4, 5, 6, 7, 8, 10]
    assert rows_of(tmp_path / "b.parquet") == [
        {**row, "score": pytest.approx(row["score"], abs=1e-6)}
        for row in rows_of(tmp_path / "a.parquet")
    ]
    for name in ("rows", "skipped", "truncated", "tokens"):
        assert getattr(report, name) == getattr(expected, name)
    errors = [(tmp_path / f"{name}.parquet.errors.jsonl").read_text() for name in "ab"]
    assert errors[0] == errors[1]
    assert [len(window) for window in in_process] == [4, 4, 3]
    assert in_process[-1][-1].position == open_source(str(folder)).size


def test_the_first_bad_row_stops_the_run(classifier, folder, tmp_path, in_process) -> None:
    (folder / "a.jsonl").write_text("\n".join(['"the cat"'] * 200 + ["{"]))
    with pytest.raises(UserInputError, match=r"Line 201 of `.*/a\.jsonl`: .* Correct the row"):
        qdqbert.run(classifier, folder, tmp_path / "a.csv", ray="auto")


def test_a_run_continues_in_the_middle_of_a_file(
    classifier, folder, tmp_path, in_process, monkeypatch
) -> None:
    options: dict[str, Any] = {"on_error": "skip", "engine": "onnxruntime", "ray": "auto"}
    qdqbert.run(classifier, folder, tmp_path / "a.jsonl", **options)
    (tmp_path / "a.jsonl").rename(tmp_path / "expected")
    (tmp_path / "a.jsonl.errors.jsonl").unlink()
    answer = WindowWorker._answer

    def fail(worker, rows):
        if rows[0].number == 5:
            raise KeyboardInterrupt
        return answer(worker, rows)

    monkeypatch.setattr(WindowWorker, "_answer", fail)
    with pytest.raises(KeyboardInterrupt):
        qdqbert.run(classifier, folder, tmp_path / "a.jsonl", **options)
    monkeypatch.setattr(WindowWorker, "_answer", answer)
    with pytest.raises(UserInputError, match="`ray` was True and is False"):
        qdqbert.run(
            classifier, folder, tmp_path / "a.jsonl", **{**options, "ray": None}, resume=True
        )
    report = qdqbert.run(classifier, folder, tmp_path / "a.jsonl", **options, resume=True)
    assert report.resumed_rows == 4
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "expected").read_bytes()


def test_files_are_read_in_groups_of_limited_size(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(cluster, "_GROUP_FILES", 3)
    monkeypatch.setattr(cluster, "_GROUP_BYTES", 10)
    for index, size in enumerate([2, 2, 2, 2, 9, 2, 30, 2, 2]):
        (tmp_path / f"{index}.txt").write_text(f"{index}".ljust(size - 1) + "\n")
    source = open_source(str(tmp_path))
    groups = file_groups(source, START, 2)
    assert [list(each.names.values()) for each in groups] == [
        [str(tmp_path / f"{index}.txt") for index in indices]
        for indices in ([0, 1, 2], [3], [4], [5], [6], [7, 8])
    ]
    rows = [[row for window in each.windows() for row in window] for each in groups]
    assert [row for group in rows for row in group] == list(source.rows())
    assert [[len(window) for window in each.windows()] for each in groups[::5]] == [[2, 1], [2]]
    for index, row in enumerate(source.rows()):
        after = source.cursor(row.file, row.number, row.position)
        rest = [
            each
            for group in file_groups(source, after, 2)
            for window in group.windows()
            for each in window
        ]
        assert rest == list(source.rows())[index + 1 :]
        # Later groups are those of a run that was not interrupted.
        left = file_groups(source, after, 2)
        assert left[1:] == groups[len(groups) - len(left) + 1 :]


def test_all_groups_of_files_need_the_columns_of_the_first_one(
    classifier, tmp_path, in_process, monkeypatch
) -> None:
    monkeypatch.setattr(cluster, "_GROUP_FILES", 1)
    pa = import_pyarrow()
    (tmp_path / "in").mkdir()
    for name, values in (("a", ["the cat"] * 5), ("b", [1, 2, 3]), ("c", ["a dog"] * 5)):
        pa.parquet.write_table(pa.table({"text": values}), tmp_path / f"in/{name}.parquet")
    report = qdqbert.run(
        classifier, tmp_path / "in", tmp_path / "a.jsonl", on_error="skip", ray="auto"
    )
    assert (report.rows, report.skipped) == (10, 3)


def test_errors_in_workers_are_those_of_the_user(classifier, folder) -> None:
    (source,) = file_groups(open_source(str(folder / "a.jsonl")), START, 4)
    (folder / "a.jsonl").unlink()
    (packed,) = read_windows({"value": [pickle.dumps(source)]})
    failure = pickle.loads(packed["value"][0])
    # It may never have been there.
    where = f"does not exist on {socket.gethostname()}, or that machine cannot see it."
    assert str(failure) == f"File `{folder / 'a.jsonl'}` {where}"
    worker = WindowWorker(None, None, None)  # type: ignore[arg-type]
    assert pickle.loads(worker(packed)["value"][0]).args == failure.args


def test_a_worker_answers_windows_at_the_same_time_with_one_model(
    classifier, folder, tmp_path, monkeypatch
) -> None:
    workers: list[WindowWorker] = []

    def keep(run, source, start):
        workers.append(WindowWorker(run.options, run.columns, run.writer))
        yield from ()

    monkeypatch.setattr(pipeline, "cluster_blocks", keep)
    monkeypatch.setattr(pipeline, "import_ray", lambda: None)
    options: dict[str, Any] = {"on_error": "skip", "engine": "onnxruntime", "ray": "auto"}
    qdqbert.run(classifier, folder, tmp_path / "a.jsonl", **options)
    (worker,) = workers
    loaded = []

    def load(options):
        loaded.append(load_model(options))
        return loaded[-1]

    monkeypatch.setattr(cluster, "load_model", load)
    windows = [
        window
        for each in file_groups(open_source(str(folder)), START, 4)
        for window in read_windows({"value": [pickle.dumps(each)]})
    ]
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(worker, windows * 4))
    assert len(loaded) == 1
    assert answers == [worker(window) for window in windows] * 4


def test_stdin_is_refused(classifier) -> None:
    with pytest.raises(UserInputError, match="nodes of a cluster cannot read stdin") as caught:
        qdqbert.run(classifier, "-", "a.jsonl", ray="auto")
    assert caught.value.argument == "ray"


# Kills a worker when the first answers are there, and hundreds of windows are not.
KILL_A_WORKER = """
import dataclasses, contextlib, json, os, signal, sys, warnings
from pathlib import Path

import ray

import qdqbert
from qdqbert.loading import load

# Those of calls of this package: what Ray will remove.
warnings.filterwarnings("error", module="qdqbert")
model, rows, output = sys.argv[1:]
for engine, schedule in load._SCHEDULES.items():
    load._SCHEDULES[engine] = dataclasses.replace(schedule, window=16)
ray.init(address="local", num_cpus=2, include_dashboard=False)
killed, seen = [], set()


def workers():
    # Workers of other clusters on this machine have other parents.
    parents, found = {}, []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if (path / "cmdline").read_bytes().startswith(b"ray::MapWorker"):
                found.append(int(path.name))
    for pid in found:
        parent = pid
        while parent and parent != os.getpid():
            parent = parents.get(parent, 0)
        if parent:
            yield pid


class KillOne:
    @contextlib.contextmanager
    def stage(self, title, total=None):
        yield lambda: None

    @contextlib.contextmanager
    def throughput(self, title, total=None):
        def advance(**done):
            pids = set(workers())
            seen.update(pids)
            if not killed:
                killed.append(min(pids))
                os.kill(killed[0], signal.SIGKILL)

        yield advance


report = qdqbert.run(
    model, rows, output, ray="auto", threads=1, engine="onnxruntime", on_error="skip",
    progress=KillOne(),
)
assert killed and len(seen) > 1
assert ray.is_initialized()
print(json.dumps([report.rows, report.skipped]))
"""


@pytest.mark.slow
def test_a_killed_worker_loses_and_repeats_no_row(quantized, tmp_path) -> None:
    pytest.importorskip("ray")
    model = quantized("classifier").directory
    folder = tmp_path / "rows"
    folder.mkdir()
    for name, start in (("a", 0), ("b", 3000)):
        rows = [{"id": start + index, "text": f"the cat {index}"} for index in range(3000)]
        rows[7]["text"] = ""
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    printed = run_python("-c", KILL_A_WORKER, model, folder, f"{tmp_path}/answers/", timeout=300)
    # Ray prints lines about the worker, too.
    assert "[5998, 2]" in printed.splitlines()
    answered = rows_of(tmp_path / "answers")
    assert [row["id"] for row in answered] == [
        each for each in range(6000) if each not in (7, 3007)
    ]
    qdqbert.run(model, folder, tmp_path / "local.jsonl", engine="onnxruntime", on_error="skip")
    assert [row["label"] for row in answered] == [
        row["label"] for row in rows_of(tmp_path / "local.jsonl")
    ]


@pytest.mark.slow
def test_the_command_starts_ray_and_prints_only_its_report(quantized, reviews, tmp_path) -> None:
    pytest.importorskip("ray")
    output = tmp_path / "a.parquet"
    done = call_python(
        *("-m", "qdqbert", "run", quantized("classifier").directory),
        *("-i", reviews, "-o", output, "--ray", "local", "--json"),
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == 11
    assert "core_worker" not in done.stderr
    assert [row["id"] for row in rows_of(output)] == list(range(11))


@pytest.mark.slow
def test_shards_are_tasks_of_a_cluster(quantized, tmp_path) -> None:
    ray = pytest.importorskip("ray")
    pa = import_pyarrow()
    table = pa.table({"text": [f"the cat {index}" for index in range(80)]})
    pa.parquet.write_table(table, tmp_path / "in.parquet", row_group_size=10)
    model = str(quantized("classifier").directory)
    given, output = str(tmp_path / "in.parquet"), f"{tmp_path}/out/"
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        run = ray.remote(num_cpus=1, max_retries=5)(qdqbert.run)
        tasks = [
            run.remote(
                model,
                given,
                output,
                shard=f"{index}/4",
                threads=1,
                engine="onnxruntime",
                resume=True,
            )
            for index in range(4)
        ]
        assert [report.rows for report in ray.get(tasks)] == [20] * 4
    finally:
        ray.shutdown()
    found = pa.parquet.read_table(tmp_path / "out")
    assert found.column("text").to_pylist() == table.column("text").to_pylist()


@pytest.mark.slow
def test_a_stopped_command_keeps_its_parts_and_continues(quantized, tmp_path) -> None:
    pytest.importorskip("ray")
    model = quantized("classifier").directory
    folder = tmp_path / "rows"
    folder.mkdir()
    for file in range(600):
        lines = (json.dumps({"id": file * 100 + each, "text": "the cat"}) for each in range(100))
        (folder / f"{file:03d}.jsonl").write_text("\n".join(lines))
    command = (sys.executable, "-m", "qdqbert", "run", model, "-i", folder)
    output = tmp_path / "a.jsonl"
    words = list(map(str, [*command, "-o", output, "--ray", "local"]))
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not list(tmp_path.glob(".a.jsonl.parts/rows-*.json")):
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, printed = process.communicate(timeout=120)
    assert process.returncode == 143, printed
    assert "Stopped by SIGTERM. Finished parts are kept. Continue with `--resume`." in printed
    run_python(*words[1:], "--resume", timeout=300)
    run_python(*command[1:], "-o", tmp_path / "b.jsonl", timeout=300)
    assert output.read_bytes() == (tmp_path / "b.jsonl").read_bytes()
