"""Agents with sub-agents, for live tests. Each answers by the script of its own name."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

from temporalio import workflow

from mulligan import Agent, Call, DurableAgent, Message, Say, Script, Tool, ToolContext, last_result, tool


@tool(timeout=60)
async def wait_for_file(path: str) -> str:
    """Wait until a file is there."""
    while not os.path.exists(path):
        await asyncio.sleep(0.05)
    return "it is there"


@tool(timeout=60, attempts=5)
async def wait_for_file_again(path: str) -> str:
    """The same, by whichever worker there is."""
    while not os.path.exists(path):
        await asyncio.sleep(0.05)
    return "it is there"


@tool
def note(text: str, ctx: ToolContext) -> str:
    """Note something."""
    return f"{ctx.agent} noted {text}; team {ctx.metadata.get('team', '?')}"


researcher = Agent(
    name="researcher",
    model="scripted:researcher",
    instructions="You look things up.",
    tools=[wait_for_file, wait_for_file_again, note],
    max_steps=6,
)


patient = Agent(name="patient", model="scripted:researcher", tools=[note], max_steps=100)


tireless = Agent(name="tireless", model="scripted:researcher", tools=[note], max_steps=500)

unpriced = Agent(name="unpriced", model="openai-chat:nobody")
costly = Agent(name="costly", model="scripted:chief", tools=[unpriced.as_tool(description="Costs nobody knows what.")])


def _look_up(messages: Sequence[Message]) -> Say:
    """The turn for a prompt: `wait FILE`, `again FILE`, `note N TIMES` or `for ever`; otherwise it repeats the prompt."""
    word, _, rest = messages[0].text.partition(" ")
    if word == "wait" and len(messages) == 1:
        return Say(calls=[Call("wait_for_file", {"path": rest})])
    if word == "again" and len(messages) == 1:
        return Say(calls=[Call("wait_for_file_again", {"path": rest})])
    if word == "note" and len(messages) < 1 + 2 * int(rest):
        return Say(calls=[Call("note", {"text": str(len(messages))})])
    if word == "for":
        return Say("I am still at it.", calls=[Call("note", {"text": "more"})])
    if word == "say":
        return Say(last_result(messages) or rest)
    return Say(f"found: {messages[0].text}")


lazy = Agent(name="lazy", model="scripted:no such script", instructions="You fail.")
brittle = Agent(name="brittle", model="scripted:brittle", tools=[note], handle_errors=False)
brittle_script = Script("brittle", [Say(calls=[Call("note", {"text": "x"})]), Say(calls=[Call("note")])])
chief = Agent(name="chief", model="scripted:chief", tools=[researcher.as_tool(description="Looks things up.")])
chief_script = Script(
    "chief",
    [
        lambda messages: Say(calls=[Call("researcher", {"prompt": messages[0].text.removeprefix("deep ")})]),
        lambda messages: Say(last_result(messages)),
    ],
)

LEADS_TOOLS: list[Tool] = [
    researcher.as_tool(description="Looks things up."),
    researcher.as_tool(name="hasty", description="Looks things up in a second.", timeout=1),
    researcher.as_tool(name="far", description="Looks things up elsewhere.", task_queue="far-queue", timeout=3),
    researcher.as_tool(name="careful", description="Looks things up that cost.", needs_approval=True),
    tireless.as_tool(name="sharing", description="Works for ever.", share_budget=True),
    patient.as_tool(description="Notes a lot."),
    chief.as_tool(description="Has things looked up."),
    lazy.as_tool(description="Fails."),
    brittle.as_tool(description="Fails at its second step."),
    note,
]
lead = Agent(
    name="lead", model="openai-chat:nobody", instructions="You lead.", tools=LEADS_TOOLS, max_steps=6, model_patience=3
)
strict_lead = Agent(name="strict_lead", model="openai-chat:nobody", tools=LEADS_TOOLS, handle_errors=False)

_NESTED: list[Tool] = [note]
nested = Agent(name="nested", model="scripted:nested", tools=_NESTED, max_depth=2)
_NESTED.append(nested.as_tool(description="Itself, for a part of the work."))


def _hand_on(messages: Sequence[Message]) -> Say:
    if len(messages) == 1:
        return Say(calls=[Call("nested", {"prompt": messages[0].text + "!"})])
    return Say(f"({last_result(messages)})")


researcher_script = Script("researcher", [_look_up])
nested_script = Script("nested", [_hand_on])


@workflow.defn
class TwoLeads:
    """Two agents of one workflow, whose models give their calls the same ids."""

    @workflow.run
    async def run(self, models: list[str]) -> list[str]:
        first, second = DurableAgent("lead"), DurableAgent("lead")
        answers = await asyncio.gather(first.run("Go.", model=models[0]), second.run("Go.", model=models[1]))
        again = await first.run("Once more.", model=models[0])
        return [*(answer.output for answer in answers), again.output]
