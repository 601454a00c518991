"""The JSON in the body of a request, for all protocols: what no part behind could read or write again is refused here."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from fastapi import Request, Response
from fastapi.routing import APIRoute

from mulligan.schema.json_limits import MOST_DEPTH, JsonMeter
from mulligan.serve.arriving_body import ArrivingBody, read_body
from mulligan.serve.off_loop import off_loop
from mulligan.serve.problems import Problem
from mulligan.serve.shown_json import shown_json

T = TypeVar("T")

MOST_BODY_DEPTH = 2 * MOST_DEPTH
"""Levels of lists and objects: those that the largest value may have, and some around it."""
MOST_BODY_VALUES = 200_000
"""As many as the input of a run may have. Each takes some 100 bytes of memory, and a microsecond."""
MOST_NAMES = 10_000
"""Of one object: pydantic describes each that it does not know, in a call that lets no other thread run."""
MOST_RESULT_VALUES = 1_000_000
"""Values in all, and names of one object, in the result of a call: pydantic does not read it here."""
MOST_MESSAGES = 10_000
"""Messages, or parts of a message, in one request."""
MOST_DIGITS = 1_000
"""Of an integer: Python takes long for millions, and other languages read 16."""

_PIECE_BYTES = 64 * 1024
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class JsonRoute(APIRoute):
    """A route that reads every body as JSON, whatever its Content-Type: `curl -d` calls it a form."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's handler, called with a request that checks its JSON."""
        handle = super().get_route_handler()

        async def handle_json(request: Request) -> Response:
            headers = [header for header in request.scope["headers"] if header[0] != b"content-type"]
            scope = {**request.scope, "headers": [*headers, (b"content-type", b"application/json")]}
            return await handle(_JsonRequest(scope, request.receive))

        return handle_json


class _JsonRequest(Request):
    async def json(self) -> Any:
        body = await self.body()
        return await _parse(self, body, lambda: read_json(body))


async def parse_body(
    request: Request, convert: Callable[[Any], T], *, most_values: int = MOST_BODY_VALUES, most_names: int = MOST_NAMES
) -> T:
    """What `convert` makes of the JSON in the body of a request, which is not kept. With a large body, `convert` is called
    in another thread. `most_names`: of one object.

    Raises:
        Problem: the body cannot be read; or what `convert` raises.
    """
    body = await read_body(request)
    return await _parse(request, body, lambda: convert(read_json(body, most_values, most_names)))


async def check_body(request: Request) -> bytes:
    """The bytes of a body, after a check of its JSON.

    Raises:
        Problem: the body cannot be read.
    """
    body = await read_body(request)
    await _parse(request, body, lambda: read_json(body))
    return body


async def _parse(request: Request, body: bytes, read: Callable[[], T]) -> T:
    try:
        return await off_loop(len(body), read)
    finally:
        ArrivingBody.forget(request)


def json_object(body: Any) -> dict[str, Any]:
    """The JSON of a body, which must be an object.

    Raises:
        Problem: it is not.
    """
    if not isinstance(body, dict):
        told = f'The body is {shown_json(body)}; it must be one JSON object, such as {{"agent": …, "prompt": …}}.'
        raise Problem(422, "invalid_input", told)
    return body


def check_count(field: str, value: Any) -> None:
    """Refuse a list with too many messages or parts. `field`: its name, for the error.

    Raises:
        Problem: there are too many.
    """
    if isinstance(value, list) and len(value) > MOST_MESSAGES:
        raise Problem(
            422, "invalid_input", f'"{field}" has {len(value):,} entries; at most {MOST_MESSAGES:,} are allowed.'
        )


def read_json(body: bytes, most_values: int = MOST_BODY_VALUES, most_names: int = MOST_NAMES) -> Any:
    """The value that a body has as JSON. `most_names`: of one object.

    Raises:
        Problem: it is not JSON by RFC 8259, is nested too deep, has too many values or names, or two entries of an
            object with the same name; or a text has half of a surrogate pair.
    """
    meter = JsonMeter()
    for start in range(0, len(body), _PIECE_BYTES):
        meter.add(body[start : start + _PIECE_BYTES])
        if meter.depth > MOST_BODY_DEPTH:
            raise _not_json(f"it is nested more than {MOST_BODY_DEPTH} levels deep")
        if meter.values > most_values:
            raise _too_many(f"more than {most_values:,} values")
    try:
        value = json.loads(
            body.decode("utf-8-sig"),
            object_pairs_hook=partial(_object, most_names),
            parse_int=_integer,
            parse_float=_number,
            parse_constant=_constant,
        )
    except UnicodeDecodeError as error:
        raise _not_json(f"byte {error.start} is not UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise _not_json(str(error)[:200]) from None
    if _SURROGATE_ESCAPE.search(body) and _LONE_SURROGATE.search(json.dumps(value, ensure_ascii=False)):
        raise Problem(
            422, "invalid_input", "The body has half of a surrogate pair, such as \\ud800, which is in no valid string; "
            "send both halves, or the character itself.",
        )  # fmt: skip
    return value


def _not_json(reason: str) -> Problem:
    return Problem(400, "invalid_json", f"The body is not JSON that can be read: {reason}.")


def _too_many(sentence: str) -> Problem:
    return Problem(413, "too_large", f"The body has {sentence}; send less.")


def _object(most_names: int, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > most_names:
        raise _too_many(f"an object with {len(pairs):,} names; the limit is {most_names:,}")
    fields = dict(pairs)
    if len(fields) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"an object has two entries with the name {shown_json(twice)}")
    return fields


def _integer(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"an integer has {len(digits):,} digits; the limit is {MOST_DIGITS:,}")
    return int(digits)


def _number(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits[:80]} is more than a number can be")
    return number


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON; send null or a text")
