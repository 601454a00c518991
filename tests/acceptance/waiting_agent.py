"""Agents whose runs wait: for a tool that reports its progress, for an endpoint that is down, for a person."""

from __future__ import annotations

import asyncio

from mulligan import Agent, Call, Say, Script, ToolContext, tool


@tool(timeout=60, attempts=2, retry_on=(RuntimeError,))
async def crawl(ctx: ToolContext) -> str:
    """Crawl a site, slowly."""
    if ctx.attempt == 1:
        raise RuntimeError("the site is away")
    ctx.heartbeat("page 3 of 7")
    await asyncio.sleep(30)
    return "done"


@tool(needs_approval=True)
def refund(order: int) -> str:
    """Give money back."""
    return f"refunded order {order}"


crawler = Agent(name="crawler", model="scripted:crawling", tools=[crawl])
offline = Agent(name="offline", model="openai-chat:none")
teller = Agent(name="teller", model="scripted:telling", tools=[refund])
crawling = Script("crawling", [Say(calls=[Call("crawl")]), Say("done")])
telling = Script("telling", [Say(calls=[Call("refund", {"order": 7}, id="c3")]), Say("done")])
