"""Find a model folder by its path, or download it from the Hub: only files that are read, and no pickles of models."""

import json
import logging
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import InputError, UnavailableError, one_line
from .model_folder import ADAPTER, CONVERTIBLE_TYPES, MODEL_FILES, MODEL_TYPE, WEIGHTS
from .programs import import_program
from .training_run import follow_pointer

if TYPE_CHECKING:  # huggingface_hub is imported where it is used, so that --help is fast
    from huggingface_hub import DryRunFileInfo

# Not downloaded of other repositories than this package's: weights of other frameworks, documents, pictures.
UNREAD = tuple(".h5 .msgpack .ot .onnx .gguf .tflite .mlmodel .zip .md .py .png .jpg .pdf".split())
# Suffixes of weights, and the files of transformers' models, the preferred first.
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".pkl")
PREFERRED_WEIGHTS = (WEIGHTS, "pytorch_model.bin")


def find_folder(
    folder_or_repo: str | Path,
    revision: str | None = None,
    local_files_only: bool = False,
    files: Sequence[str] = (*MODEL_FILES, ADAPTER),
) -> Path:
    """Return a model folder: the given one, or the local copy of the Hub repository `owner/name`, downloaded if needed.

    local_files_only: do not use the network; a repository must have been downloaded before
    files: glob patterns of the files to download
    Raises InputError if neither exists, UnavailableError if the Hub cannot be reached.
    """
    if not is_repository(folder_or_repo):
        return check_folder(folder_or_repo)
    return download(str(folder_or_repo), revision, files, local_files_only=local_files_only)


def is_repository(name: str | Path) -> bool:
    """Return whether a name is that of a repository, `owner/name`, because nothing local has it."""
    path = Path(name)
    parent_exists = path.parent != Path() and path.parent.is_dir()
    may_be_repository = re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", str(name), re.ASCII) is not None
    return may_be_repository and not path.exists() and not parent_exists


def check_folder(path: str | Path) -> Path:
    """Return the path of a folder, or of the checkpoint that `checkpoints/best` names. Raises InputError."""
    folder = follow_pointer(Path(path))
    if folder.is_dir():
        return folder
    if folder.exists():
        raise InputError(f"{folder} is a file; give the folder that holds config.json and {WEIGHTS}")
    remedy = "" if is_repository(path) else "; give a model folder, or owner/name on the Hub"
    raise InputError(f"{folder}: no such folder{remedy}")


def download(repo: str, revision: str | None, files: Sequence[str], local_files_only: bool = False) -> Path:
    """Download files of a repository and return the local copy.  files: glob patterns"""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import tqdm

    class OnTerminal(tqdm):
        """Shows itself on a terminal only. Of huggingface_hub's bars, that of the files appears in logs, too."""

        def __init__(self, *arguments: Any, **settings: Any):
            super().__init__(*arguments, **{"disable": None} | settings)

    options: dict[str, Any] = {"allow_patterns": list(files), "tqdm_class": OnTerminal}
    with hub_errors(repo, revision):
        folder = Path(snapshot_download(repo, revision=revision, local_files_only=local_files_only, **options))
    if not any(next(folder.glob(pattern), None) for pattern in files):
        command = f": `vaswani-transformer export onnx {repo} FOLDER` writes it"
        raise InputError(f"{repo} has no {files[0]}{command if files[0].endswith('.onnx') else ''}")
    return folder


