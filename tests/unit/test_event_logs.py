"""The logs that the doors are tested with are those that the engine stores: they cannot say what no run says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import BaseModel

from mulligan import Agent, Call, Guardrails, Message, Say, ToolContext, ToolError, tool
from mulligan.testing import AgentRun, ScriptedModel, run_agent
from mulligan.tools import ask_person
from mulligan.wire.event_types import Event
from mulligan.wire.updates import Answer, Decide, Pending
from tests.support.event_logs import ASK, FIND_7, FIND_8, HELPER, LOGS, RECEIPT, REFUND, TRANSFER

GIVEN = {"at", "token", "offset", "usage", "model", "max_steps"}
"""Fields that say how a run was made, and not what happened in it."""


class Receipt(BaseModel):
    order: int
    paid: bool


@tool
def find(order: int) -> str:
    """Find an order."""
    if order == 0:
        raise ToolError("There is no order 0.")
    return f"order {order}"


@tool(needs_approval=True)
def refund(order: int) -> str:
    """Refund an order."""
    return f"refunded {order}"


def no_homework(messages: list[Message], ctx: ToolContext) -> str | None:
    return "this is homework"


def made(*calls: dict[str, str], text: str = "") -> Say:
    return Say(text, calls=[Call(each["name"], each["arguments"], id=each["id"]) for each in calls])


def given(call_id: str, name: str, arguments: str) -> dict[str, str]:
    return {"id": call_id, "name": name, "arguments": arguments}


def shop(**options: Any) -> Agent[Any]:
    return Agent(name="shop", model="openai:a", **{"tools": [find, refund, ask_person], **options})


def reply(**fields: Any) -> Any:
    """A person who decides approvals, and answers questions."""

    def person(call: Pending) -> Decide | Answer:
        if call.kind == "question":
            return Answer(call_id=call.call_id, text="Both.")
        return Decide(call_id=call.call_id, **{"decision": "approve", **fields})

    return person


teller = Agent(name="teller", model="openai:b", instructions="You count.", tools=[find])
helper = Agent(name="helper", model="openai:b", instructions="You look.", tools=[find])
RUNS: dict[str, tuple[Sequence[Any], dict[str, Any]]] = {
    "plain_answer": (["Hello there."], {}),
    "two_calls_side_by_side": ([made(FIND_7, FIND_8, text="I look."), "Both are there."], {}),
    "invalid_input_is_recovered": (
        [
            made(given("c1", "find", '{"order": "7",}'), given("c2", "find", '{"order": "x"}')),
            made(given("c3", "find", '{"order": 8}')),
            "Done.",
        ],
        {},
    ),
    "unknown_tool_and_a_tool_that_fails": (
        [made(given("c1", "fnd", "{}"), given("c2", "find", '{"order": 0}')), "Sorry."],
        {},
    ),
    "approval_is_given": ([made(REFUND), "Done."], {"person": reply(by="ada")}),
    "approval_is_denied": ([made(REFUND), "Done."], {"person": reply(decision="deny", reason="Too much.")}),
    "approval_is_given_with_other_arguments": ([made(REFUND), "Done."], {"person": reply(arguments={"order": 8})}),
    "question_is_answered": ([made(ASK), "Done."], {"person": reply()}),
    "approval_and_question_of_one_step": (
        [made(REFUND, ASK, given("c3", "find", '{"order": 8}')), "Done."],
        {"person": reply()},
    ),
    "handoff": (
        [made(TRANSFER, text="I find somebody."), "It is 9 EUR."],
        {"agent": shop(handoffs=[teller])},
    ),
    "sub_agent": (
        [made(HELPER), "Done."],
        {
            "agent": shop(tools=[helper.as_tool(description="It looks.")]),
            "sub_agents": {"helper": ScriptedModel(made(FIND_7), "Found.", name="below")},
        },
    ),
    "out_of_steps": ([made(FIND_7, text="I look.")], {"agent": shop(max_steps=1)}),
    "cut_off_answer": ([Say("Half of it", finish_reason="length")], {}),
    "refused_by_a_guardrail": ([], {"agent": shop(features=[Guardrails(input=[no_homework])])}),
    "empty_answer_that_is_rejected": (["", "Done."], {}),
    "structured_output": (["It is paid.", made(RECEIPT)], {"agent": shop(output=Receipt)}),
}


async def run_of(name: str) -> AgentRun[Any]:
    turns, options = RUNS[name]
    options = {"agent": shop(), **options}
    return await run_agent(options.pop("agent"), "Go.", model=ScriptedModel(*turns), **options)


def said(events: Sequence[Event]) -> tuple[list[Any], dict[str, list[Any]]]:
    """What stored events say: in their order, and those of each call in theirs, as calls run at the same time."""
    others: list[Any] = []
    calls: dict[str, list[Any]] = {}
    for event in events:
        if hasattr(event, "offset"):
            fields = _said(event.model_dump(mode="json", exclude_defaults=True, exclude=GIVEN))
            (calls.setdefault(event.call_id, []) if hasattr(event, "call_id") else others).append((event.type, fields))
    return others, calls


def _said(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields, with the kinds of errors for their words; and of results and runs what doors tell of them."""
    result, error, run = fields.get("result"), fields.get("error"), fields.get("run")
    if result and result.get("error"):
        fields["result"] = result["error"]["kind"]
    elif result and "status" in result:
        fields["result"] = [result["status"], result.get("output"), result.get("steps"), result.get("tool_calls")]
    if error:
        fields["error"] = error["kind"]
    if run:
        fields["run"] = [run["agent"], run["status"], run["steps"]]
    return fields


@pytest.mark.parametrize("name", RUNS)
async def test_the_log_is_what_the_engine_stores_of_such_a_run(name: str) -> None:
    assert said(LOGS[name]().events) == said((await run_of(name)).events)
