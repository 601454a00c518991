"""What a request passes before any protocol sees it: its host, its origin, its sender, the limits of its body."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mulligan.serve.arriving_body import ArrivingBody, BodyLimits, too_large
from mulligan.serve.http_protocol import path_of
from mulligan.serve.problems import Problem
from mulligan.serve.security import Access
from mulligan.serve.served_request import IGNORED, ServedRequest
from mulligan.serve.tenant_shares import TenantShares

PREFLIGHT_SECONDS = 600
EXPOSED_HEADERS = (
    "Location, Retry-After, Mulligan-Ignored, Mcp-Session-Id, Mcp-Protocol-Version, x-vercel-ai-ui-message-stream"
)
"""The headers of responses that pages of another origin may read."""

Refuse = Callable[[str, Problem], Response]


class Gate:
    """ASGI middleware. `refuse` makes the response to a problem, by the path; `public` are paths that need no token;
    one that ends with a slash stands for all below it, but for `/` itself.
    """

    def __init__(self, app: ASGIApp, access: Access, refuse: Refuse, public: Sequence[str], bodies: BodyLimits) -> None:
        self._app, self._access, self._refuse = app, access, refuse
        self._public = frozenset(public)
        self._public_prefixes = tuple(path for path in public if path.endswith("/") and path != "/")
        self._bodies, self._held_bodies = bodies, TenantShares(bodies.most_held)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, path = Headers(scope=scope), path_of(scope)
        origin, host = headers.get("origin"), headers.get("host", "")
        try:
            self._access.check_host(host)
            self._access.check_origin(origin, host)
        except Problem as problem:
            await self._refuse(path, problem)(scope, receive, send)
            return
        body = ArrivingBody(
            self._bodies, self._held_bodies, scope, receive, _with_cors(send, origin) if origin else send
        )
        if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            await _preflight(headers)(scope, body.receive, body.send)
            return
        body.tenant = path  # where nobody knows yet who calls
        try:
            if path not in self._public and not path.startswith(self._public_prefixes):
                caller = scope["mulligan.caller"] = await self._access.authenticate(HTTPConnection(scope))
                body.tenant = caller.tenant
            self._check_length(headers.get("content-length"))
            _check_encoding(headers.get("content-encoding", "identity"))
        except Problem as problem:
            await self._refuse(path, problem)(scope, body.receive, body.send)
            return
        with ServedRequest.serving(scope), body.of_request(scope):
            await self._app(scope, body.receive, _naming_ignored(body.send))

    def _check_length(self, length: str | None) -> None:
        if length is not None and length.isdecimal() and int(length[:20]) > self._bodies.most_bytes:
            raise too_large(self._bodies.most_bytes)


def _check_encoding(encoding: str) -> None:
    """Refuse a compressed body: nobody knows how large it is."""
    if encoding.strip().lower() not in ("", "identity"):
        raise Problem(
            415,
            "unsupported_encoding",
            f"The body is encoded as {encoding[:80]!r}; send it as it is, without Content-Encoding.",
            {"Accept-Encoding": "identity"},
        )


def _naming_ignored(send: Send) -> Send:
    """`send` that names in a header what the agent has ignored of the request."""

    async def add(message: Message) -> None:
        if message["type"] == "http.response.start" and (ignored := ServedRequest.current().ignored):
            MutableHeaders(scope=message)[IGNORED] = ignored
        await send(message)

    return add


def _preflight(headers: Headers) -> Response:
    """The answer to a browser that asks whether a page of an allowed origin may send a request."""
    return Response(
        status_code=204,
        headers={
            "Access-Control-Allow-Methods": "GET, POST, DELETE, OPTIONS",
            "Access-Control-Allow-Headers": headers.get(
                "access-control-request-headers", "authorization, content-type"
            ),
            "Access-Control-Max-Age": str(PREFLIGHT_SECONDS),
        },
    )


def _with_cors(send: Send, origin: str) -> Send:
    """`send` that adds the CORS headers for an allowed origin, to refusals too: a browser hides those without them."""

    async def add(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers["Access-Control-Allow-Origin"] = origin
            headers["Access-Control-Expose-Headers"] = EXPOSED_HEADERS
            headers.add_vary_header("Origin")
        await send(message)

    return add
