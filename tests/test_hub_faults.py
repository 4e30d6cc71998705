"""A push survives what the Hub and the way to it do, or says in one line what is wrong; a second push finishes it."""

import hashlib
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hub_server import OWNER, READ_TOKEN, WRITE_TOKEN, Fault, HubServer
from huggingface_hub import HfApi, constants, set_client_factory
from huggingface_hub.utils._http import default_client_factory

from hub import remote
from hub.contents import Files
from vaswani_transformer.errors import InputError, UnavailableError

# huggingface_hub uploads with an argument of httpx that is about to go.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")

REPO = f"{OWNER}/model"
WEIGHTS = bytes(range(256)) * 800
SHORT = b"an ONNX file"
FILES: Files = {
    "README.md": b"---\nlanguage:\n- en\n---\n\n# model\n",
    "config.json": b'{"model_type": "vaswani_transformer"}\n',
    "model.safetensors": WEIGHTS,
    "onnx/model.onnx": SHORT,
}


@pytest.fixture
def hub(monkeypatch) -> Iterator[HubServer]:
    # The LFS protocol: Xet's is not HTTP alone.
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    with HubServer() as server:
        yield server
    assert not server.unknown


@pytest.fixture
def waits(monkeypatch) -> list[float]:
    """The seconds of every wait, which then takes no time."""
    found: list[float] = []
    monkeypatch.setattr(time, "sleep", found.append)
    return found


class Pusher:
    """Pushes FILES; what it has said is in `said`."""

    def __init__(self, hub: HubServer, token: str = WRITE_TOKEN):
        self.hub, self.api, self.said = hub, HfApi(endpoint=hub.url, token=token), list[str]()

    def push(self, files: Files = FILES, repo_id: str = REPO, revision: str = "main", **options: Any) -> str:
        planned = remote.plan(self.api, repo_id, revision, files, self.said.append)
        settings = {"private": False, "tag": None, "message": "a model", "say": self.said.append} | options
        return remote.push(self.api, repo_id, revision, files, planned, **settings)

    def refusal(self, kind: type[Exception], **options: Any) -> str:
        with pytest.raises(kind) as refused:
            self.push(**options)
        line = str(refused.value)
        assert "\n" not in line
        for secret in (WRITE_TOKEN, READ_TOKEN, "X-Amz-Signature"):
            assert secret not in line and not any(secret in said for said in self.said)
        return line


def assert_arrived(hub: HubServer, repo_id: str = REPO, commits: int = 1) -> None:
    """All files, as they were, in so many commits after the Hub's own first one."""
    assert hub.files(repo_id) == FILES
    assert len(hub.repos[repo_id].history()) == 1 + commits


# ---- without a fault ---------------------------------------------------------------------------------------------


def test_a_push_is_one_commit(hub):
    where = Pusher(hub).push(tag="v1.0")
    assert_arrived(hub)
    head = hub.repos[REPO].branches["main"]
    assert where == f"{hub.url}/{REPO}/commit/{head}"
    assert hub.repos[REPO].tags == {"v1.0": head}
    assert hub.repos[REPO].history()[0].message == "a model"
    assert not hub.repos[REPO].private


def test_a_new_repository_can_be_private(hub):
    Pusher(hub).push(private=True)
    assert hub.repos[REPO].private


def test_a_plan_sends_nothing(hub):
    planned = remote.plan(HfApi(endpoint=hub.url, token=WRITE_TOKEN), REPO, "main", FILES, print)
    assert [change.what for change in planned.changes] == ["new"] * len(FILES)
    assert not hub.repos and {method for method, _, _ in hub.log} == {"GET"}


def test_a_second_push_sends_what_has_changed_alone(hub):
    pusher = Pusher(hub)
    first = pusher.push()
    assert pusher.push() == first  # nothing has changed: no commit
    changed = FILES | {"config.json": b"{}\n"}
    planned = remote.plan(pusher.api, REPO, "main", changed, print)
    assert {change.name: change.what for change in planned.changes} == dict.fromkeys(FILES, "same") | {
        "config.json": "changed"
    }
    pusher.push(changed)
    assert hub.files(REPO) == changed
    assert len(hub.received) == 2  # the large files, once


