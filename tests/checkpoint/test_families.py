from __future__ import annotations

import pytest

from qdqbert.checkpoint.families import FAMILIES, family_of
from qdqbert.errors import CheckpointError


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("encoder.layer.0", True),
        ("bert.encoder.layer.11", True),
        ("encoder.layer", False),
        ("encoder.layer.0.attention", False),
        ("myencoder.layer.0", False),
    ],
    ids=["bare-model", "under-a-head", "all-layers", "part-of-a-layer", "another-word"],
)
def test_layers_are_recognized_by_their_path(path, expected) -> None:
    assert family_of("bert").is_layer(path) is expected


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_the_example_of_a_layer_is_recognized_with_and_without_a_head(name) -> None:
    family = family_of(name)
    assert family.is_layer(family.layer_example)
    assert family.is_layer(f"model.{family.layer_example}")
    assert not family.is_layer(f"{family.layer_example}.attention")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("embeddings.word_embeddings", True),
        ("roberta.embeddings.position_embeddings", True),
        ("embeddings.token_type_embeddings", True),
        ("embeddings", False),
        ("embeddings.LayerNorm", False),
    ],
    ids=["words", "positions", "segments", "all", "norm"],
)
def test_tables_are_recognized_by_their_path(path, expected) -> None:
    assert family_of("roberta").is_embedding_table(path) is expected


def test_an_unknown_family_lists_the_known_ones() -> None:
    known = (
        "bert, camembert, deberta-v2, distilbert, electra, modernbert, mpnet, roberta, xlm-roberta"
    )
    with pytest.raises(CheckpointError, match=f"type `t5` are not supported.*{known}"):
        family_of("t5")


def test_families_are_listed_under_their_own_names() -> None:
    assert {name: family.model_type for name, family in FAMILIES.items()} == {
        name: name for name in FAMILIES
    }
