"""A workflow with an agent, in a good build and in one that does not match its open runs: `DEPLOYED=bad`.

Its tool writes into the file `NOTED`.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from temporalio import workflow

from mulligan import Agent, Call, DurableAgent, Say, Script, tool

IS_BAD = os.environ.get("DEPLOYED") == "bad"


@tool
def note() -> str:
    """Write a line into the file."""
    with Path(os.environ["NOTED"]).open("a") as file:
        file.write("noted\n")
    return "noted"


noter = Agent(name="noter", model="scripted:noter", tools=[note])
script = Script("noter", [Say(calls=[Call("note", {})]), Say("It is noted.")])


@workflow.defn
class Deployed:
    """A turn of an agent, then a wait for a signal."""

    def __init__(self) -> None:
        self._goes_on = False

    @workflow.signal
    def go_on(self) -> None:
        """End."""
        self._goes_on = True

    @workflow.run
    async def run(self) -> str:
        """Return the agent's answer after the signal."""
        if IS_BAD:
            await workflow.sleep(timedelta(seconds=1))
        result = await DurableAgent("noter").run("Note it.")
        await workflow.wait_condition(lambda: self._goes_on)
        return str(result.output)
