"""A local stand-in for the HTTP API of the Hugging Face hub, as far as models need it."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import hashlib
import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

TOKEN = "hf_token"


@dataclasses.dataclass
class Repository:
    """A repository of the stand-in: one commit."""

    private: bool
    files: dict[str, bytes] = dataclasses.field(default_factory=dict)

    @classmethod
    def of_folder(cls, folder: Path) -> Repository:
        """Return a public repository with the files of a folder."""
        files = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file()
        }
        return cls(private=False, files=files)

    @property
    def commit(self) -> str:
        names = json.dumps({name: len(content) for name, content in self.files.items()})
        return hashlib.sha1(names.encode()).hexdigest()


@dataclasses.dataclass
class Hub:
    """The stand-in: its repositories by name, and the files that were downloaded."""

    endpoint: str
    repositories: dict[str, Repository] = dataclasses.field(default_factory=dict)
    downloads: list[str] = dataclasses.field(default_factory=list)

    def environment(self, home: Path, token: str | None = TOKEN) -> dict[str, str]:
        """Return the environment of a process that uses the stand-in."""
        changes = {
            "HF_ENDPOINT": self.endpoint,
            "HF_HOME": str(home),
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            **({} if token is None else {"HF_TOKEN": token}),
        }
        return {name: each for name, each in os.environ.items() if name != "HF_TOKEN"} | changes


@contextlib.contextmanager
def running_hub() -> Iterator[Hub]:
    """Run a stand-in while the block runs."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.hub = hub = Hub(endpoint=f"http://127.0.0.1:{server.server_port}")  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def hub(self) -> Hub:
        return self.server.hub  # type: ignore[attr-defined]

    def log_message(self, format: str, *arguments: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = self.path.partition("?")[0]
        if path == "/api/validate-yaml":
            return self._json({"errors": [], "warnings": []})
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._error(401, "Invalid username or password.")
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        name, action = self._model(path)
        if action == "preupload":
            files = [
                {"path": each["path"], "uploadMode": "regular", "shouldIgnore": False}
                for each in json.loads(body)["files"]
            ]
            return self._json({"files": files})
        assert action == "commit", path
        repository = self.hub.repositories[name]
        for line in body.splitlines():
            entry = json.loads(line)
            if entry["key"] == "file":
                value = entry["value"]
                repository.files[value["path"]] = base64.b64decode(value["content"])
        oid = repository.commit
        url = f"{self.hub.endpoint}/{name}/commit/{oid}"
        return self._json({"success": True, "commitOid": oid, "commitUrl": url})

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path.startswith("/api/models/"):
            name, action = self._model(path)
        elif "/resolve/" in path:
            name, _, rest = path[1:].partition("/resolve/")
            action, file = "resolve", rest.partition("/")[2]
        else:
            return self._error(404, "Not found")
        repository = self.hub.repositories.get(name)
        is_known = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if repository is None or (repository.private and not is_known):
            return self._error(404 if is_known else 401, "Repository not found", "RepoNotFound")
        if action == "tree":
            files = [
                {"type": "file", "path": each, "size": len(content), "oid": _oid(content)}
                for each, content in repository.files.items()
            ]
            return self._json(files)
        if action == "resolve":
            return self._file(repository, file)
        siblings = [{"rfilename": each} for each in repository.files]
        return self._json(
            {
                "id": name,
                "sha": repository.commit,
                "private": repository.private,
                "siblings": siblings,
            }
        )

    def _model(self, path: str) -> tuple[str, str]:
        parts = path.removeprefix("/api/models/").split("/")
        # Old models have no owner.
        count = 1 if parts[0] in self.hub.repositories else 2
        return "/".join(parts[:count]), parts[count] if len(parts) > count else ""

    def _create(self, wanted: dict[str, Any]) -> None:
        owner = wanted.get("organization") or "me"
        name = f"{owner}/{wanted['name']}"
        url = f"{self.hub.endpoint}/{name}"
        if name in self.hub.repositories:
            return self._json({"error": "You already created this model repo", "url": url}, 409)
        is_private = wanted.get("private") or wanted.get("visibility") == "private"
        self.hub.repositories[name] = Repository(private=bool(is_private))
        return self._json({"url": url, "id": name})

    def _file(self, repository: Repository, name: str) -> None:
        if name not in repository.files:
            return self._error(404, "Entry not found", "EntryNotFound")
        content = repository.files[name]
        if self.command == "GET":
            self.hub.downloads.append(name)
        headers = {"ETag": f'"{_oid(content)}"', "X-Repo-Commit": repository.commit}
        return self._answer(200, content, headers)

    def _json(self, value: Any, status: int = 200) -> None:
        self._answer(status, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _error(self, status: int, message: str, code: str | None = None) -> None:
        headers = {"X-Error-Message": message, **({} if code is None else {"X-Error-Code": code})}
        self._answer(status, json.dumps({"error": message}).encode(), headers)

    def _answer(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _oid(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()
