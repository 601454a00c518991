"""Whatever users' code returns, raises or reports is text that can be encoded before anything is done with it.

Each way in which users' code hands text to Mulligan, with generated texts, exceptions and objects, through the real workflow
and the real activities. What an activity returns, fails with or reports is encoded as for the server. No tool runs more often
than it is declared to, no call is lost, and no run fails by a text.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from pydantic import AfterValidator
from temporalio.api.failure.v1 import Failure
from temporalio.testing import ActivityEnvironment

from mulligan import Agent, Call, MulliganError, Say, Script, Tool, ToolContext, ToolError, UserMessage, tool
from mulligan.activities.heartbeat import DETAILS_BYTES, Heartbeat
from mulligan.client.converter import EncodedFailureConverter, FailureConverter, PayloadConverter
from mulligan.content import File, Text
from mulligan.errors import ToolExecutionError, error_of, from_json
from mulligan.schema.error_text import error_text
from mulligan.testing import AgentRun, ScriptedModel, run_agent
from mulligan.wire.updates import Decide
from tests.support.examples import examples
from tests.support.hostile_values import EXCEPTIONS, OBJECTS, hostile_values, texts

BYTES = 1_900_000
"""What a payload may have."""
PAYLOADS = PayloadConverter()


@dataclass
class Given:
    """A generated text, an exception and an object, and how often tools have run with them."""

    text: str
    error: BaseException
    value: Any
    effects: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, hostile: tuple[str, str, str]) -> Given:
        text, error, value = hostile
        return cls(text, EXCEPTIONS[error](text), OBJECTS[value](text))

    def act(self) -> None:
        self.effects.append("ran")


@dataclass(frozen=True)
class Case:
    """An agent that gets a hostile value in one way. `effects`: how often its tool runs."""

    agent: Agent
    effects: int = 1
    kinds: tuple[str | None, ...] = (None,)
    call: Call = field(default_factory=lambda: Call("work", {"what": "x"}))
    sub_agents: dict[str, Script] = field(default_factory=dict)


def agent(work: Tool, **options: Any) -> Agent:
    return Agent(name="worker", model="openai:m", tools=[work], **options)


def returning(value: Callable[[Given], Any], *, is_async: bool = False) -> Callable[[Given], Case]:
    def case(given: Given) -> Case:
        if is_async:

            @tool(name="work", attempts=3)
            async def work(what: str) -> Any:
                given.act()
                return value(given)
        else:

            @tool(name="work", attempts=3)
            def work(what: str) -> Any:
                given.act()
                return value(given)

        return Case(agent(work), kinds=(None, "invalid_result", "tool_exception"))

    return case


def raising(
    error: Callable[[Given], BaseException], kind: str, retry_on: tuple[type[BaseException], ...] = ()
) -> Callable[[Given], Case]:
    def case(given: Given) -> Case:
        @tool(name="work", attempts=3, retry_on=retry_on)
        def work(what: str) -> str:
            given.act()
            raise error(given)

        return Case(agent(work), effects=3 if retry_on else 1, kinds=(kind,))

    return case


def raising_later(given: Given) -> Case:
    @tool(name="work", attempts=3)
    async def work(what: str) -> str:
        given.act()
        raise given.error

    return Case(agent(work), kinds=("tool_exception",))


def reporting(given: Given) -> Case:
    @tool(name="work", attempts=3)
    def work(what: str, ctx: ToolContext) -> str:
        given.act()
        ctx.heartbeat(given.text, given.value, {given.text: given.error})
        return "done"

    return Case(agent(work))


def with_option(kinds: tuple[str | None, ...], effects: int, **options: Any) -> Callable[[Given], Case]:
    """A tool and an agent with options that are functions of the generated values and of the function's own argument."""

    def case(given: Given) -> Case:
        of_tool = {name: value for name, value in options.items() if name in ("needs_approval", "fix")}
        of_agent = {name: value for name, value in options.items() if name not in of_tool}

        def work(what: Any) -> str:
            given.act()
            return f"worked on {what!r}"

        bound_options: dict[str, Any] = {name: bound(value, given) for name, value in of_tool.items()}
        made = agent(
            tool(attempts=3, **bound_options)(work), **{name: bound(value, given) for name, value in of_agent.items()}
        )
        call = Call("work", {}) if {"fix", "repair", "handle_errors"} & options.keys() else Call("work", {"what": "x"})
        return Case(made, effects=effects, kinds=kinds, call=call)

    return case


def bound(value: Callable[[Given], Any], given: Given) -> Callable[..., Any]:
    return lambda *_: value(given)


def thrown(given: Given) -> Any:
    raise given.error


