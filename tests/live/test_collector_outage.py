"""A run while its collector is down: it waits for nothing, and its spans arrive when the collector is back."""

from __future__ import annotations

import asyncio
import logging
import uuid

import pytest

from mulligan.devserver import DevServer
from mulligan.observe import span_export
from mulligan.observe.telemetry import Telemetry
from tests.support.otlp_receiver import OtlpReceiver
from tests.support.own_worker import BOTH_KINDS, serving
from tests.support.temporal import connect_to


@BOTH_KINDS
async def test_a_run_ends_while_the_collector_is_down_and_the_worker_exports_its_spans_at_its_end(
    temporal: DevServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """The bound of a wait is an hour here: a run that waited would not end."""
    monkeypatch.setattr(span_export, "PARENT_EXPORT_SECONDS", 3_600)
    monkeypatch.setattr("mulligan.observe.otlp.is_reachable", lambda: False)
    caplog.set_level(logging.CRITICAL, logger="opentelemetry")
    queue = f"outage-{uuid.uuid4().hex[:6]}"
    client = await connect_to(temporal)
    with OtlpReceiver() as receiver:
        receiver.refuse(503)
        for name, value in receiver.environment("grpc").items():
            monkeypatch.setenv(name, value)
        tracing = Telemetry(exports=True)
        async with serving(kind, client, ["tests.support.sub_agent_teams"], tracing, queue):
            given = {"agent": "chief", "prompt": "say hello"}
            result = await client.execute_workflow("AgentWorkflow", given, id=queue, task_queue=queue, result_type=dict)
            receiver.accept()
        await asyncio.to_thread(tracing.shutdown)
        spans = receiver.spans(trace_id=result["trace_id"])
    assert sorted(span.name for span in spans) == [
        "agent.finish", "agent.finish", "ai.toolCall", "chat chief", "chat chief", "chat researcher",
        "invoke_agent chief", "invoke_agent researcher",
    ]  # fmt: skip
