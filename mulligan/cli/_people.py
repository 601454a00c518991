"""Shared by the commands that send an update to a run: their options, the call that is meant, and the update."""

from __future__ import annotations

import getpass
import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mulligan.cli._runs import fail_as_ended, find_open_run
from mulligan.cli._terminal import NOT_COMPLETED, OK, connect_or_fail, err, fail, print_json, print_line, print_progress
from mulligan.schema.printable import json_line, printable, printable_lines

if TYPE_CHECKING:
    from temporalio.client import Client

LONGEST_CALL = 20_000
"""Characters of a call that are shown before a person decides."""

RunId = Annotated[str, typer.Argument(metavar="ID", help="The run's id.")]
CallId = Annotated[
    str | None,
    typer.Argument(metavar="CALL_ID", help="The id of the call. Needed if several calls wait.", show_default=False),
]
By = Annotated[str | None, typer.Option(help="Who decides; it is recorded.", show_default="your user name")]
Conversation = Annotated[
    str | None,
    typer.Option(help="The number of the agent, in a workflow with several agents.", show_default=False),
]


def user_name() -> str | None:
    """The name of the user who runs the command."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return None


async def read_pending_calls(client: Client, run_id: str) -> list[dict[str, Any]]:
    """The calls of a run and of its sub-agents' runs that wait for a person; the command ends if they cannot be read."""
    from temporalio.client import WorkflowQueryFailedError
    from temporalio.service import RPCError

    from mulligan.client.sub_runs import MOST_RUNS, read_pending

    try:
        pending = await read_pending(client, run_id)
    except WorkflowQueryFailedError as error:
        fail(f"{run_id!r} does not answer the query for its waiting calls: {error}.")
    except RPCError as error:
        fail(f"the waiting calls of {run_id!r} cannot be read now: none of its workers answers ({error.message}).")
    for unread in pending.unread:
        print_progress(f"the sub-agent's run {unread} does not answer; its waiting calls are left out.")
    if not pending.is_complete:
        print_progress(f"{run_id} has more than {MOST_RUNS} open runs of sub-agents; not all of them are looked at.")
    return pending.calls


async def find_call(
    run_id: str, call_id: str | None, kind: str, conversation: str | None, *, or_question: bool = False
) -> tuple[Client, dict[str, Any]]:
    """A client, and the waiting call of a kind (`approval`, `question`) of an open run: the call with that id, or the only
    one that waits. Anything else is an error.

    The calls of sub-agents' runs are among them. A call id that is given means the run's own call, if it has one.
    `or_question`: also a question that can be denied.
    """
    client = await connect_or_fail()
    await find_open_run(client, run_id)
    calls = await read_pending_calls(client, run_id)
    waiting = [call for call in calls if call["kind"] == kind or (or_question and call.get("can_deny"))]
    if any("conversation" in call for call in waiting):
        waiting = [{"conversation": "0", **call} for call in waiting]
    waiting = [call for call in waiting if conversation in (None, call.get("conversation", "0"))]
    matching = [call for call in waiting if call_id in (None, call["call_id"])]
    own = [call for call in matching if call["id"] == run_id]
    if call_id is not None and own:
        matching = own
    waits = "waits for approval" if kind == "approval" else "asks a question"
    listed = ", ".join(_listed(call, run_id) for call in waiting) or "none"
    if matching and len({call["call_id"] for call in matching}) > 1:
        fail(f"several calls of {run_id!r} wait; name one: {listed}.")
    if len({call["id"] for call in matching}) > 1:
        runs = " and ".join(repr(call["id"]) for call in matching)
        fail(f"the call {matching[0]['call_id']!r} waits in several runs; name the run in place of {run_id!r}: {runs}.")
    if len(matching) > 1:
        agents = ", ".join(f"{call['conversation']} ({call.get('agent', '')})" for call in matching)
        fail(f"several agents of {run_id!r} have a call with this id; choose one with --conversation: {agents}.")
    if not matching and call_id is None:
        fail(f"no call of {run_id!r} {waits}; see `mulligan pending`.")
    if not matching:
        fail(f"no call {call_id!r} of {run_id!r} {waits}; waiting calls: {listed}.")
    return client, matching[0]


async def reply_to(
    client: Client, call: dict[str, Any], update: str, fields: dict[str, Any], *, as_json: bool, message: str
) -> int:
    """Send a person's decision or answer to the run of a waiting call, as in `send_update`."""
    fields = {**fields, "call_id": call["call_id"], "conversation": call.get("conversation")}
    return await send_update(client, call["id"], update, fields, as_json=as_json, message=message)


def _listed(call: dict[str, Any], run_id: str) -> str:
    run = "" if call["id"] == run_id else f" in {call['id']}"
    return f"{call['call_id']} ({call['tool']}{run})"


