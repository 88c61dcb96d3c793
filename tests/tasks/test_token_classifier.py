"""Tags of tokens, compared with transformers' pipeline."""

from __future__ import annotations

import shutil

import pytest
import tokenizers
import transformers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

import qdqbert
from qdqbert.common.errors import UserInputError
from qdqbert.data.tables.inputs import open_source

TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC", "X")
HEAD = "AutoModelForTokenClassification"
TEXTS = [
    "the cat sat, on the book!",
    "",
    "Night trains 42 and rivers — in the xylophone, [MASK] paper",
]
LONG = " ".join(TEXTS) * 6
STRATEGIES = ("none", "simple", "first", "average", "max")
LENGTH = 64


def make_byte_level() -> transformers.PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer like RoBERTa's."""
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(["the cat sat on the book and the river in the night"] * 9, trainer)
    inner.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    names = ("bos_token", "pad_token", "eos_token", "unk_token", "mask_token")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner,
        **dict(zip(names, special, strict=True)),
        model_input_names=["input_ids", "attention_mask"],
    )


@pytest.fixture(scope="module", params=["bert", "roberta"])
def both(request, tiny_artifact, tmp_path_factory):
    """The loaded folder, and transformers' pipeline on its checkpoint."""
    pair = tiny_artifact(HEAD, request.param, id2label=dict(enumerate(TAGS)))
    if request.param == "roberta":
        root = tmp_path_factory.mktemp("byte-level")
        pair = tuple(shutil.copytree(path, root / path.name) for path in pair)
        for path in pair:
            make_byte_level().save_pretrained(path)
            # The tokenizer is not that of the folder any more.
            (path / "SHA256SUMS").unlink(missing_ok=True)
    pipeline = transformers.pipeline("token-classification", model=str(pair[0]))
    pipeline.tokenizer.model_max_length = LENGTH
    with qdqbert.load(pair[1]) as model:
        yield model, pipeline


def rounded(value):
    """Round scores, at any depth, so that they can be compared."""
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return {**value, "score": pytest.approx(float(value["score"]), abs=1e-5)}


# The pipeline warns that byte-level tokenizers do not know words.
@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.usual("bert-none", "roberta-*")
def test_answers_are_those_of_the_pipeline(both, strategy) -> None:
    model, pipeline = both
    for options in ({}, {"ignore_labels": ["PER", "B-PER"]}):
        options = {"aggregation_strategy": strategy, **options}
        assert model(TEXTS, **options) == rounded(pipeline(TEXTS, **options))
        assert model(TEXTS[0], **options) == rounded(pipeline(TEXTS[0], **options))


@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")
@pytest.mark.parametrize("strategy", STRATEGIES[1:])
def test_windows_are_those_of_the_pipeline(both, strategy) -> None:
    model, pipeline = both
    for stride in (0, 7, 16):
        options = {"aggregation_strategy": strategy, "stride": stride}
        expected = pipeline([LONG, TEXTS[0]], **options)
        assert model([LONG, TEXTS[0]], **options) == rounded(expected)
    # The default stride.
    assert model(LONG, aggregation_strategy=strategy) == rounded(expected[0])


def test_each_token_of_a_long_text_is_tagged_once(both) -> None:
    model, pipeline = both
    whole = pipeline.tokenizer(LONG, truncation=False, verbose=False)
    options = {"ignore_labels": []}
    found = model(LONG, **options)
    assert [each["index"] for each in found] == [*range(1, len(whole["input_ids"]) - 1)]
    # Before the first window ends, its tokens are those of the pipeline, which cuts the text.
    cut = pipeline(LONG, **options)
    assert found[: LENGTH // 2] == rounded(cut[: LENGTH // 2])


@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")
def test_lists_of_words_are_tagged_as_by_the_pipeline(both) -> None:
    model, pipeline = both
    # transformers refuses words without it for RoBERTa's own class. Ours adds it for words.
    inner = pipeline.tokenizer.backend_tokenizer
    before = inner.pre_tokenizer
    if isinstance(before, pre_tokenizers.ByteLevel):
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    sentences = [["The", "cat", "sat,", "on", "xylophones"], ["night", "and", "river"]]
    for strategy in STRATEGIES:
        options = {"is_split_into_words": True, "aggregation_strategy": strategy}
        for inputs in (sentences, sentences[0]):
            assert model(inputs, **options) == rounded(pipeline(inputs, **options))
    inner.pre_tokenizer = before


def test_no_texts_have_no_tags(both) -> None:
    assert both[0]([]) == []


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        ([3], {}, "Each input has to be a text; got int 3"),
        (["a b"], {"is_split_into_words": True}, None),
        ([["a", 3]], {"is_split_into_words": True}, "Each input has to be a list of words"),
        ("a", {"aggregation_strategy": "last"}, "`aggregation_strategy='last'` is unknown"),
        ("a", {"stride": 62}, "`stride` must be below 62"),
    ],
)
def test_unusable_arguments_are_refused(both, inputs, options, message) -> None:
    if message is None:
        assert len(both[0](inputs, **options)) == 1
        return
    with pytest.raises(UserInputError, match=message):
        both[0](inputs, **options)


def test_run_writes_entities(both, tmp_path) -> None:
    model, _ = both
    data = tmp_path / "in.txt"
    data.write_text(f"{TEXTS[0]}\n{LONG}")
    for name, strategy in (("a.jsonl", None), ("a.parquet", "none")):
        qdqbert.run(
            model._loaded.artifact.directory,
            data,
            tmp_path / name,
            engine=model.engine,
            aggregation_strategy=strategy,
        )
        found = [row.values["entities"] for row in open_source(str(tmp_path / name)).rows()]
        expected = model([TEXTS[0], LONG], aggregation_strategy=strategy or "simple")
        assert found == rounded(expected)
