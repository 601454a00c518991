"""What a worker process and its supervisor send to each other, and the tokens that are made for the server."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from typing import Any, cast

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, SpanKind, Status, StatusCode
from opentelemetry.util.types import Attributes
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent, WorkflowTaskStartedEventAttributes
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.client import Client

from mulligan.activities.run_data import query_workflow
from mulligan.client.settings import settings
from mulligan.observe.forwarded_spans import ForwardedSpans, span_from_json, span_to_json
from mulligan.supervisor import supervisor
from mulligan.supervisor.worker_process import WorkerProcess
from mulligan.supervisor.workflow_tasks import Run, TokenFormat, started_task
from mulligan.worker.sdk_workarounds.workaround_runner import _report
from mulligan.worker.supervisor_link import MAX_FRAME_BYTES, Frames, Kind, SupervisorLink, frame

SENT = [(Kind.STARTED, 7, b'{"token": "x"}'), (Kind.FINISHED, 7, b""), (Kind.SPAN, 2**40, b"y" * 70_000)]


@pytest.mark.parametrize("size", [1, 13, 65_536, 10**6])
def test_messages_arrive_whole_however_they_are_cut(size: int) -> None:
    data, frames = b"".join(frame(*each) for each in SENT), Frames()
    received = [each for at in range(0, len(data), size) for each in frames.add(data[at : at + size])]
    assert received == SENT


async def test_all_that_a_dead_process_has_sent_is_read_although_it_is_sent_an_acknowledgement() -> None:
    """A failed write ends the connection. What was not read by then has the spans of the process's last moments."""
    spans: list[dict[str, Any]] = []
    process = WorkerProcess(1, lambda _process, _attempt, body: spans.append(body), lambda *_: None)
    ours, theirs = socket.socketpair()
    with theirs:
        await process.connect(ours)
        theirs.sendall(frame(Kind.HELLO, body=b'{"identity": "1@here"}'))
        while not process.identity:
            await asyncio.sleep(0)
        # The next messages are read some milliseconds later.
        started = b'{"token": "", "workflow": "w", "run": "r", "activity": "1", "attempt": 1}'
        theirs.sendall(frame(Kind.STARTED, 1, started) + frame(Kind.SPAN, 1, b'{"number": 1}') * 3_000)
    process.acknowledge(1)
    await process._disconnected.wait()
    assert len(spans) == 3_000
    assert [each.number for each in process.in_flight()] == [1]


async def test_the_living_processes_are_told_of_a_death_after_it_was_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """They send queries again that the dead process may have had. Earlier, the server would send these to it again."""
    order: list[str] = []

    class Report:
        def __init__(self, *_: Any) -> None:
            pass

        async def report(self) -> dict[int, bool]:
            order.append("reported")
            return {}

        async def look_again(self) -> None:
            order.append("looked again")

        async def aclose(self) -> None:
            pass

    class Process(WorkerProcess):
        def send_process_died(self) -> None:
            order.append(f"process {self.index} told")
            super().send_process_died()

    monkeypatch.setattr(supervisor, "LostWorkReport", Report)
    supervising = supervisor._Supervisor(2, settings())
    supervising._client = cast("Client", object())
    dead, living = (Process(index, lambda *_: None, lambda *_: None) for index in (1, 2))
    supervising._processes = {1: dead, 2: living}
    dead.ended.set()
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    await living.connect(ours)
    link = SupervisorLink(theirs, is_first=False)
    open_query = asyncio.Event()
    monkeypatch.setattr(query_workflow, "_open", {open_query})
    link.open()
    await supervising._report(dead, -9)
    async with asyncio.timeout(60):
        await open_query.wait()
    assert order == ["reported", "process 2 told", "looked again"]
    link.close()
    living.close()


