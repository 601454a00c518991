"""`mulligan whatif`: run many runs again with a change, and compare what they would do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mulligan.cli._forks import Instructions, Model, agents_of_runs, check_versions, read_instructions
from mulligan.cli._terminal import AsJson, connect_or_fail, fail
from mulligan.cli.experiments.follow_experiment import (
    AtLeast,
    Baseline,
    Concurrency,
    MaxCost,
    Name,
    Score,
    Versions,
    Wanted,
    run_experiment,
)

if TYPE_CHECKING:
    from temporalio.client import Client, WorkflowExecution

    from mulligan.client.origins.fork_run import Fork


async def whatif(
    more: Annotated[list[str] | None, typer.Argument(metavar="[ID]…", help="More runs.", show_default=False)] = None,
    runs: Annotated[
        list[str] | None, typer.Option(metavar="ID…", help="The runs, open or ended; repeatable.", show_default=False)
    ] = None,
    agent: Annotated[str | None, typer.Option(help="The newest ended runs of this agent.", show_default=False)] = None,
    last: Annotated[int, typer.Option(min=1, max=1000, help="How many of them.")] = 50,
    model: Model = None,
    instructions: Instructions = None,
    version: Versions = None,
    at: Annotated[str, typer.Option(metavar="STEP", help="Where each begins: `first`, `last`, or a number.")] = "first",
    unrecorded: Annotated[
        Literal["diverge", "error"],
        typer.Option(help="What becomes of a call without a record: the run ends, or the model gets an error."),
    ] = "diverge",
    score: Score = None,
    name: Name = None,
    concurrency: Concurrency = 10,
    max_cost: MaxCost = None,
    at_least: AtLeast = None,
    baseline: Baseline = None,
    as_json: AsJson = False,
) -> int:
    """Run many runs again with recorded tools and a change: nothing happens outside, and no run is touched.

    The experiment is a workflow: it goes on when this command ends, and the same command with the same --name follows it.
    Of each run the table says whether the output and the calls are the same (docs/what-if.md).

    Examples: `mulligan whatif --runs run-1 run-2 --model openai:gpt-5`, `mulligan whatif --agent support --last 50
    --version current --version candidate --score checks:is_polite --max-cost 2`

    Exit code: 0 it has ended, 1 a mean is below --at-least, or it was cancelled, 2 it cannot be started.
    """
    from mulligan.client.origins.fork_run import parse_fork
    from mulligan.wire.experiments import ExperimentContent

    given = list(dict.fromkeys([*(runs or ()), *(more or ())]))
    if bool(given) == bool(agent):
        fail("give --runs with the ids of runs, or --agent with the name of an agent.")
    edits = {"model": model, "instructions": read_instructions(instructions)}
    edits = {each: value for each, value in edits.items() if value is not None}
    options: dict[str, Any] = {"edits": edits, "unrecorded": unrecorded}
    if (step := _step(at)) is not None:
        options["at"] = step
    fork = parse_fork(options)
    _check_price(fork, max_cost)
    client = await connect_or_fail()
    agents = await agents_of_runs(client, given) if given else {str(agent)}
    ids = given or await _newest(client, str(agent), last)
    versions = await check_versions(client, version, agents)
    content = ExperimentContent(runs=ids, fork=fork.model_dump(mode="json", exclude_defaults=True), agent=agent)
    plan = {"name": name, "concurrency": concurrency, "max_cost": max_cost, "score": score, "versions": versions}
    return await run_experiment(content, plan, Wanted(at_least, baseline, as_json), "whatif")


def _step(at: str) -> int | None:
    """The number of a step; None: the last one."""
    if at in ("first", "last"):
        return 1 if at == "first" else None
    if not at.isdecimal() or int(at) < 1:
        fail(f"--at is {at[:80]!r}; give `first`, `last`, or the number of a step.")
    return int(at)


def _check_price(fork: Fork, max_cost: float | None) -> None:
    """End the command if the cost is limited, and the chosen model has no price."""
    from mulligan.client.settings import settings
    from mulligan.prices import Prices

    model = fork.edits.model
    if max_cost is not None and model is not None and Prices.load(settings().prices).of(model) is None:
        fail(f"--max-cost limits the experiment, but the price of {model} is not known; put it into MULLIGAN_PRICES.")


async def _newest(client: Client, agent: str, last: int) -> list[str]:
    """The newest ended runs of an agent, without those that were forked from others."""
    from temporalio.client import WorkflowExecutionStatus

    from mulligan.client.find_runs import RunQuery, first_runs, memo_of, origin_of

    async def has_ended(execution: WorkflowExecution) -> bool:
        is_open = execution.status == WorkflowExecutionStatus.RUNNING
        return not is_open and not origin_of(await memo_of(execution))

    runs = await first_runs(client, RunQuery(agent=agent, may_see=has_ended), last)
    if not runs:
        fail(f"the agent {agent!r} has no ended run on this server; see `mulligan list --agent {agent}`.")
    return [run["id"] for run in runs]
