"""A run that is killed at any moment continues without losing or repeating a row."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import gzip
import io
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch

import qdqbert
from python_process import call_python
from qdqbert.common.errors import DataFileError, OutputExistsError, UserInputError
from qdqbert.common.progress import Silent
from qdqbert.data.tables.inputs import Source, open_source
from qdqbert.data.tables.outputs import Writer
from qdqbert.verbs.run import parts, pipeline

PARTS = ".a.jsonl.parts"
ROW = '{"id": 2, "text": "books 2"}'


class Killed(BaseException):
    """The process is stopped."""


def content_of(path: Path) -> dict[str, bytes]:
    """Return the content of all files of a folder, by their names."""
    return {
        each.relative_to(path).as_posix(): each.read_bytes()
        for each in path.rglob("*")
        if each.is_file()
    }


def stop_after(monkeypatch, count: int, error: BaseException) -> None:
    """Raise an error when a number of blocks were written."""
    calls = iter(range(count))
    block = Writer.block

    def stopping(*args: Any) -> bytes:
        if next(calls, None) is None:
            raise error
        return block(*args)

    monkeypatch.setattr(Writer, "block", stopping)


@pytest.fixture
def snapshots(monkeypatch, tmp_path) -> Callable[[Path], Iterator[Path]]:
    """Copy the output folder whenever a file in it was created, renamed or removed.

    A copy is what a process leaves that is killed at this moment.
    """
    taken: list[Path] = []

    def watch(folder: Path) -> list[Path]:
        def after(name: str) -> None:
            function = getattr(Path, name)

            def watched(path: Path, *args: Any, **options: Any) -> Any:
                result = function(path, *args, **options)
                if folder in path.parents and folder.exists():
                    copy = tmp_path / "copies" / str(len(taken))
                    with monkeypatch.context() as patch:
                        patch.undo()
                        shutil.copytree(folder, copy)
                    taken.append(copy)
                return result

            monkeypatch.setattr(Path, name, watched)

        for name in ("replace", "unlink", "mkdir", "rmdir", "open"):
            after(name)
        return taken

    return watch


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv.gz", "a.parquet", "folder"])
@pytest.mark.usual("folder", "a.csv.gz")
def test_a_run_that_is_killed_at_any_moment_can_be_continued(
    classifier, reviews, tmp_path, snapshots, name
) -> None:
    text = reviews.read_text().splitlines()
    text[5] = "{"
    reviews.write_text("\n".join(text))
    target = f"{name}/" if name == "folder" else name
    options: dict[str, Any] = {"on_error": "skip"}
    folder = tmp_path / "out"
    folder.mkdir()
    copies = snapshots(folder)
    report = qdqbert.run(classifier, reviews, f"{folder}/{target}", **options)
    assert (report.rows, report.skipped) == (10, 1)
    expected = content_of(folder)
    taken = list(copies)
    assert len(taken) > 25
    for copy in taken:
        if (copy / f".{name}.parts" / "run.json").exists() or not (copy / name).exists():
            again = qdqbert.run(classifier, reviews, f"{copy}/{target}", resume=True, **options)
            assert (again.rows, again.skipped, again.tokens) == (10, 1, report.tokens)
        else:
            # The output is complete, and files were left to remove.
            again = qdqbert.run(classifier, reviews, f"{copy}/{target}", resume=True, **options)
            assert again.rows == 0
        found = content_of(copy)
        found.pop(f".{name}.parts/lock", None)
        assert found == expected


@pytest.mark.parametrize("blocks", [0, 1, 2])
def test_finished_parts_are_kept(
    classifier, reviews, tmp_path, monkeypatch, read_objects, blocks
) -> None:
    output = tmp_path / "a.jsonl"
    with monkeypatch.context() as patch:
        stop_after(patch, blocks, Killed())
        with pytest.raises(Killed):
            qdqbert.run(classifier, reviews, output)
    left = tmp_path / PARTS
    assert len(list(left.glob("*.data")) if left.exists() else []) == blocks
    report = qdqbert.run(classifier, reviews, output, resume=True)
    assert [row["id"] for row in read_objects(output)] == list(range(11))
    assert report.resumed_rows == 4 * blocks
    assert report.rows == 11
    assert report.rows_per_second == pytest.approx((11 - 4 * blocks) / report.seconds)


def test_an_interrupted_run_gives_the_same_files(
    classifier, reviews, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(parts, "FOLDER_ROWS", 8)
    qdqbert.run(classifier, reviews, f"{tmp_path}/expected/")
    with monkeypatch.context() as patch:
        stop_after(patch, 1, Killed())
        with pytest.raises(Killed):
            qdqbert.run(classifier, reviews, f"{tmp_path}/found/")
    # Four rows are kept, which is half of a file.
    report = qdqbert.run(classifier, reviews, f"{tmp_path}/found/", resume=True)
    assert report.resumed_rows == 4
    expected = content_of(tmp_path / "expected")
    assert sorted(expected) == ["part-00000.parquet", "part-00001.parquet"]
    assert content_of(tmp_path / "found") == expected


@pytest.mark.parametrize("name", ["a.jsonl", "a/"])
def test_a_finished_run_has_nothing_to_continue(classifier, reviews, tmp_path, name) -> None:
    output = f"{tmp_path}/out/{name}"
    qdqbert.run(classifier, reviews, output)
    before = content_of(tmp_path / "out")
    report = qdqbert.run(classifier, reviews, output, resume=True)
    assert report.rows == report.tokens == 0
    assert report.notices == (
        f"`output={output!r}` is complete, and no row was run: there is no interrupted run of it. "
        "Pass `overwrite=True` instead of `resume=True` to write it again.",
    )
    assert content_of(tmp_path / "out") == before


@pytest.mark.parametrize("name", ["a.jsonl", "a/"])
def test_a_finished_run_of_other_options_input_or_model_is_refused(
    classifier, reviews, tmp_path, name
) -> None:
    output = f"{tmp_path}/out/{name}"
    qdqbert.run(classifier, reviews, output, top_k=2)
    before = content_of(tmp_path / "out")
    for changes, message in (
        ({}, "`top_k` was 2 and is None"),
        ({"top_k": 3}, "`top_k` was 2 and is 3"),
        ({"top_k": 2, "threads": 1}, "`threads` was None and is 1"),
    ):
        with pytest.raises(UserInputError, match=f"that has written .* another one: {message}"):
            qdqbert.run(classifier, reviews, output, resume=True, **changes)
    changed = shutil.copytree(classifier, tmp_path / "changed")
    with (changed / "quantization.json").open("a") as file:
        file.write(" ")
    with pytest.raises(UserInputError, match="the model has changed"):
        qdqbert.run(changed, reviews, output, resume=True, top_k=2)
    with reviews.open("a") as file:
        file.write(ROW)
    with pytest.raises(UserInputError, match=r"rows.jsonl' has changed"):
        qdqbert.run(classifier, reviews, output, resume=True, top_k=2)
    assert content_of(tmp_path / "out") == before
    assert qdqbert.run(classifier, reviews, output, overwrite=True, top_k=3).rows == 12


def test_an_output_that_is_older_than_its_input_is_not_taken_for_finished(
    classifier, reviews, tmp_path
) -> None:
    output = tmp_path / "a.jsonl"
    output.write_text("something else")
    os.utime(output, ns=(0, 0))
    with pytest.raises(OutputExistsError, match="there is no interrupted run of it"):
        qdqbert.run(classifier, reviews, output, resume=True)


@pytest.fixture
def interrupted(classifier, reviews, tmp_path, monkeypatch) -> Path:
    """The output of a run that was stopped after its first part."""
    output = tmp_path / "a.jsonl"
    with monkeypatch.context() as patch:
        stop_after(patch, 1, Killed())
        with pytest.raises(Killed):
            qdqbert.run(classifier, reviews, output)
    return output


def test_an_interrupted_run_is_neither_continued_nor_discarded_by_default(
    classifier, reviews, interrupted, read_objects
) -> None:
    message = r"Pass `resume=True` to continue it, or `overwrite=True` to discard it\."
    with pytest.raises(OutputExistsError, match=message):
        qdqbert.run(classifier, reviews, interrupted)
    report = qdqbert.run(classifier, reviews, interrupted, overwrite=True)
    assert report.resumed_rows == 0
    assert len(read_objects(interrupted)) == 11


def test_another_run_is_not_continued(classifier, reviews, interrupted, write_objects) -> None:
    with pytest.raises(UserInputError, match="`top_k` was None and is 2") as caught:
        qdqbert.run(classifier, reviews, interrupted, resume=True, top_k=2)
    assert caught.value.argument == "resume"
    other = write_objects(["the cat"], "other.jsonl")
    with pytest.raises(
        UserInputError, match=r"`input` was .*rows.jsonl'\] and is .*other.jsonl'\]"
    ):
        qdqbert.run(classifier, other, interrupted, resume=True)
    with reviews.open("a") as file:
        file.write(ROW)
    with pytest.raises(UserInputError, match=r"rows.jsonl' has changed"):
        qdqbert.run(classifier, reviews, interrupted, resume=True)


def test_a_run_of_another_model_is_not_continued(
    classifier, reviews, interrupted, tmp_path
) -> None:
    changed = shutil.copytree(classifier, tmp_path / "changed")
    with (changed / "quantization.json").open("a") as file:
        file.write(" ")
    with pytest.raises(UserInputError, match="the model has changed"):
        qdqbert.run(changed, reviews, interrupted, resume=True)


def test_a_run_of_a_checkpoint_with_other_weights_is_not_continued(
    own_cache, checkpoint_copy, reviews, tmp_path, monkeypatch, small_windows
) -> None:
    folder, output = checkpoint_copy("classifier"), tmp_path / "a.jsonl"
    with monkeypatch.context() as patch:
        stop_after(patch, 1, Killed())
        with pytest.raises(Killed):
            qdqbert.run(folder, reviews, output)
    before = (folder / "model.safetensors").read_bytes()
    tensors = safetensors.torch.load(before)
    tensors["classifier.bias"] += 1
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    with pytest.raises(UserInputError, match="the model has changed"):
        qdqbert.run(folder, reviews, output, resume=True)
    (folder / "model.safetensors").write_bytes(before)
    assert qdqbert.run(folder, reviews, output, resume=True).resumed_rows == 4


@pytest.mark.parametrize("suffix", ["data", "json"])
def test_rows_from_a_missing_file_on_are_run_again(
    classifier, reviews, tmp_path, monkeypatch, read_objects, suffix
) -> None:
    output = tmp_path / "a.jsonl"
    with monkeypatch.context() as patch:
        stop_after(patch, 2, Killed())
        with pytest.raises(Killed):
            qdqbert.run(classifier, reviews, output)
    (tmp_path / PARTS / f"rows-000000000000.{suffix}").unlink()
    report = qdqbert.run(classifier, reviews, output, resume=True)
    assert (report.resumed_rows, report.rows) == (0, 11)
    assert [row["id"] for row in read_objects(output)] == list(range(11))


@pytest.mark.parametrize("options", [{}, {"resume": True}, {"overwrite": True}])
def test_a_run_that_goes_on_is_not_called_interrupted(
    classifier, reviews, interrupted, options
) -> None:
    fcntl = pytest.importorskip("fcntl")
    with (interrupted.with_name(PARTS) / "lock").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(UserInputError, match="Another process is running, and is writing"):
            qdqbert.run(classifier, reviews, interrupted, **options)


@pytest.mark.parametrize(
    ("change", "options", "reason"),
    [
        ("grown", {}, "the input file '.*' has changed"),
        ("replaced", {}, "the input file '.*' has changed"),
        ("same", {"top_k": 2}, "`top_k` was None and is 2"),
        ("same", {"input_format": "txt"}, "`input_format` was None and is 'txt'"),
    ],
)
def test_what_cannot_be_continued_is_not_advised(
    classifier, reviews, interrupted, change, options, reason
) -> None:
    if change == "grown":
        with reviews.open("a") as file:
            file.write(ROW)
    if change == "replaced":
        reviews.write_text(reviews.read_text().replace("cat", "dog"))
    can_repeat = change == "same"
    ways = ", or repeat its call with `resume=True`" if can_repeat else ""
    message = rf"It was another one: {reason}\. Pass `overwrite=True` to discard it{ways}\."
    with pytest.raises(OutputExistsError, match=message):
        qdqbert.run(classifier, reviews, interrupted, **options)
    again = "Repeat the earlier call, or pass" if can_repeat else "Pass"
    with pytest.raises(UserInputError, match=rf"{reason}\. {again} `overwrite=True` instead"):
        qdqbert.run(classifier, reviews, interrupted, resume=True, **options)
    if can_repeat:
        assert qdqbert.run(classifier, reviews, interrupted, resume=True).resumed_rows == 4
    qdqbert.run(classifier, reviews, interrupted, overwrite=True, **options)


@pytest.mark.parametrize("has_grown", [True, False])
def test_an_error_advises_what_works(classifier, reviews, tmp_path, monkeypatch, has_grown) -> None:
    reviews.write_text(reviews.read_text() + "{\n")
    monkeypatch.setattr(pipeline, "_HEAD_ROWS", 1)
    block = Writer.block

    def growing(*args: Any) -> bytes:
        if has_grown:
            with reviews.open("a") as file:
                file.write(f"{ROW}\n")
        return block(*args)

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "block", growing)
        with pytest.raises(DataFileError, match="Finished parts are kept") as error:
            qdqbert.run(classifier, reviews, tmp_path / "a.jsonl")
    options: dict[str, Any] = {"on_error": "skip"}
    if has_grown:
        assert "as the input has changed since. Pass `overwrite=True`" in str(error.value)
        with pytest.raises(UserInputError, match=r"the input file .* has changed"):
            qdqbert.run(classifier, reviews, tmp_path / "a.jsonl", resume=True, **options)
        qdqbert.run(classifier, reviews, tmp_path / "a.jsonl", overwrite=True, **options)
    else:
        assert "`resume=True` continues with the same input" in str(error.value)
        qdqbert.run(classifier, reviews, tmp_path / "a.jsonl", resume=True, **options)


def test_an_input_that_changes_during_the_run_is_reported(
    classifier, reviews, tmp_path, monkeypatch
) -> None:
    block = Writer.block

    def changing(*args: Any) -> bytes:
        reviews.write_text(reviews.read_text().replace("cat", "dog"))
        return block(*args)

    monkeypatch.setattr(Writer, "block", changing)
    with pytest.raises(UserInputError, match="or the model changed during the run"):
        qdqbert.run(classifier, reviews, tmp_path / "a.jsonl")


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz"])
def test_rows_that_are_added_during_the_run_are_left_for_another_one(
    classifier, reviews, tmp_path, monkeypatch, read_objects, suffix
) -> None:
    path = tmp_path / f"growing.{suffix}"
    packed = gzip.compress if suffix.endswith("gz") else bytes
    path.write_bytes(packed(reviews.read_bytes()))
    source = open_source(str(path))

    def growing(*args: Any, **options: Any) -> Source:
        with path.open("ab") as file:
            file.write(packed(f"{ROW}\n".encode()))
        return source

    monkeypatch.setattr(pipeline, "open_source", growing)
    report = qdqbert.run(classifier, path, tmp_path / "a.jsonl")
    assert report.rows == 11
    assert [row["id"] for row in read_objects(tmp_path / "a.jsonl")] == list(range(11))


def test_a_line_that_was_being_written_when_the_run_began_is_refused(
    classifier, reviews, tmp_path, monkeypatch
) -> None:
    reviews.write_text(reviews.read_text() + ROW[:9])
    source = open_source(str(reviews))

    def growing(*args: Any, **options: Any) -> Source:
        with reviews.open("a") as file:
            file.write(f"{ROW[9:]}\n")
        return dataclasses.replace(source, skips_damage=options["skips_damage"])

    monkeypatch.setattr(pipeline, "open_source", growing)
    with pytest.raises(DataFileError, match=r"Line 12 .* was not complete when the run began"):
        qdqbert.run(classifier, reviews, tmp_path / "a.jsonl")


def test_a_full_disk_keeps_finished_parts(classifier, reviews, tmp_path, monkeypatch) -> None:
    output = tmp_path / "a.jsonl"
    full = OSError(errno.ENOSPC, "No space left on device")
    with monkeypatch.context() as patch:
        stop_after(patch, 1, full)
        message = (
            r"cannot be written: No space left on device. Free some space, .*Finished parts are "
            r"kept; `resume=True` continues with the same input\."
        )
        with pytest.raises(UserInputError, match=message):
            qdqbert.run(classifier, reviews, output)
    assert qdqbert.run(classifier, reviews, output, resume=True).resumed_rows == 4


def test_a_vanished_input_keeps_finished_parts(classifier, write_objects, tmp_path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("a", "b"):
        write_objects([f"the cat {index}" for index in range(150)], f"in/{name}.jsonl")
    output = tmp_path / "a.jsonl"
    made = []

    def count(**done: Any) -> None:
        made.append(done)
        (folder / "b.jsonl").unlink(missing_ok=True)

    class Watch(Silent):
        def throughput(self, title: str, total: int | None = None) -> Any:
            return contextlib.nullcontext(count)

    with pytest.raises(DataFileError, match=r"does not exist any more\. Finished parts are kept"):
        qdqbert.run(classifier, folder, output, progress=Watch())
    assert made[0]["rows"] <= 4


def test_parts_of_stdin_are_removed(classifier, tmp_path, monkeypatch) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(b'"the cat"\n' * 9))
    monkeypatch.setattr(sys, "stdin", stdin)
    stop_after(monkeypatch, 1, Killed())
    with pytest.raises(Killed):
        qdqbert.run(classifier, "-", tmp_path / "a.jsonl")
    assert not list(tmp_path.iterdir())


SCRIPT = """
import dataclasses, os, signal, sys
from qdqbert.cli.app import main
from qdqbert.common.extras import EXTRAS
from qdqbert.loading import load
from qdqbert.verbs.run import parts
for engine, schedule in load._SCHEDULES.items():
    load._SCHEDULES[engine] = dataclasses.replace(schedule, window=4)
