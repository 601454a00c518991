"""Temporal's remote codec over HTTP: its UI and its command line send payloads here and get them decrypted.

The protocol is Temporal's (docs.temporal.io, "Codec Server"): POST /decode and /encode with `Payloads` as protobuf's
JSON. Whoever reaches it reads all that the keys read. So a page of another origin than the UI's gets nothing, and where
other machines reach it, callers need a token.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from google.protobuf import json_format
from temporalio.api.common.v1 import Payload, Payloads

from mulligan.client.encryption import EncryptionCodec
from mulligan.errors import DeclarationError

__all__ = ["codec_server", "is_loopback", "parse_origin"]

MOST_BYTES = 8 * 1024 * 1024
"""Of a request's body: Temporal's own messages end at 4 MiB, and base64 adds a third."""
UI_HEADERS = "authorization, authorization-extras, content-type, x-namespace"
"""What Temporal's UI sends; the authorizations with "Pass the user access token"."""
SECONDS_TO_STOP = 2
SAYS = {
    404: "There is no such path here; POST to /decode or /encode.",
    405: "POST to /decode or /encode.",
    413: f"The body is larger than {MOST_BYTES} bytes.",
}


@asynccontextmanager
async def codec_server(
    codec: EncryptionCodec, host: str, port: int, origins: Collection[str], token: str = ""
) -> AsyncIterator[str]:
    """Serve the codec at `host` and `port` (0: any free one) while the block runs; gives its URL.

    Args:
        codec: holds the keys.
        host: where to listen.
        port: where to listen.
        origins: the pages whose scripts may call it, as browsers name them (see `origin_of`).
        token: what callers must send as `Authorization: Bearer …`; only on a loopback `host` may there be none.

    Raises:
        DeclarationError: the address cannot be bound, or others could read everything there.
    """
    if not token and not is_loopback(host):
        raise DeclarationError(f"{host!r} can be reached from other machines: a codec server there needs a token.")
    app = web.Application(middlewares=[_gate(origins, token)], client_max_size=MOST_BYTES)
    # An endpoint may be given with a slash at its end, and with `{namespace}`.
    before = "/{namespace:([^/]*/)?}"
    app.add_routes([web.get("/", _about), web.post(f"{before}decode", _by(codec.decode))])
    app.add_routes([web.post(f"{before}encode", _by(codec.encode))])
    logger = logging.getLogger(__name__)
    logger.addFilter(_without_content)
    runner = web.AppRunner(app, access_log=None, logger=logger, shutdown_timeout=SECONDS_TO_STOP)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except (OSError, OverflowError) as error:
            raise DeclarationError(f"nothing can listen at {host} port {port}: {error}.") from None
        bound, number = runner.addresses[0][:2]
        yield f"http://{f'[{bound}]' if ':' in bound else bound}:{number}"
    finally:
        await runner.cleanup()


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it. A name other than localhost may resolve to anything."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def parse_origin(text: str) -> str:
    """An origin as browsers name it in their `Origin` header: in lower case, without path and default port.

    Raises:
        DeclarationError: it is none.
    """
    try:
        url = urlsplit(text)
        default = {"http": 80, "https": 443}[url.scheme]
        if not url.hostname or "*" in text or "@" in text or url.path.strip("/") or url.query or url.fragment:
            raise ValueError(text)
        host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
        return f"{url.scheme}://{host}" + (f":{url.port}" if url.port not in (None, default) else "")
    except (ValueError, KeyError):
        raise DeclarationError(
            f"{text!r} is no origin; give the scheme and the host of Temporal's UI, such as http://localhost:8233."
        ) from None


def _gate(origins: Collection[str], token: str) -> Middleware:
    """Who may come in, and what a browser must read on the way out, on refusals too: else it shows no reason."""
    expected = f"Bearer {token}".encode()

    @web.middleware
    async def gate(request: web.Request, handler: Handler) -> web.StreamResponse:
        origin = request.headers.get("Origin")
        # Not left to the browser: by DNS rebinding a strange page is of our own origin, and asks for no leave.
        if origin is not None and origin not in origins:
            return _refusal(403, "Pages of this origin may not call this codec server; see its --ui-origin.")
        if request.method == "OPTIONS":
            # Browsers send no token with it.
            answer: web.StreamResponse = web.Response(status=204, headers={"Access-Control-Allow-Methods": "POST"})
            answer.headers["Access-Control-Allow-Headers"] = UI_HEADERS
            # The UI asks payload by payload; by itself a browser remembers this for seconds.
            answer.headers["Access-Control-Max-Age"] = "600"
        elif token and request.method == "POST" and not hmac.compare_digest(_authorization(request), expected):
            answer = _refusal(401, "This codec server needs a token: send `Authorization: Bearer …`.")
            answer.headers["WWW-Authenticate"] = "Bearer"
        else:
            answer = await _answer(request, handler)
        if origin is not None:
            answer.headers["Access-Control-Allow-Origin"] = origin
            answer.headers["Access-Control-Allow-Credentials"] = "true"
            answer.headers["Vary"] = "Origin"
        answer.headers["Cache-Control"] = "no-store"
        return answer

    return gate


def _authorization(request: web.Request) -> bytes:
    return request.headers.get("Authorization", "").encode(errors="surrogateescape")


async def _answer(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPException as refused:
        return _refusal(refused.status, SAYS.get(refused.status, refused.reason))


def _by(work: Callable[[Iterable[Payload]], Awaitable[list[Payload]]]) -> Handler:
    async def coded(request: web.Request) -> web.Response:
        try:
            given = json_format.Parse(await request.read(), Payloads())
        # What these say quotes the body.
        except (json_format.ParseError, ValueError, RecursionError, web.RequestPayloadError):
            return _refusal(400, "The body is no JSON of temporal.api.common.v1.Payloads.")
        try:
            done = Payloads(payloads=await work(given.payloads))
        except ValueError as error:
            return _refusal(422, str(error))
        return web.Response(text=json_format.MessageToJson(done, indent=None), content_type="application/json")

    return coded


async def _about(_: web.Request) -> web.Response:
    return web.Response(text="Mulligan's codec server, for Temporal's UI and command line: POST /decode and /encode.\n")


def _refusal(status: int, sentence: str) -> web.Response:
    return web.json_response({"error": sentence}, status=status)


def _without_content(record: logging.LogRecord) -> bool:
    """Keep what kind of error it was: its text and its trace quote the request."""
    if record.exc_info and record.exc_info[0]:
        record.msg, record.args = f"{record.getMessage()}: {record.exc_info[0].__name__}", ()
        record.exc_info = None
    return True
