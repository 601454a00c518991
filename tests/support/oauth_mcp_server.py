"""A real MCP server behind a real OAuth authorization server, in a thread. Refresh tokens are good for one use."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, urlencode

import uvicorn

from tests.support.mcp_server import server
from tests.support.ports import free_ports


class OAuthServer:
    """What it has issued, and what was done with it."""

    def __init__(self, port: int) -> None:
        self.origin = f"http://127.0.0.1:{port}"
        self.access: set[str] = set()
        self.refresh: set[str] = set()
        self.renewals = self.reuses = self.issued = self.registrations = 0
        self._app = server.streamable_http_app()

    def revoke(self) -> None:
        """Nothing that was issued is good any more."""
        self.access.clear()
        self.refresh.clear()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] == "/mcp":
            headers = dict(scope.get("headers", []))
            token = headers.get(b"authorization", b"").decode().removeprefix("Bearer ")
            if scope["type"] != "http" or token in self.access:
                await self._app(scope, receive, send)
                return
            where = f'Bearer resource_metadata="{self.origin}/.well-known/oauth-protected-resource/mcp"'
            await _respond(send, 401, {}, [(b"www-authenticate", where.encode())])
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        await self._authorize(scope["path"], scope["query_string"], body, send)

    async def _authorize(self, path: str, query: bytes, body: bytes, send: Any) -> None:
        match path:
            case "/.well-known/oauth-protected-resource/mcp":
                facts = {"resource": f"{self.origin}/mcp", "authorization_servers": [self.origin]}
                await _respond(send, 200, facts)
            case "/.well-known/oauth-authorization-server":
                ends = {
                    f"{name}_endpoint": f"{self.origin}/{name}" for name in ("authorization", "token", "registration")
                }
                facts = {"issuer": self.origin, **ends, "response_types_supported": ["code"]}
                facts["code_challenge_methods_supported"] = ["S256"]
                await _respond(send, 200, facts)
            case "/registration":
                asked = json.loads(body)
                self.registrations += 1
                await _respond(send, 201, {**asked, "client_id": "c1", "token_endpoint_auth_method": "none"})
            case "/authorization":
                given = dict(parse_qsl(query.decode()))
                back = f"{given['redirect_uri']}?{urlencode({'code': 'k', 'state': given['state']})}"
                await _respond(send, 302, {}, [(b"location", back.encode())])
            case "/token":
                await self._token(dict(parse_qsl(body.decode())), send)
            case _:
                await _respond(send, 404, {})

    async def _token(self, given: dict[str, str], send: Any) -> None:
        if given["grant_type"] == "refresh_token":
            if given["refresh_token"] not in self.refresh:
                self.reuses += 1
                await _respond(send, 400, {"error": "invalid_grant"})
                return
            self.refresh.discard(given["refresh_token"])
            self.renewals += 1
        self.issued += 1
        access, refresh = f"access-{self.issued}", f"refresh-{self.issued}"
        self.access.add(access)
        self.refresh.add(refresh)
        await _respond(
            send, 200, {"access_token": access, "refresh_token": refresh, "token_type": "Bearer", "expires_in": 3600}
        )


async def _respond(send: Any, status: int, content: dict[str, Any], headers: Any = ()) -> None:
    body = json.dumps(content).encode()
    start = [(b"content-type", b"application/json"), *headers]
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": body})


@contextmanager
def oauth_server() -> Iterator[OAuthServer]:
    """A running server."""
    [port] = free_ports(1)
    app = OAuthServer(port)
    config = uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning", timeout_graceful_shutdown=0)
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    while not running.started:
        time.sleep(0.02)
    try:
        yield app
    finally:
        running.should_exit = True
        thread.join()
