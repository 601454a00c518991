"""A machine that is lost leaves its connections open: the server must not give it the next attempts of its calls."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from mulligan.devserver import temporal_server
from tests.support.held_call import BEGUN
from tests.support.temporal import connect_to
from tests.support.worker_process import worker_process

RUNS = 6
MODULE = "tests.support.held_call"


async def test_the_calls_of_a_lost_machine_are_attempted_on_another(tmp_path: Path) -> None:
    """Its worker is stopped, so that all of its polls are open. Each call has two attempts, and the second one succeeds."""
    begun = tmp_path / "begun"
    begun.touch()
    async with temporal_server() as server, worker_process(MODULE, "lost", server, **{BEGUN: str(begun)}) as lost:
        client = await connect_to(server)
        run_input = {"agent": "holder", "prompt": "Go."}
        handles = [
            await client.start_workflow("AgentWorkflow", run_input, id=f"r{number}", task_queue="lost")
            for number in range(RUNS)
        ]
        while len(begun.read_text()) < RUNS:
            await asyncio.sleep(0.1)
        os.kill(lost.pid, signal.SIGSTOP)
        try:
            async with worker_process(MODULE, "lost", server, **{BEGUN: str(begun)}) as other:
                results = await asyncio.gather(*(handle.result() for handle in handles))
                steps = [(await handle.query("steps"))["steps"][0] for handle in handles]
        finally:
            os.kill(lost.pid, signal.SIGCONT)
    assert {result["status"] for result in results} == {"completed"}
    assert {step["tool_calls"][0]["result"]["text"] for step in steps} == {str(other.pid)}
