"""Shared by the commands `fork` and `rerun`: their options, the calls that live tools may repeat, and the start."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mulligan.cli._input import confirmed
from mulligan.cli._runs import report_start
from mulligan.cli._terminal import NOT_COMPLETED, connect_or_fail, err, fail, print_progress

if TYPE_CHECKING:
    from temporalio.client import Client

    from mulligan.client.origins.fork_run import Fork

RunId = Annotated[str, typer.Argument(metavar="ID", help="The id of a run, open or ended.", show_default=False)]
Instructions = Annotated[
    Path | None, typer.Option(metavar="FILE", help="A file with other instructions for the agent.", show_default=False)
]
Model = Annotated[str | None, typer.Option(help="Another model, as `provider:name`.", show_default="as before")]
Tools = Annotated[
    Literal["recorded", "live"],
    typer.Option(help="Whether calls get the results of the run's equal calls, or the tools run."),
]
Unrecorded = Annotated[
    Literal["diverge", "error", "live"],
    typer.Option(
        help="What becomes of a call without a record: the run ends, the model gets an error, or the tool runs."
    ),
]
MaxSteps = Annotated[
    int | None,
    typer.Option(min=1, help="The maximum number of model calls, shared steps included.", show_default="as before"),
]
NewId = Annotated[str | None, typer.Option(help="The new run's id.", show_default="a generated id")]
Wait = Annotated[bool, typer.Option("--wait", help="Follow the run to its end and print its output.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before tools run.")]
_MOST_LISTED, _PARALLEL_READS = 20, 20


async def fork_and_report(
    run_id: str, options: dict[str, Any], *, new_id: str | None, yes: bool, wait: bool, as_json: bool
) -> int:
    """Fork a run, and print the new run's id. `options`: those of a fork. Returns the exit code."""
    from mulligan.client.origins.fork_run import parse_fork, start_fork

    fork = parse_fork({name: value for name, value in options.items() if value is not None})
    client = await connect_or_fail()
    if fork.version is not None:
        await check_versions(client, [fork.version], await agents_of_runs(client, [run_id]))
    if fork.may_run_tools and not yes and not await _confirmed(client, run_id, fork):
        print_progress("nothing was started.")
        return NOT_COMPLETED
    started = await start_fork(client, run_id, fork, new_id=new_id)
    return await report_start(client, started.handle, wait=wait, as_json=as_json)


async def _confirmed(client: Client, run_id: str, fork: Fork) -> bool:
    """Whether a person wants tools to run, having seen which calls the run made from the step on."""
    from mulligan.cli._steps import counted, short
    from mulligan.client.origins.fork_run import read_live_calls

    calls = await read_live_calls(client, run_id, fork)
    made = f"the run made {counted(len(calls), 'call')} from this step on"
    if fork.tools == "recorded":
        err.print(f"Tools run for calls without a record; {made}, and only equal ones have records:")
    elif calls:
        err.print(f"Live tools: {made}, which may happen again:")
    else:
        return True
    for call in calls[:_MOST_LISTED]:
        err.print(f"  step {call['step']}: {short(call['name'], 100)} {short(call['raw_arguments'], 200)}")
    if (more := len(calls) - _MOST_LISTED) > 0:
        err.print(f"  and {more} more")
    return confirmed()


def read_instructions(file: Path | None) -> str | None:
    """The text of a file with instructions; the command ends if it cannot be read."""
    if file is None:
        return None
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        fail(f"--instructions: {error.filename}: {error.strerror}.")
    except ValueError as error:
        fail(f"--instructions: {file} is not a text in UTF-8 ({error}).")


async def agents_of_runs(client: Client, ids: list[str]) -> set[str]:
    """The agents of runs, as far as they are known; the command ends if a run is not on the server."""
    from mulligan.client.find_runs import memo_of
    from mulligan.client.unless_missing import MISSING_OR_INVALID, unless_missing

    limit = asyncio.Semaphore(_PARALLEL_READS)

    async def agent_of(run_id: str) -> str | None:
        async with limit:
            described = await unless_missing(client.get_workflow_handle(run_id).describe(), MISSING_OR_INVALID)
            return None if described is None else (await memo_of(described)).get("agent", "")

    agents = await asyncio.gather(*map(agent_of, ids))
    if None in agents:
        fail(f"there is no run {ids[agents.index(None)]!r} on this server; see `mulligan list`. Nothing was started.")
    return {agent for agent in agents if agent}


async def check_versions(client: Client, versions: Sequence[str] | None, agents: Iterable[str]) -> list[str]:
    """The versions, each once; the command ends if workers say that one of the agents does not have one of them."""
    from mulligan.client.read_agents import AgentReader, version_fault
    from mulligan.client.settings import settings
    from mulligan.wire.agent_version import MOST_VERSIONS

    wanted = list(dict.fromkeys(versions or ()))
    if len(wanted) > MOST_VERSIONS or "" in wanted:
        fail(f"--version is empty, or there are more than {MOST_VERSIONS} of them.")
    served = await AgentReader(client, settings().task_queue).read() if wanted else None
    for agent in sorted(agents):
        for version in wanted:
            if served and agent in served and (fault := version_fault(served[agent], version)):
                fail(f"--version: {fault}")
    return wanted
