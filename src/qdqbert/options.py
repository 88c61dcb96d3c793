"""Options of the public functions, each declared once.

Most options are fields of a group, a public frozen dataclass such as `Limits`: a field has the
name, the type, the choices (a `Literal`), the default and, in `option(...)`, the bounds, and
`Attributes:` of the class has the help. Functions take groups as parameters. The command line is
flat: each field is a flag, and each group is a panel of the help.

Imports nothing heavier than the standard library.
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar, get_args, get_origin

from qdqbert.choices import CalibratorName, Embeddings, PoolingMode, WeightsFor
from qdqbert.errors import UserInputError
from qdqbert.objects import Rows, SavedModel, as_rows, rows_hint

Number = int | float

_P = ParamSpec("_P")
_R = TypeVar("_R")

# Ranges that cover fewer than half of the values are of no use.
_LEAST_PERCENTILE = 50


def option(
    default: Any = dataclasses.MISSING,
    *,
    flat: str | None = None,
    flag: str | None = None,
    short: str | None = None,
    takes_dash: bool = False,
    without: Sequence[str] = (),
    at_least: Number | None = None,
    above: Number | None = None,
    at_most: Number | None = None,
    below: Number | None = None,
) -> Any:
    """Declare an option that needs more than a default.

    Args:
        default: The default; without one, the option is required.
        flat: Name in messages and on the command line, where it differs from the name of the field.
        flag: Name on the command line, where it differs from the name in messages.
        short: One letter for the command line.
        takes_dash: Whether "-" is a value: stdin or stdout.
        without: Fields of a group that the function does not take.
        at_least: Smallest value.
        above: Bound that the value has to exceed.
        at_most: Largest value.
        below: Bound that the value has to stay under.
    """
    metadata = {
        "flat": flat,
        "flag": flag,
        "short": short,
        "takes_dash": takes_dash or None,
        "without": tuple(without) or None,
        "at_least": at_least,
        "above": above,
        "at_most": at_most,
        "below": below,
    }
    kept = {name: value for name, value in metadata.items() if value is not None}
    return dataclasses.field(default=default, metadata=kept)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Options:
    """Values of options, which are checked when they are set."""

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            UserInputError: A value is not allowed, or two options contradict each other.
        """
        normalize_options(self)
        check_options(self)

    def __repr__(self) -> str:
        """Show the values that differ from the defaults."""
        values = ", ".join(f"{name}={value!r}" for name, value in self.given().items())
        return f"{type(self).__name__}({values})"

    def given(self) -> dict[str, Any]:
        """Return the values that differ from the defaults, by field."""
        return {
            field.name: value
            for field in dataclasses.fields(self)
            if (value := getattr(self, field.name)) != field.default
        }


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Columns(Options):
    """Columns of the data.

    A column is given by its name or, if no column has that name, by its number from 0. In a result
    of reading, `None` means that there is none.

    Attributes:
        text: Column of the text: a name, or a number that counts from 0. Guessed from the names of
            the columns by default.
        text_pair: Column of the second text of a pair.
        label: Column of the label or score.
    """

    text: str | None = option(None, flat="text_column")
    text_pair: str | None = option(None, flat="text_pair_column")
    label: str | None = option(None, flat="label_column")

    @property
    def requested(self) -> dict[str, str]:
        """The columns that are not `None`, by their names in messages."""
        return {f"{role}_column": name for role, name in self.given().items()}


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Limits(Options):
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


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class TaskOptions(Options):
    """Tasks.

    By default, values that the model was trained or quantized with, if there are any.

    Attributes:
        pooling: How an embedder makes one vector of a text's tokens. Read from the checkpoint by
            default.
        doc_stride: Tokens that neighboring windows of a long context share, in question answering;
            128 by default.
        n_best_size: Number of start and end positions that are combined, in question answering;
            20 by default.
        max_answer_length: Longest answer in tokens, in question answering; 30 by default.
        null_score_diff_threshold: Margin by which the score of "no answer" has to exceed the best
            answer's, in question answering with unanswerable questions; 0 by default.
        mlm_probability: Fraction of tokens that are masked, in fill-mask; 0.15 by default.
    """

    pooling: PoolingMode | None = None
    doc_stride: int | None = option(None, at_least=0)
    n_best_size: int | None = option(None, at_least=1)
    max_answer_length: int | None = option(None, at_least=1)
    null_score_diff_threshold: float | None = None
    mlm_probability: float | None = option(None, above=0, below=1)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Quantizers(Options):
    """Quantizers.

    Most are options of QDQBERT's SQuAD example, which change the quantizers of a recipe.

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
        weights_for: CPUs that the weights are encoded for: "vnni" uses all 8 bits, which is exact
            only on CPUs with VNNI; "any" is exact on all of them.
        embeddings: How embedding tables are stored.
        dedicated_qdq_pairs: Write one Q/DQ pair for each reader of an activation instead of one
            per activation.
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
    weights_for: WeightsFor = "any"
    embeddings: Embeddings = "int8"
    dedicated_qdq_pairs: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Onnx(Options):
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


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Calibration(Options):
    """Calibration.

    Attributes:
        calibrator: Rule that turns statistics into ranges. The default is "percentile" when
            quantizing and "mse" when training.
        percentile: Percentage of magnitudes that a range covers, for the calibrator "percentile";
            99.999 by default.
        samples: Number of examples to calibrate on.
        seed: Seed that draws the calibration examples.
        ranges_from: Folder that an earlier call wrote for the same model. Its ranges are used
            again, for other targets or settings.
        recalibrate: Calibrate again, even if the checkpoint's own quantizers have ranges.
        recalibrate_weights: Take the ranges of weights from the weights, even if the checkpoint
            stores some.
        ray: Calibrate on a Ray cluster, or on the one with this address. Ray is started on this
            machine if there is none.
    """

    calibrator: CalibratorName | None = None
    percentile: float | None = option(None, above=0, at_most=100)
    samples: int = option(300, flat="calibration_samples", at_least=1)
    seed: int = 0
    ranges_from: str | None = None
    recalibrate: bool = False
    recalibrate_weights: bool = False
    ray: bool | str | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        super().__post_init__()
        if self.ray is False:
            object.__setattr__(self, "ray", None)
        if self.ranges_from is None:
            return
        for field in ("calibrator", "percentile", "samples", "recalibrate", "ray"):
            if field in self.given():
                name = "calibration_samples" if field == "samples" else field
                raise UserInputError(
                    f"`{name}` applies to a new calibration, and "
                    f"`ranges_from={self.ranges_from!r}` uses an earlier one. Leave one of the two "
                    "out.",
                    argument=name,
                )


def check_percentile(options: Calibration, calibrator: CalibratorName) -> None:
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
        name: Name in messages, which no other option of the function has.
        field: Name of the field.
        parameter: Parameter of the function: a group, or the option itself.
        flag: Name on the command line, without dashes.
        short: One letter for the command line, if there is one.
        takes_dash: Whether "-" is a value.
        type: Type, without `None`.
        is_optional: Whether `None` is allowed.
        default: The default; `dataclasses.MISSING` if the option is required.
        choices: Values that are allowed, empty if they are not listed.
        help: What it means; empty if the docstring of the function says it.
        group: Class that declares it.
        limits: Bounds by the names of `option`'s parameters.
    """

    name: str
    field: str
    parameter: str
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
    def is_grouped(self) -> bool:
        """Whether the option is a field of a group that the function takes."""
        return self.parameter != self.field

    def value(self, options: Any) -> Any:
        """Return the value in the options of a call."""
        holder = getattr(options, self.parameter) if self.is_grouped else options
        return getattr(holder, self.field)


