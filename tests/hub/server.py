"""A server on this machine that speaks the hub's API, as far as huggingface_hub calls it here.

It has repositories with commits, branches, private and gated models, files in LFS (which the hub
answers with a redirect), ranges, uploads through the LFS batch API, and faults on request.
"""

import base64
import contextlib
import dataclasses
import hashlib
import json
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

TOKEN = "hf_test"
LFS_SUFFIXES = (".safetensors", ".bin", ".model")


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def git_sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0%s" % (len(data), data)).hexdigest()


@dataclasses.dataclass
class Repo:
    private: bool = False
    gated: bool = False
    commits: dict[str, dict[str, bytes]] = dataclasses.field(default_factory=dict)
    refs: dict[str, str] = dataclasses.field(default_factory=dict)

    def commit(self, files: dict[str, bytes], branch: str = "main") -> str:
        """Adds a commit with these files; returns its name."""
        content = f"{len(self.commits)}" + repr(sorted(files.items()))
        name = hashlib.sha1(content.encode()).hexdigest()
        self.commits[name] = files
        self.refs[branch] = name
        return name

    def at(self, revision: str) -> str | None:
        return revision if revision in self.commits else self.refs.get(revision)


class Hub:
    """The state of the server. `log` has the requests since it was cleared."""

    def __init__(self):
        self.repos: dict[str, Repo] = {}
        self.lfs: dict[str, bytes] = {}  # uploaded objects by sha256
        self.log: list[str] = []
        self.broken: dict[str, bytes] = {}  # file -> what is served instead, for its hash is true
        self.breaks_off: dict[str, int] = {}  # file -> after how many bytes its next answer ends
        self.gone: set[str] = set()  # files that are listed, but that the server does not have
        self.status = 0  # the answer to every request, if not 0
        self.refuses = ""  # requests with this in their path are answered with 500
        self.tokens = {TOKEN: "write"}
        self.endpoint, self.cdn = "", ""
        self._lock = threading.Lock()

    def add(self, name: str, directory: Path | None = None, **options) -> Repo:
        self.repos[name] = Repo(**options)
        if directory is not None:
            self.repos[name].commit(read(directory))
        return self.repos[name]

    def downloads(self) -> list[str]:
        """The names of the files that were downloaded since the log was cleared."""
        return sorted(
            line.split("/resolve/")[1].split("/", 1)[1]
            for line in self.log
            if line.startswith("HEAD ") and "/resolve/" in line
        )


