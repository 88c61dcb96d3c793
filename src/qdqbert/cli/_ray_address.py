"""Parse `--ray`, whose value can be left out."""

from __future__ import annotations

import re

from qdqbert.integrations.ray_cluster import ANY_CLUSTER

# An address of Ray: `HOST:PORT`, `ray://HOST:PORT`, or one of its words. A folder or another option
# can follow the flag, too.
_RAY_ADDRESS = re.compile(r"(ray://)?[\w.\-\[\]:]+:\d+|auto|local")


def with_ray_address(words: list[str]) -> list[str]:
    """Add "auto" to `--ray` if no address follows."""
    found = []
    for word, following in zip(words, [*words[1:], ""], strict=True):
        is_bare = word == "--ray" and not _RAY_ADDRESS.fullmatch(following)
        found.append(f"{word}={ANY_CLUSTER}" if is_bare else word)
    return found
