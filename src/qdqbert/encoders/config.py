"""`config.json`, whose fields are checked when they are read."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from qdqbert.encoders.model import Activation
from qdqbert.errors import CheckpointError

# Names of transformers' activation functions.
_ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": "gelu",
    "gelu_fast": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_python": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}
_MISSING: Any = object()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """A checkpoint's `config.json`.

    Attributes:
        values: Its content.
        path: Its path, for messages.
    """

    values: Mapping[str, Any]
    path: str = "config.json"

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def renamed(self, fields: Mapping[str, str]) -> Config:
        """Return the config with the fields of older files under today's names.

        A field that the file has under both names keeps today's value.
        """
        old = {new: self.values[name] for name, new in fields.items() if name in self.values}
        return dataclasses.replace(self, values={**old, **self.values})

    def integer(self, name: str, default: int = _MISSING) -> int:
        """Return a whole number that is not negative.

        Raises:
            CheckpointError: The field is something else, or is missing and has no default.
        """
        found = self._field(name, default)
        if type(found) is not int or not 0 <= found < 2**31:
            raise self._wrong(name, found, "a whole number from 0")
        return found

    def number(self, name: str, default: float = _MISSING) -> float:
        """Return a number.

        Raises:
            CheckpointError: The field is something else, or is missing and has no default.
        """
        found = self._field(name, default)
        if type(found) not in (int, float) or not abs(found) < 1e30:
            raise self._wrong(name, found, "a number")
        return float(found)

    def flag(self, name: str, default: bool = _MISSING) -> bool:
        """Return a truth value.

        Raises:
            CheckpointError: The field is something else, or is missing and has no default.
        """
        found = self._field(name, default)
        if not isinstance(found, bool):
            raise self._wrong(name, found, "true or false")
        return found

    def text(self, name: str, default: str = _MISSING) -> str:
        """Return a string.

        Raises:
            CheckpointError: The field is something else, or is missing and has no default.
        """
        found = self._field(name, default)
        if not isinstance(found, str):
            raise self._wrong(name, found, "a string")
        return found

    def activation(self, name: str, default: str = _MISSING) -> Activation:
        """Return an activation function by transformers' name.

        Raises:
            CheckpointError: The field is missing, or the engine does not have the function.
        """
        found = self.text(name, default)
        if found not in _ACTIVATIONS:
            raise self._wrong(name, found, f"one of {', '.join(_ACTIVATIONS)}")
        return _ACTIVATIONS[found]

    def refuse(self, name: str, reason: str) -> CheckpointError:
        """Return the error for an unsupported value of a field."""
        return CheckpointError(f"`{name}={self.values.get(name)!r:.80}` in {self.path}: {reason}")

    def _field(self, name: str, default: Any) -> Any:
        # transformers takes null for the default.
        found = self.values.get(name)
        if found is None:
            if default is _MISSING:
                raise CheckpointError(f"{self.path} has no field `{name}`.")
            return default
        return found

    def _wrong(self, name: str, found: Any, expected: str) -> CheckpointError:
        return CheckpointError(
            f"`{name}={found!r:.80}` in {self.path} is not supported; expected {expected}."
        )
