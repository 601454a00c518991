"""The file with a person's login to an MCP server: tokens and the client that they were given to, with mode 0600."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock

from mulligan.mcp_auth import LoginNeeded

if TYPE_CHECKING:
    from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

LOCK_TIMEOUT = 30.0
"""Seconds for which another worker may renew the login."""


class LoginFile:
    """The SDK's storage of tokens, in a file that all workers of a machine share. `url`: the server that it is for."""

    def __init__(self, path: Path, url: str) -> None:
        self._path, self._url = path, url
        self._read_at: tuple[int, int] | None = None
        self._content: dict[str, Any] = {}

    def has_changed(self) -> bool:
        """Whether the file was written since it was read here."""
        return self._mark() != self._read_at

    async def get_tokens(self) -> OAuthToken | None:
        """The tokens; None if nobody has logged in.

        Raises:
            LoginNeeded: others may read the file.
        """
        from mcp.shared.auth import OAuthToken

        tokens = self._read().get("tokens")
        return OAuthToken.model_validate(tokens) if tokens else None

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """The client that the tokens were given to."""
        from mcp.shared.auth import OAuthClientInformationFull

        client = self._read().get("client")
        return OAuthClientInformationFull.model_validate(client) if client else None

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Write new tokens to the file."""
        self._write(tokens=tokens.model_dump(mode="json", exclude_none=True))

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Write a new client to the file."""
        self._write(client=client_info.model_dump(mode="json", exclude_none=True))

    def replace(self, tokens: OAuthToken, client: OAuthClientInformationFull | None) -> None:
        """Replace the whole login by a new one."""
        self._content, self._read_at = {}, self._mark()
        given = {"client": client.model_dump(mode="json", exclude_none=True)} if client else {}
        self._write(tokens=tokens.model_dump(mode="json", exclude_none=True), **given)

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        """Keep other workers from renewing the login during the block: a refresh token may be good for one use only."""
        lock = filelock.FileLock(f"{self._path}.lock", timeout=LOCK_TIMEOUT, mode=0o600, thread_local=False)
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            await asyncio.to_thread(lock.acquire)
        except filelock.Timeout:  # an OSError too: without the lock, the refresh token could be used twice
            raise LoginNeeded(f"another worker is renewing the login in {self._path.name}; try again later") from None
        except OSError:  # a folder that cannot be written to: nobody else renews there either
            yield
            return
        try:
            yield
        finally:
            lock.release()

    def _mark(self) -> tuple[int, int] | None:
        try:
            facts = self._path.stat()
        except OSError:
            return None
        return facts.st_mtime_ns, facts.st_ino

    def _read(self) -> dict[str, Any]:
        mark = self._mark()
        if mark is None:
            self._content, self._read_at = {}, None
            return {}
        if mark != self._read_at:
            try:
                if stat.S_IMODE(self._path.stat().st_mode) & 0o077:
                    raise LoginNeeded(f"others may read the login in {self._path.name}: set its mode to 600")
                content = json.loads(self._path.read_text())
            except (OSError, ValueError) as error:
                raise LoginNeeded(f"its login cannot be read from {self._path.name}") from error
            # A file for another address must not give its tokens to this one.
            self._content = content if isinstance(content, dict) and content.get("url") == self._url else {}
            self._read_at = mark
        return self._content

    def _write(self, **parts: Any) -> None:
        content = {**self._read(), "url": self._url, **parts}
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=self._path.parent, prefix=self._path.name)  # its mode is 0600
        try:
            with os.fdopen(descriptor, "w") as file:
                json.dump(content, file)
            os.replace(name, self._path)
        except OSError:
            with suppress(OSError):
                os.unlink(name)
            raise
        self._content, self._read_at = content, self._mark()
