from __future__ import annotations

import copy
import dataclasses
import functools
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import qdqbert
from calibrated import calibrate as calibrate_floats
from qdqbert import QuantizerOptions
from qdqbert.calibration.calibration import CalibrationResult
from qdqbert.calibration.quantizers.quantizer import Quantizer
from qdqbert.calibration.reference.sited_model import SitedModel, quantizing, site_of, sited_model
from qdqbert.common.errors import QdqBertError, SpecError, UnmatchedRuleError, UserInputError
from qdqbert.data.tokenizing.encoding import Batch
from qdqbert.encoders.families import FAMILIES, quantized_family
from qdqbert.graphs.targets import target_named
from qdqbert.quantization.numerics.ranges import Max
from qdqbert.quantization.recipes import build_recipe
from qdqbert.quantization.spec import TensorSpec, resolve
from qdqbert.training.insert.modules import ATTENTION
from qdqbert.training.insert.sited import insert_quantizers_
from qdqbert.training.models.quantized import load_model
from qdqbert.training.models.state import (
    MOVING,
    fix_ranges_,
    learn_ranges_,
    stored_calibration,
    stored_specs,
)

RECIPES = ("full", "full-smoothed", "linear")
# Each recipe on BERT, and each other family once.
OTHERS = sorted(name for name, each in FAMILIES.items() if each.training and name != "bert")
EACH = pytest.mark.parametrize(
    ("family", "recipe"),
    [("bert", recipe) for recipe in RECIPES]
    + [(name, RECIPES[index % len(RECIPES)]) for index, name in enumerate(OTHERS)],
)
EACH_RECIPE = pytest.mark.parametrize("recipe", RECIPES)
HEADS = {
    "AutoModel": transformers.BertModel,
    "AutoModelForCausalLM": transformers.BertLMHeadModel,
    "AutoModelForMaskedLM": transformers.BertForMaskedLM,
    "AutoModelForSequenceClassification": transformers.BertForSequenceClassification,
    "AutoModelForNextSentencePrediction": transformers.BertForNextSentencePrediction,
    "AutoModelForMultipleChoice": transformers.BertForMultipleChoice,
    "AutoModelForTokenClassification": transformers.BertForTokenClassification,
    "AutoModelForQuestionAnswering": transformers.BertForQuestionAnswering,
}
CLASSIFIER = transformers.AutoModelForSequenceClassification
# Last bits of scales: pytorch-quantization's codes go back by a division. Share of the error of
# quantization itself.
SAME_CODES = 1e-4
# Smoothed weights are multiplied by 1/s here and divided by s there: of 10,000 weights a few may
# lie so near to a tie that they get the next code.
FEW_CODES = 0.5
# Attention by eager kernels, here in another order; inputs and weights scaled by s and 1/s.
FLOAT_TOLERANCE = 1e-5


def inputs_for(
    model: nn.Module, *, count: int = 2, choices: bool = False
) -> list[dict[str, Tensor]]:
    """Batches of three texts, most of which end in [PAD]."""
    generator = torch.Generator().manual_seed(3)
    batches = []
    for length in (9, 7, 12, 5)[:count]:
        shape = (3, 2, length) if choices else (3, length)
        ids = torch.randint(5, 300, shape, generator=generator)
        mask = torch.ones_like(ids)
        mask[1, ..., -2:] = 0
        mask[2, ..., -4:] = 0
        ids = torch.where(mask.bool(), ids, model.config.pad_token_id)
        batches.append({"input_ids": ids, "attention_mask": mask})
    return batches


@torch.no_grad()
def outputs_of(model: nn.Module, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: x for name, x in model(**inputs).items() if isinstance(x, Tensor)}


def states_of(model: nn.Module, batches: list[dict[str, Tensor]]) -> Tensor:
    """The last hidden states of all tokens that are text."""
    return torch.cat(
        [
            outputs_of(model, batch)["last_hidden_state"][batch["attention_mask"].bool()]
            for batch in batches
        ]
    )


def enabled(model: nn.Module) -> dict[str, Quantizer]:
    return {name: q for name, q in sited_model(model).quantizers.items() if q.is_enabled}


