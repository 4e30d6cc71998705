"""The Hub: what a repository holds, what a push would change, one commit, and every refusal in one line.

Retries are by rule: 408, 429, 5xx and broken connections, five attempts, after Retry-After or else 1, 2, 4, 8 seconds.
huggingface_hub itself does so where it asks how to upload, and for the large files; here the same for all else.
"""

import fnmatch
import hashlib
import json
import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, TypeVar

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, get_token
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils import disable_progress_bars, get_session, set_client_factory, validate_repo_id

from vaswani_transformer.errors import InputError, UnavailableError, one_line

from .contents import OURS, Files

# httpx's in huggingface_hub 1, httpx2's in 2: the class of every error of the transport.
HTTPError: type[Exception] = next(base for base in HfHubHTTPError.__mro__ if base.__name__ == "HTTPError")
RETRIED = {408, 429, 500, 502, 503, 504}
ATTEMPTS = 5
LONGEST_WAIT = 600  # seconds; a Hub that asks for more is asked again by the user
SILENCE = 120  # seconds without a byte after which a connection is taken for broken

Result = TypeVar("Result")
Say = Callable[[str], None]


@dataclass(frozen=True)
class Change:
    """A file, its size in bytes (0: it goes), and what a push does to it: "new", "changed", "same" or "deleted"."""

    name: str
    size: int
    what: str


@dataclass(frozen=True)
class Plan:
    """What a push would change.

    head: the commit that it builds on, None for a repository or a revision that does not exist yet
    """

    repo_exists: bool
    private: bool
    revision_exists: bool
    head: str | None
    changes: list[Change]

    @property
    def changes_something(self) -> bool:
        return any(change.what != "same" for change in self.changes)


def checked_repo_id(repo_id: str) -> str:
    """`owner/name`. Raises InputError for a name that the Hub does not allow."""
    if repo_id.count("/") != 1:
        raise InputError(f"REPO is {repo_id!r}; it must be owner/name")
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise InputError(f"REPO is {repo_id!r}, a name that the Hub does not allow: {one_line(str(error))}") from None
    return repo_id


def checked_revision(name: str, option: str) -> str:
    """The name of a branch or a tag. Raises InputError for one that git does not allow."""
    parts = name.split("/")
    if (
        not re.fullmatch(r"[\w./+-]+", name, re.ASCII)
        or ".." in name
        or name.endswith((".", "/"))
        or any(not part or part.startswith((".", "-")) or part.endswith(".lock") for part in parts)
    ):
        raise InputError(f"{option} {name!r} is no name for a branch or a tag; letters, digits, . - _ / are allowed")
    return name


# ---- what would change -------------------------------------------------------------------------------------------


def plan(api: HfApi, repo_id: str, revision: str, files: Files, say: Say) -> Plan:
    """Compare the files with what the repository holds. Reads, writes nothing. Raises InputError, UnavailableError."""
    with one_line_errors(repo_id, revision), waits_told(say):
        try:
            repo = with_retries(lambda: api.repo_info(repo_id), "looking at the repository", say)
        except RepositoryNotFoundError:
            return Plan(False, False, False, None, [Change(n, size_of(f), "new") for n, f in sorted(files.items())])
        try:
            info = with_retries(lambda: api.repo_info(repo_id, revision=revision), "looking at the revision", say)
            at, revision_exists = str(info.sha), True
        except RevisionNotFoundError:  # a new branch begins where main is
            at, revision_exists = str(repo.sha), False
        listing = lambda: list(api.list_repo_tree(repo_id, recursive=True, revision=at))  # noqa: E731
        tree = with_retries(listing, "listing its files", say, attempts=2)  # huggingface_hub 2 retries inside as well
    there = {entry.path: entry for entry in tree if isinstance(entry, RepoFile)}
    changes = [Change(name, size_of(file), difference(file, there.get(name))) for name, file in sorted(files.items())]
    stale = sorted(name for name in there if name not in files and is_ours(name))
    changes += [Change(name, 0, "deleted") for name in stale]
    return Plan(True, bool(repo.private), revision_exists, at, changes)


def is_ours(name: str) -> bool:
    """Whether a push writes files of that name, in that folder."""
    return any(name.count("/") == ours.count("/") and fnmatch.fnmatchcase(name, ours) for ours in OURS)


def difference(file: Path | bytes, there: RepoFile | None) -> str:
    """ "new", "same" or "changed"; large files are known by their SHA-256, others by git's SHA-1."""
    if there is None:
        return "new"
    if there.size != size_of(file):
        return "changed"
    if there.lfs is not None:
        return "same" if digest(file, "sha256") == there.lfs.sha256 else "changed"
    return "same" if digest(file, "sha1", f"blob {size_of(file)}\0".encode()) == there.blob_id else "changed"


def digest(file: Path | bytes, algorithm: str, before: bytes = b"") -> str:
    if isinstance(file, bytes):
        return hashlib.new(algorithm, before + file).hexdigest()
    state = hashlib.new(algorithm, before)
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            state.update(block)
    return state.hexdigest()


