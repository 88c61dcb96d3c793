from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import transformers

from qdqbert.checkpoint.families import FAMILIES
from qdqbert.errors import CalibrationError, CheckpointError
from qdqbert.insert.sited import insert_quantizers_, linear_weights, observing, quantizing
from qdqbert.spec import Range, TensorSpec

LINEAR = "encoder.layer.0.intermediate.dense"
# Equal sums in another order: attention is a different kernel in each implementation.
FLOAT_TOLERANCE = 1e-5

LAYER_SITES = {
    "attention.self.query._input_quantizer",
    "attention.self.query._weight_quantizer",
    "attention.self.key._input_quantizer",
    "attention.self.key._weight_quantizer",
    "attention.self.value._input_quantizer",
    "attention.self.value._weight_quantizer",
    "attention.self.matmul_q_input_quantizer",
    "attention.self.matmul_k_input_quantizer",
    "attention.self.matmul_v_input_quantizer",
    "attention.self.matmul_a_input_quantizer",
    "attention.output.dense._input_quantizer",
    "attention.output.dense._weight_quantizer",
    "attention.output.add_local_input_quantizer",
    "attention.output.add_residual_input_quantizer",
    "intermediate.dense._input_quantizer",
    "intermediate.dense._weight_quantizer",
    "output.dense._input_quantizer",
    "output.dense._weight_quantizer",
    "output.add_local_input_quantizer",
    "output.add_residual_input_quantizer",
}


def padded_inputs(batches) -> dict[str, torch.Tensor]:
    inputs = {name: torch.from_numpy(array) for name, array in batches[0].inputs.items()}
    assert (inputs["attention_mask"] == 0).any()
    return inputs


@pytest.fixture
def bert(prepared):
    return prepared("bert")


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("family", sorted(FAMILIES))
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
    torch.testing.assert_close(ours[text], expected[text], atol=FLOAT_TOLERANCE, rtol=0)


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


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_layer_has_the_20_quantizers_of_qdqbert(prepared, family) -> None:
    each = prepared(family)
    names = [site.name for site in each.sited.sites]
    assert len(set(names)) == len(names)
    for layer in each.layers:
        here = {name.removeprefix(f"{layer}.") for name in names if name.startswith(f"{layer}.")}
        assert here == LAYER_SITES
    tables = [name for name in names if name.startswith("embeddings.")]
    assert len(tables) == 3
    assert len(names) == 20 * len(each.layers) + 3


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


def test_sequence_axes_are_where_the_tokens_are(bert) -> None:
    seen: dict[str, torch.Size] = {}
    with observing(bert.sited, lambda site, x: seen.update({site.name: x.shape})):
        bert.checkpoint.model(torch.full((2, 11), 7))
    for site in bert.sited.sites:
        if site.kind == "activation":
            shape = seen[site.name]
            assert shape[0] == 2
            assert site.sequence_axes == tuple(
                axis for axis, size in enumerate(shape) if size == 11
            )


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
        observing(bert.sited, fail) if mode == "observing" else quantizing(bert.sited, specs, {})
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
        quantizing(bert.sited, specs, {}),
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
    with quantizing(bert.sited, specs, chosen, scales), torch.inference_mode():
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


def test_weights_of_linears_are_found_by_their_inputs(bert) -> None:
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
