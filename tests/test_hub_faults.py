"""A push reports each fault of the Hub or the network in one line, and pushing again finishes the work."""

import io
import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import one_fast_in
from hub_server import OWNER, WRITE_TOKEN, Commit, Fault, HubServer
from huggingface_hub import HfApi, constants

from hub import remote
from hub.contents import Files
from vaswani_transformer.errors import InputError, UnavailableError
from vaswani_transformer.hub_files import RESUME

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


@pytest.fixture
def api(hub) -> HfApi:
    return HfApi(endpoint=hub.url, token=WRITE_TOKEN)


def plan(api: HfApi, files: Files = FILES, repo_id: str = REPO, revision: str = "main", **options: Any) -> remote.Plan:
    return remote.plan(api, repo_id, revision, files, **options)


def push(api: HfApi, files: Files = FILES, **options: Any) -> str:
    return remote.push(api, plan(api, files, **options), files, "a model")


def refusal(kind: type[Exception], api: HfApi, **options: Any) -> str:
    """Return the one-line error of a push."""
    with pytest.raises(kind) as refused:
        push(api, **options)
    assert "\n" not in str(refused.value) and WRITE_TOKEN not in str(refused.value)
    return str(refused.value)


def assert_arrived(hub: HubServer, tag: str | None = None) -> None:
    """All files, in one commit after the Hub's first one; large files were sent once."""
    repo = hub.repos[REPO]
    assert hub.files(REPO) == FILES
    assert len(repo.main) == 2 and len(hub.received) == 2
    assert tag is None or repo.tags == {tag: repo.main[-1].id}


# ---- without a fault ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("private", [False, True])
def test_a_push_is_one_commit(hub, api, private):
    address = push(api, tag="v1.0", private=private)
    assert_arrived(hub, "v1.0")
    repo = hub.repos[REPO]
    assert address == f"{hub.url}/{REPO}/commit/{repo.main[-1].id}"
    assert repo.main[-1].message == "a model" and repo.private is private


def test_a_second_push_sends_only_what_has_changed(hub, api):
    first = push(api)
    assert push(api) == first  # no change, no commit
    changed = FILES | {"config.json": b"{}\n"}
    kinds = {change.name: change.status for change in plan(api, changed).changes}
    assert kinds == dict.fromkeys(FILES, "same") | {"config.json": "changed"}
    push(api, changed)
    assert hub.files(REPO) == changed
    assert len(hub.received) == 2  # each large file once


def test_only_files_of_an_earlier_push_are_deleted(hub, api):
    others = {"LICENSE": b"theirs", "backup/model.safetensors": b"theirs", "onnx/deeper/model.onnx": b"theirs"}
    repo = hub.create(REPO, **{"onnx/old.onnx": b"old", "model-00001-of-00002.safetensors": b"old"}, **others)
    push(api)
    assert hub.files(REPO) == FILES | others
    assert len(repo.main) == 2  # additions and deletions in one commit


@pytest.mark.parametrize("revision", ["main", "next/one"])
def test_a_gitignore_in_the_repository_leaves_nothing_out(hub, api, revision):
    """huggingface_hub leaves out the files that it names, and reports success."""
    hub.create(REPO, **{".gitignore": b"*.safetensors\nconfig.json\n", "model.safetensors": b"old"})
    push(api, revision=revision)
    files = hub.files(REPO, revision)
    assert files.pop(".gitignore") and files == FILES
    assert push(api, revision=revision).endswith(hub.repos[REPO].branches[revision][-1].id)  # nothing more to do


@pytest.mark.parametrize("there", [{}, {"LICENSE": b"ours"}], ids=["new", "existing"])
def test_a_new_revision_starts_from_main(hub, api, there):
    if there:
        hub.create(REPO, **there)
    push(api, revision="next")
    assert hub.files(REPO, "next") == FILES | there and hub.files(REPO) == there


# ---- faults ------------------------------------------------------------------------------------------------------

