"""What the model saw: for each step, what is shown is compared with the request that the server of the model received."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from mulligan import RunNotFoundError, connect, fork_run
from mulligan.activities.models._strict_messages import strict_messages
from mulligan.activities.models.openai.openai_chat import OpenAIChat
from mulligan.activities.models.own_ids import own_ids
from mulligan.context_view.model_context import ModelContext, NoSuchStepError, read_model_context
from mulligan.devserver import DevServer
from mulligan.worker.loading import load, load_agents
from mulligan.worker.wiring import running_worker
from tests.live.test_fork import ADA
from tests.promise.test_people import pending
from tests.support.compaction_agents import PROMPT, is_summing_up, reading
from tests.support.context_agents import closer
from tests.support.lab import DONE, Lab, Ran, call
from tests.support.openai_server import Recorded
from tests.support.openai_turn import Turn

CITY = '{"city": "Oslo"}'


@pytest.fixture(scope="module")
async def chained(lab: Lab, chain_server: DevServer) -> AsyncIterator[Lab]:
    """A server on which runs continue as new after a few steps."""
    client = await connect(chain_server.address)
    at = Lab(client, lab.model, lab.otlp, lab.telemetry, f"context-{uuid.uuid4().hex[:6]}")
    loaded = load(["tests.support.context_agents", "tests.support.compaction_agents"])
    async with running_worker(client, loaded, lab.telemetry, at.task_queue):
        yield at


def check_same(context: ModelContext, request: Recorded) -> None:
    """The request of Chat Completions has what is shown, and nothing else; ids of calls as the endpoint gave them."""
    body = request.json
    messages = body["messages"]
    if context.instructions:
        assert messages[0] == {"role": "system", "content": context.instructions}
        messages = messages[1:]
    provider: Any = SimpleNamespace(data_key="openai-chat")
    shown = [json.loads(item) for message in context.messages for item in OpenAIChat.encode(provider, message)]
    assert strict_messages(shown, (), own_ids(context.messages, "openai-chat")) == messages
    functions = [each["function"] for each in body.get("tools", [])]
    assert [(each["name"], each["description"]) for each in functions] == [
        (each["name"], each["description"]) for each in context.tools
    ]
    assert context.model == f"openai-chat:{body['model']}"


async def check_all(lab: Lab, ran: Ran, *, every: int = 1) -> list[ModelContext]:
    """What is shown of each step, or of every n-th, is what was sent; the contexts."""
    requests = [each for each in ran.requests if not is_summing_up(each.json)]
    contexts = [await read_model_context(lab.client, ran.id, step + 1) for step in range(0, len(requests), every)]
    requests = requests[::every]
    for context, request in zip(contexts, requests, strict=True):
        check_same(context, request)
    return contexts


async def test_each_step_is_shown_as_it_was_sent(lab: Lab) -> None:
    """Mistakes with their feedback, too; tools have their schemas."""
    turns = [call("search_orders", ADA), Turn(calls=[("now", "{}", None), ("sarch", "{", None)]), call("refuse"), DONE]
    ran = await lab.run(turns, max_steps=9)
    contexts = await check_all(lab, ran)
    assert [len(each.messages) for each in contexts] == [1, 3, 6, 8]
    [search] = [each for each in contexts[0].tools if each["name"] == "search_orders"]
    parameters: Any = search["parameters"]
    assert parameters["properties"]["customer"]
    assert set(contexts[0].model_dump(exclude_defaults=True)) <= {
        "step", "model", "instructions", "tools", "messages", "settings", "cleared", "compacted", "output", "deferred",
    }  # fmt: skip
    assert [(each.cleared, each.compacted) for each in contexts] == [([], [])] * 4


@pytest.mark.parametrize("agent", ["cleared_reader", "forgetful_reader", "page_reader"])
async def test_cleared_and_summarized_messages_are_marked(chained: Lab, agent: str) -> None:
    """Also of steps that an earlier workflow run of the chain has, before a summary and after it."""
    ran = await chained.run(reading(24), agent=agent, prompt=PROMPT)
    described = (await ran.handle.describe()).raw_description.workflow_execution_info
    assert described.first_run_id != described.execution.run_id
    contexts = await check_all(chained, ran, every=3)
    for context in contexts:
        lines = ["Left out to save space" in message.text for message in context.messages]
        assert [index for index, is_line in enumerate(lines) if is_line] == context.cleared
        summed = ["Read so far: PAGE" in message.text for message in context.messages]
        assert [index for index, is_summary in enumerate(summed) if is_summary] == context.compacted
    assert any(each.cleared for each in contexts) == (agent != "page_reader")
    assert any(each.compacted for each in contexts) == (agent != "cleared_reader")


async def test_tools_on_demand_are_there_once_they_are_found(chained: Lab) -> None:
    ran = await chained.run(
        [call("find_tools", '{"query": "weather"}'), call("get_weather", CITY), DONE], agent="finder"
    )
    first, second, _ = await check_all(chained, ran)
    assert [each["name"] for each in first.tools] == ["read_page", "find_tools"]
    assert sorted(first.deferred) == ["get_trains", "get_weather"]
    assert "get_weather" in [each["name"] for each in second.tools]
    assert "get_weather" not in second.deferred


async def test_a_step_is_shown_after_the_code_has_changed(lab: Lab) -> None:
    """Instructions are those of the run, and settings those of each call, without their secrets."""
    at = replace(lab, task_queue=f"closer-{uuid.uuid4().hex[:6]}", workers=None)
    secret = "sk-proj-4f9a8b7c6d5e4f3a2b1c"
    before = {"temperature": 0.5, "max_tokens": 99, "metadata": {"api_key": secret}, "openai": {"top_k": 3}}
    after = {"temperature": 0.1, "openai-chat": {"max_tokens": 7}}
    async with running_worker(at.client, load_agents([closer("Close it.", before)], []), lab.telemetry, at.task_queue):
        handle = await at.start([call("close_book"), DONE], agent="closer")
        [waiting] = await pending(handle)
    async with running_worker(at.client, load_agents([closer("Burn it.", after)], []), lab.telemetry, at.task_queue):
        await handle.execute_update("decide", {"call_id": waiting["call_id"], "decision": "approve"})
        first, second = await check_all(at, await at.look(handle))
        history = (await handle.fetch_history()).to_json()
    assert (first.instructions, second.instructions) == ("Close it.", "Close it.")
    assert first.settings == {"temperature": 0.5, "max_tokens": 99, "metadata": {"api_key": "[key]"}}
    assert second.settings == {"temperature": 0.1, "max_tokens": 7}
    assert secret not in history


async def test_a_fork_shows_what_its_model_and_that_of_the_run_saw(lab: Lab) -> None:
    """The steps that it shares are those of the run, without its edits."""
    ran = await lab.run([call("search_orders", ADA, "c1"), call("now"), DONE], max_steps=9)
    edited = await fork_run(lab.client, ran.id, at=2, edits={"results": {"c1": []}, "prompt": "Look again."})
    forked = await lab.look(edited)
    again = await lab.look(await fork_run(lab.client, forked.id, at=3))
    requests = lab.model.requests_of(ran.id)
    first, second, third = [await read_model_context(lab.client, again.id, step) for step in (1, 2, 3)]
    check_same(first, requests[0])
    check_same(second, requests[3])
    check_same(third, requests[5])
    assert len(requests) == 6


async def test_each_agent_of_a_workflow_has_its_own_steps(chained: Lab) -> None:
    """Turns of a DurableAgent are one conversation."""
    run_id = f"club-{uuid.uuid4().hex[:6]}"
    chained.model.script(run_id, reading(3))
    args = [f"openai-chat:{run_id}", 2, [], b""]
    await chained.client.execute_workflow("BookClub", args=args, id=run_id, task_queue=chained.task_queue)
    requests = [each for each in chained.model.requests_of(run_id) if not is_summing_up(each.json)]
    for number, request in enumerate(requests):
        check_same(await read_model_context(chained.client, run_id, number + 1, "0"), request)
    with pytest.raises(NoSuchStepError, match="There is no conversation 'ghost'"):
        await read_model_context(chained.client, run_id, 1, "ghost")


async def test_a_step_that_was_not_sent_is_refused_with_a_sentence(lab: Lab) -> None:
    handle = await lab.start([call("ask_person", '{"question": "Red?"}'), DONE], agent="desk")
    await pending(handle)
    assert (await read_model_context(lab.client, handle.id, 1)).step == 1
    for step in (2, 10**12):
        with pytest.raises(NoSuchStepError, match=f"(no|for) step {step}"):
            await read_model_context(lab.client, handle.id, step)
    with pytest.raises(RunNotFoundError, match="There is no run 'ghost'"):
        await read_model_context(lab.client, "ghost", 1)
    [waiting] = await pending(handle)
    await handle.execute_update("answer", {"call_id": waiting["call_id"], "text": "Blue."})
    await lab.look(handle)


async def test_the_request_that_is_open_is_shown(lab: Lab) -> None:
    """While the model answers, what it was sent can be read."""
    handle = await lab.start([Turn(text="done", delay=2.0)])
    context: Any = None
    while context is None:
        try:
            context = await read_model_context(lab.client, handle.id, 1)
        except NoSuchStepError:
            await asyncio.sleep(0.05)
    ran = await lab.look(handle)
    check_same(context, ran.requests[0])
