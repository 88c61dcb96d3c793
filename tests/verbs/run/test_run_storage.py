"""Inputs and outputs in object storage, which has neither renaming, appending nor locks."""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import qdqbert
from python_process import call_python
from qdqbert.common.errors import DataFileError, OutputExistsError, UserInputError
from qdqbert.common.storage import RemotePath, place_of, remove_tree
from qdqbert.data.tables.inputs import open_source
from qdqbert.data.tables.outputs import Writer
from qdqbert.verbs.run.parts import Parts


@pytest.fixture
def bucket() -> RemotePath:
    """An empty folder in memory."""
    place = place_of("memory://bucket/run")
    assert isinstance(place, RemotePath)
    remove_tree(place)
    return place


def contents(place: RemotePath) -> dict[str, bytes]:
    """Return the files below a folder, but for those that identify a run."""
    return {
        str(each).removeprefix(f"{place}/"): each.read_bytes()
        for each in place.find()
        if not each.name.endswith(".run.json")
    }


def local_contents(folder: Path) -> dict[str, bytes]:
    return {
        each.relative_to(folder).as_posix(): each.read_bytes()
        for each in folder.rglob("*")
        if each.is_file() and not each.name.endswith(".run.json")
    }


class Killed(BaseException):
    """The process is stopped."""


def kill_after(monkeypatch: pytest.MonkeyPatch, method: str, count: int) -> None:
    """Stop at the call of a method of `Parts` after a number of calls."""
    calls = iter(range(count))
    function = getattr(Parts, method)

    def stopping(*args: Any) -> Any:
        if next(calls, None) is None:
            raise Killed
        return function(*args)

    monkeypatch.setattr(Parts, method, stopping)


_OUTPUTS = ["a.jsonl", "a.csv.gz", "a.parquet", "folder/", "folder/:csv", "parts/:lang"]


def options_of(output: str) -> tuple[str, dict[str, Any]]:
    name, _, extra = output.partition(":")
    if extra == "lang":
        return name, {"partition_by": ["lang"]}
    return name, {"output_format": extra} if extra else {}


@pytest.mark.parametrize("output", _OUTPUTS)
def test_outputs_are_those_of_this_machine(
    classifier, write_objects, tmp_path, bucket, output
) -> None:
    name, options = options_of(output)
    rows = [{"id": i, "text": f"the cat {i}", "lang": "deen"[i % 2 * 2 :][:2]} for i in range(11)]
    source = write_objects(rows)
    (bucket / "in.jsonl").write_bytes(source.read_bytes())
    (tmp_path / "out").mkdir()
    report = qdqbert.run(classifier, source, f"{tmp_path}/out/{name}", **options)
    remote = qdqbert.run(classifier, f"{bucket}/in.jsonl", f"{bucket}/out/{name}", **options)
    assert (remote.rows, remote.tokens) == (report.rows, report.tokens)
    assert (remote.input, remote.output) == (f"{bucket}/in.jsonl", f"{bucket}/out/{name}")
    assert contents(bucket / "out") == local_contents(tmp_path / "out")
    assert not Path("memory:").exists()


@pytest.mark.parametrize("method", ["add", "_make_file", "_remove_earlier", "publish", "remove"])
@pytest.mark.parametrize("output", _OUTPUTS)
@pytest.mark.usual("folder/-_make_file", "a.parquet-publish", "a.csv.gz-add", "parts/:lang-remove")
def test_a_run_that_is_killed_continues(
    classifier, write_objects, bucket, monkeypatch, output, method
) -> None:
    name, options = options_of(output)
    options |= {"on_error": "skip"}
    rows = [{"id": i, "text": f"the cat {i}" if i % 5 else "", "lang": "en"} for i in range(21)]
    source = write_objects(rows)
    (bucket / "in.jsonl").write_bytes(source.read_bytes())
    qdqbert.run(classifier, f"{bucket}/in.jsonl", f"{bucket}/out/{name}", **options)
    expected = contents(bucket / "out")
    remove_tree(bucket / "out")
    for count in range(8):
        with monkeypatch.context() as patch:
            kill_after(patch, method, count)
            try:
                qdqbert.run(
                    classifier, f"{bucket}/in.jsonl", f"{bucket}/out/{name}", resume=True, **options
                )
            except Killed:
                continue
            break
    else:
        report = qdqbert.run(
            classifier, f"{bucket}/in.jsonl", f"{bucket}/out/{name}", resume=True, **options
        )
        assert report.rows in (16, 0)
    assert contents(bucket / "out") == expected