def realign(model: nn.Module) -> None:
    # Loaded tensors lie in the file's own, odd addresses, at which matmul kernels add in another
    # order: equal weights then differ in the last bit of the output.
    for tensor in [*model.parameters(), *model.buffers()]:
        tensor.data = tensor.data.clone()


def ranges_of(model: nn.Module) -> dict[str, Tensor]:
    """Everything that quantizers keep, copied."""
    return {
        name: value.clone() for name, value in model.state_dict().items() if "_quantizer." in name
    }


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert expected
    for name, value in expected.items():
        assert not value.isnan().any(), name
        assert torch.equal(found[name], value), name


@dataclasses.dataclass(frozen=True)
class Reference:
    """A float model of the same weights, with the sites of `qdqbert quantize`."""

    sited: SitedModel
    specs: dict[str, TensorSpec | None]
    calibration: CalibrationResult


@pytest.fixture(scope="module")
def prepared_as(make_model):
    """Prepared and calibrated encoders by family and recipe; not to be changed."""

    @functools.cache
    def make(family: str, recipe: str) -> Any:
        model = qdqbert.prepare(make_model(family), recipe)
        return qdqbert.calibrate(model, inputs_for(model))

    return make


@pytest.fixture(scope="module")
def reference(make_model):
    """What the pipeline of `qdqbert quantize` makes of the same float weights."""

    @functools.cache
    def make(family: str, recipe: str) -> Reference:
        model = make_model(family)
        sited = insert_quantizers_(model, quantized_family(family))
        built = build_recipe(recipe)
        target = target_named("portable")
        resolved = resolve(built.rules, sited.sites)
        specs = {site.name: target.adapt(site, resolved[site.name]) for site in sited.sites}
        batches = [
            Batch(indices=(0, 1, 2), inputs={name: x.numpy() for name, x in batch.items()})
            for batch in inputs_for(model)
        ]
        calibration = calibrate_floats(
            sited,
            lambda inputs: model(**inputs),
            batches,
            sites=[s.name for s in sited.sites if s.kind == "activation" and specs[s.name]],
            calibrator=Max(),
            smoothing=built.smoothing,
            clips_residuals=built.clips_residuals,
        )
        return Reference(sited=sited, specs=specs, calibration=calibration)

    return make


@pytest.fixture
def bert(make_model):
    return make_model("bert")


def test_calibrating_a_model_and_a_checkpoint_give_the_same_fused_ranges(bert) -> None:
    options = QuantizerOptions(fuse_qkv=True, quant_per_tensor=True, clip_gelu=0.5)
    recipe = build_recipe("full-smoothed")
    sited = insert_quantizers_(copy.deepcopy(bert), quantized_family("bert"), ["layer"])
    expected = calibrate_floats(
        sited,
        lambda inputs: sited.model(**inputs),
        [
            Batch(indices=(0, 1, 2), inputs={name: x.numpy() for name, x in batch.items()})
            for batch in inputs_for(bert)
        ],
        sites=[site.name for site in sited.sites if site.kind == "activation"],
        calibrator=Max(),
        smoothing=recipe.smoothing,
        quantizer_options=options,
    )
    model = calibrated(bert, "full-smoothed", **options.to_dict())
    found = stored_calibration(sited_model(model))
    for name, chosen in expected.ranges.items():
        # Quantizers keep float32.
        for field in ("low", "high"):
            assert getattr(found.ranges[name], field) == pytest.approx(
                getattr(chosen, field), rel=1e-6, abs=1e-7
            ), name
    assert_same(found.scales, dict(expected.scales))
    base = "encoder.layer.0.attention.self"
    products = [found.ranges[f"{base}.matmul_{letter}_input_quantizer"] for letter in "qkv"]
    assert products[0] == products[1] == products[2]
    for name, amax in expected.weight_amax.items():
        assert torch.equal(found.weight_amax[name], amax), name
    assert f"{base}.key._weight_quantizer" in expected.weight_amax


# What becomes of a model


@EACH
def test_parameters_stay_the_same_objects(make_model, family, recipe) -> None:
    model = make_model(family)
    parameters = dict(model.named_parameters())
    before = copy.deepcopy(model.state_dict())
    prepared = qdqbert.prepare(model, recipe)
    assert prepared is model
    after = dict(prepared.named_parameters())
    assert list(after) == list(parameters)
    assert all(after[name] is parameter for name, parameter in parameters.items())
    assert_same(dict(prepared.state_dict()), dict(before))
    assert isinstance(prepared, type(make_model(family)))
    assert type(prepared).__name__ == type(make_model(family)).__name__


