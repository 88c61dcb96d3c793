"""Options of the commands, each declared once.

The declaration of an option is a field of a dataclass: its name, type, choices (a `Literal`) and
default, limits in `option(...)`, and its help under `Attributes:` of the class. The command line
and the stored command line are derived from it. The public functions spell the same parameters
out, and a test compares the two.

The options of a command are one flat dataclass that inherits from the groups below. A group is a
panel of the help. Imports nothing heavier than the standard library.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import operator
import os
import shlex
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from qdqbert.choices import CalibratorName
from qdqbert.errors import UserInputError
from qdqbert.objects import Rows, SavedModel, as_rows, rows_hint

Number = int | float

# Ranges that cover fewer than half of the values are of no use.
_LEAST_PERCENTILE = 50


def option(
    default: Any = dataclasses.MISSING,
    *,
    flag: str | None = None,
    short: str | None = None,
    takes_dash: bool = False,
    at_least: Number | None = None,
    above: Number | None = None,
    at_most: Number | None = None,
    below: Number | None = None,
) -> Any:
    """Declare an option that needs more than a default.

    Args:
        default: The default; without one, the option is required.
        flag: Name on the command line, where it differs from the name of the field.
        short: One letter for the command line.
        takes_dash: Whether "-" is a value: stdin or stdout.
        at_least: Smallest value.
        above: Bound that the value has to exceed.
        at_most: Largest value.
        below: Bound that the value has to stay under.
    """
    metadata = {
        "flag": flag,
        "short": short,
        "takes_dash": takes_dash or None,
        "at_least": at_least,
        "above": above,
        "at_most": at_most,
        "below": below,
    }
    kept = {name: value for name, value in metadata.items() if value is not None}
    return dataclasses.field(default=default, metadata=kept)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ColumnOptions:
    """Columns of the data.

    Attributes:
        text_column: Column of the text: a name, or a number that counts from 0. Guessed from the
            names of the columns by default.
        text_pair_column: Column of the second text of a pair.
        label_column: Column of the label or score.
    """

    text_column: str | None = None
    text_pair_column: str | None = None
    label_column: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class LimitOptions:
    """Limits.

    A limit is met if it holds for the whole 95 % interval of what was measured.

    Attributes:
        max_drop: Largest loss of the main metric against the reference, in the unit of the metric.
        max_flips: Largest percentage of predictions that differ from the reference's.
        min_sqnr: Lowest SQNR to the reference, in dB.
        min_cosine: Lowest cosine of the embedding of any text to the reference's.
    """

    max_drop: float | None = option(None, at_least=0)
    max_flips: float | None = option(None, at_least=0, at_most=100)
    min_sqnr: float | None = None
    min_cosine: float | None = option(None, at_least=-1, at_most=1)

    @property
    def limits(self) -> dict[str, float]:
        """The limits that were set, by name."""
        return {
            field.name: value
            for field in dataclasses.fields(LimitOptions)
            if (value := getattr(self, field.name)) is not None
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """Settings of tasks.

    The default is the value that the model was trained or quantized with, if there is one.

    Attributes:
        doc_stride: Tokens that neighboring windows of a long context share, in question answering;
            128 by default.
        n_best_size: Number of start and end positions that are combined, in question answering;
            20 by default.
        max_answer_length: Longest answer in tokens, in question answering; 30 by default.
        null_score_diff_threshold: Margin by which the score of "no answer" has to exceed the best
            answer's, in question answering with unanswerable questions; 0 by default.
        mlm_probability: Fraction of tokens that are masked, in fill-mask; 0.15 by default.
    """

    doc_stride: int | None = option(None, at_least=0)
    n_best_size: int | None = option(None, at_least=1)
    max_answer_length: int | None = option(None, at_least=1)
    null_score_diff_threshold: float | None = None
    mlm_probability: float | None = option(None, above=0, below=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuantizerOverrides:
    """Quantizers.

    The options of QDQBERT's SQuAD example change the quantizers of a recipe.

    Attributes:
        wprec: Bits of weights, 2 to 8; 8 by default.
        aprec: Bits of activations, 2 to 8; 8 by default.
        quant_per_tensor: Use one scale per weight instead of one per output channel.
        quant_disable: Leave everything in float, except for `quant_enable_layer_module`.
        quant_disable_keyword: Regular expressions. Quantizers whose name matches stay in float.
        quant_disable_layer_module: Regular expression that follows `layer.N.` in the name.
            Quantizers that match stay in float in every layer.
        quant_enable_layer_module: Regular expression that follows `layer.N.` in the name.
            Quantizers that match are quantized in every layer, whatever disables them.
        fuse_qkv: Use one range for query, key and value. With `quant_per_tensor`, also for their
            weights.
        clip_gelu: Largest value that the output of a GELU can take.
    """

    wprec: int | None = option(None, at_least=2, at_most=8)
    aprec: int | None = option(None, at_least=2, at_most=8)
    quant_per_tensor: bool = False
    quant_disable: bool = False
    quant_disable_keyword: tuple[str, ...] = ()
    quant_disable_layer_module: str | None = None
    quant_enable_layer_module: str | None = None
    fuse_qkv: bool = False
    clip_gelu: float | None = option(None, above=0)

    def quantizer_changes(self) -> dict[str, Any]:
        """Return the overrides that were given, by name."""
        return {
            field.name: value
            for field in dataclasses.fields(QuantizerOverrides)
            if (value := getattr(self, field.name)) != field.default
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnnxOptions:
    """Existing ONNX models.

    Attributes:
        tokenizer: Folder or hub id of the tokenizer and config of an .onnx file. The folder of
            the file by default.
        input_names: Names of the inputs of an .onnx file by transformers' names, where they
            differ: `{"input_ids": "tokens"}`.
        output_names: Names of the outputs of an .onnx file by transformers' names, where they
            differ: `{"logits": "scores"}`.
    """

    tokenizer: str | None = None
    input_names: Mapping[str, str] | None = option(None, flag="input-name")
    output_names: Mapping[str, str] | None = option(None, flag="output-name")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CalibratorOptions:
    """Calibration.

    Attributes:
        calibrator: Rule that turns statistics into ranges. The default is "percentile" when
            quantizing and "mse" when training.
        percentile: Percentage of magnitudes that a range covers, for the calibrator "percentile";
            99.999 by default.
        calibration_samples: Number of examples to calibrate on.
    """

    calibrator: CalibratorName | None = None
    percentile: float | None = option(None, above=0, at_most=100)
    calibration_samples: int = option(300, at_least=1)


def check_percentile(options: CalibratorOptions, calibrator: CalibratorName) -> None:
    """Refuse a percentile that another calibrator does not read, or that looks like a fraction.

    Args:
        options: Options of the call.
        calibrator: The calibrator that it uses.

    Raises:
        UserInputError: The percentile cannot be used.
    """
    value = options.percentile
    if value is None:
        return
    if calibrator != "percentile":
        raise UserInputError(
            f"`percentile={value}` requires `calibrator='percentile'`, got "
            f"`calibrator={calibrator!r}`.",
            argument="percentile",
        )
    if value < _LEAST_PERCENTILE:
        example = f"{100 * value:g}" if value <= 1 else "99.99"
        raise UserInputError(
            f"`percentile={value}` is too small: it is in percent, so that `percentile={example}` "
            f"covers {example} % of the magnitudes. Pass at least {_LEAST_PERCENTILE}.",
            argument="percentile",
        )


class Declared(typing.NamedTuple):
    """An option as it was declared.

    Attributes:
        name: Name of the parameter in Python.
        flag: Name on the command line, without dashes.
        short: One letter for the command line, if there is one.
        takes_dash: Whether "-" is a value.
        type: Type, without `None`.
        is_optional: Whether `None` is allowed.
        default: The default; `dataclasses.MISSING` if the option is required.
        choices: Values that are allowed, empty if they are not listed.
        help: What it means.
        group: Class that declares it.
        limits: Bounds by the names of `option`'s parameters.
    """

    name: str
    flag: str
    short: str | None
    takes_dash: bool
    type: Any
    is_optional: bool
    default: Any
    choices: tuple[Any, ...]
    help: str
    group: type
    limits: Mapping[str, Number]

    @property
    def documentation(self) -> str:
        """The help with the choices, as in the docstring of the public function."""
        if not self.choices:
            return self.help
        names = ", ".join(f'"{each}"' for each in self.choices)
        return f"{self.help} One of {names}."


@functools.cache
def declared_options(options: type) -> tuple[Declared, ...]:
    """Return the options of a command: its own first, then those of its groups in their order."""
    found = []
    hints = typing.get_type_hints(options)
    docs = {group: _attribute_docs(group) for group in options.__mro__[:-1]}
    for field in dataclasses.fields(options):
        group = _declaring_class(options, field.name)
        kind, is_optional = _without_none(hints[field.name])
        metadata = dict(field.metadata)
        declared = Declared(
            name=field.name,
            flag=metadata.pop("flag", None) or field.name.replace("_", "-"),
            short=metadata.pop("short", None),
            takes_dash=metadata.pop("takes_dash", False),
            type=kind,
            is_optional=is_optional,
            default=field.default,
            choices=_choices(kind),
            help=docs[group][field.name],
            group=group,
            limits=metadata,
        )
        found.append(declared)
    return tuple(sorted(found, key=lambda each: options.__mro__.index(each.group)))


def check_options(options: Any) -> None:
    """Check types, choices and limits.

    Raises:
        UserInputError: A value has another type, is not one of its choices, or out of its bounds.
    """
    for each in declared_options(options.__class__):
        value = getattr(options, each.name)
        if value is None and each.is_optional:
            continue
        for item in value if get_origin(each.type) is tuple else (value,):
            _check_value(each, item)


def normalize_options(options: Any) -> None:
    """Turn values into the types of the options, in place.

    Paths and numbers of columns become strings, sequences tuples, and data in memory `Rows`.
    """
    for each in declared_options(options.__class__):
        value = getattr(options, each.name)
        is_column_number = each.name.endswith("_column") and type(value) is int
        if isinstance(value, Path) or is_column_number:
            object.__setattr__(options, each.name, str(value))
        elif each.type == str | Rows and (rows := as_rows(value)) is not None:
            object.__setattr__(options, each.name, rows)
        elif get_origin(each.type) is tuple and value is not None:
            is_item = isinstance(value, str) or not isinstance(value, Iterable)
            items = (value,) if is_item else value
            items = tuple(str(item) if isinstance(item, Path) else item for item in items)
            object.__setattr__(options, each.name, items)


def command_line(command: str, options: Any) -> str:
    """Return the command line that is equivalent to some options.

    Args:
        command: Name of the command.
        options: Its options, of which `model` is an argument without a flag.
    """
    words = ["qdqbert", command]
    if options.model is not None:
        words.append(str(options.model))
    for each in declared_options(options.__class__):
        value = getattr(options, each.name)
        if each.name != "model" and value is not None and value != each.default:
            words += _words(each, value)
    return shlex.join(words)


def _words(option: Declared, value: Any) -> Iterator[str]:
    flag = f"--{option.flag}"
    if isinstance(value, bool):
        yield f"--{'' if value else 'no-'}{option.flag}"
        return
    if isinstance(value, Mapping):
        items = [f"{name}={item}" for name, item in value.items()]
    elif isinstance(value, tuple):
        items = [str(item) for item in value]
    else:
        items = [str(value)]
    for item in items:
        yield flag
        yield item


# What a value has to be, in words, by the type of the option.
_KINDS: Mapping[Any, tuple[tuple[type, ...], str]] = {
    str: ((str,), "a string or a path"),
    bool: ((bool,), "True or False"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    bool | str: ((bool, str), "True, False or a string"),
    str | SavedModel: ((str, SavedModel), "a path, or a model with its tokenizer"),
    str | Rows: ((str, Rows), "a path, or a list, DataFrame or data set"),
    Mapping: ((Mapping,), "a dictionary of names"),
}


def _check_type(option: Declared, value: Any) -> None:
    kind = get_args(option.type)[0] if get_origin(option.type) is tuple else option.type
    origin = None if isinstance(kind, types.UnionType) else get_origin(kind)
    accepted, words = _KINDS.get(origin or kind, ((object,), ""))
    is_odd_bool = isinstance(value, bool) and kind in (int, float)
    if is_odd_bool or not isinstance(value, accepted):
        hint = _hint(kind, value)
        # The representation of a model is long.
        got = type(value).__name__ if hint else f"{value!r:.100} ({type(value).__name__})"
        raise UserInputError(
            f"`{option.name}` must be {words}, got {got}.{hint}", argument=option.name
        )


def _hint(kind: Any, value: Any) -> str:
    """Return what to pass instead of a value of another type; empty if nothing is known."""
    if kind == str | Rows:
        return rows_hint(value)
    if kind is str and hasattr(value, "save_pretrained"):
        return (
            " Save it, and its tokenizer, into one folder with `save_pretrained(folder)`, and pass "
            "the folder."
        )
    return ""


def _check_value(option: Declared, value: Any) -> None:
    _check_type(option, value)
    if option.choices and value not in option.choices:
        raise UserInputError(
            f"`{option.name}={value!r}` is unknown. Choose one of: "
            f"{', '.join(map(str, option.choices))}.",
            argument=option.name,
        )
    bounds = option.limits
    fits = (
        ("at_least" not in bounds or value >= bounds["at_least"])
        and ("above" not in bounds or value > bounds["above"])
        and ("at_most" not in bounds or value <= bounds["at_most"])
        and ("below" not in bounds or value < bounds["below"])
    )
    if not fits:
        words = " and ".join(f"{name.replace('_', ' ')} {bounds[name]}" for name in bounds)
        raise UserInputError(f"`{option.name}` must be {words}, got {value}.", argument=option.name)


def _declaring_class(options: type, name: str) -> type:
    return next(each for each in options.__mro__ if name in vars(each).get("__annotations__", {}))


def _without_none(hint: Any) -> tuple[Any, bool]:
    if isinstance(hint, types.UnionType) or get_origin(hint) is typing.Union:
        kinds = [each for each in get_args(hint) if each is not types.NoneType]
        kind = functools.reduce(operator.or_, kinds)
        return kind, len(kinds) < len(get_args(hint))
    return hint, False


def _choices(kind: Any) -> tuple[Any, ...]:
    if get_origin(kind) is tuple:
        kind = get_args(kind)[0]
    return get_args(kind) if get_origin(kind) is Literal else ()


def _attribute_docs(group: type) -> Mapping[str, str]:
    """Read the text of each field from a class's docstring."""
    # The compiler removes the indentation from Python 3.13 on; `getdoc` does so in all versions.
    lines = (inspect.getdoc(group) or "").partition("Attributes:\n")[2].splitlines()
    docs: dict[str, str] = {}
    name = ""
    for line in lines:
        text = line.strip()
        indent = len(line) - len(line.lstrip())
        if not text:
            break
        if indent == 4:
            name, _, text = text.partition(": ")
            docs[name] = text
        else:
            docs[name] += f" {text}"
    return docs


def is_onnx_file(model: str | os.PathLike[str]) -> bool:
    """Return whether a model is an .onnx file rather than a checkpoint or a folder."""
    return str(model).lower().endswith(".onnx") and not Path(model).is_dir()


def check_onnx_options(options: OnnxOptions, model: str | SavedModel | None) -> None:
    """Refuse options for .onnx files in a call without one.

    Args:
        options: Options of the call.
        model: Name of its model, for the message.

    Raises:
        UserInputError: One of them was given.
    """
    for field in dataclasses.fields(OnnxOptions):
        if getattr(options, field.name):
            raise UserInputError(
                f"`{field.name}` applies to .onnx files only, and `model={model!r}` is not one. "
                "Leave it out.",
                argument=field.name,
            )