@pytest.mark.parametrize("suffix", ["txt", "csv", "jsonl", "parquet", "txt.gz"])
def test_folders_and_patterns_are_read(classifier, tmp_path, bucket, read_objects, suffix) -> None:
    qdqbert_rows = [{"text": f"the cat {i}"} for i in range(3)]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in qdqbert_rows))
    made = tmp_path / f"a.{suffix}"
    if suffix.startswith("txt"):
        text = "".join(f"{row['text']}\n" for row in qdqbert_rows).encode()
        made.write_bytes(gzip.compress(text) if suffix.endswith("gz") else text)
    else:
        qdqbert.run(classifier, tmp_path / "rows.jsonl", made)
    for place in ("in/lang=de/a", "in/lang=en/a", "in/_SUCCESS/a", "in/lang=en/.hidden"):
        (bucket / f"{place}.{suffix}").write_bytes(made.read_bytes())
    for given in ("in/", "in", f"in/lang=*/a.{suffix}"):
        output = tmp_path / "out.jsonl"
        report = qdqbert.run(
            classifier, f"{bucket}/{given}", output, text_column="text", overwrite=True
        )
        assert report.rows == 6
        assert [row["lang"] for row in read_objects(output)] == ["de"] * 3 + ["en"] * 3


def test_an_output_that_exists_is_kept(classifier, reviews, bucket) -> None:
    (bucket / "a.jsonl").write_bytes(b"mine")
    with pytest.raises(OutputExistsError, match=r"'memory://bucket/run/a\.jsonl'` already exists"):
        qdqbert.run(classifier, reviews, f"{bucket}/a.jsonl")
    (bucket / "folder/mine.txt").write_bytes(b"mine")
    with pytest.raises(OutputExistsError, match=r"files that `run` did not write, .*'mine\.txt'"):
        qdqbert.run(classifier, reviews, f"{bucket}/folder/", overwrite=True)
    assert (bucket / "folder/mine.txt").read_bytes() == b"mine"
    qdqbert.run(classifier, reviews, f"{bucket}/a.jsonl", overwrite=True)
    assert len((bucket / "a.jsonl").read_bytes().splitlines()) == 11


def test_an_input_is_not_overwritten(classifier, bucket) -> None:
    (bucket / "in/a.jsonl").write_bytes(b'{"text": "the cat"}\n')
    for output in ("in/a.jsonl", "in/"):
        with pytest.raises(OutputExistsError, match=r"would overwrite .*'memory://"):
            qdqbert.run(classifier, f"{bucket}/in/a.jsonl", f"{bucket}/{output}", overwrite=True)


def test_a_missing_input_is_named(classifier, bucket, tmp_path) -> None:
    with pytest.raises(DataFileError, match=r"`input='memory://bucket/run/none\.txt'` does not"):
        qdqbert.run(classifier, f"{bucket}/none.txt", tmp_path / "a.jsonl")


@pytest.mark.parametrize("differs", [True, False])
@pytest.mark.parametrize("options", [{}, {"partition_by": ["lang"]}])
def test_finished_files_are_opened_only_if_their_types_differ(
    classifier, write_objects, bucket, monkeypatch, differs, options
) -> None:
    rows: list[dict[str, Any]] = [{"n": i, "text": f"the cat {i}", "lang": "en"} for i in range(11)]
    rows[5]["n"] = None
    rows[9]["n"] = 0.5 if differs else 9
    source = write_objects(rows)
    opened: list[str] = []
    open_remote = RemotePath.open

    def noted(place: RemotePath, mode: str = "rb") -> Any:
        opened.append(place.name)
        return open_remote(place, mode)

    monkeypatch.setattr(RemotePath, "open", noted)
    with monkeypatch.context() as patch:
        kill_after(patch, "_make_file", 2)
        with pytest.raises(Killed):
            qdqbert.run(classifier, source, f"{bucket}/out/", **options)
    qdqbert.run(classifier, source, f"{bucket}/out/", resume=True, **options)
    assert any(each.startswith("part-") for each in opened) == differs
    tables = [pq.read_table(io.BytesIO(x.read_bytes())) for x in (bucket / "out").find()]
    assert len(tables) == 3
    kind = pa.float64() if differs else pa.int64()
    assert {each.schema.field("n").type for each in tables} == {kind}


def test_a_run_that_may_go_on_is_not_called_interrupted(
    classifier, write_objects, bucket, monkeypatch
) -> None:
    source = write_objects([{"text": f"the cat {i}"} for i in range(11)])
    with monkeypatch.context() as patch:
        kill_after(patch, "_make_file", 1)
        with pytest.raises(Killed):
            qdqbert.run(classifier, source, f"{bucket}/out/")
    message = (
        r"parts of a run that did not end\. It may still be running: it has written \d seconds "
        r"ago, so make sure .*\. If it was interrupted: Pass `resume=True` to continue it, or "
    )
    with pytest.raises(OutputExistsError, match=message):
        qdqbert.run(classifier, source, f"{bucket}/out/")


