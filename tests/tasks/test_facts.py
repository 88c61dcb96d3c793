"""A model shows what its answers depend on besides the weights."""

from __future__ import annotations

import json

import qdqbert
from conftest import add_sentence_files
from decoder_models import save_embedder
from rerankers import save_reranker


def test_an_embedder_shows_its_pooling_and_its_prompt(tmp_path, checkpoints) -> None:
    folder = save_embedder(tmp_path / "model", pooling="lasttoken")
    settings = {"prompts": {"query": "Instruct: "}, "default_prompt_name": "query"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    with qdqbert.load(folder, check=False) as model:
        facts = {"pooling": "lasttoken", "normalize": True, "prompt": "Instruct: "}
        assert model.facts == facts
        assert "pooling='lasttoken', normalize=True, prompt='Instruct: ')" in repr(model)
        model.default_prompt_name = None
        assert model.facts["prompt"] == ""


def test_an_encoder_alone_shows_that_it_takes_means(checkpoints) -> None:
    with qdqbert.load(checkpoints("bert"), check=False) as model:
        assert model.facts == {"pooling": "mean", "normalize": False, "prompt": ""}


def test_several_poolings_are_named(tmp_path, save_tiny) -> None:
    folder = save_tiny(tmp_path / "model", "bert", num_hidden_layers=1)
    flags = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}
    add_sentence_files(folder, {"word_embedding_dimension": 32, **flags})
    with qdqbert.load(folder, check=False) as model:
        assert model.facts["pooling"] == "cls, mean"


def test_a_reranker_shows_its_template(tmp_path) -> None:
    prompts = {"strict": "Be strict."}
    save_reranker(tmp_path / "model", prompts=prompts, default_prompt="strict")
    with qdqbert.load(tmp_path / "model", check=False) as model:
        facts = {"activation": "sigmoid", "prompt": "Be strict.", "template": True}
        assert model.facts == facts
        assert repr(model).endswith("activation='sigmoid', prompt='Be strict.', template=True)")
