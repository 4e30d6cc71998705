"""Command line of `serving`: load a model, bind the address, and serve until a signal."""

import gc
import os
import re
import socket
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from vaswani_transformer.cli import Precision, load_translator
from vaswani_transformer.errors import InputError, UnavailableError, as_input_errors, escape_controls
from vaswani_transformer.exit import exit_cleanly
from vaswani_transformer.hub_files import download, is_repository
from vaswani_transformer.languages import read_languages, shorten_codes
from vaswani_transformer.languages_vaswani_transformer import NAMES, split_code
from vaswani_transformer.model_folder import CARD
from vaswani_transformer.options import (
    Backend,
    Device,
    Dtype,
    LengthPenalty,
    Model,
    NumBeams,
    Revision,
    find_model_and_backend,
)
from vaswani_transformer.translator import Translator

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(help="Serve a model over HTTP with the API of LibreTranslate.")
def serve(
    context: typer.Context,
    model: Model,
    host: Annotated[str, typer.Option(help="Address; 0.0.0.0: all network interfaces.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: any free port.")] = 5000,
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="VASWANI_API_KEY",
            help="Refuse requests without this key; as an option it is visible to other users of the machine.",
        ),
    ] = None,
    allow_origin: Annotated[
        list[str] | None, typer.Option(help="Let web pages of this origin call the server; repeatable.")
    ] = None,
    max_characters: Annotated[int, typer.Option(min=1, max=1_000_000, help="Maximum characters of a request.")] = 5000,
    max_texts: Annotated[int, typer.Option(min=1, max=100_000, help="Maximum texts of a request.")] = 100,
    max_queue: Annotated[
        int,
        typer.Option(min=1, max=1_000_000_000, help="Refuse requests (429) while this many characters are waiting."),
    ] = 20_000,
    source_language: Annotated[
        str | None, typer.Option(help="Language code, such as en; default: the model's.")
    ] = None,
    target_language: Annotated[
        str | None, typer.Option(help="Language code, such as de; default: the model's.")
    ] = None,
    num_beams: NumBeams = None,
    length_penalty: LengthPenalty = None,
    backend: Backend = None,
    device: Device = None,
    dtype: Dtype = None,
    threads: Annotated[int | None, typer.Option(help="Threads of the ONNX backend on the CPU.")] = None,
    precision: Precision = None,
    revision: Revision = None,
) -> None:
    from .app import create_app  # imports what may be missing, before the model is loaded
    from .connections import create_server
    from .fields import most_bytes
    from .service import Limits

    check_origins(allow_origin or [])
    check_key(os.environ.get("VASWANI_API_KEY") if api_key is None else api_key)  # typer takes an empty one for none
    with open_socket(host, port) as listener:
        options = {"device": device, "dtype": dtype, "threads": threads, "precision": precision}
        folder, backend = find_model_and_backend(context, model, backend, revision, precision=precision)
        translator = load_translator(folder, backend, **options)
        translator.search = translator.change_search(num_beams=num_beams, length_penalty=length_penalty)
        recorded = read_recorded_languages(model, revision, folder)
        source, targets = choose_languages(translator, model, recorded, source_language, target_language)
        limits = Limits(max_characters, max_texts, max_queue)
        application = create_app(translator, source, targets, limits, api_key, allow_origin or ())
        server = create_server(application, most_bytes(max_characters))
        name = f"[{host}]" if ":" in host else host
        shown, *others = shorten_codes([source, *targets])
        line = f"{shown} to {', '.join(others)}: {translator!r}"
        typer.echo(escape_controls(line), err=True)  # a stranger's card names the languages
        typer.echo(f"http://{name}:{listener.getsockname()[1]}  (/docs describes the API; Ctrl-C ends)", err=True)
        collect_rarely()
        server.run(sockets=[listener])


def check_key(key: str | None) -> None:
    """Raise InputError for a key that no header can carry, so that the server would refuse it, or an empty one."""
    if key is not None and not re.fullmatch("[!-~](?:[ -~]*[!-~])?", key):
        raise InputError(
            "the API key is empty, has characters that are not ASCII, or begins or ends with white space; set "
            "VASWANI_API_KEY to another key, or unset it"
        )


def check_origins(origins: list[str]) -> None:
    """Raise InputError for an origin that no browser sends, such as one with a path; the server would ignore it."""
    for origin in origins:
        if not re.fullmatch(r"\*|null|[a-z][a-z0-9+.-]*://[^/?#\sA-Z]+", origin):
            raise InputError(f"--allow-origin {origin}: write it as browsers do, such as https://example.org, or *")


def collect_rarely() -> None:
    """Keep Python's garbage collector from stopping the server: while 1,000 requests wait, a collection takes 0.1 s.

    References are counted as ever; the collector frees only cycles, and requests leave few.
    """
    gc.collect()
    gc.freeze()  # what has been loaded stays
    gc.set_threshold(100_000, 20, 100)


def open_socket(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to the address, so that nobody waits for a model to learn that it is taken."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except socket.gaierror as error:
        raise InputError(f"--host {host}: {error.strerror}") from None
    except OSError as error:
        raise UnavailableError(f"--host {host} --port {port}: {error.strerror}; choose another port") from None


def read_recorded_languages(model: str, revision: str | None, folder: Path) -> tuple[str, str] | None:
    """Return the languages that the files of the folder record, or the card of a repository, of the same commit."""
    recorded = read_languages(folder)
    if recorded is None and is_repository(model):
        revision = folder.name if folder.parent.name == "snapshots" else revision
        with suppress(InputError):  # it has no card
            recorded = read_languages(download(model, revision, [CARD]))
    return recorded


def choose_languages(
    translator: Translator, model: str, recorded: tuple[str, str] | None, source: str | None, target: str | None
) -> tuple[str, list[str]]:
    """Return source and targets: the given ones, or those of the model. Raises InputError.

    model: its name, for errors
    """
    known_source, known_target = recorded or (None, None)
    warn_of_other_language(model, "source", source, known_source)
    if translator.languages.are_needed:
        languages = translator.languages
        with as_input_errors():
            chosen = languages.tokens if target is None else [languages.find(target)]
        targets = [name for name, token in zip(languages.names, languages.tokens, strict=True) if token in chosen]
    else:
        warn_of_other_language(model, "target", target, known_target)
        targets = [name for name in [target or known_target] if name]
    source = source or known_source
    missing = [f"--{side}-language" for side, found in (("source", source), ("target", targets)) if not found]
    if source is None or missing:
        raise InputError(f"{model} does not record its languages; give {' and '.join(missing)}")
    return source, targets


def warn_of_other_language(model: str, side: str, given: str | None, recorded: str | None) -> None:
    """Warn if a language is given that the files of the model contradict: it is a name, and the model stays the same.

    The files may be wrong, as a recipe that left out its languages. They may name a family, such as mul or gem.
    """
    if given and recorded and split_code(recorded)[0] in NAMES and split_code(given)[0] != split_code(recorded)[0]:
        typer.echo(
            f"warning: --{side}-language {given} changes only the name of the {side} language, which is {recorded!r} "
            f"in the files of {model}; leave it out unless they are wrong",
            err=True,
        )


def main(arguments: list[str] | None = None) -> None:
    exit_cleanly(app, arguments, name="vaswani-transformer serve")


if __name__ == "__main__":
    main()
