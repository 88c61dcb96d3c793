from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

import qdqbert
import qdqbert.compat
from qdqbert import QuantDescriptor, QuantizerOptions, TensorQuantizer
from qdqbert.common.errors import CheckpointError
from qdqbert.compat.calibrators import HistogramCalibrator
from qdqbert.compat.nn import QuantLinear
from qdqbert.training.models.modeling import AUTO_CLASSES

# transformers 4.40's modeling_qdqbert.py, by the path below `bert.encoder.layer.N.`.
LAYER = {
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
CROSS = {
    "crossattention.self.query._input_quantizer",
    "crossattention.self.query._weight_quantizer",
    "crossattention.self.key._input_quantizer",
    "crossattention.self.key._weight_quantizer",
    "crossattention.self.value._input_quantizer",
    "crossattention.self.value._weight_quantizer",
    "crossattention.self.matmul_q_input_quantizer",
    "crossattention.self.matmul_k_input_quantizer",
    "crossattention.self.matmul_v_input_quantizer",
    "crossattention.self.matmul_a_input_quantizer",
    "crossattention.output.dense._input_quantizer",
    "crossattention.output.dense._weight_quantizer",
    "crossattention.output.add_local_input_quantizer",
    "crossattention.output.add_residual_input_quantizer",
}
AUTOS = list(AUTO_CLASSES)
BERTS = {
    "AutoModel": transformers.BertModel,
    "AutoModelForCausalLM": transformers.BertLMHeadModel,
    "AutoModelForMaskedLM": transformers.BertForMaskedLM,
    "AutoModelForSequenceClassification": transformers.BertForSequenceClassification,
    "AutoModelForNextSentencePrediction": transformers.BertForNextSentencePrediction,
    "AutoModelForMultipleChoice": transformers.BertForMultipleChoice,
    "AutoModelForTokenClassification": transformers.BertForTokenClassification,
    "AutoModelForQuestionAnswering": transformers.BertForQuestionAnswering,
}
# The same kernels in the same order; only the layout in memory can move a last bit.
FLOAT_TOLERANCE = 1e-6
ROWS, TOKENS = 2, 9
SENTENCE = "the cat is on the book"


def quantizers_of(model: nn.Module) -> dict[str, TensorQuantizer]:
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, TensorQuantizer)
    }


def disable_all(model: nn.Module) -> None:
    for quantizer in quantizers_of(model).values():
        quantizer.disable()


def inputs_for(auto: str) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    shape = (ROWS, 3, TOKENS) if "Choice" in auto else (ROWS, TOKENS)
    ids = torch.randint(5, 300, shape, generator=generator)
    mask = torch.ones_like(ids)
    mask[-1, ..., -3:] = 0
    segments = torch.zeros_like(ids)
    segments[..., 4:] = 1
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": segments}


def labels_for(auto: str) -> dict[str, torch.Tensor]:
    ids = inputs_for(auto)["input_ids"]
    match auto:
        case "AutoModelForQuestionAnswering":
            return {"start_positions": torch.tensor([1, 2]), "end_positions": torch.tensor([3, 2])}
        case "AutoModelForTokenClassification":
            return {"labels": ids % 2}
        case "AutoModelForCausalLM" | "AutoModelForMaskedLM":
            return {"labels": ids}
        case _:
            return {"labels": torch.tensor([0, 1])}


@torch.no_grad()
def outputs_of(model: nn.Module, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {
        name: value for name, value in model(**inputs).items() if isinstance(value, torch.Tensor)
    }


def realign(model: nn.Module) -> None:
    # Loaded tensors lie in the file's own, odd addresses, at which matmul kernels add in another
    # order: equal weights then differ in the last bit of the output.
    for tensor in [*model.parameters(), *model.buffers()]:
        tensor.data = tensor.data.clone()


def assert_equal_outputs(ours: nn.Module, other: nn.Module, inputs: dict[str, Any]) -> None:
    """Both hold the same tensors and answer alike, bit for bit."""
    before, after = other.state_dict(), ours.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)
    realign(ours)
    realign(other)
    expected, found = outputs_of(other, inputs), outputs_of(ours, inputs)
    assert expected.keys() == found.keys()
    assert expected
    for name, value in expected.items():
        assert not value.isnan().any()
        assert torch.equal(found[name], value), name


