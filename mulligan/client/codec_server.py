"""A codec server for Temporal: its UI and its command line send payloads here to decrypt them.

The protocol is Temporal's (docs.temporal.io, "Codec Server"): POST /decode and /encode with `Payloads` as protobuf's JSON.
Everyone who can call it can read all encrypted data. So only pages of the UI's origin may call it, and if other machines
can reach it, callers need a token.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from google.protobuf import json_format
from temporalio.api.common.v1 import Payload, Payloads

from mulligan.client.encryption import EncryptionCodec
from mulligan.client.web_origin import is_loopback
from mulligan.errors import DeclarationError

MOST_BYTES = 8 * 1024 * 1024
"""The maximum size of a request body: Temporal's messages have at most 4 MiB, and base64 adds a third."""
UI_HEADERS = "authorization, authorization-extras, content-type, x-namespace"
"""The headers that Temporal's UI sends; the authorization ones with "Pass the user access token"."""
SECONDS_TO_STOP = 2
ERROR_TEXTS = {
    404: "There is no such path; POST to /decode or /encode.",
    405: "POST to /decode or /encode.",
    413: f"The body is larger than {MOST_BYTES} bytes.",
}


@asynccontextmanager
async def codec_server(
    codec: EncryptionCodec, host: str, port: int, origins: Collection[str], token: str = ""
) -> AsyncIterator[str]:
    """Serve the codec at `host` and `port` (0: a free port) while the block runs; yields the URL.

    Args:
        codec: the codec with the keys.
        host: the address to listen at.
        port: the port to listen at.
        origins: the origins whose pages may call it, as browsers send them (see `parse_origin`).
        token: callers must send it as `Authorization: Bearer …`. It may be empty only with a loopback `host`.

    Raises:
        DeclarationError: the address cannot be bound, or it is not a loopback address and there is no token.
    """
    if not token and not is_loopback(host):
        raise DeclarationError(f"{host!r} can be reached from other machines: a codec server there needs a token.")
    app = web.Application(middlewares=[_check_access(origins, token)], client_max_size=MOST_BYTES)
    # Temporal's programs allow an endpoint with a slash at the end, and with `{namespace}`.
    prefix = "/{namespace:([^/]*/)?}"
    app.add_routes([web.get("/", _about), web.post(f"{prefix}decode", _handler(codec.decode))])
    app.add_routes([web.post(f"{prefix}encode", _handler(codec.encode))])
    runner = web.AppRunner(app, access_log=None, logger=logging.getLogger(__name__), shutdown_timeout=SECONDS_TO_STOP)
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


def _check_access(origins: Collection[str], token: str) -> Middleware:
    """Checks origin and token, and adds the CORS headers, also to errors: without them a browser does not show the error."""
    expected = f"Bearer {token}".encode()

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        origin = request.headers.get("Origin")
        # Not left to the browser: with DNS rebinding, a foreign page has this server's origin and needs no CORS check.
        if origin is not None and origin not in origins:
            return _error_response(403, "Pages of this origin may not call this codec server; see its --ui-origin.")
        if request.method == "OPTIONS":
            # Browsers send no token with a preflight request.
            response: web.StreamResponse = web.Response(status=204, headers={"Access-Control-Allow-Methods": "POST"})
            response.headers["Access-Control-Allow-Headers"] = UI_HEADERS
            # The UI sends a request for each payload. By default a browser caches the preflight result for seconds only.
            response.headers["Access-Control-Max-Age"] = "600"
        elif token and request.method == "POST" and not hmac.compare_digest(_authorization(request), expected):
            response = _error_response(401, "This codec server needs a token: send `Authorization: Bearer …`.")
            response.headers["WWW-Authenticate"] = "Bearer"
        else:
            response = await _handle(request, handler)
        if origin is not None:
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Access-Control-Allow-Credentials"] = "true"
            response.headers["Vary"] = "Origin"
        response.headers["Cache-Control"] = "no-store"
        return response

    return middleware


def _authorization(request: web.Request) -> bytes:
    return request.headers.get("Authorization", "").encode(errors="surrogateescape")


async def _handle(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPException as refused:
        return _error_response(refused.status, ERROR_TEXTS.get(refused.status, refused.reason))


def _handler(convert: Callable[[Iterable[Payload]], Awaitable[list[Payload]]]) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        try:
            payloads = json_format.Parse(await request.read(), Payloads())
        # The texts of these errors quote the body.
        except (json_format.ParseError, ValueError, RecursionError, web.RequestPayloadError):
            return _error_response(400, "The body is not JSON of temporal.api.common.v1.Payloads.")
        try:
            converted = Payloads(payloads=await convert(payloads.payloads))
        except ValueError as error:
            return _error_response(422, str(error))
        return web.Response(text=json_format.MessageToJson(converted, indent=None), content_type="application/json")

    return handle


async def _about(_: web.Request) -> web.Response:
    return web.Response(text="Mulligan's codec server, for Temporal's UI and command line: POST /decode and /encode.\n")


def _error_response(status: int, sentence: str) -> web.Response:
    return web.json_response({"error": sentence}, status=status)