def size_of(file: Path | bytes) -> int:
    return len(file) if isinstance(file, bytes) else file.stat().st_size


def refuse_tag_that_exists(api: HfApi, repo_id: str, tag: str, planned: Plan, say: Say) -> None:
    """Raises InputError: a tag that moves would change what people have downloaded by it."""
    with one_line_errors(repo_id, tag):
        refs = with_retries(lambda: api.list_repo_refs(repo_id), "listing its tags", say)
    taken = {ref.name: ref.target_commit for ref in refs.tags}
    if tag in taken and (planned.changes_something or taken[tag] != planned.head):
        raise InputError(f"--tag {tag}: {repo_id} has this tag already, at {taken[tag][:8]}; give another")


# ---- the push ----------------------------------------------------------------------------------------------------


def push(
    api: HfApi,
    repo_id: str,
    revision: str,
    files: Files,
    planned: Plan,
    *,
    private: bool,
    tag: str | None,
    message: str,
    say: Say,
) -> str:
    """Do what the plan says, in one commit; the address of that commit, or of the last one if nothing has changed.

    After a failure the same call goes on: large files that have arrived are not sent again.
    Raises InputError, UnavailableError with what the Hub refuses.
    """
    if api.token is None and get_token() is None:
        raise UnavailableError("the Hub needs to know who you are: `hf auth login`, or HF_TOKEN in the environment")
    disable_progress_bars()
    with one_line_errors(repo_id, revision), waits_told(say):
        if not planned.repo_exists:
            create = lambda: api.create_repo(repo_id, private=private, exist_ok=True)  # noqa: E731
            with_retries(create, "creating the repository", say)
        if not planned.revision_exists and revision != "main":
            branch = lambda: api.create_branch(repo_id, branch=revision, exist_ok=True)  # noqa: E731
            with_retries(branch, "creating the branch", say)
        head = planned.head
        if head is None:
            head = str(with_retries(lambda: api.repo_info(repo_id, revision=revision), "looking again", say).sha)
        changed = [change for change in planned.changes if change.what != "same"]
        commit = head
        if changed:
            commit = send(api, repo_id, revision, files, changed, head, message, say)
        if tag is not None:
            create_tag = lambda: api.create_tag(repo_id, tag=tag, revision=commit, exist_ok=True)  # noqa: E731
            with_retries(create_tag, "creating the tag", say)
    return f"{api.endpoint}/{repo_id}/commit/{commit}"


def send(
    api: HfApi,
    repo_id: str,
    revision: str,
    files: Files,
    changed: list[Change],
    head: str,
    message: str,
    say: Say,
) -> str:
    """The large files, then the commit; its id."""
    additions = []
    for change in changed:
        if change.what != "deleted":
            file = files[change.name]
            additions.append(CommitOperationAdd(change.name, file if isinstance(file, bytes) else str(file)))
    deletions = [CommitOperationDelete(change.name) for change in changed if change.what == "deleted"]
    upload = lambda: api.preupload_lfs_files(repo_id, additions, revision=revision, free_memory=False)  # noqa: E731
    try:
        upload()  # huggingface_hub retries inside
    except RuntimeError as error:
        # A file that did not arrive as it was sent (its checksum is another) is sent once more.
        if not any(isinstance(cause, HTTPError) for cause in chain(error)):  # of Xet's own storage
            again = "the same command goes on where this one stopped"
            raise UnavailableError(f"the upload failed: {one_line(str(error))[:300]}; {again}") from error
        if status_of(error) not in (400, 409, 422):
            raise
        say(f"{one_line(str(error))} {reason(error)}; sending it again")
        upload()

    def commit() -> str:
        info = api.create_commit(
            repo_id, [*additions, *deletions], commit_message=message, revision=revision, parent_commit=head
        )
        return str(info.oid)

    try:
        return with_retries(commit, "committing", say)
    except HTTPError as error:
        # A commit whose answer got lost has been made: then nothing is left to change.
        if status_of(error) != 412:
            raise
        now = plan(api, repo_id, revision, files, say)
        if now.head is None or now.changes_something:
            raise
        return now.head


# ---- retries and errors ------------------------------------------------------------------------------------------


def limit_silence() -> None:
    """From now on huggingface_hub's requests in this process fail after SILENCE; by itself it waits for ever."""
    session = get_session()
    client, before = type(session), session.event_hooks["request"]

    def limit(request: Any) -> None:
        request.extensions["timeout"] = dict.fromkeys(("connect", "read", "write", "pool"), SILENCE)

    set_client_factory(lambda: client(event_hooks={"request": [*before, limit]}, follow_redirects=True))


def with_retries(action: Callable[[], Result], what: str, say: Say, attempts: int = ATTEMPTS) -> Result:
    """The action's result, after as many attempts as the rule allows."""
    for attempt in range(1, attempts + 1):
        try:
            return action()
        # The card's check takes any answer for JSON: one that is none is a server's page about its failure.
        except (HTTPError, json.JSONDecodeError) as error:
            wait = wait_before_retry(error, attempt)
            if wait is None or wait > LONGEST_WAIT or attempt == attempts:
                raise
            say(f"{what}: {reason(error)}; attempt {attempt + 1} of {attempts} in {wait:g} s")
            time.sleep(wait)
    raise AssertionError("the last attempt returns or raises")