def tiny_config(**changes: Any) -> qdqbert.QDQBertConfig:
    sizes = {
        "vocab_size": 300,
        "hidden_size": 12,
        "num_attention_heads": 3,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "max_position_embeddings": 32,
    }
    return qdqbert.QDQBertConfig(**{**sizes, **changes})


@pytest.fixture(scope="module")
def floats(tmp_path_factory, make_model):
    """Folders of plain BERT checkpoints by the auto class of their head."""
    root = tmp_path_factory.mktemp("floats")
    for auto in AUTOS:
        decoder = {"is_decoder": True} if auto == "AutoModelForCausalLM" else {}
        model = make_model("bert", getattr(transformers, auto), **decoder)
        assert type(model) is BERTS[auto]
        model.save_pretrained(root / auto)
    return lambda auto: root / auto


@pytest.fixture(scope="module")
def calibrated_folder(tmp_path_factory, floats):
    """Folders of calibrated QDQBERT models by auto class; not to be changed."""
    root = tmp_path_factory.mktemp("calibrated")
    for auto, ours in AUTO_CLASSES.items():
        model = ours.from_pretrained(floats(auto))
        qdqbert.calibrate(model, [inputs_for(auto)])
        model.save_pretrained(root / auto)
    return lambda auto: root / auto


@pytest.fixture
def classifier(floats):
    return qdqbert.QDQBertForSequenceClassification.from_pretrained(
        floats("AutoModelForSequenceClassification")
    )


CLASSIFIER = "AutoModelForSequenceClassification"


# Loading


@pytest.mark.parametrize("auto", AUTOS)
def test_a_plain_bert_checkpoint_loads_whole_and_without_leftovers(floats, auto) -> None:
    model, info = AUTO_CLASSES[auto].from_pretrained(floats(auto), output_loading_info=True)
    assert {name: found for name, found in info.items() if found} == {}
    original = BERTS[auto].from_pretrained(floats(auto)).state_dict()
    ours = model.state_dict()
    assert list(ours) == list(original)
    assert all(torch.equal(ours[name], original[name]) for name in original)


def test_loading_a_bert_checkpoint_warns_of_nothing(floats, caplog, capsys) -> None:
    transformers.logging.enable_propagation()
    try:
        qdqbert.QDQBertModel.from_pretrained(floats("AutoModel"))
    finally:
        transformers.logging.disable_propagation()
    assert [record.message for record in caplog.records if record.levelname != "INFO"] == []


@pytest.mark.parametrize(
    ("model_type", "auto"),
    [("roberta", "AutoModel"), ("distilbert", "AutoModel")],
    ids=["roberta", "distilbert"],
)
def test_a_checkpoint_of_another_family_is_refused(checkpoints, model_type, auto) -> None:
    with pytest.raises(CheckpointError, match=f"load BERT checkpoints, not `{model_type}`"):
        AUTO_CLASSES[auto].from_pretrained(checkpoints(model_type))
    with pytest.raises(CheckpointError, match=r"`qdqbert\.quantize` on its folder"):
        qdqbert.QDQBertConfig.from_pretrained(checkpoints(model_type))


def test_the_config_has_berts_padding_and_not_robertas() -> None:
    config = qdqbert.QDQBertConfig()
    assert (config.model_type, config.pad_token_id) == ("qdqbert", 0)
    assert config.to_dict() == {
        **transformers.BertConfig().to_dict(),
        "model_type": "qdqbert",
        "recipe": None,
        "quantizer_options": None,
        "exclude": None,
        "quantizers": None,
        "qdqbert_format": 2,
    }


# Quantizers


@pytest.mark.parametrize("auto", AUTOS)
def test_each_layer_has_qdqberts_20_quantizers_and_nothing_else_has_any(floats, auto) -> None:
    model = AUTO_CLASSES[auto].from_pretrained(floats(auto))
    prefix = "" if auto == "AutoModel" else "bert."
    assert len(LAYER) == 20
    assert set(quantizers_of(model)) == {
        f"{prefix}encoder.layer.{layer}.{name}" for layer in range(2) for name in LAYER
    }


def test_a_layer_with_cross_attention_has_34() -> None:
    model = qdqbert.QDQBertLMHeadModel(tiny_config(is_decoder=True, add_cross_attention=True))
    names = {name.partition("layer.0.")[2] for name in quantizers_of(model)}
    assert names == LAYER | CROSS
    assert len(names) == 34