def test_a_run_is_reported_again_when_another_process_has_continued_it() -> None:
    """The supervisor must know which process has handled its last workflow task, if that one dies. A query is no task."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        link = SupervisorLink(theirs, is_first=False)
        query, task, replay = (
            WorkflowActivation(run_id="run", is_replaying=is_replaying) for is_replaying in (False, False, True)
        )
        query.jobs.add().query_workflow.SetInParent()
        for each in (task, replay):
            each.jobs.add().resolve_activity.SetInParent()
        removal = WorkflowActivation(run_id="another")
        removal.jobs.add().remove_from_cache.SetInParent()

        def report(act: WorkflowActivation) -> Any:
            _report(act, "workflow", link.send_run)
            try:
                [(_, _, body)] = Frames().add(ours.recv(65_536))
            except BlockingIOError:
                return None
            return json.loads(body)["task"]

        assert [report(each) for each in (replay, query, task, task, query, task)] == [
            False,
            None,
            True,
            None,
            None,
            None,
        ]
        assert [report(each) for each in (removal, replay, query, task, task)] == [None, None, None, True, None]


def test_a_message_that_is_too_large_is_refused_before_it_is_kept() -> None:
    header = frame(Kind.SPAN, 1, b"")[4:]
    with pytest.raises(ValueError, match="bytes"):
        list(Frames().add((MAX_FRAME_BYTES + 1).to_bytes(4) + header))


@pytest.fixture
def spans() -> Iterator[list[ReadableSpan]]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("mulligan", "1")
    with tracer.start_as_current_span("parent") as parent:
        link = Link(parent.get_span_context(), {"why": "before"})
        attributes: Attributes = {"text": "ä", "number": 1, "share": 0.5, "flag": True, "names": ["a", "b"]}
        child = tracer.start_span("child", kind=SpanKind.CLIENT, links=[link], attributes=attributes)
        child.record_exception(ValueError("no"))
        child.set_status(Status(StatusCode.ERROR, "it failed"))
        child.end()
    yield list(exporter.get_finished_spans())
    provider.shutdown()


def test_a_span_is_the_same_after_it_was_sent(spans: list[ReadableSpan]) -> None:
    for span in spans:
        received = span_from_json(span_to_json(span), Resource({}))
        assert {**vars(received), "_resource": None}.keys() == {**vars(span), "_resource": None}.keys()
        assert span_to_json(received) == span_to_json(span)


def test_spans_that_the_supervisor_has_not_exported_are_exported_when_it_dies(
    spans: list[ReadableSpan], monkeypatch: pytest.MonkeyPatch
) -> None:
    exported: list[ReadableSpan] = []

    class Processor:
        def on_end(self, span: ReadableSpan) -> None:
            exported.append(span)

    monkeypatch.setattr("mulligan.observe.forwarded_spans.otlp_processor", Processor)
    sent: list[int] = []
    forwarded = ForwardedSpans(lambda number, _: sent.append(number))
    for span in spans:
        forwarded.on_end(span)
    forwarded.acknowledge(sent[0])
    forwarded.export_here()
    assert exported == [spans[1]]
    forwarded.on_end(spans[0])
    assert exported == [spans[1], spans[0]]
    assert len(sent) == 2


def test_a_token_is_made_only_in_the_format_that_the_server_uses() -> None:
    data = b"\x0a\x02ns\x12\x02wf\x1a\x03run \x05(\x01"
    assert TokenFormat.of(data, Run("wf", "run")) == TokenFormat("ns")
    assert TokenFormat.of(data, Run("another", "run")) is None
    assert TokenFormat.of(b"\xff\xff", Run("wf", "run")) is None
    assert TokenFormat.of(b"", Run("", "")) is None


def test_the_task_in_flight_is_the_last_event_or_follows_it() -> None:
    attributes = WorkflowTaskStartedEventAttributes(scheduled_event_id=8, identity="1@host")
    started = HistoryEvent(
        event_id=9,
        version=3,
        event_type=EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED,
        workflow_task_started_event_attributes=attributes,
    )
    first = started_task([started], 1)
    assert first is not None
    assert (first.scheduled_event_id, first.started_event_id, first.identity) == (8, 9, "1@host")
    later = started_task([HistoryEvent(event_id=12, event_type=EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED)], 2)
    assert later is not None
    assert (later.scheduled_event_id, later.started_event_id, later.attempt, later.identity) == (13, 14, 2, "")
    assert started_task([], 1) is None
