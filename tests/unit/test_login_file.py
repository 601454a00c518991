"""The file with the login to an MCP server."""

from __future__ import annotations

from pathlib import Path

import filelock
import pytest
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthToken

from mulligan import McpServer, OAuthLogin
from mulligan.activities.mcp import login_file
from mulligan.activities.mcp.login_file import LoginFile
from mulligan.activities.mcp.oauth import interactive_login
from mulligan.mcp_auth import LoginNeeded


async def test_a_login_is_not_renewed_while_another_worker_renews_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not after the wait for the lock either: a refresh token may be good for one use only."""
    monkeypatch.setattr(login_file, "LOCK_TIMEOUT", 0.1)
    path = tmp_path / "logins" / "desk.json"
    login = LoginFile(path, "https://mcp.example.com")
    async with login.locked():
        pass
    expected = pytest.raises(LoginNeeded, match=r"another worker is renewing the login in desk\.json; try again later")
    with filelock.FileLock(f"{path}.lock"), expected:
        async with login.locked():
            pytest.fail("it has no lock")


async def test_an_earlier_login_is_in_the_file_until_the_new_one_is_complete(tmp_path: Path) -> None:
    path, url = tmp_path / "desk.json", "https://mcp.example.com"
    earlier = LoginFile(path, url)
    await earlier.set_client_info(OAuthClientInformationFull(redirect_uris=None, client_id="c1"))
    await earlier.set_tokens(OAuthToken(access_token="old", token_type="Bearer", refresh_token="r1"))

    async def nobody(*shown: str) -> AuthorizationCodeResult:
        raise AssertionError("nobody is here")

    server = McpServer("desk", url=url, auth=OAuthLogin(token_file=path))
    new = interactive_login(server, "http://127.0.0.1:1/callback", nobody, nobody)  # type: ignore[arg-type]
    workers = LoginFile(path, url)
    assert (await workers.get_tokens()).access_token == "old"  # type: ignore[union-attr]
    await new.context.storage.set_tokens(OAuthToken(access_token="new", token_type="Bearer"))
    tokens = await workers.get_tokens()
    assert tokens is not None
    assert (tokens.access_token, tokens.refresh_token) == ("new", None)
    assert await workers.get_client_info() is None
