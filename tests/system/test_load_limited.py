"""Many runs on one worker with a rate-limited model. A file of its own, as it mostly waits, unlike test_load.py."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from mulligan.devserver import temporal_server
from tests.support.openai_server import OpenAIServer
from tests.support.openai_turn import Failure, Turn
from tests.system.test_load import completed, waiting_worker

RUNS = int(os.environ.get("LIMITED_RUNS", "60"))


async def test_all_runs_complete_when_their_model_limits_the_rate(tmp_path: Path) -> None:
    """429 for all, then a fixed rate: every run completes, with few more requests than needed."""
    runs, a_second = RUNS, 40.0
    clock = asyncio.get_running_loop().time
    began, tokens, refused, last = 0.0, 0.0, 0, 0.0

    def bucket(_: dict[str, Any], __: int) -> Turn:
        nonlocal began, tokens, refused, last
        now = clock()
        began = began or now
        tokens = 0.0 if now < began + 2 else min(a_second, tokens + (now - last) * a_second)
        last = now
        if tokens < 1:
            refused += 1
            return Turn(failure=Failure(status=429, headers={"Retry-After": "2"}))
        tokens -= 1
        return Turn(text="done")

    async with temporal_server() as server, OpenAIServer() as model:
        model.script("crowd", bucket)
        async with waiting_worker(server, tmp_path, **model.environment()) as worker:
            await completed(await worker.start("asked", runs, "limited"))
            worker.note("all got through")
        print(f"  {runs} runs, {len(model.requests)} requests, {refused} of them refused", file=sys.stderr)
        assert model.refusals == []
        # How many requests were sent before the first 429 depends on the machine, but it is at most one for each run. If each
        # call came again every 2 s, as the endpoint asks, each would be refused twice before the first one is answered.
        assert 0 < refused < runs * 1.2
        assert len(model.requests) == runs + refused
