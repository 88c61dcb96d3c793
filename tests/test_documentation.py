"""Run every command and every Python snippet of README, tutorials and guides; check their links.

A document runs from top to bottom in a folder that holds what a reader is assumed to have: models
under the documents' names, and data. Commands and calls that occur in several documents run once.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import importlib.util
import io
import itertools
import json
import random
import re
import runpy
import shlex
import shutil
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
import yaml

import qdqbert
import qdqbert.compat
import qdqbert.verbs.benchmark.run
import qdqbert.verbs.quantize.run
import qdqbert.verbs.train.run
from conftest import SIZES, save_multi_vector
from gliner2_models import save_gliner2
from gliner_models import save_gliner
from jina_models import save_embedder
from ports import free_port
from qdqbert.calibration.ranges_file import FORMAT as RANGES_FORMAT
from qdqbert.cli import main
from qdqbert.cli._commands import COMMANDS
from qdqbert.common.options.declared import declared_options
from qdqbert.encoders.checkpoint.demo import demo_checkpoint
from qdqbert.encoders.stored import FORMAT as CONFIG_FORMAT
from qdqbert.engines.native.storage import FORMAT as NATIVE_FORMAT
from qdqbert.graphs.writer import IR_VERSION
from qdqbert.runtime.artifact import QUANTIZATION_FORMAT, TRAINING_FORMAT
from qdqbert.serving.metrics import Metrics
from qdqbert.verbs.export.run import EXPORT_FORMAT
from rerankers import save_reranker
from task_files import TAGS, plain, questions, sentence, tagged

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
README = ROOT / "README.md"
GUIDES = [path for name in ("tutorials", "guides") for path in sorted((DOCS / name).glob("*.md"))]
PAGES = [
    path
    for path in ROOT.rglob("*.md")
    if not {".venv", ".git", "build"} & set(path.relative_to(ROOT).parts)
]
# Directives of the site.
DIRECTIVE = re.compile(r"^```\{.*?^```$", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WORDS = ("good", "great", "last", "little", "river", "night", "music", "was", "the", "house")
LABELS = ("negative", "positive")
# Each tutorial quantizes a model of its own and starts a server, one guide needs Ray Serve, and
# three take long. The other pages run all kinds of calls.
SLOW = {"token-classification", "question-answering", "reranking", "fill-mask", "zero-shot"}
SLOW |= {"serve", "export", "migrate", "onnx", "embeddings", "text-classification", "settings"}
SLOW |= {"run", "deploy", "kubernetes", "qat", "targets"}
# Guides each of whose steps also runs in a process of its own, as the README's and the tutorials'.
ALONE = {"migrate", "qat"}
# Options of other programs: pip, torchrun, docker, servers, trtexec and scripts in `benchmarks/`.
FOREIGN = {"--nproc-per-node", "--test", "--index-url", "--publish", "--tag", "--volume", "--rm"}
FOREIGN |= {"--build-arg", "--read-only", "--user", "--from-literal"}
FOREIGN |= {
    "--address",
    "--object-store-memory",
    "--bits",
    "--model-repository",
    "--onnx",
    "--shapes",
    "--fp16",
    "--int8",
}


@pytest.fixture(scope="module")
def reader_files(save_tiny, tmp_path_factory) -> Path:
    """Return a folder with the models and data that the documents take for granted."""
    folder = Path(tmp_path_factory.mktemp("reader"))
    auto_class = transformers.AutoModelForSequenceClassification
    labels = {
        "id2label": dict(enumerate(LABELS)),
        "label2id": {name: number for number, name in enumerate(LABELS)},
    }
    # As long as the longest input that is benchmarked.
    sizes = {"num_hidden_layers": 1, "max_position_embeddings": 128}
    classifier = save_tiny(folder / "my-classifier", "bert", auto_class, **sizes, **labels)
    save_tiny(folder / "my-encoder", "bert", transformers.AutoModel, **sizes)
    add_sentence_files(save_tiny(folder / "my-embedder", "bert", num_hidden_layers=1))
    plain = save_tiny(tmp_path_factory.mktemp("plain") / "model", "xlm-roberta")
    save_embedder(plain, folder / "jina-embeddings-v3")
    export(classifier, folder / "my-classifier.onnx")
    rng = random.Random(0)
    texts = [" ".join(rng.choices(WORDS, k=12)) for _ in range(400)]
    labeled = [(text, rng.choice(LABELS)) for text in texts]
    write_rows(folder / "train.csv", [("text", "label"), *labeled])
    held = [(" ".join(rng.choices(WORDS, k=11)), rng.choice(LABELS)) for _ in range(40)]
    write_rows(folder / "dev.csv", [("text", "label"), *held])
    write_rows(
        folder / "reviews.tsv", [("id", "review", "verdict"), *(("1", *row) for row in held)]
    )
    pairs = [
        (first, second, rng.randint(0, 5)) for (first, _), (second, _) in itertools.pairwise(held)
    ]
    write_rows(folder / "sts.csv", [("sentence1", "sentence2", "score"), *pairs])
    (folder / "texts.txt").write_text("\n".join(texts))
    add_tutorial_files(folder, save_tiny)
    return folder


@pytest.fixture(scope="module")
def real_files(reader_files, demo_package, tmp_path_factory) -> Path:
    """Return the same folder with all-MiniLM-L6-v2, as it is and with heads, under their names."""
    pytest.importorskip("accelerate", reason="training needs accelerate")
    folder = Path(tmp_path_factory.mktemp("real")) / "reader"
    shutil.copytree(reader_files, folder)
    demo = demo_checkpoint()
    for name in ("my-embedder", "my-encoder"):
        shutil.rmtree(folder / name)
        shutil.copytree(demo, folder / name)
    (folder / "my-encoder" / "modules.json").unlink()
    heads = {
        "my-classifier": transformers.AutoModelForSequenceClassification,
        "my-tagger": transformers.AutoModelForTokenClassification,
        "my-reader": transformers.AutoModelForQuestionAnswering,
        "my-reranker": transformers.AutoModelForSequenceClassification,
        "my-nli": transformers.AutoModelForSequenceClassification,
        "my-masked-model": transformers.AutoModelForMaskedLM,
        "my-splade": transformers.AutoModelForMaskedLM,
    }
    for name, auto_class in heads.items():
        stored = json.loads((folder / name / "config.json").read_text(encoding="utf-8"))
        labels = {key: stored[key] for key in ("id2label", "label2id") if key in stored}
        torch.manual_seed(0)
        model = auto_class.from_pretrained(demo, **labels)
        model.save_pretrained(folder / name)
        transformers.AutoTokenizer.from_pretrained(demo).save_pretrained(folder / name)
    # What it learns is in the words.
    rows = [(text, LABELS["good" in text or "great" in text]) for text in sentences(400)]
    write_rows(folder / "train.csv", [("text", "label"), *rows])
    options = {"epochs": 1, "learning_rate": 1e-4, "batch_size": 16}
    qdqbert.train(
        folder / "my-classifier",
        folder / "trained",
        train_data=folder / "train.csv",
        optimization=qdqbert.Optimization(**options),
        progress=False,
    )
    shutil.rmtree(folder / "my-classifier")
    shutil.move(folder / "trained", folder / "my-classifier")
    export(folder / "my-classifier", folder / "my-classifier.onnx")
    return folder


def sentences(count: int) -> list[str]:
    rng = random.Random(1)
    return [" ".join(rng.choices(WORDS, k=12)) for _ in range(count)]


def add_tutorial_files(folder: Path, save_tiny: Callable[..., Path]) -> None:
    """Add models of further tasks, and their data."""
    tags = {"id2label": dict(enumerate(TAGS))}
    nli = {"id2label": dict(enumerate(("contradiction", "neutral", "entailment")))}
    # As long as the windows of question answering.
    window = {"max_position_embeddings": 384}
    for name, auto_class, changes in (
        ("my-tagger", transformers.AutoModelForTokenClassification, tags),
        ("my-reader", transformers.AutoModelForQuestionAnswering, window),
        ("my-reranker", transformers.AutoModelForSequenceClassification, {"num_labels": 1}),
        ("my-nli", transformers.AutoModelForSequenceClassification, nli),
        ("my-masked-model", transformers.AutoModelForMaskedLM, {}),
        ("my-splade", transformers.AutoModelForMaskedLM, {}),
    ):
        save_tiny(folder / name, "bert", auto_class, num_hidden_layers=1, **changes)
    settings = folder / "my-splade" / "config_sentence_transformers.json"
    settings.write_text('{"model_type": "SparseEncoder"}')
    save_multi_vector(folder / "my-colbert", mask={})
    save_reranker(folder / "my-language-model-reranker")
    save_gliner(folder / "my-gliner")
    save_gliner2(folder / "my-gliner2")
    # As FlagEmbedding's training saves it.
    save_tiny(folder / "my-bge-m3", "xlm-roberta")
    size = SIZES["hidden_size"]
    for name, width in (("sparse", 1), ("colbert", size)):
        layer = torch.nn.Linear(size, width).state_dict()
        torch.save(layer, folder / "my-bge-m3" / f"{name}_linear.pt")
    rng = random.Random(0)
    (folder / "train.conll").write_text(tagged(rng, 80))
    (folder / "dev.conll").write_text(tagged(rng, 20))
    (folder / "questions.jsonl").write_text(questions(rng, 80))
    (folder / "dev-questions.jsonl").write_text(questions(rng, 20))
    (folder / "dev.txt").write_text(plain(rng, 20))
    (folder / "masked.txt").write_text("the river was [MASK]\nthe [MASK] was [MASK]\n")
    for name, queries in (("ranking.csv", 20), ("ranking-dev.csv", 5)):
        rows = [
            (query, sentence(rng), int(rank == 0))
            for query in plain(rng, queries).splitlines()
            for rank in range(4)
        ]
        write_rows(folder / name, [("query", "document", "relevance"), *rows])


def add_sentence_files(folder: Path) -> None:
    """Turn a checkpoint into a sentence-transformers folder with mean pooling."""
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    types = (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))
    modules = ", ".join(
        f'{{"idx": {index}, "name": "{index}", "path": "{path}", '
        f'"type": "sentence_transformers.models.{name}"}}'
        for index, (path, name) in enumerate(types)
    )
    (folder / "modules.json").write_text(f"[{modules}]")


def export(checkpoint: Path, path: Path) -> None:
    """Export a classifier with PyTorch's TorchScript exporter."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(checkpoint)
    model.config.return_dict = False
    ids = torch.full((2, 8), 5)
    names = ["input_ids", "attention_mask", "token_type_ids"]
    torch.onnx.export(
        model.eval(),
        (ids, torch.ones_like(ids), torch.zeros_like(ids)),
        path,
        input_names=names,
        output_names=["logits"],
        dynamic_axes={name: {0: "batch", 1: "sequence"} for name in names},
        opset_version=17,
        dynamo=False,
    )


