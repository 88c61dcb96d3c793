"""Write the table of licences.md: the packages that this one depends on, and their licences.

    python docs/licence_table.py

A package that is not installed keeps its row.
"""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

PAGE = Path(__file__).parent / "licences.md"
_PROJECT = Path(__file__).parent.parent / "pyproject.toml"
_ROW = re.compile(r"^\| ([\w-]+) \| (.+) \| (.+) \|$", re.MULTILINE)
_RULE = "|---|---|---|\n"
_LONGEST = 40


def dependencies() -> dict[str, str]:
    """Return which extras need each package: `always`, or their names."""
    project = tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"]
    needed: dict[str, list[str]] = {}
    for extra, requirements in {
        "always": project["dependencies"],
        **project["optional-dependencies"],
    }.items():
        for each in requirements:
            name = re.match(r"[\w-]+", each)
            if name and name[0] != project["name"]:
                needed.setdefault(name[0].replace("_", "-"), []).append(extra)
    return {name: ", ".join(needed[name]) for name in sorted(needed)}


def licence_of(package: str) -> str | None:
    """Return the licence that a package states; `None` if it is not installed."""
    try:
        found = metadata.metadata(package)
    except metadata.PackageNotFoundError:
        return None
    if expression := found.get("License-Expression"):
        return expression
    classified = [
        each.rpartition(" :: ")[2]
        for each in found.get_all("Classifier", [])
        if each.startswith("License :: ")
    ]
    text = (found.get("License") or "").partition("\n")[0].strip()
    return ", ".join(classified) or text[:_LONGEST]


def rows() -> dict[str, tuple[str, str]]:
    """Return the licence of each package of the page, and which extras need it."""
    _, _, text = PAGE.read_text(encoding="utf-8").partition(_RULE)
    return {each[1]: (each[2], each[3]) for each in _ROW.finditer(text)}


def main() -> None:
    """Replace the rows of the page."""
    old, needed = rows(), dependencies()
    found = {name: licence_of(name) or old.get(name, ("",))[0] for name in needed}
    if missing := [name for name, licence in found.items() if not licence]:
        raise SystemExit(f"Install these packages first: {', '.join(missing)}")
    lines = [f"| {name} | {found[name]} | {needed[name]} |" for name in needed]
    text = PAGE.read_text(encoding="utf-8")
    head, _, _ = text.partition(_RULE)
    PAGE.write_text(head + _RULE + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
