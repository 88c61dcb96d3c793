from __future__ import annotations

import contextlib
import json
import shutil

import numpy as np
import pytest
import torch
import transformers
from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError
from safetensors.torch import load_file, save_file
from transformers.utils import logging as transformers_logging

import qdqbert
from conftest import FLAT_POOLING, add_sentence_files, replace_cats_
from jina_models import ABSOLUTE, ROTARY, save_flash
from qdqbert.common.choices import POOLING_MODES
from qdqbert.common.errors import CheckpointError, UserInputError
from qdqbert.encoders.checkpoint import hub, tokenizer
from qdqbert.encoders.checkpoint.description import describe_checkpoint, infer_task, read_config
from qdqbert.encoders.checkpoint.load import load_checkpoint
from qdqbert.encoders.checkpoint.sentence import SentenceHead
from qdqbert.encoders.families import FAMILIES
from torch_files import to_torch


def change_config(folder, **changes) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return str(folder)


@pytest.mark.parametrize("family", sorted(name for name, each in FAMILIES.items() if each.training))
def test_an_encoder_of_each_family_is_loaded(checkpoints, family) -> None:
    checkpoint = load_checkpoint(str(checkpoints(family)))
    assert checkpoint.family is FAMILIES[family]
    assert checkpoint.task == "feature-extraction"
    assert not checkpoint.model.training
    assert {parameter.dtype for parameter in checkpoint.model.parameters()} == {torch.float32}
    # The tokenizers of DistilBERT and DeBERTa also make segments, which these models do not read.
    segments = ("token_type_ids",) if family in ("bert", "electra") else ()
    assert checkpoint.input_names == ("input_ids", "attention_mask", *segments)
    # All take 64 tokens; the tables of RoBERTa and MPNet have two more rows that no token uses.
    assert checkpoint.max_length == 64
    with torch.inference_mode():
        states = checkpoint.model(torch.full((1, 64), 9)).last_hidden_state
    assert states.shape == (1, 64, 32)


def test_a_folder_of_the_qdqbert_classes_is_known_before_they_are_imported(
    checkpoints, tmp_path, monkeypatch
) -> None:
    folder = shutil.copytree(checkpoints("classifier"), tmp_path / "g")
    qdqbert.QDQBertForSequenceClassification.from_pretrained(folder).save_pretrained(folder)
    # As in a process that has not imported them.
    monkeypatch.delitem(transformers.CONFIG_MAPPING._extra_content, "qdqbert")
    found = describe_checkpoint(str(folder))
    assert (found.config.model_type, found.task) == ("qdqbert", "text-classification")
    assert found.config.quantizers is not None


def test_two_values_for_one_tensor_are_refused(checkpoint_copy) -> None:
    path = checkpoint_copy("classifier") / "model.safetensors"
    tensors = load_file(path)
    name = "bert.encoder.layer.0.output.LayerNorm"
    save_file({**tensors, f"{name}.gamma": tensors[f"{name}.weight"] + 1}, path, {"format": "pt"})
    with pytest.raises(CheckpointError, match=f"`{name}.gamma` and `{name}.weight`"):
        load_checkpoint(str(path.parent))


def test_a_model_with_a_table_of_segments_reads_them(tmp_path, save_tiny) -> None:
    folder = save_tiny(tmp_path / "deberta", "deberta-v2", type_vocab_size=2)
    assert load_checkpoint(str(folder)).input_names[-1] == "token_type_ids"


@pytest.mark.parametrize(
    ("name", "task", "expected"),
    [
        ("classifier", None, "text-classification"),
        ("reranker", None, "text-classification"),
        ("classifier", "feature-extraction", "feature-extraction"),
        ("sentence", None, "feature-extraction"),
    ],
    ids=["classifier", "reranker", "encoder-of-a-classifier", "sentence"],
)
def test_the_task_is_that_of_the_head_unless_another_is_requested(
    checkpoints, name, task, expected
) -> None:
    checkpoint = load_checkpoint(str(checkpoints(name)), task=task)
    assert checkpoint.task == expected
    assert (checkpoint.head is not None) is (name == "sentence")


def test_a_sentence_checkpoint_has_its_head_and_length(checkpoints) -> None:
    checkpoint = load_checkpoint(str(checkpoints("sentence")))
    assert checkpoint.max_length == 32
    assert checkpoint.head.poolings == ("mean",)
    assert checkpoint.head.normalize