@functools.cache
def declared_options(options: type) -> tuple[Declared, ...]:
    """Return the options of a function: its own first, then those of its groups in their order."""
    found = list(_own_options(options))
    for parameter, (group, without) in _groups(options).items():
        found += [
            each._replace(parameter=parameter)
            for each in _own_options(group)
            if each.field not in without
        ]
    return tuple(found)


@functools.cache
def _own_options(options: type) -> tuple[Declared, ...]:
    """Return the options that a class declares outside of groups."""
    found = []
    hints = typing.get_type_hints(options)
    docs = {each: described(each, "Attributes") for each in options.__mro__[:-1]}
    for field in dataclasses.fields(options):
        if field.name in _groups(options):
            continue
        owner = _declaring_class(options, field.name)
        kind, is_optional = _without_none(hints[field.name])
        metadata = dict(field.metadata)
        name = metadata.pop("flat", field.name)
        declared = Declared(
            name=name,
            field=field.name,
            parameter=field.name,
            flag=metadata.pop("flag", None) or name.replace("_", "-"),
            short=metadata.pop("short", None),
            takes_dash=metadata.pop("takes_dash", False),
            type=kind,
            is_optional=is_optional,
            default=field.default,
            choices=_choices(kind),
            help=docs[owner].get(field.name, ""),
            group=owner,
            limits=metadata,
        )
        found.append(declared)
    return tuple(sorted(found, key=lambda each: options.__mro__.index(each.group)))


