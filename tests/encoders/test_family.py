from __future__ import annotations

import pytest
import torch
import transformers

from qdqbert.common.errors import CheckpointError
from qdqbert.encoders.config import Config
from qdqbert.encoders.families import FAMILIES, LACKING, family_of, quantized_family


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
    assert FAMILIES["bert"].training.is_layer(path) is expected


def test_an_unknown_family_lists_the_known_ones() -> None:
    with pytest.raises(
        CheckpointError, match=r"`bloom` are not supported.*: bert, .* nomic_bert, "
    ):
        quantized_family("bloom")


def test_what_a_known_family_lacks_is_named() -> None:
    for kind in LACKING:
        assert kind in transformers.CONFIG_MAPPING
        assert kind not in FAMILIES
    match = "`xmod` are not supported: they have a part of each layer for each language, which no"
    with pytest.raises(CheckpointError, match=match):
        family_of(Config(values={"model_type": "xmod"}))


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({}, "bert"),
        ({"alibi_starting_size": 512}, "mosaic-bert"),
        ({"auto_map": {"AutoModel": "bert_layers.BertModel"}}, "mosaic-bert"),
        ({"auto_map": {"AutoModel": "owner/name--bert_layers.BertForMaskedLM"}}, "mosaic-bert"),
    ],
)
def test_a_bert_of_other_code_is_recognized_by_its_config(fields, kind) -> None:
    assert family_of(Config(values={"model_type": "bert", **fields})).model_type == kind


@pytest.mark.parametrize(
    ("kind", "start", "ends", "own"),
    [
        # nomic-embed-text-v2-moe
        (
            "nomic_bert",
            "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBert",
            {"": "Model", "ForMaskedLM": "ForPreTraining"},
            "Model",
        ),
        # gte-multilingual-base, and gte-multilingual-reranker-base
        ("new", "Alibaba-NLP/new-impl--modeling.New", {"": "Model"}, "Model"),
        ("new", "modeling.New", {"": "Model"}, "ForSequenceClassification"),
        # jina-embeddings-v2-base-en
        (
            "jina-bert",
            "jinaai/jina-bert-implementation--modeling_bert.JinaBert",
            {"": "Model"},
            "ForMaskedLM",
        ),
        # NeoBERT, and models that its authors' code writes
        ("neobert", "model.NeoBERT", {"": "", "ForMaskedLM": "LMHead"}, "LMHead"),
        ("neobert", "model.NeoBERT", {"ForMaskedLM": "LMHead"}, "LMHead"),
    ],
)
def test_published_configs_name_classes_of_heads_that_are_not_read(kind, start, ends, own) -> None:
    heads = ("MaskedLM", "MultipleChoice", "QuestionAnswering", "SequenceClassification")
    ends = {f"For{head}": f"For{head}" for head in (*heads, "TokenClassification")} | ends
    auto_map = {f"AutoModel{auto}": f"{start}{end}" for auto, end in ends.items()}
    values = {"model_type": kind, "auto_map": auto_map}
    named = start.rpartition(".")[2]
    assert (
        family_of(Config(values={**values, "architectures": [f"{named}{own}"]})) is FAMILIES[kind]
    )
    # Heads of code that is not known, and encoders.
    for architectures in ([f"{named}ForQuestionAnswering"], [f"{named}ForMultipleChoice"]):
        with pytest.raises(CheckpointError, match="code of its own"):
            family_of(Config(values={**values, "architectures": architectures}))
    auto_map["AutoModel"] = "own.Other"
    with pytest.raises(CheckpointError, match="code of its own"):
        family_of(Config(values={**values, "architectures": [f"{named}{own}"]}))


@pytest.mark.parametrize("path", ["own.BertModel", "own--bert_layers.FlexBertModel"])
def test_a_bert_of_unknown_code_is_refused(path) -> None:
    with pytest.raises(CheckpointError, match="code of its own"):
        family_of(Config(values={"model_type": "bert", "auto_map": {"AutoModel": path}}))


@pytest.mark.parametrize("family", ["albert", "clip", "dpr", "new", "siglip_text_model"])
def test_families_that_load_runs_alone_are_named(family) -> None:
    with pytest.raises(CheckpointError, match=rf"`{family}`. `qdqbert.load` runs them in INT8"):
        quantized_family(family)


def test_configs_that_load_runs_alone_are_named() -> None:
    assert quantized_family("nomic_bert", {"num_experts": 0}) is FAMILIES["nomic_bert"]
    with pytest.raises(CheckpointError, match=r"`num_experts=8`. `qdqbert.load` runs them in INT8"):
        quantized_family("nomic_bert", {"num_experts": 8})


@pytest.mark.parametrize(
    ("family", "pad"),
    [
        ("bert", 3),
        ("camembert", 3),
        ("mpnet", 3),
        ("roberta", 0),
        ("roberta", 3),
        ("xlm-roberta", 3),
    ],
)
def test_the_longest_input_is_the_longest_that_the_model_computes(make_model, family, pad) -> None:
    model = make_model(family, transformers.AutoModel, num_hidden_layers=1, pad_token_id=pad)
    longest = FAMILIES[family].longest_input(model.config)
    with torch.inference_mode():
        model(input_ids=torch.full((1, longest), 9))
        with pytest.raises((IndexError, RuntimeError)):
            model(input_ids=torch.full((1, longest + 1), 9))


def test_positions_that_follow_an_unknown_padding_token_are_refused() -> None:
    config = transformers.RobertaConfig(pad_token_id=None)
    with pytest.raises(CheckpointError, match="no `pad_token_id`, after which `roberta` numbers"):
        FAMILIES["roberta"].longest_input(config)
