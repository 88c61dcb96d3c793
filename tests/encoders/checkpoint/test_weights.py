from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from qdqbert.common.errors import CheckpointError
from qdqbert.encoders.checkpoint.load import load_checkpoint


@pytest.fixture
def with_weights(checkpoint_copy) -> Callable[..., str]:
    """Copy a checkpoint, and add weights to its file."""

    def make(name: str, *keys: str) -> str:
        folder = checkpoint_copy(name)
        path = folder / "model.safetensors"
        weights = load_file(path) | {key: torch.ones(2) for key in keys}
        save_file(weights, path, metadata={"format": "pt"})
        return str(folder)

    return make


@pytest.mark.parametrize("name", ["bert", "classifier"])
def test_layers_that_the_config_does_not_describe_are_refused(checkpoint_copy, name) -> None:
    folder = checkpoint_copy(name)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_hidden_layers": 0}))
    with pytest.raises(CheckpointError, match=r"32 weights in the encoder .*encoder\.layer\.0\."):
        load_checkpoint(str(folder))


@pytest.mark.parametrize(
    ("name", "key", "message"),
    [
        ("bert", "encoder.layer.0.attention.self.query.lora_A.weight", "of an adapter, among them"),
        ("classifier", "bert.encoder.layer.0.attention.self.query.lora_B.d.weight", "of an adapt"),
        ("bert", "encoder.layer.0.output.adapters.x.adapter_down.0.weight", "of an adapter"),
        ("bert", "encoder.layer.0.output.scale.weight", "1 weight in the encoder"),
        ("classifier", "bert.projection.weight", "1 weight in the encoder"),
        (
            "classifier",
            "classifier.dense.weight",
            "1 weight that .*SequenceClassification does not",
        ),
        ("classifier", "projection.weight", "among them `projection.weight`: other code"),
        ("bert", "linear.weight", "1 weight that .* BertModel does not use"),
    ],
    ids=["lora", "lora-head", "adapters", "inner", "unknown-part", "head", "beside", "colbert"],
)
def test_weights_that_take_part_in_the_results_are_refused(
    with_weights, name, key, message
) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        load_checkpoint(with_weights(name, key))
    assert f"`{key}`" in str(caught.value)


def test_an_adapter_is_named_before_the_weights_that_it_replaced(checkpoint_copy) -> None:
    folder = checkpoint_copy("bert")
    weights = load_file(folder / "model.safetensors")
    name = "encoder.layer.0.attention.self.query"
    weights[f"{name}.base_layer.weight"] = weights.pop(f"{name}.weight")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=rf"adapter.*`{name}\.base_layer.*merge_and_unload"):
        load_checkpoint(str(folder))


def test_buffers_of_older_versions_are_left_out_without_a_word(with_weights) -> None:
    folder = with_weights("classifier", "bert.embeddings.position_ids")
    assert load_checkpoint(folder).notices == ()


def test_a_head_that_the_task_does_not_use_is_named(checkpoints) -> None:
    folder = str(checkpoints("classifier"))
    notices = load_checkpoint(folder, task="feature-extraction", pooling="mean").notices
    assert notices == (
        f"Weights of {folder!r} that task `feature-extraction` does not use are left out: "
        "`classifier`.",
    )


@pytest.mark.parametrize(
    ("family", "auto", "task", "unused"),
    [
        ("bert", "PreTraining", "feature-extraction", "`cls`"),
        ("bert", "PreTraining", "fill-mask", "`pooler`, `cls`"),
        ("bert", "PreTraining", "next-sentence-prediction", "`cls`"),
        ("electra", "PreTraining", "feature-extraction", "`discriminator_predictions`"),
        ("deberta-v2", "MaskedLM", "feature-extraction", "`cls`"),
        ("modernbert", "MaskedLM", "feature-extraction", "`decoder`, `head`"),
        ("roberta", "MaskedLM", "feature-extraction", "`lm_head`"),
    ],
)
def test_pretraining_checkpoints_are_loaded_for_the_same_tasks(
    save_tiny, tmp_path, family, auto, task, unused
) -> None:
    auto_class = getattr(transformers, f"AutoModelFor{auto}")
    folder = str(save_tiny(tmp_path / "m", family, auto_class=auto_class, num_hidden_layers=2))
    checkpoint = load_checkpoint(folder, task=task)
    assert checkpoint.notices[-1].endswith(f"are left out: {unused}.")
    auto_of_task = {"fill-mask": "ForMaskedLM", "next-sentence-prediction": "ForNextSentence"}
    name = f"AutoModel{auto_of_task.get(task, '')}".replace("Sentence", "SentencePrediction")
    right = getattr(transformers, name).from_pretrained(folder).eval()
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.inference_mode():
        expected = right(input_ids=ids)[0]
        torch.testing.assert_close(checkpoint.model(input_ids=ids)[0], expected)


def test_a_new_head_is_made_from_a_pretraining_checkpoint(save_tiny, tmp_path) -> None:
    auto_class = transformers.AutoModelForPreTraining
    folder = str(save_tiny(tmp_path / "electra", "electra", auto_class=auto_class))
    checkpoint = load_checkpoint(folder, task="text-classification", new_head=["no", "yes"])
    assert checkpoint.config.num_labels == 2


def test_weights_in_several_files_are_loaded(checkpoint_copy) -> None:
    folder = Path(checkpoint_copy("classifier"))
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="50KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    loaded = load_checkpoint(str(folder)).model.state_dict()
    torch.testing.assert_close(loaded, model.state_dict())