def test_a_new_model_quantizes_by_the_toolkits_defaults(classifier) -> None:
    for name, quantizer in quantizers_of(classifier).items():
        assert (quantizer.num_bits, quantizer.unsigned, quantizer.narrow_range) == (8, False, False)
        assert quantizer.axis == (0 if name.endswith("_weight_quantizer") else None)
        assert quantizer.amax is None
        assert quantizer._if_quant
        assert not quantizer._disabled


def test_an_uncalibrated_model_quantizes_by_each_tensors_own_range(classifier, floats) -> None:
    plain = transformers.BertForSequenceClassification.from_pretrained(floats(CLASSIFIER))
    inputs = inputs_for(CLASSIFIER)
    ours, theirs = outputs_of(classifier, inputs), outputs_of(plain, inputs)
    error = (ours["logits"] - theirs["logits"]).norm() / theirs["logits"].norm()
    # 8 bits change something, and little.
    assert 1e-5 < error < 0.1


# What a model computes


@pytest.mark.parametrize("auto", AUTOS)
def test_with_all_quantizers_disabled_it_computes_what_transformers_does(floats, auto) -> None:
    plain = BERTS[auto].from_pretrained(floats(auto), attn_implementation="eager")
    model = AUTO_CLASSES[auto].from_pretrained(floats(auto))
    disable_all(model)
    inputs = inputs_for(auto)
    expected, ours = outputs_of(plain, inputs), outputs_of(model, inputs)
    assert ours.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(ours[name], value, atol=FLOAT_TOLERANCE, rtol=0)


@pytest.mark.parametrize("auto", [auto for auto in AUTOS if auto != "AutoModel"])
def test_labels_give_transformers_loss(floats, auto) -> None:
    plain = BERTS[auto].from_pretrained(floats(auto), attn_implementation="eager")
    model = AUTO_CLASSES[auto].from_pretrained(floats(auto))
    disable_all(model)
    batch = {**inputs_for(auto), **labels_for(auto)}
    expected, ours = outputs_of(plain, batch)["loss"], outputs_of(model, batch)["loss"]
    torch.testing.assert_close(ours, expected, atol=0, rtol=1e-5)


@pytest.mark.parametrize(
    "load",
    [
        qdqbert.QDQBertForSequenceClassification.from_pretrained,
        lambda folder: transformers.AutoModelForSequenceClassification.from_pretrained(
            folder, config=qdqbert.QDQBertConfig.from_pretrained(folder)
        ),
    ],
    ids=["class", "auto-class"],
)
def test_a_checkpoint_in_float16_is_trained_in_float32(floats, tmp_path, load) -> None:
    # In float16 the first step of AdamW divides by an epsilon that is 0.
    stored = transformers.AutoModelForSequenceClassification.from_pretrained(floats(CLASSIFIER))
    stored.half().save_pretrained(tmp_path)
    batch = {**inputs_for(CLASSIFIER), **labels_for(CLASSIFIER)}
    model = load(tmp_path)
    qdqbert.calibrate(model, [inputs_for(CLASSIFIER)])
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize("dtype", [torch.float16, "auto"], ids=["float16", "auto"])
def test_training_in_float16_warns(floats, tmp_path, dtype) -> None:
    stored = transformers.AutoModelForSequenceClassification.from_pretrained(floats(CLASSIFIER))
    stored.half().save_pretrained(tmp_path)
    model = qdqbert.QDQBertForSequenceClassification.from_pretrained(tmp_path, dtype=dtype)
    assert model.dtype == torch.float16
    with pytest.warns(UserWarning, match=r"float16, which optimizers cannot train.*model\.float"):
        model.train()
    model.float().train()
    prepared = qdqbert.prepare(stored)
    with pytest.warns(UserWarning, match="float16, which optimizers cannot train"):
        prepared.train()


# Decoders


@pytest.fixture(scope="module")
def decoder():
    torch.manual_seed(2)
    config = tiny_config(
        is_decoder=True,
        add_cross_attention=True,
        num_hidden_layers=2,
        initializer_range=0.3,
        bos_token_id=1,
        eos_token_id=None,
    )
    model = qdqbert.QDQBertLMHeadModel(config).eval()
    batch = {
        "input_ids": torch.randint(5, 300, (ROWS, TOKENS)),
        "encoder_hidden_states": torch.randn(ROWS, 5, 12),
        "encoder_attention_mask": torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]),
    }
    return qdqbert.calibrate(model, [batch]), batch


