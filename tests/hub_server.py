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
RIGHTS = {WRITE_TOKEN: "write", READ_TOKEN: "read"}
LARGE = (".safetensors", ".onnx", ".png")  # listed in the Hub's .gitattributes
Answer = tuple[int, Any, dict[str, str]]


@dataclass
class Fault:
    """A fault at the next `times` requests with this method whose path contains `path`.

    status, message: the answer; the request is not carried out, unless `done`.  silent: no answer at all
    """

    method: str
    path: str
    times: int = 1
    status: int = 0
    message: str = ""
    done: bool = False
    silent: bool = False


@dataclass
class Blob:
    """A file: its content, and whether LFS stores it."""

    content: bytes
    large: bool

    @property
    def oid(self) -> str:
        if self.large:
            return hashlib.sha256(self.content).hexdigest()
        return hashlib.sha1(f"blob {len(self.content)}\0".encode() + self.content).hexdigest()

    def described(self, name: str) -> dict[str, Any]:
        fields: dict[str, Any] = {"type": "file", "path": name, "size": len(self.content), "oid": self.oid}
        if self.large:
            fields["lfs"] = {"oid": self.oid, "size": len(self.content), "pointerSize": 134}
        return fields


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
        id = hashlib.sha1(f"{len(self.commits)} {message}".encode()).hexdigest()
        self.commits[id] = Commit(id, message, self.branches.get(branch), files)
        self.branches[branch] = id
        return self.commits[id]

    def commit(self, revision: str) -> Commit:
        commit = self.commits.get(self.branches.get(revision) or self.tags.get(revision) or revision)
        if commit is None:
            raise Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return commit

    def history(self, branch: str = "main") -> list[Commit]:
        """Return the commits from the last to the first."""
        commits, id = [], self.branches.get(branch)
        while id is not None:
            commits.append(self.commits[id])
            id = self.commits[id].parent
        return commits


class Refusal(Exception):
    """An error, with the code by which huggingface_hub recognises it."""

    def __init__(self, status: int, message: str, code: str = ""):
        super().__init__(message)
        self.status, self.headers = status, {"X-Error-Message": message, "X-Error-Code": code}


