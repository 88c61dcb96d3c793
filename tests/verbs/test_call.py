"""Public functions are made of the classes of their options."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from typing import Any

import pytest
from mypy import api

import qdqbert
from qdqbert.cli._commands import COMMANDS
from qdqbert.common.errors import UserInputError
from qdqbert.common.objects import OptionalModel, PathOption, SavedModel, Several
from qdqbert.common.options.declared import described, docstring, option
from qdqbert.common.options.limits import Limits
from qdqbert.common.progress import Progress, Silent
from qdqbert.pipeline.calls import Call
from qdqbert.verbs.call import public


class SizeCall(Call):
    """Common options.

    Attributes:
        size: The size, which a class that adds to this one takes over with its help, which is long:
            over two lines.
        limits: The limits.
    """

    size: int = option(default=8, at_least=1)
    limits: Limits = Limits()


class CountCall(SizeCall):
    """Common options.

    Attributes:
        output: The file.
        model: The model.
        names: The names.
    """

    output: PathOption = option(kw_only=False)
    model: OptionalModel = option(default=None, kw_only=False)
    names: Several[str] = option(default=())


@public(CountCall)
def count(options: CountCall, progress: Progress) -> Any:
    """Count names.

    Returns:
        What the function was called with.
    """
    folder = options.model
    found = list(Path(folder).iterdir()) if isinstance(folder, SavedModel) else []
    return options, progress, [each.name for each in found]


def test_the_parameters_are_the_fields_as_they_are_given() -> None:
    assert str(inspect.signature(count)) == (
        "(output: 'str | Path', model: 'str | Path | Savable | tuple[Savable, Savable] | None' = "
        "None, *, names: 'Sequence[str]' = (), size: 'int' = 8, limits: 'Limits' = Limits(), "
        "progress: \"Progress | Literal['json'] | bool | None\" = None) -> 'Any'"
    )


def test_the_docstring_has_the_help_of_each_parameter() -> None:
    assert inspect.getdoc(count) == (
        "Count names.\n\nArgs:\n    output: The file.\n    model: The model.\n"
        "    names: The names.\n"
        "    size: The size, which a class that adds to this one takes over with its help, which "
        "is long:\n        over two lines.\n    limits: The limits.\n"
        '    progress: Show progress bars on stderr; in notebooks by default. "json" writes lines '
        "of JSON\n        there, and a `Progress` object receives the stages instead.\n\nReturns:\n"
        "    What the function was called with."
    )


def test_the_function_gets_values_in_the_types_of_the_options() -> None:
    options, progress, _ = count(Path("a"), names=["b"])
    assert options == CountCall(output="a", names=("b",))
    assert (options.output, options.names) == ("a", ("b",))
    assert isinstance(progress, Silent)
    shown = Silent()
    assert count("a", progress=shown)[1] is shown


PARTS = {"weights", "tokenizer"}


class Part:
    """Writes a file, as parts of a model do."""

    def __init__(self, file: str) -> None:
        self.file = file

    def save_pretrained(self, folder: str) -> None:
        Path(folder).mkdir(exist_ok=True)
        (Path(folder) / self.file).touch()


def test_a_model_in_memory_is_saved_for_the_call() -> None:
    options, _, files = count("a", (Part("weights"), Part("tokenizer")))
    assert sorted(files) == ["tokenizer", "weights"]
    assert str(options.model) == "Part (in memory)"
    assert not Path(options.model).exists()


@pytest.mark.parametrize(
    ("function", "arguments", "names"),
    [
        (qdqbert.evaluate, {"data": ["a"]}, ["model", "reference"]),
        (qdqbert.analyze, {}, ["model"]),
        (qdqbert.train, {"output": "o", "train_data": ["a"]}, ["model"]),
        (qdqbert.benchmark, {}, ["models"]),
    ],
    ids=["evaluate", "analyze", "train", "benchmark"],
)
def test_commands_take_models_in_memory(function, arguments, names, monkeypatch, tmp_path) -> None:
    def run(options, progress):
        values = [getattr(options, name) for name in names]
        models = [model for each in values for model in (each if names == ["models"] else [each])]
        assert all({file.name for file in Path(each).iterdir()} == PARTS for each in models)
        return [str(each) for each in models]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(f"qdqbert.verbs.{function.__name__}.run.run", run)
    model = (Part("weights"), Part("tokenizer"))
    given = {name: [model, model] if name == "models" else model for name in names}
    assert set(function(**given, **arguments)) == {"Part (in memory)"}


def test_a_value_is_checked_before_the_function_is_called() -> None:
    with pytest.raises(UserInputError, match="`size` must be at least 1, got 0"):
        count("a", size=0)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        (
            {"max_drop": 1},
            "got an unexpected keyword argument 'max_drop'. Pass "
            "`limits=qdqbert.Limits(max_drop=1)`.",
        ),
        (
            {"label_column": "y"},
            "got an unexpected keyword argument 'label_column'. Pass "
            "`columns=qdqbert.Columns(label='y')`.",
        ),
        (
            {"fuse_qkv": True, "samples": 9, "wprec": 4},
            "got an unexpected keyword argument 'fuse_qkv'. Pass "
            "`quantizers=qdqbert.Quantizers(fuse_qkv=True, wprec=4)` and "
            "`calibration=qdqbert.Calibration(samples=9)`.",
        ),
        (
            {"target": "native"},
            "got an unexpected keyword argument 'target'. Pass `targets='native'`.",
        ),
        (
            {"limit": 1},
            "got an unexpected keyword argument 'limit'. Did you mean `limits=1`?",
        ),
        (
            {"max_dorp": 1, "progres": True},
            "got an unexpected keyword argument 'max_dorp'. Did you mean `progress=True` and "
            "`limits=qdqbert.Limits(max_drop=1)`?",
        ),
        ({"xyz": 1}, "got an unexpected keyword argument 'xyz'."),
    ],
)
def test_an_unknown_keyword_is_refused_with_what_was_meant(keywords, message) -> None:
    with pytest.raises(TypeError) as caught:
        qdqbert.quantize("m", "o", **keywords)
    assert str(caught.value) == f"quantize() {message}"


def test_a_missing_argument_is_refused_with_the_function() -> None:
    with pytest.raises(TypeError) as caught:
        count()
    assert str(caught.value) == "count() missing a required argument: 'output'."


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_each_field_of_a_command_has_a_help(command) -> None:
    fields = [field.name for field in dataclasses.fields(command.options)]
    documented = described(docstring(command.function), "Args")
    assert documented.keys() == set(fields) == set(inspect.signature(command.function).parameters)


CALLS = """
import pathlib
import qdqbert
qdqbert.quantize(pathlib.Path("m"), targets=["native"], eval_data=["a", "b"], progress=True)
qdqbert.quantize("m", max_lenght=3)
qdqbert.train("m", "o", train_data=3)
qdqbert.evaluate(data=["a"]).metrics
reveal_type(qdqbert.run("m", "i", "o").rows)
reveal_type(qdqbert.load("m", task="text-classification", engine="native"))
reveal_type(qdqbert.load("m"))
qdqbert.load("m", task="sentiment")
embedder = qdqbert.load("m", task="feature-extraction")
reveal_type(embedder.encode("a"))
reveal_type(embedder.encode(["a"], convert_to_tensor=True))
reveal_type(embedder.encode_query(["a"], prompt="b"))
embedder.encode(["a"], normalise=True)
classifier = qdqbert.load("m", task="text-classification")
reveal_type(classifier("a")[0]["label"])
reveal_type(classifier({"text": "a"})["score"])
reveal_type(classifier("a", top_k=2))
reveal_type(qdqbert.load("m", task="token-classification")(["a"]))
reveal_type(qdqbert.load("m", task="question-answering")(question="a", context="b")["answer"])
reveal_type(qdqbert.load("m", task="reranking").predict([("a", "b")]))
reveal_type(qdqbert.load("m", task="multi-vector-embedding").encode(["a"]))
reveal_type(qdqbert.load("m", task="sparse-embedding").encode(["a"]))
reveal_type(qdqbert.__version__)
"""


@pytest.mark.slow
def test_type_checkers_see_the_parameters(tmp_path) -> None:
    script = tmp_path / "calls.py"
    script.write_text(CALLS)
    found, _, _ = api.run([str(script)])
    lines = [line.partition(".py:")[2] for line in found.splitlines()]
    errors = [line for line in lines if "error:" in line]
    assert [line.partition(":")[0] for line in errors] == ["5", "6", "7", "11", "16", "16"]
    assert 'Unexpected keyword argument "max_lenght" for "quantize"' in errors[0]
    assert 'Argument "train_data" to "train" has incompatible type "int"' in errors[1]
    assert 'Missing positional argument "model" in call to "evaluate"' in errors[2]
    assert 'No overload variant of "load" matches' in errors[3]
    revealed = [line.partition("Revealed type is ")[2] for line in lines if "Revealed" in line]
    classifier = "qdqbert.tasks.text_classification.TextClassifier"
    answer = "TypedDict(qdqbert.tasks.text_classification.Class, {'label': str, 'score': float})"
    # How numpy spells the types of values differs between its versions.
    assert [each.strip('"').partition("[tuple")[0] for each in revealed] == [
        *("int", classifier, "Any"),
        *("numpy.ndarray", "torch._tensor.Tensor", "numpy.ndarray"),
        *("str", "float", f"list[{answer}]", "list[list[dict[str, Any]]]", "str"),
        *(
            "numpy.ndarray",
            "list[numpy.ndarray",
            "qdqbert.tasks.sparse_vectors.SparseEmbeddings",
            "str",
        ),
    ]
