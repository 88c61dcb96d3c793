"""Embeddings, compared with sentence-transformers and with plain transformers."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import tokenizers
import torch
import transformers

import qdqbert
from qdqbert.common.errors import UserInputError
from qdqbert.data.tokenizing.tokenizer import Tokenizer
from qdqbert.tasks import embedding_jobs

TEXTS = ["the cat sat on the book", "music", "in the night and the dog " * 3, "", "a Book of rain"]


@pytest.fixture(scope="module")
def plain(tiny_artifact):
    """An encoder without a sentence-transformers head: its checkpoint, and the loaded folder."""
    checkpoint, folder = tiny_artifact()
    with qdqbert.load(folder) as model:
        yield checkpoint, model


def states_of(checkpoint, text):
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    model = transformers.AutoModel.from_pretrained(checkpoint).eval()
    with torch.no_grad():
        return model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].numpy()


def test_a_call_returns_what_the_pipeline_returns(plain) -> None:
    checkpoint, model = plain
    pipeline = transformers.pipeline("feature-extraction", model=str(checkpoint))
    for found, expected in zip(model(TEXTS), pipeline(TEXTS), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_an_encoder_without_a_head_returns_means(plain) -> None:
    checkpoint, model = plain
    expected = [states_of(checkpoint, text).mean(axis=0) for text in TEXTS]
    np.testing.assert_allclose(model.encode(TEXTS), expected, atol=1e-5)
    np.testing.assert_allclose(model.encode(TEXTS[0]), expected[0], atol=1e-5)


def test_options_normalize_truncate_and_add_a_prompt(plain) -> None:
    _, model = plain
    found = model.encode(TEXTS, truncate_dim=8, normalize_embeddings=True, prompt="the ")
    expected = model.encode([f"the {text}" for text in TEXTS])[:, :8]
    expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def mean_in_chunks(tokenizer, model, prompt, text, overlap, limit):
    """Return the weighted mean of the means of a text's chunks."""
    first, ids = (tokenizer(each, add_special_tokens=False)["input_ids"] for each in (prompt, text))
    room = limit - 2 - len(first)
    starts = range(0, len(ids) - overlap, room - overlap) if len(ids) > room else [0]
    means, weights = [], []
    for start in starts:
        chunk = ids[start : start + room]
        whole = [tokenizer.cls_token_id, *first, *chunk, tokenizer.sep_token_id]
        with torch.no_grad():
            states = model(torch.tensor([whole])).last_hidden_state[0]
        means.append(states.mean(dim=0).numpy())
        weights.append(max(1, len(chunk)))
    return np.average(means, axis=0, weights=weights)


@pytest.mark.parametrize(("overlap", "prompt"), [(0, ""), (7, ""), (0, "the cat "), (50, "a ")])
def test_long_texts_are_embedded_in_chunks(plain, overlap, prompt, caplog) -> None:
    checkpoint, model = plain
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    float_model = transformers.AutoModel.from_pretrained(checkpoint).eval()
    texts = [*TEXTS, "in the night and the dog " * 30, "music of the river " * 16]
    expected = [
        mean_in_chunks(tokenizer, float_model, prompt, text, overlap, model.max_length)
        for text in texts
    ]
    found = model.encode(texts, chunk_overlap=overlap, prompt=prompt)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(found[: len(TEXTS)], model.encode(TEXTS, prompt=prompt), atol=1e-6)
    assert "were cut" not in caplog.text


def test_a_model_reports_truncated_inputs_once_and_counts_them(quantized, caplog) -> None:
    texts = ["a cat", "in the night and the dog " * 30, "music of the river " * 16]
    with qdqbert.load(quantized("sentence").directory) as model:
        for _ in range(3):
            model.encode(texts)
        assert model.truncated_inputs == 6
    [record] = [each for each in caplog.records if "were cut" in each.message]
    assert record.message == (
        "2 of 3 inputs were longer than 32 tokens and were cut. This is logged once; "
        "`truncated_inputs` of the model has the number so far."
    )


@pytest.fixture
def metaspace(tmp_path):
    """A folder with a tokenizer whose tokens contain the space before a word, as in XLM-R."""
    made = tokenizers.Tokenizer(
        tokenizers.models.Unigram(
            [("<s>", 0.0), ("<unk>", -9.0), ("\u2581the", -1.0), ("\u2581cat", -1.0), ("s", -2.0)],
            unk_id=1,
        )
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A <s>", pair="<s> $A <s> $B <s>", special_tokens=[("<s>", 0)]
    )
    made.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


