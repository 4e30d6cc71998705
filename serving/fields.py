"""The fields of a request: from its query string and a body, JSON or a form, within a limit of size and time."""

import asyncio
import json
import logging
import re
from typing import Any, Literal
from urllib.parse import parse_qsl

from fastapi import HTTPException, Request
from pydantic import BaseModel, Field, ValidationError
from starlette.types import Message, Receive

BODY_SECONDS = 15
CHARACTER_BYTES = 12  # the longest spelling of a character: two escapes \\uXXXX in JSON, or %XX four times in a form
OTHER_BYTES = 16_384  # of a body or of headers, besides the text
FORMS = URLENCODED, MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"
CHARSET = re.compile(rb";\s*charset=[^;]*", re.IGNORECASE)
logging.getLogger("python_multipart").setLevel(logging.ERROR)  # not for each client that sends nonsense


class TranslationRequest(BaseModel):
    """The fields of `/translate`: those of LibreTranslate, and two more."""

    q: str | list[str] = Field(description="A text, or a list of texts.")
    source: str = Field(description="The code of the source language; auto means the model's.")
    target: str = Field(description="The code of the target language.")
    format: Literal["text", "html"] = Field("text", description="With html, tags are copied.")
    alternatives: int = Field(0, ge=0, description="How many further translations to return.")
    api_key: str = Field("", description="The key of the server, if it has one.")
    scores: bool = Field(False, description="Return the score of each translation.")
    attention: bool = Field(False, description="Return the attention of each translation to its source.")


# Bodies are read below, not by FastAPI, which has no limit of size and reads either forms or JSON.
BODY_SCHEMA = {
    "requestBody": {
        "required": True,
        "content": {kind: {"schema": TranslationRequest.model_json_schema()} for kind in ("application/json", *FORMS)},
    }
}


def parse_request(fields: dict[str, Any]) -> TranslationRequest:
    """Check the types of the fields. Raises HTTPException naming the first that is missing or wrong.

    A field that is null or empty is not given, as in LibreTranslate: Mastodon sends null for a key that it lacks.
    """
    fields = {name: value for name, value in fields.items() if value not in (None, "")}
    for name in ("q", "source", "target"):
        if not fields.get(name):
            raise HTTPException(400, f"Invalid request: missing {name} parameter")
    try:
        return TranslationRequest.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = first["loc"][0]
        problem = "it must be a string or a list of strings" if name == "q" else first["msg"]
        raise HTTPException(400, f"Invalid request: {name}: {problem}") from None


def most_bytes(characters: int) -> int:
    """Return the limit of a body, or of headers, whose text has at most this number of characters."""
    return CHARACTER_BYTES * characters + OTHER_BYTES


async def read_fields(request: Request, limit: int) -> dict[str, Any]:
    """Read the fields of query string and body. Raises HTTPException: 400, 408 or 413."""
    # Forms are UTF-8, whatever charset their header names: ISO-8859-1 is the default of some clients.
    headers = [(name, CHARSET.sub(b"", value)) for name, value in request.scope["headers"]]
    request = Request({**request.scope, "headers": headers}, limit_body(request.receive, limit))
    length = request.headers.get("content-length", "0")
    if int(length) > limit:  # the HTTP parser has checked that it is a number
        raise body_too_long(limit)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        fields = collect_texts(parse_pairs(request.scope["query_string"]))
        async with asyncio.timeout(BODY_SECONDS):
            if kind == MULTIPART:
                body = await request.body()
                fields |= collect_texts((await request.form(max_files=0)).multi_items())
                body.decode()  # Starlette reads bytes that are not UTF-8 as Latin-1
            elif body := await request.body():
                fields |= collect_texts(parse_pairs(body)) if kind == URLENCODED else parse_json(body)
    except TimeoutError:
        raise HTTPException(408, f"the body of the request did not arrive within {BODY_SECONDS} s") from None
    except UnicodeError:
        raise HTTPException(400, "Invalid request: the form is not text in its charset; send it as UTF-8") from None
    return fields


def parse_pairs(encoded: bytes) -> list[tuple[str, Any]]:
    """Parse a query string or a form in UTF-8, escaped or, as `curl -d` sends it, plain. Raises UnicodeError.

    Starlette reads plain letters as Latin-1, and puts U+FFFD in the place of bytes that are not UTF-8.
    """
    return parse_qsl(encoded.decode(), keep_blank_values=True, errors="strict")


def collect_texts(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the fields of a form or query string; `q` is a list if it is there several times."""
    texts = [value for name, value in pairs if name == "q"]
    return dict(pairs) | ({"q": texts} if len(texts) > 1 else {})


def parse_json(body: bytes) -> dict[str, Any]:
    """Parse a JSON object. Raises HTTPException."""
    try:
        fields = json.loads(body)
    except RecursionError:
        raise HTTPException(400, "Invalid request: the JSON is nested too deeply") from None
    except ValueError as error:  # UnicodeDecodeError is one
        raise HTTPException(400, f"Invalid request: the body is not valid JSON ({error})") from None
    if not isinstance(fields, dict):
        raise HTTPException(400, "Invalid request: the JSON must be an object")
    return fields


def limit_body(receive: Receive, limit: int) -> Receive:
    """Return a `receive` that raises HTTPException when a body, however it is sent, becomes longer than allowed."""
    received = 0

    async def receive_within_limit() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > limit:
            raise body_too_long(limit)
        return message

    return receive_within_limit


def body_too_long(limit: int) -> HTTPException:
    return HTTPException(413, f"the body of the request is longer than {limit:,} bytes", {"connection": "close"})
