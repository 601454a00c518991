"""The input of a run, where it is too large to be handed over: asked of the workflow."""

from __future__ import annotations

from mulligan.activities.run_data.definitions import QUERY_TIMEOUT, this_workflow
from mulligan.run_input import RunInput
from mulligan.wire.agent_facts import INPUT_QUERY
from mulligan.wire.conversation_ref import INPUT_MESSAGES_QUERY, Page, PageRequest

PAGE = 10_000


async def input_of(conversation: str, *, whole: bool) -> RunInput:
    """The input of a conversation's newest turn. What is not `whole` may lack its messages."""
    workflow = this_workflow()
    run_input: RunInput = await workflow.query(
        INPUT_QUERY, conversation, result_type=RunInput, rpc_timeout=QUERY_TIMEOUT
    )
    while whole:
        page = await workflow.query(
            INPUT_MESSAGES_QUERY,
            PageRequest(conversation=conversation, since=len(run_input.messages), count=PAGE),
            result_type=Page,
            rpc_timeout=QUERY_TIMEOUT,
        )
        if not page.messages:
            break
        run_input.messages += page.messages
    return run_input
