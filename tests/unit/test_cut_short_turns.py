"""A turn that ends early, in whatever way and with its calls in whatever state, leaves a conversation that goes on.

The model's server is as strict as the real ones, and checks each request of the turns that follow.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from temporalio import workflow

from mulligan import Agent, Call, CodeMode, DurableAgent, MulliganError, Say, Script, ToolContext, ToolError, tool
from mulligan.run_input import RunInput, check_run_input
from mulligan.testing import run_workflow
from mulligan.wire.updates import Stop
from mulligan.workflows.fork_point import fork_state
from mulligan.workflows.running_agent import RunningAgent
from mulligan.workflows.workflow_agents import WorkflowAgents
from tests.support.examples import examples
from tests.support.openai_server import Failure, Turn
from tests.support.provider_fixtures import Bench

APIS = ("openai-chat", "openai", "anthropic")
RUNS: Counter[str] = Counter()
KEYS: list[str] = []


@tool
async def quick(n: int = 0) -> str:
    """Return."""
    return f"quick {n}"


@tool
async def long(n: int = 0) -> str:
    """Return a long text."""
    return f"{n}" * 50_000


@tool
async def hang() -> str:
    """Never return."""
    await asyncio.Event().wait()
    return ""


@tool
async def look_up(n: int = 0) -> str:
    """Return, to a script."""
    return f"looked up {n}"


@tool
async def wait() -> str:
    """Never return, to a script."""
    await asyncio.Event().wait()
    return ""


@tool(once=True)
async def pay_once(ctx: ToolContext, n: int = 0) -> str:
    """Pay. In the turn that is cut short, nobody hears of it."""
    RUNS["pay_once"] += 1
    KEYS.append(ctx.idempotency_key)
    if not ctx.call_id.startswith("again"):
        await asyncio.Event().wait()
    return f"paid {n}"


@tool(once=True)
async def book_once(n: int = 0) -> str:
    """Book."""
    RUNS["book_once"] += 1
    return f"booked {n}"


@tool(needs_approval=True)
async def pay() -> str:
    """Pay."""
    return "paid"


@tool(deferred=True)
async def later() -> str:
    """Start a job."""
    return "started"


@tool(handle_errors=False)
async def fail() -> str:
    """Fail the run."""
    await asyncio.sleep(0.02)
    raise ToolError("It does not work.")


class Refund(BaseModel):
    """The output."""

    order: int


inner = Agent(name="inner", model="scripted:inner", tools=[hang])
INNER = Script(
    "inner", [lambda said: Say(calls=[Call("hang")]) if said[0].text == "go" else Say("tick"), Say("inner end")]
)
ticker = Agent(name="ticker", model="scripted:inner", tools=[look_up])
TOOLS: list[Any] = [
    look_up,
    wait,
    quick,
    long,
    hang,
    pay_once,
    book_once,
    pay,
    later,
    fail,
    inner.as_tool(description="Ask."),
]
other = Agent(name="other", model="openai-chat:m", tools=TOOLS)
CALLS: dict[str, tuple[str, str]] = {
    "quick": ("quick", '{"n": 1}'),
    "long": ("long", '{"n": 2}'),
    "repaired": ("Quick", "{'n': 3}"),
    "hang": ("hang", "{}"),
    "pay_once": ("pay_once", '{"n": 7}'),
    "book_once": ("book_once", '{"n": 7}'),
    "approval": ("pay", "{}"),
    "deferred": ("later", "{}"),
    "sub-agent": ("inner", '{"prompt": "go"}'),
    "handoff": ("transfer_to_other", "{}"),
    "script": ("run_code", json.dumps({"code": "await look_up(n=4)\nawait wait()"})),
    "invalid": ("quick", '{"n": "x"}'),
    "no JSON": ("quick", "{n"),
    "unknown": ("nobody", "{}"),
    "same id": ("quick", '{"n": 5}'),
    "fail": ("fail", "{}"),
}
ENDED = {"quick", "long", "repaired", "book_once", "handoff", "same id"}
MISTAKES = {"invalid": "invalid_arguments", "no JSON": "invalid_json", "unknown": "unknown_tool"}
NEVER_END = {"hang", "pay_once", "deferred", "sub-agent", "script", "approval"}
"""They begin, or ask a person, and do not end by themselves."""
CUTS = ("cancel", "cancel twice", "stop and cancel")
"""The turn's task is cancelled when each call is in its state."""
WAYS = (
    *CUTS,
    "at once",
    "fail",
    "fail and cancel",
    "strict",
    "max_steps",
    "cut off",
    "model refuses",
    "model cancelled",
)
"""`at once`: it is cancelled in the moment of the answer. `fail`: a tool fails it; `and cancel`: it is cancelled while it ends.
`strict`: a mistake fails it. `cut off`: the answer is, by its length. `model …`: the call of the model that follows."""