def wait_before_retry(error: Exception, attempt: int) -> float | None:
    """Seconds until the next attempt, None if there should be none."""
    response = getattr(error, "response", None)
    if isinstance(error, HfHubHTTPError) and response is not None:
        if response.status_code not in RETRIED:
            return None
        asked = retry_after(response.headers)
        if asked is not None:
            return asked
    elif isinstance(error, OfflineModeIsEnabled):
        return None
    return float(2 ** (attempt - 1))


def retry_after(headers: Any) -> float | None:
    """The header Retry-After, in seconds or as a date, or else the seconds of RateLimit."""
    value = headers.get("Retry-After", "").strip()
    if value.isdecimal():
        return float(value)
    if value:
        try:
            return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
        except ValueError:
            return None
    left = re.search(r'"\w+"\s*;\s*r\s*=\s*0\s*;\s*t\s*=\s*(\d+)', headers.get("RateLimit", ""))
    return float(left[1]) if left else None


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what caused it: huggingface_hub wraps those of single files."""
    while error is not None:
        yield error
        error = error.__cause__


def status_of(error: BaseException) -> int | None:
    """The HTTP status behind an error."""
    responses = (getattr(cause, "response", None) for cause in chain(error))
    return next((int(response.status_code) for response in responses if response is not None), None)


def reason(error: BaseException) -> str:
    """An error in a few words, the Hub's own among them."""
    status = status_of(error)
    if isinstance(error, json.JSONDecodeError):
        return "an answer that is not the Hub's"
    if status is None:
        cause = next((cause for cause in chain(error) if isinstance(cause, HTTPError)), error)
        return f"{type(cause).__name__} ({one_line(str(cause))[:200]})"
    messages = (getattr(cause, "server_message", None) for cause in chain(error))
    said = next((one_line(message)[:300] for message in messages if message), None)
    return f"status {status}" + (f" ({said})" if said else "")


@contextmanager
def one_line_errors(repo_id: str, revision: str) -> Iterator[None]:
    """What the Hub, or the way to it, refuses, as InputError or UnavailableError that say what to do."""
    try:
        yield
    except (HTTPError, OfflineModeIsEnabled, json.JSONDecodeError, RuntimeError, ValueError) as error:
        if isinstance(error, (InputError, UnavailableError)):
            raise
        raise explained(error, repo_id, revision) from error


def explained(error: Exception, repo_id: str, revision: str) -> Exception:
    """The error in one line; the exit code says whose turn it is."""
    status, said = status_of(error), reason(error)
    again = "the same command goes on where this one stopped"
    if isinstance(error, OfflineModeIsEnabled):
        return UnavailableError("the Hub cannot be asked: HF_HUB_OFFLINE is set")
    if status == 401:
        return UnavailableError(
            f"the Hub does not accept your token, or has none from you: {said}; `hf auth login`, or set HF_TOKEN"
        )
    if status == 403:
        return UnavailableError(
            f"you may not write to {repo_id}: {said}; its owner can allow it, and the token must have write access"
        )
    if isinstance(error, RevisionNotFoundError):
        return InputError(f"{repo_id} has no revision {revision}: {said}")
    if status == 404:
        return InputError(f"the Hub has no {repo_id}, or no such owner: {said}; names are owner/name")
    if status == 409:
        return InputError(f"{repo_id}: a conflict with what is there, {said}; look at it on the Hub, then push again")
    if status == 412:
        return InputError(
            f"{repo_id} has changed since it was compared: {said}; push without --yes to see what is there now"
        )
    if status == 413:
        return InputError(f"the Hub does not take so much at once: {said}")
    if status == 429:
        return UnavailableError(f"the Hub still asks to wait: {said}; later {again}")
    if status is not None and status >= 500:
        return UnavailableError(f"the Hub fails: {said}; later {again}")
    if status is not None:
        return InputError(f"the Hub refuses: {said}")
    if isinstance(error, ValueError) and not isinstance(error, json.JSONDecodeError):
        return InputError(f"the Hub refuses: {one_line(str(error))[:400]}")
    if not isinstance(error, json.JSONDecodeError) and not any(isinstance(e, HTTPError) for e in chain(error)):
        return error  # not the Hub's
    return UnavailableError(f"the Hub cannot be reached: {said}; {again}")


@contextmanager
def waits_told(say: Say) -> Iterator[None]:
    """huggingface_hub's own retries as lines of ours, without addresses: those of uploads are signed."""

    class Told(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            say(one_line(re.sub(r"\S*https?://\S*", "the Hub", record.getMessage())))

    logger = logging.getLogger("huggingface_hub")
    handlers, propagate = logger.handlers[:], logger.propagate
    logger.handlers, logger.propagate = [Told(logging.WARNING)], False
    try:
        yield
    finally:
        logger.handlers, logger.propagate = handlers, propagate
