"""Options of `verify`."""

from __future__ import annotations

from qdqbert.common.objects import InputOption
from qdqbert.common.options.declared import option
from qdqbert.pipeline.calls import Call


class VerifyOptions(Call):
    """Common options.

    Attributes:
        model: Folder that `quantize` wrote, or its URL.
    """

    model: InputOption = option(kw_only=False)
