from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import transformers

from calibrated import calibrate
from qdqbert.calibration.calibration import CalibrationResult
from qdqbert.calibration.reference.sited_model import linear_weights, observing, quantizing
from qdqbert.common.errors import CalibrationError, CheckpointError
from qdqbert.data.tokenizing.encoding import Batch
from qdqbert.encoders.families import FAMILIES
from qdqbert.quantization.numerics.ranges import Max
from qdqbert.quantization.recipes import WIDE_INPUTS
from qdqbert.quantization.spec import Range, TensorSpec
from qdqbert.training.insert.sited import insert_quantizers_

LINEAR = "encoder.layer.0.intermediate.dense"
# Equal sums in another order: attention is a different kernel in each implementation.
FLOAT_TOLERANCE = 1e-5
# The same kernels; MPNet's and DeBERTa's scores are scaled in another order.
EAGER_TOLERANCE = 1e-6


def linear_sites(*linears: str) -> set[str]:
    return {
        f"{linear}.{quantizer}"
        for linear in linears
        for quantizer in ("_input_quantizer", "_weight_quantizer")
    }


def product_sites(attention: str) -> set[str]:
    return {f"{attention}.matmul_{letter}_input_quantizer" for letter in "qkva"}


def add_sites(*branches: str) -> set[str]:
    return {
        f"{branch}.add_{side}_input_quantizer"
        for branch in branches
        for side in ("local", "residual")
    }


BERT_SITES = (
    linear_sites("attention.self.query", "attention.self.key", "attention.self.value")
    | linear_sites("attention.output.dense", "intermediate.dense", "output.dense")
    | product_sites("attention.self")
    | add_sites("attention.output", "output")
)
CROSS_SITES = (
    linear_sites("crossattention.self.query", "crossattention.self.key")
    | linear_sites("crossattention.self.value", "crossattention.output.dense")
    | product_sites("crossattention.self")
    | add_sites("crossattention.output")
)
TRAINED = sorted(name for name, each in FAMILIES.items() if each.training)
LAYER_SITES = dict.fromkeys(TRAINED, BERT_SITES) | {
    "deberta-v2": linear_sites("attention.self.query_proj", "attention.self.key_proj")
    | linear_sites("attention.self.value_proj", "attention.output.dense")
    | linear_sites("intermediate.dense", "output.dense")
    | product_sites("attention.self")
    | add_sites("attention.output", "output"),
    "distilbert": linear_sites("attention.q_lin", "attention.k_lin", "attention.v_lin")
    | linear_sites("attention.out_lin", "ffn.lin1", "ffn.lin2")
    | product_sites("attention")
    | add_sites("attention", "ffn"),
    "modernbert": linear_sites("attn.Wqkv", "attn.Wo", "mlp.Wi", "mlp.Wo")
    | product_sites("attn")
    | add_sites("attn", "mlp"),
    "mpnet": linear_sites("attention.attn.q", "attention.attn.k", "attention.attn.v")
    | linear_sites("attention.attn.o", "intermediate.dense", "output.dense")
    | product_sites("attention.attn")
    | add_sites("attention.attn", "output"),
}
TABLES = dict.fromkeys(TRAINED, 3) | {
    "deberta-v2": 1,
    "distilbert": 2,
    "modernbert": 1,
    "mpnet": 2,
}
# transformers has no other attention for these two.
ONLY_EAGER = ("deberta-v2", "mpnet")
WITH_CROSS_ATTENTION = ("bert", "camembert", "electra", "roberta", "xlm-roberta")
DECODER = {"is_decoder": True, "add_cross_attention": True, "num_hidden_layers": 2}
TEXT = torch.tensor([[7, 9, 8, 30, 31, 32], [7, 44, 8, 30, 1, 1]])
TEXT_MASK = torch.tensor([[1] * 6, [1] * 4 + [0] * 2])
ENCODER_MASK = torch.tensor([[1] * 9, [1] * 5 + [0] * 4])


def padded_inputs(batches) -> dict[str, torch.Tensor]:
    inputs = {name: torch.from_numpy(array) for name, array in batches[0].inputs.items()}
    assert (inputs["attention_mask"] == 0).any()
    return inputs


@pytest.fixture
def bert(prepared):
    return prepared("bert")


