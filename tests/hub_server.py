"""A local Hub: the HTTP API that huggingface_hub uses, with the rules of git and LFS, and faults on request.

    with HubServer() as hub:
        api = HfApi(endpoint=hub.url, token=WRITE_TOKEN)
        hub.faults.append(Fault("POST", "/commit/", status=500, times=2))

Repositories live in memory. Every request is logged with its status. Unknown requests are answered with 501 and kept in
`unknown`, so that tests can fail on them. huggingface_hub reads HF_ENDPOINT and HF_HOME when it is imported: set them
for a child process, or pass the endpoint to HfApi.
"""

import base64
import hashlib
import json
import re
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePath
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

OWNER = "tester"
WRITE_TOKEN = "hf_" + "WriteWriteWriteWrite"
LARGE = (".safetensors", ".onnx", ".png")  # listed in the Hub's .gitattributes


@dataclass
class Fault:
    """A fault at the next `times` requests with this method whose path contains `path`.

    status, message: the answer; the request is not carried out, unless `done`.  silent: no answer at all
    content: the answer, with status 200, as a proxy or another server would give it
    headers: added to the answer, which is the proper one without a status
    """

    method: str
    path: str
    times: int = 1
    status: int = 0
    message: str = ""
    done: bool = False
    silent: bool = False
    content: Any = None
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Blob:
    """A file: its content, and whether LFS stores it."""

    content: bytes
    large: bool = False

    @property
    def oid(self) -> str:
        if self.large:
            return hashlib.sha256(self.content).hexdigest()
        return hashlib.sha1(f"blob {len(self.content)}\0".encode() + self.content).hexdigest()


@dataclass
class Commit:
    message: str
    files: dict[str, Blob]
    id: str = field(default_factory=lambda: secrets.token_hex(20))


@dataclass
class Repo:
    """branches: the commits of each, the first one first.  tags: the id of each tag's commit"""

    private: bool
    branches: dict[str, list[Commit]] = field(default_factory=lambda: {"main": []})
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def main(self) -> list[Commit]:
        return self.branches["main"]

    def commit(self, revision: str) -> Commit:
        """Return the commit of a branch, a tag or an id."""
        if revision in self.branches:
            return self.branches[revision][-1]
        for commits in self.branches.values():
            for commit in commits:
                if commit.id in (revision, self.tags.get(revision)):
                    return commit
        raise Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")


class Refusal(Exception):
    """An error, with the code by which huggingface_hub recognises it."""

    def __init__(self, status: int, message: str, code: str = "", headers: dict[str, str] | None = None, **fields: Any):
        super().__init__(message)
        self.status, self.fields = status, {"error": message, **fields}
        self.headers = {"X-Error-Message": message, "X-Error-Code": code, **(headers or {})}