def print_call(call: dict[str, Any], arguments: Any = None) -> None:
    """Print a waiting call on stderr, with other `arguments` if given. Characters that a terminal hides are escaped."""
    from rich.text import Text

    agent = f", agent {call['agent']}" if call.get("agent") else ""
    user = f", for the user {call['user']}" if call.get("user") else ""
    head = f"{call['kind']} requested by {call['id']}{agent}{user}, since {call['since'][:19].replace('T', ' ')} UTC"
    err.print(Text(printable(head), "dim"), soft_wrap=True)
    if call["kind"] == "question":
        err.print(Text(_shortened(str(call["text"])), "bold"), soft_wrap=True)
        for line in _fields(call.get("answer_schema")):
            err.print(Text(_shortened(line)), soft_wrap=True)
        return
    err.print(Text.assemble((printable(call["tool"]), "bold"), f"  {printable(call['call_id'])}"))
    if call.get("warning"):
        err.print(Text(f"warning: {printable(call['warning'])}", "bold red"), soft_wrap=True)
    written = json.dumps(call["arguments"] if arguments is None else arguments, indent=2, ensure_ascii=False)
    err.print(Text(_shortened(written)), soft_wrap=True)
    asked = f"role {call['role']}" if call.get("role") else "everybody who sees the run"
    err.print(Text(printable(f"who may decide: {asked}"), "dim"), soft_wrap=True)
    if call.get("edits"):
        err.print(Text(printable(f"edited by: {call.get('edited_by') or 'somebody'}"), "dim"), soft_wrap=True)
    for each in call.get("earlier") or ():
        by = f" by {each['by']}" if each.get("by") else ""
        rule = f" (rule {each['rule']})" if each.get("rule") else ""
        reason = f": {each['reason']}" if each.get("reason") else ""
        line = f"earlier, step {each['step']}: {each['arguments']} {each['decision']}{by}{rule}{reason}"
        err.print(Text(printable(line), "dim"), soft_wrap=True)
    if call.get("untrusted"):
        what = call["text"].partition("\n")[2]
        err.print(Text(printable_lines(_shortened(what)), "bold red"), soft_wrap=True)


async def send_update(
    client: Client,
    run_id: str,
    update: str,
    fields: dict[str, Any],
    *,
    as_json: bool,
    message: str,
    keep_none: bool = False,
) -> int:
    """Send an update, and print its result, or `message`. Returns the exit code.

    Fields that are None are left out, unless `keep_none`.

    The command ends with the run's own sentence if the run refuses the update.
    """
    from mulligan.client import send_update as updates
    from mulligan.errors import UpdateRefusedError

    try:
        result = await updates.send_update(client, run_id, update, fields, keep_none=keep_none)
    except UpdateRefusedError as error:
        fail(f"{run_id!r} refused this: {error.message}")
    except updates.UpdateTimeoutError as error:
        fail(
            f"{run_id!r} has not answered: {error} It may or may not have received this; see `mulligan show`, and try "
            "again."
        )
    except updates.RunEndedError:
        await fail_as_ended(client.get_workflow_handle(run_id))
    print_result(run_id, result, as_json=as_json, message=message)
    return NOT_COMPLETED if result.get("denied") else OK


def print_result(run_id: str, result: dict[str, Any], *, as_json: bool, message: str) -> None:
    """Print the result of a request to a run: as JSON, or as the message."""
    if as_json:
        print_json({"run": run_id, **result})
        return
    if result.get("denied"):
        print_progress(printable(f"the call was denied: {result['denied']}"))
        return
    print_line(printable(message))
    if result.get("rule"):
        print_line(printable(f"The rule {result['rule']} approves equal calls from now on; see `mulligan rules`."))
    if result.get("rule_refused"):
        print_progress(printable(f"There is no rule: {result['rule_refused']}"))


def _fields(schema: dict[str, Any] | None) -> list[str]:
    """The fields of the JSON object that answers a question of an MCP server, one a line; empty for a plain text."""
    fields = (schema or {}).get("properties")
    if not isinstance(fields, dict) or schema is None:
        return []
    required = schema.get("required")
    lines = ["Answer with a JSON object:"]
    for name, field in fields.items():
        facts = field if isinstance(field, dict) else {}
        needed = "required" if isinstance(required, list) and name in required else "optional"
        limits = {key: value for key, value in facts.items() if key not in ("type", "title", "description")}
        about = " ".join(str(facts[key]) for key in ("title", "description") if key in facts)
        more = f", {json_line(limits)}" if limits else ""
        lines.append(f"  {name} ({facts.get('type', 'any')}, {needed}{more}) {about}".rstrip())
    return lines


def _shortened(text: str) -> str:
    """Cut a text to what a person reads, with an escape for each character that would be invisible."""
    start = text[:LONGEST_CALL]
    lines = "\n".join(printable(line) for line in start.split("\n"))
    missing = len(text) - len(start)
    return f"{lines}\n… ({missing:,} more characters: `mulligan pending ID --json` has all)" if missing else lines