@EACH
@pytest.mark.usual("bert-*", "*-full-smoothed")
def test_a_model_has_no_range_until_it_is_calibrated_and_then_has_all(
    make_model, prepared_as, family, recipe
) -> None:
    plain = qdqbert.prepare(make_model(family), recipe)
    assert ranges_of(plain) == {}
    calibrated = prepared_as(family, recipe)
    assert enabled(plain).keys() == enabled(calibrated).keys()
    for name, quantizer in enabled(calibrated).items():
        assert (quantizer.amax is None) != (quantizer.range is None), name
    disabled = sited_model(calibrated).quantizers.keys() - enabled(calibrated).keys()
    assert not any(key.startswith(tuple(disabled)) for key in ranges_of(calibrated) if disabled)


@EACH
def test_a_model_is_pickled_with_its_quantizers(prepared_as, monkeypatch, family, recipe) -> None:
    model = prepared_as(family, recipe)
    stored = pickle.dumps(model)
    # As in a process that has made no such model.
    monkeypatch.delitem(transformers.AttentionInterface._global_mapping, ATTENTION)
    again = pickle.loads(stored)
    assert type(again) is type(model)
    assert_same(ranges_of(again), ranges_of(model))
    batches = inputs_for(model, count=1)
    realign(again)
    assert torch.equal(states_of(again, batches), states_of(model, batches))


@EACH
def test_quantizers_are_those_of_the_recipe(prepared_as, reference, family, recipe) -> None:
    expected = reference(family, recipe).specs
    assert stored_specs(sited_model(prepared_as(family, recipe))) == expected
    assert any(spec is not None for spec in expected.values())


@EACH
def test_disabled_quantizers_leave_the_float_model(make_model, prepared_as, family, recipe) -> None:
    model = copy.deepcopy(prepared_as(family, recipe))
    for quantizer in sited_model(model).quantizers.values():
        quantizer.disable()
    batches = inputs_for(model)
    expected = states_of(make_model(family), batches)
    torch.testing.assert_close(
        states_of(model, batches), expected, atol=FLOAT_TOLERANCE, rtol=FLOAT_TOLERANCE
    )


# What it computes


@EACH
def test_ranges_and_scales_are_those_of_the_pipeline(
    prepared_as, reference, family, recipe
) -> None:
    ours = stored_calibration(sited_model(prepared_as(family, recipe)))
    expected = reference(family, recipe).calibration
    assert ours.ranges.keys() == expected.ranges.keys()
    for name, chosen in expected.ranges.items():
        spec = reference(family, recipe).specs[name]
        if spec.symmetric:
            assert ours.ranges[name].amax == pytest.approx(chosen.amax, rel=1e-7), name
        else:
            # A buffer holds float32, the pipeline float64 of the same number.
            found = (ours.ranges[name].low, ours.ranges[name].high)
            assert found == pytest.approx((chosen.low, chosen.high), rel=1e-7), name
    assert_scales(ours, expected)


def assert_scales(ours: CalibrationResult, expected: CalibrationResult) -> None:
    assert expected.scales
    assert ours.scales.keys() == expected.scales.keys()
    for name, scale in expected.scales.items():
        assert torch.equal(ours.scales[name], scale), name


@EACH
def test_outputs_are_those_of_the_pipelines_fake_quantization(
    prepared_as, reference, family, recipe
) -> None:
    model, expected = prepared_as(family, recipe), reference(family, recipe)
    batches = inputs_for(model, count=4)
    floats = states_of(expected.sited.model, batches)
    with quantizing(
        expected.sited,
        expected.specs,
        CalibrationResult(ranges=expected.calibration.ranges, scales=expected.calibration.scales),
    ):
        there = states_of(expected.sited.model, batches)
    here = states_of(model, batches)
    error = (there - floats).norm()
    assert error > 5e-3 * floats.norm()  # so that it says something
    tokens = [int(batch["attention_mask"].sum()) for batch in batches]
    *others, most = sorted(float(each.norm() / error) for each in (here - there).split(tokens))
    assert most < FEW_CODES
    if recipe == "full":  # some CPU's order of sums may put one value over a tie
        assert max(others) < SAME_CODES


