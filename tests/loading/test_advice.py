"""What `load` says of checkpoints that it does not run as they are, and that its advice works."""

from __future__ import annotations

import json
import logging
import re
import shutil

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers

import qdqbert
from qdqbert.common.errors import CheckpointError, DataFileError, QdqBertError, UserInputError
from qdqbert.data.rows.lines import read_records
from qdqbert.data.tables.inputs import open_source
from qdqbert.data.tokenizing.sentencepiece_model import read_sentencepiece
from qdqbert.encoders.checkpoint.load import load_checkpoint
from qdqbert.graphs.imported.onnx_file import load_graph
from spm_models import write_spm

TEXTS = ["the old house", "a good book"]


pytestmark = pytest.mark.usefixtures("own_cache")


def change_config(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    return folder


def without(folder, part):
    """Remove the tensors with a part in their names."""
    path = folder / "model.safetensors"
    kept = {n: t for n, t in safetensors.torch.load_file(path).items() if part not in n}
    safetensors.torch.save_file(kept, path, {"format": "pt"})
    return folder


def means_of(folder):
    """Return the mean states of transformers' encoder."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        rows = [model(**tokenizer(text, return_tensors="pt"))[0].mean(dim=1) for text in TEXTS]
    return torch.cat(rows).numpy()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "bloom", "architectures": ["BloomForCausalLM"]}, "`bloom` are not"),
        ({"model_type": "bart", "architectures": ["BartModel"]}, "`bart` are not supported"),
        ({"model_type": None}, "names no `model_type`"),
    ],
)
@pytest.mark.parametrize("task", [None, "feature-extraction"])
def test_the_family_is_refused_before_the_task(checkpoint_copy, changes, message, task) -> None:
    folder = change_config(checkpoint_copy("classifier"), **changes)
    with pytest.raises(CheckpointError, match=message) as caught:
        qdqbert.load(folder, task=task)
    assert "task" not in str(caught.value)


def test_the_task_of_an_unknown_architecture_can_be_passed(checkpoint_copy) -> None:
    folder = change_config(checkpoint_copy("classifier"), architectures=["BertForSomething"])
    with pytest.raises(UserInputError, match=r"`BertForSomething` is not known. Pass `task`, one"):
        qdqbert.load(folder)
    with qdqbert.load(folder, task="text-classification", check=False) as model:
        assert model.task == "text-classification"


@pytest.mark.parametrize("weights", ["tf_model.h5", "model.onnx", None])
def test_a_folder_without_weights_gets_the_advice_of_quantize(checkpoint_copy, weights) -> None:
    folder = checkpoint_copy("classifier")
    stored = folder / "model.safetensors"
    stored.rename(folder / weights) if weights else stored.unlink()
    found = []
    for call in (qdqbert.load, load_checkpoint):
        with pytest.raises(CheckpointError) as caught:
            call(str(folder))
        found.append(str(caught.value))
    assert found[0] == found[1]
    assert "has no weights" in found[0]


@pytest.mark.parametrize(
    ("auto_class", "part"),
    [
        ("AutoModelForMaskedLM", "decoder.weight"),
        ("AutoModelForMaskedLM", "cls."),
        ("AutoModelForSequenceClassification", "classifier."),
        ("AutoModelForTokenClassification", "classifier."),
        ("AutoModelForQuestionAnswering", "qa_outputs."),
    ],
)
@pytest.mark.usual("AutoModelForMaskedLM-cls.", "AutoModelForTokenClassification-*")
def test_the_task_in_the_advice_for_a_missing_head_works(
    save_tiny, tmp_path, auto_class, part
) -> None:
    auto = getattr(transformers, auto_class)
    folder = without(save_tiny(tmp_path / "m", "bert", auto, tie_word_embeddings=False), part)
    for call in (qdqbert.load, load_checkpoint):
        with pytest.raises(CheckpointError, match="has no head for task") as caught:
            call(str(folder))
        assert caught.value.argument == "task"
        [task] = re.findall(r"pass another `task`: `([\w-]+)`", str(caught.value))
        call(str(folder), task=task)
    with qdqbert.load(folder, task=task, precision="float") as model:
        np.testing.assert_allclose(model.encode(TEXTS), means_of(folder), atol=1e-5)


@pytest.mark.parametrize("name", ["classifier", "reranker", "sparse", "multi_vector", "bert"])
def test_the_task_in_the_advice_for_another_one_works(checkpoints, name) -> None:
    with pytest.raises(QdqBertError) as caught:
        qdqbert.load(checkpoints(name), task="question-answering", check=False)
    [task] = re.findall(r"Pass `task='([\w-]+)'`", str(caught.value))
    qdqbert.load(checkpoints(name), task=task, check=False).close()


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (None, "m runs as a masked language model.*pass `task='sparse-embedding'`"),
        ("fill-mask", None),
        ("sparse-embedding", "m' has no modules.json of a sparse encoder, so the maximum"),
        ("feature-extraction", "m has no modules.json, so its pooling is not known: the mean"),
    ],
)
def test_what_no_file_says_is_logged(save_tiny, tmp_path, caplog, task, message) -> None:
    folder = save_tiny(tmp_path / "m", "bert", transformers.AutoModelForMaskedLM)
    caplog.set_level(logging.INFO, "qdqbert")
    qdqbert.load(folder, task=task, check=False).close()
    [*guesses, running] = caplog.messages
    assert running == f"Running {folder} (native-dynamic) on native."
    assert len(guesses) == (message is not None)
    assert re.search(message or "", "".join(guesses))


WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]


@pytest.mark.parametrize("call", [qdqbert.load, lambda folder: load_checkpoint(str(folder))])
@pytest.mark.parametrize("files", [{}, {"tokenizer_config.json": "{}"}, {"vocab.json": "{}"}])
@pytest.mark.usual("files0-*", "*-<lambda>")
def test_a_folder_without_a_vocabulary_needs_that_of_its_base(checkpoint_copy, call, files) -> None:
    folder = checkpoint_copy("classifier")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for each in folder.glob("*token*"):
        each.unlink()
    for name, text in files.items():
        (folder / name).write_text(text)
    for _ in range(2):
        with pytest.raises(CheckpointError, match="base_model") as caught:
            call(folder)
        assert str(folder) in str(caught.value)
        # What transformers makes of the config alone has no words.
        transformers.BertTokenizer().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    call(folder)


def test_the_advice_for_a_vocabulary_works(checkpoint_copy) -> None:
    folder = checkpoint_copy("classifier")
    vocabulary = transformers.AutoTokenizer.from_pretrained(folder).get_vocab()
    for each in folder.glob("*token*"):
        each.unlink()
    (folder / "vocab.txt").write_text("\n".join(sorted(vocabulary, key=vocabulary.get)))
    with pytest.raises(CheckpointError, match="has no tokenizer") as caught:
        qdqbert.load(folder)
    [advice] = re.findall("`(.*)`", str(caught.value))
    eval(advice, {"AutoTokenizer": transformers.AutoTokenizer, "folder": folder})
    qdqbert.load(folder, check=False).close()


def test_deberta_with_the_vocabulary_of_sentencepiece_needs_no_tokenizer_json(
    save_tiny, tmp_path
) -> None:
    folder = save_tiny(tmp_path / "model", "deberta-v2", vocab_size=300)
    for each in folder.glob("*token*"):
        each.unlink()
    write_spm(folder)
    with qdqbert.load(folder, precision="float") as model:
        found = model.encode(TEXTS)
        ids = [each.ids for each in model._loaded.tokenizer.encode_batch(TEXTS)]
    assert load_checkpoint(str(folder)).tokenizer(TEXTS)["input_ids"] == ids
    read_sentencepiece(folder / "spm.model", {}).save(str(folder / "tokenizer.json"))
    np.testing.assert_array_equal(qdqbert.load(folder, precision="float").encode(TEXTS), found)


@pytest.mark.parametrize(
    ("numbers", "is_said"),
    [({"a": 0, "b": 1, "c": 2}, False), ({"a": 1, "b": 0}, True), ({"X": 5}, False)],
)
def test_classes_with_other_numbers_in_label2id_are_named(
    checkpoint_copy, caplog, numbers, is_said
) -> None:
    folder = checkpoint_copy("classifier")
    change_config(folder, id2label={"0": "a", "1": "b", "2": "c"}, label2id=numbers)
    qdqbert.load(folder, check=False).close()
    said = "gives 'a' the number 1, and `id2label` gives it 0. `id2label` counts"
    assert any(said in each for each in caplog.messages) == is_said
    assert any(said in each for each in load_checkpoint(str(folder)).notices) == is_said


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_vocabulary_that_was_cut_off_is_logged(save_tiny, tmp_path, caplog, is_cut) -> None:
    size = 4000
    folder = save_tiny(tmp_path / "m", "bert", vocab_size=size)
    words = [*WORDS, *(f"##{each}" for each in WORDS[5:]), *map(str, range(size))]
    count = 2000 if is_cut else size - 64
    (tmp_path / "vocab.txt").write_text("\n".join(words[:count]))
    transformers.BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(folder)
    said = "has 2000 tokens, and the model has 4000 embeddings"
    for _ in range(2):
        caplog.clear()
        qdqbert.load(folder, check=False).close()
        warnings = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
        assert [str(folder) in each and said in each for each in warnings] == [True] * is_cut
    notices = load_checkpoint(str(folder)).notices
    assert any(said in each for each in notices) == is_cut


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"
IS_POINTER = "is a pointer of Git LFS.*`git lfs install && git lfs pull`"


@pytest.mark.parametrize("call", [qdqbert.load, lambda folder: load_checkpoint(str(folder))])
@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("model.safetensors", None),
        ("pytorch_model.bin", "model.safetensors"),
        ("config.json", None),
        ("tokenizer.json", None),
        ("tokenizer_config.json", None),
    ],
)
def test_a_pointer_of_git_lfs_is_named_in_a_checkpoint(
    checkpoint_copy, call, name, instead
) -> None:
    folder = checkpoint_copy("classifier")
    if instead:
        (folder / instead).unlink()
    (folder / name).write_text(POINTER)
    with pytest.raises(CheckpointError, match=f"{name}' {IS_POINTER}"):
        call(folder)


def test_a_pointer_to_a_vocabulary_is_named(checkpoint_copy) -> None:
    folder = checkpoint_copy("classifier")
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_text(POINTER)
    with pytest.raises(CheckpointError, match=f"vocab.txt' {IS_POINTER}"):
        load_checkpoint(str(folder))


@pytest.mark.parametrize("has_checksums", [True, False])
@pytest.mark.parametrize("engine", ["native", "onnxruntime", "openvino"])
def test_a_pointer_is_named_in_a_quantized_folder(
    quantized, tmp_path, engine, has_checksums
) -> None:
    folder = shutil.copytree(quantized("sentence").directory, tmp_path / "int8")
    if not has_checksums:
        (folder / "SHA256SUMS").unlink()
    for each in (*folder.rglob("*.onnx"), *folder.rglob("*.safetensors")):
        each.write_text(POINTER)
    with pytest.raises(CheckpointError, match=IS_POINTER):
        qdqbert.load(folder, engine=engine).encode(TEXTS)


@pytest.mark.parametrize("name", ["d.csv", "d.tsv", "d.txt", "d.jsonl", "d.parquet", "d.txt.gz"])
def test_a_pointer_is_named_in_data(tmp_path, name) -> None:
    data = tmp_path / name
    data.write_text(POINTER)
    for read in (read_records, lambda path: open_source(path).rows()):
        with pytest.raises(DataFileError, match=f"{name}' {IS_POINTER}"):
            list(read(str(data)))


def test_a_pointer_is_named_instead_of_a_graph(tmp_path) -> None:
    (tmp_path / "m.onnx").write_text(POINTER)
    with pytest.raises(UserInputError, match=IS_POINTER):
        load_graph(tmp_path / "m.onnx")


def test_a_huge_weight_is_named_by_transformers_models_too(checkpoint_copy) -> None:
    folder = checkpoint_copy("bert")
    path = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    name = "encoder.layer.1.output.dense.weight"
    tensors[name][2, 5] = 3e38
    safetensors.torch.save_file(tensors, path, {"format": "pt"})
    with pytest.raises(CheckpointError, match=rf"`{name}` of .* as large as 3e\+38"):
        load_checkpoint(str(folder))
