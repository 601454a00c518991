"""Commands of `mulligan`, called in this process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from typer.testing import CliRunner

from mulligan.cli.app import app
from mulligan.devserver import DevServer
from tests.support.temporal import environment_of


@pytest.fixture(name="command")
def app_command(temporal: DevServer, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a command: exit code, standard output, and standard error."""
    for name, value in environment_of(temporal).items():
        monkeypatch.setenv(name, value)

    async def run(*words: str) -> tuple[int, str, str]:
        ran = await asyncio.to_thread(CliRunner().invoke, app, words, catch_exceptions=False)
        return ran.exit_code, ran.stdout, ran.stderr

    return run
