"""Read the HTTP response of a model's endpoint: one JSON object, or server-sent events that are assembled into one."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from mulligan.activities.models._told_errors import error_in, may_tell_error
from mulligan.activities.models.protocol import OnCall, Unavailable, Written
from mulligan.schema.error_text import error_text, type_name
from mulligan.schema.json_limits import JsonMeter
from mulligan.values import well_formed

if TYPE_CHECKING:
    import httpx2

    from mulligan.activities.echoed_secrets import EchoedSecrets

EVENT_STREAM = "text/event-stream"
SECRETS = "mulligan.secrets"
"""The extension of a response with its request's `EchoedSecrets`."""
DONE = "[DONE]"
"""The data of the last event of Chat Completions."""
BROKE_OFF = "the endpoint's answer broke off in the middle"
MAX_EVENT_BYTES = 16_000_000
"""Bytes of one event of a stream, the last of which may repeat the others, and of a response that is not streamed."""
MAX_VALUES = 200_000
"""Values in one event. JSON of very short values takes hundreds of times its size as Python objects."""
MAX_PARTS = 10_000
"""Blocks of text, calls and other parts of one answer."""
WORDS_SHOWN = 200
"""Characters of what stands at the end of a stream and is no event."""
_OTHER_FIELDS = (b"", b"id", b"retry")
"""The fields of a stream's lines that are not read; without a name they are comments."""
_MEASURED_CHARS = 100_000
"""A shorter text cannot have many values."""


class StreamAssembler:
    """Assembles the events of a streamed response into the object that the endpoint sends without streaming.

    Args:
        on_text: Called with each piece of the answer's text, or of its refusal, as it arrives.
        written: What has arrived is added to it.
    """

    request_fields: ClassVar[dict[str, Any]] = {"stream": True}
    """The fields of a request that turn streaming on."""

    def __init__(self, on_text: Callable[[str], None], written: Written | None = None) -> None:
        self.on_text, self._written = on_text, written or Written()
        self.on_call: OnCall = lambda *_: None
        self._text_part: Any = None

    @property
    def has_begun(self) -> bool:
        """Whether a part of the answer has arrived."""
        raise NotImplementedError

    def add(self, event: dict[str, Any]) -> None:
        """Add the next event."""
        raise NotImplementedError

    def mark_done(self) -> None:
        """Note that the endpoint sent `[DONE]`: compatible servers send it where an event has ended the answer already."""

    def result(self) -> dict[str, Any]:
        """Return the assembled response. Events that tell an error never get here.

        Raises:
            Unavailable: the stream ended before the response was complete.
        """
        raise NotImplementedError

    def _add_text(self, piece: str, part: Any) -> None:
        """Pass on a piece of text. `part` identifies its part of the answer, whose texts are joined by an empty line."""
        if self._text_part not in (None, part):
            self.on_text("\n\n")
        self._text_part = part
        self.on_text(piece)


def read_json(text: str) -> dict[str, Any]:
    """Parse a response that is not streamed.

    Raises:
        Unavailable: it is not a JSON object, or has too many values.
    """
    data = _json_object(text)
    if data is None and text.lstrip().startswith("<"):
        raise Unavailable("the endpoint answered with a page of HTML, not with JSON (is its base URL right?)")
    if data is None:
        raise Unavailable(f"the endpoint's answer is not a JSON object; it begins {text[:80]!r}")
    return _replace_uncarriable(data) if "\\u" in text else data


async def read_stream(
    response: httpx2.Response, assembler: StreamAssembler, events: AsyncIterator[str] | None = None
) -> dict[str, Any]:
    """Read a streamed response. A server may ignore that streaming was requested: then its one object is read.

    Args:
        response: The response.
        assembler: What puts the answer together.
        events: The data of its events; None: they are server-sent events.

    Returns:
        The answer; or the error that the stream tells (`error_in`), whatever came before it.

    Raises:
        Unavailable: the stream ended early, or an event is too large, or is not a JSON object.
        httpx2.HTTPError: the connection broke.
    """
    if events is None and EVENT_STREAM not in response.headers.get("content-type", "").lower():
        await response.aread()
        if not response.text.startswith(("data:", "event:", ":")):  # some servers declare their events as JSON
            return read_json(response.text)
    has_escapes = False
    secrets: EchoedSecrets | None = response.extensions.get(SECRETS)
    write = None
    if secrets is not None and secrets.values:
        assembler.on_text = write = secrets.clean_pieces(assembler.on_text)
        assembler.on_call = _without_secrets(assembler.on_call, secrets)
    sent, told = _SentEvents(response), None
    async for data in events or sent.data():
        if data.strip('"') == DONE:
            assembler.mark_done()
            continue  # read to the end, so that the connection can be used again
        event = _event(data)
        has_escapes = has_escapes or "\\u" in data
        with wrong_types_are_unavailable():
            if may_tell_error(data, event) and (told := error_in(event)) is not None:
                break
            assembler.add(event)
    if write is not None:
        write("", is_last=True)
    with wrong_types_are_unavailable():
        result = told or sent.unframed_answer(assembler) or assembler.result()
        result = secrets.clean_value(result) if secrets else result
    return _replace_uncarriable(result) if has_escapes or sent.unframed else result