@functools.cache
def _groups(options: type) -> Mapping[str, tuple[Any, Sequence[str]]]:
    """Return the groups among the fields of a class, with their fields that it does not take."""
    hints = typing.get_type_hints(options)
    return {
        field.name: (kind, field.metadata.get("without", ()))
        for field in dataclasses.fields(options)
        if isinstance(kind := hints[field.name], type) and issubclass(kind, Options)
    }


def in_groups(options: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a function for values of its options by name."""
    arguments: dict[str, Any] = {}
    fields: dict[str, dict[str, Any]] = {}
    declared = {each.name: each for each in declared_options(options)}
    for name, value in values.items():
        each = declared.get(name)
        if each is not None and each.is_grouped:
            fields.setdefault(each.parameter, {})[each.field] = value
        else:
            arguments[name] = value
    groups = _groups(options)
    return arguments | {name: groups[name][0](**given) for name, given in fields.items()}


def takes(options: type) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Let a function say which group an unknown keyword belongs to.

    Args:
        options: Class of its options.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        known = inspect.signature(function).parameters

        @functools.wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            unknown = {name: value for name, value in kwargs.items() if name not in known}
            if unknown:
                raise TypeError(_unknown_keywords(function.__name__, options, unknown))
            return function(*args, **kwargs)

        return call

    return decorate


def _unknown_keywords(function: str, options: type, unknown: Mapping[str, Any]) -> str:
    message = f"{function}() got an unexpected keyword argument {next(iter(unknown))!r}."
    found: dict[tuple[str, str], list[str]] = {}
    for name, value in unknown.items():
        for each in declared_options(options):
            if each.is_grouped and name in (each.name, each.field):
                key = (each.parameter, each.group.__name__)
                found.setdefault(key, []).append(f"{each.field}={value!r:.100}")
    advice = [
        f"`{parameter}=qdqbert.{group}({', '.join(values)})`"
        for (parameter, group), values in found.items()
    ]
    return f"{message} Pass {' and '.join(advice)}." if advice else message


def check_options(options: Any) -> None:
    """Check types, choices and limits.

    Raises:
        UserInputError: A value has another type, is not one of its choices, or out of its bounds.
    """
    for each in _own_options(options.__class__):
        value = getattr(options, each.field)
        if value is None and each.is_optional:
            continue
        for item in value if get_origin(each.type) is tuple else (value,):
            _check_value(each, item)
    for name, (group, without) in _groups(options.__class__).items():
        value = getattr(options, name)
        if not isinstance(value, group):
            raise UserInputError(
                f"`{name}` must be a `qdqbert.{group.__name__}`, got {value!r:.100} "
                f"({type(value).__name__}).",
                argument=name,
            )
        for field in without:
            if field in value.given():
                raise UserInputError(
                    f"`{field}` of `{name}` does not apply here. Leave it out.", argument=name
                )


def normalize_options(options: Any) -> None:
    """Turn values into the types of the options, in place.

    Paths and numbers of columns become strings, sequences tuples, and data in memory `Rows`.
    """
    for each in _own_options(options.__class__):
        value = getattr(options, each.field)
        is_column_number = each.name.endswith("_column") and type(value) is int
        if isinstance(value, Path) or is_column_number:
            object.__setattr__(options, each.field, str(value))
        elif each.type == str | Rows and (rows := as_rows(value)) is not None:
            object.__setattr__(options, each.field, rows)
        elif get_origin(each.type) is tuple and value is not None:
            is_item = isinstance(value, str) or not isinstance(value, Iterable)
            items = (value,) if is_item else value
            items = tuple(str(item) if isinstance(item, Path) else item for item in items)
            object.__setattr__(options, each.field, items)


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
        value = each.value(options)
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
    """Return a hint for a value of another type; empty if there is none."""
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


def described(documented: Any, section: str) -> Mapping[str, str]:
    """Return the text of each name in a section of a docstring, such as "Args"."""
    # The compiler removes the indentation from Python 3.13 on; `getdoc` does so in all versions.
    lines = (inspect.getdoc(documented) or "").partition(f"{section}:\n")[2].splitlines()
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


def check_onnx_options(options: Onnx, model: str | SavedModel | None) -> None:
    """Refuse options for .onnx files in a call without one.

    Args:
        options: Options of the call.
        model: Name of its model, for the message.

    Raises:
        UserInputError: One of them was given.
    """
    for name in options.given():
        raise UserInputError(
            f"`{name}` applies to .onnx files only, and `model={model!r}` is not one. Leave it "
            "out.",
            argument=name,
        )
