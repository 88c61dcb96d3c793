"""Models, data and outputs in object storage, in the verbs but `run`."""

from __future__ import annotations

import json
import pickle
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import transformers

import qdqbert
from qdqbert.cli._commands import COMMANDS
from qdqbert.common.errors import CheckpointError, OutputExistsError, UserInputError
from qdqbert.common.options.calibration import Calibration
from qdqbert.common.options.declared import declared_options
from qdqbert.common.storage import RemotePath, place_of
from qdqbert.integrations.models import open_model
from qdqbert.integrations.ray import Predictor
from qdqbert.tasks.embedder import Embedder
from task_files import HEADS


def path_options() -> Iterator[tuple[Any, Any]]:
    """All options of all commands that are paths, by the function."""
    for command in COMMANDS:
        for each in declared_options(command.function.options):
            if each.is_path:
                yield pytest.param(
                    command.function, each, id=f"{command.function.__name__}-{each.name}"
                )


def place(url: str) -> RemotePath:
    found = place_of(url)
    assert isinstance(found, RemotePath)
    return found


def upload(source: Path, url: str) -> str:
    """Write a file or folder to storage."""
    for path in source.rglob("*") if source.is_dir() else [source]:
        if path.is_file():
            place(f"{url}/{path.relative_to(source).as_posix()}".removesuffix("/.")).write_bytes(
                path.read_bytes()
            )
    return url


@pytest.fixture(params=["memory", pytest.param("s3", marks=pytest.mark.slow)])
def bucket(request: pytest.FixtureRequest, tmp_path: Path, own_cache: Path) -> str:
    """URL of a folder in storage that nothing is in."""
    if request.param == "s3":
        return str(request.getfixturevalue("s3_bucket"))
    return f"memory://bucket/{tmp_path.name}"


@pytest.fixture
def texts(tmp_path: Path) -> Callable[[int], Path]:
    """Write examples of a classifier."""

    def write(seed: int) -> Path:
        head = HEADS["text-classification"]
        path = tmp_path / f"{seed}-{head.file}"
        path.write_text(head.write(random.Random(seed), 24))
        return path

    return write


def everything_in(*reports: object, url: str) -> str:
    """All that reports, and text files in a folder of storage, say."""
    files = [
        path.read_bytes().decode(errors="replace")
        for path in place(url).find()
        if path.suffix in (".json", ".md", ".html", ".jsonl")
    ]
    return "\n".join([*map(repr, reports), *map(str, reports), *files])


@pytest.fixture
def model(bucket: str, save_tiny: Callable[..., Path], tmp_path: Path) -> str:
    """URL of a float classifier."""
    head = HEADS["text-classification"]
    auto_class = getattr(transformers, head.auto_class)
    folder = save_tiny(tmp_path / "float", "bert", auto_class, num_hidden_layers=1, **head.changes)
    return upload(folder, f"{bucket}/my-model")


def quantize(model: str, output: str, **options: Any) -> Any:
    return qdqbert.quantize(
        model,
        output,
        calibration=Calibration(samples=8),
        targets=("native", "onnxruntime"),
        benchmark=False,
        **options,
    )


def test_all_verbs_take_urls(model: str, bucket: str, texts, tmp_path, own_cache) -> None:
    data = [upload(texts(seed), f"{bucket}/{name}.tsv") for seed, name in ((0, "a"), (1, "b"))]
    output, page = f"{bucket}/folder/my-int8", f"{bucket}/report.html"
    made = quantize(
        model, output, calibration_data=data[0], eval_data=data[1], report=page, overwrite=True
    )
    assert made.directory == output
    assert b"<html" in place(page).read_bytes()
    verified = qdqbert.verify(output)
    assert all(each.verdict == "intact" for each in verified.files)
    evaluated = qdqbert.evaluate(
        output, data[1], reference=model, output=f"{bucket}/folder/evaluated"
    )
    exported = qdqbert.export(output, to="triton", name="mine")
    assert exported.directory == f"{output}-triton"
    assert place(f"{output}-triton/export.json").is_file()
    pushed = qdqbert.push(output, "me/mine", dry_run=True)
    reports = (made, verified, evaluated, exported, pushed)
    said = everything_in(*reports, url=bucket)
    for each in (str(own_cache), str(Path(own_cache).resolve()), "qdqbert-"):
        assert each not in said.replace("qdqbert-quantization", "").replace("qdqbert-export", "")
    assert model in said
    loaded = qdqbert.load(output)
    assert loaded.name == output
    local = tmp_path / "local"
    for path in place(output).find():
        target = local / path.url[len(output) + 1 :]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    assert loaded(["a dog in the rain"]) == qdqbert.load(local)(["a dog in the rain"])
    assert not list(Path().glob("*:"))