def test_cross_attention_reads_the_encoders_states_but_not_their_padding(decoder) -> None:
    model, batch = decoder
    states = batch["encoder_hidden_states"]
    before = outputs_of(model, batch)["logits"]
    padding, text = states.clone(), states.clone()
    padding[1, 3:] += 1
    text[1, 1] += 1
    unchanged = outputs_of(model, {**batch, "encoder_hidden_states": padding})["logits"]
    changed = outputs_of(model, {**batch, "encoder_hidden_states": text})["logits"]
    assert torch.equal(unchanged, before)
    assert torch.equal(changed[0], before[0])
    assert not torch.equal(changed[1], before[1])


def test_generate_runs_and_agrees_with_its_own_greedy_argmax(decoder) -> None:
    model, batch = decoder
    prompt = batch["input_ids"][:1, :3]
    made = model.generate(prompt, max_new_tokens=5, do_sample=False)
    assert made.shape == (1, 8)
    logits = outputs_of(model, {"input_ids": made})["logits"]
    assert logits[0, 2:-1].argmax(-1).tolist() == made[0, 3:].tolist()


def test_a_decoder_keeps_its_cross_attentions_ranges(decoder, tmp_path) -> None:
    model, batch = decoder
    model.save_pretrained(tmp_path)
    assert_equal_outputs(qdqbert.QDQBertLMHeadModel.from_pretrained(tmp_path), model, batch)


# Saving


@pytest.mark.parametrize("auto", AUTOS)
@pytest.mark.usual("AutoModel", "AutoModelForTokenClassification")
def test_a_calibrated_model_comes_back_by_its_auto_class_bit_for_bit(
    floats, calibrated_folder, auto
) -> None:
    model = AUTO_CLASSES[auto].from_pretrained(floats(auto))
    qdqbert.calibrate(model, [inputs_for(auto)])
    folder = calibrated_folder(auto)
    assert type(transformers.AutoConfig.from_pretrained(folder)) is qdqbert.QDQBertConfig
    loaded, info = getattr(transformers, auto).from_pretrained(folder, output_loading_info=True)
    assert type(loaded) is AUTO_CLASSES[auto]
    assert {name: found for name, found in info.items() if found} == {}
    assert_equal_outputs(loaded, model, inputs_for(auto))


def change_bits(model: nn.Module) -> None:
    model.apply_quantizer_options(QuantizerOptions(wprec=5, aprec=4))


def disable_some(model: nn.Module) -> None:
    for name, quantizer in quantizers_of(model).items():
        if "layer.1" in name:
            quantizer.disable()


def switch_some_off(model: nn.Module) -> None:
    model.apply_quantizer_options(
        QuantizerOptions(quant_disable_keyword=("add_",), fuse_qkv=True, clip_gelu=0.5)
    )


def change_attributes(model: nn.Module) -> None:
    for name, quantizer in quantizers_of(model).items():
        if name.endswith("_weight_quantizer"):
            quantizer.narrow_range = True
        elif name.endswith("matmul_a_input_quantizer"):
            quantizer.unsigned = True
        elif name.endswith("matmul_q_input_quantizer"):
            quantizer.num_bits = (4, 3)
        elif name.endswith("add_local_input_quantizer"):
            quantizer.disable_quant()


def smooth(model: nn.Module) -> None:
    name = next(iter(quantizers_of(model)))
    quantizers_of(model)[name].pre_quant_scale = torch.linspace(0.5, 2, 32)


@pytest.mark.parametrize(
    "change", [change_bits, disable_some, switch_some_off, change_attributes, smooth]
)
@pytest.mark.usual("smooth", "change_bits")
def test_what_was_changed_after_calibration_is_saved(classifier, tmp_path, change) -> None:
    inputs = inputs_for(CLASSIFIER)
    qdqbert.calibrate(classifier, [inputs])
    before = outputs_of(classifier, inputs)["logits"]
    change(classifier)
    assert not torch.equal(outputs_of(classifier, inputs)["logits"], before)
    classifier.save_pretrained(tmp_path)
    loaded = type(classifier).from_pretrained(tmp_path)
    assert_equal_outputs(loaded, classifier, inputs)


