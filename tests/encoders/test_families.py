"""Compare what is read from random checkpoints with transformers' float outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
import transformers

import encoder_reference
from qdqbert.calibration.reference.sited_encoder import SitedEncoder
from qdqbert.common.errors import CheckpointError, UserInputError
from qdqbert.encoders.config import Config
from qdqbert.encoders.families import FAMILIES, family_of
from qdqbert.encoders.of_checkpoint import read_encoder, with_expansion
from qdqbert.encoders.task_kinds import TASK_KINDS
from qdqbert.encoders.weights import Weights
from qdqbert.engines.native.packed import pack_model
from qdqbert.engines.native.runner import NativeRunner
from qdqbert.engines.onnxruntime import OnnxRuntimeRunner
from qdqbert.evidence.fidelity import sqnr_db
from qdqbert.graphs.writer import make_graph, write_graph

# Odd sizes, so that no axis can be taken for another.
SIZES = {
    "vocab_size": 131,
    "hidden_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 5,
    "intermediate_size": 56,
    "max_position_embeddings": 70,
    "type_vocab_size": 2,
    "initializer_range": 0.4,
    "pad_token_id": 1,
}
DEBERTA = {
    "relative_attention": True,
    "pos_att_type": ["c2p", "p2c"],
    "norm_rel_ebd": "layer_norm",
    "position_biased_input": False,
    "type_vocab_size": 0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 24,
}
# All heads together are narrower than the states, and some distances are the farthest.
T5 = {"d_kv": 6, "d_ff": 56, "relative_attention_max_distance": 16}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 20}
SHARED = {"num_attention_heads": 4, "num_key_value_heads": 2}
WINDOWS = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
# The configs of each family that have parts of their own.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "albert, two groups": (
        "albert",
        {"embedding_size": 24, "num_hidden_groups": 2, "inner_group_num": 2},
    ),
    "albert": ("albert", {"embedding_size": 40, "hidden_act": "gelu"}),
    "bert": ("bert", {}),
    "bert-generation": ("bert-generation", {}),
    "bert, tanh gelu": ("bert", {"hidden_act": "gelu_new", "layer_norm_eps": 1e-3}),
    "bert, untied": ("bert", {"tie_word_embeddings": False}),
    "camembert": ("camembert", {"type_vocab_size": 1}),
    "data2vec-text": ("data2vec-text", {"pad_token_id": 2}),
    "deberta": (
        "deberta",
        {**DEBERTA, "pos_att_type": ["c2p", "p2c"], "max_relative_positions": 16},
    ),
    "deberta, as published": ("deberta", {**DEBERTA, "pos_att_type": "c2p|p2c", "legacy": False}),
    "deberta, no relative positions": ("deberta", {"relative_attention": False}),
    "deberta-v2, as v3": (
        "deberta-v2",
        {**DEBERTA, "share_att_key": True, "position_buckets": 8, "legacy": False},
    ),
    "deberta-v2, own projections": (
        "deberta-v2",
        {**DEBERTA, "norm_rel_ebd": "none", "type_vocab_size": 2, "position_biased_input": True},
    ),
    "deberta-v2, queries only": ("deberta-v2", {**DEBERTA, "pos_att_type": ["p2c"]}),
    "deberta-v2, convolution": ("deberta-v2", {**DEBERTA, "conv_kernel_size": 3}),
    "deberta-v2, convolution in groups": (
        "deberta-v2",
        {**DEBERTA, "conv_kernel_size": 5, "conv_groups": 4, "conv_act": "gelu"},
    ),
    "deberta-v2, narrow embeddings": (
        "deberta-v2",
        {**DEBERTA, "embedding_size": 24, "type_vocab_size": 2, "position_biased_input": True},
    ),
    "deberta, narrow embeddings": ("deberta", {**DEBERTA, "embedding_size": 24}),
    "distilbert": (
        "distilbert",
        {"dim": 40, "n_heads": 5, "hidden_dim": 56, "n_layers": 3},
    ),
    "electra": ("electra", {"embedding_size": 40}),
    "electra, narrow embeddings": ("electra", {"embedding_size": 24}),
    "ernie": ("ernie", {}),
    "ernie, kinds of tasks": ("ernie", {"use_task_id": True, "task_type_vocab_size": 3}),
    "esm": (
        "esm",
        {"position_embedding_type": "rotary", "emb_layer_norm_before": False, "mask_token_id": 4},
    ),
    "esm, learned positions": ("esm", {"emb_layer_norm_before": True, "mask_token_id": 4}),
    "esm, dropped masks": (
        "esm",
        {
            "position_embedding_type": "rotary",
            "emb_layer_norm_before": False,
            "mask_token_id": 7,
            "token_dropout": True,
        },
    ),
    "esmc": ("esmc", {"attention_bias": True, "mlp_bias": True, "rope_theta": 250.0}),
    "eurobert": ("eurobert", {"classifier_pooling": "bos"}),
    "eurobert, shared keys": (
        "eurobert",
        {
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "classifier_pooling": "mean",
            "attention_bias": True,
            "rope_theta": 250.0,
        },
    ),
    "eurobert, late pooling": ("eurobert", {"classifier_pooling": "late"}),
    "gemma": ("gemma", {**SHARED, "head_dim": 12, "rope_theta": 250.0}),
    "gemma3_text": (
        "gemma3_text",
        {
            "head_dim": 12,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "num_key_value_heads": 1,
            "query_pre_attn_scalar": 20,
            "sliding_window": 7,
            "use_bidirectional_attention": True,
        },
    ),
    "gemma3_text, causal": (
        "gemma3_text",
        {
            **SHARED,
            "attention_bias": True,
            "head_dim": 8,
            "rope_scaling": {"rope_type": "linear", "factor": 4.0},
            "sliding_window": 6,
            "sliding_window_pattern": 2,
        },
    ),
    "gte": ("gte", {}),
    "gte, no token types": ("gte", {"type_vocab_size": 0, "rope_theta": 500.0}),
    "jina_embeddings_v3": ("jina_embeddings_v3", {"type_vocab_size": 1}),
    "llama": ("llama", {"rope_scaling": LLAMA3}),
    "llama, shared keys": ("llama", {**SHARED, "head_dim": 6, "rope_scaling": YARN}),
    "longformer": ("longformer", {"attention_window": [4, 8, 4]}),
    "megatron-bert": ("megatron-bert", {}),
    "mistral": ("mistral", {**SHARED, "sliding_window": 6}),
    "mistral, both ways": (
        "mistral",
        {**SHARED, "head_dim": 8, "sliding_window": 4, "is_causal": False},
    ),
    "modernbert": (
        "modernbert",
        {"local_attention": 6, "global_attn_every_n_layers": 2, "norm_bias": True},
    ),
    "modernbert, mean": ("modernbert", {"classifier_pooling": "mean", "hidden_activation": "silu"}),
    "modernbert-decoder": (
        "modernbert-decoder",
        {"local_attention": 12, "global_attn_every_n_layers": 2, "norm_bias": True},
    ),
    "modernbert-decoder, both ways": (
        "modernbert-decoder",
        {"local_attention": 8, "is_causal": False, "classifier_bias": True},
    ),
    "mpnet": ("mpnet", {}),
    "nomic_bert": ("nomic_bert", {}),
    "qwen2": ("qwen2", {**SHARED, **WINDOWS}),
    "qwen2, both ways": ("qwen2", {**SHARED, "is_causal": False, "rope_theta": 250.0}),
    # All heads together are wider than the states, and narrower.
    "qwen3": ("qwen3", {**SHARED, "head_dim": 12, "rope_theta": 250.0}),
    "qwen3, both ways": (
        "qwen3",
        {**SHARED, "head_dim": 6, "is_causal": False, "attention_bias": True},
    ),
    "qwen3, windows": ("qwen3", {**SHARED, "head_dim": 10, **WINDOWS}),
    "qwen3, windows both ways": (
        "qwen3",
        {"head_dim": 8, "num_key_value_heads": 1, "is_causal": False, **WINDOWS},
    ),
    "rembert": ("rembert", {"input_embedding_size": 24, "output_embedding_size": 32}),
    "roberta-prelayernorm": ("roberta-prelayernorm", {}),
    "roberta, third token is padding": ("roberta", {"pad_token_id": 3, "type_vocab_size": 1}),
    "roberta, first token is padding": ("roberta", {"pad_token_id": 0}),
    "roformer": ("roformer", {"embedding_size": 24, "summary_type": "first"}),
    "roformer, wide embeddings": (
        "roformer",
        {
            "embedding_size": 40,
            "hidden_act": "relu",
            "summary_type": "first",
            "summary_use_proj": True,
            "summary_activation": "tanh",
        },
    ),
    "t5": ("t5", T5),
    "t5, gated": ("t5", {**T5, "feed_forward_proj": "gated-gelu", "num_layers": 2}),
    "mt5": ("mt5", {**T5, "relative_attention_num_buckets": 12}),
    "umt5": ("umt5", {**T5, "feed_forward_proj": "gated-silu", "d_kv": 16}),
    "ultrabert": (
        "ultrabert",
        {**SHARED, "sliding_window": 4, "prediction_head_size": 24, "attention_bias": True},
    ),
    "ultrabert, mean": (
        "ultrabert",
        {"head_dim": 6, "classifier_pooling": "mean", "tie_word_embeddings": True},
    ),
    "xlm-roberta-xl": ("xlm-roberta-xl", {"type_vocab_size": 1}),
    "xlm-roberta": ("xlm-roberta", {"type_vocab_size": 1}),
}


def config_of(variant: str) -> Any:
    kind, own = VARIANTS[variant]
    special = {"bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
    return transformers.AutoConfig.for_model(kind, **{**SIZES, **special, **own})


def auto_class(kind: str, task: str) -> Any:
    """Return transformers' class of a task, or of the encoder alone."""
    alone = FAMILIES[kind].encoder_class if task == "feature-extraction" else None
    return getattr(transformers, alone or TASK_KINDS[task].auto_class)