def write_rows(path: Path, rows: list[tuple[Any, ...]]) -> None:
    separator = "\t" if path.suffix == ".tsv" else ","
    path.write_text("\n".join(separator.join(map(str, row)) for row in rows))


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> tuple[Path, dict[str, tuple[Path, Any]]]:
    """Return where results of `quantize` and `train` are kept, and what is there, by options."""
    return Path(tmp_path_factory.mktemp("results")), {}


@pytest.fixture
def cheap_calls(monkeypatch, results, request) -> None:
    """Make calls cheap: few examples, no timing, and equal calls run once per test session."""
    store, known = results
    # Each test has other files under the same names.
    test = request.node.originalname
    cheaper: Mapping[Any, Mapping[str, Any]] = {
        qdqbert.verbs.quantize.run: {"benchmark": False},
        qdqbert.verbs.train.run: {},
    }

    def once(run: Callable[..., Any], changes: Mapping[str, Any]) -> Callable[..., Any]:
        def call(options: Any, progress: Any) -> Any:
            # Options that calibrate are refused together with ranges of an earlier call.
            if options.calibration.ranges_from is None:
                calibration = dataclasses.replace(options.calibration, samples=24)
                options = dataclasses.replace(options, calibration=calibration, **changes)
            output = Path(options.output or options.output_folder)
            if output.exists() and not options.overwrite:
                return run(options, progress)
            key = f"{test}: {dataclasses.replace(options, overwrite=False)!r}"
            if key not in known:
                kept = store / str(len(known))
                known[key] = kept, run(options, progress)
                shutil.copytree(output, kept)
            else:
                shutil.rmtree(output, ignore_errors=True)
                shutil.copytree(known[key][0], output)
            return known[key][1]

        return call

    for module, changes in cheaper.items():
        monkeypatch.setattr(module, "run", once(module.run, changes))
    timed = qdqbert.verbs.benchmark.run.run
    monkeypatch.setattr(
        qdqbert.verbs.benchmark.run,
        "run",
        lambda options, progress: timed(
            dataclasses.replace(
                options, rounds=1, seconds=0.01, batches=(1,), engines=("onnxruntime",)
            ),
            progress,
        ),
    )