# Saving and loading


def saved(model: Any, tokenizer_of: Path, folder: Path) -> Path:
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(tokenizer_of).save_pretrained(folder)
    return folder


@EACH
@pytest.mark.usual("bert-*", "*-full-smoothed")
def test_a_saved_model_loads_bit_for_bit(
    prepared_as, checkpoints, tmp_path, family, recipe
) -> None:
    model = prepared_as(family, recipe)
    folder = saved(model, checkpoints(family), tmp_path / "saved")
    loaded = load_model(str(folder)).model
    assert stored_specs(sited_model(loaded)) == stored_specs(sited_model(model))
    assert_same(dict(loaded.state_dict()), dict(model.state_dict()))
    realign(loaded)
    batch = inputs_for(model)[0]
    other = copy.deepcopy(model)
    realign(other)
    assert_same(outputs_of(loaded, batch), outputs_of(other, batch))
    assert_float_weights_load(folder, transformers.AutoModel, model)


@pytest.mark.parametrize("auto", list(HEADS))
@pytest.mark.parametrize("recipe", ["full", "full-smoothed"])
@pytest.mark.usual(
    "full-*ForCausalLM", "full-smoothed-*ForMultipleChoice", "full-*ForQuestionAnswering"
)
def test_each_head_of_bert_is_prepared_saved_and_loaded(
    make_model, checkpoints, tmp_path, auto, recipe
) -> None:
    decoder = {"is_decoder": True, "use_cache": False} if "Causal" in auto else {}
    model = make_model("bert", getattr(transformers, auto), num_hidden_layers=1, **decoder)
    qdqbert.prepare(model, recipe)
    assert isinstance(model, HEADS[auto])
    batches = inputs_for(model, choices="Choice" in auto)
    qdqbert.calibrate(model, batches)
    folder = saved(model, checkpoints("bert"), tmp_path / "saved")
    loaded = load_model(str(folder)).model
    assert type(loaded).__name__ == HEADS[auto].__name__
    assert_same(dict(loaded.state_dict()), dict(model.state_dict()))
    realign(loaded)
    realign(model)
    assert_same(outputs_of(loaded, batches[0]), outputs_of(model, batches[0]))
    assert_float_weights_load(folder, getattr(transformers, auto), model)


def assert_float_weights_load(folder: Path, auto: Any, model: nn.Module) -> None:
    """Whether transformers alone finds the weights."""
    alone, info = auto.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"]
    assert all("_quantizer." in key for key in info["unexpected_keys"])
    floats = {name: x for name, x in model.state_dict().items() if "_quantizer." not in name}
    assert_same(dict(alone.state_dict()), floats)
    assert not any(isinstance(module, Quantizer) for module in alone.modules())


def test_a_model_that_was_not_calibrated_is_saved_and_loaded_too(
    bert, checkpoints, tmp_path
) -> None:
    model = qdqbert.prepare(bert, exclude=("query",))
    loaded = load_model(str(saved(model, checkpoints("bert"), tmp_path / "saved"))).model
    assert ranges_of(loaded) == {}
    assert enabled(loaded).keys() == enabled(model).keys()
    batch = inputs_for(model)[0]
    realign(loaded)
    realign(model)
    assert_same(outputs_of(loaded, batch), outputs_of(model, batch))


@pytest.mark.parametrize("how", ["learned", "moving"])
def test_a_model_whose_ranges_are_still_trained_loads_as_it_was(
    bert, checkpoints, tmp_path, how
) -> None:
    model = calibrated(bert, "linear")
    learn_ranges_(sited_model(model), how)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "clip_value" in name:
                parameter *= 0.5
    loaded = load_model(str(saved(model, checkpoints("bert"), tmp_path / "saved"))).model
    assert_same(dict(loaded.state_dict()), dict(model.state_dict()))
    realign(loaded)
    realign(model)
    batch = inputs_for(model)[0]
    assert_same(outputs_of(loaded, batch), outputs_of(model, batch))
    for each in (model, loaded):
        fix_ranges_(sited_model(each))
    assert_same(ranges_of(loaded), ranges_of(model))
    assert_same(outputs_of(loaded, batch), outputs_of(model, batch))


