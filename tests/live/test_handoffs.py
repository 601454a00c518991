"""Handoffs on a real server: providers, continue-as-new, resume, forks, people, and spans rebuilt from history."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from mulligan import Agent, CodeMode, connect, fork_run
from mulligan.client.origins.resume_run import resume_run
from mulligan.client.read_run import size_of_chain
from mulligan.devserver import DevServer
from mulligan.worker.loading import load_agents
from mulligan.worker.wiring import running_worker
from tests.promise.test_people import pending
from tests.support.handoff_agents import desk, look_up, reception
from tests.support.lab import DONE, Lab, Ran, call
from tests.support.openai_turn import Reasoning, Turn

TO_DESK, TO_RECEPTION = call("transfer_to_desk"), call("transfer_to_reception")
REFUND, LOOK_UP = call("refund", '{"order": 7}', "r1"), call("look_up", '{"order": 7}')


@pytest.fixture(scope="module")
async def office(lab: Lab) -> AsyncIterator[Lab]:
    at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, f"office-{uuid.uuid4().hex[:6]}")
    async with running_worker(at.client, load_agents([reception, desk], []), lab.telemetry, at.task_queue):
        yield at


@pytest.fixture(scope="module")
async def chained(lab: Lab, chain_server: DevServer) -> AsyncIterator[Lab]:
    """A server on which runs continue as new after a few steps."""
    client = await connect(chain_server.address)
    at = Lab(client, lab.model, lab.otlp, lab.telemetry, f"office-{uuid.uuid4().hex[:6]}")
    async with running_worker(client, load_agents([reception, desk], []), lab.telemetry, at.task_queue):
        yield at


def agents(ran: Ran) -> list[str]:
    return [step["agent"] for step in ran.steps]


def tools_of(ran: Ran, nth: int) -> list[str]:
    return [each["function"]["name"] for each in ran.requests[nth].json["tools"]]


async def test_the_agents_models_answer_without_what_is_private_to_another_provider(lab: Lab) -> None:
    """The items of the first provider are left out of the second one's requests, as in a fallback."""
    first, second = f"first-{uuid.uuid4().hex[:6]}", f"second-{uuid.uuid4().hex[:6]}"
    back = Agent(name="back", model=f"openai-chat:{second}", instructions="You refund.", tools=[look_up])
    front = Agent(name="front", model=f"openai:{first}", instructions="You sort.", handoffs=[back])
    thinks = Turn(reasoning=[Reasoning(encrypted_content="secret")], calls=[("transfer_to_back", "{}", "t1")])
    lab.model.script(first, [thinks])
    lab.model.script(second, [DONE, LOOK_UP, DONE])  # the server counts the answers of the conversation
    queue = f"handoff-{uuid.uuid4().hex[:6]}"
    async with running_worker(lab.client, load_agents([front], []), lab.telemetry, queue):
        given = {"agent": "front", "prompt": "Refund 7."}
        ran = await lab.look(await lab.client.start_workflow("AgentWorkflow", given, id=queue, task_queue=queue))
    assert [(step["agent"], step["model"]) for step in ran.steps] == [
        ("front", f"openai:{first}"), ("back", f"openai-chat:{second}"), ("back", f"openai-chat:{second}")
    ]  # fmt: skip
    sent = lab.model.requests_of(second)
    assert not [each.refusal for each in (*sent, *lab.model.requests_of(first)) if each.refusal]
    assert [each["role"] for each in sent[0].json["messages"]] == ["system", "user", "assistant", "tool"]
    assert sent[0].json["messages"][0]["content"] == "You refund."
    assert (
        sent[0].json["messages"][3]["content"].startswith("The conversation was handed over: you are the agent `back`")
    )


async def test_an_agent_that_writes_scripts_hands_over_by_a_call_of_its_own(lab: Lab) -> None:
    """No script hands over. The agent that takes over sees its tools, the other's scripts none of them."""
    back = Agent(name="plain_back", model="openai:nobody", tools=[look_up])
    front = Agent(name="coder", model="openai:nobody", tools=[look_up], features=[CodeMode()], handoffs=[back])
    queue = f"coder-{uuid.uuid4().hex[:6]}"
    at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)
    scripts = [
        call("run_code", '{"code": "await transfer_to_plain_back()"}', "s1"),
        call("run_code", '{"code": "await look_up(7)"}', "s2"),
    ]
    async with running_worker(lab.client, load_agents([front], []), lab.telemetry, queue):
        ran = await at.run([*scripts, call("transfer_to_plain_back"), LOOK_UP, DONE], agent="coder")
    assert [tools_of(ran, nth) for nth in (0, 3)] == [["run_code", "transfer_to_plain_back"], ["look_up"]]
    assert [(each["result"]["error"] or {}).get("kind") for each in ran.calls] == ["invalid_code", None, None, None]
    assert [each["result"]["text"] for each in ran.calls][1::2] == ["order 7: 9 EUR", "order 7: 9 EUR"]
    assert agents(ran) == ["coder", "coder", "coder", "plain_back", "plain_back"]