@pytest.fixture
def in_subfolder(checkpoint_copy) -> str:
    """A sentence-transformers folder whose encoder is in a subfolder."""
    folder = checkpoint_copy("sentence")
    inner = folder / "0_Transformer"
    inner.mkdir()
    for path in [path for path in folder.iterdir() if path.is_file()]:
        if path.name != "modules.json":
            shutil.move(path, inner)
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (folder / "modules.json").write_text(json.dumps(modules))
    return str(folder)


def test_an_encoder_in_a_subfolder_is_loaded(in_subfolder) -> None:
    checkpoint = load_checkpoint(in_subfolder)
    assert checkpoint.max_length == 32
    assert checkpoint.tokenizer("the cat")["input_ids"][0] == 2


def test_tokenizer_json_is_used_and_transformers_differences_are_a_notice(
    checkpoint_copy, monkeypatch
) -> None:
    monkeypatch.setattr(tokenizer, "_SAMPLES", ("a cat", "a dog"))
    checkpoint = load_checkpoint(str(replace_cats_(checkpoint_copy("bert"))))
    assert checkpoint.tokenizer.tokenize("cat") == ["dog"]
    assert "tokenize 1 of 2 sample texts differently" in checkpoint.notices[-1]


def test_a_tokenizer_json_that_cannot_be_read_is_named(checkpoint_copy) -> None:
    folder = checkpoint_copy("bert")
    (folder / "tokenizer.json").write_text('{"model": {"type": "Word"}}')
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        load_checkpoint(str(folder))


def test_modules_decide_the_task_of_an_embedder_that_was_a_masked_language_model(
    checkpoint_copy, save_tiny, tmp_path
) -> None:
    folder = change_config(checkpoint_copy("sentence"), architectures=["BertForMaskedLM"])
    assert load_checkpoint(folder).task == "feature-extraction"
    assert infer_task(folder) == "feature-extraction"
    with pytest.raises(CheckpointError, match="has no head for task `fill-mask`"):
        load_checkpoint(folder, task="fill-mask")
    # A head that is there can be asked for.
    auto = transformers.AutoModelForMaskedLM
    whole = add_sentence_files(save_tiny(tmp_path / "whole", "bert", auto), FLAT_POOLING)
    assert load_checkpoint(str(whole)).task == "feature-extraction"
    assert load_checkpoint(str(whole), task="fill-mask").task == "fill-mask"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConnectionError(), "the hub cannot be reached .ConnectionError."),
        (RepositoryNotFoundError.__new__(RepositoryNotFoundError), "the hub has no model"),
        (EntryNotFoundError(), None),
    ],
    ids=["unreachable", "unknown", "without-config"],
)
def test_the_hub_is_asked_once(monkeypatch, error, reason) -> None:
    requests = []

    def ask(url: str, *, timeout: float) -> None:
        requests.append(url)
        raise error

    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "get_hf_file_metadata", ask)
    expected = contextlib.nullcontext()
    if reason is not None:
        expected = pytest.raises(CheckpointError, match=f"no such folder exists here, and {reason}")
    with expected:
        hub.check_hub_model("owner/no-such-model")
    assert len(requests) == 1


@pytest.mark.parametrize("name", ["config.json", "modules.json", "gliner_config.json"])
def test_a_model_in_the_hubs_cache_is_known_by_its_settings(monkeypatch, tmp_path, name) -> None:
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--owner--model"
    snapshot = repository / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0123")
    with pytest.raises(CheckpointError, match="HF_HUB_OFFLINE=1 forbids"):
        hub.check_hub_model("owner/model")
    (snapshot / name).write_text("{}")
    hub.check_hub_model("owner/model")


def test_half_precision_weights_are_loaded_in_float32(checkpoints, tmp_path) -> None:
    folder = shutil.copytree(checkpoints("bert"), tmp_path / "half")
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    checkpoint = load_checkpoint(str(folder))
    assert {parameter.dtype for parameter in checkpoint.model.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "bloom"}, "`bloom` are not supported. Supported families: bert"),
        ({"position_embedding_type": "relative_key"}, "`position_embedding_type='relative_key'`"),
        (
            {"is_decoder": True},
            "`is_decoder=True` in config.json is for task `text-generation` only",
        ),
    ],
    ids=["family", "relative-positions", "decoder"],
)
def test_an_unsupported_encoder_is_refused(checkpoint_copy, changes, message) -> None:
    folder = change_config(checkpoint_copy("bert"), **changes)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(folder)