def save_model(variant: str, task: str, folder: Path, *, seed: int = 0) -> Any:
    config = config_of(variant)
    config.num_labels = 2 if task == "question-answering" else 3
    torch.manual_seed(seed)
    automatic = auto_class(config.model_type, task)
    model = automatic.from_config(config).eval()
    for parameter in model.parameters():
        # Biases and LayerNorms start as zeros and ones, with which mistakes could hide.
        if parameter.dim() == 1:
            parameter.data += 0.3 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    return model


def read(folder: Path, task: str, **options: Any) -> Any:
    config = Config(values=transformers.AutoConfig.from_pretrained(folder).to_dict())
    return read_encoder(Weights(folder), config, task, **options)  # type: ignore[arg-type]


def random_inputs(model: Any, task: str, padding_id: int) -> dict[str, Any]:
    shape = (2, 3, 21) if task == "multiple-choice" else (4, 21)
    inputs = encoder_reference.random_inputs(shape, seed=3)
    inputs["input_ids"] = np.where(inputs["attention_mask"] == 1, inputs["input_ids"], padding_id)
    if (dropped := model.embeddings.dropped_id) is not None:
        # In some texts, and never in their padding.
        inputs["input_ids"][::2, 1:12:3] = dropped
    if "token_type_ids" not in model.input_names:
        del inputs["token_type_ids"]
    return inputs