add = parts.Parts.add
def add_and_die(self, block, end):
    add(self, block, end)
    if self.totals.read > 4:
        heavy = set(EXTRAS["quantize"].modules) & set(sys.modules) - {"onnxruntime"}
        print("loaded:", *heavy, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
parts.Parts.add = add_and_die
main(sys.argv[1:])
"""


def test_a_process_that_is_killed_can_be_continued(
    classifier, reviews, tmp_path, read_objects
) -> None:
    output = tmp_path / "a.jsonl"
    words = ["run", classifier, "--input", reviews, "--output", output]
    words += ["--engine", "onnxruntime", "--threads", "2"]
    done = call_python("-c", SCRIPT, *words)
    assert done.returncode == -signal.SIGKILL, done.stderr
    # The command needs no library that prepares models.
    assert done.stdout == "loaded:\n"
    assert "onnxruntime: it was asked for." in done.stderr
    options = {"engine": "onnxruntime", "threads": 2}
    report = qdqbert.run(classifier, reviews, output, resume=True, **options)
    assert report.resumed_rows == 8
    assert [row["id"] for row in read_objects(output)] == list(range(11))
    qdqbert.run(classifier, reviews, tmp_path / "b.jsonl", **options)
    assert (tmp_path / "b.jsonl").read_bytes() == output.read_bytes()
    assert not (tmp_path / PARTS).exists()


def test_a_file_of_the_output_that_was_moved_away_is_missed(classifier, reviews, tmp_path) -> None:
    output = f"{tmp_path}/out/"
    qdqbert.run(classifier, reviews, output)
    (tmp_path / "out/part-00001.parquet").unlink()
    with pytest.raises(OutputExistsError):
        qdqbert.run(classifier, reviews, output, resume=True)


def test_a_folder_of_another_program_is_not_taken_for_finished(
    classifier, reviews, tmp_path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/part-00000-abc.snappy.parquet").write_bytes(b"of Spark")
    with pytest.raises(OutputExistsError):
        qdqbert.run(classifier, reviews, f"{tmp_path}/out/", resume=True)


def test_a_file_of_the_model_is_not_replaced(classifier, reviews) -> None:
    before = (classifier / "config.json").read_bytes()
    with pytest.raises(OutputExistsError, match="would overwrite a file of `model="):
        qdqbert.run(
            classifier, reviews, classifier / "config.json", output_format="jsonl", overwrite=True
        )
    assert (classifier / "config.json").read_bytes() == before


@pytest.mark.parametrize("name", [".out.run.json", ".out.parts/run.json"])
def test_a_damaged_file_of_a_run_is_named(classifier, reviews, tmp_path, name) -> None:
    qdqbert.run(classifier, reviews, f"{tmp_path}/out/")
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text('{"the model": ')
    with pytest.raises(UserInputError, match=r"run\.json' is damaged: .* `overwrite=True`"):
        qdqbert.run(classifier, reviews, f"{tmp_path}/out/", resume=True)
    assert qdqbert.run(classifier, reviews, f"{tmp_path}/out/", overwrite=True).rows == 11