STEPS = {
    "POST": [
        "/api/repos/create", "/preupload/", "/info/lfs/objects/batch", "/validate-yaml", "/commit/", "/tag/",
    ],
    "PUT": ["/lfs/"],
    "GET": [f"/api/models/{REPO}", "/revision/main", "/tree/", "/refs"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("method", "path", "status", "kind", "message"),
    [
        *(
            (method, path, 500, UnavailableError, "the Hub returned a server error")
            for method in STEPS
            for path in STEPS[method]
        ),
        ("POST", "/api/repos/create", 401, UnavailableError, "`hf auth login` or set HF_TOKEN"),
        ("POST", "/api/repos/create", 403, UnavailableError, f"{REPO}: no access: status 403"),
        ("POST", "/api/repos/create", 404, InputError, "not found on the Hub"),
        ("POST", "/commit/", 412, InputError, "received another commit during this push"),
        ("POST", "/commit/", 413, InputError, "the Hub rejected the request: status 413"),
        ("POST", "/validate-yaml", 400, InputError, "the Hub rejected the request"),
        ("POST", "/commit/", 429, UnavailableError, "rate limit reached"),
        ("POST", "/info/lfs/objects/batch", 403, UnavailableError, f"{REPO}: no access: status 403"),
        ("POST", "/tag/", 403, UnavailableError, f"{REPO}: no access: status 403"),
    ],
)
def test_a_second_push_recovers_from_a_fault(hub, api, method, path, status, kind, message):
    if method == "GET":
        hub.create(REPO)
    hub.faults.append(Fault(method, path, status=status, times=1000, message="the Hub's reason"))
    assert message in refusal(kind, api, tag="v1")
    hub.faults.clear()
    push(api, tag="v1")
    assert_arrived(hub, "v1")


STRANGE = [
    b"<html>Please log in</html>", b"", b"null", {}, [], 5, "text", [5], [{}], {"error": "no"},
    [{"type": "file", "path": 5, "size": "x", "oid": None}], {"sha": 5, "private": "no"}, {"files": 5}, {"url": 5},
    {"objects": [{}]}, {"branches": 5, "tags": [{}], "converts": None}, {"commitUrl": 5, "commitOid": 5},
]  # fmt: skip


@pytest.mark.parametrize(
    ("method", "path", "content"),
    one_fast_in(12, ((method, path, content) for method in STEPS for path in STEPS[method] for content in STRANGE)),
)
def test_a_strange_answer_is_named_or_does_no_harm(hub, api, method, path, content):
    """Such as that of a proxy that wants a login, or of a server that is not a Hub."""
    if method == "GET":
        hub.create(REPO)
    hub.faults.append(Fault(method, path, times=1000, content=content))
    try:
        push(api, tag="v1")
    except UnavailableError as error:
        assert "\n" not in str(error) and str(error).endswith(RESUME)
    hub.faults.clear()
    push(api, tag="v1")
    assert hub.files(REPO) == FILES


def test_an_error_of_the_large_file_storage_is_named(hub, api, monkeypatch):
    """hf_xet, by which a user uploads, has errors of its own; their addresses may be signed."""
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", False)
    hub.faults.append(Fault("GET", "/xet-write-token/", times=99, status=401))
    line = refusal(UnavailableError, api)
    assert line.startswith(f"{REPO}: the Hub cannot be reached (") and line.endswith(RESUME) and hub.url not in line
    assert not hub.files(REPO)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    push(api)
    assert_arrived(hub)


@pytest.mark.parametrize("path", ["/api/repos/create", "/commit/"])
def test_a_request_with_a_lost_response_is_not_repeated(hub, api, path):
    hub.faults.append(Fault("POST", path, status=502, done=True))
    assert "try again later" in refusal(UnavailableError, api, tag="v1")
    push(api, tag="v1")
    assert_arrived(hub, "v1")


def test_an_unreachable_hub_is_a_one_line_error():
    with HubServer() as stopped:
        pass
    line = refusal(UnavailableError, HfApi(endpoint=stopped.url))
    assert line.startswith(f"{REPO}: the Hub cannot be reached (ConnectError")


def test_warnings_of_retried_uploads_do_not_show_signed_addresses(hub, api, monkeypatch):
    shown = io.StringIO()
    monkeypatch.setattr(logging.getLogger("huggingface_hub"), "handlers", [logging.StreamHandler(shown)])
    hub.faults.append(Fault("PUT", "/lfs/", status=500))
    push(api)
    assert_arrived(hub)
    assert "HTTP Error 500 thrown while requesting PUT the Hub" in shown.getvalue()
    assert "http://" not in shown.getvalue()


# ---- checks of push itself ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [False, "hf_" + "UnknownUnknownUnknown"])
def test_a_push_without_a_valid_token_is_refused(hub, token):
    line = refusal(UnavailableError, HfApi(endpoint=hub.url, token=token))
    assert "status 401" in line and "`hf auth login` or set HF_TOKEN" in line
    assert str(token) not in line and not hub.repos


def test_a_commit_made_after_the_comparison_is_not_overwritten(hub, api):
    repo = hub.create(REPO)
    planned = plan(api)
    repo.main.append(Commit("another commit", {}))
    with pytest.raises(InputError, match="received another commit during this push"):
        remote.push(api, planned, FILES, "a model")
    assert repo.main[-1].message == "another commit"
    push(api)
    assert hub.files(REPO) == FILES


def test_a_repository_created_after_the_comparison_is_not_overwritten(hub, api):
    planned = plan(api)
    hub.create(REPO, **{"config.json": b"theirs"})
    with pytest.raises(InputError, match=f"{REPO}: it was created during this push"):
        remote.push(api, planned, FILES, "a model")
    assert hub.files(REPO) == {"config.json": b"theirs"}


def test_a_new_branch_starts_from_the_commit_of_the_comparison(hub, api):
    repo = hub.create(REPO, LICENSE=b"ours")
    planned = plan(api, revision="next")
    repo.main.append(Commit("another commit", {}))
    remote.push(api, planned, FILES, "a model")
    assert hub.files(REPO, "next") == FILES | {"LICENSE": b"ours"}


def test_an_existing_tag_is_refused_before_anything_is_sent(hub, api):
    push(api, tag="v1")
    push(api, tag="v1")  # already where it would be put
    assert "already has this tag" in refusal(InputError, api, files={"config.json": b"{}"}, tag="v1")
    assert_arrived(hub, "v1")