@pytest.mark.parametrize(
    ("architecture", "message"),
    [
        (
            "BertForMaskedLM",
            "has no head for task `fill-mask`, although .*BertForMaskedLM: it lacks 6 weights",
        ),
        (
            "BertForTokenClassification",
            "has no head for task `token-classification`, although .*: it lacks 2 weights",
        ),
        ("BertOfMyOwn", "The task of architecture `BertOfMyOwn` is not known"),
    ],
    ids=["masked-lm", "token-classification", "unknown"],
)
def test_a_missing_or_unknown_head_is_refused(checkpoint_copy, architecture, message) -> None:
    folder = change_config(checkpoint_copy("bert"), architectures=[architecture])
    with pytest.raises(UserInputError, match=message):
        load_checkpoint(folder)
    assert load_checkpoint(folder, task="feature-extraction").task == "feature-extraction"


@pytest.mark.parametrize(
    ("head", "task"),
    [
        ("SequenceClassification", "text-classification"),
        ("TokenClassification", "token-classification"),
        ("QuestionAnswering", "question-answering"),
        ("MaskedLM", "fill-mask"),
        ("MultipleChoice", "multiple-choice"),
        ("NextSentencePrediction", "next-sentence-prediction"),
        ("CausalLM", "text-generation"),
    ],
)
def test_the_task_of_every_head_is_known(tmp_path, save_tiny, head, task) -> None:
    changes = {"is_decoder": True} if head == "CausalLM" else {}
    auto = getattr(transformers, f"AutoModelFor{head}")
    folder = save_tiny(tmp_path / "head", "bert", auto_class=auto, num_hidden_layers=1, **changes)
    assert load_checkpoint(str(folder)).task == task


def test_a_causal_head_does_not_see_later_tokens(tmp_path, save_tiny) -> None:
    auto = transformers.AutoModelForCausalLM
    # The config does not say that the head is causal.
    folder = save_tiny(tmp_path / "causal", "bert", auto_class=auto, is_decoder=False)
    model = load_checkpoint(str(folder), task="text-generation").model
    ids = torch.tensor([[5, 6, 7], [5, 6, 8]])
    with torch.inference_mode():
        logits = model(input_ids=ids).logits
    # float32 sums in another order.
    torch.testing.assert_close(logits[0, :2], logits[1, :2], rtol=0, atol=1e-5)
    assert (logits[0, 2] - logits[1, 2]).abs().max() > 0.1


def test_a_config_without_architectures_is_an_encoder(checkpoint_copy) -> None:
    folder = change_config(checkpoint_copy("bert"), architectures=None)
    assert load_checkpoint(folder).task == "feature-extraction"


def test_a_missing_head_is_not_filled_with_random_numbers(checkpoints) -> None:
    with pytest.raises(
        CheckpointError, match=r"lacks 2 weights, among them `classifier\.bias`. Fine-tune"
    ):
        load_checkpoint(str(checkpoints("bert")), task="text-classification")


def test_a_missing_pooler_is_not_filled_for_a_head_that_reads_it(tmp_path, save_tiny) -> None:
    auto = transformers.AutoModelForSequenceClassification
    folder = save_tiny(tmp_path / "deberta", "deberta-v2", auto_class=auto)
    model = auto.from_pretrained(folder)
    kept = {key: value for key, value in model.state_dict().items() if "pooler" not in key}
    model.save_pretrained(folder, state_dict=kept)
    with pytest.raises(CheckpointError, match=r"lacks 2 weights, .*`pooler\.dense\.bias`"):
        load_checkpoint(str(folder))


def test_missing_weights_of_the_encoder_are_named(checkpoint_copy) -> None:
    folder = change_config(checkpoint_copy("bert"), num_hidden_layers=3)
    message = r"is incomplete: its files lack 16 weights of the encoder .*`encoder\.layer\.2\."
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(folder)
    # A classifier gives the same error, also if a head may be created.
    folder = change_config(checkpoint_copy("classifier"), num_hidden_layers=3)
    for new_head in (None, ["no", "yes"]):
        with pytest.raises(CheckpointError, match=r"is incomplete.*`bert\.encoder\.layer\.2\."):
            load_checkpoint(folder, new_head=new_head)


