"""What the page Decide shows of each call that waits for a person, and what a person sends from there."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from referencing.exceptions import Unresolvable
from temporalio.client import WorkflowQueryFailedError
from temporalio.service import RPCError

from mulligan.client.read_run import UNDECODABLE
from mulligan.client.waiting_calls import AllPending
from mulligan.schema.argument_digest import normal_text
from mulligan.schema.json_schema import schema_faults, schema_validator
from mulligan.schema.subschemas import with_changed_parts
from mulligan.schema.url_parts import url_parts
from mulligan.serve.caller import Caller
from mulligan.serve.console.argument_form import Change, FormField, changes_between, fields_of, read_fields
from mulligan.serve.console.call_task import CallTask, read_call_task
from mulligan.serve.problems import Problem
from mulligan.serve.runs import Runs
from mulligan.serve.shown_json import shown_json
from mulligan.wire.agent_facts import ToolDefinition
from mulligan.wire.parse_update import parse_update
from mulligan.wire.updates import Answer, Decide

_log = logging.getLogger(__name__)
MOST_SHOWN = 50
"""Calls of one page: each has a form."""
PARALLEL_READS, SECONDS_FOR_TASK = 10, 5.0
"""Calls that are read at the same time, and how long a page waits for what one of them is about."""
_UNREADABLE = (Problem, RPCError, WorkflowQueryFailedError, TimeoutError, *UNDECODABLE)


@dataclass
class CallToDecide:
    """A call that waits. `pending`: as the query `pending` has it. `task`: what it is about. `tool`: as the run pinned it.
    `equals`: the other calls of the page with the same tool and arguments. `fields`: of its form. `refused`: what was wrong
    with what a person has sent; `changes`: what the person has changed, which is shown before it is sent. `is_broken`: the
    form could not be made. `remember`: where equal calls are approved from then on; empty: nowhere.
    """

    pending: dict[str, Any]
    fields: list[FormField] = field(default_factory=list)
    task: CallTask = field(default_factory=CallTask)
    tool: ToolDefinition | None = None
    equals: list[CallToDecide] = field(default_factory=list)
    refused: str = ""
    changes: list[Change] = field(default_factory=list)
    reason: str = ""
    remember: str = ""
    is_broken: bool = False

    @property
    def key(self) -> str:
        """The call's name in a form and an anchor."""
        return f"{self.pending['id']}~{self.pending.get('conversation', '0')}~{self.pending['call_id']}"

    @property
    def is_question(self) -> bool:
        """Whether the call is answered, and not approved."""
        return bool(self.pending["kind"] == "question")

    @property
    def url(self) -> str | None:
        """The page that a server asks the person to open, if it is one of the web."""
        url = self.pending.get("url") or ""
        return url if url_parts(url).scheme in ("http", "https") else None


@dataclass(frozen=True)
class WaitingPage:
    """The calls, the oldest first, and what could not be read. `left_out`: how many more there are."""

    calls: list[CallToDecide]
    pending: AllPending
    left_out: int = 0


async def read_waiting_page(runs: Runs, caller: Caller, run_id: str | None = None) -> WaitingPage:
    """Everything that waits for a person; `run_id`: of that run, and the runs below it, alone."""
    if run_id is None:
        all_pending = await runs.all_pending(caller)
    else:
        all_pending = AllPending(await runs.pending(caller, run_id))
    on_page = all_pending.calls[:MOST_SHOWN]
    limit = asyncio.Semaphore(PARALLEL_READS)
    calls = await asyncio.gather(*(_whole_or_broken(runs, caller, pending, limit) for pending in on_page))
    _find_equal(calls)
    return WaitingPage(calls, all_pending, len(all_pending.calls) - len(on_page))


async def find_waiting(runs: Runs, caller: Caller, values: Mapping[str, str]) -> CallToDecide | None:
    """The call that a form is about; None if it does not wait any more."""
    for pending in await runs.pending(caller, values.get("run", "")):
        call_id, conversation = values.get("call_id"), values.get("conversation", "0")
        is_of_run = pending["id"] == values.get("run")
        if is_of_run and pending["call_id"] == call_id and pending.get("conversation", "0") == conversation:
            return await _waiting_call(runs, caller, pending, values)
    return None


