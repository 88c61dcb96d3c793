"""Options of the public functions, each declared once.

An option is a field of a class: its name, its type, its choices (a `Literal`), its default and, in
`option(...)`, its bounds. `Attributes:` of the class has its help. Most options are in groups,
public frozen dataclasses such as `Limits`, which functions take as parameters. The other options of
a function are the fields of its `Call`, from which the signature of the function is made. The
command line is flat: each field is a flag, and each group is a panel of the help.

Imports nothing heavier than the standard library.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import json
import operator
import os
import shlex
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, dataclass_transform, get_args, get_origin

from qdqbert.common.errors import OutputExistsError, UserInputError, naming
from qdqbert.common.files import check_input_place, check_output_place, is_utf8, is_within
from qdqbert.common.keywords import plain, suggest_keywords
from qdqbert.common.objects import (
    Converted,
    Downloaded,
    Rows,
    SavedModel,
    as_given,
    as_rows,
    device_name,
    rows_hint,
)
from qdqbert.common.storage import Place, is_url, place_of

Number = int | float

_BOUNDS: Mapping[str, Callable[[Any, Any], bool]] = {
    "at_least": operator.ge,
    "above": operator.gt,
    "at_most": operator.le,
    "below": operator.lt,
}


def option(
    *,
    default: Any = dataclasses.MISSING,
    kw_only: bool = True,
    flat: str | None = None,
    flag: str | None = None,
    short: str | None = None,
    takes_dash: bool | None = None,
    python_only: bool | None = None,
    writes: Literal["replaced", "filled"] | None = None,
    commas: bool | None = None,
    json: bool | None = None,
    without: tuple[str, ...] | None = None,
    at_least: Number | None = None,
    above: Number | None = None,
    at_most: Number | None = None,
    below: Number | None = None,
) -> Any:
    """Declare an option that needs more than a default.

    Args:
        default: The default; without one, the option is required.
        kw_only: Whether the function takes it by name only.
        flat: Name in messages and on the command line, where it differs from the name of the field.
        flag: Name on the command line, where it differs from the name in messages.
        short: One letter for the command line.
        takes_dash: Whether "-" is a value: stdin or stdout.
        python_only: Whether the command line does not have it.
        writes: What becomes of the path if it exists: a file or folder is "replaced", or files are
            written into a folder, which is "filled".
        commas: Whether a text with commas is several values.
        json: Whether a dictionary is a value, too, and becomes its JSON.
        without: Fields of a group that the function does not take.
        at_least: Smallest value.
        above: Bound that the value has to exceed.
        at_most: Largest value.
        below: Bound that the value has to stay under.
    """
    settings = dict(locals())
    del settings["default"], settings["kw_only"]
    given = {name: value for name, value in settings.items() if value is not None}
    return dataclasses.field(default=default, kw_only=kw_only, metadata=given)


def docstring(documented: Any) -> str:
    """Return the docstring of a class or function, without the indentation.

    With `python -OO` objects have none, and it is read from their file.
    """
    if sys.flags.optimize < 2:
        return inspect.getdoc(documented) or ""
    return _docstrings(documented.__module__).get(documented.__qualname__, "")


@functools.cache
def _docstrings(module: str) -> Mapping[str, str]:
    """Return the docstrings in the file of a module by the names of its classes and functions."""
    source = inspect.getsource(sys.modules[module])
    # From Python 3.14 on, `ast.parse` removes docstrings, too.
    tree: Any = compile(source, module, "exec", ast.PyCF_ONLY_AST, optimize=0)
    kinds = ast.ClassDef, ast.FunctionDef
    return {
        each.name: ast.get_docstring(each) or "" for each in tree.body if isinstance(each, kinds)
    }


def described(documented: str, section: str) -> Mapping[str, str]:
    """Return the text of each name in a section of a docstring, such as "Args"."""
    lines = documented.partition(f"{section}:\n")[2].splitlines()
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


# Type checkers see no frozen classes: mypy would take fields that a class inherits for the type
# that they are given as.
@dataclass_transform(kw_only_default=True, field_specifiers=(option,))
class Options:
    """Values of options, which are checked when they are set. Subclasses are frozen dataclasses."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]
    __signature__: ClassVar[inspect.Signature]

    def __init_subclass__(cls) -> None:
        """Make a dataclass of a subclass."""
        before, heading, own = docstring(cls).partition("Attributes:\n")
        helps = {
            name: text
            for base in cls.__bases__
            for name, text in described(base.__doc__ or "", "Attributes").items()
        }
        for name in described(heading + own, "Attributes"):
            helps.pop(name, None)
        inherited = "".join(f"    {name}: {text}\n" for name, text in helps.items())
        cls.__doc__ = before + heading + inherited + own
        dataclasses.dataclass(frozen=True, kw_only=True, repr=False)(cls)
        cls.__init__ = suggest_keywords(cls.__init__)  # type: ignore[method-assign]
        _, *found = inspect.signature(cls.__init__).parameters.values()
        cls.__signature__ = inspect.Signature(
            [each.replace(annotation=as_given(each.annotation)) for each in found]
        )

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            UserInputError: A value is not allowed, or two options contradict each other.
        """
        kind: type = type(self)
        for each in own_options(kind):
            value = _converted(each, getattr(self, each.field))
            object.__setattr__(self, each.field, value)
            _check(each, value)
        for name, (group, without) in groups_of(kind).items():
            value = getattr(self, name)
            if not isinstance(value, group):
                raise UserInputError(
                    f"`{name}` must be a `qdqbert.{group.__name__}`, got {value!r:.100} "
                    f"({type(value).__name__}).",
                    argument=name,
                )
            for field in value.given().keys() & without:
                raise UserInputError(
                    f"`{field}` of `{name}` does not apply here. Leave it out.", argument=name
                )
        _check_outputs(self)

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


class Declared(NamedTuple):
    """An option as it was declared.

    Attributes:
        name: Name in messages, which no other option of the function has.
        field: Name of the field.
        parameter: Parameter of the function: a group, or the option itself.
        type: Type, without `None`.
        is_optional: Whether `None` is allowed.
        default: The default; `dataclasses.MISSING` if the option is required.
        help: Text of the help.
        group: Class that declares it.
        settings: Arguments of `option`.
        is_path: Whether a value can be a path.
    """

    name: str
    field: str
    parameter: str
    type: Any
    is_optional: bool
    default: Any
    help: str
    group: type
    settings: Mapping[str, Any]
    is_path: bool = False

    @property
    def can_be_off(self) -> bool:
        """Whether a flag turns it off: it is on by default, or its default depends on the model."""
        return self.default is True or (self.type is bool and self.is_optional)

    @property
    def flag(self) -> str:
        """Name on the command line, without dashes."""
        return self.settings.get("flag") or self.name.replace("_", "-")

    @property
    def choices(self) -> tuple[Any, ...]:
        """Values that are allowed, empty if they are not listed."""
        return get_args(self.item_type) if get_origin(self.item_type) is Literal else ()

    @property
    def bounds(self) -> Mapping[str, Number]:
        """Bounds of the value, by the arguments of `option`."""
        return {name: self.settings[name] for name in _BOUNDS if name in self.settings}

    @property
    def bounds_in_words(self) -> str:
        """The bounds for a message; empty if there are none."""
        words = (f"{name.replace('_', ' ')} {bound}" for name, bound in self.bounds.items())
        return " and ".join(words)

    @property
    def is_sequence(self) -> bool:
        """Whether the option has several values."""
        return get_origin(self.type) is tuple

    @property
    def is_mapping(self) -> bool:
        """Whether the option has values by name."""
        return get_origin(self.type) is Mapping

    @property
    def item_type(self) -> Any:
        """Type of one of several values."""
        return get_args(self.type)[0] if self.is_sequence else self.type

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
    """Return the options of a function: its own first, then its groups' in their order."""
    found = [each for each in own_options(options) if not each.settings.get("python_only")]
    for parameter, (group, without) in groups_of(options).items():
        found += [
            each._replace(parameter=parameter)
            for each in own_options(group)
            if each.field not in without
        ]
    return tuple(found)