# What is left out


def calibrated(model: Any, recipe: str = "full", **options: Any) -> Any:
    exclude = options.pop("exclude", ())
    quantizers = qdqbert.Quantizers(**options)
    qdqbert.prepare(model, recipe, exclude=exclude, quantizers=quantizers)
    return qdqbert.calibrate(model, inputs_for(model))


@pytest.mark.parametrize("pattern", ["classifier", "pooler", "LayerNorm"])
def test_what_has_no_quantizers_may_be_excluded_all_the_same(make_model, pattern) -> None:
    model = qdqbert.prepare(make_model("bert", CLASSIFIER), exclude=(pattern,))
    assert len(enabled(model)) == 43


@pytest.mark.parametrize(
    "options",
    [{"exclude": "embeddings"}, {"quantizers": qdqbert.Quantizers(embeddings="float")}],
    ids=str,
)
def test_tables_stay_in_float_if_asked(make_model, checkpoints, tmp_path, options) -> None:
    model = qdqbert.prepare(make_model("bert"), **options)
    qdqbert.calibrate(model, inputs_for(model))
    loaded = load_model(str(saved(model, checkpoints("bert"), tmp_path / "saved"))).model
    for each in (model, loaded):
        assert len(enabled(each)) == 40
        assert not any("embeddings" in name for name in enabled(each))


def test_weights_for_vnni_have_no_limit(bert) -> None:
    model = qdqbert.prepare(bert, quantizers=qdqbert.Quantizers(weights_for="vnni"))
    assert {each.spec.adjacent_sum_limit for each in enabled(model).values()} == {None}


@EACH_RECIPE
@pytest.mark.parametrize(
    "patterns",
    [
        (r"layer\.0\.",),
        (r"output\.dense", "classifier"),
        (r"query\._input_quantizer$",),
        (r"layer\.1\.attention", r"layer\.0\.intermediate"),
    ],
    ids=str,
)
@pytest.mark.usual("*-full-smoothed")
def test_what_is_excluded_stays_float_and_the_rest_does_not(
    make_model, checkpoints, tmp_path, recipe, patterns
) -> None:
    usual = enabled(qdqbert.prepare(make_model("bert", CLASSIFIER), recipe))
    model = calibrated(make_model("bert", CLASSIFIER), recipe, exclude=patterns)
    wanted = {name for name in usual if not any(re.search(each, name) for each in patterns)}
    assert 0 < len(wanted) < len(usual)
    assert enabled(model).keys() == wanted
    batch = inputs_for(model)[0]
    assert outputs_of(model, batch)["logits"].isfinite().all()
    loaded = load_model(str(saved(model, checkpoints("classifier"), tmp_path / "saved"))).model
    assert enabled(loaded).keys() == wanted
    realign(loaded)
    realign(model)
    assert_same(outputs_of(loaded, batch), outputs_of(model, batch))


def test_quantizers_of_outputs_can_be_excluded(make_model) -> None:
    usual = enabled(qdqbert.prepare(make_model("bert"), "qordered"))
    model = qdqbert.prepare(make_model("bert"), "qordered", exclude="softmax_input_quantizer")
    assert enabled(model).keys() == {name for name in usual if "softmax_input" not in name}
    # Another recipe has no such quantizer.
    with pytest.raises(UnmatchedRuleError, match="matches no module"):
        qdqbert.prepare(make_model("bert"), "full", exclude="softmax_input_quantizer")


@EACH_RECIPE
def test_recalibrated_weights_get_ranges_of_their_values(bert, recipe, tmp_path) -> None:
    model = calibrated(bert, recipe)
    name, quantizer = next(
        (name, each) for name, each in enabled(model).items() if site_of(each).kind == "weight"
    )
    expected = quantizer.amax.clone()
    quantizer.amax = expected * 2
    model.apply_quantizer_options(QuantizerOptions(recalibrate_weights=True))
    assert torch.equal(quantizer.amax, expected)
    # The option is stored, and is not applied before the weights are loaded.
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert torch.equal(enabled(loaded)[name].amax, expected)