def validating(given: Given) -> Case:
    def refuse(_: str) -> str:
        raise given.error

    def work(what: str) -> str:
        given.act()
        return "done"

    work.__annotations__["what"] = Annotated[str, AfterValidator(refuse)]
    return Case(agent(tool(attempts=3)(work)), effects=0, kinds=("invalid_arguments",))


def starting(given: Given) -> Case:
    @tool(name="work", attempts=3, deferred=True, deferred_timeout=5)
    def work(what: str) -> Any:
        given.act()
        return given.text

    return Case(agent(work), kinds=("tool_timeout",))


def failing_to_start(given: Given) -> Case:
    @tool(name="work", attempts=3, deferred=True, deferred_timeout=5)
    def work(what: str) -> Any:
        given.act()
        raise given.error

    return Case(agent(work), kinds=("tool_exception",))


def instructed(given: Given) -> Case:
    @tool(name="work")
    def work(what: str) -> str:
        given.act()
        return "done"

    return Case(agent(work, instructions=lambda _: given.text[:30_000]))


def by_sub_agent(given: Given) -> Case:
    helper = Agent(name="helper", model="scripted:helper")
    boss = Agent(name="worker", model="openai:m", tools=[helper.as_tool(name="work", description="Helps.")])
    script = Script("helper", [Say(given.text[:30_000] or "nothing")])
    return Case(boss, effects=0, call=Call("work", {"prompt": "go"}), sub_agents={"helper": script})


FAILED = ("denied",)
WAYS: dict[str, Callable[[Given], Case]] = {
    "returns a text": returning(lambda given: given.text),
    "returns an object": returning(lambda given: given.value),
    "returns an object later": returning(lambda given: given.value, is_async=True),
    "returns parts": returning(lambda given: [Text(text=given.text), given.text]),
    "returns a file": returning(lambda given: File.from_bytes(b"text", "text/plain", name=given.text[:50])),
    "returns an exception": returning(lambda given: given.error),
    "raises ToolError": raising(lambda given: ToolError(given.text), "tool_error"),
    "raises ToolError of an object": raising(lambda given: ToolError(given.value), "tool_error"),
    "raises ToolError from another": raising(lambda given: chained(ToolError(given.text), given.error), "tool_error"),
    "raises": raising(lambda given: given.error, "tool_exception"),
    "raises, and is retried": raising(lambda given: given.error, "tool_exception", retry_on=(BaseException,)),
    "raises later": raising_later,
    "reports": reporting,
    "a guard's refusal": with_option(FAILED, 0, guard=lambda given: given.text or "no"),
    "a guard's object": with_option((*FAILED, None), -1, guard=lambda given: given.value),
    "a guard raises": with_option(FAILED, 0, guard=thrown),
    "needs_approval returns": with_option((*FAILED, None), -1, needs_approval=lambda given: given.value),
    "needs_approval raises": with_option(FAILED, 0, needs_approval=thrown),
    "handle_errors returns": with_option(("invalid_arguments",), 0, handle_errors=lambda given: given.text),
    "fix returns a text": with_option((None, "invalid_arguments"), -1, fix=lambda given: {"what": given.text}),
    "fix returns an object": with_option((None, "invalid_arguments"), -1, fix=lambda given: {"what": given.value}),
    "repair returns": with_option((None, "invalid_arguments"), -1, repair=lambda given: {"what": {given.text: 1}}),
    "fix raises": with_option(("invalid_arguments",), 0, fix=thrown),
    "a validator raises": validating,
    "a deferred body returns": starting,
    "a deferred body raises": failing_to_start,
    "instructions": instructed,
    "a sub-agent's output": by_sub_agent,
}