def test_a_model_of_a_url_is_opened_anywhere(model: str, tmp_path, own_cache) -> None:
    with qdqbert.load(model) as opened:
        expected, pickled = opened(["a dog"]), pickle.dumps(opened)
    assert opened.name == model
    shutil.rmtree(own_cache / "models")
    with pickle.loads(pickled) as again:
        assert (again.name, again(["a dog"])) == (model, expected)
    for open_with in (
        lambda: qdqbert.load("file://" + str(tmp_path / "float")),
        lambda: qdqbert.load(tmp_path / "float"),
    ):
        with open_with() as local:
            assert (local.name, local(["a dog"])) == (str(tmp_path / "float"), expected)
    # A pickle changes with the model, as caches of calls need it.
    place(f"{model}/new.txt").write_bytes(b"")
    settings = place(f"{model}/config.json")
    changed = json.loads(settings.read_bytes()) | {"id2label": {"0": "poor", "1": "fine"}}
    settings.write_bytes(json.dumps(changed).encode())
    with qdqbert.load(model) as changed_model:
        assert changed_model(["a dog"])[0]["label"] in ("poor", "fine")
        assert pickle.dumps(changed_model) != pickled


def test_errors_name_the_parameter_of_a_url(own_cache) -> None:
    url = "memory://bucket/none"
    calls: dict[str, Callable[[], Any]] = {
        "path": lambda: qdqbert.load(url),
        "model": lambda: Predictor(url)({"text": ["a"]}),
        "models": lambda: qdqbert.serve([url], port=0),
        "model_name": lambda: open_model(url, Embedder, "X", "class", {}),
    }
    for argument, call in calls.items():
        with pytest.raises(CheckpointError, match=f"`{argument}`: '{url}' does not exist") as found:
            call()
        assert found.value.argument == argument


def test_nothing_is_downloaded_if_another_url_is_wrong(own_cache) -> None:
    place("memory://bucket/model/config.json").write_bytes(b"{}")
    with pytest.raises(UserInputError, match="`output`: 'ftp9://a/b' has a scheme"):
        qdqbert.quantize("memory://bucket/model", "ftp9://a/b")
    assert not (own_cache / "models").exists()


def test_an_output_on_the_web_is_refused() -> None:
    pytest.importorskip("aiohttp")
    with pytest.raises(UserInputError, match=r"`output='https://a/b'` is an address of the web"):
        qdqbert.quantize.options("model", output="https://a/b")


def test_a_file_url_is_a_path(texts, tmp_path) -> None:
    options = qdqbert.quantize.options(
        "file:///tmp/model",
        output=f"file://{tmp_path}/out",
        calibration_data=f"file://localhost{texts(0)}",
    )
    assert (options.model, options.output) == ("/tmp/model", f"{tmp_path}/out")
    assert options.calibration_data == str(texts(0))


