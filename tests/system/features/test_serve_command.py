"""`mulligan serve` as a process: what it refuses at its start, and that it ends by itself."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import pytest

from tests.support.command_server import PIPE, CommandProcess, start_command

SECRET = "5ecret-5ecret-5ecret"
REFUSED: list[tuple[list[str], str, str]] = [
    (["--host", "0.0.0.0"], "", "--host 0.0.0.0 can be reached from other machines: set MULLIGAN_SERVE_TOKENS"),
    ([], f"ada:{SECRET},bob:{SECRET}", "entry 2 of MULLIGAN_SERVE_TOKENS (bob) has the token of another entry"),
]
"""All others are in tests/unit/test_serve_settings.py."""


@asynccontextmanager
async def serve(*words: str, tokens: str = "") -> AsyncIterator[CommandProcess]:
    process = await start_command(
        *("serve", "--port", "0", *words),
        env={**os.environ, "TEMPORAL_ADDRESS": "127.0.0.1:1", "MULLIGAN_SERVE_TOKENS": tokens, "COLUMNS": "200"},
        stderr=PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.parametrize(("words", "tokens", "sentence"), REFUSED, ids=[row[2][:90] for row in REFUSED])
async def test_a_wrong_start_is_refused_with_one_sentence_without_the_token(
    words: list[str], tokens: str, sentence: str
) -> None:
    async with serve(*words, tokens=tokens) as process:
        _, err = await process.communicate()
    said = " ".join(err.decode().split())
    assert process.returncode == 2, said
    assert sentence in said
    assert "Traceback" not in said
    assert SECRET not in said


async def test_it_starts_without_temporal_answers_503_and_ends_at_sigterm() -> None:
    async with serve(tokens=f"ada:{SECRET}") as process:
        assert process.stderr is not None
        line = (await process.stderr.readline()).decode()
        match = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert match, line
        async with httpx2.AsyncClient(base_url=match[0], timeout=300) as http:
            answer = await http.get("/api/runs", headers={"Authorization": f"Bearer {SECRET}"})
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
        process.terminate()
        said = (await process.stderr.read()).decode()
        await process.wait()
    assert SECRET not in line + said
    assert "Traceback" not in said


@pytest.mark.parametrize(("words", "is_secure"), [((), False), (("--trust-proxy", "127.0.0.0/8"), True)])
async def test_the_headers_of_a_proxy_are_believed_only_where_it_is_named(
    words: tuple[str, ...], is_secure: bool
) -> None:
    """The scheme is in the cookie; the address counts attempts to sign in."""
    async with serve(*words, tokens=f"ada:{SECRET}") as process:
        assert process.stderr is not None
        line = (await process.stderr.readline()).decode()
        [url] = re.findall(r"http://127\.0\.0\.1:\d+", line)
        async with httpx2.AsyncClient(base_url=url, timeout=300) as http:
            forged = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "198.51.100.1"}
            answer = await http.post("/console/sign-in", data={"token": SECRET}, headers=forged)
            assert ("Secure" in answer.headers["set-cookie"]) == is_secure
            statuses = []
            for number in range(11):
                forged["X-Forwarded-For"] = f"198.51.100.{number}"
                answer = await http.post("/console/sign-in", data={"token": "wrong"}, headers=forged)
                statuses.append(answer.status_code)
        assert statuses == [401] * 10 + [401 if is_secure else 429]
