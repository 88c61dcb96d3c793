"""Families whose modules get no quantizers are quantized as data."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import qdqbert
from conftest import BERT_SPECIAL, POSITIONS, SIZES, TEXTS, make_tokenizer, spread
from qdqbert.common.errors import CheckpointError
from qdqbert.encoders.families import FAMILIES as READ
from qdqbert.encoders.families import quantized_family

# The layers of ALBERT share their weights, which ONNX Runtime refuses in INT8 on some CPUs. DPR has
# no model of one text, transformers has no classes of the others, and towers of texts are read by
# `load` alone.
LEFT_OUT = {
    *("albert", "clip", "clip_text_model", "dpr", "jina-bert", "neobert", "new"),
    *("model2vec", "mosaic-bert", "siglip", "siglip_text_model"),
}
ROTARY = {"position_embedding_type": "rotary", "emb_layer_norm_before": False}
VARIANTS: dict[str, dict[str, Any]] = {
    "bert-generation": {},
    "data2vec-text": {},
    "deberta": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "ernie": {},
    "esm": {**ROTARY, "mask_token_id": 4, "token_dropout": True},
    "esmc": {},
    "eurobert": {"num_key_value_heads": 2},
    "gemma": {"head_dim": 12, "num_key_value_heads": 2},
    "gemma3_text": {"head_dim": 12, "num_key_value_heads": 2, "sliding_window": 5},
    "gte": {},
    "jina_embeddings_v3": {"type_vocab_size": 1},
    "llama": {},
    "longformer": {"attention_window": 6},
    "megatron-bert": {},
    "mistral": {"num_key_value_heads": 2, "sliding_window": 5},
    "modernbert-decoder": {"local_attention": 12},
    "mt5": {"d_kv": 12, "d_ff": 56, "num_layers": 2},
    "nomic_bert": {},
    "qwen2": {"num_key_value_heads": 2},
    "qwen3": {"head_dim": 12, "num_key_value_heads": 2},
    "rembert": {"input_embedding_size": 16},
    "roberta-prelayernorm": {},
    "t5": {"d_ff": 56, "num_layers": 2},
    "umt5": {"d_ff": 56, "num_layers": 2},
    "roformer": {"embedding_size": 16},
    "ultrabert": {"num_key_value_heads": 2, "sliding_window": 5},
    "xlm-roberta-xl": {},
}
# The others take the same paths.
QUICK = ("deberta",)


def texts(folder: Path) -> Path:
    data = folder / "texts.txt"
    data.write_text("\n".join(TEXTS))
    return data


@pytest.fixture
def save(tmp_path):
    def save_family(family: str, **changes):
        config = transformers.AutoConfig.for_model(
            family,
            **SIZES,
            max_position_embeddings=POSITIONS + 2,
            pad_token_id=0,
            **{**VARIANTS[family], **changes},
        )
        torch.manual_seed(0)
        folder = tmp_path / family
        auto = getattr(transformers, READ[family].encoder_class)
        spread(auto.from_config(config)).save_pretrained(folder)
        make_tokenizer(BERT_SPECIAL).save_pretrained(folder)
        return folder

    return save_family


def test_every_family_that_load_reads_is_quantized() -> None:
    assert {
        name for name in READ if name not in LEFT_OUT and quantized_family(name).training is None
    } == set(VARIANTS)


@pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in VARIANTS],
)
def test_each_target_is_exact_and_near_float(save, tmp_path, family) -> None:
    report = qdqbert.quantize(
        save(family),
        tmp_path / "int8",
        targets=("onnxruntime", "native", "native-dynamic"),
        calibration_data=texts(tmp_path),
        calibration=qdqbert.Calibration(samples=24),
        benchmark=False,
    )
    for target in report.targets:
        assert target.lowering.is_exact, (target.target, target.lowering)
        assert target.fidelity.sqnr_db > 12, target.target
    with qdqbert.load(tmp_path / "int8") as model:
        assert model.encode(["the cat"]).shape == (1, 32)


@pytest.mark.slow
@pytest.mark.openvino
@pytest.mark.parametrize(
    ("family", "recipe"),
    [
        *((family, "linear") for family in VARIANTS),
        # Their embeddings are projected.
        ("rembert", "full-smoothed"),
        ("roformer", "full-smoothed"),
    ],
)
def test_each_engine_computes_the_pairs_of_a_graph(save, tmp_path, family, recipe) -> None:
    report = qdqbert.quantize(
        save(family),
        tmp_path / "int8",
        targets=("portable", "openvino"),
        recipe=recipe,
        calibration_data=texts(tmp_path),
        calibration=qdqbert.Calibration(samples=24),
        benchmark=False,
    )
    assert len(report.targets) == 3
    for target in report.targets:
        assert target.lowering.is_exact, (target.target, target.engine, target.lowering)


def test_training_with_quantizers_is_refused(save) -> None:
    model = transformers.AutoModel.from_pretrained(save("ernie"))
    with pytest.raises(CheckpointError, match="family `ernie` get no quantizers, so it has no QAT"):
        qdqbert.prepare(model)


def test_code_of_a_checkpoint_that_transformers_has_now_is_not_run(save, tmp_path) -> None:
    folder = save("nomic_bert")
    config = json.loads((folder / "config.json").read_text())
    named = "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel"
    config["auto_map"] = {"AutoModel": named}
    (folder / "config.json").write_text(json.dumps(config))
    quantize = functools.partial(qdqbert.quantize, folder, targets=["native-dynamic"])
    report = quantize(tmp_path / "int8", benchmark=False, calibration_data=texts(tmp_path))
    assert report.targets[0].lowering.is_exact
    config["auto_map"] = {"AutoModel": "someone--modeling.OtherModel"}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"code of its own: .* someone--modeling\.OtherModel"):
        quantize(tmp_path / "other")
