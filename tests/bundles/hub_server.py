"""A small Hugging Face hub on the loopback interface: only what model_info and hf_hub_download request."""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


@dataclass
class HubRepository:
    """Commits by hash, branches and tags by name, the licence on its card, and its faults.

    Attributes:
        lies: files with a wrong SHA-256, and that SHA-256.
        gone: files that are listed and cannot be downloaded.
        moves_to: the commit that every branch moves to after its files were listed.
    """

    commits: dict[str, dict[str, bytes]]
    names: dict[str, str]
    licence: str = "apache-2.0"
    lies: Mapping[str, str] = field(default_factory=dict)
    gone: tuple[str, ...] = ()
    moves_to: str = ""

    def commit(self, revision: str) -> str | None:
        return revision if revision in self.commits else self.names.get(revision)

    def sha256(self, commit: str, file: str) -> str:
        return self.lies.get(file) or hashlib.sha256(self.commits[commit][file]).hexdigest()


@contextmanager
def serving(repositories: dict[str, HubRepository]) -> Iterator[str]:
    """Serves the repositories while the block runs; yields the address."""
    handler = type("Handler", (_HubHandler,), {"repositories": repositories})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _HubHandler(BaseHTTPRequestHandler):
    repositories: dict[str, HubRepository]
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        if parts[0] == "portal":
            self._answer(200, b"<html>Welcome to our guest network</html>")
        elif parts[:2] == ["api", "models"]:
            self._describe("/".join(parts[2:4]), parts[5] if len(parts) > 5 else "main")
        elif len(parts) > 4 and parts[2] == "resolve":
            self._resolve("/".join(parts[:2]), parts[3], "/".join(parts[4:]))
        else:
            self._answer(404)

    def _describe(self, name: str, revision: str) -> None:
        repository, commit = self._find(name, revision)
        if commit:
            siblings = [
                {
                    "rfilename": file,
                    "size": len(data),
                    "blobId": "0" * 40,
                    "lfs": {"sha256": repository.sha256(commit, file), "size": len(data), "pointerSize": 134},
                }
                for file, data in repository.commits[commit].items()
            ]
            self._answer(
                200,
                json.dumps(
                    {
                        "id": name,
                        "modelId": name,
                        "sha": commit,
                        "private": False,
                        "tags": [],
                        "downloads": 0,
                        "likes": 0,
                        "siblings": siblings,
                        "cardData": {"license": repository.licence},
                    }
                ).encode(),
            )

    def _resolve(self, name: str, revision: str, file: str) -> None:
        repository, commit = self._find(name, revision)
        if not commit:
            return
        commit = repository.moves_to or commit
        if file not in repository.commits[commit] or file in repository.gone:
            self._answer(404, code="EntryNotFound", commit=commit)
            return
        data = repository.commits[commit][file]
        self._answer(200, data, commit=commit, etag=repository.sha256(commit, file))

    def _find(self, name: str, revision: str) -> tuple[HubRepository | None, str | None]:
        repository = self.repositories.get(name)
        commit = repository.commit(revision) if repository else None
        if repository is None:
            self._answer(401, code="RepoNotFound")
        elif commit is None:
            self._answer(404, code="RevisionNotFound")
        return repository, commit

    def _answer(self, status: int, body: bytes = b"", code: str = "", commit: str = "", etag: str = "") -> None:
        self.send_response(status)
        headers = {"X-Error-Code": code, "X-Repo-Commit": commit, "ETag": etag and f'"{etag}"'}
        for header, value in headers.items():
            if value:
                self.send_header(header, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Log nothing."""
