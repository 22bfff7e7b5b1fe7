"""A small Hugging Face Hub on this machine, in memory, for the real client: the routes that push and load use."""

import base64
import hashlib
import json
import os
import re
import threading
import uuid
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = os.environ.get("HF_TOKEN", "hf_local")


class Repository:
    """Commits, and the latest one of each branch."""

    def __init__(self, private: bool) -> None:
        self.private = private
        self.commits: dict[str, dict[str, bytes]] = {}
        self.branches: dict[str, str] = {}
        self.commit("main", {}, [])

    def commit(self, branch: str, files: dict[str, bytes], deleted: list[str]) -> str:
        """A new commit on a branch; its name."""
        tree = {**self.commits.get(self.branches.get(branch, ""), {}), **files}
        tree = {name: content for name, content in tree.items() if name not in deleted or name in files}
        sha = f"{uuid.uuid4().hex}{len(self.commits):08x}"
        self.commits[sha] = tree
        self.branches[branch] = sha
        return sha


class HubServer:
    """Started and stopped as a context manager. It hangs up during requests for a route that ``break_off`` matches."""

    def __init__(self, port: int = 0) -> None:
        self.repositories: dict[str, Repository] = {}
        self.break_off: str | None = None
        handler = type("Handler", (_Handler,), {"hub": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", port), handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> "HubServer":
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def files(self, repo_id: str) -> dict[str, bytes]:
        """Files of a repository by name."""
        repository = self.repositories[repo_id]
        return repository.commits[repository.branches["main"]]


class _Handler(BaseHTTPRequestHandler):
    """Answers one request of each connection, as HTTP 1.0 does."""

    hub: HubServer

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.hub.break_off and re.search(self.hub.break_off, path):
            return
        try:
            for method, pattern, answer in ROUTES:
                found = re.fullmatch(pattern, path)
                if found and self.command in method:
                    return answer(self, **found.groupdict())
            raise LookupError("no such route")
        except LookupError as error:
            self._answer(404, b"", {"X-Error-Code": str(error), "X-Error-Message": str(error)})

    do_HEAD = do_POST = do_GET

    def _repository(self, repo_id: str) -> Repository:
        repository = self.hub.repositories.get(repo_id)
        if repository is None or (repository.private and self.headers.get("Authorization") != f"Bearer {TOKEN}"):
            raise LookupError("RepoNotFound")
        return repository

    def _tree(self, repo_id: str, revision: str) -> tuple[str, dict[str, bytes]]:
        repository = self._repository(repo_id)
        sha = repository.branches.get(revision, revision)
        if sha not in repository.commits:
            raise LookupError("RevisionNotFound")
        return sha, repository.commits[sha]

    # ---- routes ----

    def create(self) -> None:
        request = json.loads(self.body)
        repo_id = f"{request.get('organization') or 'me'}/{request['name']}"
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._json({"error": "Invalid credentials"}, 401)
        exists = repo_id in self.hub.repositories
        self.hub.repositories.setdefault(repo_id, Repository(private=request.get("visibility") == "private"))
        self._json({"url": f"{self.hub.url}/{repo_id}", "name": repo_id}, 409 if exists else 200)

    def branch(self, repo_id: str, name: str) -> None:
        repository = self._repository(repo_id)
        repository.branches.setdefault(name, repository.branches["main"])
        self._json({})

    def info(self, repo_id: str, revision: str | None = None) -> None:
        sha, files = self._tree(repo_id, revision or "main")
        self._json({"id": repo_id, "sha": sha, "siblings": [{"rfilename": name} for name in files]})

    def tree(self, repo_id: str, revision: str) -> None:
        _, files = self._tree(repo_id, revision)
        entries = [
            {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
            for name, content in files.items()
        ]
        self._json(entries)

    def resolve(self, repo_id: str, revision: str, path: str) -> None:
        sha, files = self._tree(repo_id, revision)
        if path not in files:
            raise LookupError("EntryNotFound")
        etag = hashlib.sha256(files[path]).hexdigest()
        self._answer(200, files[path], {"X-Repo-Commit": sha, "ETag": f'"{etag}"', "Content-Type": "application/octet-stream"})

    def preupload(self, repo_id: str, revision: str) -> None:
        files = [{**file, "uploadMode": "regular", "shouldIgnore": False} for file in json.loads(self.body)["files"]]
        self._json({"files": files})

    def commit(self, repo_id: str, revision: str) -> None:
        repository = self._repository(repo_id)
        files, deleted = {}, []
        for line in self.body.decode().splitlines():
            item = json.loads(line)
            if item["key"] == "file":
                files[item["value"]["path"]] = base64.b64decode(item["value"]["content"])
            elif item["key"] == "deletedFile":
                deleted.append(item["value"]["path"])
        sha = repository.commit(revision, files, deleted)
        self._json({"success": True, "commitOid": sha, "commitUrl": f"{self.hub.url}/{repo_id}/commit/{sha}"})

    # ---- answers ----

    def _json(self, data: Any, status: int = 200) -> None:
        self._answer(status, json.dumps(data).encode(), {"Content-Type": "application/json"})

    def _answer(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


ID = r"(?P<repo_id>[^/]+/[^/]+)"
ROUTES: list[tuple[str, str, Callable[..., None]]] = [
    ("POST", "/api/repos/create", _Handler.create),
    ("POST", "/api/validate-yaml", lambda handler: handler._json({"errors": [], "warnings": []})),
    ("POST", f"/api/models/{ID}/preupload/(?P<revision>[^/]+)", _Handler.preupload),
    ("POST", f"/api/models/{ID}/commit/(?P<revision>[^/]+)", _Handler.commit),
    ("POST", f"/api/models/{ID}/branch/(?P<name>[^/]+)", _Handler.branch),
    ("GET", f"/api/models/{ID}/tree/(?P<revision>[^/]+)", _Handler.tree),
    ("GET", f"/api/models/{ID}(/revision/(?P<revision>[^/]+))?", _Handler.info),
    ("GET HEAD", f"/{ID}/resolve/(?P<revision>[^/]+)/(?P<path>.+)", _Handler.resolve),
]
