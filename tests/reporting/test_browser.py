"""Reports in headless Chromium: nothing in the console, nothing loaded, no overflow, dark mode."""

from __future__ import annotations

import dataclasses
import functools
import http.server
import json
import re
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from qdqbert.reporting.page import page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt install chromium"),
]
PHONE = 375
# Shows a page as wide as a phone, and replaces itself by what it sees there.
VIEWER = """<!DOCTYPE html>
<iframe src="page.html" width="WIDTH" height="800" style="border: 0"></iframe>
<script>
window.onload = () => {
  const view = document.querySelector("iframe").contentWindow;
  const style = view.getComputedStyle(view.document.body);
  document.body.textContent = JSON.stringify({
    width: view.innerWidth,
    content: view.document.documentElement.scrollWidth,
    loaded: view.performance.getEntriesByType("resource").length,
    background: style.backgroundColor,
    color: style.color,
  });
};
</script>
"""


def view(text: str, folder: Path, *, width: int = PHONE, dark: bool = False) -> dict[str, Any]:
    """Open a page, and return what Chromium measured, with the lines of its console."""
    (folder / "page.html").write_text(text)
    (folder / "viewer.html").write_text(VIEWER.replace("WIDTH", str(width)))
    handler = functools.partial(QuietHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("localhost", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        done = open_page(f"http://localhost:{server.server_port}/viewer.html", folder, dark=dark)
        server.shutdown()
    found = re.search(r"<body>(\{.*\})</body>", done.stdout)
    assert found is not None, done.stdout + done.stderr
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return {**json.loads(found[1]), "console": console}


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Serve a folder without a log."""

    def log_message(self, *_: Any) -> None:
        pass


def open_page(url: str, folder: Path, *, dark: bool) -> subprocess.CompletedProcess[str]:
    """Run Chromium until a page is loaded, and print what it became."""
    return subprocess.run(
        [
            str(CHROMIUM),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--enable-logging=stderr",
            "--virtual-time-budget=5000",
            f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            f"--user-data-dir={folder / 'profile'}",
            "--dump-dom",
            url,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )


@pytest.fixture(params=["quantize", "evaluate"])
def shown(request, quantize_report, evaluate_report, candidates, check) -> str:
    """A report with all of its parts, and with long names."""
    if request.param == "evaluate":
        return page(dataclasses.replace(evaluate_report, limits=(check,)))
    name = "organization/a-model-with-a-very-long-name-" + "x" * 60
    target = dataclasses.replace(quantize_report.targets[0], limits=(check,))
    return page(
        dataclasses.replace(
            quantize_report,
            checkpoint=name,
            command=f"qdqbert quantize {name}",
            targets=(target, dataclasses.replace(target, target="onnxruntime")),
            candidates=candidates,
            reason="It is the fastest.",
        )
    )


@pytest.mark.parametrize("width", [PHONE, 1280])
def test_pages_fit_the_window_and_load_nothing(shown, width, tmp_path) -> None:
    found = view(shown, tmp_path, width=width)
    assert found["width"] == width
    assert found["content"] <= width
    assert found["loaded"] == 0
    assert found["console"] == []


def test_pages_are_dark_where_the_reader_prefers_it(shown, tmp_path) -> None:
    light, dark = view(shown, tmp_path), view(shown, tmp_path, dark=True)
    assert light["background"] == "rgb(255, 255, 255)"
    assert sum(map(int, re.findall(r"\d+", dark["background"]))) < 150
    assert sum(map(int, re.findall(r"\d+", dark["color"]))) > 600


def test_faults_of_a_page_are_seen(tmp_path) -> None:
    faulty = (
        "<!DOCTYPE html><body><div style='width: 900px'>wide</div>"
        "<img src='missing.png'><script>console.error('broken')</script></body>"
    )
    found = view(faulty, tmp_path)
    assert found["content"] >= 900
    assert found["loaded"] == 1
    assert any("broken" in line for line in found["console"])
