"""A push reports each fault of the Hub or the network in one line, and pushing again finishes the work."""

import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hub_server import OWNER, READ_TOKEN, WRITE_TOKEN, Fault, HubServer
from huggingface_hub import HfApi, constants

from hub import remote
from hub.contents import Files
from vaswani_transformer.errors import InputError, UnavailableError

# huggingface_hub uploads with an argument that httpx has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")

REPO = f"{OWNER}/model"
FILES: Files = {
    "README.md": b"---\nlanguage:\n- en\n---\n\n# model\n",
    "config.json": b'{"model_type": "vaswani_transformer"}\n',
    "model.safetensors": bytes(range(256)) * 800,
    "onnx/model.onnx": b"an ONNX file",
}


@pytest.fixture
def hub(monkeypatch) -> Iterator[HubServer]:
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # the server speaks LFS, not Xet
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    with HubServer() as server:
        yield server
    assert not server.unknown


class Pusher:
    """Pushes FILES to a server as `python -m hub push --yes` does."""

    def __init__(self, hub: HubServer, token: str | bool = WRITE_TOKEN):
        self.api = HfApi(endpoint=hub.url, token=token)

    def plan(self, files: Files = FILES, repo_id: str = REPO, revision: str = "main") -> remote.Plan:
        return remote.plan(self.api, repo_id, revision, files)

    def push(self, files: Files = FILES, planned: remote.Plan | None = None, **options: Any) -> str:
        settings = {"private": False, "tag": None, "message": "a model"}
        settings |= {name: options.pop(name) for name in list(options) if name in settings}
        return remote.push(self.api, planned or self.plan(files, **options), files, **settings)

    def refusal(self, kind: type[Exception], **options: Any) -> str:
        with pytest.raises(kind) as refused:
            self.push(**options)
        assert "\n" not in str(refused.value)
        return str(refused.value)


def assert_arrived(hub: HubServer, tag: str | None = None) -> None:
    """All files, in one commit after the Hub's first one; large files were sent once."""
    repo = hub.repos[REPO]
    assert hub.files(REPO) == FILES
    assert len(repo.history()) == 2 and len(hub.received) == 2
    assert tag is None or repo.tags == {tag: repo.branches["main"]}


# ---- without a fault ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("private", [False, True])
def test_a_push_is_one_commit(hub, private):
    address = Pusher(hub).push(tag="v1.0", private=private)
    assert_arrived(hub, "v1.0")
    repo = hub.repos[REPO]
    assert address == f"{hub.url}/{REPO}/commit/{repo.branches['main']}"
    assert repo.history()[0].message == "a model" and repo.private is private


def test_a_plan_sends_nothing(hub):
    assert [change.kind for change in Pusher(hub).plan().changes] == ["new"] * len(FILES)
    assert not hub.repos and {method for method, _, _ in hub.log} == {"GET"}


def test_a_second_push_sends_only_what_has_changed(hub):
    pusher = Pusher(hub)
    first = pusher.push()
    assert pusher.push() == first  # no change, no commit
    changed = FILES | {"config.json": b"{}\n"}
    kinds = {change.name: change.kind for change in pusher.plan(changed).changes}
    assert kinds == dict.fromkeys(FILES, "same") | {"config.json": "changed"}
    pusher.push(changed)
    assert hub.files(REPO) == changed
    assert len(hub.received) == 2  # each large file once


def test_only_files_of_an_earlier_push_are_deleted(hub):
    others = {"LICENSE": b"theirs", "backup/model.safetensors": b"theirs", "onnx/deeper/model.onnx": b"theirs"}
    hub.create(REPO, **{"onnx/old.onnx": b"old", "model-00001-of-00002.safetensors": b"old"}, **others)
    Pusher(hub).push()
    assert hub.files(REPO) == FILES | others
    assert len(hub.repos[REPO].history()) == 2  # additions and deletions in one commit


@pytest.mark.parametrize("there", [{}, {"LICENSE": b"ours"}], ids=["new", "existing"])
def test_a_new_revision_starts_from_main(hub, there):
    if there:
        hub.create(REPO, **there)
    Pusher(hub).push(revision="next")
    assert hub.files(REPO, "next") == FILES | there and hub.files(REPO) == there


# ---- faults ------------------------------------------------------------------------------------------------------

STEPS = [
    ("POST", "/api/repos/create"),
    ("POST", "/preupload/"),
    ("POST", "/info/lfs/objects/batch"),
    ("PUT", "/lfs/"),
    ("POST", "/lfs-verify"),
    ("POST", "/validate-yaml"),
    ("POST", "/commit/"),
    ("POST", "/tag/"),
]
READS = [("GET", f"/api/models/{REPO}"), ("GET", "/revision/main"), ("GET", "/tree/")]


