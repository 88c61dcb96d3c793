"""Folders for integrations."""

from __future__ import annotations

import json
import shutil

import pytest


@pytest.fixture(scope="session")
def prompted(quantized, tmp_path_factory):
    """An embedder with prompts for queries and documents."""
    made = shutil.copytree(
        quantized("sentence").directory, tmp_path_factory.mktemp("prompted") / "int8"
    )
    settings = {"prompts": {"query": "where is ", "document": "the "}}
    (made / "config_sentence_transformers.json").write_text(json.dumps(settings))
    return made
