"""Options of `doctor`: it has none."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """Common options."""
