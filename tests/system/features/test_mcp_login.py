"""OAuth for MCP servers: a person's login, which workers share and renew."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import stat
import sys
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest

from mulligan import Agent, DeclarationError, McpServer, OAuthClientCredentials, OAuthLogin
from mulligan.activities.mcp.servers import McpServers
from tests.support.oauth_mcp_server import OAuthServer, oauth_server


async def log_in(server: OAuthServer, folder: Path, auth: str = "OAuthLogin()") -> None:
    """`mulligan mcp login`, with a browser that follows the printed address, after another page has tried to get in first."""
    (folder / "login_agents.py").write_text(
        "from mulligan import Agent, McpServer, OAuthLogin\n"
        f"web = McpServer('web', url='{server.origin}/mcp', auth={auth})\n"
        "agent = Agent(name='surfer', model='openai:x', mcp=[web])\n"
    )
    command = [str(Path(sys.executable).with_name("mulligan")), "mcp", "login", "web", "--load", "login_agents"]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    url = (await process.stdout.readline()).decode().strip()
    async with httpx2.AsyncClient(follow_redirects=True) as browser:
        returns_to = parse_qs(urlsplit(url).query)["redirect_uri"][0]
        for foreign in ("code=stolen&state=guessed", "error=access_denied"):
            assert (await browser.get(f"{returns_to}?{foreign}")).status_code == 400
        page = await browser.get(url)
    assert "You are logged in" in page.text
    _, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()


async def echo(servers: McpServers, declared: McpServer, text: str) -> Any:
    async def progress(progress: float, total: float | None, message: str | None) -> None:
        """Nothing reports it."""

    result = await servers._session(declared).call("echo", {"text": text}, progress)
    return result.content[0].text  # type: ignore[union-attr]


async def test_workers_share_a_login_renew_it_once_and_say_when_a_new_one_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    logins = tmp_path / "logins"
    monkeypatch.setenv("MULLIGAN_MCP_LOGINS", str(logins))
    caplog.set_level(logging.INFO)
    with oauth_server() as server:
        declared = McpServer("web", url=f"{server.origin}/mcp", auth=OAuthLogin())
        agent = Agent(name="surfer", model="openai:x", mcp=[declared])
        before = McpServers()
        async with before.running():
            [note] = (await before.offer_tools(agent)).notes
        assert "mulligan mcp login web" in note
        await log_in(server, tmp_path)
        file = logins / "web.json"
        assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
        first, second = McpServers(), McpServers()
        async with first.running(), second.running():
            texts = await asyncio.gather(*(echo(each, declared, "a") for each in (first, second)))
            assert (texts, server.renewals) == (["a", "a"], 0)
            server.access.clear()  # the access token expires
            texts = await asyncio.gather(*(echo(each, declared, str(n)) for n in range(5) for each in (first, second)))
            assert texts == [str(n) for n in range(5) for _ in range(2)]
            assert (server.renewals, server.reuses) == (1, 0)
            server.revoke()
            for _ in range(2):
                with pytest.raises(Exception, match=r"has expired, or was revoked.*mulligan mcp login web"):
                    await echo(first, declared, "b")
            warned = [r for r in caplog.records if r.levelno >= logging.WARNING and "expired" in r.getMessage()]
            assert len(warned) == 1
            await log_in(server, tmp_path)
            assert await echo(first, declared, "c") == "c"  # without a restart
        content = json.loads(file.read_text())
        secrets = [content["tokens"]["access_token"], content["tokens"]["refresh_token"], "access-1", "refresh-1"]
        assert not any(secret in caplog.text for secret in secrets)
        file.chmod(0o644)
        third = McpServers()
        async with third.running():
            assert "set its mode to 600" in (await third.offer_tools(agent)).notes[0]


async def test_a_client_that_the_declaration_names_renews_its_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is registered by hand: its id is in the declaration, and not in the file."""
    monkeypatch.setenv("MULLIGAN_MCP_LOGINS", str(tmp_path / "logins"))
    with oauth_server() as server:
        await log_in(server, tmp_path, 'OAuthLogin(client_id="by-hand")')
        declared = McpServer("web", url=f"{server.origin}/mcp", auth=OAuthLogin(client_id="by-hand"))
        servers = McpServers()
        async with servers.running():
            assert await echo(servers, declared, "a") == "a"
            server.access.clear()  # the access token expires
            assert await echo(servers, declared, "b") == "b"
    assert (server.renewals, server.registrations) == (1, 0)


def test_a_declaration_of_oauth_shows_no_secret_and_is_checked() -> None:
    credentials = OAuthClientCredentials("id", client_secret="sesame", issuer="https://login.example.com")
    server = McpServer("web", url="https://example.com/mcp", auth=credentials)
    assert "sesame" not in f"{credentials!r} {server!r}"
    with pytest.raises(DeclarationError, match="a client_secret or a private_key"):
        OAuthClientCredentials("id", issuer="https://login.example.com")
    with pytest.raises(DeclarationError, match="auth is for a server with a url"):
        McpServer("web", command=["x"], auth=OAuthLogin())