def test_what_is_excluded_stays_so_when_another_recipe_is_calibrated(bert) -> None:
    model = calibrated(bert, exclude=(r"layer\.0\.",))
    wanted = enabled(model).keys()
    qdqbert.calibrate(model, inputs_for(model), calibrator="mse")
    assert enabled(model).keys() == wanted
    assert len(wanted) == 23


def test_quantizer_options_set_bits_and_are_saved(make_model, checkpoints, tmp_path) -> None:
    model = calibrated(make_model("bert"), "linear", aprec=6, wprec=4)
    # Tables keep 8.
    layers = [each for each in enabled(model).values() if site_of(each).group == "layer"]
    assert {each.spec.bits for each in layers} == {4, 6}
    loaded = load_model(str(saved(model, checkpoints("bert"), tmp_path / "saved"))).model
    assert stored_specs(sited_model(loaded)) == stored_specs(sited_model(model))


# Refusals


REFUSALS: dict[str, tuple[dict[str, Any], type[QdqBertError], str]] = {
    "exclude": ({"exclude": ("clasifier",)}, UnmatchedRuleError, "matches no module of the model"),
    "second exclude": ({"exclude": ("query", "qerry")}, UnmatchedRuleError, "'qerry' matches no"),
    "regular expression": ({"exclude": ("(",)}, SpecError, "is not a regular expression"),
    "recipe": ({"recipe": "lineal"}, UserInputError, "Recipe 'lineal' is unknown"),
    "quantizer_options": (
        {"quantizers": qdqbert.Quantizers(quant_disable_keyword=("qerry",))},
        UnmatchedRuleError,
        "`quant_disable_keyword` 'qerry' matches none",
    ),
    "option of graphs": (
        {"quantizers": qdqbert.Quantizers(dedicated_qdq_pairs=True)},
        SpecError,
        r"Unknown quantizer options \['dedicated_qdq_pairs'\]",
    ),
}


@pytest.mark.parametrize(("options", "error", "message"), REFUSALS.values(), ids=list(REFUSALS))
def test_a_refusal_leaves_the_model_and_its_config_as_they_were(
    bert, options, error, message
) -> None:
    before, batch = bert.config.to_dict(), inputs_for(bert)[0]
    expected, attention = outputs_of(bert, batch), bert.config._attn_implementation
    with pytest.raises(error, match=message):
        qdqbert.prepare(bert, **options)
    assert bert.config.to_dict() == before
    assert bert.config._attn_implementation == attention
    assert type(bert) is transformers.BertModel
    assert_same(outputs_of(bert, batch), expected)
    qdqbert.prepare(bert)  # spelled right, it works
    assert len(enabled(bert)) == 43


def test_a_prepared_model_is_not_prepared_again(bert) -> None:
    model = calibrated(bert, "linear")
    before, ranges = copy.deepcopy(model.config.to_dict()), ranges_of(model)
    with pytest.raises(SpecError, match=r"BertModel\) has quantizers already"):
        qdqbert.prepare(model, "full")
    assert model.config.to_dict() == before
    assert_same(ranges_of(model), ranges)


def test_a_model_that_is_not_from_transformers_is_refused(bert) -> None:
    wrapped = nn.Sequential(bert)
    with pytest.raises(UserInputError, match="must be a transformers model, got Sequential"):
        qdqbert.prepare(wrapped)
    with pytest.raises(UserInputError, match="Pass the model that yours contains"):
        qdqbert.prepare(nn.Linear(2, 2))
    assert sited_model(wrapped).quantizers == {}


def test_an_unknown_family_is_refused() -> None:
    config = transformers.GPT2Config(n_embd=8, n_head=2, n_layer=1, vocab_size=20)
    model = transformers.GPT2Model(config)
    before = model.config.to_dict()
    with pytest.raises(QdqBertError, match="gpt2"):
        qdqbert.prepare(model)
    assert model.config.to_dict() == before


# Training