async def send_decision(runs: Runs, caller: Caller, call: CallToDecide, values: Mapping[str, str]) -> str:
    """Send what a person has decided; returns a sentence on it. An edited call is first shown with its changes.

    Returns:
        An empty text if the changes must be confirmed first: they are in `call.changes` then.

    Raises:
        Problem: the form's values are invalid.
        UpdateRefusedError: the run refuses it: somebody else was first, or the edited arguments are invalid.
    """
    pending, action = call.pending, values.get("action")
    ids = {"call_id": pending["call_id"], "conversation": pending.get("conversation", "0")}
    reason = values.get("reason", "").strip() or None
    call.reason = reason or ""
    if action == "deny":
        denial = parse_update(Decide, {**ids, "decision": "deny", "reason": reason})
        await runs.decide(caller, pending["id"], denial)
        return f"{pending['tool']} was denied."
    if call.is_question:
        reply = parse_update(Answer, {**ids, "text": _answer_of(call, values)})
        await runs.answer(caller, pending["id"], reply)
        return f"The question of {pending['agent']} was answered."
    if action not in ("approve", "confirm"):
        raise Problem(422, "invalid_input", "The form says neither approve nor deny.")
    call.remember = values.get("remember", "") if values.get("remember") in ("run", "tenant") else ""
    edited = await _edited(call, values)
    if edited is not None and action != "confirm":
        return ""
    arguments = edited if edited is not None else None
    decision = {"decision": "approve", "reason": reason, "arguments": arguments, "remember": call.remember or None}
    # The form has the arguments that the person saw: if somebody has edited them since, they count as this person's edit.
    approval = parse_update(Decide, {**ids, **decision, "edits": pending.get("edits", 0)})
    answer = await runs.decide(caller, pending["id"], approval)
    if answer.get("denied"):
        return f"{pending['tool']} was denied: {answer['denied']}"
    if answer.get("role"):
        return f"{pending['tool']} has your changes, and waits for somebody with the role {answer['role']}."
    done = f"{pending['tool']} was approved{' with your changes' if arguments is not None else ''}."
    if answer.get("rule_refused"):
        return f"{done} There is no rule: {answer['rule_refused']}"
    return f"{done} The rule {answer['rule']} approves equal calls from now on." if answer.get("rule") else done


async def _edited(call: CallToDecide, values: Mapping[str, str]) -> dict[str, Any] | None:
    """The edited arguments, validated; None if they are the model's."""
    arguments = read_fields(call.fields, values)
    call.changes = changes_between(call.pending["arguments"], arguments)
    if not call.changes:
        return None
    if not isinstance(arguments, dict):
        raise Problem(422, "invalid_input", f'"arguments" is {shown_json(arguments)}; it must be one JSON object.')
    if call.tool is not None:
        faults = await asyncio.to_thread(_faults, call.tool.parameters, arguments)
        if faults:
            raise Problem(422, "invalid_input", " ".join(faults))
    return arguments


def _faults(schema: dict[str, Any], arguments: dict[str, Any]) -> list[str]:
    try:
        faults = schema_faults(schema_validator(_without_patterns(schema)), arguments)
    except (TypeError, ValueError, RecursionError, Unresolvable):
        return []  # the run's own validation decides
    return [f'"{path or "arguments"}" {says}.' for path, says in faults]


def _without_patterns(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without regular expressions, which may take for ever; the run checks them, in an activity."""
    left_out = {"pattern"}
    if "patternProperties" in schema:
        left_out |= {"patternProperties", "additionalProperties", "unevaluatedProperties"}
    return with_changed_parts({key: schema[key] for key in schema if key not in left_out}, _without_patterns)


def _answer_of(call: CallToDecide, values: Mapping[str, str]) -> str:
    if call.fields:
        return json.dumps(read_fields(call.fields, values), ensure_ascii=False)
    text = values.get("text", "").replace("\r\n", "\n")
    if not text.strip() and call.url is None:
        raise Problem(422, "invalid_input", "The answer is empty.")
    return text if text.strip() else "done"


async def _whole_or_broken(
    runs: Runs, caller: Caller, pending: dict[str, Any], limit: asyncio.Semaphore
) -> CallToDecide:
    """A call of many. Whatever is wrong with it, the others can be decided."""
    try:
        async with limit:
            return await _waiting_call(runs, caller, pending)
    except Exception:  # noqa: BLE001 - one call must not hide the others
        _log.exception("The call %s of %s cannot be shown.", pending["call_id"], pending["id"])
        return CallToDecide(pending, is_broken=True)


async def _waiting_call(
    runs: Runs, caller: Caller, pending: dict[str, Any], values: Mapping[str, str] | None = None
) -> CallToDecide:
    call = CallToDecide(pending)
    with suppress(*_UNREADABLE):
        async with asyncio.timeout(SECONDS_FOR_TASK):
            call.task = await read_call_task(runs, caller, pending)
    if call.is_question:
        if pending.get("answer_schema"):
            call.fields = fields_of(pending["answer_schema"], {}, values)
        return call
    with suppress(*_UNREADABLE):
        call.tool = await runs.tool(caller, pending["id"], pending["tool"], pending.get("conversation", "0"))
    call.fields = fields_of(call.tool.parameters if call.tool else None, pending["arguments"], values)
    return call


def _find_equal(calls: Sequence[CallToDecide]) -> None:
    """Let each call know the others that ask for the same, so that the page tells them apart."""
    same: dict[str, list[CallToDecide]] = {}
    for call in calls:
        if not call.is_question:
            same.setdefault(normal_text([call.pending["tool"], call.pending["arguments"]]), []).append(call)
    for group in same.values():
        for call in group:
            call.equals = [other for other in group if other is not call]
