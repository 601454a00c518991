"""The spans of attempts that were lost with their workers: the next attempt writes them all, once, and they leave at once."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from temporalio.api.enums.v1 import TimeoutType
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import ActivityEnvironment

from mulligan.activities.agent_files.agent_versions import AgentVersions
from mulligan.activities.budgets.tenant_budgets import TenantBudgets
from mulligan.activities.call_model import CallModelActivity
from mulligan.activities.heartbeat import ended_details, heartbeating, lost_attempts
from mulligan.activities.record_run import RecordRunActivities
from mulligan.activities.registry import Registry
from mulligan.activities.run_agents import RunAgents
from mulligan.activities.run_data.definitions import Definitions
from mulligan.activities.tool_running.resources import Resources
from mulligan.activities.tool_running.tool_runtime import ToolRuntime
from mulligan.agent import Agent
from mulligan.observe.span_export import DelayedSpanProcessor
from mulligan.observe.spans import ChatAttempt
from mulligan.observe.telemetry import Telemetry
from mulligan.prices import Prices
from mulligan.values import ToolCall
from mulligan.wire.model_call import ModelCall
from mulligan.wire.run_context import RunContext
from mulligan.wire.tool_call import FailedCall
from tests.support.reset_requests import ResetRequests


async def attempt(
    number: int, *heartbeat_details: Any, fails: bool = False, client: ResetRequests | None = None
) -> tuple[list[int], Sequence[Any]]:
    """The lost attempts that attempt `number` finds, and the details of its last heartbeat."""
    environment, sent = ActivityEnvironment(cast("Client", client or ResetRequests())), [heartbeat_details]
    environment.info = dataclasses.replace(environment.info, attempt=number, heartbeat_details=heartbeat_details)
    environment.on_heartbeat = lambda *details: sent.append(details)

    async def activity() -> list[int]:
        lost = list(lost_attempts())
        async with heartbeating() as heartbeat:
            heartbeat.send_details("of the user")
            if fails:
                heartbeat.send_ended()
        return lost

    return await environment.run(activity), sent[-1]


async def test_after_a_lost_attempt_any_worker_may_get_the_runs_next_task() -> None:
    """The lost worker had the run in its cache, as a rule. A server that refuses is no reason to fail the attempt."""
    asked = ResetRequests(RPCError("no", RPCStatusCode.PERMISSION_DENIED, b""))
    await attempt(1, client=asked)
    await attempt(2, ended_details(1), client=asked)
    assert asked.runs == []
    await attempt(2, client=asked)
    assert asked.runs == ["test"]


@pytest.mark.parametrize("timed_out", [None, TimeoutType.TIMEOUT_TYPE_START_TO_CLOSE])
async def test_a_worker_that_lives_keeps_its_cache(timed_out: TimeoutType.ValueType | None) -> None:
    """A supervisor fails the attempts of a dead process; an attempt that was too slow has a worker."""
    asked = ResetRequests(timed_out=timed_out)
    await attempt(2, client=asked)
    assert asked.runs == []


async def test_attempts_that_were_lost_before_they_wrote_any_span_are_all_written_by_the_next_one() -> None:
    assert (await attempt(1))[0] == []
    assert (await attempt(4))[0] == [1, 2, 3]


async def test_a_lost_attempt_is_not_written_again_once_an_attempt_has_said_so() -> None:
    lost, details = await attempt(2)
    assert lost == [1]
    lost, details = await attempt(3, *details)
    assert lost == [2]
    lost, details = await attempt(4, *details, fails=True)
    assert lost == [3]
    assert (await attempt(5, *details))[0] == []


@pytest.mark.parametrize(
    "details",
    [("mulligan.attempt_ended",), ({"mulligan.attempt_ended": "2"},), ({"mulligan.attempt_ended": 2, "own": 1},)],
)
async def test_details_of_a_tool_are_no_mark(details: tuple[Any, ...]) -> None:
    assert (await attempt(3, *details))[0] == [1, 2]


def test_the_span_of_a_lost_attempt_is_exported_at_once() -> None:
    """The attempt's heartbeat says that it is written: nobody would write it again."""
    exported = InMemorySpanExporter()
    telemetry = Telemetry(DelayedSpanProcessor(in_batches(exported), seconds=1_000), exports=False)
    where = RunContext(agent="a", trace=f"00-{'1' * 32}-{'2' * 16}-01")
    lost, own = (ChatAttempt(provider="openai", model="m", step=1, attempt=number) for number in (1, 2))
    telemetry.lost_chat(where, lost, start=1.0)
    with telemetry.chat(where, own):
        pass
    while not exported.get_finished_spans():
        time.sleep(0.01)
    assert attempts_of(exported) == [1]
    telemetry.shutdown()
    assert attempts_of(exported) == [1, 2]


