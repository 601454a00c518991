"""What a run asks people, as forms that an MCP client shows; and what a form's answer means for the run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import mcp_types as types

from mulligan.client.send_update import RunEndedError
from mulligan.errors import UpdateRefusedError
from mulligan.serve.caller import Caller
from mulligan.serve.replies import PersonReply, send_reply
from mulligan.serve.runs import Runs

DECLINED = "The person declined."
_APPROVAL = {
    "type": "object",
    "properties": {
        "decision": {"type": "string", "title": "Decision", "enum": ["approve", "deny"]},
        "reason": {"type": "string", "title": "Reason", "description": "The agent reads it if the call is denied."},
    },
    "required": ["decision"],
}
_QUESTION = {
    "type": "object",
    "properties": {"answer": {"type": "string", "title": "Answer"}},
    "required": ["answer"],
}


def can_show_forms(capabilities: types.ClientCapabilities | None) -> bool:
    """Whether a client can show forms, which a client without named modes can."""
    elicitation = capabilities.elicitation if capabilities else None
    return elicitation is not None and (elicitation.form is not None or elicitation.url is None)


def forms_for(waiting: Sequence[Mapping[str, Any]]) -> types.InputRequests:
    """A form for each call that waits for a person, under a key that no other call below the run has."""
    return {
        _key(call): types.ElicitRequest(
            params=types.ElicitRequestFormParams(message=_message(call), requested_schema=_schema(call))
        )
        for call in waiting
    }


def read_forms(waiting: Sequence[Mapping[str, Any]], responses: Mapping[str, Any]) -> dict[str, types.ElicitResult]:
    """The forms for the calls that wait. Under other keys anything may stand: it is ignored.

    Raises:
        ValidationError: such a form is not one.
    """
    keys = {_key(call) for call in waiting} & responses.keys()
    return {key: types.ElicitResult.model_validate(responses[key]) for key in keys}


async def submit_forms(
    runs: Runs, caller: Caller, waiting: Sequence[Mapping[str, Any]], responses: Mapping[str, Any]
) -> None:
    """Decide and answer calls with the forms that came back. What is not (or no longer) waiting is ignored.

    A form that was closed without a choice (`cancel`) decides nothing: its call waits on.
    """
    for call in waiting:
        form = responses.get(_key(call))
        if not isinstance(form, types.ElicitResult) or form.action == "cancel":
            continue
        with suppress(UpdateRefusedError, RunEndedError):  # somebody else has decided, or the run has ended
            await send_reply(runs, caller, call["id"], call, _reply(call, form), call.get("edits", 0))


def waiting_text(run_id: str, waiting: Sequence[Mapping[str, Any]]) -> str:
    """What a run waits for, and with which tools a model passes on the answer of a person."""
    lines = [f"The run {run_id} waits for a person. Ask the user, then pass on the answer:"]
    for call in waiting:
        where = f"run_id {call.get('id', run_id)!r} and call_id {call['call_id']!r}"
        tool = "decide_call" if call["kind"] == "approval" else "answer_question"
        form = call.get("answer_schema")
        lines.append(
            f"- {_message(call)}\n  Call {tool} with {where}."
            + (f" The text is JSON of the schema {json.dumps(form)}." if form else "")
        )
    lines.append(f"Then call wait_for_run with run_id {run_id!r}.")
    return "\n".join(lines)


def _reply(call: Mapping[str, Any], form: types.ElicitResult) -> PersonReply:
    content, is_accepted = form.content or {}, form.action == "accept"
    reason = content.get("reason") or (DECLINED if form.action == "decline" else None)
    return PersonReply(
        wait_id=_key(call),
        approved=is_accepted and content.get("decision") == "approve",
        text=_answer(call, content) if is_accepted else None if call.get("can_deny") else DECLINED,
        reason=str(reason)[:1_000] if reason else None,
    )


def _answer(call: Mapping[str, Any], content: Mapping[str, Any]) -> str:
    answer = content.get("answer")
    if call.get("answer_schema") is None and isinstance(answer, str) and answer:
        return answer
    return json.dumps(content, ensure_ascii=False)


def _key(call: Mapping[str, Any]) -> str:
    # A form shows arguments: those of another edit are another form.
    return "/".join([call["id"], call["call_id"], *([str(call["edits"])] if call.get("edits") else [])])


def _message(call: Mapping[str, Any]) -> str:
    text = str(call["text"]) + (f"\n{call['url']}" if call.get("url") else "")
    if call["kind"] == "question":
        return text
    return f"The agent {call['agent']!r} asks for approval: {text}\n{json.dumps(call['arguments'], ensure_ascii=False)}"


def _schema(call: Mapping[str, Any]) -> dict[str, Any]:
    if call["kind"] == "approval":
        return _APPROVAL
    return dict(call.get("answer_schema") or _QUESTION)
