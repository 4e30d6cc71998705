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
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

OWNER = "tester"
WRITE_TOKEN = "hf_" + "WriteWriteWriteWrite"
READ_TOKEN = "hf_" + "ReadReadReadReadRead"
LARGE = (".safetensors", ".onnx", ".png")  # listed in the Hub's .gitattributes
REPO = r"(?P<repo>[\w.-]+/[\w.-]+)"


@dataclass
class Fault:
    """A fault at the next `times` requests with this method whose path contains `path`.

    status, message: the answer; the request is not carried out, unless `done`.  silent: no answer at all
    """

    method: str
    path: str
    times: int = 1
    status: int | None = None
    message: str = ""
    done: bool = False
    silent: bool = False


@dataclass
class Blob:
    """A file: its content, and whether LFS stores it."""

    content: bytes
    large: bool

    @property
    def git_id(self) -> str:
        content = self.content
        if self.large:  # git stores a pointer
            content = (
                f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {len(content)}\n".encode()
            )
        return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()


@dataclass
class Commit:
    id: str
    message: str
    parent: str | None
    files: dict[str, Blob]


@dataclass
class Repo:
    private: bool
    commits: dict[str, Commit] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    def add(self, branch: str, message: str, files: dict[str, Blob]) -> Commit:
        parent = self.branches.get(branch)
        text = json.dumps([parent, message, {name: blob.git_id for name, blob in files.items()}, len(self.commits)])
        commit = Commit(hashlib.sha1(text.encode()).hexdigest(), message, parent, files)
        self.commits[commit.id] = commit
        self.branches[branch] = commit.id
        return commit

    def find(self, revision: str) -> Commit | None:
        name = revision.removeprefix("refs/heads/").removeprefix("refs/tags/")
        return self.commits.get(self.branches.get(name) or self.tags.get(name) or name)

    def history(self, branch: str = "main") -> list[Commit]:
        """Return the commits from the last to the first."""
        commits, id = [], self.branches.get(branch)
        while id is not None:
            commits.append(self.commits[id])
            id = self.commits[id].parent
        return commits


class Refusal(Exception):
    """An error, with the code by which huggingface_hub recognises it."""

    def __init__(self, status: int, message: str, code: str | None = None):
        super().__init__(message)
        self.status, self.message, self.code = status, message, code


