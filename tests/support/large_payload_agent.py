"""Agents whose tools have arguments, results and errors of megabytes."""

from __future__ import annotations

import base64
import random

from temporalio import workflow

from mulligan import Agent, DurableAgent, InvalidToolInput, RunInput, Tool, ToolError, ToolStrategy, tool

MEGABYTE = 1_000_000
LETTER = """The lamp of order seven arrived broken on Monday because rain had come through the roof of that warehouse,
where parcels wait until a driver takes them to town before noon each day, and nobody could read what customer sent back"""
WORDS = LETTER.split()


def noise(size: int, seed: int = 0) -> str:
    """Text that cannot be compressed much: base64 of random bytes."""
    return base64.b64encode(random.Random(seed).randbytes(size * 3 // 4 + 3)).decode()[:size]


def prose(size: int, seed: int = 0) -> str:
    """Text of random words, which can be compressed."""
    chosen = random.Random(seed)
    said = ""
    while len(said) < size:
        said += " ".join(chosen.choices(WORDS, k=200)) + f" {chosen.randrange(10**6)}. "
    return said[:size]


def write_much(invalid: InvalidToolInput) -> object | None:
    """Make much of little."""
    given = invalid.arguments if isinstance(invalid.arguments, dict) else {}
    size = 3 * MEGABYTE if "much" in given else MEGABYTE // 2 if "some" in given else 0
    return {"text": "x" * size} if size else None


@tool(max_result_chars=2 * MEGABYTE)
def give_noise(size: int, seed: int = 0) -> str:
    """Give noise."""
    return noise(size, seed)


@tool(max_result_chars=2 * MEGABYTE)
def give_prose(size: int, seed: int = 0) -> str:
    """Give prose."""
    return prose(size, seed)


@tool(max_result_chars=2 * MEGABYTE, local=True)
def give_noise_here(size: int, seed: int = 0) -> str:
    """Give noise, in a local activity."""
    return noise(size, seed)


@tool(max_result_chars=2 * MEGABYTE)
def shout(size: int) -> str:
    """Fail with a long text."""
    raise ToolError(noise(size))


@tool(fix=write_much)
def take(text: str) -> str:
    """Take a text."""
    return f"took {len(text)}"


@tool(task_queue="large-far", max_result_chars=2 * MEGABYTE)
def shout_far(size: int) -> str:
    """Fail with a long text, on another queue."""
    raise ToolError(noise(size))


TOOLS: list[Tool] = [give_noise, give_prose, give_noise_here, shout, take, shout_far]

large = Agent(name="large", model="openai-chat:nobody", tools=TOOLS, max_steps=100)
strict_large = Agent(name="strict_large", model="openai-chat:nobody", tools=TOOLS, handle_errors=False)
wordy = Agent(name="wordy", model="openai-chat:nobody", instructions=lambda _: "Read this. " + prose(3 * MEGABYTE))


def fill(invalid: InvalidToolInput) -> object | None:
    return {"text": "x" * 3 * MEGABYTE}


letter_schema = {"type": "object", "title": "Letter", "properties": {"text": {"type": "string"}}, "required": ["text"]}
writer = Agent(name="writer", model="openai-chat:nobody", output=ToolStrategy(letter_schema), repair=fill)


@workflow.defn
class HandedOver:
    """A user's workflow that continues as new after each step of a turn."""

    @workflow.run
    async def run(self, prompt: str, model: str, state: bytes, runs: int) -> list[str | int]:
        agent = DurableAgent(state=state) if state else DurableAgent("large")
        if not state:
            await agent.begin(RunInput(agent="large", prompt=prompt, model=model))
        if not await agent.step():
            workflow.continue_as_new(args=[prompt, model, agent.carry(), runs + 1])
        result = await agent.finish()
        return [result.status, result.output, result.steps, runs + 1, len(agent.conversation.messages)]
