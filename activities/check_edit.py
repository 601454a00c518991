"""Check the arguments that a person edited for a call. It runs users' code: validators, the guard and policy."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from pydantic import ValidationError
from temporalio import activity

from mulligan.activities.agent_not_served import served_agent
from mulligan.activities.answers.approval_policy import approval_need
from mulligan.activities.answers.prepare_call import accepted
from mulligan.activities.answers.user_functions import GUARD_LIMIT, guard_refusal
from mulligan.activities.services import Services
from mulligan.activities.tool_running.tool_context import tool_context
from mulligan.schema.error_text import error_text, type_name
from mulligan.wire.shorten import shorten_middle
from mulligan.wire.updates import CHECK_EDIT, CheckedEdit, CheckEdit

FAULTS_SHOWN = 20
LONGEST_FAULT = 500
"""Characters of the text of one fault; a user's validator may write megabytes."""


@dataclass(frozen=True)
class CheckEditActivity:
    """The activity `check_edit`."""

    services: Services

    @activity.defn(name=CHECK_EDIT)
    async def check_edit(self, request: CheckEdit) -> CheckedEdit:
        """Validate edited arguments, and ask the guard and the tool's policy about them.

        Returns the valid arguments and what approving them needs, or why they are refused.

        Raises:
            ApplicationError: this worker does not serve the agent.
        """
        services = self.services
        agent = await served_agent(services, request.where)
        definition = await services.definitions.find(request.definition, request.where)
        tool = services.tools.find(agent, request.call.name, definition=definition)
        if tool is None:
            return CheckedEdit(
                refused=f"The worker does not know the tool `{request.call.name}`, so it cannot check them."
            )
        # An edit may have a megabyte: not on the worker's event loop.
        found = await asyncio.to_thread(accepted, tool.arguments, request.arguments)
        if isinstance(found, Exception):
            return CheckedEdit(refused=f"`{tool.name}` does not take these arguments: {_faults(found)}.")
        context = tool_context(
            request.where,
            request.call,
            step=request.step,
            digest=request.digest,
            metadata=request.metadata,
            resources=services.resources.of_agent(agent.name, tool.name),
        )
        refusal = await guard_refusal(agent, services.runtime, request.call, found.arguments, context, GUARD_LIMIT)
        if refusal is not None:
            return CheckedEdit(refused=f"The agent's guard refuses: {refusal}")
        need = await approval_need(tool, services.runtime, found.arguments, context, GUARD_LIMIT)
        return CheckedEdit(arguments=found.arguments, argument_digest=found.digest, role=need.role, denied=need.denied)


def _faults(error: Exception) -> str:
    """The faults in the words of the types' validators: the person who wrote the arguments reads them.

    The first ones of each kind: an edit of a megabyte may have 250,000, and this text is in history.
    """
    if not isinstance(error, ValidationError):
        return shorten_middle(error_text(error) or type_name(error), FAULTS_SHOWN * LONGEST_FAULT)
    unknown: list[str] = []
    sentences: list[str] = []
    for fault in error.errors(include_url=False, include_input=False, include_context=False):
        where = shorten_middle(".".join(map(str, fault["loc"])), LONGEST_FAULT)
        if fault["type"] == "extra_forbidden":
            unknown += [f'"{where}"'] if len(unknown) < FAULTS_SHOWN else []
        elif len(sentences) < FAULTS_SHOWN:
            sentences.append(f"{where or 'arguments'}: {shorten_middle(fault['msg'], LONGEST_FAULT)}")
    more = error.error_count() - len(unknown) - len(sentences)
    if unknown:
        sentences.append("has fields that are not known: " + ", ".join(unknown))
    return "; ".join(sentences) + (f"; and {more:,} more" if more else "")
