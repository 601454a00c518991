"""`mulligan mcp login`: log in to an MCP server once, for the workers of this machine."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from mulligan.cli._terminal import OK, CommandApp, Modules, fail, print_line, print_progress

if TYPE_CHECKING:
    from mulligan.mcp import McpServer

mcp = CommandApp(help="Log in to MCP servers.", no_args_is_help=True)


@mcp.callback()
def _group() -> None:
    """MCP servers that need a login."""


@mcp.command()
async def login(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The server's name in its declaration.")],
    load: Modules = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait for the browser to return.")] = 300,
) -> int:
    """Log in to an MCP server that is declared with `auth=OAuthLogin()`. Open the printed address in a browser here.

    The login is kept in a file that only you can read; workers use it from now on, and renew it.

    Example: `mulligan mcp login calendar --load shop`

    Exit code: 0 logged in, 1 the login failed, 2 there is no such server.
    """
    return await _login(_find(name, load or []), timeout)


def _find(name: str, load: list[str]) -> McpServer:
    from mulligan.client.settings import settings
    from mulligan.mcp_auth import OAuthLogin
    from mulligan.worker.loading import load as load_modules
    from mulligan.worker.loading import modules_to_load

    loaded = load_modules(modules_to_load(settings().load, load))
    servers = [server for agent in loaded.registry.agents.values() for server in agent.mcp]
    with_login = {server.name: server for server in servers if isinstance(server.auth, OAuthLogin)}
    if name not in with_login:
        known = ", ".join(sorted(with_login)) or "none"
        fail(f"no MCP server {name!r} is declared with auth=OAuthLogin(…); there are: {known}.")
    return with_login[name]


async def _login(server: McpServer, timeout: float) -> int:
    from mulligan.activities.mcp.oauth_login import log_in
    from mulligan.mcp import MissingVariable
    from mulligan.mcp_auth import LoginNeeded

    def show(url: str) -> None:
        print_progress("open this address in a browser on this machine, and log in:")
        print_line(url)

    try:
        async with asyncio.timeout(timeout):
            await log_in(server, show)
    except TimeoutError:
        print_progress(f"nobody logged in within {timeout:g} s.")
        return 1
    except (LoginNeeded, MissingVariable, OSError) as error:
        print_progress(f"the login to {server.name!r} failed: {error}.")
        return 1
    print_progress(f"logged in to {server.name!r}; workers use it from now on.")
    return OK