@pytest.mark.parametrize(
    ("family", "implementation"),
    [(family, "eager") for family in TRAINED]
    + [(family, "sdpa") for family in TRAINED if family not in ONLY_EAGER],
)
def test_quantizers_at_rest_do_not_change_what_transformers_computes(
    checkpoints, prepared, family, implementation
) -> None:
    each = prepared(family)
    original = transformers.AutoModel.from_pretrained(
        checkpoints(family), attn_implementation=implementation
    ).eval()
    inputs = padded_inputs(each.batches)
    with torch.inference_mode():
        expected = original(**inputs).last_hidden_state
        ours = each.checkpoint.model(**inputs).last_hidden_state
    text = inputs["attention_mask"].bool()
    atol = EAGER_TOLERANCE if implementation == "eager" else FLOAT_TOLERANCE
    torch.testing.assert_close(ours[text], expected[text], atol=atol, rtol=1e-6)


@pytest.mark.parametrize("family", TRAINED)
def test_parameters_keep_their_names_and_values(checkpoints, prepared, family) -> None:
    original = transformers.AutoModel.from_pretrained(checkpoints(family)).state_dict()
    ours = prepared(family).checkpoint.model.state_dict()
    assert list(ours) == list(original)
    assert all(torch.equal(ours[name], original[name]) for name in original)


@pytest.mark.parametrize("family", TRAINED)
def test_transformers_still_records_what_each_layer_computes(checkpoints, prepared, family) -> None:
    each = prepared(family)
    original = transformers.AutoModel.from_pretrained(
        checkpoints(family), attn_implementation="eager"
    ).eval()
    inputs = padded_inputs(each.batches)
    with torch.inference_mode():
        expected, ours = (
            model(**inputs, output_hidden_states=True, output_attentions=True)
            for model in (original, each.checkpoint.model)
        )
    text = inputs["attention_mask"].bool()
    assert len(ours.hidden_states) == len(each.layers) + 1
    for before, after in zip(expected.hidden_states, ours.hidden_states, strict=True):
        torch.testing.assert_close(after[text], before[text], atol=EAGER_TOLERANCE, rtol=1e-6)
    assert len(ours.attentions) == len(each.layers)
    for before, after in zip(expected.attentions, ours.attentions, strict=True):
        rows = text[:, None, :].expand(before.shape[:3])
        torch.testing.assert_close(after[rows], before[rows], atol=EAGER_TOLERANCE, rtol=1e-6)


@pytest.mark.parametrize("family", TRAINED)
def test_gradients_reach_every_weight_through_quantizers_at_rest(prepared, family) -> None:
    each = prepared(family)
    model = each.checkpoint.model
    inputs = padded_inputs(each.batches)
    states = model(**inputs).last_hidden_state[inputs["attention_mask"].bool()]
    # LayerNorms leave nothing of a plain sum.
    weighted = (states * torch.linspace(-1, 1, states.shape[-1])).sum()
    names = [site.name for site in each.sited.sites if site.kind == "weight"]
    weights = [model.get_parameter(name.replace("._weight_quantizer", ".weight")) for name in names]
    gradients = torch.autograd.grad(weighted, weights)
    assert {name for name, each in zip(names, gradients, strict=True) if not each.any()} == set()


@pytest.mark.parametrize("family", TRAINED)
def test_a_quantized_run_is_near_float_and_not_equal_to_it(prepared, family) -> None:
    each = prepared(family)
    plan = each.plan("portable", "full")
    inputs = padded_inputs(each.batches)
    with torch.inference_mode():
        floats = each.checkpoint.model(**inputs).last_hidden_state
        with quantizing(each.sited, plan.specs, CalibrationResult(ranges=each.plain.ranges)):
            ours = each.checkpoint.model(**inputs).last_hidden_state
    text = inputs["attention_mask"].bool()
    error = (ours[text] - floats[text]).norm() / floats[text].norm()
    assert 1e-3 < error < 0.3


