"""The file with the login to an MCP server."""

from __future__ import annotations

from pathlib import Path

import filelock
import pytest

from mulligan.activities.mcp import login_file
from mulligan.activities.mcp.login_file import LoginFile
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