@pytest.mark.parametrize(("method", "path"), [*STEPS, *READS], ids=str)
def test_a_second_push_recovers_from_a_failed_step(hub, method, path):
    if (method, path) in READS:
        hub.create(REPO)
    hub.faults.append(Fault(method, path, status=500, times=1000, message="down"))
    assert "the Hub fails" in Pusher(hub).refusal(UnavailableError, tag="v1")
    hub.faults.clear()
    Pusher(hub).push(tag="v1")
    assert_arrived(hub, "v1")


@pytest.mark.parametrize(
    ("status", "path", "kind", "message"),
    [
        (401, "/api/repos/create", UnavailableError, "`hf auth login`, or set HF_TOKEN"),
        (403, "/api/repos/create", UnavailableError, f"you may not write to {REPO}"),
        (404, "/api/repos/create", InputError, "no such owner"),
        (412, "/commit/", InputError, "has changed since it was compared"),
        (413, "/commit/", InputError, "the Hub refuses: status 413"),
        (400, "/validate-yaml", InputError, "the Hub refuses"),
        (429, "/commit/", UnavailableError, "the Hub limits your requests"),
        (403, "/info/lfs/objects/batch", UnavailableError, f"you may not write to {REPO}"),
        (403, "/tag/", UnavailableError, f"you may not write to {REPO}"),
    ],
)
def test_a_second_push_recovers_from_a_refusal(hub, status, path, kind, message):
    hub.faults.append(Fault("POST", path, status=status, message="the Hub's reason"))
    assert message in Pusher(hub).refusal(kind, tag="v1")
    Pusher(hub).push(tag="v1")
    assert_arrived(hub, "v1")


def test_a_commit_with_a_lost_response_is_not_repeated(hub):
    hub.faults.append(Fault("POST", "/commit/", status=502, done=True))
    assert remote.RESUME in Pusher(hub).refusal(UnavailableError, tag="v1")
    Pusher(hub).push(tag="v1")
    assert_arrived(hub, "v1")


def test_an_unreachable_hub_is_a_one_line_error():
    with HubServer() as stopped:
        pusher = Pusher(stopped)
    with pytest.raises(UnavailableError, match="the Hub cannot be reached: ConnectError"):
        pusher.plan()


def test_warnings_of_retried_uploads_do_not_show_signed_addresses(hub):
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = logging.getLogger("huggingface_hub")
    logger.addHandler(handler)
    try:
        hub.faults.append(Fault("PUT", "/lfs/", status=500))
        Pusher(hub).push()
    finally:
        logger.removeHandler(handler)
    assert_arrived(hub)
    assert any("HTTP Error 500 thrown while requesting PUT the Hub" in line for line in lines)
    assert not any("http://" in line for line in lines)


# ---- refusals by push itself -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("token", "repo_id", "message"),
    [
        (False, REPO, "`hf auth login`, or set HF_TOKEN"),
        ("hf_" + "UnknownUnknownUnknown", REPO, "status 401"),
        (READ_TOKEN, REPO, "you may not write"),
        (WRITE_TOKEN, "other/model", "you may not write to other/model"),
    ],
)
def test_a_token_without_write_access_is_refused(hub, token, repo_id, message):
    line = Pusher(hub, token).refusal(UnavailableError, repo_id=repo_id)
    assert message in line and str(token) not in line and not hub.repos


def test_a_commit_made_after_the_comparison_is_not_overwritten(hub):
    hub.create(REPO)
    planned = Pusher(hub).plan()
    hub.repos[REPO].add("main", "another commit", {})
    assert "has changed since it was compared" in Pusher(hub).refusal(InputError, planned=planned)
    assert hub.repos[REPO].history()[0].message == "another commit"
    Pusher(hub).push()
    assert hub.files(REPO) == FILES


def test_an_existing_tag_is_refused_before_anything_is_sent(hub):
    pusher = Pusher(hub)
    pusher.push(tag="v1")
    remote.refuse_existing_tag(pusher.api, pusher.plan(), "v1")  # already where it would be put
    with pytest.raises(InputError, match="already has this tag"):
        remote.refuse_existing_tag(pusher.api, pusher.plan({"config.json": b"{}"}), "v1")


@pytest.mark.parametrize("name", ["model", "a/b/c", "a b/c", "a/b..c", "é/b", ""])
def test_an_invalid_repository_name_is_refused(name):
    with pytest.raises(InputError, match="REPO is "):
        remote.check_repo_id(name)


@pytest.mark.parametrize("name", ["", "a b", "a..b", "-a", "a/", "a//b", ".a", "a.lock", "é", "a~1", "a:b"])
def test_an_invalid_revision_is_refused(name):
    with pytest.raises(InputError, match="is not a valid branch or tag name"):
        remote.check_revision(name, "--revision")