@pytest.mark.parametrize("name", ["classifier", "reranker"])
def test_quantizers_at_rest_do_not_change_a_head(checkpoints, name) -> None:
    auto = transformers.AutoModelForSequenceClassification
    original = auto.from_pretrained(checkpoints(name)).eval()
    sited = insert_quantizers_(copy.deepcopy(original), FAMILIES["bert"])
    ids = torch.randint(5, 300, (3, 9), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected, ours = original(ids).logits, sited.model(ids).logits
    torch.testing.assert_close(ours, expected, atol=FLOAT_TOLERANCE, rtol=0)
    assert all("bert.encoder" in site.name or "bert.embed" in site.name for site in sited.sites)


@pytest.mark.parametrize("family", TRAINED)
def test_every_layer_has_the_quantizers_of_its_family(prepared, family) -> None:
    each = prepared(family)
    names = [site.name for site in each.sited.sites]
    expected = LAYER_SITES[family]
    assert len(expected) == (16 if family == "modernbert" else 20)
    assert len(set(names)) == len(names)
    for layer in each.layers:
        here = {name.removeprefix(f"{layer}.") for name in names if name.startswith(f"{layer}.")}
        assert here == expected
    tables = [name for name in names if name.startswith("embeddings.")]
    assert len(tables) == TABLES[family]
    assert len(names) == len(expected) * len(each.layers) + len(tables)


@pytest.mark.parametrize(
    ("ending", "kind", "sequence_axes", "channel_axis"),
    [
        ("query._input_quantizer", "activation", (1,), None),
        ("query._weight_quantizer", "weight", (), 0),
        ("matmul_k_input_quantizer", "activation", (3,), None),
        ("matmul_a_input_quantizer", "activation", (2, 3), None),
        ("word_embeddings._weight_quantizer", "weight", (), 1),
    ],
    ids=["input", "weight", "key", "probabilities", "table"],
)
def test_a_site_knows_its_axes(bert, ending, kind, sequence_axes, channel_axis) -> None:
    site = next(site for site in bert.sited.sites if site.name.endswith(ending))
    assert (site.kind, site.sequence_axes, site.channel_axis) == (
        kind,
        sequence_axes,
        channel_axis,
    )


@pytest.mark.parametrize("family", TRAINED)
def test_every_activation_is_seen_with_its_tokens_on_the_axes_of_the_site(prepared, family) -> None:
    each = prepared(family)
    seen: dict[str, torch.Size] = {}
    with observing(each.sited, lambda site, x: seen.update({site.name: x.shape})):
        each.checkpoint.model(torch.full((2, 11), 7), attention_mask=torch.ones(2, 11))
    activations = [site for site in each.sited.sites if site.kind == "activation"]
    assert set(seen) == {site.name for site in activations}
    for site in activations:
        shape = seen[site.name]
        assert shape[0] == 2
        assert site.sequence_axes == tuple(axis for axis, size in enumerate(shape) if size == 11)


def test_observing_sees_activations_only_and_computes_in_float(bert) -> None:
    ids, seen = torch.full((1, 6), 9), []
    with torch.inference_mode():
        expected = bert.checkpoint.model(ids).last_hidden_state
        with observing(bert.sited, lambda site, x: seen.append(site)):
            result = bert.checkpoint.model(ids).last_hidden_state
    torch.testing.assert_close(result, expected, atol=0, rtol=0)
    assert {site.kind for site in seen} == {"activation"}
    # Of 20 sites a layer 6 are weights.
    assert len(seen) == 14 * len(bert.layers)


def test_observing_shows_inputs_as_they_will_be_rescaled(bert) -> None:
    name = f"{LINEAR}._input_quantizer"
    plain, rescaled = [], []
    scale = torch.linspace(0.5, 2, 32)

    def keep(into):
        return lambda site, x: into.append(x) if site.name == name else None

    with torch.inference_mode():
        for into, scales in ((plain, {}), (rescaled, {name: scale})):
            with observing(bert.sited, keep(into), scales):
                bert.checkpoint.model(torch.full((1, 4), 9))
    torch.testing.assert_close(rescaled[0], plain[0] * scale, atol=0, rtol=0)


def fail(*_: object) -> None:
    raise RuntimeError("broken")


@pytest.mark.parametrize("mode", ["observing", "quantizing"])
def test_an_exception_leaves_the_model_as_it_was(bert, mode) -> None:
    specs = dict.fromkeys((site.name for site in bert.sited.sites), None)
    specs["embeddings.word_embeddings._weight_quantizer"] = TensorSpec(narrow=True, axis=1)
    manager = (
        observing(bert.sited, fail)
        if mode == "observing"
        else quantizing(bert.sited, specs, CalibrationResult())
    )
    ids = torch.full((1, 6), 9)
    hook = bert.checkpoint.model.encoder.register_forward_hook(fail)
    try:
        with pytest.raises(RuntimeError, match="broken"), manager:
            bert.checkpoint.model(ids)
    finally:
        hook.remove()
    assert all(quantizer.action is None for quantizer in bert.sited.quantizers.values())


def test_a_context_within_another_puts_the_outer_one_back(bert) -> None:
    outer, inner = [], []
    with observing(bert.sited, lambda site, x: outer.append(site.name)):
        with observing(bert.sited, lambda site, x: inner.append(site.name)):
            bert.checkpoint.model(torch.full((1, 4), 9))
        assert not outer
        bert.checkpoint.model(torch.full((1, 4), 9))
    assert inner == outer


def test_quantizing_without_a_range_names_the_site(bert) -> None:
    specs = dict.fromkeys((site.name for site in bert.sited.sites), None)
    specs["encoder.layer.1.attention.self.matmul_q_input_quantizer"] = TensorSpec()
    with (
        pytest.raises(
            CalibrationError, match=r"`encoder\.layer\.1\.attention\.self\.matmul_q_input"
        ),
        quantizing(bert.sited, specs, CalibrationResult()),
    ):
        pass


@pytest.mark.parametrize("affine", [False, True], ids=["symmetric", "affine"])
@pytest.mark.parametrize("rescaled", [False, True], ids=["plain", "rescaled"])
def test_a_quantized_linear_is_what_numpy_makes_of_its_codes(bert, affine, rescaled) -> None:
    linear = bert.checkpoint.model.get_submodule(LINEAR)
    input_site, weight_site = f"{LINEAR}._input_quantizer", f"{LINEAR}._weight_quantizer"
    specs = dict.fromkeys((site.name for site in bert.sited.sites), None)
    specs[weight_site] = TensorSpec(narrow=True, axis=0)
    specs[input_site] = TensorSpec(signed=not affine, symmetric=not affine)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 5, 32)).astype(np.float32)
    factor = np.exp(rng.normal(size=32)).astype(np.float32) if rescaled else np.ones(32, "f")

    scales = {input_site: torch.from_numpy(factor)} if rescaled else {}
    chosen = {input_site: Range(amax=2.0, low=-1.0, high=2.0)}
    with (
        quantizing(bert.sited, specs, CalibrationResult(ranges=chosen, scales=scales)),
        torch.inference_mode(),
    ):
        result = linear(torch.from_numpy(x)).numpy()

    weight, bias = linear.weight.detach().numpy() / factor, linear.bias.detach().numpy()
    weight_step = np.abs(weight).max(axis=1, keepdims=True) / np.float32(127)
    weight_codes = np.clip(np.rint(weight / weight_step), -127, 127)
    # By hand: [-1, 2] in 255 steps puts 0 at code 85; [-2, 2] has steps of 2 / 127.
    step, zero, low, high = (3 / 255, 85, 0, 255) if affine else (2 / 127, 0, -128, 127)
    codes = np.clip(np.rint(x * factor / np.float32(step)) + zero, low, high) - zero
    expected = (codes * step) @ (weight_codes * weight_step).T + bias
    # float32 sums of 32 terms against float64 ones; a wrong code would move them by 1e-3.
    np.testing.assert_allclose(result, expected, atol=1e-5)


