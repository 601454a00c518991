"""An activity whose agent its worker does not serve. It is declined, and the workflow schedules it where the agent is."""

from __future__ import annotations

import difflib

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError, RPCStatusCode

from mulligan.activities.services import Services
from mulligan.agent import Agent
from mulligan.client.served_agents import read_other_workers
from mulligan.wire.agent_facts import AGENT_NOT_SERVED
from mulligan.wire.run_context import RunContext

_MAY_NOT_LIST = (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNAUTHENTICATED, RPCStatusCode.UNIMPLEMENTED)


async def served_agent(services: Services, context: RunContext) -> Agent:
    """The agent of a run.

    Raises:
        ApplicationError: this worker does not serve it. See `decline`.
    """
    agent = await services.agents.find(context)
    if agent is None:
        raise await decline_here(services, unknown_agent(services, context.agent))
    return agent


async def decline_here(services: Services, text: str) -> ApplicationError:
    """The error of an activity of an open run that has done nothing. `text`: what this worker lacks."""
    try:
        queues = await other_queues(services)
    except RPCError:
        queues = []  # the workflow tries its own queue again
    return _declined(text, queues)


def decline(services: Services, name: str, queues: list[str]) -> ApplicationError:
    """The error of an activity that has done nothing. `queues`: the task queues of workers that may serve the agent."""
    return _declined(unknown_agent(services, name), queues)


def _declined(text: str, queues: list[str]) -> ApplicationError:
    # Benign: nobody has to act on it, so the worker logs no traceback.
    return ApplicationError(
        text, queues, type=AGENT_NOT_SERVED, non_retryable=True, category=ApplicationErrorCategory.BENIGN
    )


def unknown_agent(services: Services, name: str) -> str:
    """The sentence that says which agents this worker serves, as the agent of that name is not one of them."""
    agents = services.registry.agents
    known = ", ".join(sorted(agents)) or "none"
    near = difflib.get_close_matches(name, agents, n=1)
    meant = f' Did you mean "{near[0]}"?' if near else ""
    return f'"agent" is "{name}", but this worker serves no agent of that name; it serves: {known}.{meant}'


async def other_queues(services: Services) -> list[str]:
    """The task queues of the other workers, which serve other agents. Empty if this worker may not list them.

    Raises:
        RPCError: Temporal does not answer, so there may be such workers.
    """
    served = services.served
    if served is None:
        return []
    try:
        others = await read_other_workers(activity.client(), served)
    except RPCError as error:
        if error.status not in _MAY_NOT_LIST:
            raise
        return []
    return [f"{served.task_queue}{tag}" for tag in others]
