"""Adapters next to the weights of a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from encoder_reference import run_text
from jina_models import (
    ADAPTERS,
    LORA,
    ROTARY,
    adapted,
    flash_reference,
    flash_weights,
    with_adapters,
)
from qdqbert.common.errors import CheckpointError, UserInputError
from qdqbert.encoders.adapters import adapter_names, check_adapter, merged
from qdqbert.encoders.config import Config
from qdqbert.encoders.of_checkpoint import read_encoder
from qdqbert.encoders.weights import Weights

CONFIG = Config(values={**ROTARY, **LORA})


@pytest.fixture
def weights(tmp_path: Path) -> dict[str, torch.Tensor]:
    found = with_adapters(flash_weights(ROTARY))
    torch.save(found, tmp_path / "pytorch_model.bin")
    return found


@pytest.mark.parametrize("adapter", [None, *ADAPTERS])
def test_states_are_those_of_the_weights_and_an_adapter(
    weights: dict[str, torch.Tensor], adapter: str | None, tmp_path: Path
) -> None:
    ids = torch.randint(2, 131, (50,), generator=torch.Generator().manual_seed(2))
    plain = flash_weights(ROTARY) if adapter is None else adapted(weights, adapter)
    wanted = flash_reference(plain, ROTARY, ids)
    model = read_encoder(merged(Weights(tmp_path), CONFIG, adapter), CONFIG, "feature-extraction")
    found = run_text(model, ids.numpy(), np.zeros(50, np.int64))["last_hidden_state"]
    np.testing.assert_allclose(found, wanted.numpy(), atol=2e-4)


def test_weights_that_have_an_adapter_already_are_as_they_are(tmp_path: Path) -> None:
    torch.save(flash_weights(ROTARY), tmp_path / "pytorch_model.bin")
    weights = Weights(tmp_path)
    assert merged(weights, CONFIG, None) is weights
    with pytest.raises(CheckpointError, match="has no adapters, and `lora_adaptations`"):
        merged(weights, CONFIG, ADAPTERS[0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lora_adaptations": None}, "has adapters, and `lora_adaptations` in .* names none"),
        ({"lora_adaptations": ["a", "a", "b"]}, "expected a list of different names"),
        ({"lora_adaptations": "abc"}, "expected a list of different names"),
        ({"lora_adaptations": [1, 2, 3]}, "expected a list of different names"),
        ({"lora_adaptations": [ADAPTERS[0]]}, "does not fit config.json: 1 `lora_adaptations`"),
        ({"lora_rank": 8}, "and `lora_rank=8`"),
        ({"lora_rank": 0}, "and `lora_rank=0`"),
        ({"lora_rank": "4"}, "`lora_rank='4'` in config.json is not supported"),
        ({"lora_alpha": float("nan")}, "`lora_alpha=nan` in config.json is not supported"),
    ],
)
def test_adapters_that_do_not_fit_the_config_are_refused(
    weights: dict[str, torch.Tensor], changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    config = Config(values={**CONFIG.values, **changes})
    with pytest.raises(CheckpointError, match=message):
        merged(Weights(tmp_path), config, ADAPTERS[0])


def test_a_missing_factor_is_named(weights: dict[str, torch.Tensor], tmp_path: Path) -> None:
    name = next(each for each in weights if each.endswith("lora_B"))
    del weights[name]
    torch.save(weights, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=f"has no tensor `{name}`"):
        merged(Weights(tmp_path), CONFIG, ADAPTERS[0])


def test_an_unknown_adapter_is_refused_with_the_known_ones() -> None:
    assert adapter_names(CONFIG) == ADAPTERS
    check_adapter(CONFIG, None, "./model")
    with pytest.raises(UserInputError, match=r"'./model'\. It has: retrieval\.query") as caught:
        check_adapter(CONFIG, "query", "./model")
    assert caught.value.argument == "adapter"
    with pytest.raises(UserInputError, match="It has none: leave it out"):
        check_adapter(Config(values=ROTARY), "query", "./model")
