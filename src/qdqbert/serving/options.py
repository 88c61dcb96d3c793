"""Options of a server, wherever it runs."""

from __future__ import annotations

import logging
import os
import re

from qdqbert.common.errors import UserInputError
from qdqbert.common.objects import Several, SeveralPaths
from qdqbert.common.options.declared import option
from qdqbert.runtime.options import EngineChoice

# As browsers send it.
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\s]+")
_KEY_VARIABLE = "QDQBERT_API_KEY"

_LOGGER = logging.getLogger("qdqbert")


class ServerOptions(EngineChoice):
    """Common options.

    Attributes:
        models: Folders that `quantize` wrote, or float checkpoints; or their URLs, or names on the
            hub: OWNER/NAME or NAME. Requests name a model by the name of its folder.
        threads: Number of threads of each model. By default one for each core.
        api_key: Key that requests need, as `Authorization: Bearer KEY`. By default the environment
            variable `QDQBERT_API_KEY`, which other users of the machine cannot see. Without either,
            no key is needed.
        allow_origin: Origin whose pages may use the server from a browser, such as
            "https://example.org"; "*" for all. By default none.
        max_body: Largest body of a request in bytes. A larger body gets status 413.
        max_texts: Largest number of inputs in a request, and of labels that it names. A text that
            is run with each of its labels or choices counts as often. A request with more gets
            status 413.
        max_queued: Largest number of inputs that wait for a model. While more are waiting, requests
            get status 429, with the time to wait.
    """

    models: SeveralPaths = option(kw_only=False)
    threads: int | None = option(default=None, at_least=1)
    api_key: str | None = None
    allow_origin: Several[str] = option(default=())
    max_body: int = option(default=2_000_000, at_least=1)
    max_texts: int = option(default=2048, at_least=1)
    max_queued: int = option(default=16_384, at_least=1)

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        if not self.models:
            raise UserInputError("`models` is missing. Name at least one.", argument="models")
        if self.api_key is not None:
            _check_key(self.api_key, "`api_key`", argument="api_key")
        for origin in self.allow_origin:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise UserInputError(
                    f"`allow_origin={origin!r}` is no origin. Expected a scheme and a host without "
                    'a path, such as "https://example.org" or "http://localhost:3000", or "*".',
                    argument="allow_origin",
                )

    @property
    def key(self) -> str | None:
        """The key that requests need, by default from the environment; `None` for no key.

        Raises:
            UserInputError: No client can send the key of the environment.
        """
        if self.api_key is not None:
            return self.api_key
        key = os.environ.get(_KEY_VARIABLE)
        if key:
            _check_key(key, f"The environment variable `{_KEY_VARIABLE}`")
        return key or None

    def warn_of_empty_key(self) -> None:
        """Say so if no key is needed because its environment variable is empty."""
        if self.api_key is None and os.environ.get(_KEY_VARIABLE) == "":
            _LOGGER.warning(
                "The environment variable %s is empty: requests need no key.", _KEY_VARIABLE
            )


def _check_key(key: str, place: str, argument: str | None = None) -> None:
    """Refuse a key that clients cannot send in a header. Messages do not show it."""
    # Other letters have no encoding in headers that clients agree on.
    wrong = next((at for at, letter in enumerate(key) if not " " <= letter <= "~"), None)
    if not key:
        problem = "is empty, so that requests would need no key"
    elif not key.strip():
        problem = "has only blanks"
    elif key != key.strip():
        where = "starts" if key != key.lstrip() else "ends"
        problem = f"{where} with a blank or a line end, which no client can send"
    elif wrong is not None:
        problem = (
            f"has a letter that no client can send (number {wrong + 1} of {len(key)}): only "
            "printable ASCII is allowed"
        )
    else:
        return
    advice = "Pass a key, or leave it out." if argument else "Set it to a key, or unset it."
    raise UserInputError(f"{place} {problem}. {advice}", argument=argument)