def test_a_weight_of_another_shape_is_named_with_both_shapes(checkpoint_copy) -> None:
    folder = change_config(checkpoint_copy("bert"), hidden_size=64)
    message = r"Weight `embeddings\.LayerNorm\.bias` .* has shape \(32,\), but .* shape \(64,\)"
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(folder)


def test_a_tokenizer_with_more_ids_than_embeddings_is_refused(checkpoint_copy) -> None:
    folder = checkpoint_copy("bert")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    embeddings = load_checkpoint(str(folder)).config.vocab_size
    # Unused embeddings are allowed.
    assert len(tokenizer) < embeddings
    words = [f"word{index}" for index in range(len(tokenizer), embeddings + 1)]
    tokenizer.add_tokens(words)
    tokenizer.save_pretrained(folder)
    message = rf"ids up to {embeddings} \('{words[-1]}'\), .* only {embeddings} embeddings"
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(str(folder))


def test_loading_prints_nothing_and_restores_the_settings_of_transformers(
    checkpoints, capfd
) -> None:
    before = transformers_logging.get_verbosity()
    transformers_logging.enable_progress_bar()
    load_checkpoint(str(checkpoints("bert")))
    assert capfd.readouterr() == ("", "")
    assert transformers_logging.is_progress_bar_enabled()
    assert transformers_logging.get_verbosity() == before


# Pooling and sentence-transformers folders.


def test_a_plain_encoder_without_known_pooling_gives_a_notice(checkpoints) -> None:
    checkpoint = load_checkpoint(str(checkpoints("bert")))
    (notice,) = checkpoint.notices
    assert "has no modules.json, so its pooling is not known: the mean" in notice
    assert checkpoint.head is None
    assert load_checkpoint(str(checkpoints("sentence"))).notices == ()
    assert load_checkpoint(str(checkpoints("classifier"))).notices == ()


@pytest.mark.parametrize("pooling", POOLING_MODES)
def test_the_pooling_of_a_plain_encoder_can_be_given(checkpoints, pooling) -> None:
    checkpoint = load_checkpoint(str(checkpoints("bert")), pooling=pooling)
    assert checkpoint.head == SentenceHead(poolings=(pooling,), normalize=False, max_length=None)
    assert checkpoint.notices == ()


def test_a_given_pooling_replaces_that_of_the_folder(checkpoints) -> None:
    checkpoint = load_checkpoint(str(checkpoints("sentence")), pooling="cls")
    assert (checkpoint.head.poolings, checkpoint.head.normalize) == (("cls",), True)
    assert checkpoint.notices == (
        "modules.json specifies pooling mean; cls is used, as requested.",
    )
    assert load_checkpoint(str(checkpoints("sentence")), pooling="mean").notices == ()


@pytest.mark.parametrize(
    ("name", "pooling", "message"),
    [
        ("classifier", "cls", "`pooling='cls'` is for task `feature-extraction`, got task `text-"),
        ("bert", "last", "`pooling='last'` is unknown. Known: mean, cls, max, mean_sqrt_len_tok"),
    ],
    ids=["task", "unknown"],
)
def test_a_pooling_that_cannot_be_used_is_refused(checkpoints, name, pooling, message) -> None:
    with pytest.raises(UserInputError, match=message) as caught:
        load_checkpoint(str(checkpoints(name)), pooling=pooling)
    assert caught.value.argument == "pooling"