def plan_download(repo: str, revision: str | None, files: Sequence[str]) -> "list[DryRunFileInfo]":
    """Return the files that `download` would leave in the local copy, each with its size and whether it is there."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()  # the list is all that a command with --dry-run prints
    with hub_errors(repo, revision):
        planned = snapshot_download(repo, revision=revision, allow_patterns=list(files), dry_run=True)
    return sorted(planned, key=lambda file: file.filename)


def choose_files(repo: str, revision: str | None) -> tuple[Sequence[str], str | None]:
    """Return glob patterns of a model of this package, or of another's without its pickles if it has safetensors.

    With them, the commit that has these files; None offline.
    Raises InputError if it has none, or only a pickle, before anything but config.json is downloaded.
    """
    from huggingface_hub import HfApi, constants, snapshot_download

    with hub_errors(repo, revision):
        if constants.HF_HUB_OFFLINE:  # there is no list of files: take those that have been downloaded before
            folder = snapshot_download(repo, revision=revision, allow_patterns=["config.json"], local_files_only=True)
            return os.listdir(folder), None
        commit = HfApi().repo_info(repo, revision=revision).sha
        names = [str(entry.path) for entry in HfApi().list_repo_tree(repo, revision=commit, recursive=True)]
    config = {}
    if "config.json" in names:
        path = download(repo, commit, ["config.json"]) / "config.json"
        with suppress(ValueError, OSError):  # reported where the model is loaded
            config = json.loads(path.read_text(encoding="utf-8"))
    kind = config.get("model_type") if isinstance(config, dict) else None
    if kind != MODEL_TYPE and ADAPTER not in names:
        return choose_foreign_files(repo, names, kind), commit
    pickles = [name for name in names if name.endswith(WEIGHT_SUFFIXES[1:]) and "/" not in name]
    if pickles and not any(name.endswith(".safetensors") for name in names):
        raise InputError(
            f"{repo} has its weights only as {pickles[0]}, a pickle, which can run any code when it is opened; "
            f"ask its owner for {WEIGHTS}"
        )
    return (*MODEL_FILES, ADAPTER), commit


def choose_foreign_files(repo: str, names: Sequence[str], kind: Any) -> Sequence[str]:
    """Return glob patterns of a checkpoint that `convert` reads. Raises InputError if there is none.

    kind: `model_type` of its config.json
    """
    chosen = [name for name in names if "/" not in name and not name.startswith(".") and not name.endswith(UNREAD)]
    preferred = next((name for name in PREFERRED_WEIGHTS if name in chosen), None)
    if kind in CONVERTIBLE_TYPES and preferred is not None:
        chosen = [name for name in chosen if not name.endswith(WEIGHT_SUFFIXES) or name == preferred]
    elif kind is not None or not has_checkpoint(chosen):
        what = f"a {kind} model" if kind else "no checkpoint of a known format"
        what += " without such weights" if kind in CONVERTIBLE_TYPES else ""
        raise InputError(
            f"{repo} has {what}; `convert` reads {', '.join(CONVERTIBLE_TYPES)} and the formats that "
            "`convert --from help` lists, with weights as safetensors or as pickles that hold nothing but tensors"
        )
    return [re.sub(r"([*?[])", r"[\1]", name) for name in chosen]


def has_checkpoint(names: Sequence[str]) -> bool:
    """Return whether a file of these names may be a checkpoint that `convert` reads."""
    readers = import_program("conversion", "toolkits").READERS.values()
    patterns = [pattern for reader in readers for pattern in reader.files]
    return any(fnmatch(name, pattern) for name in names for pattern in patterns if pattern != "config.json")


RESUME = "run the same command again to continue"
# Errors by HTTP status; `hub_errors` has those of a repository that is missing or closed.
HTTP_ERRORS: dict[int, tuple[type[Exception], str]] = {
    401: (UnavailableError, "the Hub rejected the token: {}; run `hf auth login` or set HF_TOKEN"),
    403: (UnavailableError, "no access: {}; check the token's permissions"),
    404: (InputError, "not found on the Hub: {}"),
    409: (InputError, "it was created during this push: {}; run the command again"),
    412: (InputError, "it received another commit during this push: {}; run the command again"),
    429: (UnavailableError, f"rate limit reached: {{}}; wait, then {RESUME}"),
}
CLIENT_ERROR = (InputError, "the Hub rejected the request: {}")
SERVER_ERROR = (UnavailableError, "the Hub returned a server error: {}; try again later")  # from 500 on


@contextmanager
def hub_errors(repo: str, revision: str | None, absent: str = "no such folder, and ") -> Iterator[None]:
    """Check the answers of the Hub, and raise InputError or UnavailableError for errors of the Hub and the network.

    absent: that a repository may be the misspelt name of a folder; "" if it cannot
    """
    from huggingface_hub import constants, errors

    for handler in logging.getLogger("huggingface_hub").handlers:
        handler.addFilter(tidy_warning)
    try:
        with checked_answers():
            try:
                yield
            except errors.LocalEntryNotFoundError as error:  # the cache has only a part of the files
                if isinstance(error.__cause__, errors.HfHubHTTPError):
                    raise error.__cause__ from None
                raise
    except (InputError, UnavailableError):
        raise
    except errors.GatedRepoError as error:
        raise UnavailableError(
            f"{repo}: its owner restricts access; accept the conditions on its page, and log in (`hf auth login`)"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise InputError(
            f"{repo} has no revision {revision or 'main'!r} on the Hub; give a branch, a tag or a commit"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise InputError(
            f"{repo}: {absent}no such repository on the Hub; for a private one, log in (`hf auth login`) or set "
            "HF_TOKEN"
        ) from error
    except errors.HFValidationError as error:
        raise InputError(f"{repo}: {absent}not the name of a repository ({one_line(str(error))})") from None
    except errors.OfflineModeIsEnabled as error:
        raise UnavailableError(f"{repo}: HF_HUB_OFFLINE is set; unset it to reach the Hub") from error
    except errors.LocalEntryNotFoundError as error:
        why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "local_files_only is set"
        if error.__cause__ is not None and not constants.HF_HUB_OFFLINE:
            why = f"the Hub cannot be reached ({one_line(str(error.__cause__))})"
        raise UnavailableError(f"{repo}: no such folder, it has not been downloaded before, and {why}") from error
    except Exception as error:  # network errors come from five libraries
        if isinstance(error, OSError) and error.filename is not None:  # a local file: a full disk, no permission
            raise
        cause: BaseException | None = error
        while cause is not None and getattr(cause, "response", None) is None:  # errors of single files are wrapped
            cause = cause.__cause__
        if cause is not None:
            raise http_error(cause, repo) from error
        reason = without_addresses(one_line(f"{type(error).__name__}: {error}"))[:300]
        raise UnavailableError(
            f"{repo}: {absent}the Hub cannot be reached ({reason}); check the network, a proxy that requires a login, "
            f"and HF_ENDPOINT, then {RESUME}"
        ) from error


def http_error(error: Any, repo: str) -> Exception:
    """Return a one-line InputError for an answer of the Hub if the user can fix the cause, else UnavailableError."""
    status, message = error.response.status_code, getattr(error, "server_message", None)
    reason = f"status {status}" + (f" ({one_line(message)[:300]})" if message else "")
    kind, text = HTTP_ERRORS.get(status, CLIENT_ERROR if status < 500 else SERVER_ERROR)
    return kind(f"{repo}: {text.format(reason)}")


def tidy_warning(record: logging.LogRecord) -> bool:
    """Hide URLs in a warning of huggingface_hub, and drop that no file of a repository matches, an error here."""
    record.msg, record.args = without_addresses(record.getMessage()), ()
    return not record.msg.startswith("No files matched")


def without_addresses(text: str) -> str:
    """Return the text with "the Hub" in place of URLs; those of uploads are signed."""
    return re.sub(r"\S*https?://\S*", "the Hub", text)


@contextmanager
def checked_answers() -> Iterator[None]:
    """Check the answers of the Hub during a download with `refuse_paths`."""
    from huggingface_hub.utils import get_session

    hooks = get_session().event_hooks["response"]
    hooks.append(refuse_paths)
    try:
        yield
    finally:
        hooks.remove(refuse_paths)


def refuse_paths(response: Any) -> None:
    """Raise UnavailableError if an answer of the Hub has a path as a hash.

    huggingface_hub (2.4) names the files of its cache by the hashes in answers and does not check them: a server to
    which HF_ENDPOINT points could write anywhere.
    """
    hashes = [response.headers.get(name, "") for name in ("ETag", "X-Linked-Etag", "X-Repo-Commit")]

    def collect(pairs: list[tuple[str, Any]]) -> None:
        hashes.extend(value for name, value in pairs if name in ("sha", "oid", "sha256") and isinstance(value, str))

    if "/api/models/" in response.request.url.path:
        with suppress(ValueError, RecursionError):  # huggingface_hub reports an answer that is no JSON
            json.loads(response.read(), object_pairs_hook=collect)
    for found in hashes:
        name = found.removeprefix("W/").strip('"')  # a weak ETag
        # huggingface_hub removes every leading W and / of an ETag.
        if re.search(r"[/\\]", name) or found.strip('W/"') in (".", ".."):
            raise UnavailableError(
                f"the answer of {response.request.url.host} has the hash {name!r:.80}, which is a path; this server is "
                "not a Hub: check HF_ENDPOINT"
            )
