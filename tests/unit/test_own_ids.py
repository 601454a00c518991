"""The ids of calls go back to the endpoint that has given them, in each API that could need it, and to no other."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan import Agent, Compaction, tool
from mulligan.activities.answers.unique_ids import unique_ids
from mulligan.activities.models.anthropic.anthropic import Anthropic
from mulligan.activities.models.openai.openai_responses import OpenAIResponses
from mulligan.activities.models.own_ids import kept_ids, own_ids, with_own_ids
from mulligan.values import AssistantMessage, Message
from mulligan.worker.loading import load_agents
from tests.support.memory_lab import MemoryLab, memory_lab
from tests.support.openai_server import OpenAIServer
from tests.support.openai_turn import Turn, Usage
from tests.support.provider_fixtures import GO, Bench, assistant_message, result, tool_call
from tests.support.signed_ids import FIELDS

APIS = ["openai-chat", "openai", "anthropic"]
PAID: list[int] = []


@tool
def pay(amount: int) -> str:
    """Pay an amount."""
    PAID.append(amount)
    return "paid " * 400


OPTIONS: dict[str, Any] = {"instructions": "Be brief.", "model": "openai:none", "max_steps": 12, "tools": [pay]}
clerk = Agent(name="clerk", **OPTIONS)
summing = Agent(name="summing", features=[Compaction(at=3_000, model="scripted:summary")], **OPTIONS)


@pytest.fixture(scope="module")
async def lab(model: OpenAIServer) -> AsyncIterator[MemoryLab]:
    async with memory_lab(model, load_agents([clerk, summing], [])) as at:
        yield at


def paying(amount: int) -> tuple[str, str]:
    return "pay", json.dumps({"amount": amount})


@pytest.mark.parametrize("agent", ["clerk", "summing"])
@pytest.mark.parametrize("api", APIS)
async def test_an_endpoint_with_signatures_in_ids_gets_them_back(lab: MemoryLab, api: str, agent: str) -> None:
    """Also after a compaction, where all ids are new ones here."""
    PAID.clear()
    counted = Usage(input_tokens=4_000)
    turns = iter([*(Turn("So.", calls=[paying(n), paying(n + 10)], usage=counted) for n in range(3)), Turn("done")])
    lab.model.signs_ids.add("signed")
    lab.model.script("signed", lambda _body, _nth: next(turns))
    ran = await lab.run_input({"agent": agent, "prompt": "Go.", "model": f"{api}:signed"})
    lab.model.signs_ids.clear()
    assert ran.error is None
    assert (ran.result["output"], sorted(PAID)) == ("done", [0, 1, 2, 10, 11, 12])
    assert [each.refusal for each in lab.model.requests_of("signed") if each.refusal] == []


@pytest.mark.parametrize("api", APIS)
async def test_a_model_that_refuses_the_ids_of_another_gets_legal_ones(
    monkeypatch: pytest.MonkeyPatch, api: str
) -> None:
    """A gateway gives its models' calls to each other. What is refused is learned, and recorded."""
    long = f"functions.search:0{'x' * 70}"
    answer = assistant_message("", tool_call("call_1"), data={f"ids:{api}": {"call_1": long}})
    async with Bench.open(monkeypatch) as bench:
        reply = await bench.ask_ok(api, [GO, answer, result("call_1")])
        assert (reply.text, reply.adapted, len(bench.server.refusals)) == ("ok", ["legal_ids"], 1)
        await bench.ask_ok(api, [GO, answer, result("call_1")])
        assert len(bench.server.refusals) == 1
    async with Bench.open(monkeypatch) as other:
        reply = await other.ask_ok(api, [GO, answer, result("call_1")], adapted=reply.adapted)
        assert (reply.adapted, other.server.refusals) == (["legal_ids"], [])


@pytest.mark.parametrize("api", APIS)
async def test_another_endpoint_gets_the_ids_that_calls_have_here(monkeypatch: pytest.MonkeyPatch, api: str) -> None:
    answer = assistant_message("", tool_call("call_1"), data={f"ids:{api}@gateway": {"call_1": "functions.search:0"}})
    async with Bench.open(monkeypatch) as bench:
        reply = await bench.ask_ok(api, [GO, answer, result("call_1")])
        assert (reply.adapted, bench.server.refusals) == ([], [])


def ids_in(value: Any) -> list[str]:
    if isinstance(value, list):
        return [call_id for each in value for call_id in ids_in(each)]
    if not isinstance(value, dict):
        return []
    field = FIELDS.get(str(value.get("type")), "")
    return [*([value[field]] if field in value else []), *ids_in(list(value.values()))]


WRITTEN = st.text("aé.:_|=- \ud800", min_size=1, max_size=5) | st.sampled_from(["x" * 99, "functions.pay:0", "call_1"])
ANSWERS = st.lists(st.lists(WRITTEN, min_size=1, max_size=4), min_size=1, max_size=4)


@given(ANSWERS, st.booleans(), st.sampled_from([OpenAIResponses(), Anthropic()]))
def test_each_id_goes_back_as_it_was_written_and_once(
    answers: list[list[str]], is_summarized: bool, provider: OpenAIResponses | Anthropic
) -> None:
    """One that was given twice goes back once: the other call has another id. A lone surrogate cannot be sent at all."""
    messages: list[Message] = []
    used: set[str] = set()
    for step, written in enumerate(answers):
        calls = [tool_call(call_id) for call_id in written]
        own = unique_ids(calls, used, step, f"digest{step}" if is_summarized else "")
        used |= {call.id for call in own}
        data = kept_ids("here", calls, own)
        messages.append(AssistantMessage(role="assistant", text="", tool_calls=own, provider_data=data or None))
        messages += [result(call.id) for call in own]
    items = [item for message in messages for item in provider.encode(message)]
    sent = ids_in([json.loads(item) for item in with_own_ids(items, own_ids(messages, "here"))])
    assert {*sent} >= {call_id for written in answers for call_id in written if "\ud800" not in call_id}
    assert all(sent.count(call_id) == 2 for call_id in sent)