CASES = [
    (variant, task)
    for variant, (kind, _) in VARIANTS.items()
    for task in ("feature-extraction", *FAMILIES[kind].heads.tasks)
]


@pytest.mark.parametrize(("variant", "task"), CASES, ids=map(" ".join, CASES))
@pytest.mark.usual("* feature-extraction", "bert *", "modernbert *", "roberta *")
def test_outputs_are_those_of_transformers(variant: str, task: str, tmp_path: Path) -> None:
    model = save_model(variant, task, tmp_path)
    found = read(tmp_path, task)
    inputs = random_inputs(found, task, model.config.pad_token_id)
    with torch.no_grad():
        expected = model(**{name: torch.from_numpy(each) for name, each in inputs.items()})
    outputs = encoder_reference.run_encoder(found, inputs)
    compare(outputs, {name: expected[name].numpy() for name in outputs}, inputs)
    write_graph(found, tmp_path / "model.onnx")
    compare(OnnxRuntimeRunner(tmp_path / "model.onnx").run(inputs), outputs, inputs)


@pytest.mark.parametrize(("variant", "task"), CASES, ids=map(" ".join, CASES))
@pytest.mark.usual("bert fill-mask", "deberta-v2, convolution feature-*", "modernbert feature-*")
def test_the_native_engine_computes_them_in_float(variant: str, task: str, tmp_path: Path) -> None:
    model = save_model(variant, task, tmp_path)
    found = read(tmp_path, task)
    inputs = random_inputs(found, task, model.config.pad_token_id)
    # In float64: transformers' own float32 can be further from it.
    expected = encoder_reference.run_encoder(found, inputs)
    outputs = NativeRunner(pack_model(found, precision="float"), threads=2).run(inputs)
    for name, output in outputs.items():
        # Padding is zero in both.
        assert sqnr_db(expected[name], output) >= 90, name