def read(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


@contextlib.contextmanager
def serve():
    """Runs the server in a thread; yields its state."""
    hub = Hub()

    class Handler(_Handler):
        state = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    # By another name: as from the hub's, the library sends no token there.
    hub.cdn = f"http://localhost:{server.server_address[1]}/cdn"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    state: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self._route()

    def do_HEAD(self):
        self._route()

    def do_POST(self):
        self._route()

    def do_PUT(self):
        self._route()

    def _route(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        path = urllib.parse.urlsplit(self.path).path
        self.state.log.append(f"{self.command} {path}")
        parts = [urllib.parse.unquote(each) for each in path.strip("/").split("/")]
        if self.state.status:
            return self._answer(self.state.status)
        if self.state.refuses and self.state.refuses in path:
            return self._answer(500)
        if parts[0] == "cdn":
            name = parts[2] if len(parts) > 2 else ""
            return self._content(name, self.state.lfs[parts[1]], parts[1])
        if parts[0] == "lfs":  # where the batch API sends an upload
            assert sha256(body) == parts[1]
            self.state.lfs[parts[1]] = body
            return self._answer(200)
        if parts[:2] == ["api", "validate-yaml"]:
            return self._json({"errors": [], "warnings": []})
        if parts[:3] == ["api", "repos", "create"]:
            return self._create(json.loads(body))
        is_api = parts[:2] == ["api", "models"]
        owner, name, *rest = parts[2:] if is_api else parts
        name = name.removesuffix(".git")
        repo = self.state.repos.get(f"{owner}/{name}")
        if repo is None or (repo.private and not self._role()):
            return self._answer(401, "RepoNotFound", "Invalid username or password.")
        if is_api and rest[:1] == ["preupload"]:
            return self._preupload(json.loads(body))
        if is_api and rest[:1] == ["commit"]:
            return self._commit(f"{owner}/{name}", repo, rest[1], body)
        if rest[:1] == ["info"]:  # info/lfs/objects/batch
            return self._batch(json.loads(body))
        revision = rest[1] if len(rest) > 1 else "main"
        if (commit := repo.at(revision)) is None:
            return self._answer(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        if is_api and rest[:1] == ["tree"]:
            files = repo.commits[commit].items()
            return self._json(
                [{"type": "file", "path": n, "size": len(d), "oid": git_sha1(d)} for n, d in files]
            )
        if is_api:
            siblings = [_sibling(name, data) for name, data in repo.commits[commit].items()]
            return self._json({"id": f"{owner}/{name}", "sha": commit, "siblings": siblings})
        if repo.gated:
            return self._answer(403, "GatedRepo", "Access to this model is restricted.")
        return self._file("/".join(rest[2:]), commit, repo.commits[commit])

    def _role(self) -> str:
        return self.state.tokens.get(self.headers.get("authorization", "").partition(" ")[2], "")

    def _file(self, name: str, commit: str, files: dict[str, bytes]) -> None:
        if name not in files or name in self.state.gone:
            return self._answer(404, "EntryNotFound", "Entry not found", {"X-Repo-Commit": commit})
        data = files[name]
        if not name.endswith(LFS_SUFFIXES):
            return self._content(name, data, git_sha1(data), {"X-Repo-Commit": commit})
        self.state.lfs[sha256(data)] = data
        return self._answer(
            302,
            headers={
                "X-Repo-Commit": commit,
                "X-Linked-Etag": f'"{sha256(data)}"',
                "X-Linked-Size": str(len(data)),
                "Location": f"{self.state.cdn}/{sha256(data)}/{urllib.parse.quote(name, '')}",
            },
        )

    def _content(self, name: str, data: bytes, etag: str, headers=None) -> None:
        data = self.state.broken.get(name, data)
        asked = self.headers.get("range", "")
        start = int(asked.removeprefix("bytes=").partition("-")[0]) if asked else 0
        if start:
            self.state.log.append(f"RANGE {name} {start}")
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{etag}"')
        self.send_header("Content-Length", str(len(data) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        length = self.state.breaks_off.pop(name, None)
        self.wfile.write(data[start:][:length])
        if length is not None:
            self.close_connection = True

    def _answer(self, status: int, code: str = "", message: str = "", headers=None) -> None:
        self.send_response(status)
        for key, value in {"X-Error-Code": code, "X-Error-Message": message}.items():
            if value:
                self.send_header(key, value)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _json(self, content, status: int = 200) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _create(self, asked: dict) -> None:
        name = f"{asked['organization']}/{asked['name']}"
        if self._role() != "write":
            message = "You don't have the rights to create a model under this namespace"
            return self._answer(403, message=message)
        if name in self.state.repos:
            return self._json({"url": f"{self.state.endpoint}/{name}"}, 409)
        self.state.add(name, private=asked.get("visibility") == "private").commit({})
        return self._json({"url": f"{self.state.endpoint}/{name}"})

    def _preupload(self, asked: dict) -> None:
        files = [
            {
                "path": each["path"],
                "uploadMode": "lfs" if each["path"].endswith(LFS_SUFFIXES) else "regular",
                "shouldIgnore": False,
            }
            for each in asked["files"]
        ]
        self._json({"files": files})

    def _batch(self, asked: dict) -> None:
        if self._role() != "write":
            return self._answer(403)
        objects = []
        for each in asked["objects"]:
            upload = {"href": f"{self.state.endpoint}/lfs/{each['oid']}"}
            is_known = each["oid"] in self.state.lfs
            objects.append({**each, **({} if is_known else {"actions": {"upload": upload}})})
        self._json({"transfer": "basic", "objects": objects})

    def _commit(self, name: str, repo: Repo, branch: str, body: bytes) -> None:
        if self._role() != "write":
            return self._answer(403, message="you have no write access")
        files = dict(repo.commits[repo.refs[branch]])
        for line in body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                files[value["path"]] = self.state.lfs[value["oid"]]
        commit = repo.commit(files, branch)
        url = f"{self.state.endpoint}/{name}/commit/{commit}"
        self._json({"commitUrl": url, "commitOid": commit, "success": True})


def _sibling(name: str, data: bytes) -> dict:
    found = {"rfilename": name, "size": len(data), "blobId": git_sha1(data)}
    if name.endswith(LFS_SUFFIXES):
        pointer = f"oid sha256:{sha256(data)}\nsize {len(data)}\n".encode()
        found["blobId"] = git_sha1(pointer)
        found["lfs"] = {"sha256": sha256(data), "size": len(data), "pointerSize": len(pointer)}
    return found
