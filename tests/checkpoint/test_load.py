from __future__ import annotations

import json
import shutil

import pytest
import torch
import transformers

from qdqbert.checkpoint.families import FAMILIES
from qdqbert.checkpoint.load import has_head, load_checkpoint
from qdqbert.checkpoint.task_names import TASK_NAMES
from qdqbert.errors import CheckpointError, UserInputError


def change_config(folder, **changes) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return str(folder)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_an_encoder_of_each_family_is_loaded_to_be_run(checkpoints, family) -> None:
    checkpoint = load_checkpoint(str(checkpoints(family)))
    assert checkpoint.family is FAMILIES[family]
    assert checkpoint.task == "feature-extraction"
    assert not checkpoint.model.training
    assert {parameter.dtype for parameter in checkpoint.model.parameters()} == {torch.float32}
    # The tokenizers of DistilBERT and DeBERTa make segments too, which these models do not read.
    segments = ("token_type_ids",) if family in ("bert", "electra") else ()
    assert checkpoint.input_names == ("input_ids", "attention_mask", *segments)
    # All have room for 64 tokens; RoBERTa's and MPNet's tables have two rows more for no token.
    assert checkpoint.max_length == 64


def test_a_model_with_a_table_of_segments_reads_them(tmp_path, save_tiny) -> None:
    folder = save_tiny(tmp_path / "deberta", "deberta-v2", type_vocab_size=2)
    assert load_checkpoint(str(folder)).input_names[-1] == "token_type_ids"


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_the_longest_input_can_be_run(checkpoints, family) -> None:
    checkpoint = load_checkpoint(str(checkpoints(family)))
    states = checkpoint.model(torch.full((1, checkpoint.max_length), 9)).last_hidden_state
    assert states.shape == (1, 64, 32)


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
def test_the_task_is_that_of_the_head_unless_another_is_asked_for(
    checkpoints, name, task, expected
) -> None:
    checkpoint = load_checkpoint(str(checkpoints(name)), task=task)
    assert checkpoint.task == expected
    assert (checkpoint.head is not None) is (name == "sentence")


def test_a_sentence_checkpoint_takes_what_it_was_meant_for(checkpoints) -> None:
    checkpoint = load_checkpoint(str(checkpoints("sentence")))
    assert checkpoint.max_length == 32
    assert checkpoint.head.pooling == "mean"
    assert checkpoint.head.normalize


@pytest.fixture
def in_subfolder(checkpoint_copy) -> str:
    """A sentence-transformers folder whose encoder stands in a folder of its own."""
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


def test_the_head_of_an_encoder_in_a_subfolder_is_known(in_subfolder) -> None:
    assert has_head(in_subfolder, "feature-extraction")
    assert not has_head(in_subfolder, "text-classification")


@pytest.mark.parametrize(
    ("name", "head"), [("classifier", "text-classification"), ("bert", "feature-extraction")]
)
def test_a_checkpoint_has_the_head_that_its_config_says(checkpoints, name, head) -> None:
    folder = str(checkpoints(name))
    assert [each for each in TASK_NAMES if has_head(folder, each)] == [head]


def test_there_is_no_head_where_there_is_no_checkpoint() -> None:
    with pytest.raises(CheckpointError, match=r"folder './no-such-model' does not exist"):
        has_head("./no-such-model", "text-classification")


def test_half_precision_weights_are_loaded_in_float32(checkpoints, tmp_path) -> None:
    folder = shutil.copytree(checkpoints("bert"), tmp_path / "half")
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    checkpoint = load_checkpoint(str(folder))
    assert {parameter.dtype for parameter in checkpoint.model.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "albert"}, "`albert` are not supported. Supported families: bert"),
        ({"position_embedding_type": "relative_key"}, "`position_embedding_type='relative_key'`"),
        ({"is_decoder": True}, "`is_decoder=True` is for `--task text-generation` only"),
    ],
    ids=["family", "relative-positions", "decoder"],
)
def test_an_encoder_that_we_cannot_quantize_is_refused(checkpoint_copy, changes, message) -> None:
    folder = change_config(checkpoint_copy("bert"), **changes)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(folder)


@pytest.mark.parametrize(
    ("architecture", "message"),
    [
        ("BertForMaskedLM", "weights that task `fill-mask` needs"),
        ("BertForTokenClassification", "lacks 2 weights that task `token-classification` needs"),
        ("BertOfMyOwn", "The task of architecture `BertOfMyOwn` is not known"),
    ],
    ids=["masked-lm", "token-classification", "unknown"],
)
def test_a_head_that_is_not_there_or_not_known_is_refused(
    checkpoint_copy, architecture, message
) -> None:
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


def test_a_causal_head_sees_no_later_token(tmp_path, save_tiny) -> None:
    auto = transformers.AutoModelForCausalLM
    # A config that does not say so all the same.
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
    with pytest.raises(CheckpointError, match=r"lacks 2 weights .* `classifier\.bias`"):
        load_checkpoint(str(checkpoints("bert")), task="text-classification")


def test_a_missing_pooler_is_not_filled_for_a_head_that_reads_it(tmp_path, save_tiny) -> None:
    auto = transformers.AutoModelForSequenceClassification
    folder = save_tiny(tmp_path / "deberta", "deberta-v2", auto_class=auto)
    model = auto.from_pretrained(folder)
    kept = {key: value for key, value in model.state_dict().items() if "pooler" not in key}
    model.save_pretrained(folder, state_dict=kept)
    with pytest.raises(CheckpointError, match=r"lacks 2 weights .*`pooler\.dense\.bias`"):
        load_checkpoint(str(folder))


def test_missing_weights_of_the_encoder_are_named(checkpoint_copy) -> None:
    folder = change_config(checkpoint_copy("bert"), num_hidden_layers=3)
    with pytest.raises(CheckpointError, match=r"lacks 16 weights .*`encoder\.layer\.2\."):
        load_checkpoint(folder)


def test_a_file_is_no_checkpoint(write_file) -> None:
    path = write_file("model.safetensors", "")
    with pytest.raises(CheckpointError, match="is a file; expected a checkpoint folder"):
        load_checkpoint(str(path))


def test_pickles_beside_safetensors_do_no_harm(checkpoint_copy) -> None:
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
def test_a_head_whose_weights_another_task_would_take_is_refused(checkpoints, task) -> None:
    with pytest.raises(UserInputError, match=f"`--task {task}`.*head for `text-classification`"):
        load_checkpoint(str(checkpoints("classifier")), task=task)


def test_a_multi_label_classifier_is_refused(checkpoint_copy) -> None:
    folder = checkpoint_copy("classifier")
    config = json.loads((folder / "config.json").read_text())
    config["problem_type"] = "multi_label_classification"
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="multi-label"):
        load_checkpoint(str(folder))