@pytest.mark.parametrize(
    "quantizer_options",
    [
        QuantizerOptions(quant_per_tensor=True),
        QuantizerOptions(quant_per_tensor=True, fuse_qkv=True, wprec=6),
        QuantizerOptions(quant_disable=True, quant_enable_layer_module="attention.self"),
        QuantizerOptions(calibrator="percentile", percentile=99.0),
    ],
    ids=["per-tensor", "fused-per-tensor", "enabled-alone", "percentile"],
)
def test_a_recipe_is_saved_with_the_model(classifier, tmp_path, quantizer_options) -> None:
    inputs = inputs_for(CLASSIFIER)
    qdqbert.calibrate(classifier, [inputs], **quantizer_options.to_dict())
    classifier.save_pretrained(tmp_path)
    loaded = type(classifier).from_pretrained(tmp_path)
    assert loaded.config.quantizer_options == quantizer_options.to_dict()
    assert_equal_outputs(loaded, classifier, inputs)


def test_a_config_with_a_recipe_makes_a_model_of_that_recipe() -> None:
    recipe = QuantizerOptions(aprec=4, quant_disable_keyword=("add_",))
    config = tiny_config(quantizer_options=recipe)
    assert config.quantizer_options == {"aprec": 4, "quant_disable_keyword": ["add_"]}
    for name, quantizer in quantizers_of(qdqbert.QDQBertModel(config)).items():
        if ".add_" in name:
            assert quantizer._disabled
        else:
            assert quantizer.num_bits == (8 if name.endswith("_weight_quantizer") else 4)


def test_a_recipe_can_be_given_to_from_pretrained(floats) -> None:
    model = qdqbert.QDQBertModel.from_pretrained(
        floats("AutoModel"), quantizer_options=QuantizerOptions(aprec=4)
    )
    bits = Counter(quantizer.num_bits for quantizer in quantizers_of(model).values())
    assert bits == {4: 28, 8: 12}
    assert model.config.quantizer_options == {"aprec": 4}


def test_a_saved_state_dict_gives_the_ranges_to_a_model_that_has_none(
    classifier, calibrated_folder
) -> None:
    calibrated = type(classifier).from_pretrained(calibrated_folder(CLASSIFIER))
    classifier.load_state_dict(calibrated.state_dict())
    assert_equal_outputs(classifier, calibrated, inputs_for(CLASSIFIER))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
def test_ranges_stay_float32_in_a_model_of_half_precision(calibrated_folder, dtype) -> None:
    folder = calibrated_folder(CLASSIFIER)
    ours = qdqbert.QDQBertForSequenceClassification
    model, exact = ours.from_pretrained(folder, dtype=dtype), ours.from_pretrained(folder)
    assert model.dtype == dtype
    for name, quantizer in quantizers_of(exact).items():
        found = quantizers_of(model)[name].amax
        assert found.dtype == torch.float32
        assert torch.equal(found, quantizer.amax)
    inputs = inputs_for(CLASSIFIER)
    half, full = outputs_of(model, inputs)["logits"], outputs_of(exact, inputs)["logits"]
    assert half.dtype == dtype
    # bfloat16 has 8 significant bits, so that some codes move; the answer stays about the same.
    assert (half.float() - full).norm() < 0.2 * full.norm()


@pytest.mark.parametrize(
    ("saved", "loaded"),
    [
        ("AutoModel", CLASSIFIER),
        (CLASSIFIER, "AutoModel"),
        ("AutoModelForMaskedLM", CLASSIFIER),
    ],
    ids=["base-to-head", "head-to-base", "head-to-head"],
)
def test_ranges_follow_the_weights_from_one_head_to_another(
    calibrated_folder, saved, loaded
) -> None:
    before = quantizers_of(AUTO_CLASSES[saved].from_pretrained(calibrated_folder(saved)))
    after = quantizers_of(AUTO_CLASSES[loaded].from_pretrained(calibrated_folder(saved)))
    assert len(after) == len(before) == 40
    found = {name.removeprefix("bert."): quantizer.amax for name, quantizer in after.items()}
    for name, quantizer in before.items():
        assert torch.equal(found[name.removeprefix("bert.")], quantizer.amax), name


def test_a_model_made_only_from_a_saved_config_does_not_compute_nan(calibrated_folder) -> None:
    config = transformers.AutoConfig.from_pretrained(calibrated_folder("AutoModel"))
    model = transformers.AutoModel.from_config(config).eval()
    states = outputs_of(model, inputs_for("AutoModel"))["last_hidden_state"]
    assert states.isfinite().all()