class HubServer(ThreadingHTTPServer):
    """The server, in a thread of this process.

    repos, large_objects: the stored data.  faults: what goes wrong next.  log: (method, path, status) of each request.
    received: the ids of the LFS objects that were uploaded
    """

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.repos: dict[str, Repo] = {}
        self.large_objects: dict[str, bytes] = {}
        self.faults: list[Fault] = []
        self.log: list[tuple[str, str, int]] = []
        self.unknown: list[tuple[str, str]] = []
        self.received: list[str] = []
        self.lock = threading.RLock()
        self.closed = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> "HubServer":
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.closed.set()
        self.shutdown()
        self.server_close()

    def create(self, repo_id: str, private: bool = False, **files: bytes) -> Repo:
        """Create a repository with .gitattributes and the given files in its first commit, as the Hub does."""
        repo = self.repos[repo_id] = Repo(private)
        attributes = "".join(f"*{suffix} filter=lfs\n" for suffix in LARGE).encode()
        contents = {".gitattributes": attributes, **files}
        repo.main.append(Commit("initial commit", {name: Blob(content) for name, content in contents.items()}))
        return repo

    def files(self, repo_id: str, revision: str = "main") -> dict[str, bytes]:
        """Return names and contents at a revision, without .gitattributes."""
        files = self.repos[repo_id].commit(revision).files
        return {name: blob.content for name, blob in files.items() if name != ".gitattributes"}

    def next_fault(self, method: str, path: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.times and fault.method == method and fault.path in path:
                    fault.times -= 1
                    return fault
        return None


ROUTES: list[tuple[str, str, Callable[..., Any]]] = []
REPO = r"(?P<repo>[\w.-]+/[\w.-]+)"
MODEL = rf"/api/(?:models|datasets|spaces)/{REPO}"
FILES = rf"/(?:datasets/|spaces/)?{REPO}"


def route(method: str, pattern: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Let a method of Handler answer requests whose path matches, with the named groups as arguments."""

    def add(action: Callable[..., Any]) -> Callable[..., Any]:
        ROUTES.append((method, pattern, action))
        return action

    return add


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are two writes
    server: HubServer  # pyright: ignore[reportIncompatibleVariableOverride]

    # ---- every request -------------------------------------------------------------------------------------------

    def do_request(self) -> None:
        self.quoted = urlsplit(self.path).path  # a slash in the name of a branch is no slash of the path
        self.at = unquote(self.quoted)
        fault = self.server.next_fault(self.command, self.at)
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if fault is not None and fault.silent:
            self.server.closed.wait()
            self.close_connection = True
            return
        status, content, self.more_headers = 200, {}, {}
        if fault is None or fault.done or fault.headers:
            try:
                with self.server.lock:
                    content = self.action()
            except Refusal as refusal:
                status, content, self.more_headers = refusal.status, refusal.fields, refusal.headers
        if fault is not None:
            self.more_headers = self.more_headers | fault.headers
        if fault is not None and (fault.status or not fault.headers):
            status, content = fault.status, {"error": fault.message}
            if fault.content is not None:
                status, content = 200, fault.content
        self.answer(status, content)

    do_GET = do_HEAD = do_POST = do_PUT = do_request

    def action(self) -> Any:
        """Carry out the request; return the content of the answer: bytes, or an object for JSON."""
        for method, pattern, action in ROUTES:
            found = re.fullmatch(pattern, self.quoted)
            if found and self.command.replace("HEAD", "GET") == method:
                groups = {name: part and unquote(part) for name, part in found.groupdict().items()}
                return action(self, **groups)
        self.server.unknown.append((self.command, self.at))
        raise Refusal(501, f"this server does not know {self.command} {self.at}")

    def answer(self, status: int, content: Any) -> None:
        self.server.log.append((self.command, self.at, status))
        if not isinstance(content, bytes):
            content = json.dumps(content).encode()
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(content))} | self.more_headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def finish(self) -> None:
        try:
            super().finish()
        except (OSError, ValueError):
            self.close_connection = True  # the client has given up and closed the connection

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing; requests are in `hub.log`."""

    def has_token(self) -> bool:
        """Return whether the request has OWNER's token; without it, public repositories can be read."""
        authorization = self.headers.get("Authorization")
        if authorization not in (None, f"Bearer {WRITE_TOKEN}"):
            raise Refusal(401, "Invalid credentials in Authorization header")
        return authorization is not None

    def repo(self, repo_id: str, write: bool = False) -> Repo:
        has_token, repo = self.has_token(), self.server.repos.get(repo_id)
        if repo is None or (not has_token and (write or repo.private)):
            raise Refusal(404 if has_token else 401, "Repository not found", "RepoNotFound")
        return repo

    def json(self) -> Any:
        return json.loads(self.body or b"{}")

    # ---- the API -------------------------------------------------------------------------------------------------

    @route("GET", r"/api/agent-harnesses")
    def absent(self) -> Any:
        """Answer a request of huggingface_hub for a thing that this server does not have."""
        raise Refusal(404, "does not exist", "EntryNotFound")

    @route("POST", r"/api/repos/create")
    def create_repo(self) -> Any:
        if not self.has_token():
            raise Refusal(401, "Invalid username or password.")
        wanted = self.json()
        repo_id = f"{wanted.get('organization') or OWNER}/{wanted['name']}"
        address: dict[str, Any] = {"url": f"{self.server.url}/{repo_id}", "name": repo_id}
        if repo_id in self.server.repos:
            raise Refusal(409, "You already created this model repo", **address)
        self.server.create(repo_id, wanted.get("visibility") == "private" or bool(wanted.get("private")))
        return address

    @route("GET", rf"{MODEL}(/revision/(?P<revision>.+))?")
    def info(self, repo: str, revision: str | None) -> Any:
        found = self.repo(repo)
        commit = found.commit(revision or "main")
        card = commit.files.get("README.md", Blob(b"")).content.decode()
        return {
            "_id": "0" * 24, "id": repo, "modelId": repo, "author": repo.split("/")[0], "sha": commit.id,
            "private": found.private, "gated": False, "disabled": False, "downloads": 0, "likes": 0, "tags": [],
            "library_name": "transformers", "pipeline_tag": metadata(card).get("pipeline_tag"),
            "cardData": metadata(card), "siblings": [{"rfilename": name} for name in sorted(commit.files)],
        }  # fmt: skip

    @route("GET", rf"{MODEL}/tree/(?P<revision>[^/]+)(/(?P<folder>.+))?")
    def tree(self, repo: str, revision: str, folder: str | None) -> Any:
        files = self.repo(repo).commit(revision).files
        if folder is not None:
            files = {name: blob for name, blob in files.items() if name.startswith(f"{folder}/")}
            if not files:
                raise Refusal(404, f"{folder} does not exist", "EntryNotFound")
        entries = []
        for name, blob in sorted(files.items()):
            entry = {"type": "file", "path": name, "size": len(blob.content), "oid": blob.oid}
            lfs = {"lfs": {"oid": blob.oid, "size": len(blob.content), "pointerSize": 134}}
            entries.append(entry | (lfs if blob.large else {}))
        return entries

    @route("GET", rf"{MODEL}/refs")
    def refs(self, repo: str) -> Any:
        found = self.repo(repo)
        heads = {name: commits[-1].id for name, commits in found.branches.items()}

        def listed(kind: str, refs: dict[str, str]) -> list[dict[str, str]]:
            return [{"name": name, "ref": f"refs/{kind}/{name}", "targetCommit": id} for name, id in refs.items()]

        return {"branches": listed("heads", heads), "tags": listed("tags", found.tags), "converts": []}

    @route("POST", rf"{MODEL}/branch/(?P<name>.+)")
    def create_branch(self, repo: str, name: str) -> Any:
        found = self.repo(repo, write=True)
        start = found.commit(self.json().get("startingPoint", "main"))
        found.branches[name] = found.main[: found.main.index(start) + 1]
        return {}

    @route("POST", rf"{MODEL}/tag/(?P<revision>.+)")
    def create_tag(self, repo: str, revision: str) -> Any:
        found, name = self.repo(repo, write=True), self.json()["tag"]
        if name in found.tags:
            raise Refusal(409, f"Tag already exists: {name}")
        found.tags[name] = found.commit(revision).id
        return {}

    @route("POST", rf"{MODEL}/preupload/(?P<revision>.+)")
    def preupload(self, repo: str, revision: str) -> Any:
        there = self.repo(repo, write=True).commit(revision).files
        ignored = self.json().get("gitIgnore") or there.get(".gitignore", Blob(b"")).content.decode()
        answers = []
        for path in (file["path"] for file in self.json()["files"]):
            answer: dict[str, Any] = {"path": path, "uploadMode": "lfs" if path.endswith(LARGE) else "regular"}
            answer["shouldIgnore"] = any(PurePath(path).match(pattern) for pattern in ignored.split())
            answers.append(answer | ({"oid": there[path].oid} if path in there else {}))
        return {"files": answers}

    @route("POST", rf"{FILES}\.git/info/lfs/objects/batch")
    def lfs_batch(self, repo: str) -> Any:
        self.repo(repo, write=True)
        objects = []
        for wanted in self.json()["objects"]:
            # Signed, as on S3: the address is enough to upload.
            upload = {"href": f"{self.server.url}/lfs/{wanted['oid']}?X-Amz-Signature=5ec7e7"}
            is_new = wanted["oid"] not in self.server.large_objects
            objects.append(wanted | ({"actions": {"upload": upload}} if is_new else {}))
        return {"transfer": "basic", "objects": objects}

    @route("PUT", r"/lfs/(?P<oid>[0-9a-f]{64})")
    def lfs_put(self, oid: str) -> Any:
        if Blob(self.body, large=True).oid != oid:
            raise Refusal(422, "The uploaded object has another checksum")
        self.server.large_objects[oid] = self.body
        self.server.received.append(oid)
        return {}

    @route("POST", rf"{MODEL}/commit/(?P<revision>.+)")
    def make_commit(self, repo: str, revision: str) -> Any:
        found = self.repo(repo, write=True)
        last = found.commit(revision)
        commit = Commit("", dict(last.files))
        for key, value in (json.loads(line).values() for line in self.body.splitlines()):
            if key == "header":
                commit.message = value["summary"]
                if value.get("parentCommit") not in (None, last.id):
                    raise Refusal(412, "A commit has happened since. Please refresh and try again.")
            elif key == "file":
                commit.files[value["path"]] = Blob(base64.b64decode(value["content"]))
            elif key == "lfsFile":
                commit.files[value["path"]] = Blob(self.server.large_objects[value["oid"]], large=True)
            elif key == "deletedFile":
                del commit.files[value["path"]]
        found.branches[revision].append(commit)
        url = f"{self.server.url}/{repo}/commit/{commit.id}"
        return {"success": True, "commitOid": commit.id, "commitUrl": url}

    @route("POST", r"/api/validate-yaml")
    def validate_yaml(self) -> Any:
        metadata(self.json()["content"])
        return {"errors": [], "warnings": []}

    @route("GET", rf"{FILES}/resolve/(?P<revision>[^/]+)/(?P<name>.+)")
    def resolve(self, repo: str, revision: str, name: str) -> Any:
        commit = self.repo(repo).commit(revision)
        blob, commit_header = commit.files.get(name), {"X-Repo-Commit": commit.id}
        if blob is None:
            raise Refusal(404, "Entry not found", "EntryNotFound", commit_header)
        self.more_headers = commit_header | {"ETag": f'"{blob.oid}"'}
        if blob.large:
            self.more_headers |= {"X-Linked-Etag": f'"{blob.oid}"', "X-Linked-Size": str(len(blob.content))}
        return blob.content


def metadata(card: str) -> dict[str, Any]:
    """Return the YAML between the first two lines of dashes."""
    block = re.match(r"---\n(.*?)\n---\n", card, re.DOTALL)
    return yaml.safe_load(block[1]) if block else {}
