"""Folders that are uploaded to a local stand-in for the hub, and loaded from it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import qdqbert
from hub_server import Hub, Repository, running_hub
from python_process import call_python, run_python
from qdqbert.common.errors import CheckpointError, UserInputError
from torch_files import to_torch

NAME = "me/my-int8"
TEXTS = ["the cat sat on the book", "rain"]


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with running_hub() as started:
        yield started


def push(hub: Hub, home: Path, *words: str, token: str | None = "hf_token"):
    return call_python("-m", "qdqbert", "push", *words, env=hub.environment(home, token))


def load(hub: Hub, home: Path, code: str, **changes: str) -> list[str]:
    environment = hub.environment(home) | changes
    return run_python("-c", f"import qdqbert\n{code}", env=environment).splitlines()


@pytest.fixture(scope="module")
def pushed(hub, quantized, tmp_path_factory) -> dict[str, object]:
    """The report of an upload of a folder with graphs for several targets."""
    folder, home = quantized("sentence").directory, tmp_path_factory.mktemp("home")
    done = push(hub, home, str(folder), NAME, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_all_files_are_in_a_private_repository(hub, pushed, quantized) -> None:
    folder = quantized("sentence").directory
    paths = [path for path in folder.rglob("*") if path.is_file()]
    expected = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
    repository = hub.repositories[NAME]
    assert repository.private
    assert repository.files == expected
    assert pushed["files"] == {name: len(content) for name, content in expected.items()}
    assert pushed["size_bytes"] == sum(map(len, expected.values()))
    assert pushed["url"] == f"{hub.endpoint}/{NAME}/commit/{repository.commit}"


@pytest.mark.slow
def test_load_downloads_only_the_graph_that_it_runs(hub, pushed, quantized, tmp_path) -> None:
    code = f"""
with qdqbert.load({NAME!r}, engine="onnxruntime") as model:
    print(model.target)
    print(model.encode({TEXTS!r}).tolist())
"""
    hub.downloads.clear()
    target, vectors = load(hub, tmp_path, code)
    with qdqbert.load(quantized("sentence").directory, engine="onnxruntime") as model:
        assert target == model.target
        np.testing.assert_allclose(json.loads(vectors), model.encode(TEXTS), atol=1e-6)
    graphs = [name for name in hub.downloads if not name.endswith(".json")]
    assert sorted(graphs) == ["SHA256SUMS", f"{target}/model.onnx"]
    # The next call finds everything in the cache, also without a network.
    hub.downloads.clear()
    assert load(hub, tmp_path, code, HF_HUB_OFFLINE="1") == [target, vectors]
    assert hub.downloads == []


@pytest.mark.slow
def test_run_takes_the_name_of_a_model(hub, pushed, quantized, tmp_path) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    words = ["run", NAME, "--input", str(tmp_path / "texts.txt"), "--engine", "onnxruntime", "-o"]
    output = tmp_path / "answers.npy"
    run_python("-m", "qdqbert", *words, output, env=hub.environment(tmp_path / "home"))
    with qdqbert.load(quantized("sentence").directory, engine="onnxruntime") as model:
        np.testing.assert_allclose(np.load(output), model.encode(TEXTS), atol=1e-6)


def test_a_dry_run_lists_files_and_uploads_nothing(quantized) -> None:
    report = qdqbert.push(quantized("sentence").directory, "me/another", dry_run=True)
    assert report.url is None
    assert report.files["tokenizer.json"] > 0
    assert "SHA256SUMS" in report.files


def test_hidden_files_stay(quantized, tmp_path) -> None:
    folder = shutil.copytree(quantized("classifier").directory, tmp_path / "int8")
    for name in (".env", ".git/config"):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("secret")
    files = qdqbert.push(folder, "me/another", dry_run=True).files
    assert not [name for name in files if "env" in name or "git" in name]


@pytest.mark.slow
def test_everyone_may_read_a_repository_only_if_it_is_asked_for(hub, quantized, tmp_path) -> None:
    hub.repositories["me/open"] = Repository(private=False)
    folder = str(quantized("classifier").directory)
    done = push(hub, tmp_path, folder, "me/open")
    assert done.returncode == 2
    assert "exists on the hub, and everyone can read it" in " ".join(done.stderr.split())
    assert hub.repositories["me/open"].files == {}
    done = push(hub, tmp_path, folder, "me/open", "--no-private", "--json")
    assert done.returncode == 0, done.stderr
    assert hub.repositories["me/open"].files
    assert "Everyone can read the command line" in json.loads(done.stdout)["notices"][0]


def test_texts_of_a_report_are_published_only_if_it_is_asked_for(quantized, tmp_path) -> None:
    folder = shutil.copytree(quantized("classifier").directory, tmp_path / "int8")
    report = json.loads((folder / "report.json").read_text())
    report["targets"][0]["changed"] = [{"text": "a secret", "before": "yes", "after": "no"}]
    (folder / "report.json").write_text(json.dumps(report))
    with pytest.raises(
        UserInputError, match=r"would publish 1 text that.* leave `private=False` out"
    ):
        qdqbert.push(folder, "me/open", private=False, dry_run=True)
    # The next check is of checksums, which the edited report fails.
    with pytest.raises(UserInputError, match=r"report.json is .* Quantize the model again"):
        qdqbert.push(folder, "me/open", private=False, publish_texts=True, dry_run=True)


def test_without_a_login_the_command_that_logs_in_is_named(hub, quantized, tmp_path) -> None:
    folder = str(quantized("classifier").directory)
    done = push(hub, tmp_path, folder, "me/new", token=None)
    assert done.returncode == 2
    assert "`hf auth login`" in done.stderr
    assert "me/new" not in hub.repositories


def test_a_damaged_folder_is_refused(quantized, tmp_path) -> None:
    folder = shutil.copytree(quantized("classifier").directory, tmp_path / "int8")
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(UserInputError, match=r"tokenizer\.json is changed") as caught:
        qdqbert.push(folder, "me/another", dry_run=True)
    assert caught.value.argument == "model"


@pytest.mark.parametrize("name", ["my-int8", "a/b/c", "me/..", "me/a b"])
def test_names_that_the_hub_does_not_allow_are_refused(name) -> None:
    with pytest.raises(UserInputError, match="is not a name on the hub") as caught:
        qdqbert.push("./missing", name)
    assert caught.value.argument == "repo"


def test_load_downloads_only_settings_and_safetensors_of_a_float_checkpoint(
    hub, checkpoints, tmp_path
) -> None:
    folder = checkpoints("sentence")
    files = {
        each.relative_to(folder).as_posix(): each.read_bytes()
        for each in folder.rglob("*")
        if each.is_file()
    }
    others = {"pytorch_model.bin": b"pickle", "onnx/model.onnx": b"graph", "README.md": b"card"}
    hub.repositories["me/float"] = Repository(private=False, files={**files, **others})
    hub.downloads.clear()
    [shape] = load(hub, tmp_path, "print(qdqbert.load('me/float').encode(['a dog']).shape)")
    assert shape == "(1, 32)"
    assert "model.safetensors" in hub.downloads
    assert not set(others) & set(hub.downloads)


@pytest.mark.slow
def test_files_of_torch_are_downloaded_where_there_are_no_safetensors(
    hub, checkpoint_copy, tmp_path
) -> None:
    folder = to_torch(checkpoint_copy("sentence"))
    files = {
        each.relative_to(folder).as_posix(): each.read_bytes()
        for each in folder.rglob("*")
        if each.is_file()
    }
    others = {"optimizer.bin": b"", "training_args.bin": b"", "onnx/pytorch_model.bin": b""}
    hub.repositories["me/pickled"] = Repository(private=False, files={**files, **others})
    hub.downloads.clear()
    code = """