def test_learned_ranges_are_saved(toolkit_defaults, floats, tmp_path) -> None:
    QuantLinear.set_default_quant_desc_input(QuantDescriptor(learn_amax=True))
    model = qdqbert.QDQBertModel.from_pretrained(floats("AutoModel"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "clip_value" in name:
                parameter.mul_(3)
    model.save_pretrained(tmp_path)
    QuantLinear.set_default_quant_desc_input(QuantDescriptor())
    loaded = qdqbert.QDQBertModel.from_pretrained(tmp_path)
    assert_equal_outputs(loaded, model, inputs_for("AutoModel"))


# Damaged checkpoints


@pytest.mark.parametrize("auto", ["AutoModel", CLASSIFIER], ids=["base", "head"])
def test_a_checkpoint_without_a_range_that_its_config_lists_is_refused(
    calibrated_folder, tmp_path, auto
) -> None:
    AUTO_CLASSES[auto].from_pretrained(calibrated_folder(auto)).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    lost = [
        name for name in tensors if name.endswith("layer.1.output.dense._input_quantizer._amax")
    ]
    assert len(lost) == 1
    kept = {name: tensor for name, tensor in tensors.items() if name not in lost}
    save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"layer\.1\.output\.dense\._input_quantizer\._amax`"):
        AUTO_CLASSES[auto].from_pretrained(tmp_path)


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_unknown_quantizers_are_refused(classifier, tmp_path) -> None:
    qdqbert.calibrate(classifier, [inputs_for(CLASSIFIER)])
    classifier.save_pretrained(tmp_path)
    edit_config(tmp_path, num_hidden_layers=1)
    message = "describes 20 quantizers that the model does not have"
    with pytest.raises(CheckpointError, match=message):
        type(classifier).from_pretrained(tmp_path)


def test_a_state_of_another_version_is_refused(classifier, tmp_path) -> None:
    classifier.save_pretrained(tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())["quantizers"]
    edit_config(tmp_path, quantizers={**stored, "version": 99})
    with pytest.raises(
        CheckpointError, match="has version 99, and this version of qdqbert reads version 1"
    ):
        type(classifier).from_pretrained(tmp_path)


# The documents' examples


@pytest.fixture(scope="module")
def masked_lm(tmp_path_factory, checkpoints):
    """A folder of a masked LM that learned one sentence, calibrated, with its tokenizer."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoints("bert"))
    torch.manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(checkpoints("bert"))
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    plain = transformers.BertForMaskedLM(config)
    target = tokenizer(SENTENCE, return_tensors="pt")
    masked = tokenizer(SENTENCE.replace("book", "[MASK]"), return_tensors="pt")
    optimizer = torch.optim.Adam(plain.parameters(), lr=1e-2)
    for _ in range(25):
        optimizer.zero_grad()
        plain(**masked, labels=target["input_ids"]).loss.backward()
        optimizer.step()
    root = tmp_path_factory.mktemp("masked-lm")
    plain.save_pretrained(root / "float")
    model = qdqbert.QDQBertForMaskedLM.from_pretrained(root / "float")
    qdqbert.calibrate(model, [masked])
    for folder in ("float", "quantized"):
        tokenizer.save_pretrained(root / folder)
    model.save_pretrained(root / "quantized")
    return root


def test_the_fill_mask_pipeline_runs_a_quantized_folder(masked_lm) -> None:
    pipeline = transformers.pipeline(
        task="fill-mask", model=str(masked_lm / "quantized"), dtype="auto"
    )
    assert type(pipeline.model) is qdqbert.QDQBertForMaskedLM
    found = pipeline(SENTENCE.replace("book", "[MASK]"))
    assert found[0]["token_str"] == "book"
    assert found[0]["sequence"] == SENTENCE
    assert found[0]["score"] > 0.5


def test_a_folder_with_nothing_but_a_vocabulary_gets_berts_tokenizer(masked_lm, tmp_path) -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    tiny_config().save_pretrained(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert isinstance(tokenizer, transformers.BertTokenizer)
    assert tokenizer("the cat")["input_ids"] == [2, 5, 6, 3]


# Defaults of the toolkit


def test_default_descriptors_set_before_construction_are_obeyed(toolkit_defaults, floats) -> None:
    inputs = QuantDescriptor(num_bits=6, calib_method="histogram", unsigned=False)
    weights = QuantDescriptor(num_bits=5, narrow_range=True, axis=None)
    QuantLinear.set_default_quant_desc_input(inputs)
    QuantLinear.set_default_quant_desc_weight(weights)
    model = qdqbert.QDQBertModel.from_pretrained(floats("AutoModel"))
    for name, quantizer in quantizers_of(model).items():
        if name.endswith("_weight_quantizer"):
            assert (quantizer.num_bits, quantizer.narrow_range, quantizer.axis) == (5, True, None)
        else:
            assert (quantizer.num_bits, quantizer.narrow_range) == (6, False)
            assert isinstance(quantizer._calibrator, HistogramCalibrator)


def test_a_saved_model_does_not_depend_on_the_defaults_of_where_it_is_loaded(
    toolkit_defaults, floats, tmp_path
) -> None:
    QuantLinear.set_default_quant_desc_input(QuantDescriptor(num_bits=7))
    QuantLinear.set_default_quant_desc_weight(QuantDescriptor(num_bits=6, axis=(0,)))
    model = qdqbert.QDQBertModel.from_pretrained(floats("AutoModel"))
    qdqbert.calibrate(model, [inputs_for("AutoModel")])
    model.save_pretrained(tmp_path)
    QuantLinear.set_default_quant_desc_input(QuantDescriptor(num_bits=3, unsigned=True))
    QuantLinear.set_default_quant_desc_weight(QuantDescriptor(num_bits=3, narrow_range=True))
    loaded = qdqbert.QDQBertModel.from_pretrained(tmp_path)
    assert_equal_outputs(loaded, model, inputs_for("AutoModel"))


# pytorch-quantization's own words


@pytest.fixture
def toolkit_names(toolkit_defaults):
    """`pytorch_quantization` as ours, while a test runs."""
    before = {name: sys.modules[name] for name in sys.modules if name.startswith("pytorch_quan")}
    qdqbert.compat.install(force=True)
    yield
    qdqbert.compat.uninstall()
    sys.modules.update(before)


def test_the_model_cards_calibration_runs_word_for_word(toolkit_names, floats, tmp_path) -> None:
    import pytorch_quantization.nn as quant_nn
    from pytorch_quantization.tensor_quant import QuantDescriptor

    # The default tensor quantizer is set to use Max calibration method
    input_desc = QuantDescriptor(num_bits=8, calib_method="max")
    # The default tensor quantizer is set to be per-channel quantization for weights
    weight_desc = QuantDescriptor(num_bits=8, axis=((0,)))
    quant_nn.QuantLinear.set_default_quant_desc_input(input_desc)
    quant_nn.QuantLinear.set_default_quant_desc_weight(weight_desc)
    model = qdqbert.QDQBertModel.from_pretrained(floats("AutoModel"))
    x = inputs_for("AutoModel")["input_ids"]

    # Find the TensorQuantizer and enable calibration
    for name, module in model.named_modules():
        if name.endswith("_input_quantizer"):
            module.enable_calib()
            module.disable_quant()  # Use full precision data to calibrate

    seen: dict[str, float] = {}

    def note(name):
        return lambda _, args: seen.update({name: args[0].abs().max().item()})

    hooks = [
        module.register_forward_pre_hook(note(name))
        for name, module in quantizers_of(model).items()
    ]

    # Feeding data samples
    model(x)

    # Finalize calibration
    for name, module in model.named_modules():
        if name.endswith("_input_quantizer"):
            module.load_calib_amax()
            module.enable_quant()

    for hook in hooks:
        hook.remove()
    inputs = {name: q for name, q in quantizers_of(model).items() if "_input_quantizer" in name}
    assert len(inputs) == 2 * 14
    for name, quantizer in inputs.items():
        assert float(quantizer.amax) == seen[name], name
    weights = {name: q for name, q in quantizers_of(model).items() if "_weight_quantizer" in name}
    # The loop leaves weights alone: they take their own range in each forward pass.
    assert all(q.amax is None and q.axis == (0,) for q in weights.values())
    quantized = outputs_of(model, {"input_ids": x})["last_hidden_state"]
    disable_all(model)
    error = (outputs_of(model, {"input_ids": x})["last_hidden_state"] - quantized).abs()
    assert 0 < error.mean() < 0.1
