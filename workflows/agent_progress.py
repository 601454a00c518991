"""The progress of an agent of a workflow, for queries and for Temporal's UI."""

from __future__ import annotations

from mulligan.values import Progress, RunResult
from mulligan.wire.ui_summary import task_of
from mulligan.workflows.running_agent import RunningAgent
from mulligan.workflows.shown_wait import RunningCall, WorkerWait, shown_wait


def agent_progress(agent: RunningAgent) -> Progress:
    """The status of the newest turn, and its numbers so far."""
    turn = agent.turn if agent.has_turn else None
    result = turn.result if turn else RunResult(status="completed")
    max_steps = agent.input.max_steps if agent.input else None
    running = [each for each in agent.waits.of(RunningCall) if each.kind is not None]
    return Progress(
        status=agent.shown_status,
        step=result.steps,
        max_steps=turn.max_steps if turn else max_steps or 0,
        usage=result.usage,
        tool_calls=result.tool_calls,
        recovered_failures=result.recovered_failures,
        running=[each.call.name for each in running],
        cost=result.cost,
        waiting_for=shown_wait(agent.waits.open.values(), agent.key) if agent.is_turn_open else None,
    )


def task_in_one_line(agent: RunningAgent) -> str:
    """The task of the newest turn."""
    is_opening = any(wait.opens for wait in agent.waits.of(WorkerWait))
    if agent.has_turn and not is_opening:
        return agent.turn.task
    return task_of(agent.input) if agent.input else ""