class HubServer:
    """The server, in a thread of this process.

    repos, large_objects: the stored data.  faults: what goes wrong next.  log: (method, path, status) of each request.
    received: the LFS objects that were uploaded, with their sizes
    """

    def __init__(self):
        self.repos: dict[str, Repo] = {}
        self.large_objects: dict[str, bytes] = {}
        self.users = {WRITE_TOKEN: (OWNER, "write"), READ_TOKEN: (OWNER, "read")}
        self.faults: list[Fault] = []
        self.log: list[tuple[str, str, int]] = []
        self.unknown: list[tuple[str, str]] = []
        self.received: list[tuple[str, int]] = []
        self.lock = threading.RLock()
        self.closed = threading.Event()
        handler = type("HubHandler", (Handler,), {"hub": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self) -> "HubServer":
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.closed.set()
        self.server.shutdown()
        self.server.server_close()

    def create(self, repo_id: str, private: bool = False, **files: bytes) -> Repo:
        """Create a repository with .gitattributes and the given files in its first commit, as the Hub does."""
        repo = self.repos[repo_id] = Repo(private)
        blobs = {".gitattributes": Blob("".join(f"*{suffix} filter=lfs\n" for suffix in LARGE).encode(), False)}
        repo.add("main", "initial commit", blobs | {name: Blob(content, False) for name, content in files.items()})
        return repo

    def files(self, repo_id: str, revision: str = "main") -> dict[str, bytes]:
        """Return names and contents at a revision, without .gitattributes."""
        commit = self.repos[repo_id].find(revision)
        assert commit is not None
        return {name: blob.content for name, blob in commit.files.items() if name != ".gitattributes"}

    def requests(self, method: str, path: str) -> list[int]:
        """Return the statuses of the requests with this method whose path contains `path`."""
        return [status for used, requested, status in self.log if used == method and path in requested]

    def fault_for(self, method: str, path: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.times and fault.method == method and fault.path in path:
                    fault.times -= 1
                    return fault
        return None


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are two writes
    hub: HubServer

    # ---- every request -------------------------------------------------------------------------------------------

    def do_request(self) -> None:
        parts = urlsplit(self.path)
        path, self.query = unquote(parts.path), parse_qs(parts.query)
        fault = self.hub.fault_for(self.command, parts.path)
        self.body = self.read_body()
        if fault is not None and fault.silent:
            self.hub.log.append((self.command, path, 0))
            self.hub.closed.wait()
            self.close_connection = True
            return
        if fault is not None and fault.status is not None and not fault.done:
            return self.answer(fault.status, {"error": fault.message}, {})
        try:
            with self.hub.lock:
                status, content, headers = self.route(path)
        except Refusal as refusal:
            headers = {"X-Error-Message": refusal.message}
            if refusal.code:
                headers["X-Error-Code"] = refusal.code
            return self.answer(refusal.status, {"error": refusal.message}, headers)
        if fault is not None and fault.status is not None:
            return self.answer(fault.status, {"error": fault.message}, {})
        self.answer(status, content, headers)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_request

    def read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            chunks = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                chunks.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(chunks)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def answer(self, status: int, content: Any, headers: dict[str, str]) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.log.append((self.command, path, status))
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        kind = "application/octet-stream" if isinstance(content, bytes) else "application/json"
        headers = {"Content-Type": kind, "Content-Length": str(len(body))} | headers
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def finish(self) -> None:
        try:
            super().finish()
        except (OSError, ValueError):
            self.close_connection = True  # the client has given up and closed the connection

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing; requests are in `hub.log`."""

    # ---- users and repositories ----------------------------------------------------------------------------------

    def user(self) -> tuple[str, str] | None:
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ").strip()
        if not token:
            return None
        if token not in self.hub.users:
            raise Refusal(401, "Invalid credentials in Authorization header")
        return self.hub.users[token]

    def repo(self, repo_id: str, write: bool = False) -> Repo:
        user = self.user()
        repo = self.hub.repos.get(repo_id)
        is_owner = user is not None and repo_id.startswith(f"{user[0]}/")
        if repo is None or (repo.private and not is_owner):
            raise Refusal(401 if user is None else 404, "Repository not found", "RepoNotFound")
        if write:
            self.check_write(repo_id.split("/")[0])
        return repo

    def check_write(self, owner: str) -> None:
        user = self.user()
        if user is None:
            raise Refusal(401, "Invalid username or password.")
        if user != (owner, "write"):
            raise Refusal(403, f"You don't have the rights to write in the namespace {owner}")

    def commit(self, repo: Repo, revision: str) -> Commit:
        commit = repo.find(revision)
        if commit is None:
            raise Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return commit

    def json(self) -> Any:
        return json.loads(self.body)

    def route(self, path: str) -> tuple[int, Any, dict[str, str]]:
        for method, pattern, action in ROUTES:
            if (method == self.command or (method == "GET" and self.command == "HEAD")) and (
                found := re.fullmatch(pattern, path)
            ):
                return action(self, **found.groupdict())
        self.hub.unknown.append((self.command, path))
        raise Refusal(501, f"this server does not know {self.command} {path}")

    def nothing(self):
        """Answer the request that huggingface_hub makes for its user agent."""
        return 404, {}, {}

    # ---- the API -------------------------------------------------------------------------------------------------

    def whoami(self):
        user = self.user()
        if user is None:
            raise Refusal(401, "Invalid username or password.")
        name, role = user
        token = {"displayName": "test", "role": role}
        return 200, {"type": "user", "name": name, "orgs": [], "auth": {"accessToken": token}}, {}

    def create_repo(self):
        wanted = self.json()
        user = self.user()
        if user is None:
            raise Refusal(401, "Invalid username or password.")
        owner = wanted.get("organization") or user[0]
        self.check_write(owner)
        repo_id = f"{owner}/{wanted['name']}"
        address = {"url": f"{self.hub.url}/{repo_id}", "name": repo_id}
        if repo_id in self.hub.repos:
            return 409, address | {"error": "You already created this model repo"}, {}
        self.hub.create(repo_id, wanted.get("visibility") == "private" or bool(wanted.get("private")))
        return 200, address, {}

    def info(self, repo: str, revision: str = "main"):
        found = self.repo(repo)
        commit = self.commit(found, revision)
        fields: dict[str, Any] = {"_id": "0" * 24, "id": repo, "modelId": repo, "sha": commit.id}
        fields |= {"private": found.private, "gated": False, "disabled": False, "downloads": 0, "likes": 0}
        fields |= {"tags": [], "library_name": "transformers", "author": repo.split("/")[0]}
        if "README.md" in commit.files:
            fields["cardData"] = metadata(commit.files["README.md"].content.decode())
            fields["pipeline_tag"] = fields["cardData"].get("pipeline_tag")
        fields["siblings"] = [{"rfilename": name} for name in sorted(commit.files)]
        return 200, fields, {}

    def tree(self, repo: str, revision: str, folder: str | None = None):
        commit = self.commit(self.repo(repo), revision)
        recursive = self.query.get("recursive", ["false"])[0].lower() in ("true", "1")
        under = f"{folder.strip('/')}/" if folder else ""
        entries = []
        folders = set()
        for name, blob in sorted(commit.files.items()):
            if not name.startswith(under):
                continue
            parts = name[len(under) :].split("/")
            for depth in range(1, len(parts) if recursive else min(len(parts), 2)):
                folders.add(under + "/".join(parts[:depth]))
            if recursive or len(parts) == 1:
                entries.append(described(name, blob))
        if folder and not entries and not folders:
            raise Refusal(404, f"{folder} does not exist", "EntryNotFound")
        entries += [{"type": "directory", "path": name, "size": 0, "oid": "0" * 40} for name in sorted(folders)]
        return 200, entries, {}

    def paths_info(self, repo: str, revision: str):
        commit = self.commit(self.repo(repo), revision)
        form = self.json() if self.body.startswith(b"{") else parse_qs(self.body.decode())
        return 200, [described(name, commit.files[name]) for name in form["paths"] if name in commit.files], {}

    def refs(self, repo: str):
        found = self.repo(repo)

        def listed(kind: str, refs: dict[str, str]) -> list[dict[str, str]]:
            return [{"name": name, "ref": f"refs/{kind}/{name}", "targetCommit": at} for name, at in refs.items()]

        branches, tags = listed("heads", found.branches), listed("tags", found.tags)
        return 200, {"branches": branches, "tags": tags, "converts": []}, {}

    def create_branch(self, repo: str, name: str):
        found = self.repo(repo, write=True)
        if name in found.branches:
            raise Refusal(409, f"Reference already exists: {name}")
        start = (json.loads(self.body) if self.body else {}).get("startingPoint", "main")
        found.branches[name] = self.commit(found, start).id
        return 200, {}, {}

    def create_tag(self, repo: str, revision: str):
        found = self.repo(repo, write=True)
        name = self.json()["tag"]
        if name in found.tags:
            raise Refusal(409, f"Tag already exists: {name}")
        found.tags[name] = self.commit(found, revision).id
        return 200, {}, {}

    def preupload(self, repo: str, revision: str):
        found = self.repo(repo, write=True)
        there = self.commit(found, revision).files
        answers = []
        for file in self.json()["files"]:
            large = file["path"].endswith(LARGE)
            answer = {"path": file["path"], "uploadMode": "lfs" if large else "regular", "shouldIgnore": False}
            if file["path"] in there:
                blob = there[file["path"]]
                answer["oid"] = blob.sha256 if blob.large else blob.git_id
            answers.append(answer)
        return 200, {"files": answers}, {}

    def lfs_batch(self, repo: str):
        self.repo(repo, write=True)
        objects = []
        for wanted in self.json()["objects"]:
            answer = {"oid": wanted["oid"], "size": wanted["size"]}
            if wanted["oid"] not in self.hub.large_objects:
                answer["actions"] = {
                    # Signed, as on S3: the address is enough to upload.
                    "upload": {"href": f"{self.hub.url}/lfs/{wanted['oid']}?X-Amz-Signature=5ec7e7"},
                    "verify": {"href": f"{self.hub.url}/lfs-verify"},
                }
            objects.append(answer)
        return 200, {"transfer": "basic", "objects": objects}, {}

    def lfs_put(self, oid: str):
        self.hub.large_objects[oid] = self.body
        self.hub.received.append((oid, len(self.body)))
        return 200, {}, {"ETag": hashlib.md5(self.body).hexdigest()}

    def lfs_verify(self):
        wanted = self.json()
        content = self.hub.large_objects.get(wanted["oid"])
        if content is None:
            raise Refusal(404, "Object not found")
        if hashlib.sha256(content).hexdigest() != wanted["oid"] or len(content) != wanted["size"]:
            del self.hub.large_objects[wanted["oid"]]
            raise Refusal(422, "The uploaded object has another checksum")
        return 200, {}, {}

    def make_commit(self, repo: str, revision: str):
        found = self.repo(repo, write=True)
        if revision not in found.branches:
            raise Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        files = dict(found.commits[found.branches[revision]].files)
        message = ""
        for line in self.body.splitlines():
            operation = json.loads(line)
            value = operation["value"]
            if operation["key"] == "header":
                message = value["summary"]
                if value.get("parentCommit") not in (None, found.branches[revision]):
                    raise Refusal(412, "A commit has happened since. Please refresh and try again.")
            elif operation["key"] == "file":
                files[value["path"]] = Blob(base64.b64decode(value["content"]), False)
            elif operation["key"] == "lfsFile":
                if value["oid"] not in self.hub.large_objects:
                    raise Refusal(400, f"LFS pointer pointed to a file that does not exist: {value['path']}")
                files[value["path"]] = Blob(self.hub.large_objects[value["oid"]], True)
            elif operation["key"] == "deletedFile":
                if files.pop(value["path"], None) is None:
                    raise Refusal(404, f"A file with this name doesn't exist: {value['path']}", "EntryNotFound")
            else:
                raise Refusal(501, f"this server does not know the operation {operation['key']}")
        if "README.md" in files and (errors := metadata_errors(files["README.md"].content.decode())):
            raise Refusal(400, "; ".join(errors))
        commit = found.add(revision, message, files)
        url = f"{self.hub.url}/{repo}/commit/{commit.id}"
        return 200, {"success": True, "commitOid": commit.id, "commitUrl": url}, {}

    def validate_yaml(self):
        errors = metadata_errors(self.json()["content"])
        return (400 if errors else 200), {"errors": [{"message": text} for text in errors], "warnings": []}, {}

    def resolve(self, repo: str, revision: str, name: str):
        commit = self.commit(self.repo(repo), revision)
        blob = commit.files.get(name)
        if blob is None:
            return 404, {"error": "Entry not found"}, {"X-Repo-Commit": commit.id, "X-Error-Code": "EntryNotFound"}
        etag = blob.sha256 if blob.large else blob.git_id
        headers = {"X-Repo-Commit": commit.id, "ETag": f'"{etag}"', "Accept-Ranges": "bytes"}
        if blob.large:
            headers |= {"X-Linked-Etag": f'"{etag}"', "X-Linked-Size": str(len(blob.content))}
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked is None:
            return 200, blob.content, headers
        first, size = int(asked[1]), len(blob.content)
        last = min(int(asked[2] or size - 1), size - 1)
        headers["Content-Range"] = f"bytes {first}-{last}/{size}"
        return 206, blob.content[first : last + 1], headers


ROUTES = [
    ("GET", r"/api/agent-harnesses", Handler.nothing),
    ("GET", r"/api/whoami-v2", Handler.whoami),
    ("POST", r"/api/repos/create", Handler.create_repo),
    ("POST", r"/api/validate-yaml", Handler.validate_yaml),
    ("GET", rf"/api/models/{REPO}", Handler.info),
    ("GET", rf"/api/models/{REPO}/revision/(?P<revision>.+)", Handler.info),
    ("GET", rf"/api/models/{REPO}/tree/(?P<revision>[^/]+)(?P<folder>/.+)?", Handler.tree),
    ("POST", rf"/api/models/{REPO}/paths-info/(?P<revision>.+)", Handler.paths_info),
    ("GET", rf"/api/models/{REPO}/refs", Handler.refs),
    ("POST", rf"/api/models/{REPO}/branch/(?P<name>.+)", Handler.create_branch),
    ("POST", rf"/api/models/{REPO}/tag/(?P<revision>.+)", Handler.create_tag),
    ("POST", rf"/api/models/{REPO}/preupload/(?P<revision>.+)", Handler.preupload),
    ("POST", rf"/api/models/{REPO}/commit/(?P<revision>.+)", Handler.make_commit),
    ("POST", rf"/{REPO}\.git/info/lfs/objects/batch", Handler.lfs_batch),
    ("PUT", r"/lfs/(?P<oid>[0-9a-f]{64})", Handler.lfs_put),
    ("POST", r"/lfs-verify", Handler.lfs_verify),
    ("GET", rf"/{REPO}/resolve/(?P<revision>[^/]+)/(?P<name>.+)", Handler.resolve),
]


def described(name: str, blob: Blob) -> dict[str, Any]:
    """Describe a file as `tree` and `paths-info` do."""
    fields: dict[str, Any] = {"type": "file", "path": name, "size": len(blob.content), "oid": blob.git_id}
    if blob.large:
        fields["lfs"] = {"oid": blob.sha256, "size": len(blob.content), "pointerSize": 134}
    return fields


def metadata(card: str) -> dict[str, Any]:
    """Return the YAML between the first two lines of dashes."""
    block = re.match(r"---\n(.*?)\n---\n", card, re.DOTALL)
    fields = yaml.safe_load(block[1]) if block else {}
    return fields if isinstance(fields, dict) else {}


def metadata_errors(card: str) -> list[str]:
    """Return the errors that the Hub's check of a model card finds."""
    try:
        fields = metadata(card)
    except yaml.YAMLError as error:
        return [f"the metadata is not YAML: {error}"]
    errors = []
    for code in fields.get("language", []):
        if not re.fullmatch(r"[a-z]{2,3}|code|multilingual", code):
            errors.append(f'"language" must only contain lowercase characters of ISO 639: {code}')
    for entry in fields.get("model-index", []):
        if not entry.get("name"):
            errors.append('"model-index[0].name" is required')
        for number, result in enumerate(entry.get("results", [])):
            for path in (("task", "type"), ("dataset", "type"), ("dataset", "name")):
                if not result.get(path[0], {}).get(path[1]):
                    errors.append(f'"model-index[0].results[{number}].{".".join(path)}" is required')
            for metric in result.get("metrics", []):
                if not metric.get("type") or metric.get("value") is None:
                    errors.append(f'"model-index[0].results[{number}].metrics" need type and value')
    return errors