@pytest.mark.parametrize("left", ["_input_quantizer", "_weight_quantizer"])
def test_a_linear_half_of_which_is_float_is_smoothed_on_both_sides_or_on_none(bert, left) -> None:
    linear = bert.checkpoint.model.get_submodule(LINEAR)
    input_site = f"{LINEAR}._input_quantizer"
    specs = dict.fromkeys((site.name for site in bert.sited.sites), None)
    specs[input_site] = TensorSpec(signed=False, symmetric=False)
    specs[f"{LINEAR}._weight_quantizer"] = TensorSpec(narrow=True, axis=0)
    specs[f"{LINEAR}.{left}"] = None
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(2, 5, 32)).astype(np.float32))
    scales = {input_site: torch.from_numpy(np.exp(rng.normal(size=32)).astype(np.float32))}
    ranges = {input_site: Range(amax=40.0, low=-40.0, high=40.0)}
    with torch.inference_mode():
        expected = linear(x)
        with quantizing(bert.sited, specs, CalibrationResult(ranges=ranges, scales=scales)):
            made = linear(x)
    # A factor on one side alone moves the product by as much as it is large.
    assert 0 < float((made - expected).square().mean() / expected.square().mean()) < 0.05


@pytest.mark.parametrize("affine", [False, True], ids=["symmetric", "affine"])
def test_a_smoothed_input_of_an_add_is_divided_again(bert, affine) -> None:
    layer = bert.checkpoint.model.encoder.layer[0].output
    names = [f"encoder.layer.0.output.add_{side}_input_quantizer" for side in ("local", "residual")]
    spec = TensorSpec(signed=not affine, symmetric=not affine)
    specs = {site.name: spec if site.name in names else None for site in bert.sited.sites}
    rng = np.random.default_rng(1)
    factors = np.exp(rng.normal(size=(2, 32))).astype(np.float32)
    scales = {name: torch.from_numpy(each) for name, each in zip(names, factors, strict=True)}
    chosen = dict.fromkeys(names, Range(amax=2.0, low=-1.0, high=2.0))
    hidden, residual = rng.normal(size=(1, 5, 64)), rng.normal(size=(1, 5, 32))
    inputs = [torch.from_numpy(each.astype(np.float32)) for each in (hidden, residual)]
    with (
        quantizing(bert.sited, specs, CalibrationResult(ranges=chosen, scales=scales)),
        torch.inference_mode(),
    ):
        result = layer(*inputs).numpy()
    with torch.inference_mode():
        local = layer.dense(inputs[0]).numpy()

    step, zero, low, high = (3 / 255, 85, 0, 255) if affine else (2 / 127, 0, -128, 127)
    total = np.zeros_like(local, dtype=np.float64)
    for x, factor in zip((local, inputs[1].numpy()), factors, strict=True):
        codes = np.clip(np.rint(x * factor / np.float32(step)) + zero, low, high) - zero
        total += codes * step / factor
    centered = total - total.mean(axis=-1, keepdims=True)
    expected = centered / np.sqrt(centered.var(axis=-1, keepdims=True) + layer.LayerNorm.eps)
    weight, bias = (
        each.detach().numpy() for each in (layer.LayerNorm.weight, layer.LayerNorm.bias)
    )
    # float32 against float64; a wrong code would move a value by 1e-3 at least.
    np.testing.assert_allclose(result, expected * weight + bias, atol=2e-5)


