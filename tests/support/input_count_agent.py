"""An agent whose instructions state the length of its input."""

from __future__ import annotations

from mulligan import Agent, RunInput


def count(run_input: RunInput) -> str:
    return f"{len(run_input.messages)} messages, {sum(len(message.text) for message in run_input.messages)} characters"


counts = Agent(name="counts", model="openai-chat:counts", instructions=count)
