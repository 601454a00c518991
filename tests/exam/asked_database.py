"""What workers know of the databases: where they are, and how a tool is called. It imports nothing of Mulligan: the workers of
rivals use it in environments of their own."""

from __future__ import annotations

import asyncio
import json
import os
import random
from typing import Any

import httpx2

from tests.exam.run_names import seed_and_task

URL, FACTS = "EXAM_DATABASES", "EXAM_DOMAIN"
"""The environment variables with the address, and with the path of the domain's facts (`Databases.domain`)."""
LONGEST_PAUSE_SECONDS = 0.2


async def ask(url: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Post a request to the databases."""
    async with httpx2.AsyncClient(verify=False, timeout=120) as client:  # plain HTTP: certificates take 20 ms to load
        answer = await client.post(f"{url}/{path}", json=body)
    answer.raise_for_status()
    result: dict[str, Any] = answer.json()
    return result


async def call_tool(name: str, arguments: dict[str, Any], *, run: str, call: str, attempt: int) -> tuple[str, bool]:
    """Call a tool, after a moment in which the worker may be killed; returns its text, and whether it has failed.

    Args:
        name: The tool's name.
        arguments: Its arguments.
        run: The workflow id.
        call: The same for all attempts of a call, and for no other call of the run.
        attempt: From 1.
    """
    await asyncio.sleep(random.uniform(0, LONGEST_PAUSE_SECONDS))
    asked = {
        "run": run,
        "task": seed_and_task(run)[1],
        "name": name,
        "arguments": arguments,
        "call": call,
        "attempt": attempt,
        "pid": os.getpid(),
    }
    answer = await ask(os.environ[URL], "call", asked)
    return answer["text"], answer["failed"]


def facts() -> dict[str, Any]:
    """The domain: `name`, `policy`, `tools` and `tasks`."""
    with open(os.environ[FACTS]) as file:
        read: dict[str, Any] = json.load(file)
    return read
