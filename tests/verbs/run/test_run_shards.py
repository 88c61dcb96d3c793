"""An input that is divided among processes that do not know of each other."""

from __future__ import annotations

import shlex
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import qdqbert
from qdqbert.cli import main
from qdqbert.common.errors import OutputExistsError, UserInputError
from qdqbert.data.tables.inputs import open_source
from qdqbert.verbs.run import pipeline
from qdqbert.verbs.run.options import RunOptions
from qdqbert.verbs.run.shards import Shard, shard_of

EXAMPLES = Path(__file__).parents[3] / "examples"


@settings(max_examples=60)
@given(
    files=st.lists(st.integers(0, 40), min_size=1, max_size=8),
    group=st.integers(1, 12),
    count=st.integers(1, 12),
    suffix=st.sampled_from(["txt", "parquet"]),
)
def test_each_row_is_in_one_shard_in_order(tmp_path_factory, files, group, count, suffix) -> None:
    folder = tmp_path_factory.mktemp("in")
    number = 0
    for index, rows in enumerate(files):
        texts = [f"text {number + each}" for each in range(rows)]
        number += rows
        path = folder / f"{index}.{suffix}"
        if suffix == "txt":
            path.write_text("".join(f"{text}\n" for text in texts))
        else:
            table = pa.table({"text": pa.array(texts, pa.string())})
            pq.write_table(table, path, row_group_size=group)
    source = open_source(str(folder))
    shards = [source.shard(index, count) for index in range(count)]
    found = [row for shard in shards for row in shard.rows()]
    assert [(row.file, row.number) for row in found] == [
        (row.file, row.number) for row in source.rows()
    ]
    for shard in shards:
        positions = [row.position for row in shard.rows()]
        assert positions == sorted(positions)
        assert all(position <= (shard.size or 0) for position in positions)


