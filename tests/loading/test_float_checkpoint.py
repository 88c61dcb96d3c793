"""Float checkpoints that run in INT8 at once."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import re
import shutil

import numpy as np
import pytest
import safetensors.torch
import sentence_transformers
import torch
import transformers

import qdqbert
from python_process import run_python
from qdqbert.common import cache
from qdqbert.common.errors import CheckpointError, MissingExtraError, UserInputError
from qdqbert.loading.float_checkpoint.closeness import Closeness
from qdqbert.loading.float_checkpoint.source import read_checkpoint
from torch_files import to_torch

TEXTS = ["the old house", "a train to the city and a good book for the night", "dog"]
# INT8 of models this narrow is far from float; a wrong part would be below 5 dB.
LEAST_DB = 14.0


pytestmark = pytest.mark.usefixtures("own_cache")


def sqnr_db(expected, found) -> float:
    expected, found = np.asarray(expected, np.float64), np.asarray(found, np.float64)
    return 10 * np.log10((expected**2).sum() / ((expected - found) ** 2).sum())


def logits_of(folder, auto_class, *texts):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = auto_class.from_pretrained(folder).eval()
    with torch.no_grad():
        return model(**tokenizer(*texts, return_tensors="pt"))


def test_an_embedder_is_close_to_sentence_transformers(checkpoints) -> None:
    reference = sentence_transformers.SentenceTransformer(str(checkpoints("sentence")))
    with qdqbert.load(checkpoints("sentence")) as model:
        found = model.encode(TEXTS)
        assert (model.engine, model.target) == ("native", "native-dynamic")
    expected = reference.encode(TEXTS)
    assert found.shape == expected.shape
    assert (found * expected).sum(axis=1).min() > 0.97
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)


def test_a_classifier_is_close_to_transformers(checkpoints) -> None:
    folder = checkpoints("classifier")
    with qdqbert.load(folder) as model:
        answers = [model(text, top_k=None, function_to_apply="none") for text in TEXTS]
    found = [[each["score"] for each in sorted(a, key=lambda x: x["label"])] for a in answers]
    auto = transformers.AutoModelForSequenceClassification
    expected = [logits_of(folder, auto, text).logits[0].numpy() for text in TEXTS]
    # Their names are in alphabetical order.
    assert sqnr_db(expected, found) > LEAST_DB


def in_memory(name: str, folder) -> object:
    """Load a checkpoint as users hold it."""
    library, path = sentence_transformers, str(folder)
    if name == "sentence":
        return library.SentenceTransformer(path, device="cpu")
    if name == "reranker":
        return library.CrossEncoder(path, device="cpu")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    if name == "pipeline":
        return transformers.pipeline("text-classification", model=model, tokenizer=tokenizer)
    return model, tokenizer


@pytest.mark.parametrize("name", ["sentence", "reranker", "pipeline", "classifier"])
@pytest.mark.usual("sentence", "pipeline")
def test_a_model_in_memory_answers_as_its_folder_does(checkpoints, name) -> None:
    folder = checkpoints("classifier" if name == "pipeline" else name)

    def answers(source: object) -> object:
        with qdqbert.load(source) as model:
            if name == "sentence":
                return model.encode(TEXTS).tolist()
            if name == "reranker":
                return model.predict([(text, "a city") for text in TEXTS]).tolist()
            return model(TEXTS, top_k=None)

    assert answers(in_memory(name, folder)) == answers(folder)


def test_a_model_that_cannot_be_loaded_from_memory_is_refused(make_model) -> None:
    with pytest.raises(UserInputError, match="`path` is a BertModel without its tokenizer"):
        qdqbert.load(make_model("bert"))
    with pytest.raises(UserInputError, match=r"`path` must be a folder, .*, got int") as caught:
        qdqbert.load(3)
    assert caught.value.argument == "path"


@pytest.mark.parametrize(
    "family", ["camembert", "deberta-v2", "distilbert", "electra", "modernbert", "mpnet", "roberta"]
)
@pytest.mark.usual("electra", "deberta-v2", "modernbert")
def test_token_states_of_each_family_are_close_to_transformers(family, checkpoints) -> None:
    folder = checkpoints(family)
    with qdqbert.load(folder) as model:
        found = model(TEXTS[1])[0][0]
    expected = logits_of(folder, transformers.AutoModel, TEXTS[1]).last_hidden_state[0].numpy()
    assert found.shape == expected.shape
    assert sqnr_db(expected, found) > LEAST_DB


def test_an_encoder_of_dpr_makes_embeddings(checkpoints, tmp_path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoints("sentence"))
    torch.manual_seed(0)
    config = transformers.DPRConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        initializer_range=0.4,
        projection_dim=24,
    )
    reference = transformers.DPRContextEncoder(config).eval()
    for part in (reference, tokenizer):
        part.save_pretrained(tmp_path / "dpr")
    with qdqbert.load(tmp_path / "dpr") as model:
        found = model.encode(TEXTS)
    encoded = tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        expected = reference(**encoded).pooler_output.numpy()
    assert found.shape == (3, 24)
    assert sqnr_db(expected, found) > LEAST_DB


def test_the_reader_of_dpr_is_refused(checkpoint_copy) -> None:
    folder = checkpoint_copy("classifier")
    content = json.loads((folder / "config.json").read_text())
    changed = {**content, "model_type": "dpr", "architectures": ["DPRReader"]}
    (folder / "config.json").write_text(json.dumps(changed))
    with pytest.raises(UserInputError, match="`DPRReader`"):
        qdqbert.load(folder)


def test_pairs_have_token_types(checkpoints) -> None:
    folder = checkpoints("reranker")
    with qdqbert.load(folder) as model:
        found = model.predict([(TEXTS[0], TEXTS[1])])
    auto = transformers.AutoModelForSequenceClassification
    expected = torch.sigmoid(logits_of(folder, auto, TEXTS[0], TEXTS[1]).logits[0, 0]).item()
    assert found[0] == pytest.approx(expected, abs=0.05)


def test_half_precision_and_shards_give_what_float32_does(checkpoints, tmp_path) -> None:
    folder = checkpoints("sentence")
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.bfloat16)
    halved = shutil.copytree(folder, tmp_path / "halved")
    (halved / "model.safetensors").unlink()
    model.save_pretrained(halved, max_shard_size="40KB")
    assert (halved / "model.safetensors.index.json").is_file()
    with qdqbert.load(folder) as one, qdqbert.load(halved) as other:
        assert (one.encode(TEXTS) * other.encode(TEXTS)).sum(axis=1).min() > 0.97


def test_files_of_torch_are_read_without_torch(checkpoints, checkpoint_copy) -> None:
    folder = to_torch(checkpoint_copy("sentence"))
    code = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\n"
        f"import qdqbert; print(qdqbert.load({str(folder)!r}).encode({TEXTS}).tolist())"
    )
    with qdqbert.load(checkpoints("sentence")) as model:
        expected = model.encode(TEXTS)
    np.testing.assert_array_equal(
        np.array(json.loads(run_python("-c", code)), np.float32), expected
    )


def test_the_second_load_uses_the_cache(checkpoints, monkeypatch) -> None:
    with qdqbert.load(checkpoints("sentence")) as model:
        first = model.encode(TEXTS)
    monkeypatch.setattr("qdqbert.loading.float_checkpoint.folder.write_model", None)
    with qdqbert.load(checkpoints("sentence")) as model:
        np.testing.assert_array_equal(model.encode(TEXTS), first)


def test_a_copy_shares_the_folder_and_changed_weights_do_not(checkpoints, tmp_path) -> None:
    folder = checkpoints("sentence")
    copied = shutil.copytree(folder, tmp_path / "copied")
    changed = shutil.copytree(folder, tmp_path / "changed")
    tensors = safetensors.torch.load_file(changed / "model.safetensors")
    name = next(each for each in tensors if each.endswith("word_embeddings.weight"))
    tensors[name][5] += 1
    safetensors.torch.save_file(tensors, changed / "model.safetensors")
    for each in (folder, copied):
        qdqbert.load(each).close()
    assert len(list(cache.models_folder().iterdir())) == 1
    qdqbert.load(changed).close()
    assert len(list(cache.models_folder().iterdir())) == 2


def test_the_log_says_how_close_it_is(checkpoints, caplog) -> None:
    with caplog.at_level("INFO", logger="qdqbert"):
        qdqbert.load(checkpoints("sentence")).close()
        again = len(caplog.records)
        qdqbert.load(checkpoints("sentence")).close()
    close = [each.getMessage() for each in caplog.records if " dB " in each.getMessage()]
    assert len(close) == 2
    assert "dB on 16 built-in texts" in close[0]
    assert close[0] == close[1]
    assert again


def test_the_check_can_be_left_out(checkpoints, caplog) -> None:
    with caplog.at_level("INFO", logger="qdqbert"):
        qdqbert.load(checkpoints("sentence"), check=False).close()
    assert not any(" dB " in each.getMessage() for each in caplog.records)


def test_a_cache_that_cannot_be_written_is_not_needed(checkpoints, monkeypatch, caplog) -> None:
    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("qdqbert.common.cache._fill", refuse)
    with qdqbert.load(checkpoints("sentence")) as model:
        assert model.encode(TEXTS).shape == (3, 32)
    assert "cannot be written (Permission denied)" in caplog.text


def with_weights(folder, tmp_path, change):
    """Return a copy of a checkpoint whose weights are changed."""
    copy = shutil.copytree(folder, tmp_path / "a copy")
    file = copy / "model.safetensors"
    weights = safetensors.torch.load_file(file)
    changed = {name: change(name, x) for name, x in weights.items()}
    safetensors.torch.save_file(changed, file, metadata={"format": "pt"})
    return copy


def test_a_model_that_int8_breaks_gets_a_warning_at_each_load(
    checkpoints, tmp_path, caplog
) -> None:
    folder = with_weights(
        checkpoints("classifier"), tmp_path, lambda name, x: 300 * x if x.ndim == 2 else x
    )
    for _ in range(2):
        caplog.clear()
        qdqbert.load(folder).close()
        (warning,) = (each for each in caplog.records if each.levelname == "WARNING")
        message = warning.getMessage()
        assert f"INT8 of {folder} is far from float: broken (SQNR " in message
        assert "`min_sqnr=20`" in message
        assert re.search(f"qdqbert quantize '{folder}' -o .*-int8' --min-sqnr 20", message)
        # A name that `run` and `serve` have, too.
        assert "`target='float'`" in message


def test_a_model_that_int8_does_not_break_gets_its_closeness_in_words(checkpoints, caplog) -> None:
    caplog.set_level("INFO", logger="qdqbert")
    qdqbert.load(checkpoints("sentence")).close()
    assert not any(each.levelname == "WARNING" for each in caplog.records)
    (found,) = (each for each in caplog.messages if "compared with float" in each)
    assert re.search(r": (very close|close|look at your own data) \(SQNR [0-9.]+ dB on 16", found)


def test_changed_entities_make_a_model_less_close() -> None:
    found = Closeness(
        texts=16, sqnr_db=38.5, entities=40, changed_entities=4, largest_difference=0.04
    )
    assert str(found).startswith("look at your own data (SQNR 38.5 dB on 16 built-in texts, 4 of")
    assert not found.is_far


def test_a_head_whose_outputs_are_zero_can_be_loaded(checkpoints, tmp_path, caplog) -> None:
    caplog.set_level("INFO", logger="qdqbert")
    folder = with_weights(
        checkpoints("classifier"),
        tmp_path,
        lambda name, x: 0 * x if name.startswith("classifier") else x,
    )
    with qdqbert.load(folder) as model:
        (answer,) = model(["the old house"], top_k=None)
    assert [each["score"] for each in answer] == pytest.approx([1 / 3] * 3)
    assert "compared with float: very close (equal on 16 built-in texts)" in caplog.text


def test_weights_that_cannot_be_read_are_named(checkpoints, monkeypatch) -> None:
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("qdqbert.loading.float_checkpoint.source.kept_digest", refuse)
    with pytest.raises(CheckpointError, match=r"model.safetensors' cannot be read: Permission"):
        qdqbert.load(checkpoints("sentence"))


def load_once(folder: str) -> None:
    with qdqbert.load(folder) as model:
        assert model.encode(TEXTS).shape == (3, 32)


@pytest.mark.slow
def test_processes_can_pack_a_model_at_the_same_time(checkpoints) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=load_once, args=(str(checkpoints("sentence")),)) for _ in range(3)
    ]
    for each in processes:
        each.start()
    for each in processes:
        each.join()
    assert [each.exitcode for each in processes] == [0, 0, 0]
    assert len(list(cache.models_folder().iterdir())) == 1


def test_what_was_not_used_for_longest_is_removed(checkpoints, monkeypatch, tmp_path) -> None:
    for index in range(3):
        folder = cache.models_folder() / f"old-{index}"
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(bytes(1000))
        os.utime(folder, (index, index))
    monkeypatch.setattr("qdqbert.common.cache.LIMIT_BYTES", 2500 + 10**6)
    qdqbert.load(checkpoints("sentence")).close()
    assert cache.size_bytes() <= 2500 + 10**6
    monkeypatch.setattr("qdqbert.common.cache.LIMIT_BYTES", 1)
    qdqbert.load(checkpoints("classifier")).close()
    assert len(list(cache.models_folder().iterdir())) == 1


def test_int8_its_comparison_with_float_and_float_import_what_they_need(checkpoints) -> None:
    code = (
        "import sys, qdqbert\n"
        "for precision in ('int8', 'float'):\n"
        f"    model = qdqbert.load({str(checkpoints('sentence'))!r}, precision=precision)\n"
        "    model.encode(['a dog'])\n"
        "others = {'torch', 'transformers', 'onnx', 'onnx_ir', 'onnxruntime', 'huggingface_hub'}\n"
        "print(sorted(others & set(sys.modules)))"
    )
    assert run_python("-c", code) == "[]"


@pytest.mark.parametrize(
    ("options", "engine"),
    [
        ({"precision": "float"}, "native"),
        ({"target": "float", "kernel": "portable"}, "native"),
        ({"target": "float", "engine": "onnxruntime"}, "onnxruntime"),
        ({"precision": "float", "provider": "cpu"}, "onnxruntime"),
    ],
)
def test_float_gives_what_sentence_transformers_does(options, engine, checkpoints) -> None:
    folder = checkpoints("sentence")
    with qdqbert.load(folder, **options) as model:
        found = model.encode(TEXTS)
        assert (model.engine, model.target) == (engine, "float")
    reference = sentence_transformers.SentenceTransformer(str(folder))
    np.testing.assert_allclose(found, reference.encode(TEXTS), atol=1e-5)
    with qdqbert.load(folder) as model:
        assert model.engine == "native"


def test_float_on_an_engine_that_is_not_installed_names_its_extra(checkpoints, monkeypatch) -> None:
    monkeypatch.setattr("qdqbert.common.extras.is_installed", lambda name: name == "llvmlite")
    with pytest.raises(MissingExtraError, match=r"pip install 'qdqbert\[onnxruntime\]'$"):
        qdqbert.load(checkpoints("sentence"), precision="float", engine="onnxruntime")


def test_float_contradicts_targets_in_int8(checkpoints) -> None:
    with pytest.raises(UserInputError, match="contradicts the INT8 target") as caught:
        qdqbert.load(checkpoints("sentence"), precision="float", target="native-dynamic")
    assert caught.value.argument == "precision"


def test_digests_of_large_files_are_kept_until_they_change(tmp_path, monkeypatch) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(2_000_000))
    # Another time than that of a later change.
    os.utime(path, (0, 0))
    monkeypatch.setattr("qdqbert.common.cache._SETTLED_SECONDS", 3600)
    first = cache.kept_digest(path)
    assert first == hashlib.sha256(bytes(2_000_000)).hexdigest()
    # What was just written can change again without another time.
    assert not (cache.cache_folder() / "digests").exists()
    monkeypatch.setattr("qdqbert.common.cache._SETTLED_SECONDS", -1)
    assert cache.kept_digest(path) == first
    with monkeypatch.context() as patch:
        patch.setattr("hashlib.file_digest", None)
        assert cache.kept_digest(path) == first
    path.write_bytes(b"1" * 2_000_000)
    assert cache.kept_digest(path) == hashlib.sha256(b"1" * 2_000_000).hexdigest()


@pytest.mark.parametrize(
    "options",
    [
        {"engine": "onnxruntime"},
        {"engine": "openvino"},
        {"provider": "cpu"},
        {"target": "openvino"},
        {"provider": "cpu", "engine": "native", "target": "float"},
    ],
)
def test_another_engine_needs_quantize(checkpoints, monkeypatch, options) -> None:
    monkeypatch.setattr("qdqbert.loading.load.open_float_checkpoint", None)
    name, value = next(iter(options.items()))
    folder = checkpoints("sentence")
    with pytest.raises(UserInputError) as caught:
        qdqbert.load(folder, **options)
    assert str(caught.value).startswith(f"`{name}={value!r}`: {str(folder)!r} is a float")
    assert caught.value.argument == name


def test_a_checkpoint_without_tokenizer_json_is_refused(checkpoint_copy) -> None:
    folder = checkpoint_copy("classifier")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no tokenizer\.json"):
        qdqbert.load(folder)


def test_a_token_without_embedding_is_refused(checkpoint_copy) -> None:
    folder = checkpoint_copy("classifier")
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["vocab"]["unheard"] = 5000
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="ids up to 5000"):
        qdqbert.load(folder)


def test_code_of_the_checkpoint_is_not_taken_for_known_code(checkpoint_copy) -> None:
    folder = checkpoint_copy("classifier")
    content = json.loads((folder / "config.json").read_text())
    mapped = {"AutoModelForSequenceClassification": "modeling.MyModel"}
    (folder / "config.json").write_text(json.dumps({**content, "auto_map": mapped}))
    with pytest.raises(CheckpointError, match="auto_map"):
        qdqbert.load(folder)


def changed(folder, name, **values):
    """Write fields to a file of JSON."""
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    return folder


@pytest.mark.parametrize("architectures", [5, [None], {"a": 1}, True])
def test_architectures_of_a_wrong_type_are_refused(checkpoint_copy, architectures) -> None:
    folder = changed(checkpoint_copy("classifier"), "config.json", architectures=architectures)
    with pytest.raises(CheckpointError, match=r"`architectures` in config\.json has to be a list"):
        qdqbert.load(folder)


@pytest.mark.parametrize("architectures", [None, []])
def test_without_architectures_the_task_of_a_head_has_to_be_named(
    checkpoint_copy, architectures
) -> None:
    folder = changed(checkpoint_copy("classifier"), "config.json", architectures=architectures)
    with pytest.raises(CheckpointError, match=r"names no `architectures`.*`classifier`"):
        qdqbert.load(folder)
    for task in ("text-classification", "feature-extraction"):
        with qdqbert.load(folder, task=task, check=False) as model:
            assert model.task == task
    # What was made for the named task is no answer to the question.
    with pytest.raises(CheckpointError, match="names no `architectures`"):
        qdqbert.load(folder)


@pytest.mark.parametrize(
    ("dtype", "file", "named"),
    [
        (torch.float8_e4m3fn, "model.safetensors", "F8_E4M3"),
        (torch.int8, "model.safetensors", "I8"),
        (torch.int8, "pytorch_model.bin", "I8"),
    ],
)
def test_weights_of_types_that_are_not_read_are_named(checkpoint_copy, dtype, file, named) -> None:
    folder = checkpoint_copy("classifier")
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    name = "bert.encoder.layer.0.attention.self.query.weight"
    tensors[name] = tensors[name].to(dtype)
    (folder / "model.safetensors").unlink()
    save = torch.save if file.endswith(".bin") else safetensors.torch.save_file
    save(tensors, folder / file)
    with pytest.raises(
        CheckpointError, match=f"has `{re.escape(name)}` in {named}, and only float"
    ):
        qdqbert.load(folder)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"do_lower_case": False}, "do_lower_case=False"),
        ({"strip_accents": False}, "strip_accents=False"),
        ({"tokenize_chinese_chars": False}, "tokenize_chinese_chars=False"),
        ({"cls_token": "[MASK]"}, r"cls_token='\[MASK\]'"),
        ({"do_lower_case": True}, None),
        ({"do_lower_case": False, "tokenizer_class": "PreTrainedTokenizerFast"}, None),
    ],
)
def test_settings_that_tokenizer_json_contradicts_are_said_at_each_load(
    checkpoint_copy, caplog, settings, named
) -> None:
    folder = checkpoint_copy("classifier")
    settings = {"tokenizer_class": "BertTokenizer", **settings}
    changed(folder, "tokenizer_config.json", **settings)
    for _ in range(2):
        caplog.clear()
        qdqbert.load(folder, check=False).close()
        found = [each.message for each in caplog.records if each.levelname == "WARNING"]
        assert len(found) == (named is not None)
        if named is not None:
            assert re.search(f"has {named}, and its tokenizer.json says", found[0])


def test_the_limit_of_sentence_transformers_counts(checkpoint_copy) -> None:
    folder = checkpoint_copy("sentence")
    changed(folder, "tokenizer_config.json", model_max_length=16)
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 24}')
    reference = sentence_transformers.SentenceTransformer(str(folder))
    with qdqbert.load(folder, check=False) as model:
        assert model.max_seq_length == reference.max_seq_length == 24


def test_tensors_of_an_adapter_are_refused(checkpoint_copy) -> None:
    folder = checkpoint_copy("classifier")
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    tensors["bert.encoder.layer.0.attention.self.query.lora_A.weight"] = torch.ones(2, 32)
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="lora_A"):
        qdqbert.load(folder)


def test_an_error_about_classes_has_the_users_name_of_the_model(checkpoint_copy) -> None:
    folder = checkpoint_copy("classifier")
    path = folder / "config.json"
    names = {"id2label": {"1": "a", "2": "b", "3": "c"}}
    path.write_text(json.dumps(json.loads(path.read_text()) | names))
    # A model of the hub is in its cache.
    with pytest.raises(CheckpointError, match=r"in 'owner/name/config\.json' names the classes 1"):
        read_checkpoint(folder, name="owner/name")