async def test_the_first_of_two_handoffs_of_a_step_is_marked_in_the_trace(office: Lab) -> None:
    turns = [Turn(calls=[("transfer_to_desk", "{}", "t1"), ("transfer_to_desk", "{}", "t2")]), DONE]
    ran = await office.run(turns, agent="reception")
    handed = [each.attributes for each in ran.spans if each.attributes.get("mulligan.handed_over_to")]
    assert [(each["gen_ai.tool.call.id"], each["mulligan.handed_over_to"]) for each in handed] == [("t1", "desk")]
    kinds = [(each["result"]["error"] or {}).get("kind") for each in ran.calls]
    assert kinds == [None, "denied"]


async def test_a_person_decides_while_the_conversation_changes_hands(office: Lab) -> None:
    """The call of the former agent waits; the new one has the conversation only when all calls have ended."""
    both = Turn(calls=[("transfer_to_desk", "{}", "t1"), ("refund", '{"order": 7}', "r1")])
    handle = await office.start([both, DONE], agent="reception")
    await pending(handle)
    while (await handle.query("progress"))["status"] != "waiting":  # the other call may still run
        await asyncio.sleep(0.02)
    await handle.execute_update("decide", {"call_id": "r1", "decision": "approve"})
    ran = await office.look(handle)
    assert [each["result"]["text"] for each in ran.calls][1] == "order 7 is refunded"
    assert (agents(ran), tools_of(ran, 1)) == (["reception", "desk"], ["refund", "transfer_to_reception"])
    told = [each["function"]["description"] for each in ran.requests[0].json["tools"]]
    assert told[-1].endswith("in a step. It refunds.")


async def test_continue_as_new_keeps_the_agent_its_facts_and_the_number_of_handoffs(chained: Lab) -> None:
    """Both agents' facts are carried: a fork of an early step of the last run has the agent of that step."""
    turns = [TO_DESK, TO_RECEPTION, *[call("look_up", f'{{"order": {n}}}') for n in range(12)]]
    turns += [TO_DESK if n % 2 == 0 else TO_RECEPTION for n in range(9)]
    ran = await chained.run([*turns, DONE], agent="reception")
    assert (await size_of_chain(chained.client, ran.id)).runs > 2
    names = ["reception", "desk", *["reception"] * 12]
    names += ["reception" if n % 2 == 0 else "desk" for n in range(8)]
    assert agents(ran) == [*names, "reception", "reception"]
    kinds = [(each["result"]["error"] or {}).get("kind") for each in ran.calls]
    assert kinds == [None] * (len(turns) - 1) + ["denied"]
    assert tools_of(ran, 1) == ["refund", "transfer_to_reception"]
    forked = await chained.look(await fork_run(chained.client, ran.id, at=2, max_steps=2))
    assert agents(forked)[1] == "desk"


async def test_a_run_that_is_resumed_goes_on_with_the_agent_that_has_the_conversation(office: Lab) -> None:
    ran = await office.run([TO_DESK, DONE, DONE], agent="reception", max_steps=1)
    assert (ran.result["status"], agents(ran)) == ("max_steps", ["reception"])
    resumed = await office.look(await resume_run(office.client, ran.id, max_steps=3))
    assert agents(resumed)[-1] == "desk"
    assert office.model.requests_of(ran.id)[-1].json["messages"][0]["content"] == "You refund."


@pytest.mark.parametrize("how", [{}, {"tools": "recorded"}], ids=["live", "recorded"])
async def test_a_fork_has_the_agent_of_its_step_and_hands_over_again(office: Lab, how: dict[str, Any]) -> None:
    """Also with recorded tools: the recorded result of the call would hand nothing over."""
    ran = await office.run([LOOK_UP, TO_DESK, TO_RECEPTION, DONE], agent="reception")
    names = ["reception", "reception", "desk", "reception"]
    assert agents(ran) == names
    for step in (2, 3, 4):
        before = len(office.model.requests_of(ran.id))
        forked = await office.look(await fork_run(office.client, ran.id, at=step, **how))
        assert agents(forked) == names
        sent = office.model.requests_of(ran.id)[before:]
        for part in ("messages", "tools"):
            assert sent[0].json[part] == ran.requests[step - 1].json[part]
        assert [each.json["messages"][0]["content"] for each in sent] == [
            "You refund." if name == "desk" else "You sort." for name in names[step - 1 :]
        ]
