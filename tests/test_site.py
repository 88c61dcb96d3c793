"""Build the documentation site, and check its pages as a browser reads them."""

from __future__ import annotations

import html.parser
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

import qdqbert
from qdqbert.cli._commands import COMMANDS
from qdqbert.common.options.declared import declared_options

DOCS = Path(__file__).parent.parent / "docs"
# The attributes that a browser loads a file for, by tag.
LOADED = {"script": "src", "img": "src", "iframe": "src", "link": "href", "source": "src"}
NARROW = 375
BROWSER = shutil.which("chromium")
# Shows each page in a frame as wide as a phone, and then lists those that can be scrolled sideways.
FRAMES = """
<iframe id="frame" width="WIDTH" height="700"></iframe>
<script>
const pages = PAGES, wide = [], frame = document.getElementById("frame");
frame.onload = () => {
  const root = frame.contentDocument.documentElement;
  if (root.scrollWidth > WIDTH) wide.push(pages[0] + " " + root.scrollWidth);
  pages.shift();
  if (pages.length) frame.src = pages[0];
  else document.title = "wide: " + JSON.stringify(wide);
};
frame.src = pages[0];
</script>
"""


class Page(html.parser.HTMLParser):
    """What a page links to, what it loads, and the names of its places."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.ids: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids.add(values.get("id", ""))
        if tag == "a":
            self.links.append(values.get("href", ""))
        # Links of the head between pages are not loaded.
        if tag != "link" or values.get("rel") in ("stylesheet", "icon", "preload"):
            self.loaded.append(values.get(LOADED.get(tag, ""), ""))


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """Return the folder of the site."""
    pytest.importorskip("furo", reason="the site needs pip install 'qdqbert[docs]'")
    folder = Path(tmp_path_factory.mktemp("site"))
    options = ("--fail-on-warning", "--keep-going", "--nitpicky", "--quiet")
    command = [sys.executable, "-m", "sphinx", *options, "-d", f"{folder}/cache", str(DOCS)]
    built = subprocess.run(
        [*command, f"{folder}/site"], capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    return folder / "site"


def pages(site: Path) -> Iterator[tuple[str, Page]]:
    for path in sorted(site.rglob("*.html")):
        yield path.relative_to(site).as_posix(), Page(path)


@pytest.mark.slow
def test_every_page_can_be_reached_from_the_first_one(site) -> None:
    found = dict(pages(site))
    reached, left = set(), ["index.html"]
    while left:
        name = left.pop()
        if name in reached:
            continue
        reached.add(name)
        for link in found[name].links:
            path = (site / name).parent / unquote(link.partition("#")[0])
            if not re.match(r"[a-z]+:", link) and path.suffix == ".html":
                left.append(path.resolve().relative_to(site.resolve()).as_posix())
    # The search is a form.
    assert set(found) - reached <= {"search.html"}
    assert {"tutorials/embeddings.html", "guides/run.html", "decisions/README.html"} <= reached


@pytest.mark.slow
def test_pages_load_nothing_from_elsewhere(site) -> None:
    loaded = {(name, each) for name, page in pages(site) for each in page.loaded if each}
    assert not [each for each in loaded if re.match(r"([a-z]+:)?//", each[1])]
    missing = [
        (name, each)
        for name, each in loaded
        if not each.startswith("data:")
        and not ((site / name).parent / each.partition("?")[0]).exists()
    ]
    assert loaded
    assert not missing
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert not re.findall(r"@import|url\(\s*['\"]?(?:[a-z]+:)?//", styles)


@pytest.mark.slow
def test_the_reference_has_each_option_of_each_command(site) -> None:
    ids = Page(site / "reference" / "command-line.html").ids
    expected = {
        f"cmdoption-qdqbert-{command.name}-{each.flag}"
        for command in COMMANDS
        for each in declared_options(command.options)
        if each.name not in command.positional
    }
    assert len(expected) > 100
    # An option that can be turned off has two spellings, and the first one is its name.
    assert expected - ids == set()


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="needs chromium")
def test_pages_fit_a_phone(site) -> None:
    names = [name for name, _ in pages(site)]
    frames = FRAMES.replace("PAGES", repr(names)).replace("WIDTH", str(NARROW))
    (site / "frames.html").write_text(frames)
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files")
    shown = subprocess.run(
        [BROWSER, *options, "--virtual-time-budget=60000", "--dump-dom", f"{site}/frames.html"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    (site / "frames.html").unlink()
    assert re.findall(r"<title>(.*?)</title>", shown.stdout) == ["wide: []"]


def test_the_reference_has_each_public_name() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in (DOCS / "reference").glob("*.md"))
    named = set(re.findall(r"^\.\. auto\w+:: qdqbert\.(\w+)$", text, re.MULTILINE))
    assert set(qdqbert.__all__) - named == set()
