"""Odd MCP servers, drawn at random: a call is executed once, what it returned reaches the model, readable tools are there."""

from __future__ import annotations

import base64
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mulligan import Agent, Call, McpServer, Say
from mulligan.activities.mcp.call_result import result_text
from mulligan.activities.mcp.servers import Listing, McpServers
from mulligan.cli.agents import _add_mcp_tools
from mulligan.doctor.mcp_servers import check_mcp
from mulligan.mcp import McpError
from mulligan.testing import ScriptedModel, run_agent
from mulligan.worker.loading import load_agents
from tests.support import odd_mcp
from tests.support.content_files import png
from tests.support.examples import examples

SEEDS = range(examples(6))
UNSURE = ("may or may not have", "may have run")


async def paid(servers: McpServers, server: McpServer, number: int) -> str:
    """What the model reads of a call."""

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        del progress, total, message

    try:
        result: Any = await servers._session(server).call("pay", {"n": number}, progress)
    except McpError as error:
        return str(error)
    return result_text(result)


def check_told(text: str, number: int, times: int) -> None:
    """What the model is told of a call is true, and the call was not executed twice."""
    assert times <= 1
    if times:
        assert f"paid-{number}" in text or any(words in text for words in UNSURE), text
        assert "has not run" not in text
    else:
        assert f"paid-{number}" not in text
        assert "The call ran" not in text


async def check_tools(servers: McpServers, server: McpServer, readable: set[str], unreadable: set[str]) -> None:
    offered = await servers.offer_tools(Agent(name="a", model="openai:x", mcp=[server]))
    assert offered.notes == []
    assert {each.name.removeprefix("odd__") for each in offered.definitions} == readable
    listing = await servers.list_tools(server)
    assert isinstance(listing, Listing)
    assert all(any(repr(name) in sentence for sentence in listing.left_out) for name in unreadable)


@pytest.mark.parametrize("seed", SEEDS)
async def test_an_odd_server_over_http_executes_each_call_once_and_keeps_its_tools(seed: int) -> None:
    """It forgets its sessions between calls, and in the middle of them; it says so in every way that there is."""
    servers = McpServers()
    async with odd_mcp.OddServer(seed) as odd, servers.running():
        server = McpServer("odd", url=odd.url, timeout=20)
        await check_tools(servers, server, odd.readable, odd.unreadable)
        was_forgotten = False
        for number in range(12):
            chance = odd.chance.random()
            if chance < 0.3:
                odd.forget()
            elif chance < 0.5:
                odd.breaks = odd.chance.choice(["cut", "500", "stream", "progress"])
            elif chance < 0.6:
                await check_tools(servers, server, odd.readable, odd.unreadable)
                was_forgotten = False
            is_well = chance >= 0.5 and not was_forgotten
            text = await paid(servers, server, number)
            check_told(text, number, odd.executed[number])
            assert f"paid-{number}" in text or not is_well, text
            was_forgotten = 0.3 <= chance < 0.5


@pytest.mark.parametrize("seed", SEEDS)
async def test_an_odd_program_executes_each_call_once_and_keeps_none_waiting(seed: int, tmp_path: Path) -> None:
    """Its answers cannot be read, or only in part; it forgets its session until it is started again."""
    file = tmp_path / "executed"
    _, readable, unreadable = odd_mcp.odd_tools(random.Random(seed))
    server = McpServer("odd", command=[sys.executable, odd_mcp.__file__, str(seed), str(file)], timeout=20)
    servers = McpServers()
    async with servers.running():
        await check_tools(servers, server, readable, unreadable)
        for number in range(8):
            text = await paid(servers, server, number)
            executed = Counter(file.read_text().split())[str(number)]
            check_told(text, number, executed)
            assert executed == 1
        await check_tools(servers, server, readable, unreadable)


async def test_the_doctor_and_the_agents_command_name_the_tools_that_are_left_out() -> None:
    """And the servers that are not there."""
    async with odd_mcp.OddServer(1) as odd:
        odd.tools = [odd_mcp.PAY, {"name": "worse", "inputSchema": "none"}, {}]
        there, gone = McpServer("odd", url=odd.url), McpServer("gone", command=["/nowhere/server"])
        agent = Agent(name="a", model="openai:x", mcp=[there, gone])
        found = {(each.state, each.text) for each in await check_mcp(load_agents([agent], []))}
        rows: list[dict[str, Any]] = [{}, {}]
        await _add_mcp_tools([(agent, {"mcp": rows})])
    of_tool = "MCP server 'odd': the input of 'worse' cannot be read: its inputSchema is not an object. It is left out"
    of_number = "MCP server 'odd': the input of 'number 3' cannot be read: it has no name. It is left out"
    away = "The MCP server `gone` could not be started: there is no /nowhere/server"
    assert found == {("ok", "odd: 1 tool"), ("warning", of_tool), ("warning", of_number), ("problem", away)}
    assert rows == [{"tools": ["odd__pay"], "left_out": [f"{of_tool}.", f"{of_number}."]}, {"unavailable": f"{away}."}]


async def test_a_result_with_more_parts_than_a_message_may_have_reaches_the_model_as_text() -> None:
    async with odd_mcp.OddServer(1) as odd:
        picture = {"type": "image", "mimeType": "image/png", "data": base64.b64encode(png()).decode()}
        odd.results = [lambda mark: {"content": [*[odd_mcp.text("more")] * 100, odd_mcp.text(mark), picture]}]
        agent = Agent(name="a", model="openai:x", mcp=[McpServer("odd", url=odd.url)])
        calls = Say(calls=[Call("odd__pay", {"n": 7})])
        run = await run_agent(agent, "Go.", model=ScriptedModel(calls, "done"))
    result = run.calls[0].result
    assert result is not None
    assert result.error is None
    assert "paid-7" in result.text
    assert "[The call ran. Its result is shown as text: it has 102 parts; the limit is 100." in result.text
