"""What a conversation of 200 steps sends: with nothing, with `ClearToolResults`, with `Compaction`, and with both.

    uv run python -m benchmarks.clearing

The model reads 200 pieces of this repository's documentation and source, of 0.5 to 16 KB, and says a sentence
about each. Every request is recorded as the provider gets it. Tokens are bytes divided by four. The share that a
prompt cache can serve is computed: what a request has in common with the one before, from its beginning on, if that is 1,024
tokens or more.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mulligan import Agent, AgentFeature, Call, ClearToolResults, Compaction, Message, Say, tool
from mulligan.activities.models.protocol import Reply, Request
from mulligan.activities.models.scripted import Scripted
from mulligan.testing import ScriptedModel, run_agent

ROOT = Path(__file__).parents[1]
STEPS, SHORTEST, LONGEST = 200, 500, 16_000
BYTES_PER_TOKEN, LEAST_CACHED = 4, 1_024
FEATURES: dict[str, Sequence[AgentFeature]] = {
    "nothing": (),
    "ClearToolResults()": (ClearToolResults(),),
    "Compaction(at=60_000)": (Compaction(at=60_000),),
    "both": (ClearToolResults(), Compaction(at=60_000)),
}


def pieces() -> list[str]:
    """The texts that the model reads, the same at each run."""
    chosen, texts = random.Random(1), sorted([*ROOT.glob("docs/*.md"), *ROOT.glob("activities/**/*.py")])
    whole = "\n".join(path.read_text() for path in texts)
    lengths = [int(SHORTEST * (LONGEST / SHORTEST) ** chosen.random()) for _ in range(STEPS)]
    starts = [sum(lengths[:number]) % (len(whole) - LONGEST) for number in range(STEPS)]
    return [whole[start : start + length] for start, length in zip(starts, lengths, strict=True)]


async def sent(features: Sequence[AgentFeature]) -> list[str]:
    """The requests of the run, in order, each as one text."""
    texts, requests = pieces(), list[str]()
    complete = Scripted.complete

    async def record(self: Scripted, request: Request) -> Reply:
        requests.append(
            "\n".join(
                [request.definition.model_dump_json(), *(message.model_dump_json() for message in request.messages)]
            )
        )
        return await complete(self, request)

    @tool
    def read_piece(number: int) -> str:
        """Read a piece of the documentation."""
        return texts[number]

    def turn(number: int) -> Any:
        def say(messages: Sequence[Message]) -> Say:
            del messages
            return Say(
                f"Piece {number} is next; I look for what it costs.", calls=[Call("read_piece", {"number": number})]
            )

        return say

    model = ScriptedModel(*map(turn, range(STEPS)), "Done.", is_strict=False)
    agent = Agent(name="reader", model="scripted:m", tools=[read_piece], max_steps=STEPS + 1, features=features)
    Scripted.complete = record  # type: ignore[method-assign]
    try:
        await run_agent(agent, "Read all of it.", model=model)
    finally:
        Scripted.complete = complete  # type: ignore[method-assign]
    return requests


def cached(requests: Sequence[str]) -> int:
    """Bytes of the requests that a prompt cache can serve."""
    count, before = 0, ""
    for request in requests:
        common = next((at for at, pair in enumerate(zip(before, request, strict=False)) if pair[0] != pair[1]), None)
        common = min(len(before), len(request)) if common is None else common
        count += common if common >= LEAST_CACHED * BYTES_PER_TOKEN else 0
        before = request
    return count


async def main() -> None:
    """Print the table."""
    print("| features | requests | input tokens | largest request | cached share | tokens not cached |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, features in FEATURES.items():
        requests = await sent(features)
        size, served = sum(map(len, requests)), cached(requests)
        largest = max(map(len, requests)) // BYTES_PER_TOKEN
        print(
            f"| {name} | {len(requests)} | {size // BYTES_PER_TOKEN:,} | {largest:,} | {served / size:.1%} "
            f"| {(size - served) // BYTES_PER_TOKEN:,} |"
        )


if __name__ == "__main__":
    asyncio.run(main())