@pytest.mark.parametrize(
    "variant", ["bert", "deberta-v2, convolution", "modernbert", "mpnet", "roformer"]
)
def test_a_graph_has_the_shape_of_each_value(variant: str, run_plainly, tmp_path: Path) -> None:
    model = save_model(variant, "feature-extraction", tmp_path)
    found = read(tmp_path, "feature-extraction")
    graph = make_graph(found)
    others = {value for node in graph.graph for value in node.outputs} - set(graph.graph.outputs)
    graph.graph.outputs.extend(others)
    outputs = run_plainly(
        graph, random_inputs(found, "feature-extraction", model.config.pad_token_id)
    )
    sizes = {"batch": 4, "sequence": 21}
    for value in graph.graph.outputs:
        shape = [
            sizes[str(size)] if isinstance(size, ir.SymbolicDim) else size for size in value.shape
        ]
        assert shape == list(outputs[value.name].shape), value.name


@pytest.mark.parametrize("variant", ["bert", "modernbert", "mpnet", "rembert"])
@pytest.mark.parametrize(("pooling", "logarithms"), [("max", 1), ("max", 2), ("sum", 1)])
def test_weights_of_words_are_those_of_scores_without_padding(
    variant: str, pooling: str, logarithms: int, tmp_path: Path
) -> None:
    model = save_model(variant, "fill-mask", tmp_path)
    steps = ("relu", *["log1p"] * logarithms)
    found = read(tmp_path, "sparse-embedding", poolings=(pooling,), steps=steps)
    inputs = random_inputs(found, "fill-mask", model.config.pad_token_id)
    with torch.no_grad():
        scores = model(**{name: torch.from_numpy(each) for name, each in inputs.items()}).logits
    weights = scores.double().relu()
    for _ in range(logarithms):
        weights = weights.log1p()
    weights *= torch.from_numpy(inputs["attention_mask"])[..., None]
    expected = weights.amax(dim=1) if pooling == "max" else weights.sum(dim=1)
    outputs = encoder_reference.run_encoder(found, inputs)
    compare(outputs, {"sparse_embedding": expected.numpy()}, inputs)
    write_graph(found, tmp_path / "model.onnx")
    compare(OnnxRuntimeRunner(tmp_path / "model.onnx").run(inputs), outputs, inputs)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.usual("bert", "esm", "modernbert", "qwen3, windows")
def test_tokens_that_expand_a_query_have_states_of_transformers(
    variant: str, tmp_path: Path
) -> None:
    transformer = save_model(variant, "feature-extraction", tmp_path)
    config = Config(values=transformer.config.to_dict())
    if family_of(config).fills_texts:
        pytest.skip("all tokens are attended to")
    token, mask = SIZES["vocab_size"] - 1, np.ones((2, 21), np.int64)
    inputs = {**encoder_reference.random_inputs((2, 21), seed=3), "attention_mask": mask}
    inputs["token_type_ids"] = np.zeros_like(mask)
    # In windows, the last tokens attend to none.
    for row, length in enumerate((2, 9)):
        mask[row, length:] = 0
        inputs["input_ids"][row, length:] = token
    found = read(tmp_path, "feature-extraction")
    if variant.startswith(("deberta", "esm, ", "longformer")) or variant == "esm":
        with pytest.raises(CheckpointError, match="mask such tokens"):
            with_expansion(found, config, token)
        return
    model = with_expansion(found, config, token)
    inputs = {name: inputs[name] for name in model.input_names}
    given = {name: torch.from_numpy(each) for name, each in inputs.items()}
    with torch.no_grad():
        expected = transformer(**given).last_hidden_state.numpy()
        (made,) = SitedEncoder(model, ("layer", "table"))(**given)
    write_graph(model, tmp_path / "model.onnx")
    for runner in (
        NativeRunner(pack_model(model, precision="float"), threads=1),
        OnnxRuntimeRunner(tmp_path / "model.onnx"),
    ):
        assert sqnr_db(expected, runner.run(inputs)["last_hidden_state"]) >= 90
    assert sqnr_db(expected, made.numpy()) >= 90


