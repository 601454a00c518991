"""`mulligan eval`: run cases with a model, and say how good the agent is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mulligan.cli._forks import Model, Yes, check_versions
from mulligan.cli._input import confirmed
from mulligan.cli._steps import counted
from mulligan.cli._terminal import NOT_COMPLETED, AsJson, connect_or_fail, err, fail, print_progress
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
    from mulligan.wire.experiments import ExperimentContent


async def evaluate(
    cases: Annotated[
        Path, typer.Argument(help="A folder of cases, a case, or JSON lines of {input, expected?}.", show_default=False)
    ],
    agent: Annotated[
        str, typer.Option(help="The agent; without --version, as workers serve it today.", show_default=False)
    ],
    model: Model = None,
    version: Versions = None,
    score: Score = None,
    repeat: Annotated[int, typer.Option(min=1, max=100, help="Runs of each case.")] = 1,
    name: Name = None,
    concurrency: Concurrency = 10,
    max_cost: MaxCost = None,
    at_least: AtLeast = None,
    baseline: Baseline = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> int:
    """Give an agent the tasks of cases, and score what it does. The calls of a case get its recorded results.

    JSON lines have no recorded results: there tools run, after you have been asked. The experiment is a workflow: it goes
    on when this command ends, and the same command with the same --name follows it (docs/scores.md).

    Examples: `mulligan eval tests/cases --agent support --score checks:is_right --at-least 0.9`, `mulligan eval
    tasks.jsonl --agent support --score checks:is_right --repeat 3 --baseline before.json`

    Exit code: 0 it has ended, 1 a mean is below --at-least, it was cancelled, or you did not confirm, 2 it cannot start.
    """
    from mulligan.client.experiments.read_cases import read_cases
    from mulligan.model_name import check_model
    from mulligan.wire.case import CaseError

    if model is not None:
        check_model(model, "--model cannot be used")
    try:
        content = read_cases(cases, agent)
    except CaseError as error:
        fail(str(error))
    content = content.model_copy(update={"model": model, "repeat": repeat})
    agents = await _served(agent)
    if content.lines and not yes and not _confirmed(content, agent, agents):
        print_progress("nothing was started.")
        return NOT_COMPLETED
    versions = await check_versions(await connect_or_fail(), version, {agent})
    plan = {"name": name, "concurrency": concurrency, "max_cost": max_cost, "score": score, "versions": versions}
    return await run_experiment(content, plan, Wanted(at_least, baseline, as_json), "eval")


async def _served(agent: str) -> dict[str, dict[str, Any]]:
    """The agents by their names; the command ends if no worker serves this one."""
    from mulligan.client.read_agents import AgentReader, unknown_agent
    from mulligan.client.settings import settings

    task_queue = settings().task_queue
    agents = await AgentReader(await connect_or_fail(), task_queue).read()
    if agents is None:
        fail(f"no worker of the task queue {task_queue!r} answers; start one: mulligan worker.")
    if agent not in agents:
        fail(unknown_agent(agent, agents))
    return agents


def tools_of(name: str, agents: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The tools that may run where an agent works: its own, and those of agents that it calls or hands over to.

    `agents`: those that are served, by their names. Of an agent whose tools are not known, the text names the agent.
    """
    tools, reached, left = list[str](), set[str](), [name]
    while left:
        if (each := left.pop(0)) in reached:
            continue
        reached.add(each)
        agent = agents.get(each, {"has_tools": True})
        left += agent.get("handoffs", ())
        if agent.get("has_tools", True) and "tools" not in agent:
            tools.append(f"those of {each}")
        for tool in agent.get("tools", ()):
            (left if "agent" in tool else tools).append(tool.get("agent", tool["name"]))
        tools += [f"all of {server['name']}" for server in agent.get("mcp", ())]
        if (function := agent.get("tools_function")) is not None:
            tools.append(f"those of {function}")
    return list(dict.fromkeys(tools))


def _confirmed(content: ExperimentContent, agent: str, agents: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether a person wants the tools to run, having seen which and how often."""
    tools = tools_of(agent, agents)
    if not tools:
        return True
    runs = counted(len(content.lines) * content.repeat, "run")
    err.print(f"Tools run, in {runs} of {agent}: {', '.join(tools)}.")
    return confirmed()