def _without_secrets(on_call: OnCall, secrets: EchoedSecrets) -> OnCall:
    """The function for calls, without secrets in what it gets. The answer has what it holds back at the end of a call."""
    writers: dict[int, Callable[..., None]] = {}

    def write(index: int, call_id: str, name: str, piece: str) -> None:
        if index not in writers:
            call_id, name = secrets.clean_value(call_id), secrets.clean_value(name)
            writers[index] = secrets.clean_pieces(partial(on_call, index, call_id, name))
            on_call(index, call_id, name, "")
        writers[index](piece)

    return write


@contextmanager
def wrong_types_are_unavailable() -> Iterator[None]:
    """Read an answer in the block, or in the decorated function. Its fields may have any JSON types.

    Raises:
        Unavailable: the block raised what Python raises for values of other types.
    """
    try:
        yield
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        fault = f"{type_name(error)}: {error_text(error)}"
        raise Unavailable(f"the endpoint's answer has a field of another type than its API says ({fault})") from error


async def read_events(response: httpx2.Response) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the events of a streamed response as they come. A server that does not stream: its one object.

    Raises:
        Unavailable, httpx2.HTTPError: as for `read_stream`.
    """
    if EVENT_STREAM not in response.headers.get("content-type", "").lower():
        await response.aread()
        yield read_json(response.text)
        return
    async for data in _SentEvents(response).data():
        if data != DONE:
            yield _event(data)


def _event(data: str) -> dict[str, Any]:
    event = _json_object(data)
    if event is None:
        raise Unavailable(f"the endpoint's answer has a piece that is not a JSON object; it begins {data[:80]!r}")
    return event


class _SentEvents:
    """The server-sent events of a response (WHATWG HTML, 9.2). What stands outside of them is `unframed`."""

    def __init__(self, response: httpx2.Response) -> None:
        self._response = response
        self._data: list[str] = []
        self._is_error = False
        self.unframed: list[str] = []

    async def data(self) -> AsyncIterator[str]:
        """The data of each event that says something; of an event that is named `error`, or a field of that name, an error.

        Lines are split as bytes, since `str.splitlines` splits at characters that JSON texts may contain.
        """
        size = 0
        async for line in _lines(self._response):
            name, _, value = line.partition(b":")
            text = value.decode("utf-8", "replace").strip()
            if not line:
                if data := self._take():
                    yield data
                size = 0
            elif name in (b"data", b"error"):  # the latter is of no standard (llama.cpp)
                _check_event(size := size + len(line))
                self._data.append(text)
                self._is_error |= name == b"error"
            elif name == b"event":
                self._is_error |= text == "error"
            elif name not in _OTHER_FIELDS and len(self.unframed) < MAX_PARTS:
                self.unframed.append(line.decode("utf-8", "replace"))
        if data := self._take():
            yield data

    def unframed_answer(self, assembler: StreamAssembler) -> dict[str, Any] | None:
        """The object that the endpoint did not frame, if it tells an error or is the whole answer; None: all was framed.

        Raises:
            Unavailable: the answer is not whole, and something ended it with other words.
        """
        words = "\n".join(self.unframed).strip()
        for text in (words, *self.unframed):
            found = _json_object(text)
            if found is not None and (error_in(found) or not assembler.has_begun):
                return found
        if words:
            try:
                return assembler.result()
            except Unavailable as broken:
                raise Unavailable(f"{broken}; it ends with {words[-WORDS_SHOWN:]!r}") from None
        return None

    def _take(self) -> str:
        data, is_error = "\n".join(self._data).strip(), self._is_error
        self._data, self._is_error = [], False
        if not is_error:
            return "" if data == "null" else data
        told = _json_object(data)
        return data if told and error_in(told) else json.dumps({"error": told or data or "an event without words"})


async def _lines(response: httpx2.Response) -> AsyncIterator[bytes]:
    incomplete: list[bytes] = []
    size = 0
    async for chunk in response.aiter_bytes():
        *complete, rest = chunk.split(b"\n")
        for line in complete:
            yield b"".join((*incomplete, line)).rstrip(b"\r")
            incomplete, size = [], 0
        if rest:
            size += len(rest)
            _check_event(size)
            incomplete.append(rest)
    yield b"".join(incomplete)


def check_parts(count: int) -> None:
    """Check the number of parts of an answer, each of which an assembler keeps.

    Raises:
        Unavailable: there are too many.
    """
    if count > MAX_PARTS:
        raise Unavailable(f"the endpoint's answer has more than {MAX_PARTS:,} parts")


def _check_event(size: int) -> None:
    if size > MAX_EVENT_BYTES:
        raise Unavailable(f"the endpoint's answer has an event of more than {MAX_EVENT_BYTES:,} bytes")


def _json_object(text: str) -> dict[str, Any] | None:
    if len(text) > _MEASURED_CHARS:
        meter = JsonMeter()
        meter.add(text.encode("utf-8", "replace"))
        if meter.values > MAX_VALUES:
            raise Unavailable(f"the endpoint's answer has a piece of more than {MAX_VALUES:,} values")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(data, list) and len(data) == 1:
        [data] = data  # how Google's compatible endpoint wraps an error
    return data if isinstance(data, dict) else None


def _replace_uncarriable(data: Any) -> Any:
    """Replace what JSON can escape and UTF-8, or other servers, cannot carry: lone surrogates and NUL."""
    if isinstance(data, str):
        return str(well_formed(data)).replace("\0", "\ufffd")
    if isinstance(data, list):
        return [_replace_uncarriable(item) for item in data]
    if isinstance(data, dict):
        return {_replace_uncarriable(name): _replace_uncarriable(value) for name, value in data.items()}
    return data