def compare(outputs: dict[str, Any], expected: dict[str, Any], inputs: dict[str, Any]) -> None:
    mask = inputs["attention_mask"]
    for name, output in outputs.items():
        wanted = expected[name].astype(np.float64)
        assert output.shape == wanted.shape
        if output.shape[: mask.ndim] == mask.shape:
            output, wanted = output[mask == 1], wanted[mask == 1]
        np.testing.assert_allclose(output, wanted, atol=2e-4 * np.abs(wanted).max(), err_msg=name)


def test_a_decoder_of_another_width_than_the_embeddings_is_refused(tmp_path: Path) -> None:
    save_model("deberta-v2, narrow embeddings", "fill-mask", tmp_path)
    config = transformers.AutoConfig.from_pretrained(tmp_path).to_dict()
    with pytest.raises(CheckpointError, match=r"embedding_size=24.* this head needs 40"):
        read_encoder(Weights(tmp_path), Config(values={**config, "legacy": False}), "fill-mask")


def test_a_convolution_of_an_even_number_of_tokens_is_refused(tmp_path: Path) -> None:
    save_model("deberta-v2, convolution", "feature-extraction", tmp_path)
    config = transformers.AutoConfig.from_pretrained(tmp_path).to_dict()
    with pytest.raises(CheckpointError, match=r"conv_kernel_size=2.* expected an odd number"):
        read_encoder(
            Weights(tmp_path),
            Config(values={**config, "conv_kernel_size": 2}),
            "feature-extraction",
        )


def test_a_choice_by_the_last_state_is_refused(tmp_path: Path) -> None:
    save_model("roformer", "multiple-choice", tmp_path)
    config = transformers.AutoConfig.from_pretrained(tmp_path).to_dict()
    del config["summary_type"]
    with pytest.raises(CheckpointError, match=r"summary_type='last'.* expected 'first'"):
        read_encoder(Weights(tmp_path), Config(values=config), "multiple-choice")


def test_a_head_of_longformer_that_no_engine_computes_says_why(tmp_path: Path) -> None:
    save_model("longformer", "feature-extraction", tmp_path)
    message = r"`longformer` have tokens that attend to all others.* Known: .*token-classification"
    with pytest.raises(UserInputError, match=message):
        read(tmp_path, "text-classification")


@pytest.mark.parametrize("name", ["DPRContextEncoder", "DPRQuestionEncoder"])
@pytest.mark.parametrize("width", [0, 24], ids=["first token", "projected"])
def test_embeddings_of_dpr_are_those_of_transformers(name: str, width: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.DPRConfig(**SIZES, projection_dim=width)
    model = getattr(transformers, name)(config).eval()
    model.save_pretrained(tmp_path)
    # The user's choice counts for other families only.
    found = read(tmp_path, "feature-extraction", poolings=("mean",))
    inputs = random_inputs(found, "feature-extraction", config.pad_token_id)
    with torch.no_grad():
        expected = model(**{name: torch.from_numpy(each) for name, each in inputs.items()})
    wanted = expected.pooler_output.numpy()
    vectors = encoder_reference.run_encoder(found, inputs)["sentence_embedding"]
    assert vectors.shape == (4, width or 40)
    np.testing.assert_allclose(vectors, wanted, atol=2e-4 * np.abs(wanted).max())
