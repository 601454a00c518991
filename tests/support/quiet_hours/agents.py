"""An agent with the feature, and its scripted model."""

from __future__ import annotations

from mulligan import Agent, Call, Say, Script, tool

from .declared import Quiet, QuietHours


@tool(options=[Quiet(seconds=3, wakes_person=True)])
def ring_bell(times: int) -> str:
    """Ring the bell."""
    return f"It rang {times} times."


@tool
def whisper() -> str:
    """Whisper."""
    return "…"


porter = Agent(
    name="porter", model="scripted:ringing", tools=[ring_bell, whisper], features=[QuietHours(place="the inn")]
)
ringing = Script("ringing", [Say(calls=[Call("ring_bell", {"times": 2})]), Say("It rang.")])
