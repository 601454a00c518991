"""Replay a history of Mulligan, as `benchmarks.serving` does for rivals: `python -m benchmarks.replayed HISTORY TIMES`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from temporalio.worker import Replayer

from benchmarks.serving import replay
from mulligan.client.converter import data_converter
from mulligan.worker.loading import load
from mulligan.worker.wiring import sandbox
from mulligan.workflows.agent_workflow import AgentWorkflow

if __name__ == "__main__":
    loaded = load(["benchmarks.agents"])
    replayer = Replayer(workflows=[AgentWorkflow], workflow_runner=sandbox(loaded), data_converter=data_converter)
    asyncio.run(replay(replayer, Path(sys.argv[1]), int(sys.argv[2])))
