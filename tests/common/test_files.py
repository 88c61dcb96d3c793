"""Places that files are read from and written to."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

import qdqbert
from qdqbert.common.errors import UserInputError
from qdqbert.common.files import name_of, temporary_folder, write_bytes


def test_the_name_of_a_link_is_its_own(tmp_path, monkeypatch) -> None:
    folder = tmp_path / "releases" / "42"
    folder.mkdir(parents=True)
    (tmp_path / "current").symlink_to(folder)
    monkeypatch.chdir(folder)
    names = {
        str(tmp_path / "current"): "current",
        f"{tmp_path / 'current'}/": "current",
        "../../current": "current",
        ".": "42",
        "..": "releases",
        "../..": tmp_path.name,
        "owner/model": "model",
    }
    assert {path: name_of(path) for path in names} == names


def no_folder() -> str:
    raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")


@pytest.mark.parametrize("has_folder", [True, False])
def test_a_verb_names_the_variable_that_libraries_miss(monkeypatch, has_folder) -> None:
    def fail(*arguments: object) -> None:
        raise FileNotFoundError(2, "a message of a library")

    if not has_folder:
        monkeypatch.setattr(tempfile, "gettempdir", no_folder)
    monkeypatch.setattr("qdqbert.verbs.serve.run.run", fail)
    with pytest.raises(FileNotFoundError if has_folder else UserInputError) as failed:
        qdqbert.serve("model")
    assert ("TMPDIR" in str(failed.value)) is not has_folder


def test_without_a_folder_of_the_system_memory_is_used(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", no_folder)
    monkeypatch.setattr("qdqbert.common.files.MEMORY", tmp_path)
    with temporary_folder() as folder:
        assert folder.parent == tmp_path
    assert not list(tmp_path.iterdir())


def test_without_any_place_the_variable_is_named(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", no_folder)
    monkeypatch.setattr("qdqbert.common.files.MEMORY", tmp_path / "missing")
    with (
        pytest.raises(UserInputError, match=r"found in .* Set the environment variable TMPDIR"),
        temporary_folder(),
    ):
        pass


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [
        ("run", {"input": "texts.txt", "output": "{}.jsonl"}),
        ("run", {"input": "texts.txt", "output": "{}/"}),
        ("quantize", {"output": "{}", "calibration_data": "texts.txt"}),
        ("train", {"output": "{}", "train_data": "texts.txt"}),
        ("export", {"output": "{}", "to": "triton"}),
    ],
)
@pytest.mark.parametrize("reason", ["File name too long", "embedded null", "Permission den"])
def test_an_output_that_no_system_can_hold_is_refused_by_name(
    tmp_path, monkeypatch, quantized, verb, arguments, reason
) -> None:
    name = {"File name too long": 300 * "x", "embedded null": "a\0b"}.get(reason, "denied")
    texts = tmp_path / "texts.txt"
    texts.write_text("a text\n")
    known = Path.stat

    def denied(path: Path, **options: bool) -> object:
        if "denied" in path.name:
            raise PermissionError(13, "Permission denied")
        return known(path, **options)

    monkeypatch.setattr(Path, "stat", denied)
    values = {key: value.format(tmp_path / name) for key, value in arguments.items()}
    values |= {key: str(texts) for key in values if values[key] == "texts.txt"}
    with pytest.raises(UserInputError, match=f"cannot be written: .*{reason}") as refused:
        getattr(qdqbert, verb)(quantized("sentence").directory, **values)
    assert refused.value.argument == "output"


# Arguments of each verb that writes, with `{}` in the place of the output, and its parameter.
WRITERS = {
    "run": ({"input": "texts.txt", "output": "{}"}, "output"),
    "quantize": ({"output": "{}"}, "output"),
    "quantize report": ({"output": "new", "report": "{}"}, "report"),
    "train": ({"output": "{}", "train_data": "texts.txt"}, "output"),
    "evaluate": ({"data": "texts.txt", "output": "{}"}, "output"),
    "export": ({"output": "{}", "to": "triton"}, "output"),
    "analyze": ({"plot": "{}"}, "plot"),
}


def write_with(verb: str, output: str, model: str = "model", **others: object) -> None:
    arguments, _ = WRITERS[verb]
    values = {key: value.format(output) for key, value in arguments.items()}
    getattr(qdqbert, verb.split()[0])(model, **values | others)


@pytest.mark.parametrize("verb", WRITERS)
@pytest.mark.parametrize("is_linked", [False, True])
def test_an_output_that_is_a_pipe_is_refused(tmp_path, monkeypatch, verb, is_linked) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe.svg")
    os.symlink("pipe.svg", "link.svg")
    name = "link.svg" if is_linked else "pipe.svg"
    with pytest.raises(UserInputError, match=f"={name!r}` cannot be written: it is neither a"):
        write_with(verb, name)
    assert Path("pipe.svg").is_fifo()
    assert Path("link.svg").is_symlink()


@pytest.mark.parametrize("verb", WRITERS)
def test_an_empty_output_is_refused_by_name(verb) -> None:
    with pytest.raises(UserInputError, match=r"` is empty\. Pass a path") as refused:
        write_with(verb, "")
    assert refused.value.argument == WRITERS[verb][1]


# Calls that read an input of a name.
READERS = {
    "load": lambda name: qdqbert.load(name),
    "run": lambda name: qdqbert.run(name, input="texts.txt", output="new.csv"),
    "run input": lambda name: qdqbert.run("model", input=name, output="new.csv"),
    "quantize": lambda name: qdqbert.quantize(name, "new"),
    "quantize data": lambda name: qdqbert.quantize("model", calibration_data=name),
    "quantize ranges": lambda name: qdqbert.quantize(
        "model", calibration=qdqbert.Calibration(ranges_from=name)
    ),
    "quantize tokenizer": lambda name: qdqbert.quantize(
        "model.onnx", task="fill-mask", onnx=qdqbert.Onnx(tokenizer=name)
    ),
    "evaluate": lambda name: qdqbert.evaluate(name, data="texts.txt"),
    "evaluate data": lambda name: qdqbert.evaluate("model", data=name),
    "evaluate reference": lambda name: qdqbert.evaluate("model", reference=name),
    "analyze": lambda name: qdqbert.analyze(name),
    "train": lambda name: qdqbert.train(name, "new", train_data="texts.txt"),
    "train data": lambda name: qdqbert.train("model", "new", train_data=name),
    "train teacher": lambda name: qdqbert.train(
        "model", "new", train_data="texts.txt", distillation=qdqbert.Distillation(teacher=name)
    ),
    "verify": lambda name: qdqbert.verify(name),
    "export": lambda name: qdqbert.export(name, to="triton"),
    "push": lambda name: qdqbert.push(name, "owner/name"),
    "benchmark": lambda name: qdqbert.benchmark(name),
    "serve": lambda name: qdqbert.serve(name),
}


@pytest.mark.parametrize("call", READERS.values(), ids=READERS)
@pytest.mark.parametrize("reason", ["File name too long", "Permission denied"])
def test_an_input_that_the_system_cannot_look_up_is_refused(
    tmp_path, monkeypatch, call, reason
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("texts.txt").write_text("a text\n")
    Path("model.onnx").touch()
    known, name = os.stat, 300 * "x"
    if reason == "Permission denied":
        name = "denied/here"

        def stat(path, *given: object, **options: object) -> os.stat_result:
            if "denied" in os.fspath(path):
                raise PermissionError(13, reason)
            return known(path, *given, **options)

        monkeypatch.setattr(os, "stat", stat)
    with pytest.raises(UserInputError, match=f"{name}' cannot be read: {reason}"):
        call(name)


@pytest.mark.parametrize("output", ["here", "away/../here/", "link"])
@pytest.mark.parametrize("verb", [verb for verb in WRITERS if verb != "analyze"])
def test_no_verb_overwrites_its_model(tmp_path, monkeypatch, verb, output) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("here", "away"):
        Path(name).mkdir()
    os.symlink("here", "link")
    with pytest.raises(UserInputError, match="would overwrite `model='here'`"):
        write_with(verb, output, "here")


@pytest.mark.parametrize(
    ("verb", "argument"),
    [
        ("run", "input"),
        ("quantize", "calibration_data"),
        ("quantize", "eval_data"),
        ("quantize", "keep_vocabulary"),
        ("quantize report", "calibration_data"),
        ("train", "train_data"),
        ("train", "eval_data"),
        ("train", "distill_from"),
        ("evaluate", "data"),
        ("analyze", "data"),
    ],
)
@pytest.mark.parametrize("is_linked", [False, True])
def test_no_verb_overwrites_a_file_that_it_reads(
    tmp_path, monkeypatch, verb, argument, is_linked
) -> None:
    """Links in either path do not hide the file."""
    monkeypatch.chdir(tmp_path)
    Path("here").mkdir()
    Path("here/part-0.svg").write_text("a text\n")
    os.symlink("here", "link")
    folder = "link" if is_linked else "away/../here"
    Path("away").mkdir()
    is_folder = verb in ("run", "quantize", "train")
    output = folder if is_folder else f"{folder}/part-0.svg"
    given: dict[str, object] = {argument: "here/part-0.svg"}
    if argument == "distill_from":
        given = {"distillation": qdqbert.Distillation(teacher="here/part-0.svg")}
    with pytest.raises(UserInputError, match=f"would overwrite `{argument}=|is a file. Pass a f"):
        write_with(verb, output, **given)


def test_files_are_written_through_links(tmp_path) -> None:
    target, link = tmp_path / "folder" / "target", tmp_path / "link"
    target.parent.mkdir()
    link.symlink_to(target)
    for content in (b"new", b"newer"):
        write_bytes(link, content)
        assert link.is_symlink()
        assert target.read_bytes() == content
        assert [path.name for path in target.parent.iterdir()] == ["target"]


def test_a_deleted_current_folder_is_named(tmp_path, monkeypatch) -> None:
    """Libraries look it up while they are loaded."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "here").rmdir()
    monkeypatch.setattr("qdqbert.verbs.serve.run.run", lambda *given: os.path.realpath("x"))
    with pytest.raises(UserInputError, match=r"The current folder was deleted\."):
        qdqbert.serve("model")


@pytest.mark.parametrize("verb", WRITERS)
def test_a_path_that_is_not_utf8_is_refused_by_name(verb) -> None:
    with pytest.raises(UserInputError, match=r"`\w+='a\\udcff'` is not UTF-8"):
        write_with(verb, os.fsdecode(b"a\xff"))
