"""One agent for each kind of wait, for tests/system/test_waits.py. Only worker processes load this file: it shortens limits.

Each run looks around, waits in the call `w` (or in a model call), and looks around again. Tools write what they do as lines into
the file that the run's metadata names.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from mulligan import Agent, Background, Batch, Call, Say, Script, Tool, ToolContext, tool
from mulligan.tools import ask_person, wait_until
from mulligan.workflows import limits
from tests.support.background_agents import count_words

for name in ("POLL_FIRST", "BUDGET_FIRST", "BUDGET_SPREAD", "BATCH_RETRY_FIRST"):
    setattr(limits, name, 0.3)
for name in ("POLL_LONGEST", "BUDGET_LONGEST", "BATCH_POLL_LONGEST"):
    setattr(limits, name, 0.5)
limits.STOP_GRACE /= 30
if "WAITS_HEARTBEAT_SECONDS" in os.environ:
    limits.HEARTBEAT_TIMEOUT = timedelta(seconds=float(os.environ["WAITS_HEARTBEAT_SECONDS"]))
limits.CONTINUE_AS_NEW_EVENTS = int(os.environ.get("WAITS_CONTINUE_AFTER", limits.CONTINUE_AS_NEW_EVENTS))

NAP = int(os.environ.get("WAITS_NAP_SECONDS", "3"))


def _write(ctx: ToolContext, line: str) -> None:
    with Path(ctx.metadata["effects"]).open("a") as file:
        file.write(f"{line}\n")


@tool
def look() -> str:
    """Look around."""
    return "nothing new"


def withdraw(started: Any, ctx: ToolContext) -> None:
    _write(ctx, "withdrawn")


@tool(deferred=True, on_cancel=withdraw, timeout=900)
def begin(ctx: ToolContext) -> str:
    """Begin a job elsewhere."""
    _write(ctx, f"begun {ctx.callback_token}")
    return "begun"


@tool(needs_approval=True, approval_reminder=1)
def sign(ctx: ToolContext) -> str:
    """Sign. People are reminded after 1, 3, 7 … seconds."""
    _write(ctx, "signed")
    return "signed"


def _agent(name: str, waits_in: Call, *tools: Tool) -> tuple[Agent, Script]:
    around = [Say(calls=[Call("look")])] * 2
    script = Script(name, [*around, Say(calls=[waits_in]), *around, Say("done")])
    return Agent(name=name, model=f"scripted:{name}", tools=[look, *tools]), script


orderer, _orderer = _agent("orderer", Call("begin", id="w"), begin)
crowd_orderer = Agent(name="crowd_orderer", model="scripted:crowd_orderer", tools=[begin])
_crowd = Script("crowd_orderer", [Say(calls=[Call("begin", id=f"w{number}") for number in range(10)]), Say("done")])
sleeper, _sleeper = _agent("sleeper", Call("wait_until", {"seconds": 3_600}, id="w"), wait_until)
napper, _napper = _agent("napper", Call("wait_until", {"seconds": NAP}, id="w"), wait_until)
signer, _signer = _agent("signer", Call("sign", id="w"), sign)
asker, _asker = _agent("asker", Call("ask_person", {"question": "Which colour?"}, id="w"), ask_person)
chief, _chief = _agent("chief", Call("orderer", {"prompt": "Go."}, id="w"), orderer.as_tool(description="Orders."))
thinker = Agent(name="thinker", model="openai:none", tools=[look], features=[Background()])
batcher = Agent(name="batcher", model="openai@batches:gpt-5-mini", tools=[count_words], features=[Batch()])
spender = Agent(name="spender", model="openai-chat:waits-paid", tools=[look])
