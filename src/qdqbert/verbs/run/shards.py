"""The division of an input among processes that do not know of each other, as in array jobs."""

from __future__ import annotations

import dataclasses
import os
import re

from qdqbert.common.errors import UserInputError

_SHARD = re.compile(r"(auto|\d+)/(\d+)")
# Variables with the number of a process, from 0: of an indexed job of Kubernetes, and of an array
# job of SLURM.
_VARIABLES = ("JOB_COMPLETION_INDEX", "SLURM_ARRAY_TASK_ID")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shard:
    """A part of an input that a process runs.

    Attributes:
        index: Its number, from 0.
        count: Number of all parts.
    """

    index: int
    count: int

    @property
    def name(self) -> str:
        """How files are named after it: `00003-of-00100`."""
        return f"{self.index:05d}-of-{self.count:05d}"

    def __str__(self) -> str:
        """Return the value of the option `shard`."""
        return f"{self.index}/{self.count}"


def shard_of(value: str) -> Shard:
    """Return the shard that the option `shard` means.

    Args:
        value: "3/100" is the fourth of 100. "auto/100" reads its number from the environment.

    Raises:
        UserInputError: It is no shard, or no variable has the number.
    """
    found = _SHARD.fullmatch(value)
    if found is None:
        raise _wrong(value, "it must be INDEX/COUNT, as '3/100', or 'auto/COUNT'")
    index, count = found.groups()
    if index == "auto":
        given = [(name, os.environ[name]) for name in _VARIABLES if name in os.environ]
        if not given:
            raise _wrong(value, f"neither {' nor '.join(_VARIABLES)} is set")
        name, index = given[0]
        if not index.isdecimal():
            raise _wrong(value, f"{name} is {index!r}, and no number")
    if not int(index) < int(count) < 10**5:
        raise _wrong(value, f"{count} shards are 0 to {int(count) - 1}, got {index}")
    return Shard(index=int(index), count=int(count))


def _wrong(value: str, reason: str) -> UserInputError:
    return UserInputError(f"`shard={value!r}`: {reason}.", argument="shard")
