"""What people reply to the approvals and questions at which a chat protocol's stream has ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mulligan.client.event_position import StreamPosition
from mulligan.client.send_update import RunEndedError
from mulligan.errors import UpdateRefusedError
from mulligan.serve.caller import Caller
from mulligan.serve.problems import Problem
from mulligan.serve.runs import Runs
from mulligan.serve.turn_stream import WaitingCall, parse_wait_id
from mulligan.wire.parse_update import parse_update
from mulligan.wire.updates import Answer, Decide

NO_ANSWER = "The question was closed without an answer."


@dataclass(frozen=True, kw_only=True)
class PersonReply:
    """A reply to a wait. `approved`: to an approval. `text`: to a question; None: the person does not answer it."""

    wait_id: str
    approved: bool | None = None
    text: str | None = None
    reason: str | None = None
    arguments: dict[str, Any] | None = None


async def send_replies(
    runs: Runs, caller: Caller, run_id: str, replies: Sequence[PersonReply]
) -> tuple[str, set[WaitingCall]]:
    """Send replies to a run and the runs below it. Those that they have already are left out: a request may be repeated.

    Returns:
        The token of the last event that the client has read, and the calls that were decided: not those that wait on, as
        the client has edited them, and may not approve that.

    Raises:
        Problem: an id was never sent, or a reply says neither yes nor no.
        UpdateRefusedError: the run refuses it, as edited arguments are invalid.
    """
    parsed = [(*parse_wait_id(reply.wait_id), reply) for reply in replies]
    decided = {call for _, call, _, _ in parsed}
    waiting = {(each["call_id"], each.get("id", run_id)): each for each in await runs.pending(caller, run_id)}
    for _, call, edits, reply in parsed:
        # Only runs below this one are in `pending`, so that a client cannot name any other.
        owner = call.sub_run or run_id
        if (call.call_id, owner) not in waiting:
            continue
        try:
            accepted = await send_reply(runs, caller, owner, waiting[call.call_id, owner], reply, edits)
            decided -= {call} if "role" in accepted else set()
        except RunEndedError:
            continue  # the run has ended since it was asked what waits
        except UpdateRefusedError as error:
            if error.role is not None and reply.arguments == waiting[call.call_id, owner]["arguments"]:
                decided -= {call}  # the run has this edit already
                continue
            if error.ended_by is None:
                raise
            # Somebody else has decided since the run was asked what waits.
    newest = max(parsed, key=lambda each: StreamPosition.parse(each[0]).base)
    return newest[0], decided


async def send_reply(
    runs: Runs, caller: Caller, run_id: str, waiting: Mapping[str, Any], reply: PersonReply, edits: int
) -> dict[str, Any]:
    """Answer or decide a call of a run, by its entry of `pending`. Returns the result of the update.

    `edits`: how often its arguments had been edited when the person saw them.

    Raises:
        Problem: a reply to an approval says neither yes nor no.
        UpdateRefusedError, RunEndedError: the run does not take it.
    """
    call_id = waiting["call_id"]
    if waiting["kind"] == "question" and not (reply.text is None and waiting.get("can_deny")):
        answer = parse_update(Answer, {"call_id": call_id, "text": reply.text or NO_ANSWER})
        return await runs.answer(caller, run_id, answer)
    approved = False if waiting["kind"] == "question" else reply.approved
    if approved is None:
        raise Problem(422, "invalid_input", f"The reply to {reply.wait_id[:80]!r} says neither yes nor no.")
    decision = {"call_id": call_id, "decision": "approve" if approved else "deny", "reason": reply.reason}
    # Where the reply has arguments, the person has seen these.
    seen = {"edits": edits} if not approved or reply.arguments is None else {"arguments": reply.arguments}
    return await runs.decide(caller, run_id, parse_update(Decide, decision | seen))