def in_batches(exporter: SpanExporter) -> BatchSpanProcessor:
    """Exports the spans that it has only when `force_flush` is called."""
    return BatchSpanProcessor(exporter, schedule_delay_millis=3_600_000)


def attempts_of(exporter: InMemorySpanExporter) -> list[Any]:
    return [span.attributes["mulligan.attempt"] for span in exporter.get_finished_spans() if span.attributes]


async def test_a_model_call_that_fails_before_its_request_has_a_span() -> None:
    """Its last heartbeat says that it has ended, so the next attempt writes none for it."""
    exporter = InMemorySpanExporter()
    registry = Registry([Agent(name="a", model="scripted:s", instructions="")])
    services: Any = SimpleNamespace(  # what the activity uses before it has found the conversation
        registry=registry,
        agents=RunAgents(registry, ToolRuntime(), (), AgentVersions(registry), Resources({}, {}, {})),
        definitions=Definitions(registry),
        budgets=TenantBudgets("", Prices({}), None),
        providers=SimpleNamespace(of=lambda _: SimpleNamespace(name="scripted")),
        telemetry=Telemetry(SimpleSpanProcessor(exporter), exports=False),
    )
    where = RunContext(agent="a", trace=f"00-{'1' * 32}-{'2' * 16}-01")
    request = ModelCall.model_validate(
        {"where": where, "step": 1, "model": "scripted:s", "definition": "unknown", "uncached": 1,
         "conversation": {"count": 1, "digest": "x"}}
    )  # fmt: skip
    with pytest.raises(RuntimeError):  # the definition is queried, and this environment has no client
        await ActivityEnvironment().run(CallModelActivity(services).call_model, request)
    [span] = exporter.get_finished_spans()
    assert (span.name, span.status.status_code) == ("chat s", StatusCode.ERROR)


async def test_the_workflow_writes_the_spans_of_all_lost_attempts_if_no_attempt_follows() -> None:
    exporter = InMemorySpanExporter()
    registry = Registry([Agent(name="a", model="scripted:s", instructions="")])
    services: Any = SimpleNamespace(
        registry=registry,
        agents=RunAgents(registry, ToolRuntime(), (), AgentVersions(registry), Resources({}, {}, {})),
        tools=SimpleNamespace(find=lambda *_: None),
        cache_result=lambda *_: None,
        telemetry=Telemetry(SimpleSpanProcessor(exporter), exports=False),
        runtime=None,
    )
    lost = FailedCall(
        where=RunContext(agent="a", trace=f"00-{'1' * 32}-{'2' * 16}-01"),
        call=ToolCall(id="c", name="pay", arguments="{}"),
        kind="tool_lost", message="The tool pay was lost.", attempts=3, step=1, started=1.0, written=1,
    )  # fmt: skip
    await ActivityEnvironment().run(RecordRunActivities(services).record_failed_call, lost)
    await ActivityEnvironment().run(
        RecordRunActivities(services).record_failed_call, lost.model_copy(update={"written": None})
    )
    attempts = [(span.attributes or {})["mulligan.attempt"] for span in exporter.get_finished_spans()]
    assert attempts == [2, 3, 3]
