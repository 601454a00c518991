"""Agents whose input and answers are checked."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

from pydantic import BaseModel

from mulligan import Agent, AnswerAgain, Guardrails, Message, ToolContext, ToolStrategy, tool

MODEL = "openai-chat:gpt-5-mini"
CHECKED: dict[str, list[Any]] = defaultdict(list)
"""What the functions were called with, by the run's id."""


class Query(BaseModel):
    sql: str


async def no_homework(messages: list[Message], ctx: ToolContext) -> str | None:
    CHECKED[ctx.workflow_id].append(("input", [each.text for each in messages], ctx.metadata.get("class"), ctx.call_id))
    if "broken" in messages[-1].text:
        raise ValueError("no school today")
    if "slow" in messages[-1].text:
        await asyncio.sleep(60)
    return "this is homework" if "2x" in messages[-1].text else None


def no_phone_numbers(answer: str, ctx: ToolContext) -> str | None:
    CHECKED[ctx.workflow_id].append(("output", answer))
    return "it has a phone number" if "555" in answer else None


def only_select(query: Query, ctx: ToolContext) -> Query:
    CHECKED[ctx.workflow_id].append(("validator", query.sql))
    if "DROP" in query.sql:
        raise AnswerAgain("Only SELECT is allowed.")
    if "BUG" in query.sql:
        raise KeyError("a secret")
    return query


def one_line(query: Query, ctx: ToolContext) -> Query:
    return Query(sql=" ".join(query.sql.split()))


def shouted(answer: str, ctx: ToolContext) -> str:
    if answer == "hm":
        raise AnswerAgain("Say more.")
    return answer.upper()


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


teacher = Agent(
    name="teacher",
    model=MODEL,
    tools=[add],
    features=[Guardrails(input=[no_homework], output=[no_phone_numbers], timeout=2)],
)
analyst = Agent(
    name="analyst", model=MODEL, output=ToolStrategy(Query), features=[Guardrails(validators=[only_select, one_line])]
)
writer = Agent(
    name="writer", model="openai:gpt-5-mini", output=Query, features=[Guardrails(validators=[only_select], retries=1)]
)
shouter = Agent(name="shouter", model=MODEL, features=[Guardrails(validators=[shouted])])
