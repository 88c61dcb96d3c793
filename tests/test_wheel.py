"""The wheel alone, without extras, in an environment of its own.

The environment of all other tests has every extra, and hides it if a dependency is missing.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from qdqbert.cli._commands import COMMANDS

pytestmark = pytest.mark.wheel

ROOT = Path(__file__).parent.parent
BUILD = ROOT / "build" / "wheel"
PIP = (sys.executable, "-m", "pip", "--quiet")

RUN = "qdqbert run my-embedder-int8 --input texts.txt"
# Commands that work, and what they print.
WORKS = {
    "qdqbert --help": "doctor",
    **{f"qdqbert {command.name} --help": "Example: " for command in COMMANDS},
    "qdqbert doctor": "Parts of the package",
    "qdqbert run my-embedder --input texts.txt --output vectors.npy": "compared with float",
    f"{RUN} --output vectors.jsonl": "rows/s",
    "qdqbert benchmark my-embedder --batch 1 --sequence 8 --rounds 1 --seconds 0.01": "native",
    "qdqbert verify my-embedder-int8": "native on native",
    "qdqbert push my-embedder-int8 me/my-embedder-int8 --dry-run": "SHA256SUMS",
}
# Commands that need more, and the extra that has it.
NEEDS = {
    "qdqbert quantize my-embedder": "quantize",
    "qdqbert evaluate my-embedder-int8 --data texts.txt": "quantize",
    "qdqbert analyze my-embedder --data texts.txt": "quantize",
    "qdqbert train my-embedder --output new --train-data texts.txt": "train",
    "qdqbert serve my-embedder": "serve",
    "qdqbert export my-embedder-int8 --to openvino": "export",
    "qdqbert export my-embedder-int8 --to triton": "onnxruntime",
    "qdqbert export my-embedder-int8 --to transformers-js": "onnxruntime",
    "qdqbert benchmark my-embedder --provider cpu": "onnxruntime",
    f"{RUN} --output new.jsonl --engine onnxruntime": "onnxruntime",
    "qdqbert run my-embedder --input texts.txt --output new.npy --target float "
    "--engine onnxruntime": "onnxruntime",
    f"{RUN} --output new.jsonl --engine openvino": "openvino",
    f"{RUN} --output new.parquet": "parquet",
    f"{RUN} --output new.jsonl --ray auto": "ray",
    "python -c 'import qdqbert.integrations.langchain'": "langchain",
    "python -c 'import qdqbert.integrations.llama_index'": "llama-index",
    "python -c 'import qdqbert.integrations.sentence_transformers'": "sentence-transformers",
    "python -c 'import qdqbert.integrations.transformers'": "quantize",
    "python -c 'import qdqbert; qdqbert.QDQBertModel'": "quantize",
}
# Calls of the models of `load`, by the fixture that makes the checkpoint.
CALLS = {
    "classifier": 'len(model(["the cat", "a dog"]))',
    "reranker": 'len(model.predict([("the cat", "a dog"), ("a", "b")]))',
    "sparse": 'len(model.encode(["the cat", "a dog"]))',
    "multi_vector": 'len(model.encode(["the cat", "a dog"]))',
}

User = Callable[[str], subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def wheel() -> Path:
    shutil.rmtree(BUILD, ignore_errors=True)
    subprocess.run([*PIP, "wheel", "--no-deps", "--wheel-dir", BUILD, ROOT], check=True)
    (path,) = BUILD.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def user(wheel, checkpoints, quantized, tmp_path_factory) -> User:
    """Install the wheel, and return what runs a command in a folder with models and texts."""
    environment = BUILD / "venv"
    venv.create(environment, symlinks=True)
    install = (*PIP, "--python", str(environment), "install", "--no-compile")
    with subprocess.Popen(
        [*install, "--constraint", ROOT / "constraints.txt", wheel]
    ) as installing:
        folder = tmp_path_factory.mktemp("user")
        (folder / "texts.txt").write_text("the cat\na dog in the rain\n")
        for name in CALLS:
            shutil.copytree(checkpoints(name), folder / f"my-{name}")
        shutil.copytree(checkpoints("sentence"), folder / "my-embedder")
        shutil.copytree(quantized("sentence").directory, folder / "my-embedder-int8")
    assert installing.returncode == 0
    variables = {
        "HF_HUB_OFFLINE": "1",
        "PATH": f"{environment / 'bin'}{os.pathsep}{os.defpath}",
        "QDQBERT_CACHE": str(folder / "cache"),
    }

    def run(command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            shlex.split(command),
            cwd=folder,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    return run


def test_the_wheel_has_the_files_of_the_package_and_no_others(wheel) -> None:
    source = ROOT / "src"
    wanted = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    names = set(zipfile.ZipFile(wheel).namelist())
    described = {name for name in names if ".dist-info/" in name}
    assert names - described == wanted >= {"qdqbert/py.typed"}
    assert {name.partition("/")[2] for name in described} == {
        "METADATA",
        "RECORD",
        "WHEEL",
        "entry_points.txt",
        "licenses/LICENSE",
    }


@pytest.mark.parametrize("command", WORKS)
def test_a_command_works_without_extras(command, user) -> None:
    done = user(command)
    assert done.returncode == 0, done.stdout
    assert WORKS[command] in done.stdout


def test_the_first_lines_of_readme_work_without_extras(user) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert block is not None
    done = user(f"python -c {shlex.quote(block[1])}")
    assert (done.returncode, done.stdout) == (0, "(2, 32)\n"), done.stdout


@pytest.mark.parametrize("precision", ["int8", "float"])
def test_models_of_all_kinds_are_loaded_without_extras(precision, user) -> None:
    lines = ["import qdqbert"]
    for name, call in CALLS.items():
        lines.append(f"model = qdqbert.load('my-{name}', precision={precision!r})")
        lines.append(f"print({call})")
    done = user(f"python -c {shlex.quote(chr(10).join(lines))}")
    assert (done.returncode, done.stdout) == (0, "2\n" * len(CALLS)), done.stdout


@pytest.mark.parametrize("command", NEEDS)
def test_what_needs_an_extra_says_which(command, user) -> None:
    done = user(command)
    assert done.returncode in (1, 2)
    *_, last = done.stdout.strip().splitlines()
    assert not last.startswith("Error: `--benchmark`")
    assert f"pip install 'qdqbert[{NEEDS[command]}]'" in last
    assert command.startswith("python") or "Traceback" not in done.stdout


def test_every_command_is_tested() -> None:
    tested = {command.split()[1] for command in (*WORKS, *NEEDS) if "--help" not in command}
    assert tested >= {command.name for command in COMMANDS}