class HubServer:
    """The server, in a thread of this process.

    repos, large_objects: the stored data.  faults: what goes wrong next.  log: (method, path, status) of each request.
    received: the LFS objects that were uploaded, with their sizes
    """

    def __init__(self):
        self.repos: dict[str, Repo] = {}
        self.large_objects: dict[str, bytes] = {}
        self.faults: list[Fault] = []
        self.log: list[tuple[str, str, int]] = []
        self.unknown: list[tuple[str, str]] = []
        self.received: list[tuple[str, int]] = []
        self.lock = threading.RLock()
        self.closed = threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("HubHandler", (Handler,), {"hub": self}))
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
        attributes = "".join(f"*{suffix} filter=lfs\n" for suffix in LARGE).encode()
        contents = {".gitattributes": attributes, **files}
        repo.add("main", "initial commit", {name: Blob(content, False) for name, content in contents.items()})
        return repo

    def files(self, repo_id: str, revision: str = "main") -> dict[str, bytes]:
        """Return names and contents at a revision, without .gitattributes."""
        files = self.repos[repo_id].commit(revision).files
        return {name: blob.content for name, blob in files.items() if name != ".gitattributes"}

    def requests(self, method: str, path: str) -> list[int]:
        """Return the statuses of the requests with this method whose path contains `path`."""
        return [status for used, requested, status in self.log if used == method and path in requested]

    def next_fault(self, method: str, path: str) -> Fault | None:
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
        self.at, self.query = unquote(parts.path), parse_qs(parts.query)
        fault = self.hub.next_fault(self.command, parts.path)
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if fault is not None and fault.silent:
            self.hub.log.append((self.command, self.at, 0))
            self.hub.closed.wait()
            self.close_connection = True
            return
        answer: Answer = (0, {}, {})
        if fault is None or fault.done:
            try:
                with self.hub.lock:
                    answer = self.route()
            except Refusal as refusal:
                answer = (refusal.status, {"error": str(refusal)}, refusal.headers)
        if fault is not None:
            answer = (fault.status, {"error": fault.message}, {})
        self.answer(*answer)

    do_GET = do_HEAD = do_POST = do_PUT = do_request

    def answer(self, status: int, content: Any, headers: dict[str, str]) -> None:
        self.hub.log.append((self.command, self.at, status))
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        kind = "application/octet-stream" if isinstance(content, bytes) else "application/json"
        for name, value in ({"Content-Type": kind, "Content-Length": str(len(body))} | headers).items():
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

    def route(self) -> Answer:
        for method, pattern, action in ROUTES:
            found = re.fullmatch(pattern, self.at)
            if found and self.command.replace("HEAD", "GET") == method:
                return action(self, **found.groupdict())
        self.hub.unknown.append((self.command, self.at))
        raise Refusal(501, f"this server does not know {self.command} {self.at}")

    # ---- rights --------------------------------------------------------------------------------------------------

    def rights(self) -> str | None:
        """Return what OWNER's token allows; None without a token."""
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ").strip()
        if token and token not in RIGHTS:
            raise Refusal(401, "Invalid credentials in Authorization header")
        return RIGHTS.get(token)

    def check_write(self, owner: str) -> None:
        rights = self.rights()
        if rights is None:
            raise Refusal(401, "Invalid username or password.")
        if (owner, rights) != (OWNER, "write"):
            raise Refusal(403, f"You don't have the rights to write in the namespace {owner}")

    def repo(self, repo_id: str, write: bool = False) -> Repo:
        rights, repo = self.rights(), self.hub.repos.get(repo_id)
        if repo is None or (repo.private and (rights is None or not repo_id.startswith(f"{OWNER}/"))):
            raise Refusal(401 if rights is None else 404, "Repository not found", "RepoNotFound")
        if write:
            self.check_write(repo_id.split("/")[0])
        return repo

    def json(self) -> Any:
        return json.loads(self.body or b"{}")

    # ---- the API -------------------------------------------------------------------------------------------------

    def agents(self) -> Answer:
        """Answer the request that huggingface_hub makes for its user agent."""
        return 404, {}, {}

    def create_repo(self) -> Answer:
        wanted = self.json()
        owner = wanted.get("organization") or OWNER
        self.check_write(owner)
        repo_id = f"{owner}/{wanted['name']}"
        address = {"url": f"{self.hub.url}/{repo_id}", "name": repo_id}
        if repo_id in self.hub.repos:
            return 409, address | {"error": "You already created this model repo"}, {}
        self.hub.create(repo_id, wanted.get("visibility") == "private" or bool(wanted.get("private")))
        return 200, address, {}

    def info(self, repo: str, revision: str = "main") -> Answer:
        found = self.repo(repo)
        commit = found.commit(revision)
        fields: dict[str, Any] = {"_id": "0" * 24, "id": repo, "modelId": repo, "sha": commit.id}
        fields |= {"private": found.private, "gated": False, "disabled": False, "downloads": 0, "likes": 0}
        fields |= {"tags": [], "library_name": "transformers", "author": repo.split("/")[0]}
        if "README.md" in commit.files:
            fields["cardData"] = metadata(commit.files["README.md"].content.decode())
            fields["pipeline_tag"] = fields["cardData"].get("pipeline_tag")
        fields["siblings"] = [{"rfilename": name} for name in sorted(commit.files)]
        return 200, fields, {}

    def tree(self, repo: str, revision: str) -> Answer:
        files = self.repo(repo).commit(revision).files
        return 200, [blob.described(name) for name, blob in sorted(files.items())], {}

    def chat_templates(self, repo: str, revision: str) -> Answer:
        raise Refusal(404, "additional_chat_templates does not exist", "EntryNotFound")

    def refs(self, repo: str) -> Answer:
        found = self.repo(repo)

        def listed(kind: str, refs: dict[str, str]) -> list[dict[str, str]]:
            return [{"name": name, "ref": f"refs/{kind}/{name}", "targetCommit": at} for name, at in refs.items()]

        branches, tags = listed("heads", found.branches), listed("tags", found.tags)
        return 200, {"branches": branches, "tags": tags, "converts": []}, {}

    def create_branch(self, repo: str, name: str) -> Answer:
        found = self.repo(repo, write=True)
        found.branches[name] = found.commit(self.json().get("startingPoint", "main")).id
        return 200, {}, {}

    def create_tag(self, repo: str, revision: str) -> Answer:
        found, name = self.repo(repo, write=True), self.json()["tag"]
        if name in found.tags:
            raise Refusal(409, f"Tag already exists: {name}")
        found.tags[name] = found.commit(revision).id
        return 200, {}, {}

    def preupload(self, repo: str, revision: str) -> Answer:
        there = self.repo(repo, write=True).commit(revision).files
        answers = []
        for path in (file["path"] for file in self.json()["files"]):
            answer = {"path": path, "uploadMode": "lfs" if path.endswith(LARGE) else "regular", "shouldIgnore": False}
            answers.append(answer | ({"oid": there[path].oid} if path in there else {}))
        return 200, {"files": answers}, {}

    def lfs_batch(self, repo: str) -> Answer:
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

    def lfs_put(self, oid: str) -> Answer:
        self.hub.large_objects[oid] = self.body
        self.hub.received.append((oid, len(self.body)))
        return 200, {}, {"ETag": hashlib.md5(self.body).hexdigest()}

    def lfs_verify(self) -> Answer:
        wanted = self.json()
        content = self.hub.large_objects.get(wanted["oid"], b"")
        if (Blob(content, True).oid, len(content)) != (wanted["oid"], wanted["size"]):
            raise Refusal(422, "The uploaded object has another checksum")
        return 200, {}, {}

    def make_commit(self, repo: str, revision: str) -> Answer:
        found = self.repo(repo, write=True)
        last = found.commit(revision)
        files, message = dict(last.files), ""
        for key, value in (json.loads(line).values() for line in self.body.splitlines()):
            if key == "header":
                message = value["summary"]
                if value.get("parentCommit") not in (None, last.id):
                    raise Refusal(412, "A commit has happened since. Please refresh and try again.")
            elif key == "file":
                files[value["path"]] = Blob(base64.b64decode(value["content"]), False)
            elif key == "lfsFile":
                files[value["path"]] = Blob(self.hub.large_objects[value["oid"]], True)
            elif key == "deletedFile":
                del files[value["path"]]
        commit = found.add(revision, message, files)
        url = f"{self.hub.url}/{repo}/commit/{commit.id}"
        return 200, {"success": True, "commitOid": commit.id, "commitUrl": url}, {}

    def validate_yaml(self) -> Answer:
        metadata(self.json()["content"])
        return 200, {"errors": [], "warnings": []}, {}

    def resolve(self, repo: str, revision: str, name: str) -> Answer:
        commit = self.repo(repo).commit(revision)
        blob = commit.files.get(name)
        if blob is None:
            return 404, {"error": "Entry not found"}, {"X-Repo-Commit": commit.id, "X-Error-Code": "EntryNotFound"}
        headers = {"X-Repo-Commit": commit.id, "ETag": f'"{blob.oid}"'}
        if blob.large:
            headers |= {"X-Linked-Etag": f'"{blob.oid}"', "X-Linked-Size": str(len(blob.content))}
        return 200, blob.content, headers


