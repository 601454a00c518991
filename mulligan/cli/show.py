"""`mulligan show`: a run's steps, and its progress or its end; or its trace, or what its model was sent in a step."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mulligan.cli._context import show_context
from mulligan.cli._people import Conversation
from mulligan.cli._runs import find_run
from mulligan.cli._terminal import (
    NOT_COMPLETED,
    OK,
    AsJson,
    connect_or_fail,
    fail,
    out,
    print_json,
    print_line,
    print_progress,
)
from mulligan.schema.printable import printable

if TYPE_CHECKING:
    from temporalio.client import Client, WorkflowHandle

    from mulligan.cli._sub_runs import SubRun
    from mulligan.client.read_run import ChainSize, RunEnd
    from mulligan.values import WaitingFor

MOST_FORKS, SECONDS_FOR_FORKS = 20, 10.0
_NO_WORKER = (
    "only a worker of the run's task queue can tell the steps of an open run, and none answers. Start one, and they are "
    "shown; until then, --trace shows the calls that Jaeger has"
)


async def show(
    id: Annotated[str, typer.Argument(help="The run's id.")],  # noqa: A002 - what Temporal calls it
    trace: Annotated[bool, typer.Option("--trace", help="Draw the run's trace: a tree with a time line.")] = False,
    whole: Annotated[bool, typer.Option("--all", help="With --trace: show all spans of a long trace.")] = False,
    deep: Annotated[bool, typer.Option("--deep", help="Show the steps of the sub-agents' runs, too.")] = False,
    context: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="STEP", help="Show what the model was sent in that step, as it was sent.", show_default=False
        ),
    ] = None,
    conversation: Conversation = None,
    as_json: AsJson = False,
) -> int:
    """Show a run's steps: the model's text, each tool call with its repairs, and its result or error.

    Below a call of a sub-agent are the runs that it started.

    Examples: `mulligan show my-run`, `mulligan show my-run --trace`, `mulligan show my-run --context 7`

    A trace comes from Jaeger (`MULLIGAN_JAEGER_URL`, or http://localhost:16686 if it answers). Otherwise it is rebuilt from
    Temporal's history, which has the times of all calls and every error that was returned to the model, but no attempts
    that were retried, and no token counts.

    Exit code: 0 completed or still open, 1 it did not complete, 2 no such run or step, or no server.
    """
    if context is not None and (trace or deep):
        fail(f"--context {context} shows one request; leave out --trace and --deep, or --context.")
    if conversation is not None and context is None:
        fail(f"--conversation is {conversation!r}, which chooses an agent for --context; add --context STEP.")
    if whole and not trace:
        fail("--all prints the whole trace; add --trace.")
    if deep and trace:
        fail("--deep and --trace do not go together: a trace has the runs of sub-agents anyway. Leave --deep out.")
    if context is not None:
        return await show_context(id, context, conversation, as_json=as_json)
    return await (_show_trace(id, whole=whole, as_json=as_json) if trace else _show(id, deep=deep, as_json=as_json))


@dataclass(frozen=True)
class _RunState:
    """What is known of a run."""

    id: str
    is_open: bool
    agents: list[tuple[str, list[dict[str, Any]]]]
    """The heading and the steps of each agent. There is one, without a heading, except in a workflow with several."""
    waiting: WaitingFor | None
    """What an open run waits for."""
    progress: dict[str, Any] | None
    end: RunEnd
    sub_runs: list[SubRun]
    size: ChainSize
    origin: dict[str, Any]
    """The run that it continues (`resumed_from`: `id`, `run_id`), or was forked from (`forked_from`: also `step`)."""
    forks: list[dict[str, Any]]
    """The newest runs that were forked from it, at most `MOST_FORKS`: `id`, `step`, `status`."""
    start: dict[str, Any]
    """How it was started, as far as known: `agent`, `model`, `prompt` (its first line), `by` (the client's identity)."""
    query_error: str
    """Why no worker answered the queries for steps and progress. Empty if one did."""
    unlisted_forks: str = ""
    """Why `forks` may lack some. Empty: it has the newest."""

    def to_json(self) -> dict[str, Any]:
        """The JSON of `mulligan show --json`."""
        sub_agents = {"sub_agents": [each.to_json() for each in self.sub_runs]} if self.sub_runs else {}
        waiting = {"waiting_for": self.waiting.model_dump(mode="json")} if self.waiting else {}
        return {
            "id": self.id,
            "status": self.end.status,
            **waiting,
            "progress": self.progress,
            "steps": [step for _, steps in self.agents for step in steps],
            "result": self.end.result,
            "error": self.end.error,
            "history": asdict(self.size),
            **sub_agents,
            **self.origin,
            **({"forks": self.forks} if self.forks else {}),
            "start": self.start,
        }


async def _show(run_id: str, *, deep: bool, as_json: bool) -> int:
    from mulligan.cli._links import print_links_of_run

    client = await connect_or_fail()
    handle = await find_run(client, run_id)
    state = await _read_state(client, handle, deep=deep)
    if as_json:
        print_json(state.to_json())
    else:
        _print_state(state)
    await print_links_of_run(client, handle)
    if state.unlisted_forks:
        print_progress(state.unlisted_forks)
    if state.query_error:
        print_progress(f"the steps cannot be read now: {state.query_error}")
    return OK if state.end.completed or state.is_open else NOT_COMPLETED


async def _read_state(client: Client, handle: WorkflowHandle[Any, Any], *, deep: bool) -> _RunState:
    from temporalio.client import WorkflowExecutionStatus, WorkflowQueryFailedError
    from temporalio.service import RPCError

    from mulligan.cli._sub_runs import read_sub_runs
    from mulligan.client.find_runs import describe_run
    from mulligan.client.read_run import RunEnd, query_run, size_of_chain, wait_for_end
    from mulligan.client.wait_reader import WaitReader, is_without_worker

    waiting = await WaitReader(client).read(handle.id)
    agents: list[tuple[str, list[dict[str, Any]]]] = []
    progress: dict[str, Any] | None = None
    query_error = ""
    try:
        if is_without_worker(waiting):
            query_error = _NO_WORKER
        else:
            progress = await query_run(handle, "progress")
            agents = await _read_agents(client, handle, progress)
    except RPCError as error:
        query_error = f"{_NO_WORKER} ({error.message})"
    except WorkflowQueryFailedError as error:
        query_error = f"the workflow does not answer the query for them ({error.message})"
    description = await handle.describe()
    is_open = description.status == WorkflowExecutionStatus.RUNNING
    end = await wait_for_end(handle) if not is_open else RunEnd((await describe_run(client, description))["status"])
    steps = [step for _, steps_of_agent in agents for step in steps_of_agent]
    forks, unlisted_forks = await _forks(client, handle.id)
    if progress is not None and is_open:
        progress["waiting_for"] = waiting.model_dump(mode="json") if waiting else None
    return _RunState(
        id=handle.id,
        is_open=is_open,
        agents=agents,
        waiting=waiting,
        progress=progress,
        end=end,
        sub_runs=await read_sub_runs(client, description.root_id or handle.id, steps, deep=deep),
        size=await size_of_chain(client, handle.id),
        origin=await _origin(description),
        forks=forks,
        unlisted_forks=unlisted_forks,
        start=await _read_start(client, description, steps),
        query_error=query_error,
    )


async def _read_agents(
    client: Client, handle: WorkflowHandle[Any, Any], progress: dict[str, Any]
) -> list[tuple[str, list[dict[str, Any]]]]:
    """The steps of each agent. The name is empty, unless the workflow has several."""
    from mulligan.client.read_run import read_steps

    conversations = progress.get("conversations") or []
    if not conversations:
        return [("", await read_steps(client, handle))]
    return [
        (
            f"{each['agent']} ({each['conversation']})",
            await read_steps(client, handle, conversation=each["conversation"]),
        )
        for each in conversations
    ]


def _print_state(state: _RunState) -> None:
    from mulligan.cli._steps import cost_of, counted, end_view, step_views
    from mulligan.cli._sub_runs import sub_run_views

    _print_origin(state)
    for agent, steps in state.agents:
        if agent:
            out.print(printable(agent), style="bold cyan")
        for view in step_views(_without_final_answer(state, steps), partial(partial, sub_run_views, state.sub_runs)):
            out.print(view)
    out.print(end_view(state.end), soft_wrap=True)
    if not state.is_open and "usage" not in (state.end.result or {}):  # a workflow of a user's own, or one that failed
        _print_spent(state)
    if state.is_open:
        parts = []
        if (progress := state.progress) is not None and "step" in progress:
            parts.append(f"step {progress['step']} of {progress['max_steps']}{cost_of(progress)}")
        if state.waiting is not None:
            parts.append(printable(state.waiting.detail))
        out.print("; ".join(parts), style="dim", soft_wrap=True)
    size = state.size
    chained = f" in {size.runs} workflow runs" if size.runs > 1 else ""
    out.print(f"history: {counted(size.events, 'event')}, {size.bytes / 1000:,.0f} KB{chained}", style="dim")


def _print_origin(state: _RunState) -> None:
    """Print how the run was started, and its forks."""
    from mulligan.cli._steps import short

    for name, value in state.start.items():
        out.print(f"{name}: {short(value)}", style="dim", soft_wrap=True)
    if before := state.origin.get("resumed_from"):
        out.print(f"resumed from {printable(before['id'])}", style="dim", soft_wrap=True)
    if forked := state.origin.get("forked_from"):
        out.print(f"forked from {printable(forked['id'])} at step {forked['step']}", style="dim", soft_wrap=True)
    for fork in state.forks:
        line = f"fork {printable(fork['id'])} at step {fork['step']}: {printable(fork['status'])}"
        out.print(line, style="dim", soft_wrap=True)
    if len(state.forks) == MOST_FORKS:
        out.print(f"all forks: mulligan list --forked-from {printable(state.id)}", style="dim", soft_wrap=True)


def _print_spent(state: _RunState) -> None:
    """Print what all agents of the run have used, which is not in its result."""
    from mulligan.cli._steps import cost_of, counted

    spent = (state.progress or {}).get("all_turns") or state.progress or {}
    if usage := spent.get("usage"):
        steps = counted(sum(len(steps) for _, steps in state.agents), "step")
        tokens = f"{usage['input_tokens']} + {usage['output_tokens']} tokens"
        out.print(f"{steps}, {tokens}{cost_of(spent)}", style="dim")


def _without_final_answer(state: _RunState, steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The steps; the last one without its text if that is the run's output, which is printed in full at the end."""
    if not steps or not state.end.result or steps[-1]["text"] != state.end.result.get("output"):
        return steps
    return [*steps[:-1], {**steps[-1], "text": ""}]


async def _read_start(client: Client, description: Any, steps: list[dict[str, Any]]) -> dict[str, Any]:
    """What the first event of the run's first workflow run says of its start; {} if it cannot be read."""
    from temporalio.service import RPCError

    from mulligan.client.read_run import UNDECODABLE
    from mulligan.client.start_run import decode_start_input, read_start
    from mulligan.errors import InvalidRunInputError

    first_run = client.get_workflow_handle(
        description.id, run_id=description.raw_info.first_run_id or description.run_id
    )
    start: dict[str, Any] = {}
    try:
        started = await read_start(first_run)
        start["by"] = started.identity
        run_input = await decode_start_input(client, started)
    except (RPCError, InvalidRunInputError, *UNDECODABLE):
        return {name: value for name, value in start.items() if value}
    from mulligan.content import described

    users = [message.content or message.text for message in run_input.messages if message.role == "user"]
    prompt = described(run_input.prompt or (users[-1] if users else ""))
    model = run_input.model or (steps[0].get("model") if steps else None)
    first_line = prompt.strip().partition("\n")[0]
    start = {"agent": run_input.agent, "model": model, "prompt": first_line, "by": start["by"]}
    return {name: value for name, value in start.items() if value}


async def _origin(description: Any) -> dict[str, Any]:
    """The run that this one was resumed or forked from, as of `_RunState.origin`."""
    from mulligan.client.find_runs import memo_of, origin_of

    memo = await memo_of(description)
    return {**origin_of(memo, "resume"), **origin_of(memo)}


async def _forks(client: Client, run_id: str) -> tuple[list[dict[str, Any]], str]:
    """The newest forks of a run, and why there may be others, as of `_RunState.forks` and `unlisted_forks`."""
    from temporalio.service import RPCError

    from mulligan.client.find_runs import RunQuery, find_runs

    try:
        async with asyncio.timeout(SECONDS_FOR_FORKS):
            page = await find_runs(client, RunQuery(forked_from=run_id), limit=MOST_FORKS)
    except (RPCError, TimeoutError) as error:
        reason = error.message if isinstance(error, RPCError) else "Temporal does not answer in time"
        return [], f"the forks of this run cannot be listed now: {reason}"
    forks = [{"id": run["id"], "step": run["forked_from"]["step"], "status": run["status"]} for run in page.runs]
    is_cut = page.next is not None and len(forks) < MOST_FORKS
    return forks, f"not all runs were looked through for forks: mulligan list --forked-from {run_id}" if is_cut else ""


async def _show_trace(run_id: str, *, whole: bool, as_json: bool) -> int:
    from temporalio.client import WorkflowExecutionStatus

    from mulligan.cli._links import print_links_of_run
    from mulligan.cli._trace import draw, heading
    from mulligan.client.first_payload import UnreadableError
    from mulligan.client.read_run import wait_for_end
    from mulligan.client.settings import settings
    from mulligan.trace_view.run_trace import run_trace

    client = await connect_or_fail()
    handle = await find_run(client, run_id)
    is_open = (await handle.describe()).status == WorkflowExecutionStatus.RUNNING
    try:
        trace = await run_trace(client, run_id, settings().jaeger_url, is_open=is_open)
        end = None if is_open else await wait_for_end(handle)
    except UnreadableError as error:
        fail(f"the history of {run_id!r} cannot be read: {error}. If it is encrypted, set MULLIGAN_ENCRYPTION_KEYS.")
    if trace is not None and trace.warning:
        print_progress(trace.warning)
    if as_json:
        spans = [span.to_json() for span in trace.spans] if trace else []
        print_json(
            {"id": run_id, "trace_id": trace and trace.trace_id, "source": trace and trace.source, "spans": spans}
        )
    elif trace is None:
        print_progress(f"{run_id} has no trace yet: no worker has opened the run.")
    else:
        print_line(heading(trace.trace_id, trace.spans, trace.origin))
        draw(out, trace.spans, whole=whole)
        if trace.waits_for:
            out.print(printable(trace.waits_for), style="dim", soft_wrap=True)
    await print_links_of_run(client, handle, trace.trace_id if trace else None)
    return OK if end is None or end.completed else NOT_COMPLETED
