"""A codec server for Temporal: its UI and its command line send payloads here to decrypt them.

The protocol is Temporal's (docs.temporal.io, "Codec Server"): POST /decode and /encode with `Payloads` as protobuf's JSON.
Everyone who can call it can read all encrypted data. So only pages of the UI's origin may call it, and if other machines
can reach it, callers need a token.
"""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

from google.protobuf import json_format
from temporalio.api.common.v1 import Payloads

from mulligan.client.encryption import EncryptionCodec
from mulligan.client.plain_http_server import Request, Response, plain_http_server
from mulligan.client.web_origin import is_loopback
from mulligan.errors import DeclarationError

MOST_BYTES = 8 * 1024 * 1024
"""The maximum size of a request body: Temporal's messages have at most 4 MiB, and base64 adds a third."""
UI_HEADERS = "authorization, authorization-extras, content-type, x-namespace"
"""The headers that Temporal's UI sends; the authorization ones with "Pass the user access token"."""
_JSON = "application/json; charset=utf-8"
_PATH = re.compile(r"/(?:[^/]*/)?(decode|encode)")
"""Temporal's programs allow an endpoint with a slash at the end, and with `{namespace}`."""


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
    async with AsyncExitStack() as stack:
        served = plain_http_server(_handler(codec, origins, token), host, port, MOST_BYTES)
        try:
            bound, number = await stack.enter_async_context(served)
        except (OSError, OverflowError) as error:
            raise DeclarationError(f"nothing can listen at {host} port {port}: {error}.") from None
        yield f"http://{f'[{bound}]' if ':' in bound else bound}:{number}"


def _handler(codec: EncryptionCodec, origins: Collection[str], token: str) -> Callable[[Request], Awaitable[Response]]:
    """Checks origin and token, and adds the CORS headers, also to errors: without them a browser does not show the error."""
    expected = f"Bearer {token}".encode()

    async def handle(request: Request) -> Response:
        origin = request.headers.get("origin")
        # Not left to the browser: with DNS rebinding, a foreign page has this server's origin and needs no CORS check.
        if origin is not None and origin not in origins:
            refused = _error_response(403, "Pages of this origin may not call this codec server; see its --ui-origin.")
            return replace(refused, headers={"Cache-Control": "no-store"})
        headers = {"Cache-Control": "no-store"}
        if origin is not None:
            headers |= {"Access-Control-Allow-Origin": origin, "Access-Control-Allow-Credentials": "true"}
            headers["Vary"] = "Origin"
        authorization = request.headers.get("authorization", "").encode("latin-1")
        if request.method == "OPTIONS":
            # Browsers send no token with a preflight request. The UI sends a request for each payload; by default a
            # browser caches the preflight result for seconds only.
            headers |= {"Access-Control-Allow-Methods": "POST", "Access-Control-Allow-Headers": UI_HEADERS}
            return Response(204, headers={**headers, "Access-Control-Max-Age": "600"})
        if token and request.method == "POST" and not hmac.compare_digest(authorization, expected):
            refused = _error_response(401, "This codec server needs a token: send `Authorization: Bearer …`.")
            return replace(refused, headers={**headers, "WWW-Authenticate": "Bearer"})
        return replace(await _answer(request, codec), headers=headers)

    return handle


async def _answer(request: Request, codec: EncryptionCodec) -> Response:
    if request.path == "/" and request.method in ("GET", "HEAD"):
        return Response(200, "Mulligan's codec server, for Temporal's UI and command line: POST /decode and /encode.\n")
    path = _PATH.fullmatch(request.path)
    if path is None and request.path != "/":
        return _error_response(404, "There is no such path; POST to /decode or /encode.")
    if path is None or request.method != "POST":
        return _error_response(405, "POST to /decode or /encode.")
    if request.body is None:
        return _error_response(413, f"The body is larger than {MOST_BYTES} bytes.")
    try:
        payloads = json_format.Parse(request.body, Payloads())
    except (json_format.ParseError, ValueError, RecursionError):  # the texts of these errors quote the body
        return _error_response(400, "The body is not JSON of temporal.api.common.v1.Payloads.")
    convert = codec.decode if path[1] == "decode" else codec.encode
    try:
        converted = Payloads(payloads=await convert(payloads.payloads))
    except ValueError as error:
        return _error_response(422, str(error))
    return Response(200, json_format.MessageToJson(converted, indent=None), _JSON)


def _error_response(status: int, sentence: str) -> Response:
    return Response(status, json.dumps({"error": sentence}), _JSON)