def train(model: nn.Module, *, steps: int = 3) -> list[float]:
    """Plain PyTorch; what it learns does not matter."""
    torch.manual_seed(0)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(steps):
        batch = inputs_for(model, count=4)[step % 4]
        output = model(**batch)
        states = output.logits if hasattr(output, "logits") else output.last_hidden_state
        loss = ((states - torch.linspace(-1, 1, states.shape[-1])) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    return losses


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: x.detach().clone() for name, x in model.named_parameters() if "dense" in name}


@pytest.mark.parametrize(
    ("family", "recipe"),
    [*(("bert", recipe) for recipe in RECIPES), ("deberta-v2", "linear"), ("modernbert", "full")],
)
def test_training_changes_weights_and_keeps_ranges(make_model, family, recipe) -> None:
    model = calibrated(make_model(family), recipe)
    before, ranges = copy.deepcopy(dict(model.named_parameters())), ranges_of(model)
    names = [name for name in enabled(model) if name.endswith("._weight_quantizer")]
    train(model)
    assert_same(ranges_of(model), ranges)
    for name in names:
        weight = name.replace("._weight_quantizer", ".weight")
        assert not torch.equal(model.get_parameter(weight), before[weight]), weight


@pytest.mark.parametrize("recipe", ["full", "full-smoothed"])
@pytest.mark.usual("full")
def test_transformers_trainer_changes_weights_and_keeps_ranges(
    make_model, tmp_path, recipe
) -> None:
    pytest.importorskip("accelerate")
    model = calibrated(make_model("bert", CLASSIFIER, num_labels=3), recipe)
    before, ranges = weights_of(model), ranges_of(model)
    batch = inputs_for(model)[0]
    rows = [
        {**{name: x[row] for name, x in batch.items()}, "labels": torch.tensor(row)}
        for row in range(3)
    ]
    trainer = transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(
            output_dir=str(tmp_path / "run"),
            max_steps=2,
            per_device_train_batch_size=3,
            learning_rate=1e-3,
            report_to="none",
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
        ),
        train_dataset=rows,
    )
    trainer.train()
    assert_same(ranges_of(model), ranges)
    after = weights_of(model)
    assert all(not torch.equal(after[name], weight) for name, weight in before.items())
    trainer.save_model(str(tmp_path / "saved"))
    loaded = type(model).from_pretrained(tmp_path / "saved")
    assert_same(dict(loaded.state_dict()), dict(model.state_dict()))


@pytest.mark.parametrize("recipe", ["full", "full-smoothed"])
def test_learned_ranges_of_activations_change_and_those_of_weights_do_not(bert, recipe) -> None:
    model = calibrated(bert, recipe)
    before = stored_calibration(sited_model(model))
    learn_ranges_(sited_model(model), "learned")
    ends = [name for name, _ in model.named_parameters() if "clip_value" in name]
    activations = [name for name in enabled(model) if name.endswith("_input_quantizer")]
    assert len(ends) == 2 * len(activations)
    train(model)
    learned = stored_calibration(sited_model(model))
    fix_ranges_(sited_model(model))
    after = stored_calibration(sited_model(model))
    assert after.ranges == learned.ranges
    assert all(after.ranges[name] != before.ranges[name] for name in activations)
    for name, amax in before.weight_amax.items():
        assert torch.equal(after.weight_amax[name], amax), name
    assert not any("clip_value" in name for name, _ in model.named_parameters())


@pytest.mark.parametrize("recipe", ["full", "full-smoothed"])
def test_moving_ranges_follow_the_data_and_the_weights(bert, recipe) -> None:
    model = calibrated(bert, recipe)
    before = stored_calibration(sited_model(model))
    learn_ranges_(sited_model(model), "moving")
    moving = [each for each in enabled(model).values() if each.moving == MOVING]
    # A batch reads few rows of a table.
    assert {site_of(each).group for each in moving} == {"layer"}
    assert len(moving) == 40
    train(model)
    after = stored_calibration(sited_model(model))
    assert all(after.ranges[name] != chosen for name, chosen in before.ranges.items())
    moved = {name for name in before.weight_amax if "layer." in name}
    assert not any(torch.equal(after.weight_amax[each], before.weight_amax[each]) for each in moved)
    fix_ranges_(sited_model(model))
    train(model)
    fixed = stored_calibration(sited_model(model))
    assert fixed.ranges == after.ranges
    assert {quantizer.moving for quantizer in enabled(model).values()} == {None}
