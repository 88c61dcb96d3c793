from __future__ import annotations

import copy

import pytest
import torch
import transformers

from qdqbert.calibration.reference.sited_model import SitedModel, observing
from qdqbert.encoders.families import FAMILIES
from qdqbert.training.insert.blocks import BLOCKS
from qdqbert.training.insert.sited import insert_quantizers_

# The same float32 kernels, with scores scaled in another order.
TOLERANCE = 1e-6
IDS = torch.tensor([[7, 9, 8, 30, 31, 32, 40, 41, 42, 43, 44, 45], [7, 44, 8, 30] + [0] * 8])
MASK = torch.tensor([[1] * 12, [1] * 4 + [0] * 8])

# DeBERTa's checkpoints differ in what `config.json` turns on; the usual one here is v3's.
DEBERTAS = {
    "v3": {},
    "projections-of-their-own": {"share_att_key": False},
    "content-to-position": {"pos_att_type": ["c2p"]},
    "position-to-content": {"pos_att_type": ["p2c"], "share_att_key": False},
    "no-position-products": {"pos_att_type": []},
    "no-relative-positions": {"relative_attention": False, "position_biased_input": True},
    "no-buckets": {"position_buckets": -1, "norm_rel_ebd": "none"},
    "segments-and-positions": {"type_vocab_size": 2, "position_biased_input": True},
    "convolution": {"conv_kernel_size": 3, "conv_act": "gelu"},
}


def with_quantizers(model, family: str) -> SitedModel:
    return insert_quantizers_(copy.deepcopy(model), FAMILIES[family])


@pytest.mark.parametrize("changes", DEBERTAS.values(), ids=list(DEBERTAS))
def test_any_kind_of_deberta_computes_what_transformers_does(make_model, changes) -> None:
    plain = make_model("deberta-v2", **changes)
    sited = with_quantizers(plain, "deberta-v2")
    with torch.inference_mode():
        expected, ours = (
            model(IDS, attention_mask=MASK).last_hidden_state for model in (plain, sited.model)
        )
    text = MASK.bool()
    torch.testing.assert_close(ours[text], expected[text], atol=TOLERANCE, rtol=1e-6)
    assert list(sited.model.state_dict()) == list(plain.state_dict())


def test_positions_are_projected_in_float_by_the_weights_of_content(make_model) -> None:
    sited = with_quantizers(make_model("deberta-v2"), "deberta-v2")
    name = "encoder.layer.0.attention.self.query_proj._input_quantizer"
    seen = []
    with observing(sited, lambda site, x: seen.append(x.shape) if site.name == name else None):
        sited.model(IDS, attention_mask=MASK)
    assert seen == [(2, 12, 32)]


def test_a_copy_of_a_deberta_projects_positions_by_its_own_weights(make_model) -> None:
    sited = with_quantizers(make_model("deberta-v2"), "deberta-v2")
    twin = copy.deepcopy(sited.model)
    with torch.inference_mode():
        before = sited.model(IDS, attention_mask=MASK).last_hidden_state
        for parameter in twin.encoder.layer[0].attention.self.parameters():
            parameter.zero_()
        after = sited.model(IDS, attention_mask=MASK).last_hidden_state
        other = twin(IDS, attention_mask=MASK).last_hidden_state
    assert torch.equal(before, after)
    assert not torch.equal(before, other)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_a_modernbert_classifier_pools_as_transformers_does(make_model, pooling) -> None:
    auto = transformers.AutoModelForSequenceClassification
    plain = make_model("modernbert", auto, classifier_pooling=pooling)
    sited = with_quantizers(plain, "modernbert")
    with torch.inference_mode():
        expected, ours = (model(IDS, attention_mask=MASK).logits for model in (plain, sited.model))
    torch.testing.assert_close(ours, expected, atol=TOLERANCE, rtol=1e-6)


def test_a_modernbert_layer_sees_no_further_than_its_window(make_model) -> None:
    sited = with_quantizers(make_model("modernbert"), "modernbert")
    seen: dict[str, torch.Tensor] = {}
    with observing(sited, lambda site, x: seen.update({site.name: x})):
        sited.model(IDS, attention_mask=MASK)
    everywhere, window = (seen[f"layers.{i}.attn.matmul_a_input_quantizer"][0] for i in (0, 1))
    distance = (torch.arange(12)[:, None] - torch.arange(12)).abs()
    assert (everywhere > 0).all()
    assert torch.equal(window > 0, (distance <= 4).expand(window.shape))


@pytest.mark.parametrize("family", ["deberta-v2", "distilbert", "modernbert", "mpnet"])
def test_our_blocks_train_as_those_of_transformers_do(make_model, family) -> None:
    dropout = 0.3
    names = ("attention_dropout", "attention_probs_dropout_prob", "hidden_dropout_prob")
    plain = make_model(family, **dict.fromkeys(names, dropout))
    ours = with_quantizers(plain, family).model
    states = []
    for model in (plain, ours):
        torch.manual_seed(3)
        states.append(model.train()(IDS, attention_mask=MASK).last_hidden_state)
    text = MASK.bool()
    torch.testing.assert_close(states[1][text], states[0][text], atol=TOLERANCE, rtol=1e-6)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.__name__)
def test_a_block_of_ours_is_one_of_transformers(block) -> None:
    assert issubclass(BLOCKS[block], block)