def test_files_of_an_earlier_push_go_and_those_of_others_stay(hub):
    others = {"LICENSE": b"theirs", "backup/model.safetensors": b"theirs", "onnx/deeper/model.onnx": b"theirs"}
    hub.create(REPO, **{"onnx/old.onnx": b"old", "model-00001-of-00002.safetensors": b"old"}, **others)
    Pusher(hub).push()
    assert hub.files(REPO) == FILES | others
    assert len(hub.repos[REPO].history()) == 2  # additions and deletions in one


def test_a_new_revision_begins_where_main_is(hub):
    hub.create(REPO, LICENSE=b"ours")
    Pusher(hub).push(revision="next")
    assert hub.files(REPO, "next") == FILES | {"LICENSE": b"ours"}
    assert hub.files(REPO) == {"LICENSE": b"ours"}


def test_a_repository_that_does_not_exist_gets_its_new_revision(hub):
    Pusher(hub).push(revision="next")
    assert hub.files(REPO, "next") == FILES and hub.files(REPO) == {}


# ---- faults after which a push succeeds --------------------------------------------------------------------------

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
READS = [("GET", f"/api/models/{REPO}"), ("GET", "/revision/main"), ("GET", "/tree/"), ("GET", "/refs")]


@pytest.mark.parametrize(("method", "path"), STEPS, ids=str)
@pytest.mark.parametrize(("status", "times"), [(500, 2), (429, 1)])
def test_a_step_that_fails_for_a_while_is_done_again(hub, waits, method, path, status, times):
    hub.faults.append(Fault(method, path, status=status, times=times, message="try again later"))
    pusher = Pusher(hub)
    pusher.push(tag="v1")
    assert_arrived(hub)
    assert hub.repos[REPO].tags == {"v1": hub.repos[REPO].branches["main"]}
    assert len(waits) == times and len(pusher.said) >= times


@pytest.mark.parametrize(("method", "path"), [*STEPS, *READS[:3]], ids=str)
def test_the_wait_is_the_one_that_the_hub_asks_for(hub, waits, method, path):
    hub.create(REPO) if (method, path) in READS else None
    hub.faults.append(Fault(method, path, status=429, headers={"Retry-After": "17"}))
    Pusher(hub).push(tag="v1")
    assert_arrived(hub)
    assert len(waits) == 1 and 17 <= waits[0] <= 18  # huggingface_hub adds a second


def test_a_wait_until_a_date_is_understood(hub, waits):
    later = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 40))
    hub.faults.append(Fault("POST", "/commit/", status=503, headers={"Retry-After": later}))
    Pusher(hub).push()
    assert_arrived(hub)
    assert len(waits) == 1 and 30 <= waits[0] <= 41


@pytest.mark.parametrize("size", [0, 1, 1000, 150_000])
def test_an_upload_whose_connection_breaks_is_done_again(hub, waits, size):
    hub.faults.append(Fault("PUT", "/lfs/", reset_after=size))
    Pusher(hub).push()
    assert_arrived(hub)


def test_the_upload_of_a_short_file_breaks(hub, waits):
    hub.faults.append(Fault("PUT", f"/lfs/{hashlib.sha256(SHORT).hexdigest()}", reset_after=1000))
    Pusher(hub).push()
    assert_arrived(hub)


@pytest.fixture
def short_silence(monkeypatch) -> Iterator[None]:
    monkeypatch.setattr(remote, "SILENCE", 0.3)
    remote.limit_silence()
    yield
    set_client_factory(default_client_factory)


@pytest.mark.parametrize(("method", "path"), [*STEPS[:5], STEPS[6], *READS[:3]], ids=str)
def test_a_hub_that_falls_silent_is_asked_again(hub, waits, short_silence, method, path):
    hub.create(REPO) if (method, path) != STEPS[0] else None
    hub.faults.append(Fault(method, path, silent=True))
    Pusher(hub).push()
    assert hub.files(REPO) == FILES
    assert (method, 0) in [(how, status) for how, where, status in hub.log if path in where]


