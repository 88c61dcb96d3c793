"""Values of Arrow as text formats have them: values of JSON, and texts for all others.

Dates, times and decimals keep all their digits, whatever Python's own types can hold. Neither
pandas nor a database of time zones is needed.
"""

from __future__ import annotations

import base64
import datetime
import functools
import re
import uuid
import zoneinfo
from typing import TYPE_CHECKING, Any

import numpy as np

from qdqbert.common.json_files import repeated

if TYPE_CHECKING:
    import pyarrow as pa

# Digits of a second in each unit.
_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}

_DAY_SECONDS = 86_400

# A zone that is a number of hours and minutes.
_FIXED_ZONE = re.compile(r"([+-])(\d\d):?(\d\d)")

# Days of the years 1 to 9999, for which zones have rules, from 1970-01-01.
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896


def as_json(array: pa.Array) -> list[Any]:
    """Return the values of a column as JSON has them.

    Timestamps and times are written as in ISO 8601, with as many digits as their unit has. With a
    time zone they have its offset, which is +00:00 if the zone is not known here. Durations are
    seconds as in ISO 8601, `PT1.5S`. Bytes are base64. Decimals have all their digits. A map is a
    list of pairs.
    """
    if _is_json(array.type):
        return list(array.to_pylist())
    return [_value(each) for each in array]


def _is_json(kind: pa.DataType) -> bool:
    """Return whether Python has the values of a type as JSON has them."""
    import pyarrow as pa

    types = pa.types
    if types.is_struct(kind):
        return all(_is_json(field.type) for field in kind)
    if _is_list(kind):
        return _is_json(kind.value_type)
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _is_json(kind.value_type)
    return bool(
        types.is_boolean(kind)
        or types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_null(kind)
        or is_text(kind)
    )


def _is_list(kind: pa.DataType) -> bool:
    import pyarrow as pa

    types = pa.types
    return bool(
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
    )


def is_text(kind: pa.DataType) -> bool:
    """Return whether the values of a type are texts."""
    import pyarrow as pa

    types = pa.types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def repeated_field(kind: pa.DataType) -> str | None:
    """Return the name that two fields of an object have, which JSON cannot hold, or `None`."""
    import pyarrow as pa

    fields = [kind.field(index) for index in range(kind.num_fields)]
    if pa.types.is_struct(kind):
        names = [field.name for field in fields]
        if (twice := repeated(names)) is not None:
            return twice
    return next((found for each in fields if (found := repeated_field(each.type))), None)


def levels(kind: pa.DataType) -> int:
    """Return the number of types that are in one another."""
    fields = [kind.field(index) for index in range(kind.num_fields)]
    return 1 + max((levels(each.type) for each in fields), default=0)


def has_empty_object(kind: pa.DataType) -> bool:
    """Return whether a type has objects without fields."""
    import pyarrow as pa

    if pa.types.is_struct(kind) and not kind.num_fields:
        return True
    return any(has_empty_object(kind.field(index).type) for index in range(kind.num_fields))


def _value(scalar: pa.Scalar) -> Any:
    """Return a value of Arrow as JSON has it."""
    import pyarrow as pa

    types, kind = pa.types, scalar.type
    if not scalar.is_valid:
        return None
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _value(scalar.value)
    if isinstance(kind, pa.BaseExtensionType):
        if kind.extension_name == "arrow.uuid":
            return str(uuid.UUID(bytes=scalar.value.as_py()))
        value = _value(scalar.value)
        return bool(value) if kind.extension_name == "arrow.bool8" else value
    if types.is_map(kind):
        return [[_value(each["key"]), _value(each["value"])] for each in scalar.values]
    if _is_list(kind):
        return [_value(each) for each in scalar.values]
    if types.is_struct(kind):
        return {field.name: _value(scalar[index]) for index, field in enumerate(kind)}
    if types.is_decimal(kind):
        return format(scalar.as_py(), "f")
    if types.is_date(kind):
        ticks = scalar.value
        return _date(ticks if types.is_date32(kind) else ticks // (_DAY_SECONDS * 1000))
    if types.is_timestamp(kind):
        return _timestamp(scalar.value, kind.unit, kind.tz)
    if types.is_time(kind):
        return _time(scalar.value, kind.unit)
    if types.is_duration(kind):
        return _duration(scalar.value, kind.unit)
    value = scalar.as_py()
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _date(days: int) -> str:
    """Return a date; numpy knows all years."""
    return str(np.datetime64(days, "D"))


def _seconds(ticks: int, unit: str) -> tuple[int, str]:
    """Return whole seconds, and the digits after the point with the point."""
    digits = _DIGITS[unit]
    seconds, rest = divmod(ticks, 10**digits)
    return seconds, f".{rest:0{digits}d}" if digits else ""


def _time(ticks: int, unit: str) -> str:
    seconds, fraction = _seconds(ticks, unit)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02d}:{minutes:02d}:{seconds:02d}{fraction}"


def _timestamp(ticks: int, unit: str, zone: str | None) -> str:
    per_second = 10 ** _DIGITS[unit]
    offset = 0 if zone is None else _offset(zone, ticks // per_second)
    days, rest = divmod(ticks + offset * per_second, _DAY_SECONDS * per_second)
    return f"{_date(days)}T{_time(rest, unit)}{'' if zone is None else _offset_text(offset)}"


def _duration(ticks: int, unit: str) -> str:
    seconds, fraction = _seconds(abs(ticks), unit)
    return f"{'-' if ticks < 0 else ''}PT{seconds}{fraction}S"


def _offset(zone: str, seconds: int) -> int:
    """Return the seconds that a zone is ahead of UTC at a time; 0 if that is not known."""
    rules = _rules(zone)
    if rules is None or not _FIRST_DAY < seconds // _DAY_SECONDS < _LAST_DAY:
        return 0
    then = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(seconds=seconds)
    offset = then.astimezone(rules).utcoffset()
    assert offset is not None, "rules have an offset for each time"
    # ISO 8601 has no seconds in offsets, which local times before zones have.
    return 0 if offset.seconds % 60 else int(offset.total_seconds())


@functools.cache
def _rules(zone: str) -> datetime.tzinfo | None:
    fixed = _FIXED_ZONE.fullmatch(zone)
    if fixed is not None:
        ahead = datetime.timedelta(hours=int(fixed[2]), minutes=int(fixed[3]))
        return datetime.timezone(-ahead if fixed[1] == "-" else ahead)
    try:
        return zoneinfo.ZoneInfo(zone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return None


def _offset_text(offset: int) -> str:
    hours, minutes = divmod(abs(offset) // 60, 60)
    return f"{'-' if offset < 0 else '+'}{hours:02d}:{minutes:02d}"
