"""`mulligan start`: start a run."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mulligan.cli._input import read_files, read_json_object
from mulligan.cli._runs import report_start
from mulligan.cli._terminal import AsJson, connect_or_fail, fail, print_progress
from mulligan.schema.printable import printable

if TYPE_CHECKING:
    from temporalio.client import Client

    from mulligan.run_input import RunInput


Version = Annotated[
    str | None,
    typer.Option(
        metavar="current|DIGEST|LABEL",
        help="The version of an agent that is a file.",
        show_default="that of the conversation's label",
    ),
]
User = Annotated[
    str | None, typer.Option(help="For whom it works, within the tenant: `ctx.user` of tools.", show_default=False)
]
Metadata = Annotated[
    list[str] | None,
    typer.Option("--metadata", metavar="NAME=VALUE", help="For tools and traces; no secrets; repeatable."),
]
Tenant = Annotated[
    str | None, typer.Option(help="For whom it runs: workers serve tenants in turn.", show_default=False)
]
Priority = Annotated[int | None, typer.Option(min=1, max=5, help="From 1 (first) to 5.", show_default="3")]
MaxSteps = Annotated[int | None, typer.Option(help="The maximum number of model calls.", show_default="the agent's")]


async def start(
    agent: Annotated[str | None, typer.Argument(help="The agent's name.", show_default=False)] = None,
    prompt: Annotated[str | None, typer.Argument(help="The task for the agent.", show_default=False)] = None,
    id: Annotated[  # noqa: A002 - what Temporal calls it
        str | None,
        typer.Option(
            help="The run's id. If the run that has it is open, the command fails; if it has ended, a new run gets the id.",
            show_default="a generated id",
        ),
    ] = None,
    max_steps: MaxSteps = None,
    model: Annotated[
        str | None, typer.Option(help="The model, as `provider:name`.", show_default="the agent's")
    ] = None,
    version: Version = None,
    user: User = None,
    metadata: Metadata = None,
    tenant: Tenant = None,
    priority: Priority = None,
    input: Annotated[  # noqa: A002 - it names the option
        str | None,
        typer.Option(
            help="The run's input as JSON, with any field of RunInput: `user`, `metadata`, `max_cost`, … (`-` reads stdin, "
            "`@FILE` a file). The other arguments and options override it.",
            show_default=False,
        ),
    ] = None,
    file: Annotated[
        list[Path] | None, typer.Option("--file", help="A file for the agent: an image, audio, a PDF …; repeatable.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Follow the run to its end and print its output.")] = False,
    task_queue: Annotated[
        str | None, typer.Option(help="The task queue of the workers.", show_default="agents")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Start a run and print its id.

    Example: `mulligan start assistant "What is in the workspace?" --wait`

    Exit code: 0 started (with --wait: completed), 1 it did not complete, 2 wrong use or no server.
    """
    run_input = {} if input is None else read_json_object(input, "--input", '{"metadata": {"team": "a"}}')
    options = {"agent": agent, "prompt": prompt, "max_steps": max_steps, "model": model}
    options |= {"tenant": tenant, "user": user, "priority": priority, "version": version}
    run_input |= {name: value for name, value in options.items() if value is not None}
    if metadata:
        run_input["metadata"] = _named_values(metadata)
    if max_steps is not None:
        run_input.pop("maxSteps", None)
    if file:
        run_input["prompt"] = [*_prompt_parts(run_input.get("prompt")), *read_files(file)]
    parsed, queue = _check(run_input, task_queue)
    run_id = id or f"{run_input['agent']}-{secrets.token_hex(4)}"
    return await _start(parsed, run_id, queue, wait=wait, as_json=as_json)


def _check(run_input: dict[str, Any], task_queue: str | None) -> tuple[RunInput, str]:
    """The input and the task queue of the new run; the command ends if one is missing or not valid."""
    from mulligan.client.settings import settings
    from mulligan.run_input import parse_run_input

    if "agent" not in run_input:
        fail(
            'no agent is named: `mulligan start AGENT "prompt"`. The agents of a worker: `mulligan agents --load MODULE`.'
        )
    if "prompt" not in run_input and not run_input.get("messages"):
        fail(f'no prompt: what should the agent do? `mulligan start {printable(str(run_input["agent"]))} "prompt"`')
    return parse_run_input(json.dumps(run_input).encode()), task_queue or settings().task_queue


def _named_values(given: list[str]) -> dict[str, str]:
    values = {}
    for each in given:
        name, sign, value = each.partition("=")
        if not (name and sign):
            fail(f"--metadata {printable(each)!r}: give NAME=VALUE, for example --metadata team=shop.")
        values[name] = value
    return values


def _prompt_parts(prompt: Any) -> list[Any]:
    return prompt if isinstance(prompt, list) else [] if prompt is None else [{"type": "text", "text": prompt}]


async def _start(run_input: RunInput, run_id: str, queue: str, *, wait: bool, as_json: bool) -> int:
    from temporalio.exceptions import WorkflowAlreadyStartedError

    from mulligan.client.start_run import begin_run
    from mulligan.client.store_content import store_content

    client = await connect_or_fail()
    await _check_agent(client, queue, run_input)
    ended = await _ended_run(client, run_id)
    try:
        handle = await begin_run(client, await store_content(run_input), run_id, queue, reuses_id=True)
    except WorkflowAlreadyStartedError:
        fail(f"a run with the id {run_id!r} is open; choose another --id, or see `mulligan show {run_id}`.")
    if ended:
        print_progress(
            f"an earlier run with the id {run_id!r} has ended ({ended}). This is a new run, which does not continue it; "
            f"`mulligan show {run_id}` now shows the new one."
        )
    trace_id = run_input.traceparent.split("-")[1] if run_input.traceparent else ""
    return await report_start(client, handle, trace_id, wait=wait, as_json=as_json)


async def _check_agent(client: Client, queue: str, run_input: RunInput) -> None:
    """End the command where the workers of the queue answer that they serve no such agent, or not in this version."""
    from temporalio.api.enums.v1 import TaskQueueType
    from temporalio.service import RPCError

    from mulligan.client.pollers import recent_pollers
    from mulligan.client.read_agents import WORKER_TIMEOUT, AgentReader, unknown_agent, version_fault

    workflows = TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
    try:
        if not await recent_pollers(client, queue, workflows, WORKER_TIMEOUT):
            return  # the run waits for a worker
        agents = await AgentReader(client, queue).read()
    except RPCError:  # the start says what is wrong
        return
    name, version = run_input.agent, run_input.version
    if agents is not None and name not in agents:
        fail(f"{unknown_agent(name, agents)} These are the agents of task queue {queue!r}.")
    if agents is not None and version is not None and (fault := version_fault(agents[name], version)):
        fail(f"--version: {fault}")


async def _ended_run(client: Client, run_id: str) -> str:
    """Temporal's status of the closed run that has this id; "" if there is none."""
    from temporalio.client import WorkflowExecutionStatus
    from temporalio.service import RPCError

    try:
        described = await client.get_workflow_handle(run_id).describe()
    except RPCError:  # most often: there is no run with this id
        return ""
    is_closed = described.status not in (None, WorkflowExecutionStatus.RUNNING)
    return described.status.name.lower() if described.status and is_closed else ""
