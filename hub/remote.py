"""Plans a push and performs it in one commit.

huggingface_hub uploads the files and retries. This module adds the dry run, never overwrites commits or tags of other
users, and turns each failure into one line that says what to do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, TypeGuard

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.hf_api import RepoFile, RepoFolder
from huggingface_hub.utils import disable_progress_bars, get_session, set_client_factory
from huggingface_hub.utils.sha import git_hash

from vaswani_transformer.errors import InputError
from vaswani_transformer.hub_files import hub_errors

from .contents import MANAGED_NAMES, Files, StoredFile, hash_file, measure_size

TIMEOUT = 120  # seconds without a byte after which a connection counts as broken


@dataclass(frozen=True)
class Change:
    """A file, its size in bytes (0 if deleted), and its status: "new", "changed", "same" or "deleted"."""

    name: str
    size: int
    status: str


@dataclass(frozen=True)
class Plan:
    """What a push would change.

    private: whether a new repository is private.  tag: the name of a tag to create, if any
    head: the commit to build on; None if the repository does not exist yet
    """

    repo_id: str
    revision: str
    changes: list[Change]
    private: bool
    tag: str | None
    head: str | None = None
    revision_exists: bool = False
    has_gitignore: bool = False

    @property
    def has_changes(self) -> bool:
        return any(change.status != "same" for change in self.changes)

    def with_status(self, *statuses: str) -> list[Change]:
        return [change for change in self.changes if change.status in statuses]


# ---- the dry run -------------------------------------------------------------------------------------------------


def plan(
    api: HfApi,
    repo_id: str,
    revision: str,
    files: Files,
    *,
    private: bool = False,
    tag: str | None = None,
    kept: Sequence[str] = (),
) -> Plan:
    """Compare the files with the repository, without changing it. Raises InputError, UnavailableError.

    kept: files that a push does not replace if the repository has them
    """
    with hub_errors(repo_id, revision, absent=""):
        try:
            repo = api.repo_info(repo_id)
        except RepositoryNotFoundError:
            return Plan(repo_id, revision, plan_changes({}, files), private, tag)
        try:
            head, revision_exists = api.repo_info(repo_id, revision=revision).sha, True
        except RevisionNotFoundError:  # a new branch starts from main
            head, revision_exists = repo.sha, False
        tree = [entry for entry in api.list_repo_tree(repo_id, recursive=True, revision=head) if is_file(entry)]
        if not isinstance(head, str):
            raise TypeError(f"the last commit is {head!r}")
        tags = {ref.name: ref.target_commit for ref in api.list_repo_refs(repo_id).tags} if tag else {}
    if private and not repo.private:
        raise InputError(
            f"--private: {repo_id} already exists and is public: `hf repos settings {repo_id} --private` first"
        )
    remote = {entry.path: entry for entry in tree}
    changes, has_gitignore = plan_changes(remote, files, kept), ".gitignore" in remote
    planned = Plan(repo_id, revision, changes, private, tag, head, revision_exists, has_gitignore)
    # Moving an existing tag would change what its users download.
    if tag in tags and (planned.has_changes or tags[tag] != head):
        raise InputError(f"--tag {tag}: {repo_id} already has this tag, at {tags[tag][:8]}; choose another")
    return planned


def is_file(entry: RepoFile | RepoFolder) -> TypeGuard[RepoFile]:
    """Return whether an entry of a repository is a file. Raises TypeError if its path is no text."""
    if not isinstance(entry.path, str):
        raise TypeError(f"the path of a file is {entry.path!r}")
    return isinstance(entry, RepoFile)


def plan_changes(remote: dict[str, RepoFile], files: Files, kept: Sequence[str] = ()) -> list[Change]:
    """Return the change of each file in the repository and in the push."""
    changes = []
    for name, file in sorted(files.items()):
        is_kept = name in kept and name in remote
        changes.append(Change(name, measure_size(file), "same" if is_kept else compare(file, remote.get(name))))
    stale = sorted(name for name in remote if name not in files and is_managed(name))
    return changes + [Change(name, 0, "deleted") for name in stale]


def is_managed(name: str) -> bool:
    """Return whether a push can write a file of this name, folder included."""
    depth, path = name.count("/"), PurePosixPath(name)
    return any(pattern.count("/") == depth and path.match(pattern) for pattern in MANAGED_NAMES)


def compare(file: StoredFile | bytes, remote: RepoFile | None) -> str:
    """Return "new", "same" or "changed". The Hub identifies large files by SHA-256, others by git's SHA-1."""
    if remote is None:
        return "new"
    if remote.size != measure_size(file):
        return "changed"
    if remote.lfs is not None:
        return "same" if hash_file(file) == remote.lfs.sha256 else "changed"
    content = file if isinstance(file, bytes) else file.path.read_bytes()
    return "same" if git_hash(content) == remote.blob_id else "changed"


# ---- the push ----------------------------------------------------------------------------------------------------


def push(api: HfApi, planned: Plan, files: Files, message: str) -> str:
    """Carry out the plan in one commit. Return the address of this commit, or of the last one if nothing changed.

    After a failure, plan again and push: large files that were received are not sent again.
    Raises InputError, UnavailableError.
    """
    disable_progress_bars()
    repo_id, revision, head = planned.repo_id, planned.revision, planned.head
    additions = []
    for change in planned.with_status("new", "changed"):
        file = files[change.name]
        addition = CommitOperationAdd(change.name, file if isinstance(file, bytes) else str(file.path))
        if not isinstance(file, bytes):  # the Hub refuses a content that no longer has this hash
            file.check_unchanged(addition.upload_info.sha256.hex())
        additions.append(addition)
    with hub_errors(repo_id, revision, absent=""):
        if head is None:
            api.create_repo(repo_id, private=planned.private)  # refused if it was created since the comparison
        if not planned.revision_exists and revision != "main":
            api.create_branch(repo_id, branch=revision, revision=head, exist_ok=True)
        if planned.has_changes:
            deletions = [CommitOperationDelete(change.name) for change in planned.with_status("deleted")]
            if planned.has_gitignore:  # else create_commit would leave out the files that it names, and report success
                api.preupload_lfs_files(
                    repo_id, additions, revision=revision, gitignore_content="# nothing", free_memory=False
                )
            # The Hub refuses the commit if `head` is no longer the last one.
            commit = api.create_commit(
                repo_id, [*deletions, *additions], commit_message=message, revision=revision, parent_commit=head
            )
            head = commit.oid
        if planned.tag is not None:
            api.create_tag(repo_id, tag=planned.tag, revision=head, exist_ok=True)
    return f"{api.endpoint}/{repo_id}/commit/{head}"


def set_timeout() -> None:
    """Set a timeout for the requests of huggingface_hub, which waits forever by default."""
    session = get_session()
    client, hooks = type(session), session.event_hooks["request"]

    def limit(request: Any) -> None:  # a hook, since some calls pass timeout=None, which overrides the client's
        request.extensions["timeout"] = dict.fromkeys(("connect", "read", "write", "pool"), TIMEOUT)

    set_client_factory(lambda: client(event_hooks={"request": [*hooks, limit]}, follow_redirects=True))