def test_a_hub_that_stays_silent_is_one_line(hub, waits, short_silence):
    hub.faults.append(Fault("POST", "/commit/", silent=True, times=100))
    line = Pusher(hub).refusal(UnavailableError)
    assert "cannot be reached" in line and "the same command goes on" in line


@pytest.mark.parametrize(("method", "path"), [("POST", "/commit/"), ("POST", "/preupload/"), *READS[1:3]], ids=str)
def test_a_request_whose_connection_breaks_is_done_again(hub, waits, method, path):
    hub.create(REPO)
    hub.faults.append(Fault(method, path, reset_after=20))
    Pusher(hub).push()
    assert_arrived(hub)


def test_a_file_that_arrives_with_another_checksum_is_sent_again(hub, waits):
    hub.faults.append(Fault("PUT", "/lfs/", corrupt=True))
    pusher = Pusher(hub)
    pusher.push()
    assert_arrived(hub)
    assert any("another checksum" in line and "sending it again" in line for line in pusher.said)


def test_a_commit_whose_answer_gets_lost_is_not_made_twice(hub, waits):
    hub.faults.append(Fault("POST", "/commit/", status=502, done=True))
    Pusher(hub).push(tag="v1")
    assert_arrived(hub)
    assert hub.repos[REPO].tags == {"v1": hub.repos[REPO].branches["main"]}


# ---- faults that end a push --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "path", "kind", "says"),
    [
        (401, "/api/repos/create", UnavailableError, "`hf auth login`, or set HF_TOKEN"),
        (403, "/api/repos/create", UnavailableError, f"you may not write to {REPO}"),
        (404, "/api/repos/create", InputError, "no such owner"),
        (409, "/commit/", InputError, "a conflict with what is there"),
        (412, "/commit/", InputError, "has changed since it was compared"),
        (413, "/commit/", InputError, "does not take so much at once"),
        (400, "/validate-yaml", InputError, "the Hub refuses"),
        (418, "/commit/", InputError, "the Hub refuses: status 418"),
        (403, "/info/lfs/objects/batch", UnavailableError, f"you may not write to {REPO}"),
        (403, "/tag/", UnavailableError, f"you may not write to {REPO}"),
    ],
)
def test_a_refusal_is_one_line_and_a_second_push_finishes(hub, waits, status, path, kind, says):
    hub.faults.append(Fault("POST", path, status=status, message="what the Hub says"))
    pusher = Pusher(hub)
    line = pusher.refusal(kind, tag="v1")
    assert says in line
    assert not waits  # what a user must mend is not tried again
    pusher.push(tag="v1")
    assert_arrived(hub)
    assert hub.repos[REPO].tags == {"v1": hub.repos[REPO].branches["main"]}


@pytest.mark.parametrize(("method", "path"), [*STEPS, *READS], ids=str)
@pytest.mark.parametrize("status", [500, 429])
def test_a_hub_that_goes_on_failing_is_given_up(hub, waits, method, path, status):
    hub.create(REPO) if (method, path) in READS else None
    hub.faults.append(Fault(method, path, status=status, times=1000, message="down"))
    if path == "/refs":
        with pytest.raises(UnavailableError) as refused:
            api = HfApi(endpoint=hub.url, token=WRITE_TOKEN)
            planned = remote.plan(api, REPO, "main", FILES, print)
            remote.refuse_tag_that_exists(api, REPO, "v1", planned, print)
        line = str(refused.value)
    else:
        line = Pusher(hub).refusal(UnavailableError, tag="v1")
    assert ("the Hub fails" if status == 500 else "the Hub still asks to wait") in line or "cannot be reached" in line
    assert 1 <= len(waits) <= 11  # of the two large files each has its own; huggingface_hub 1 retries less
    hub.faults.clear()
    Pusher(hub).push(tag="v1")
    assert_arrived(hub)


def test_a_wait_of_an_hour_is_left_to_the_user(hub, waits):
    hub.faults.append(Fault("POST", "/commit/", status=429, headers={"Retry-After": "3600"}))
    assert "the Hub still asks to wait" in Pusher(hub).refusal(UnavailableError)
    assert not waits