@functools.cache
def own_options(options: type) -> tuple[Declared, ...]:
    """Return the options of a class that are in no group."""
    found = []
    helps, types_of, hints = helps_of(options), types_read(options), typing.get_type_hints(options)
    for field in _own_first(options):
        if field.name in groups_of(options):
            continue
        kind, is_optional = _without_none(types_of[field.name])
        declared = Declared(
            name=field.metadata.get("flat", field.name),
            field=field.name,
            parameter=field.name,
            type=kind,
            is_optional=is_optional,
            default=field.default,
            help=helps.get(field.name, ""),
            group=_declaring_class(options, field.name),
            settings=field.metadata,
            is_path=_has_path(hints[field.name]),
        )
        found.append(declared)
    return tuple(found)


def _has_path(hint: Any) -> bool:
    return hint is Path or any(map(_has_path, get_args(hint)))


def _own_first(options: type) -> list[dataclasses.Field[Any]]:
    """Return the fields that a class adds, and then the fields of its bases."""
    classes = options.__mro__
    return sorted(
        dataclasses.fields(options),
        key=lambda field: classes.index(_declaring_class(options, field.name)),
    )


def types_read(options: type) -> Mapping[str, Any]:
    """Return the types of the fields of a class, as they are read."""
    hints = typing.get_type_hints(options)
    return {
        name: get_args(hint)[1] if get_origin(hint) is Converted else hint
        for name, hint in hints.items()
    }


