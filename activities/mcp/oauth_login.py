"""A new login of a person to an MCP server: the browser returns to a port of this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Set
from urllib.parse import parse_qs, urlsplit

from mcp.client import Client
from mcp.shared.auth import AuthorizationCodeResult

from mulligan.activities.mcp.http_client import record_http
from mulligan.activities.mcp.oauth import interactive_login
from mulligan.activities.mcp.server_log import Stderr
from mulligan.activities.mcp.transport import connect_to
from mulligan.mcp import McpServer
from mulligan.mcp_auth import LoginNeeded, OAuthLogin

_PAGE = "You are logged in. You may close this page."
_REFUSED = "The login failed; see the terminal."


async def log_in(server: McpServer, show: Callable[[str], None]) -> None:
    """Log in, and store the login. `show` shows a person the address to open.

    Raises:
        LoginNeeded: it failed, or the server requires no login.
        MissingVariable: the declaration refers to a variable that the environment does not have.
        OSError: the port is taken, or the file cannot be written.
    """
    assert isinstance(server.auth, OAuthLogin)
    returned: asyncio.Future[AuthorizationCodeResult] = asyncio.get_running_loop().create_future()
    states: set[str] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        status, page = _take(await reader.readline(), states, returned)
        head = (
            f"HTTP/1.1 {status}\r\ncontent-type: text/plain\r\ncontent-length: {len(page)}\r\nconnection: close\r\n\r\n"
        )
        writer.write((head + page).encode())
        await writer.drain()
        writer.close()

    async def show_address(url: str) -> None:
        states.update(parse_qs(urlsplit(url).query).get("state", ()))
        show(url)

    async def wait() -> AuthorizationCodeResult:
        return await returned

    async with await asyncio.start_server(answer, "127.0.0.1", server.auth.redirect_port) as listener:
        port = listener.sockets[0].getsockname()[1]
        auth = interactive_login(server, f"http://127.0.0.1:{port}/callback", show_address, wait)
        with record_http() as http:
            try:
                async with Client(connect_to(server, Stderr(server.name), _nothing, auth), cache=None) as client:
                    await client.list_tools()
            except Exception as error:
                raise LoginNeeded(str(http) or f"{type(error).__name__}: {error}") from error
    if not returned.done():
        raise LoginNeeded("the server answers without a login")


def _take(line: bytes, states: Set[str], returned: asyncio.Future[AuthorizationCodeResult]) -> tuple[str, str]:
    """The status and the page for a browser's request line. What it returned with is set as the result.

    Any page that is open in the browser can request this address. So only a request with the `state` of the address that
    was shown counts (RFC 6749, section 10.12).
    """
    parts = line.decode(errors="replace").split()
    target = urlsplit(parts[1]) if len(parts) > 1 else urlsplit("")
    if target.path != "/callback":
        return "404 Not Found", ""
    fields = {name: values[0] for name, values in parse_qs(target.query).items()}
    if returned.done() or fields.get("state") not in states:
        return "400 Bad Request", _REFUSED
    if "code" not in fields:
        returned.set_exception(LoginNeeded(f"the authorization server says {fields.get('error', 'nothing')!r:.200}"))
        return "400 Bad Request", _REFUSED
    returned.set_result(AuthorizationCodeResult(code=fields["code"], state=fields.get("state"), iss=fields.get("iss")))
    return "200 OK", _PAGE


def _nothing() -> None:
    """A server at a URL has no program that could end."""