def chained(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


async def run(case: Case, *more: Say) -> AgentRun[Any]:
    model = ScriptedModel(Say(calls=[case.call]), *more)
    return await run_agent(
        case.agent, "go", model=model, sub_agents=case.sub_agents,
        person=lambda waiting: Decide(call_id=waiting.call_id, decision="approve"),
    )  # fmt: skip


def check(ran: AgentRun[Any], case: Case, given: Given) -> None:
    assert ran.error is None, ran.error
    assert ran.result is not None
    [call] = ran.calls
    assert call.result is not None
    kind = call.result.error.kind if call.result.error else None
    assert kind in case.kinds, (kind, call.result.text[:300])
    if case.effects < 0:
        assert len(given.effects) == (kind is None)
    else:
        assert len(given.effects) == case.effects
    for message in ran.messages:
        assert len(message.model_dump_json().encode()) < BYTES
    for span in ran.spans:
        json.dumps([span.name, span.attributes], ensure_ascii=False).encode()


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=examples(6), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(hostile=hostile_values())
@example(hostile=("caf\udce9", "ValueError", "an object of texts"))
@example(hostile=("caf\udce9", "SystemExit", "unreadable"))
async def test_no_text_fails_a_run_or_runs_a_tool_again(way: str, hostile: tuple[str, str, str]) -> None:
    given = Given.of(hostile)
    case = WAYS[way](given)
    check(await run(case, Say("done")), case, given)


@settings(max_examples=examples(20), deadline=None)
@given(hostile=hostile_values())
async def test_what_a_policy_raises_fails_the_run_with_a_text_that_can_be_encoded(
    hostile: tuple[str, str, str],
) -> None:
    """Contract §2: if the function raises, the run fails."""
    given = Given.of(hostile)
    ran = await run(with_option((), 0, handle_errors=thrown)(given))
    assert isinstance(ran.error, MulliganError)
    ran.error.message.encode()


@settings(max_examples=examples(50), deadline=None)
@given(hostile=hostile_values())
async def test_any_report_of_a_tool_becomes_a_heartbeat_that_the_sdk_and_the_server_take(
    hostile: tuple[str, str, str],
) -> None:
    """The SDK cancels an attempt whose heartbeat it cannot encode, and Temporal ends one whose heartbeat is too large."""
    given = Given.of(hostile)

    async def activity() -> tuple[Any, ...]:
        heartbeat = Heartbeat()
        heartbeat.send_details(given.text, given.error, given.value)
        heartbeat.send_details(given.value)
        return heartbeat.details

    details = await ActivityEnvironment().run(activity)
    payloads = PAYLOADS.to_payloads(details)
    assert sum(len(payload.data) for payload in payloads) < 2 * DETAILS_BYTES
    assert tuple(PAYLOADS.from_payloads(payloads)) == details
    for payload in payloads:
        json.loads(payload.data, parse_constant=pytest.fail)


@settings(max_examples=examples(50), deadline=None)
@given(hostile=hostile_values())
def test_any_exception_becomes_a_failure_of_its_type(hostile: tuple[str, str, str]) -> None:
    """What the SDK cannot encode loses its type and its retry policy, and a failure over 2 MB replaces both."""
    given = Given.of(hostile)
    text, error = given.text, given.error
    if error.__cause__ is not None:
        return  # a failure has all causes: call_tool, which gets exceptions of users, leaves them out
    for raised in (error, ToolExecutionError(text, detail=text, kind="tool_error", raw_arguments=text, source=error)):
        for converter in (FailureConverter(), EncodedFailureConverter()):
            failure = Failure()
            converter.to_failure(raised, PAYLOADS, failure)
            assert len(failure.SerializeToString()) < 4 * BYTES
            assert failure.application_failure_info.type
            again = converter.from_failure(failure, PAYLOADS)
            if isinstance(raised, ToolExecutionError):
                typed = error_of(again)
                assert isinstance(typed, ToolExecutionError)
                assert (typed.kind, typed.message) == ("tool_error", raised.message or "Application error")
                from_json(json.loads(json.dumps(raised.to_json()))).message.encode()


@settings(max_examples=examples(50), deadline=None)
@given(text=texts())
def test_payloads_replace_half_a_surrogate_pair_wherever_it_is(text: str) -> None:
    for value in (text, [text], {text: {text: [text]}}, UserMessage.model_construct(role="user", text=text)):
        payload = PAYLOADS.to_payload(value)
        assert json.loads(payload.data) is not None
        assert "\\ud" not in ascii(json.loads(payload.data)).replace("\\\\", "") or not text.isascii()
        payload.data.decode()


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("hangs", ["text of an exception", "text of a result"])
async def test_a_text_that_never_ends_counts_for_the_time_limit_of_the_tool(hangs: str, is_async: bool) -> None:
    """It is read where the tool runs: the worker's event loop does not wait for it."""
    let_go = threading.Event()

    class Hangs(Exception):
        def __str__(self) -> str:
            let_go.wait()
            return "late"

        __repr__ = __str__

    def act() -> Any:
        if hangs == "text of an exception":
            raise Hangs
        return {Hangs(), 1}

    @tool(name="work", timeout=0.3)
    def work(what: str) -> Any:
        return act()

    @tool(name="work", timeout=0.3)
    async def work_later(what: str) -> Any:
        return act()

    try:
        ran = await run(Case(agent(work_later if is_async else work)), Say("done"))
    finally:
        let_go.set()
    assert ran.error is None
    [call] = ran.calls
    assert call.result is not None
    assert call.result.error is not None
    assert call.result.error.kind == "tool_timeout"


def test_the_text_of_an_exception_is_read_once() -> None:
    class Counts(Exception):
        read = 0

        def __str__(self) -> str:
            Counts.read += 1
            return "text"

    error = Counts()
    assert [error_text(error), error_text(error), Counts.read] == ["text", "text", 1]