def agent_for(api: str, *, strict: bool) -> Agent:
    return Agent(
        name="own",
        model=f"{api}:m",
        tools=TOOLS,
        handoffs=[other],
        features=[CodeMode(tools=["look_up", "wait"])],
        handle_errors=not strict,
        max_steps=20,
    )


def is_ready(agent: RunningAgent, plan: list[str]) -> bool:
    """Whether each call of the first answer is in the state in which it stays."""
    if agent.open_step is None:
        return False
    open_waits = {wait.key: wait.kind for wait in agent.waits.open.values() if wait.name != "script"}
    for kind, call in zip(plan, agent.open_step.answer.message.tool_calls, strict=True):
        if kind in ENDED | MISTAKES.keys():
            is_in_place = call.id in agent.conversation.early_results
        elif kind == "deferred":
            is_in_place = open_waits.get(call.id) == "callback"
        elif kind == "script":
            is_in_place = f"{call.id}.2" in agent.open_step.started
        else:
            is_in_place = call.id in open_waits
        if not is_in_place:
            return False
    return True


def look(agent: RunningAgent) -> dict[str, Any]:
    """What queries say of the conversation. A fork of each of its steps can begin."""
    agents = WorkflowAgents.of_this_workflow()
    queries = agents.queries
    forks = [fork_state(agent, step, 0) for step in range(1, agent.conversation.next_step)]
    return {
        "messages": queries.messages(0, 1_000)["messages"],
        "steps": queries.steps(0, 1_000)["steps"],
        "events": queries.events(0, 1_000)["events"],
        "resumed": queries.resume_state(0)["messages"],
        "status": queries.progress("0")["status"],
        "pending": agents.handlers.pending(),
        "agent": agent.name,
        "waits": [wait.name for wait in agent.waits.open.values()],
        "forks": [bool(each) for each in forks],
    }


async def end_of(turn: asyncio.Task[Any]) -> str:
    try:
        return str((await turn).status)
    except asyncio.CancelledError:
        return "cancelled"
    except MulliganError as error:
        return type(error).__name__


@workflow.defn
class CutShort:
    """A turn that is cut short, and two that follow."""

    @workflow.run
    async def run(self, way: str, plan: list[str]) -> dict[str, Any]:
        durable: DurableAgent[Any] = DurableAgent("own")
        turn = asyncio.create_task(durable.run("first", max_steps=1 if way == "max_steps" else None))
        await self._cut(durable._agent, turn, way, plan)
        ends, looks = [await end_of(turn)], [look(durable._agent)]
        for prompt in ("again", "thanks"):
            ends.append(await end_of(asyncio.create_task(durable.run(prompt))))
            looks.append(look(durable._agent))
        return {"ends": ends, "looks": looks}

    async def _cut(self, agent: RunningAgent, turn: asyncio.Task[Any], way: str, plan: list[str]) -> None:
        is_due = {
            "at once": lambda: agent.open_step is not None,
            "fail and cancel": lambda: agent.waits.are_over,
            "model cancelled": lambda: agent.is_answering and bool(agent.conversation.steps),
        }.get(way, lambda: way in CUTS and is_ready(agent, plan))
        await workflow.wait_condition(lambda: turn.done() or is_due())
        if way in CUTS or way == "model cancelled":
            await DurableAgent("ticker").run("Let the tools begin.")
        if way == "stop and cancel":
            agent.inbox.request_stop(Stop(reason="enough"))
        turn.cancel()
        if way == "cancel twice":
            await asyncio.sleep(0)
            turn.cancel()


class Model:
    """The answers of the server: one for each request that it accepts."""

    def __init__(self, way: str, plan: list[str]) -> None:
        calls = [(*CALLS[kind], "c0" if kind == "same id" else f"c{n}") for n, kind in enumerate(plan)]
        first = Turn("Working.", calls=calls, finish_reason="length" if way == "cut off" else None)
        follows: dict[str, list[Turn]] = {
            "model refuses": [Turn(failure=Failure(400))],
            "model cancelled": [Turn("never", wait=asyncio.Event())],
            "cut off": [Turn("Sorry.")],
        }
        again = [(*CALLS[kind], f"again-{kind}") for kind in ("pay_once", "book_once")]
        self._turns: Iterator[Any] = iter([first, *follows.get(way, []), Turn(calls=again), Turn("fine"), Turn("fine")])

    def __call__(self, body: dict[str, Any], nth: int) -> Any:
        return next(self._turns)


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    async with Bench.open(monkeypatch) as bench:
        yield bench


def of_way(way: str, plan: list[str]) -> list[str]:
    """The plan with what the way needs."""
    if way in ("max_steps", "cut off", "model refuses", "model cancelled"):
        return [kind for kind in plan if kind not in NEVER_END] or ["quick"]
    return [*plan, {"fail": "fail", "fail and cancel": "fail", "strict": "unknown"}.get(way, "hang")]