def test_texts_are_lowered_by_the_settings_and_a_default_prompt_gives_a_notice(
    checkpoint_copy,
) -> None:
    folder = checkpoint_copy("sentence")
    settings = {"max_seq_length": 32, "do_lower_case": True}
    (folder / "sentence_bert_config.json").write_text(json.dumps(settings))
    prompts = {"prompts": {"q": "query: "}, "default_prompt_name": "q"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    checkpoint = load_checkpoint(str(folder))
    assert checkpoint.tokenizer.backend_tokenizer.normalizer.normalize_str("The CAT") == "the cat"
    (notice,) = checkpoint.notices
    assert "puts the prompt 'query: ' before each text" in notice


def test_a_file_is_not_a_checkpoint(write_file) -> None:
    path = write_file("model.safetensors", "")
    with pytest.raises(CheckpointError, match="is a file; expected a checkpoint folder"):
        load_checkpoint(str(path))


def test_weights_of_torch_are_those_of_safetensors(
    checkpoints, checkpoint_copy, monkeypatch
) -> None:
    expected = load_checkpoint(str(checkpoints("classifier"))).model.state_dict()
    folder = to_torch(checkpoint_copy("classifier"))
    monkeypatch.setattr(torch, "load", None)
    found = load_checkpoint(str(folder))
    torch.testing.assert_close(found.model.state_dict(), expected, rtol=0, atol=0)
    assert all(each.requires_grad for each in found.model.parameters())


@pytest.mark.parametrize("values", [ABSOLUTE, ROTARY], ids=["absolute", "rotary"])
@pytest.mark.parametrize("model_type", [None, "xlm-roberta"])
def test_xlm_roberta_of_jina_is_a_model_of_transformers(
    values, model_type, checkpoint_copy, tmp_path
) -> None:
    folder = save_flash(checkpoint_copy("xlm-roberta"), values, model_type=model_type)
    found = load_checkpoint(str(folder))
    ids = torch.randint(2, 131, (1, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        logits = found.model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    with qdqbert.load(folder, precision="float") as model:
        expected = model.forward({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    np.testing.assert_allclose(logits.numpy(), expected["logits"], atol=1e-5)
    # A copy that transformers saves is one of its own.
    found.model.save_pretrained(tmp_path / "again")
    config = json.loads((tmp_path / "again" / "config.json").read_text())
    assert config["model_type"] == found.config.model_type
    assert "auto_map" not in config


def test_nomic_of_its_own_code_is_a_model_of_transformers(checkpoint_copy) -> None:
    folder = checkpoint_copy("classifier")
    words = json.loads((folder / "config.json").read_text())["vocab_size"]
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24}
    config = transformers.NomicBertConfig(vocab_size=words, num_hidden_layers=1, **sizes)
    original = transformers.NomicBertForSequenceClassification(config)
    original.save_pretrained(folder)
    stored = load_file(folder / "model.safetensors")
    renamed = {name.replace("nomic_bert.", "bert."): each for name, each in stored.items()}
    assert "bert.emb_ln.weight" in renamed
    save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
    found = load_checkpoint(str(folder)).model.state_dict()
    torch.testing.assert_close(found, original.state_dict(), rtol=0, atol=0)


def test_a_field_under_its_older_name_is_taken_by_transformers(checkpoint_copy) -> None:
    folder = checkpoint_copy("bert")
    config = {"model_type": "eurobert", "clf_pooling": "bos", "rope_theta": 250_000}
    (folder / "config.json").write_text(json.dumps(config))
    found = read_config(str(folder))
    assert found.classifier_pooling == "bos"
    assert found.rope_parameters["rope_theta"] == 250_000


def test_weights_that_torch_files_lack_are_named(checkpoint_copy) -> None:
    folder = to_torch(checkpoint_copy("bert"))
    weights = torch.load(folder / "pytorch_model.bin")
    del weights["encoder.layer.0.output.dense.weight"]
    torch.save(weights, folder / "pytorch_model.bin")
    with pytest.raises(
        CheckpointError, match=r"lack 1 weight .* `encoder\.layer\.0\.output\.dense"
    ):
        load_checkpoint(str(folder))


def test_pickles_next_to_safetensors_are_ignored(checkpoint_copy) -> None:
    folder = checkpoint_copy("bert")
    (folder / "pytorch_model.bin").write_bytes(b"a pickle that is never read")
    assert load_checkpoint(str(folder)).task == "feature-extraction"


def test_a_folder_without_a_tokenizer_is_refused(checkpoint_copy) -> None:
    folder = checkpoint_copy("bert")
    for path in folder.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(CheckpointError, match=r"bert-copy.*tokenizer"):
        load_checkpoint(str(folder))


@pytest.mark.parametrize("task", ["token-classification", "multiple-choice"])
def test_a_head_of_another_task_with_equal_names_is_refused(checkpoints, task) -> None:
    with pytest.raises(UserInputError, match=f"`task='{task}'`.*head for `text-classification`"):
        load_checkpoint(str(checkpoints("classifier")), task=task)


@pytest.mark.parametrize("length", ["x", None, 0, -1, [5]])
def test_a_limit_that_is_no_number_of_tokens_is_none(checkpoint_copy, length) -> None:
    folder = checkpoint_copy("bert")
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_max_length": length}))
    found = describe_checkpoint(str(folder))
    assert found.max_length == found.config.max_position_embeddings
