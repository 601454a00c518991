"""Ask a person from within a running call: by an update of the activity's own workflow, which the run answers."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter

from temporalio import activity
from temporalio.client import WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from mulligan.activities.mcp.elicitation import Ask
from mulligan.activities.run_data.query_workflow import this_workflow
from mulligan.wire.questions import ASK_PERSON, TOO_MANY_ASK, AskPerson, Question, QuestionReply

_PAUSE = 5.0
"""Seconds until a question is put again, where too many calls of the workflow wait already."""


def ask_by_update(conversation: str, call_id: str) -> Ask | None:
    """The function by which the call of this activity asks people; None where the workflow cannot be reached.

    The update's id is derived from the question. So an attempt after this one, which asks the same, waits for the same
    answer, or gets the one that was given meanwhile.
    """
    workflow = this_workflow()
    if not hasattr(workflow, "execute_update"):
        return None
    times_asked: Counter[str] = Counter()

    async def ask(question: Question) -> QuestionReply:
        argument = AskPerson(conversation=conversation, call_id=call_id, question=question)
        text = argument.model_dump_json()
        times_asked[text] += 1
        update_id = hashlib.sha256(f"{times_asked[text]} {text}".encode()).hexdigest()
        while True:
            try:
                reply: QuestionReply = await workflow.execute_update(
                    ASK_PERSON, argument, id=update_id, result_type=QuestionReply
                )
                return reply
            except WorkflowUpdateFailedError as error:
                if not (isinstance(error.cause, ApplicationError) and error.cause.message == TOO_MANY_ASK):
                    activity.logger.warning("A question of an MCP server was not put to a person: %s", error.cause)
                    return QuestionReply(action="cancel")
            await asyncio.sleep(_PAUSE)

    return ask