@pytest.mark.parametrize("family", ["bert", "roberta", "metaspace"])
@pytest.mark.parametrize("prompt", ["", "the ", "the cat: ", "thecat"])
def test_chunks_hold_the_prompt_and_a_part_of_the_text(
    checkpoints, metaspace, family, prompt
) -> None:
    folder = metaspace if family == "metaspace" else checkpoints(family)
    tokenizer = Tokenizer.from_folder(folder, max_length=20)
    job = embedding_jobs.EmbedInChunks(
        tokenizer=tokenizer,
        input_names=("input_ids",),
        prompt=prompt,
        normalize=False,
        dimensions=None,
        overlap=3,
        prompt_tokens=len(tokenizer.encode(prompt).ids) - 2,
    )
    text = "the cats the cat " * 12
    whole = tokenizer.cutting(None).encode(prompt + text).ids
    [encoded] = job.encode([text])
    chunks = [each["input_ids"].tolist() for each in encoded.features]
    assert len(chunks) > 3
    assert {len(chunk) for chunk in chunks[:-1]} == {20}
    assert len(chunks[-1]) <= 20
    first = len(chunks[0]) - 2 - encoded.places[0]
    assert 0 <= first <= job.prompt_tokens
    assert bool(first) == bool(prompt)
    joined = chunks[0][:-1]
    for chunk in chunks[1:]:
        assert chunk[: 1 + first] == whole[: 1 + first]
        assert chunk[1 + first :][:3] == joined[-3:]
        joined += chunk[1 + first + 3 : -1]
    assert [*joined, whole[-1]] == whole


def test_chunks_of_models_that_normalize_give_normalized_embeddings(quantized) -> None:
    long = "in the night and the dog " * 30
    with qdqbert.load(quantized("sentence").directory, engine="onnxruntime") as model:
        whole = model.encode([long], chunk_overlap=0)[0]
        assert np.linalg.norm(whole) == pytest.approx(1, abs=1e-5)
        # Dimensions are cut last, as for short texts.
        cut = model.encode(long, chunk_overlap=0, truncate_dim=8)
        np.testing.assert_allclose(cut, whole[:8], atol=1e-6)
        scaled = model.encode(long, chunk_overlap=0, truncate_dim=8, normalize_embeddings=True)
        np.testing.assert_allclose(scaled, cut / np.linalg.norm(cut), atol=1e-6)


def test_token_embeddings_have_no_padding(plain) -> None:
    checkpoint, model = plain
    found = model.encode(TEXTS, output_value="token_embeddings")
    for states, text in zip(found, TEXTS, strict=True):
        np.testing.assert_allclose(states, states_of(checkpoint, text), atol=1e-5)


def test_no_texts_give_no_embeddings(plain) -> None:
    assert plain[1].encode([]).shape[0] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inputs": ["a", 3]}, "`inputs` has to be a text or a list of texts; item 1 is int"),
        ({"inputs": "a", "prompt_name": "passage"}, "`prompt_name='passage'` is unknown"),
        ({"inputs": "a", "output_value": "tokens"}, "`output_value='tokens'` is unknown"),
        ({"inputs": "a", "batch_size": 0}, "`batch_size` must be at least 1, got 0"),
        ({"inputs": "a", "chunk_overlap": 62}, "`chunk_overlap` must be .* below 62, .*got 62"),
        (
            {"inputs": "a", "chunk_overlap": 60, "prompt": "the cat "},
            "below 60, .* 2 special ones and 2 tokens of the prompt; got 60",
        ),
        (
            {"inputs": "a", "chunk_overlap": 0, "output_value": "token_embeddings"},
            "applies to sentence embeddings only",
        ),
    ],
)
def test_unusable_arguments_are_refused(plain, options, message) -> None:
    with pytest.raises(UserInputError, match=message):
        plain[1].encode(**options)


def test_states_of_tokens_are_not_asked_for_with_embeddings(plain, embedder) -> None:
    assert embedder.job().reads == ("sentence_embedding",)
    # There is no other output.
    assert plain[1].job().reads is None


