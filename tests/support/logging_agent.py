"""An agent whose tools log in every way that a tool can, and a workflow of a user's own that runs it and logs too."""

from __future__ import annotations

import logging
import os
import signal
import time
from typing import Any

from temporalio import activity, workflow

from mulligan import Agent, DurableAgent, ToolContext, tool

logger = logging.getLogger("shop.tools")


@tool
async def log_on_the_loop(secret: str) -> str:
    """Log in a coroutine."""
    logger.warning("in a coroutine")
    return secret


@tool
def log_in_a_thread() -> str:
    """Log in a thread, with a logger of one's own and with the SDK's."""
    logger.warning("in a thread")
    activity.logger.warning("by the SDK's logger")
    return "done"


@tool
async def log_and_raise() -> str:
    """Log, and fail."""
    logger.error("before an error")
    raise ValueError("no such order")


@tool(timeout=0.2)
def log_and_hang() -> str:
    """Take longer than the tool may."""
    time.sleep(2)
    return "too late"


@tool(attempts=2)
async def log_and_die(ctx: ToolContext) -> str:
    """Log, and kill the worker the first time."""
    logger.warning("attempt %d", ctx.attempt)
    if ctx.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"


logs = Agent(
    name="logs",
    model="openai-chat:nobody",
    tools=[log_on_the_loop, log_in_a_thread, log_and_raise, log_and_hang, log_and_die],
)


@workflow.defn
class LoggingWorkflow:
    """Logs, runs the agent, and logs again."""

    @workflow.run
    async def run(self, model: str) -> Any:
        workflow.logger.warning("by the workflow's logger")
        logger.warning("in a workflow")
        result = await DurableAgent("logs").run("Go.", model=model)
        return result.output