def helps_of(options: type) -> Mapping[str, str]:
    """Return the help of each field of a class."""
    return described(options.__doc__ or "", "Attributes")


@functools.cache
def groups_of(options: type) -> Mapping[str, tuple[Any, tuple[str, ...]]]:
    """Return the groups among the fields of a class, with their fields that it does not take."""
    hints = types_read(options)
    return {
        field.name: (kind, field.metadata.get("without", ()))
        for field in _own_first(options)
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
    groups = groups_of(options)
    return arguments | {name: groups[name][0](**given) for name, given in fields.items()}


def _converted(option: Declared, value: Any) -> Any:
    """Return a value in the type of its option.

    Paths, devices and numbers of columns become strings, sequences tuples, and data in memory
    `Rows`. A URL of this machine becomes a path.

    Raises:
        UserInputError: The scheme of a URL is not known, or its package is not installed.
    """
    if option.is_path:
        value = placed(option, value)
    if isinstance(value, Path) or (option.name.endswith("_column") and type(value) is int):
        value = str(value)
    if option.name == "device":
        return device_name(value)
    if Rows in get_args(option.type):
        return as_rows(value) or value
    if option.settings.get("json") and isinstance(value, Mapping):
        return _json_of(option, value)
    if option.is_sequence and value is not None:
        if option.settings.get("commas") and isinstance(value, str):
            value = [part.strip() for part in value.split(",") if part.strip()]
        is_item = isinstance(value, str) or not isinstance(value, Iterable)
        items = (value,) if is_item else value
        return tuple(str(item) if isinstance(item, Path) else plain(item) for item in items)
    return value


def _json_of(option: Declared, value: Mapping[str, Any]) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise UserInputError(
            f"`{option.name}` cannot be written as JSON: {error}. Pass texts, lists and "
            "dictionaries.",
            argument=option.name,
        ) from error


def placed(option: Declared, value: Any) -> Any:
    """Return paths as they are, and URLs in their usual form, or as paths of this machine.

    Raises:
        UserInputError: The scheme of a URL is not known, or its package is not installed.
    """
    if option.is_sequence and isinstance(value, list | tuple):
        return [placed(option, each) for each in value]
    if not isinstance(value, str | Path):
        return value
    with naming(option.name):
        place = place_of(str(value))
    # An output that ends with a slash is a folder.
    return f"{place}{'/' * str(value).endswith('/')}" if is_url(value) else value


def _check(option: Declared, value: Any) -> None:
    """Check the type, the choice and the bounds of a value.

    Raises:
        UserInputError: One of them is wrong.
    """
    if value is None and option.is_optional:
        return
    for item in value if option.is_sequence else (value,):
        _check_type(option, item)
        if option.is_path and item == "":
            raise UserInputError(f"`{option.name}` is empty. Pass a path.", argument=option.name)
        if option.is_mapping and not all(isinstance(each, str) for each in (*item, *item.values())):
            raise UserInputError(
                f"`{option.name}` must be a dictionary of names, got {item!r:.100}.",
                argument=option.name,
            )
        if option.is_path and isinstance(item, str) and not is_utf8(item):
            raise UserInputError(
                f"`{option.name}={item!r}` is not UTF-8. Rename the file or folder.",
                argument=option.name,
            )
        if option.is_path and isinstance(item, str) and "writes" not in option.settings:
            with naming(option.name):
                check_input_place(item, UserInputError)
        if option.choices and item not in option.choices:
            raise UserInputError(
                f"`{option.name}={item!r}` is unknown. Choose one of: "
                f"{', '.join(map(str, option.choices))}.",
                argument=option.name,
            )
        if not all(_BOUNDS[name](item, bound) for name, bound in option.bounds.items()):
            raise UserInputError(
                f"`{option.name}` must be {option.bounds_in_words}, got {item}.",
                argument=option.name,
            )


def _check_outputs(options: Options) -> None:
    """Refuse outputs that cannot be written, or that would overwrite another path of the call.

    Raises:
        UserInputError: There is one.
    """
    kind: type = type(options)
    declared = declared_options(kind)
    for each in declared:
        writes, output = each.settings.get("writes"), each.value(options)
        if writes is None or output is None or (each.settings.get("takes_dash") and output == "-"):
            continue
        place = place_of(output)
        if isinstance(place, Path):
            check_output_place(place, each.name)
        elif place.url.startswith("http"):
            raise UserInputError(
                f"`{each.name}={output!r}` is an address of the web, where nothing can be written. "
                "Pass a path of this machine, or a URL of object storage.",
                argument=each.name,
            )
        for other in declared:
            if not other.is_path or "writes" in other.settings:
                continue
            value = other.value(options)
            for item in value if other.is_sequence else (value,):
                if isinstance(item, str | Downloaded) and _is_overwritten(
                    place_of(str(item)), place, writes
                ):
                    raise overwrites(each.name, output, f"`{other.name}={item!r}`")


def _is_overwritten(path: Place, output: Place, writes: str) -> bool:
    if not isinstance(path, Path) or not isinstance(output, Path):
        is_within_it = writes == "replaced" and str(path).startswith(f"{output}/")
        return is_within_it or path == output
    # Names of the hub and patterns are no paths.
    if not os.path.lexists(path) or not output.exists():
        return False
    return is_within(path, output) if writes == "replaced" else path.samefile(output)


def overwrites(argument: str, output: str, what: str) -> OutputExistsError:
    """Return the error about an output that would overwrite something else of the call."""
    return OutputExistsError(
        f"`{argument}={output!r}` would overwrite {what}. Pass another `{argument}`.",
        argument=argument,
    )


# Words for the accepted values, by the type of the option.
_KINDS: Mapping[Any, tuple[tuple[type, ...], str]] = {
    str: ((str,), "a string or a path"),
    bool: ((bool,), "True or False"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    bool | str: ((bool, str), "True, False or a string"),
    str | Downloaded: ((str, Downloaded), "a string or a path"),
    str | SavedModel | Downloaded: (
        (str, SavedModel, Downloaded),
        "a path, or a model with its tokenizer",
    ),
    str | Downloaded | Rows: ((str, Downloaded, Rows), "a path, or a list, DataFrame or data set"),
    Mapping: ((Mapping,), "a dictionary of names"),
}


def _check_type(option: Declared, value: Any) -> None:
    kind = option.item_type
    origin = None if isinstance(kind, types.UnionType) else get_origin(kind)
    accepted, words = _KINDS.get(origin or kind, ((object,), ""))
    if kind is str and not option.is_path:
        words = "a string"
    # Those that are converted to strings.
    if option.name.endswith("_column"):
        words = "a string or a whole number"
    if option.settings.get("json"):
        words = "a dictionary, or a string of JSON"
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
    if Rows in get_args(kind):
        return rows_hint(value)
    if kind in (str, str | Downloaded) and hasattr(value, "save_pretrained"):
        return (
            " Save it, and its tokenizer, into one folder with `save_pretrained(folder)`, and pass "
            "the folder."
        )
    return ""


def command_line(command: str, options: Any) -> str:
    """Return the command line that is equivalent to some options.

    Of the options, `model` is an argument without a flag.
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
        value = tuple(f"{name}={item}" for name, item in value.items())
    for item in value if isinstance(value, tuple) else (value,):
        yield from (flag, str(item))


def _declaring_class(options: type, name: str) -> type:
    return next(each for each in options.__mro__ if name in vars(each).get("__annotations__", {}))


def _without_none(hint: Any) -> tuple[Any, bool]:
    if isinstance(hint, types.UnionType) or get_origin(hint) is typing.Union:
        kinds = [each for each in get_args(hint) if each is not types.NoneType]
        kind = functools.reduce(operator.or_, kinds)
        return kind, len(kinds) < len(get_args(hint))
    return hint, False