async def check_turns(bench: Bench, api: str, way: str, plan: list[str]) -> None:
    plan = of_way(way, plan)
    bench.server.requests.clear()
    bench.server.script("m", Model(way, plan))
    RUNS.clear()
    KEYS.clear()
    own = agent_for(api, strict=way == "strict")
    said = await run_workflow(CutShort, way, plan, agents=[own, other, inner, ticker], models=[INNER])
    assert bench.server.refusals == []
    check_end(said["ends"], way)
    for seen in said["looks"]:
        check_conversation(seen)
    check_results(said["looks"][0], way, plan)
    check_repeated(said["looks"][1], way, plan)


def check_end(ends: list[str], way: str) -> None:
    first = {"fail": "ToolExecutionError", "strict": "UnknownToolError InvalidToolInputError"}
    first |= {"model refuses": "ModelRequestError", "max_steps": "max_steps", "cut off": "completed"}
    assert ends[0] in first.get(way, "cancelled").split()
    assert ends[1:] == ["completed", "completed"]


def check_conversation(seen: dict[str, Any]) -> None:
    """Each call has one result, in the order of the calls; steps and events show it once."""
    messages = seen["messages"]
    assert seen["resumed"] == messages
    check_run_input(RunInput.model_validate({"agent": "x", "messages": messages, "prompt": "Go on."}))
    answers = [message for message in messages if message["role"] == "assistant"]
    results = {message["call_id"]: message for message in messages if message["role"] == "tool"}
    calls = [call["id"] for answer in answers for call in answer["tool_calls"]]
    assert list(results) == calls == [call["id"] for step in seen["steps"] for call in step["tool_calls"]]
    for call in (
        each for step in seen["steps"] for outer in step["tool_calls"] for each in (outer, *outer.get("calls", ()))
    ):
        assert call["result"] is not None
        if call["id"] in results:
            assert call["result"]["text"] == results[call["id"]]["text"]
    settled = Counter(each["call_id"] for each in seen["events"] if each["type"] == "tool_call_settled")
    assert set(settled.values()) <= {1}
    assert settled.keys() >= set(calls)
    started, ended = ([e for e in seen["events"] if e["type"] == kind] for kind in ("run_started", "run_ended"))
    assert len(started) == len(ended)
    assert (seen["pending"], seen["waits"]) == ([], [])
    assert all(result["text"].strip() for result in results.values())


def check_results(seen: dict[str, Any], way: str, plan: list[str]) -> None:
    """What the calls of the turn that was cut short are told."""
    [step] = seen["steps"][:1]
    results = [call["result"] for call in step["tool_calls"]]
    kinds = [result["error"] and result["error"]["kind"] for result in results]
    if way in CUTS:
        told = {**dict.fromkeys(ENDED), **MISTAKES, **dict.fromkeys(NEVER_END, "tool_lost"), "approval": "denied"}
        assert kinds == [told[kind] for kind in plan]
        assert seen["agent"] == ("other" if "handoff" in plan else "own")
    if way == "at once":
        assert all(
            told in (MISTAKES.get(kind), "denied", "tool_lost", None) for told, kind in zip(kinds, plan, strict=True)
        )
    if way.startswith("fail"):
        assert (kinds[-1], "It does not work." in results[-1]["text"]) == ("tool_error", True)
    says = {"tool_lost": "may or may not have done its work", "denied": "was not run"}
    assert all(says.get(kind or "", "") in result["text"] for result, kind in zip(results, kinds, strict=True))


def check_repeated(seen: dict[str, Any], way: str, plan: list[str]) -> None:
    """`once` holds for the same calls in the next turn: one that has succeeded is not run, one that may have run has its key."""
    before = Counter(kind for kind in plan if kind in ("pay_once", "book_once"))
    if way in CUTS:
        assert RUNS["book_once"] == 1
        assert len(set(KEYS)) == 1
        assert len(KEYS) == bool(before["pay_once"]) + 1
    assert RUNS["book_once"] == 1 or way == "cut off"  # that turn has completed


PLANS = st.lists(st.sampled_from(sorted(CALLS)).filter(lambda kind: kind != "fail"), max_size=5).filter(
    lambda plan: all(plan.count(kind) < 2 for kind in ("handoff", "pay_once", "book_once", "same id"))
)


@given(api=st.sampled_from(APIS), way=st.sampled_from(WAYS), plan=PLANS)
@settings(max_examples=examples(8), deadline=None, suppress_health_check=[*HealthCheck])
async def test_the_turns_after_one_that_was_cut_short_are_accepted(api: str, way: str, plan: list[str]) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        async with Bench.open(monkeypatch) as bench:
            await check_turns(bench, api, way, plan)


@pytest.mark.parametrize("way", WAYS)
async def test_a_turn_with_calls_in_each_state_may_be_cut_short(bench: Bench, way: str) -> None:
    await check_turns(bench, "openai-chat", way, [kind for kind in CALLS if kind != "fail"])
