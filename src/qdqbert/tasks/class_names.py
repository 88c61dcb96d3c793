"""Find which classes the labels of a data set mean.

A label is the name of a class, as the model's config spells it. If some labels are not, they can be
numbers: of classes (`0` is 'negative'), or in the names of classes (`1` is '1 star'). All numbers
of a data set are read in the same way, which a notice names.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from qdqbert.common.errors import DataFileError
from qdqbert.data.rows.columns import is_number
from qdqbert.data.rows.data import Dataset, check_each, labels_place
from qdqbert.encoders.task_kinds import NO_NAME

# Number of classes that an error lists, and of labels that a notice lists.
_MOST_NAMES = 40
_MOST_LABELS = 5

_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")
_NUMBER_IN_NAME = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_TRUTH = {"false": 0.0, "true": 1.0}

# What programs write where a value is missing: always, and where the other values are numbers.
_MISSING = {"nan", "-nan", "<na>", "#n/a", "#n/a n/a", "#na"}
_MISSING_NUMBER = {"na", "n/a", "none", "null", "nil", "nat", "-", "--", "?", ".", "inf", "-inf"}

_BY_NUMBER = "the numbers of classes"
_IN_NAME = "the numbers in the names of classes"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Naming:
    """How the labels of a data set are read.

    Attributes:
        names: Name of the class, by label, of labels that are not the name themselves.
        notices: Sentences for the user about these; empty if there are none.
    """

    names: Mapping[str, str]
    notices: tuple[str, ...]


def name_classes(
    labels: Iterable[str], id2label: Mapping[int, str], *, where: str, noun: str = "Label"
) -> Naming:
    """Return the names of the classes that the labels of a data set mean.

    Labels that mean no class are left out, as an error about one of them names its row.

    `labels` have no spaces around them. Messages call the data `where`, and a label a `noun`.

    Raises:
        DataFileError: Numbers can be read in two ways, or count from 1 where classes count from 0.
    """
    given = sorted(set(labels))
    named = {label: index for label in given if (index := class_named(label, id2label)) is not None}
    numbers = {
        label: number for label in given if (number := _number_of(label, id2label)) is not None
    }
    numbered = {
        label: int(found[1])
        for label in given
        if label not in named
        and (found := NO_NAME.fullmatch(label)) is not None
        and int(found[1]) in id2label
    }
    way = _BY_NUMBER
    if not numbers.keys() <= named.keys():
        way, table = _choose_way(numbers, id2label, where=where, noun=noun)
        numbered |= {label: table[number] for label, number in numbers.items() if number in table}
    classes = named | numbered
    names = {label: _name_of(index, id2label) for label, index in classes.items()}
    return Naming(
        names={label: name for label, name in names.items() if name != label},
        notices=_notices(way, numbered, set(classes.values()), id2label, noun) if numbered else (),
    )


def class_named(label: str, id2label: Mapping[int, str]) -> int | None:
    """Return the class with a name; `None` if there is none, or several.

    Case and spacing count only if they tell two names apart. Names that are numbers are compared
    by value: `1.0` is '1'.
    """
    for key in (str, _folded, _value):
        wanted = key(label)
        found = [index for index, name in id2label.items() if key(name) == wanted]
        if wanted is not None and found:
            return int(found[0]) if len(found) == 1 else None
    return None


def class_of(label: str, id2label: Mapping[int, str], *, noun: str = "Label") -> int:
    """Return the class of a label, which is its name or else its number.

    Raises:
        DataFileError: The model does not have such a class, or several with the name. The message
            calls the label a `noun`.
    """
    label = label.strip()
    named = class_named(label, id2label)
    if named is not None:
        return named
    number = _value(label)
    if number is not None and number in id2label:
        return int(number)
    same = [str(index) for index, name in id2label.items() if _folded(name) == _folded(label)]
    if same:
        raise DataFileError(
            f"{noun} {label!r} is the name of several classes of the model: {', '.join(same)}. "
            "Write their numbers instead, or give each class a name of its own in `id2label` of "
            "the checkpoint's config.json."
        )
    raise DataFileError(
        f"{noun} {label!r} is not one of the model's: {listed_classes(id2label)}. Rename it in the "
        "data, name another column with `label_column`, or set `id2label` in the checkpoint's "
        "config.json."
    )


def new_names(dataset: Dataset, names_of: Callable[[Any], Iterable[str]]) -> set[str]:
    """Return the labels of a data set, which become the classes of a new head, or its scores.

    Raises:
        DataFileError: There are fewer than two labels, one of them stands for a missing value, or
            most of them are scores and one is not.
    """
    names: set[str] = set()
    check_each(dataset, lambda example: names.update(names_of(example)))
    if len(names) < 2:
        only = f"name one class only, {names.pop()!r}" if names else "name no class"
        raise DataFileError(
            f"The labels of {labels_place(dataset)} {only}; expected two or more, to tell apart. "
            "Add examples of other classes, or name another column with `label_column`.",
            argument="label_column",
        )
    numbers = {name for name in names if is_number(name)}
    words = {name for name in names - numbers if name.lower() not in _MISSING | _MISSING_NUMBER}
    are_scores = len(numbers) > len(words) and any(not float(each).is_integer() for each in numbers)
    missing = _MISSING if words or not numbers else _MISSING | _MISSING_NUMBER
    odd = {name for name in names - numbers if are_scores or name.lower() in missing}

    def check(example: Any) -> None:
        found = next((name for name in names_of(example) if name in odd), None)
        if found is not None:
            others = "numbers" if numbers else "names of classes"
            raise DataFileError(
                f"Label {found!r} would become a class of its own beside {len(names) - len(odd)} "
                f"{others}. Correct it, or remove the row."
            )

    check_each(dataset, check)
    return names


def sorted_names(names: Iterable[str]) -> list[str]:
    """Return names of classes, sorted; integers first, by their value."""
    return sorted(
        names, key=lambda name: (0, int(name), name) if name.isdecimal() else (1, 0, name)
    )


def plain_number(label: str) -> str:
    """Return a label that is a whole number without decimals, which pandas adds to them."""
    number = _value(label)
    return label if number is None or not number.is_integer() else str(int(number))


def listed_classes(id2label: Mapping[int, str]) -> str:
    """Return the numbers and names of classes for a message: 0 or 'no', 1 or 'yes'."""
    names = [f"{index} or {name!r}" for index, name in sorted(id2label.items())]
    return ", ".join(names[:_MOST_NAMES]) + (", …" if len(names) > _MOST_NAMES else "")


def _folded(text: str) -> str:
    return " ".join(text.split()).casefold()


def _value(text: str) -> float | None:
    return float(text) if _NUMBER.fullmatch(text) else None


def _number_of(label: str, id2label: Mapping[int, str]) -> float | None:
    """Return the number that a label is. Truth values are 0 and 1 if no class has another name."""
    has_no_names = all(
        NO_NAME.fullmatch(name) or _value(name) is not None for name in id2label.values()
    )
    if len(id2label) == 2 and has_no_names and label.lower() in _TRUTH:
        return _TRUTH[label.lower()]
    return _value(label)


def _choose_way(
    numbers: Mapping[str, float], id2label: Mapping[int, str], *, where: str, noun: str
) -> tuple[str, Mapping[float, int]]:
    """Return how numbers are read, in words and as classes by number."""
    by_number = {float(index): int(index) for index in id2label}
    in_name = _numbers_in_names(id2label)
    used = set(numbers.values())
    ways = {
        way: table
        for way, table in ((_IN_NAME, in_name), (_BY_NUMBER, by_number))
        if used <= table.keys()
    }
    odd = next((x for x in sorted(used) if len(ways) == 2 and in_name[x] != by_number[x]), None)
    if odd is not None:
        raise DataFileError(
            f"{noun}s of {where} can be {_IN_NAME} ({odd:g} for {id2label[in_name[odd]]!r}) or "
            f"{_BY_NUMBER} ({odd:g} for {id2label[by_number[odd]]!r}). Write the names instead.",
            argument="label_column",
        )
    if ways:
        return ways.popitem()
    if min(used) == 1 and max(used) == len(id2label):
        raise DataFileError(
            f"{noun}s of {where} count from 1 to {len(id2label)}, and the model's classes from 0: "
            f"{listed_classes(id2label)}. Subtract 1, or write the names.",
            argument="label_column",
        )
    fewest = min((in_name, by_number), key=lambda table: len(used - table.keys()))
    return (_IN_NAME if fewest is in_name else _BY_NUMBER), fewest


def _numbers_in_names(id2label: Mapping[int, str]) -> dict[float, int]:
    """Return the class by the only number in its name; empty unless these tell classes apart."""
    found: dict[float, int] = {}
    for index, name in id2label.items():
        listed = [name] if _NUMBER.fullmatch(name) else _NUMBER_IN_NAME.findall(name)
        if len(listed) != 1 or float(listed[0]) in found:
            return {}
        found[float(listed[0])] = int(index)
    return found


def _name_of(index: int, id2label: Mapping[int, str]) -> str:
    """Return the name of a class, or its number if another class has the same name."""
    name = id2label[index]
    return name if class_named(name, id2label) == index else str(index)


def _notices(
    way: str,
    numbered: Mapping[str, int],
    present: Collection[int],
    id2label: Mapping[int, str],
    noun: str,
) -> tuple[str, ...]:
    ordered = sorted(numbered.items(), key=lambda item: (item[1], item[0]))
    listed = [f"{label!r} is {id2label[index]!r}" for label, index in ordered[:_MOST_LABELS]]
    rest = ", …" if len(ordered) > _MOST_LABELS else ""
    notice = f"{noun}s are read as {way}: {', '.join(listed)}{rest}."
    first = min(id2label)
    if way == _IN_NAME or first in present:
        return (notice,)
    return (
        f"{notice} No {noun.lower()} is {id2label[first]!r}, number {first}. If yours count from "
        "1, write the names instead.",
    )