@pytest.mark.slow
def test_a_missing_bucket_is_named(s3_bucket) -> None:
    place = place_of(f"{s3_bucket}/in/a.txt")
    assert isinstance(place, RemotePath)
    place.write_bytes(b"the cat\n")
    for name, reason in (
        (f"{s3_bucket}/none", ""),
        ("s3://none-0/in", ": there is no bucket 'none-0'"),
    ):
        for given in (name, f"{name}/a.txt", f"{name}/*.txt"):
            with pytest.raises(
                DataFileError, match=rf"`input='.*'` does not exist{reason}\. Check"
            ):
                open_source(given)
    source = open_source(f"{s3_bucket}/in/")
    place.unlink()
    bucket = s3_bucket.removeprefix("s3://")
    place._system.rmdir(bucket)
    for reader, where in (
        (None, "any more"),
        ("node-3", "on node-3, or that machine cannot see it"),
    ):
        read = dataclasses.replace(source, reader=reader)
        with pytest.raises(
            DataFileError, match=f"not exist {where}: there is no bucket '{bucket}'"
        ):
            list(read.rows())


def test_an_input_that_changes_is_noticed(classifier, bucket, monkeypatch, tmp_path) -> None:
    (bucket / "in.jsonl").write_bytes(b'{"text": "the cat"}\n' * 9)
    block = Writer.block

    def changing(*args: Any) -> bytes:
        (bucket / "in.jsonl").write_bytes(b'{"text": "the dog"}\n' * 9)
        return block(*args)

    monkeypatch.setattr(Writer, "block", changing)
    with pytest.raises(UserInputError, match="or the model changed during the run"):
        qdqbert.run(classifier, f"{bucket}/in.jsonl", tmp_path / "a.jsonl")


def test_an_error_of_the_storage_names_the_output(classifier, reviews, bucket, monkeypatch) -> None:
    class BrokenError(Exception):
        pass

    def fail(*args: Any) -> None:
        raise BrokenError("no credentials")

    from fsspec.implementations.memory import MemoryFileSystem

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", fail)
    message = r"`output='memory://.*'` cannot be written: BrokenError: no credentials"
    with pytest.raises(UserInputError, match=message) as error:
        qdqbert.run(classifier, reviews, f"{bucket}/a.jsonl")
    assert error.value.argument == "output"


# Ends itself with a signal after some files of the folder.
_KILLED = """
import os, signal, sys
from qdqbert.cli.app import main
from qdqbert.verbs.run import parts

parts.FOLDER_ROWS = 2048
make, count = parts.Parts._make_file, int(sys.argv.pop(1))
made = []

def make_and_die(self):
    if len(made) == count:
        os.kill(os.getpid(), signal.SIGKILL)
    made.append(make(self))

parts.Parts._make_file = make_and_die
main(sys.argv[1:])
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["out/", "a.parquet"])
def test_a_process_that_is_killed_continues_on_s3(quantized, s3_bucket, tmp_path, name) -> None:
    folder = str(quantized("classifier").directory)
    text = "".join(f'{{"id": {i}, "text": "the cat {i % 50}"}}\n' for i in range(9000)).encode()
    (tmp_path / "in.jsonl").write_bytes(text)
    source = place_of(f"{s3_bucket}/in/a.jsonl")
    assert isinstance(source, RemotePath)
    source.write_bytes(text)
    local, remote = f"{tmp_path}/{name}", f"{s3_bucket}/{name}"

    def call(count: int, given: str, output: str) -> subprocess.CompletedProcess[str]:
        words = ["run", folder, "-i", given, "-o", output, "--resume", "--engine", "onnxruntime"]
        return call_python("-c", _KILLED, count, *words, timeout=300)

    assert call(1000, str(tmp_path / "in.jsonl"), local).returncode == 0
    for _ in range(3):
        assert call(1, f"{s3_bucket}/in/", remote).returncode == -9
    done = call(1000, f"{s3_bucket}/in/", remote)
    assert done.returncode == 0, done.stderr
    if name.endswith("/"):
        found = place_of(remote)
        assert isinstance(found, RemotePath)
        assert contents(found) == local_contents(Path(local))
        assert len(contents(found)) == 5
    else:
        output = place_of(remote)
        assert isinstance(output, RemotePath)
        assert output.read_bytes() == Path(local).read_bytes()
    assert call(0, f"{s3_bucket}/in/", remote).returncode == 0