@pytest.mark.parametrize(("function", "option"), list(path_options()))
def test_an_unknown_scheme_is_refused_by_name(function, option, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    required = {"model": "none", "models": ["none"], "input": "i.csv", "output": "o.csv"}
    required |= {"to": "triton", "train_data": "t.csv", "data": "d.csv", "repo": "me/it"}
    taken = function.__signature__.parameters
    arguments: dict[str, Any] = {k: v for k, v in required.items() if k in taken}
    url = "ftp9://host/file"
    if option.is_grouped:
        group = taken[option.parameter].default
        with pytest.raises(UserInputError) as caught:
            function(**{**arguments, option.parameter: type(group)(**{option.field: url})})
    else:
        arguments[option.field] = [url] if option.is_sequence else url
        with pytest.raises(UserInputError) as caught:
            function(**arguments)
    assert caught.value.argument == option.name
    assert "'ftp9'" in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_load_refuses_an_unknown_scheme() -> None:
    with pytest.raises(UserInputError, match="`path`: 'ftp9://host/model' has a scheme"):
        qdqbert.load("ftp9://host/model")


@pytest.mark.slow
def test_training_takes_urls(model: str, bucket: str, texts, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = [upload(texts(seed), f"{bucket}/{name}.tsv") for seed, name in ((0, "a"), (1, "b"))]
    output = f"{bucket}/trained"
    options: dict[str, Any] = {
        "train_data": data[0],
        "eval_data": data[1],
        "optimization": qdqbert.Optimization(epochs=1, batch_size=8),
        "distillation": qdqbert.Distillation(teacher=model),
    }
    report = qdqbert.train(model, output, keep_checkpoints=True, **options)
    assert report.directory == output
    # Checkpoints, which the Trainer writes, are of this machine.
    assert (tmp_path / "trained-checkpoints").is_dir()
    assert str(tmp_path / "cache") not in everything_in(report, url=output)
    with pytest.raises(OutputExistsError, match=f"`output='{output}'` already exists"):
        qdqbert.train(model, output, overwrite=False, **options)
    assert qdqbert.load(output)(["a dog"])


@pytest.mark.slow
def test_other_verbs_and_options_take_urls(model: str, bucket: str, texts, own_cache) -> None:
    data = upload(texts(0), f"{bucket}/a.tsv")
    report = qdqbert.analyze(model, data=data, plot=f"{bucket}/plot.svg", granularity="layer")
    assert report.model == model
    assert b"<svg" in place(f"{bucket}/plot.svg").read_bytes()
    place(f"{bucket}/words.txt").write_bytes(b"a dog\nthe cat\n")
    first = quantize(model, f"{bucket}/first", keep_vocabulary=f"{bucket}/words.txt")
    assert any("'words.txt'" in each for each in first.notices)
    timed = qdqbert.benchmark([model], sequences=8, rounds=1, seconds=0.01)
    assert str(own_cache) not in repr(timed)
    quantize(model, f"{bucket}/whole", calibration_data=data)
    second = qdqbert.quantize(
        model,
        f"{bucket}/second",
        calibration=Calibration(ranges_from=f"{bucket}/whole"),
        targets=("portable",),
        benchmark=False,
    )
    said = everything_in(second, url=f"{bucket}/second")
    assert f'"ranges_from": "{bucket}/whole"' in said


@pytest.mark.slow
def test_a_graph_comes_with_what_is_beside_it(
    third_party, checkpoints, bucket: str, own_cache, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    graph = upload(third_party("float"), f"{bucket}/graphs/my-model.onnx")
    for path in checkpoints("classifier").iterdir():
        if path.suffix in (".json", ".txt"):
            upload(path, f"{bucket}/graphs/{path.name}")
    made = qdqbert.quantize(graph, targets=("onnxruntime",), benchmark=False)
    assert (made.checkpoint, made.directory) == (graph, "my-model-int8")
    compared = qdqbert.evaluate(
        graph, reference=upload(checkpoints("classifier"), f"{bucket}/float")
    )
    assert (compared.model, compared.reference) == (graph, f"{bucket}/float")
    assert str(own_cache) not in f"{made!r}{compared!r}"
    for path in (tmp_path / "my-model-int8").glob("*.json"):
        assert str(own_cache) not in path.read_text()


# Ray warns of its own defaults.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:ray")
@pytest.mark.parametrize("bucket", ["s3"], indirect=True)
def test_nodes_of_a_cluster_take_urls(model: str, bucket: str, texts, tmp_path, own_cache) -> None:
    pytest.importorskip("ray")
    data = upload(texts(0), f"{bucket}/a.tsv")
    report = qdqbert.quantize(
        model,
        tmp_path / "int8",
        calibration_data=data,
        calibration=Calibration(samples=8, ray="local"),
        targets=("native",),
        benchmark=False,
    )
    assert report.checkpoint == model
    answers = tmp_path / "answers.jsonl"
    qdqbert.run(model, str(texts(0)), str(answers), ray="local")
    assert len(answers.read_text().splitlines()) == 24
