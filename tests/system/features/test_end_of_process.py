"""Programs that end right after they used Temporal."""

from __future__ import annotations

import asyncio
import os
import sys

from mulligan.devserver import DevServer
from tests.support.temporal import environment_of

PROGRAM = """
import asyncio
import mulligan

async def main():
    client = await mulligan.connect()
    await client.count_workflows()

asyncio.run(main())
"""


async def test_a_program_that_ends_right_after_a_call_of_its_client_exits_with_0(temporal: DevServer) -> None:
    """Without a wait at its end, about one process of fifteen aborted on a busy machine."""

    async def run() -> tuple[int | None, str]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PROGRAM, env=os.environ | environment_of(temporal), stderr=asyncio.subprocess.PIPE
        )
        _, error = await process.communicate()
        return process.returncode, error.decode()

    assert await asyncio.gather(*(run() for _ in range(6))) == [(0, "")] * 6