from qdqbert.encoders.checkpoint.load import load_checkpoint
print(qdqbert.load("me/pickled").encode(["a dog"]).shape)
print(load_checkpoint("me/pickled").task)
"""
    assert load(hub, tmp_path, code) == ["(1, 32)", "feature-extraction"]
    assert "pytorch_model.bin" in hub.downloads
    assert not set(others) & set(hub.downloads)


def test_a_model_without_weights_is_refused(hub, tmp_path) -> None:
    files = {"config.json": b'{"model_type": "bert"}', "tf_model.h5": b""}
    hub.repositories["me/other"] = Repository(private=False, files=files)
    code = """
try:
    qdqbert.load("me/other")
except qdqbert.CheckpointError as error:
    print(error)
"""
    hub.downloads.clear()
    [message] = load(hub, tmp_path, code)
    assert message.startswith("The hub's model 'me/other' is neither a quantized model nor a")
    assert "tf_model.h5" not in hub.downloads


def test_without_a_network_a_model_that_is_not_cached_is_reported() -> None:
    with pytest.raises(CheckpointError, match="HF_HUB_OFFLINE=1 forbids downloads"):
        qdqbert.load("me/never-loaded")


@pytest.mark.slow
def test_a_model_without_an_owner_is_one_of_the_hub(hub, checkpoints, tmp_path) -> None:
    folder = checkpoints("sentence")
    files = {
        each.relative_to(folder).as_posix(): each.read_bytes()
        for each in folder.rglob("*")
        if each.is_file()
    }
    hub.repositories["old-base-uncased"] = Repository(private=False, files=files)
    code = "print(qdqbert.load('old-base-uncased', check=False).encode(['a dog']).tolist())"
    [vector] = load(hub, tmp_path, code)
    with qdqbert.load(folder, check=False) as model:
        np.testing.assert_allclose(json.loads(vector), model.encode(["a dog"]), atol=1e-6)
    assert load(hub, tmp_path, code, HF_HUB_OFFLINE="1") == [vector]


@pytest.mark.slow
def test_a_name_that_is_nowhere_is_reported_with_both_places(hub, tmp_path) -> None:
    texts, output = tmp_path / "a.txt", tmp_path / "b.jsonl"
    texts.write_text("a dog\n")
    words = ["-m", "qdqbert", "run", "no-such-model", "-i", str(texts), "-o", str(output)]
    for offline, reason in (
        ("0", "the hub has no model of this name"),
        ("1", "HF_HUB_OFFLINE=1 forbids downloads from the hub"),
    ):
        environment = hub.environment(tmp_path / "home") | {"HF_HUB_OFFLINE": offline}
        done = call_python(*words, env=environment)
        message = " ".join(done.stderr.split())
        assert done.returncode == 2
        assert "Model 'no-such-model' cannot be found: no such folder exists here" in message
        assert reason in message


def test_weights_of_another_family_are_not_downloaded(hub, tmp_path) -> None:
    config = json.dumps({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}).encode()
    files = {"config.json": config, "model.safetensors": b"much"}
    hub.repositories["old-decoder"] = Repository(private=False, files=files)
    hub.downloads.clear()
    code = "import qdqbert\nqdqbert.load('old-decoder')"
    done = call_python("-c", code, env=hub.environment(tmp_path / "home"))
    assert "Checkpoints of type `gpt2` are not supported" in done.stderr
    assert hub.downloads == ["config.json"]
