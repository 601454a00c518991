"""Agents that read page after page, with a model that knows only the messages of its request."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from temporalio import workflow

from mulligan import Agent, ClearToolResults, Compaction, DurableAgent, Image, ToolContext, tool
from tests.support.content_files import png
from tests.support.openai_turn import Failure, Turn, Usage

READ: dict[str, list[tuple[int, str]]] = defaultdict(list)
"""The pages that were read, by workflow id: (page, idempotency key)."""
LIMIT = 2_000
PROMPT = "Read the pages in order. The word that you will be asked for is heron."


@tool
def read_page(number: int, ctx: ToolContext) -> str:
    """Read a page."""
    READ[ctx.workflow_id].append((number, ctx.idempotency_key))
    return f"PAGE {number}: " + f"line of page {number}. " * 80


@tool(on_demand=True)
def close_book() -> str:
    """Close the book, after the last page."""
    return "closed"


@tool(name="read_page")
def read_picture(number: int) -> list[object]:
    """Read a page with a picture, which is small enough for history."""
    return [f"PAGE {number}: text.", Image.from_bytes(png(1_500, seed=number))]


album = Agent(name="album", model="openai:nobody", tools=[read_picture], features=[Compaction(at=LIMIT)], max_steps=100)
reader = Agent(
    name="page_reader", model="openai-chat:nobody", tools=[read_page], features=[Compaction(at=LIMIT)], max_steps=1_000
)
roomy = Agent(
    name="page_reader_with_room", model="openai-chat:nobody", tools=[read_page], features=[Compaction(at=10**6)]
)
forgetful = Agent(
    name="forgetful_page_reader",
    model="openai-chat:nobody",
    tools=[read_page],
    features=[ClearToolResults(at=LIMIT)],
    max_steps=1_000,
)
finder = Agent(
    name="page_finder",
    model="openai-chat:nobody",
    tools=[tool(on_demand=True)(read_page.function), close_book],
    features=[Compaction(at=LIMIT)],
    max_steps=1_000,
)
terse = Agent(
    name="terse_page_reader",
    model="openai-chat:nobody",
    tools=[read_page],
    features=[Compaction(at=LIMIT)],
    model_settings={"temperature": 0.5, "stop": ["THE END"], "max_tokens": 99},
)


@workflow.defn
class BookClub:
    """Turns of one conversation, whose state is carried over between them."""

    @workflow.run
    async def run(self, model: str, turns: int, said: list[str], state: bytes) -> list[str]:
        durable = DurableAgent("page_reader", state=state)
        while turns and not durable.is_continue_as_new_suggested():
            prompt = PROMPT if not said else "Which word was it? Was it heron?"
            said.append((await durable.run(prompt, model=model)).output)
            turns -= 1
        if turns:
            workflow.continue_as_new(args=[model, turns, said, durable.carry()])
        return said


def read_before(pages: int) -> list[dict[str, Any]]:
    """The messages of a conversation in which that many pages were read."""
    messages: list[dict[str, Any]] = [{"role": "user", "text": PROMPT}]
    for number in range(1, pages + 1):
        call = {"id": f"before_{number}", "name": "read_page", "arguments": json.dumps({"number": number})}
        text = f"PAGE {number}: " + f"line of page {number}. " * 80
        messages.append({"role": "assistant", "tool_calls": [call]})
        messages.append({"role": "tool", "call_id": call["id"], "name": "read_page", "text": text})
    return messages


def is_summing_up(body: dict[str, Any]) -> bool:
    """Whether a request asks for a summary."""
    return "You sum up the earlier part" in json.dumps(body)


def reading(
    pages: int, *, summary: Turn | None = None, fail_first: list[Failure] | None = None, call_id: str | None = "same"
) -> Callable[[dict[str, Any], int], Turn]:
    """A model that asks for page after page: the next one follows from the messages of the request alone.

    It counts tokens roughly as OpenAI does: four characters are one. All its calls have the same id.
    """

    def script(body: dict[str, Any], nth: int) -> Turn:
        sent = json.dumps(body.get("messages") or body.get("input"))
        usage = Usage(input_tokens=len(sent) // 4, output_tokens=10)
        seen = max((int(number) for number in re.findall(r"PAGE (\d+)", sent)), default=0)
        if is_summing_up(body):
            if summary is not None:
                return summary
            assert "tools" not in body
            return Turn(text=f"Read so far: PAGE {seen}.", usage=usage, fail_first=fail_first or ())
        if seen >= pages:
            return Turn(text=f"heron, after {seen}" if "heron" in sent else "What word?", usage=usage)
        return Turn(calls=[("read_page", json.dumps({"number": seen + 1}), call_id)], usage=usage)

    return script


def finding(pages: int) -> Callable[[dict[str, Any], int], Turn]:
    """As `reading`, by a model that finds its tools first; of these, it never calls `close_book`."""
    read = reading(pages)

    def script(body: dict[str, Any], nth: int) -> Turn:
        sent = json.dumps(body.get("messages") or body.get("input"))
        if "first_find" in sent or "PAGE" in sent:
            return read(body, nth)
        return Turn(calls=[("find_tools", '{"query": "read the page and close the book"}', "first_find")])

    return script