def test_biases_are_corrected_only_within_the_context(bert) -> None:
    linear = bert.checkpoint.model.get_submodule(LINEAR)
    specs = dict.fromkeys((site.name for site in bert.sited.sites), None)
    specs[f"{LINEAR}._weight_quantizer"] = TensorSpec(narrow=True, axis=0)
    bias = linear.bias
    means = {f"{LINEAR}._input_quantizer": torch.ones(32)}
    with quantizing(bert.sited, specs, CalibrationResult(means=means)):
        assert not torch.equal(linear.bias, bias)
    assert linear.bias is bias


def test_weights_of_linear_layers_are_found_by_their_inputs(bert) -> None:
    weights = linear_weights(bert.sited)
    assert len(weights) == 6 * len(bert.layers)
    assert weights[f"{LINEAR}._input_quantizer"].shape == (64, 32)


def test_a_model_without_layers_of_the_family_is_refused() -> None:
    config = transformers.AutoConfig.for_model(
        "distilbert", dim=8, n_heads=2, n_layers=1, hidden_dim=8, vocab_size=16
    )
    model = transformers.AutoModel.from_config(config)
    with pytest.raises(CheckpointError, match=r"DistilBertModel.*`encoder\.layer\.0`"):
        insert_quantizers_(model, FAMILIES["bert"])


@pytest.fixture
def decoder_and_ours(make_model):
    """A plain eager decoder with cross-attention, its twin with quantizers, and encoder states."""

    def make(family: str):
        plain = make_model(family, **DECODER)
        sited = insert_quantizers_(copy.deepcopy(plain), FAMILIES[family])
        states = torch.randn((2, 9, 32), generator=torch.Generator().manual_seed(1))
        given = {"encoder_hidden_states": states, "encoder_attention_mask": ENCODER_MASK}
        return plain, sited, given

    return make