REPO = r"(?P<repo>[\w.-]+/[\w.-]+)"
MODEL = rf"/api/models/{REPO}"
ROUTES = [
    ("GET", r"/api/agent-harnesses", Handler.agents),
    ("POST", r"/api/repos/create", Handler.create_repo),
    ("POST", r"/api/validate-yaml", Handler.validate_yaml),
    ("GET", MODEL, Handler.info),
    ("GET", rf"{MODEL}/revision/(?P<revision>.+)", Handler.info),
    ("GET", rf"{MODEL}/tree/(?P<revision>[^/]+)", Handler.tree),
    ("GET", rf"{MODEL}/tree/(?P<revision>[^/]+)/additional_chat_templates", Handler.chat_templates),
    ("GET", rf"{MODEL}/refs", Handler.refs),
    ("POST", rf"{MODEL}/branch/(?P<name>.+)", Handler.create_branch),
    ("POST", rf"{MODEL}/tag/(?P<revision>.+)", Handler.create_tag),
    ("POST", rf"{MODEL}/preupload/(?P<revision>.+)", Handler.preupload),
    ("POST", rf"{MODEL}/commit/(?P<revision>.+)", Handler.make_commit),
    ("POST", rf"/{REPO}\.git/info/lfs/objects/batch", Handler.lfs_batch),
    ("PUT", r"/lfs/(?P<oid>[0-9a-f]{64})", Handler.lfs_put),
    ("POST", r"/lfs-verify", Handler.lfs_verify),
    ("GET", rf"/{REPO}/resolve/(?P<revision>[^/]+)/(?P<name>.+)", Handler.resolve),
]


def metadata(card: str) -> dict[str, Any]:
    """Return the YAML between the first two lines of dashes."""
    block = re.match(r"---\n(.*?)\n---\n", card, re.DOTALL)
    return yaml.safe_load(block[1]) if block else {}