def test_large_files_that_have_arrived_are_not_sent_again(hub, waits):
    hub.faults.append(Fault("POST", "/commit/", status=403))
    Pusher(hub).refusal(UnavailableError)
    sent = len(hub.received)
    Pusher(hub).push()
    assert_arrived(hub)
    assert sent == len(hub.received) == 2


def test_a_file_that_never_arrives_whole_is_named(hub, waits):
    hub.faults.append(Fault("PUT", "/lfs/", corrupt=True, times=1000))
    line = Pusher(hub).refusal(InputError)
    assert "another checksum" in line
    hub.faults.clear()
    Pusher(hub).push()
    assert_arrived(hub)


def test_a_token_that_is_none_is_refused(hub):
    line = Pusher(hub, token="hf_" + "NobodyNobodyNobody").refusal(UnavailableError)
    assert "status 401" in line and "hf auth login" in line


def test_a_token_that_may_only_read_is_refused(hub):
    assert "you may not write" in Pusher(hub, token=READ_TOKEN).refusal(UnavailableError)


def test_somebody_elses_name_is_refused(hub):
    assert "you may not write to other/model" in Pusher(hub).refusal(UnavailableError, repo_id="other/model")


def test_without_a_token_nothing_is_tried(hub, monkeypatch):
    monkeypatch.setattr(remote, "get_token", lambda: None)
    api = HfApi(endpoint=hub.url)
    planned = remote.plan(HfApi(endpoint=hub.url, token=WRITE_TOKEN), REPO, "main", FILES, print)
    options: Any = {"private": False, "tag": None, "message": "m", "say": print}
    with pytest.raises(UnavailableError, match="`hf auth login`, or HF_TOKEN"):
        remote.push(api, REPO, "main", FILES, planned, **options)
    assert not hub.requests("POST", "/")


def test_a_push_between_look_and_push_is_not_overwritten(hub):
    hub.create(REPO)
    pusher = Pusher(hub)
    planned = remote.plan(pusher.api, REPO, "main", FILES, print)
    hub.repos[REPO].add("main", "somebody else's", {})
    options: Any = {"private": False, "tag": None, "message": "m", "say": print}
    with pytest.raises(InputError, match="has changed since it was compared"):
        remote.push(pusher.api, REPO, "main", FILES, planned, **options)
    assert hub.repos[REPO].history()[0].message == "somebody else's"
    pusher.push()
    assert hub.files(REPO) == FILES


def test_a_tag_that_exists_is_refused_before_anything_is_sent(hub):
    pusher = Pusher(hub)
    pusher.push(tag="v1")
    same = remote.plan(pusher.api, REPO, "main", FILES, print)
    remote.refuse_tag_that_exists(pusher.api, REPO, "v1", same, print)  # it is where it would be put
    other = remote.plan(pusher.api, REPO, "main", {"config.json": b"{}"}, print)
    with pytest.raises(InputError, match="has this tag already"):
        remote.refuse_tag_that_exists(pusher.api, REPO, "v1", other, print)


def test_a_hub_that_is_not_there_is_one_line(waits):
    with HubServer() as gone:
        api = HfApi(endpoint=gone.url, token=WRITE_TOKEN)
    with pytest.raises(UnavailableError, match="the Hub cannot be reached: ConnectError"):
        remote.plan(api, REPO, "main", FILES, print)
    assert waits == [1, 2, 4, 8]


@pytest.mark.parametrize(
    "name", ["model", "a/b/c", "a//b", "/b", "a/", "a b/c", "a/b..c", "a/--b", "a/b.git", "é/b", ""]
)
def test_a_name_that_the_hub_does_not_allow_is_refused(name):
    with pytest.raises(InputError, match="REPO is "):
        remote.checked_repo_id(name)


@pytest.mark.parametrize("name", ["", "a b", "a..b", "-a", "a/", "a//b", ".a", "a.lock", "é", "a~1", "a:b"])
def test_a_revision_that_git_does_not_allow_is_refused(name):
    with pytest.raises(InputError, match="is no name for a branch or a tag"):
        remote.checked_revision(name, "--revision")