@pytest.mark.parametrize("family", WITH_CROSS_ATTENTION)
def test_a_layer_with_cross_attention_has_14_quantizers_more(decoder_and_ours, family) -> None:
    _, sited, _ = decoder_and_ours(family)
    layer = "encoder.layer.0."
    names = [site.name for site in sited.sites if site.name.startswith(layer)]
    assert len(CROSS_SITES) == 14
    assert {name.removeprefix(layer) for name in names} == BERT_SITES | CROSS_SITES
    assert len(sited.sites) == 2 * 34 + 3


@pytest.mark.parametrize("family", WITH_CROSS_ATTENTION)
def test_a_decoder_computes_what_transformers_does(decoder_and_ours, family) -> None:
    plain, sited, given = decoder_and_ours(family)
    with torch.inference_mode():
        expected = plain(TEXT, attention_mask=TEXT_MASK, **given).last_hidden_state
        ours = sited.model(TEXT, attention_mask=TEXT_MASK, **given).last_hidden_state
    text = TEXT_MASK.bool()
    torch.testing.assert_close(ours[text], expected[text], atol=EAGER_TOLERANCE, rtol=1e-6)


@pytest.mark.parametrize("family", WITH_CROSS_ATTENTION)
def test_a_decoder_with_a_cache_agrees_token_by_token_with_a_single_pass(
    decoder_and_ours, family
) -> None:
    plain, sited, given = decoder_and_ours(family)
    text = TEXT[:, :4]
    caches: dict[bool, object] = {True: None, False: None}
    with torch.inference_mode():
        whole = plain(text, **given).last_hidden_state
        for step in range(text.shape[1]):
            outputs = {
                is_ours: model(
                    text[:, step : step + 1],
                    past_key_values=caches[is_ours],
                    use_cache=True,
                    **given,
                )
                for is_ours, model in ((True, sited.model), (False, plain))
            }
            caches = {key: output.past_key_values for key, output in outputs.items()}
            ours, expected = (outputs[key].last_hidden_state for key in (True, False))
            torch.testing.assert_close(ours, expected, atol=EAGER_TOLERANCE, rtol=1e-6)
            torch.testing.assert_close(ours[:, 0], whole[:, step], atol=FLOAT_TOLERANCE, rtol=0)
    assert caches[True].get_seq_length() == 4


def test_a_decoder_does_not_see_the_tokens_that_follow(decoder_and_ours) -> None:
    _, sited, given = decoder_and_ours("bert")
    changed = TEXT.clone()
    changed[:, 3:] = 50
    with torch.inference_mode():
        first, second = (sited.model(ids, **given).last_hidden_state for ids in (TEXT, changed))
    assert torch.equal(first[:, :3], second[:, :3])
    assert not torch.equal(first[:, 3:], second[:, 3:])


def test_sites_that_read_an_encoder_do_not_follow_the_mask_of_the_text(decoder_and_ours) -> None:
    _, sited, given = decoder_and_ours("bert")
    seen: dict[str, torch.Size] = {}
    with observing(sited, lambda site, x: seen.update({site.name: x.shape})):
        sited.model(TEXT, attention_mask=TEXT_MASK, **given)
    activations = [site for site in sited.sites if site.kind == "activation"]
    assert set(seen) == {site.name for site in activations}
    for site in activations:
        where = tuple(axis for axis, size in enumerate(seen[site.name]) if size == 6)
        assert site.sequence_axes == where


def test_a_decoder_is_calibrated_on_texts_of_other_lengths_than_the_encoder(
    decoder_and_ours,
) -> None:
    _, sited, given = decoder_and_ours("bert")
    names = [site.name for site in sited.sites if site.kind == "activation"]
    inputs = {"input_ids": TEXT.numpy(), "attention_mask": TEXT_MASK.numpy()}
    chosen = calibrate(
        sited,
        lambda inputs: sited.model(**inputs, **given),
        [Batch(indices=(0, 1), inputs=inputs)],
        sites=names,
        calibrator=Max(),
        smoothing=WIDE_INPUTS,
    )
    assert set(chosen.ranges) == set(names)
    states = given["encoder_hidden_states"]
    key = chosen.ranges["encoder.layer.0.crossattention.self.key._input_quantizer"]
    assert key.high == pytest.approx(states.max().item())
    assert "encoder.layer.0.crossattention.self.query._input_quantizer" in chosen.scales
    assert not [name for name in chosen.scales if "crossattention.self.key" in name]