def test_row_groups_of_a_large_file_are_shared_equally(tmp_path) -> None:
    table = pa.table({"text": [f"{index:09d}" for index in range(8000)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=100)
    source = open_source(str(tmp_path / "a.parquet"))
    sizes = [sum(1 for _ in source.shard(index, 8).rows()) for index in range(8)]
    assert sizes == [1000] * 8


@pytest.mark.parametrize("output_format", ["parquet", "jsonl", "npy"])
def test_the_files_of_all_shards_are_one_data_set(
    embedder, tmp_path, output_format, write_objects
) -> None:
    for name in "abcde":
        rows = [{"id": f"{name}{i}", "text": f"the cat {i}"} for i in range(5)]
        (tmp_path / "in").mkdir(exist_ok=True)
        write_objects(rows, f"in/{name}.jsonl")
    given = f"{tmp_path}/in/"
    options = {"output_format": output_format}
    qdqbert.run(embedder, given, f"{tmp_path}/whole/", **options)
    for index in (2, 0, 1, 3):
        report = qdqbert.run(
            embedder, given, f"{tmp_path}/out/", shard=f"{index}/4", resume=True, **options
        )
        assert report.rows in (5, 10)
    whole = sorted((tmp_path / "whole").iterdir())
    files = sorted((tmp_path / "out").iterdir())
    assert [each.name for each in files][2:5] == [
        f"part-00000-of-00004-00002.{output_format}",
        f"part-00001-of-00004-00000.{output_format}",
        f"part-00001-of-00004-00001.{output_format}",
    ]
    if output_format == "parquet":
        assert pq.read_table(tmp_path / "out").equals(pq.read_table(tmp_path / "whole"))
    elif output_format == "jsonl":
        parts = [b"".join(each.read_bytes() for each in paths) for paths in (files, whole)]
        assert parts[0] == parts[1]
    left = sorted(each.name for each in tmp_path.iterdir() if each.name.startswith(".out"))
    assert left == [f".out.run-{index:05d}-of-00004.json" for index in range(4)]


def test_a_shard_replaces_and_continues_its_own_files_only(classifier, reviews, tmp_path) -> None:
    table = pa.table({"text": [f"the cat {i}" for i in range(12)]})
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=4)
    output = f"{tmp_path}/out/"
    for index in range(3):
        qdqbert.run(classifier, tmp_path / "in.parquet", output, shard=f"{index}/3")
    before = {each.name: each.stat().st_mtime_ns for each in (tmp_path / "out").iterdir()}
    with pytest.raises(OutputExistsError, match="already exists"):
        qdqbert.run(classifier, tmp_path / "in.parquet", output, shard="1/3")
    assert (
        qdqbert.run(classifier, tmp_path / "in.parquet", output, shard="1/3", resume=True).rows == 0
    )
    qdqbert.run(classifier, tmp_path / "in.parquet", output, shard="1/3", overwrite=True)
    after = {each.name: each.stat().st_mtime_ns for each in (tmp_path / "out").iterdir()}
    assert {name for name in before if before[name] != after[name]} == {
        "part-00001-of-00003-00000.parquet"
    }
    # Rows would be there twice.
    with pytest.raises(OutputExistsError, match=r"files that `run` did not write, such as 'part-"):
        qdqbert.run(classifier, tmp_path / "in.parquet", output, shard="1/4", overwrite=True)


def test_a_shard_without_files_says_so(classifier, write_objects, tmp_path) -> None:
    source = write_objects([{"text": "the cat"}])
    reports = [
        qdqbert.run(classifier, source, f"{tmp_path}/out/", shard=f"{index}/3", output_format="csv")
        for index in range(3)
    ]
    assert [report.rows for report in reports] == [1, 0, 0]
    (notice,) = reports[2].notices
    assert notice == "`shard='2/3'` has no rows: there are too few files for so many shards."


@pytest.mark.parametrize(
    ("value", "variables", "expected"),
    [
        ("0/1", {}, Shard(index=0, count=1)),
        ("3/100", {"SLURM_ARRAY_TASK_ID": "7"}, Shard(index=3, count=100)),
        ("auto/100", {"SLURM_ARRAY_TASK_ID": "7"}, Shard(index=7, count=100)),
        ("auto/100", {"JOB_COMPLETION_INDEX": "99"}, Shard(index=99, count=100)),
        ("auto/100", {}, "neither JOB_COMPLETION_INDEX nor SLURM_ARRAY_TASK_ID is set"),
        ("auto/100", {"SLURM_ARRAY_TASK_ID": "x"}, "SLURM_ARRAY_TASK_ID is 'x', and no number"),
        ("auto/100", {"SLURM_ARRAY_TASK_ID": "100"}, "100 shards are 0 to 99, got 100"),
        ("3/3", {}, "3 shards are 0 to 2, got 3"),
        ("0/0", {}, "0 shards"),
        ("1", {}, "it must be INDEX/COUNT"),
        ("-1/3", {}, "it must be INDEX/COUNT"),
        ("1/3/5", {}, "it must be INDEX/COUNT"),
    ],
)
def test_a_shard_is_named_by_its_number_or_by_the_environment(
    monkeypatch, value, variables, expected
) -> None:
    for name in ("SLURM_ARRAY_TASK_ID", "JOB_COMPLETION_INDEX"):
        monkeypatch.delenv(name, raising=False)
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    if isinstance(expected, Shard):
        assert shard_of(value) == expected
    else:
        with pytest.raises(UserInputError, match=expected) as error:
            shard_of(value)
        assert error.value.argument == "shard"


@pytest.mark.parametrize(
    ("source", "output", "message"),
    [
        ("-", "out/", "stdin cannot be divided"),
        ("in.txt", "-", "stdout cannot be divided"),
        ("in.txt", "a.parquet", "needs a folder as output"),
    ],
)
def test_what_cannot_be_divided_is_refused(classifier, tmp_path, source, output, message) -> None:
    (tmp_path / "in.txt").write_text("the cat\n")
    places = [each if each == "-" else f"{tmp_path}/{each}" for each in (source, output)]
    with pytest.raises(UserInputError, match=message) as error:
        qdqbert.run(classifier, *places, shard="0/2")
    assert error.value.argument == "shard"


def slurm_command() -> tuple[list[str], int, str]:
    """Return the words of the script's command, the number of jobs, and their variable."""
    text = (EXAMPLES / "slurm_array.sh").read_text()
    lines = text.replace("\\\n", " ").splitlines()
    (array,) = [line.partition("=")[2] for line in lines if "--array=" in line]
    first, _, last = array.partition("-")
    assert first == "0"
    words = shlex.split(lines[-1])
    assert words[:3] == ["exec", "srun", "qdqbert"]
    return words[3:], int(last) + 1, "SLURM_ARRAY_TASK_ID"


def kubernetes_command() -> tuple[list[str], int, str]:
    spec = yaml.safe_load((EXAMPLES / "kubernetes_job.yaml").read_text())["spec"]
    assert spec["completionMode"] == "Indexed"
    (container,) = spec["template"]["spec"]["containers"]
    return container["args"], spec["completions"], "JOB_COMPLETION_INDEX"


@pytest.mark.parametrize("command", [slurm_command, kubernetes_command])
def test_the_examples_run_each_shard_once(command, monkeypatch) -> None:
    found: list[RunOptions] = []

    def keep(options: RunOptions, progress: object) -> None:
        found.append(options)
        raise UserInputError("It is not run.")

    monkeypatch.setattr(pipeline, "run_pipeline", keep)
    words, count, variable = command()
    # The package for s3:// does not have to be installed.
    words = [word.replace("s3://", "memory://") for word in words]
    for index in (0, count - 1):
        monkeypatch.setenv(variable, str(index))
        with pytest.raises(SystemExit, match="2"):
            main(words)
        assert found[-1].shard is not None
        assert found[-1].resume
        assert shard_of(found[-1].shard) == Shard(index=index, count=count)


def test_shards_of_other_inputs_or_options_are_refused(classifier, write_objects, tmp_path) -> None:
    (tmp_path / "in").mkdir()
    for name in "abcd":
        write_objects([{"text": f"the cat {name}"}] * 4, f"in/{name}.jsonl")
    given, output = f"{tmp_path}/in/", f"{tmp_path}/out/"
    qdqbert.run(classifier, given, output, shard="0/2")
    with pytest.raises(UserInputError, match=r"`shard`: the run of another shard.*top_k") as error:
        qdqbert.run(classifier, given, output, shard="1/2", top_k=2)
    assert error.value.argument == "shard"
    (tmp_path / "in/d.jsonl").unlink()
    with pytest.raises(UserInputError, match="the listing of the input has changed"):
        qdqbert.run(classifier, given, output, shard="1/2")
    # What one shard has written is not the whole output.
    with pytest.raises(OutputExistsError):
        qdqbert.run(classifier, given, output, resume=True)


def test_shards_skip_a_file_that_is_damaged(classifier, tmp_path) -> None:
    (tmp_path / "in").mkdir()
    for name in "abc":
        pq.write_table(pa.table({"text": [f"the cat {name}"] * 4}), tmp_path / f"in/{name}.parquet")
    content = (tmp_path / "in/b.parquet").read_bytes()
    (tmp_path / "in/b.parquet").write_bytes(content[:-8] + b"damaged!")
    reports = [
        qdqbert.run(
            classifier, f"{tmp_path}/in/", f"{tmp_path}/out/", shard=f"{i}/2", on_error="skip"
        )
        for i in range(2)
    ]
    assert sum(report.rows for report in reports) == 8
    assert sum(report.skipped for report in reports) == 1