def test_results_are_those_of_sentence_transformers(quantized) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    made = quantized("sentence")
    theirs = sentence_transformers.SentenceTransformer(str(made.checkpoint), device="cpu")
    theirs.prompts = {"query": "the house ", "document": "a book "}
    with qdqbert.load(made.directory, engine="onnxruntime") as model:
        model.prompts = dict(theirs.prompts)
        for method, options in (
            ("encode", {}),
            ("encode", {"truncate_dim": 16}),
            ("encode", {"truncate_dim": 16, "normalize_embeddings": True}),
            ("encode", {"prompt_name": "query"}),
            ("encode", {"prompt": "night "}),
            ("encode_query", {}),
            ("encode_document", {}),
        ):
            found = getattr(model, method)(TEXTS, **options)
            expected = getattr(theirs, method)(TEXTS, **options)
            assert found.shape == expected.shape
            assert found.dtype == expected.dtype
            # The folder is INT8; a wrong prompt or dimension changes the direction by far more.
            cosines = (found * expected).sum(axis=1) / np.linalg.norm(found, axis=1)
            assert (cosines / np.linalg.norm(expected, axis=1)).min() > 0.98


@pytest.mark.usefixtures("own_cache")
def test_documents_get_the_prompt_of_their_name_alone(checkpoint_copy) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    folder = checkpoint_copy("sentence")
    prompts = {"prompts": {"query": "the dog ", "passage": "a book "}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    theirs = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    with qdqbert.load(folder, precision="float") as model:
        for method in ("encode_query", "encode_document"):
            # It has no prompt "document", which is then an empty one.
            for options in ({}, {"prompt_name": "passage"}, {"prompt_name": "document"}):
                found, expected = (
                    getattr(each, method)(TEXTS, **options) for each in (model, theirs)
                )
                np.testing.assert_allclose(found, expected, atol=1e-5)


def test_the_folders_default_prompt_and_dimensions_are_used(quantized, tmp_path) -> None:
    folder = shutil.copytree(quantized("sentence").directory, tmp_path / "int8")
    with qdqbert.load(folder) as model:
        expected = model.encode([f"the night {text}" for text in TEXTS])[:, :8]
    settings = {"prompts": {"q": "the night "}, "default_prompt_name": "q", "truncate_dim": 8}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    with qdqbert.load(folder) as model:
        np.testing.assert_allclose(model.encode(TEXTS), expected, atol=1e-6)


def test_the_default_prompt_is_one_of_the_prompts(quantized, tmp_path) -> None:
    folder = shutil.copytree(quantized("sentence").directory, tmp_path / "int8")
    settings = folder / "config_sentence_transformers.json"
    unknown = "`default_prompt_name='zz'` is unknown; .* has: none. Add it to `prompts`"
    settings.write_text('{"default_prompt_name": "zz"}')
    with pytest.raises(UserInputError, match=unknown):
        qdqbert.load(folder)
    # As in sentence-transformers, these two need no text.
    settings.write_text('{"default_prompt_name": "query"}')
    with qdqbert.load(folder) as model:
        assert (model.encode("a") == model.encode("a", prompt="")).all()
        with pytest.raises(UserInputError, match="`default_prompt_name='zz'` is unknown"):
            model.default_prompt_name = "zz"


@pytest.mark.parametrize("name", [None, "cosine", "dot", "euclidean", "manhattan"])
def test_similarities_are_those_of_sentence_transformers(quantized, tmp_path, name) -> None:
    util = pytest.importorskip("sentence_transformers.util")
    folder = shutil.copytree(quantized("sentence").directory, tmp_path / "int8")
    settings = {"similarity_fn_name": name, "truncate_dim": 8}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    theirs = {None: "cos_sim", "cosine": "cos_sim", "dot": "dot_score"}
    expected = getattr(util, theirs.get(name, f"{name}_sim"))
    with qdqbert.load(folder) as model:
        vectors = model.encode(TEXTS)
        for first in (vectors, vectors[0]):
            found = model.similarity(first, vectors[1:])
            np.testing.assert_allclose(found, expected(first, vectors[1:]).numpy(), atol=1e-5)
        with pytest.raises(UserInputError, match=r"shapes \(1, 7\) and \(5, 8\)"):
            model.similarity(vectors[0, :7], vectors)
        both = (vectors[1:], vectors[:-1])
        pairwise = model.similarity_pairwise(*both)
        np.testing.assert_allclose(pairwise, np.diag(expected(*both).numpy()), atol=1e-5)
        with pytest.raises(UserInputError, match=r"the same shape; got \(1, 8\) and \(5, 8\)"):
            model.similarity_pairwise(vectors[0], vectors)
        assert (model.truncate_dim, model.device, model.default_prompt_name) == (8, "cpu", None)
        model.truncate_dim = np.uint8(12)
        assert model.encode(TEXTS).shape == (len(TEXTS), 12)
        for wrong in (0, 33, 2.5):
            with pytest.raises(UserInputError, match="`truncate_dim"):
                model.truncate_dim = wrong
        model.truncate_dim = None
        assert model.get_embedding_dimension() == 32
        assert model.get_max_seq_length() == model.max_seq_length


def test_an_unknown_similarity_is_refused(quantized, tmp_path) -> None:
    folder = shutil.copytree(quantized("sentence").directory, tmp_path / "int8")
    (folder / "config_sentence_transformers.json").write_text('{"similarity_fn_name": "angle"}')
    with (
        qdqbert.load(folder) as model,
        pytest.raises(UserInputError, match=r"`similarity_fn_name='angle'` .* is unknown"),
    ):
        model.similarity([1.0], [1.0])


def test_a_pool_of_processes_changes_nothing(plain) -> None:
    _, model = plain
    pool = model.start_multi_process_pool(["cpu", "cpu"])
    found = model.encode(["a dog"], pool=pool, chunk_size=2)
    np.testing.assert_array_equal(found, model.encode(["a dog"], device=["cpu", "cpu"]))
    model.stop_multi_process_pool(pool)
    with pytest.raises(UserInputError, match="takes no other device"):
        model.start_multi_process_pool(["cuda:0"])


def test_the_dimension_is_that_of_an_embedding(plain) -> None:
    vector = plain[1].encode("music")
    assert plain[1].get_embedding_dimension() == len(vector)
    assert plain[1].get_sentence_embedding_dimension() == len(vector)


def test_a_bar_is_shown_if_asked_for_and_batches_change_nothing(plain, capsys) -> None:
    expected = plain[1].encode(TEXTS)
    assert not capsys.readouterr().err
    found = plain[1].encode(TEXTS, batch_size=2, show_progress_bar=True)
    np.testing.assert_array_equal(found, expected)
    assert "Running the model" in capsys.readouterr().err


SMALL = ["int8", "uint8", "binary", "ubinary"]
OPTIONS = [
    {},
    {"truncate_dim": 16},
    {"truncate_dim": 16, "normalize_embeddings": True},
    {"chunk_overlap": 2, "truncate_dim": 24},
]


@pytest.fixture(scope="module")
def embedder(quantized):
    with qdqbert.load(quantized("sentence").directory, engine="onnxruntime") as model:
        yield model


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("dtype", SMALL)
def test_small_vectors_are_those_of_sentence_transformers(embedder, dtype, options) -> None:
    util = pytest.importorskip("sentence_transformers.util")
    texts = [*TEXTS, "in the night and the dog " * 30]
    vectors = embedder.encode(texts, **options)
    shared = {each: value for each, value in options.items() if each != "chunk_overlap"}
    ranges = embedder.embedding_ranges(**shared)
    expected = util.quantize_embeddings(vectors, precision=dtype, ranges=ranges)
    found = embedder.encode(texts, output_dtype=dtype, **options)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(embedder.encode(texts, precision=dtype, **options), expected)
    [one] = embedder.encode([texts[0]], output_dtype=dtype, **options)
    np.testing.assert_array_equal(embedder.encode(texts[0], output_dtype=dtype, **options), one)
    empty = embedder.encode([], output_dtype=dtype, **options)
    assert (empty.shape, empty.dtype) == ((0, expected.shape[1]), expected.dtype)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_codes_of_each_dimension_are_those_of_sentence_transformers(embedder, options) -> None:
    util = pytest.importorskip("sentence_transformers.util")
    vectors = embedder.encode(TEXTS, **options)
    shared = {each: value for each, value in options.items() if each != "chunk_overlap"}
    ranges = embedder.embedding_ranges(per_dimension=True, **shared)
    assert len({*np.ptp(ranges, axis=0)}) > 1
    found = embedder.encode(TEXTS, output_dtype="int8", ranges=ranges, **options)
    np.testing.assert_array_equal(found, util.quantize_embeddings(vectors, "int8", ranges=ranges))


def test_ranges_of_the_folder_are_those_of_the_calibration_data(quantized, embedder) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    made = quantized("sentence")
    theirs = sentence_transformers.SentenceTransformer(str(made.checkpoint), device="cpu")
    vectors = theirs.encode(made.data.read_text().splitlines())
    low, high = embedder.embedding_ranges(per_dimension=True)
    # Some of the texts are held out.
    assert (low >= vectors.min(axis=0) - 1e-5).all()
    assert (high <= vectors.max(axis=0) + 1e-5).all()
    inside = (vectors >= low - 1e-5) & (vectors <= high + 1e-5)
    assert inside.mean() > 0.9
    assert inside.all(axis=1).sum() >= 24


def test_dimensions_that_embeddings_do_not_have_are_refused(plain, embedder) -> None:
    for model in (plain[1], embedder):
        assert model.encode(TEXTS, truncate_dim=np.int64(32)).shape == (len(TEXTS), 32)
        with pytest.raises(UserInputError, match=r"`truncate_dim=33`: .* have 32 dimensions"):
            model.encode(TEXTS, truncate_dim=33)
    with pytest.raises(UserInputError, match=r"`truncate_dim=33`: .* have 32 dimensions"):
        embedder.embedding_ranges(truncate_dim=33)


def test_ranges_of_the_caller_replace_those_of_the_folder(embedder) -> None:
    util = pytest.importorskip("sentence_transformers.util")
    vectors = embedder.encode(TEXTS)
    ranges = np.stack([vectors.min(axis=0), vectors.max(axis=0)])
    for width in (vectors.shape[1], 8):
        expected = util.quantize_embeddings(vectors[:, :width], "int8", ranges=ranges[:, :width])
        found = embedder.encode(TEXTS, output_dtype="int8", truncate_dim=width, ranges=ranges)
        np.testing.assert_array_equal(found, expected)
    with pytest.raises(UserInputError, match=r"`ranges` has 8 dimensions, and the embeddings have"):
        embedder.encode(TEXTS, output_dtype="int8", ranges=ranges[:, :8])


def test_codes_are_multiples_of_the_values(embedder) -> None:
    vectors = embedder.encode(TEXTS).astype(np.float64)
    codes = embedder.encode(TEXTS, output_dtype="int8")
    bound = np.abs(embedder.embedding_ranges(per_dimension=True)).max()
    expected = np.clip(vectors * 127 / bound, -128, 127)
    assert np.abs(codes - expected).max() <= 0.5 + 1e-3
    unsigned = embedder.encode(TEXTS, output_dtype="uint8")
    np.testing.assert_array_equal(unsigned, codes.astype(int) + 128)


def test_without_ranges_the_error_says_how_to_get_them(quantized, tmp_path) -> None:
    made = quantized("sentence")
    folder = shutil.copytree(made.directory, tmp_path / "int8")
    content = json.loads((folder / "quantization.json").read_text())
    del content["embedding_ranges"]
    (folder / "quantization.json").write_text(json.dumps(content))
    for path in (folder, made.checkpoint):
        with qdqbert.load(path) as model:
            for dtype in ("int8", "uint8"):
                with pytest.raises(
                    UserInputError, match=r"qdqbert quantize .*Or pass `ranges`"
                ) as e:
                    model.encode(TEXTS, output_dtype=dtype)
                assert str(made.checkpoint) in str(e.value)
            assert model.encode(TEXTS, output_dtype="binary").dtype == np.int8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"output_dtype": "int4"}, "`output_dtype='int4'` is unknown. Known: float32, int8, uint8"),
        ({"output_dtype": "int8", "precision": "uint8"}, "are two names of one option"),
        ({"output_dtype": "binary", "ranges": [[0], [1]]}, "`ranges` applies to .* got 'binary'"),
        ({"truncate_dim": 0}, "`truncate_dim` must be at least 1, got 0"),
        ({"truncate_dim": "8"}, r"`truncate_dim` must be a whole number, got '8' \(str\)"),
        ({"chunk_overlap": "a"}, "`chunk_overlap` must be a whole number, got 'a'"),
        ({"prompt": 3}, r"`prompt` must be a text, got 3 \(int\)"),
        (
            {"output_dtype": "binary", "output_value": "token_embeddings"},
            "applies to sentence embeddings only",
        ),
    ],
)
def test_other_kinds_of_vectors_are_refused(embedder, options, message) -> None:
    with pytest.raises(UserInputError, match=message):
        embedder.encode(TEXTS, **options)