@contextlib.contextmanager
def compat_uninstalled() -> Iterator[None]:
    """Undo `qdqbert.compat.install()` on exit."""
    try:
        yield
    finally:
        qdqbert.compat.uninstall()


@pytest.mark.openvino
# Of Ray Serve's own models.
@pytest.mark.filterwarnings("ignore:Using extra keyword arguments on `Field`:DeprecationWarning")
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * (path.stem in SLOW))
        for path in (README, *GUIDES, DOCS / "compatibility.md")
    ],
)
def test_page_runs_from_top_to_bottom(
    page, reader_files, cheap_calls, tmp_path, monkeypatch
) -> None:
    pytest.importorskip("accelerate", reason="training needs accelerate")
    run_page(page, reader_files, tmp_path, monkeypatch)


@pytest.mark.demo
@pytest.mark.openvino
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Using extra keyword arguments on `Field`:DeprecationWarning")
@pytest.mark.parametrize("page", sorted((DOCS / "guides").glob("*.md")), ids=lambda path: path.stem)
def test_guide_runs_with_a_real_checkpoint(
    page, real_files, cheap_calls, tmp_path, monkeypatch
) -> None:
    run_page(page, real_files, tmp_path, monkeypatch)


def run_page(page: Path, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a page from top to bottom, in a copy of a folder."""
    folder = tmp_path / "reader"
    shutil.copytree(files, folder)
    monkeypatch.chdir(folder)
    # Snippets set it, which must not outlive them.
    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", "1")
    # Another program may use the default port.
    port = free_port()
    with compat_uninstalled(), contextlib.ExitStack() as servers:
        for number, (language, block) in enumerate(blocks_of(page, port), start=1):
            if language == "bash":
                run_commands(block, port, servers, run_here)
            else:
                code = compile(block, f"{page.name}, block {number}", "exec")
                # A reader may run it again.
                for _ in range(2):
                    exec(code, {"__name__": f"block_{number}"})


@pytest.mark.openvino
@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        README,
        *sorted((DOCS / "tutorials").glob("*.md")),
        *(DOCS / "guides" / f"{name}.md" for name in ("migrate", "qat")),
    ],
    ids=lambda path: path.stem,
)
def test_each_step_of_page_runs_in_a_process_of_its_own(
    page, reader_files, tmp_path, monkeypatch
) -> None:
    folder = tmp_path / "reader"
    shutil.copytree(reader_files, folder)
    monkeypatch.chdir(folder)
    port = free_port()
    with contextlib.ExitStack() as servers:
        for language, block in blocks_of(page, port):
            if language == "bash":
                run_commands(block, port, servers, run_alone)
            else:
                run_python("-c", block)


def blocks_of(page: Path, port: int) -> list[tuple[str, str]]:
    """Return the languages and the texts of a page's blocks, with another port for its servers."""
    text = DIRECTIVE.sub("", page.read_text(encoding="utf-8"))
    text = text.replace("localhost:8000", f"localhost:{port}")
    blocks = BLOCK.findall(text)
    assert len(blocks) == text.count("\n```") / 2 > 0
    assert {language for language, _ in blocks} <= {"bash", "python"}
    return blocks


def run_here(arguments: list[str]) -> None:
    printed = io.StringIO()
    code: Any = 0
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            main(arguments)
        except SystemExit as stop:
            code = stop.code
    assert not code, f"{arguments}\n{printed.getvalue()}"


def run_alone(arguments: list[str]) -> None:
    is_timed = arguments[0] == "quantize" and "auto" not in arguments
    run_python("-m", "qdqbert", *arguments, *(["--no-benchmark"] if is_timed else []))


def run_python(*arguments: str) -> None:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"


def run_commands(
    block: str, port: int, servers: contextlib.ExitStack, run: Callable[[list[str]], None]
) -> None:
    """Run the lines of a block.

    Args:
        block: The block.
        port: Port for servers.
        servers: Ends the servers that are started.
        run: Runs `qdqbert` with arguments.
    """
    for line in block.replace("\\\n", " ").strip().splitlines():
        program, *arguments = shlex.split(line)
        if program == "pip":
            check_extras(arguments[-1])
            continue
        if program == "curl":
            subprocess.run(["curl", "--fail", "--silent", *arguments], check=True, timeout=60)
            continue
        assert program == "qdqbert", line
        if arguments[0] == "serve":
            servers.enter_context(served([*arguments, "--port", str(port)], port))
            continue
        run(arguments)


@contextlib.contextmanager
def served(arguments: list[str], port: int) -> Iterator[None]:
    """Run a server in another process."""
    with subprocess.Popen([sys.executable, "-m", "qdqbert", *arguments]) as process:
        try:
            while True:
                assert process.poll() is None
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                    break
                except OSError:
                    time.sleep(0.1)
            yield
        finally:
            process.terminate()


def check_extras(requirement: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    name, _, extras = requirement.removesuffix("]").partition("[")
    assert name == "qdqbert"
    assert set(filter(None, extras.split(","))) <= set(project["optional-dependencies"])


def known_options() -> set[str]:
    declared = [each for command in COMMANDS for each in declared_options(command.options)]
    flags = {f"--{each.flag}" for each in declared}
    negated = {f"--no-{each.flag}" for each in declared if each.can_be_off}
    return flags | negated | {"--json", "--progress", "--help", "--version"}


def options_in(text: str) -> set[str]:
    # Those of OpenVINO Model Server have underscores, and most of trtexec capital letters.
    return set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*(?!\w)", text))


@pytest.mark.parametrize(
    "page", [README, *GUIDES, DOCS / "glossary.md"], ids=lambda path: path.stem
)
def test_options_and_names_in_page_exist(page) -> None:
    text = page.read_text(encoding="utf-8")
    assert options_in(text) - FOREIGN <= known_options()
    names = set(re.findall(r"\bqdqbert\.([A-Za-z_]\w*)", text))
    missing = [
        name
        for name in names
        if not hasattr(qdqbert, name) and importlib.util.find_spec(f"qdqbert.{name}") is None
    ]
    assert not missing


def test_every_option_is_described_in_a_guide() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in GUIDES)
    described = options_in(text)
    declared = {
        f"--no-{each.flag}" if each.default is True else f"--{each.flag}"
        for command in COMMANDS
        for each in declared_options(command.options)
        if each.name not in command.positional
    }
    assert declared - described == set()


def test_benchmark_commands_name_scripts_and_options_that_exist() -> None:
    text = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    text += README.read_text(encoding="utf-8")
    commands = re.findall(
        r"^    (python benchmarks/.*(?:\\\n.*)*)$", text.replace("\\\n", " "), re.MULTILINE
    )
    assert len(commands) > 10
    for command in commands:
        _, script, *arguments = shlex.split(command)
        source = (ROOT / script).read_text(encoding="utf-8")
        for option in arguments:
            if option.startswith("--"):
                assert f'"{option}"' in source, command
    stray = [
        (line, options_in(line) - known_options())
        for line in re.findall(r"^    (qdqbert .*)$", text, re.MULTILINE)
    ]
    assert not [each for each in stray if each[1]]


def packages_of(extra: str) -> set[str]:
    """Return the modules of the packages that an extra names, and of all that it includes."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found: set[str] = set()
    for each in project["optional-dependencies"][extra]:
        name, included = re.fullmatch(r"([\w-]+)(?:\[([\w,-]+)\])?\W?.*", each).groups()
        if name == "qdqbert":
            found |= set().union(*map(packages_of, included.split(",")))
        found.add(name.replace("-", "_"))
    base = (re.match(r"[\w-]+", each)[0] for each in project["dependencies"])
    return found | {name.replace("-", "_") for name in base}


def test_the_extra_of_the_benchmarks_has_what_they_import() -> None:
    # protobuf comes with onnx. The scripts run without the others, and say so.
    others = ("google", "fastembed", "gguf", "gliner", "gliner2", "ray", "xllamacpp")
    known = packages_of("benchmarks").union(others, sys.stdlib_module_names)
    scripts = list((ROOT / "benchmarks").glob("*.py"))
    # The benchmark for GPUs runs the tests' models.
    known |= {path.stem for path in (*scripts, *(ROOT / "tests").glob("*.py"))}
    for path in scripts:
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        names = [each.name for node in nodes if isinstance(node, ast.Import) for each in node.names]
        names += [node.module for node in nodes if isinstance(node, ast.ImportFrom)]
        assert {name.partition(".")[0] for name in names} - known == set(), path.name
    assert "`pip install '.[benchmarks]'`" in (DOCS / "benchmarks.md").read_text(encoding="utf-8")


def test_every_extra_that_is_named_exists() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    files = [*PAGES, ROOT / "Makefile", ROOT / "Dockerfile"]
    files += [
        path for name in ("src", "benchmarks", "examples") for path in (ROOT / name).rglob("*.py")
    ]
    stray = []
    for path in files:
        text = " ".join(path.read_text(encoding="utf-8").split())
        listed = re.findall(r"(?:qdqbert|'\.)\[([a-z][a-z,-]*)\]", text)
        named = {name for each in listed for name in each.split(",")}
        named |= set(re.findall(r"\b[Ee]xtra `([\w-]+)`", text))
        stray += [f"{path.name}: {name}" for name in named - set(project["optional-dependencies"])]
    assert not stray


def test_every_metric_of_the_server_that_is_named_exists() -> None:
    metrics = Metrics()
    metrics.inputs.labels("m").inc()
    found = set(re.findall(r"^# TYPE (\w+) ", metrics.text().decode(), re.MULTILINE))
    named = {
        name
        for page in PAGES
        for name in re.findall(r"`(qdqbert_[a-z_]+)`", page.read_text(encoding="utf-8"))
    }
    assert named - {"qdqbert_format"} <= found


def test_versions_page_has_the_numbers_of_all_formats() -> None:
    text = (DOCS / "versions.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (.+?) \| (.+?) \|", text, re.MULTILINE))
    assert rows["`quantization.json`"] == f"`{QUANTIZATION_FORMAT}`"
    assert rows["`training.json`"] == f"`{TRAINING_FORMAT}`"
    assert rows["`ranges.safetensors`"] == f"`{RANGES_FORMAT}`"
    assert rows["`export.json`"] == f"`{EXPORT_FORMAT}`"
    assert rows["`native/model.safetensors`"] == f"`qdqbert-native` {NATIVE_FORMAT}"
    assert rows["quantizers in `config.json`"] == str(CONFIG_FORMAT)
    assert rows["`model.onnx`"] == f"ONNX, IR version {IR_VERSION}"


def test_versions_of_python_are_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    prefix = "Programming Language :: Python :: 3."
    versions = [
        f"3.{each.removeprefix(prefix)}" for each in project["classifiers"] if prefix in each
    ]
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8"))
    assert workflow["jobs"]["checks"]["strategy"]["matrix"]["python"] == versions
    assert project["requires-python"] == f">={versions[0]}"
    assert f"| Python | {', '.join(versions)}" in (DOCS / "versions.md").read_text("utf-8")
    between = rf"Python {versions[0]} to\s{versions[-1]}"
    for page in (README, DOCS / "guides" / "install.md", ROOT / "CONTRIBUTING.md"):
        assert re.search(between, page.read_text(encoding="utf-8")), page


def test_licences_page_has_all_packages_that_are_needed() -> None:
    script = runpy.run_path(str(DOCS / "licence_table.py"))
    rows = script["rows"]()
    assert {name: needed for name, (_, needed) in rows.items()} == script["dependencies"]()
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").lower().replace("_", "-")
    for name, (licence, _) in rows.items():
        found = script["licence_of"](name)
        # Other versions may state it in other words.
        if found is not None and f"\n{name}=={metadata.version(name)}\n" in pinned:
            assert found == licence, name


def anchors_of(page: Path) -> set[str]:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"https?:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors_of(target), link


def test_files_of_this_repository_that_are_named_exist() -> None:
    """Pages about its source name them from any folder on."""
    tops = ("src", "tests", "docs", "benchmarks", "examples")
    there = [path for top in tops for path in (ROOT / top).rglob("*")]
    known = "\n".join(f"/{path.relative_to(ROOT).as_posix()}/" for path in there)
    folders = "|".join({*tops, *(path.name for path in there if path.is_dir())})
    pages = [DOCS / "architecture.md", ROOT / "CONTRIBUTING.md", *(DOCS / "decisions").glob("*.md")]
    for page in pages:
        text = re.sub(r"\]\([^)]*\)", "]", page.read_text(encoding="utf-8"))
        for name in re.findall(rf"(?<![\w./-])(?:(?:{folders})/[\w./-]*\w|[a-z_]+\.py\b)", text):
            assert f"/{name}/" in known or f"/{name}.py/" in known, f"{page.name}: {name}"
