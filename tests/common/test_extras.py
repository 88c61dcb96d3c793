"""What works without the extra `quantize`, and what is said about the rest."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import qdqbert.compat
from python_process import call_python
from qdqbert.common.errors import MissingExtraError
from qdqbert.common.extras import EXTRAS

# An import of a module that is `None` here fails, as if it were not installed.
WITHOUT = f"import sys\nsys.modules.update(dict.fromkeys({EXTRAS['quantize'].modules!r}))\n"
ROOT = Path(__file__).parents[2]
INSTALL = "Install them with: pip install 'qdqbert[quantize]'"


def run_without(code: str) -> subprocess.CompletedProcess[str]:
    return call_python("-c", WITHOUT + code)


@pytest.fixture(scope="module")
def printed(quantized) -> list[str]:
    """Lines of one process without the extra: it runs a model, then tries what needs the extra."""
    folder = str(quantized("sentence").directory)
    done = run_without(f"""
import qdqbert
with qdqbert.load({folder!r}) as model:
    print(model.encode(["the cat", "a dog"]).shape)
for call in (
    lambda: qdqbert.quantize("x", "y"),
    lambda: qdqbert.evaluate("x", data="y"),
    lambda: qdqbert.prepare,
    lambda: qdqbert.QDQBertModel,
):
    try:
        call()
    except qdqbert.MissingExtraError as error:
        print(error)
""")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_model_runs_without_the_extra(printed) -> None:
    assert printed[0] == "(2, 32)"


@pytest.mark.parametrize("precision", ["int8", "float"])
@pytest.mark.usual("int8")
def test_a_checkpoint_runs_without_the_extra(precision, checkpoints, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("QDQBERT_CACHE", str(tmp_path))
    done = run_without(f"""
import qdqbert
with qdqbert.load({str(checkpoints("sentence"))!r}, precision={precision!r}) as model:
    print(model.encode(["the cat", "a dog"]).shape)
""")
    assert (done.returncode, done.stdout) == (0, "(2, 32)\n"), done.stderr


def test_everything_else_names_the_extra_in_one_line(printed) -> None:
    names = ("`quantize`", "`evaluate`", "`qdqbert.prepare`", "`qdqbert.QDQBertModel`")
    assert len(printed) == 1 + len(names)
    for line, name in zip(printed[1:], names, strict=True):
        assert line.startswith(f"{name} needs packages that are not installed: ")
        assert line.endswith(INSTALL)


def test_the_command_line_names_the_extra_in_one_line() -> None:
    done = run_without('from qdqbert.cli import main\nmain(["quantize", "x", "--output", "y"])')
    assert done.returncode == 2
    assert INSTALL in done.stderr
    assert "Traceback" not in done.stderr


# Extras for working on this package, and one with its own message.
OTHERS = {"benchmarks", "demo", "dev", "docs", "openvino"}


def test_the_modules_are_those_of_the_extras() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    assert set(EXTRAS) == set(extras) - OTHERS

    def packages_of(name: str) -> set[str]:
        packages = set()
        for each in extras[name]:
            if inside := re.fullmatch(r"qdqbert\[([\w,-]+)\]", each):
                packages |= {one for key in inside[1].split(",") for one in packages_of(key)}
            packages.add(re.split(r"[^\w-]", each)[0].replace("-", "_"))
        return packages

    for name, extra in EXTRAS.items():
        packages = packages_of(name) | {"aiohttp"}
        assert {each.replace(".", "_") for each in extra.modules} <= packages, name


@pytest.mark.parametrize(
    ("name", "extra"),
    [
        ("langchain", "langchain"),
        ("llama_index", "llama-index"),
        ("sentence_transformers", "sentence-transformers"),
        ("transformers", "quantize"),
    ],
)
def test_a_framework_that_is_missing_is_named_when_its_module_is_imported(
    name, extra, monkeypatch
) -> None:
    monkeypatch.setattr("qdqbert.common.extras.is_installed", lambda module: False)
    monkeypatch.delitem(sys.modules, f"qdqbert.integrations.{name}", raising=False)
    with pytest.raises(MissingExtraError, match=rf"pip install 'qdqbert\[{extra}\]'$"):
        importlib.import_module(f"qdqbert.integrations.{name}")


def test_without_torch_the_names_of_the_toolkit_name_its_extra(monkeypatch) -> None:
    monkeypatch.setattr("qdqbert.common.extras.is_installed", lambda module: False)
    with pytest.raises(MissingExtraError, match=r"pip install 'qdqbert\[quantize\]'$"):
        qdqbert.compat.install()
