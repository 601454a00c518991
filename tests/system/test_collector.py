"""deploy/collector.yaml in a real collector: which traces are sent on to Jaeger, and which are dropped by sampling.

The program is Jaeger, which is a build of the same Collector (contrib 0.140) with the same tail sampling.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NonRecordingSpan, SpanContext, Status, StatusCode, TraceFlags, set_span_in_context

from mulligan.devserver import DevServer
from mulligan.devserver._process import process_group
from mulligan.observe import semconv
from tests.support.otlp_receiver import OtlpReceiver
from tests.support.ports import free_ports
from tests.support.temporal import connect_to, environment_of

ROOT = Path(__file__).parent.parent.parent
CONFIG = ROOT / "deploy/collector.yaml"
COMPLETED = {semconv.WORKFLOW_TYPE: "AgentWorkflow", semconv.STATUS: "completed"}
PORTS = ("OTLP_GRPC_PORT", "OTLP_HTTP_PORT", "HEALTH_PORT", "METRICS_PORT", "OWN_METRICS_PORT")


@dataclass
class Collector:
    """A running collector, and a receiver of what it sends on."""

    ports: dict[str, str]
    jaeger: OtlpReceiver

    def __post_init__(self) -> None:
        self.endpoint = f"http://127.0.0.1:{self.ports['OTLP_GRPC_PORT']}"
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.exporter = OTLPSpanExporter(endpoint=self.endpoint)
        self.unsent = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self.unsent))

    def send(
        self,
        trace: int,
        name: str,
        attributes: dict[str, str] | None = None,
        *,
        error: bool = False,
        child: bool = True,
    ) -> None:
        """End a span, for the next export. `child`: it has a parent that was or will be sent, or in a caller's trace."""
        ids = self.provider.id_generator
        parent = SpanContext(trace, secrets.randbits(64), is_remote=True, trace_flags=TraceFlags(1))
        if child:
            span = self.provider.get_tracer("t").start_span(name, set_span_in_context(NonRecordingSpan(parent)))
        else:
            ids.generate_trace_id = lambda: trace  # type: ignore[method-assign]
            span = self.provider.get_tracer("t").start_span(name)
        span.set_attributes(attributes or {})
        if error:
            span.set_status(Status(StatusCode.ERROR))
        span.end()

    def begin(self, trace: int, *, child: bool = False) -> None:
        self.send(trace, "invoke_agent a", {semconv.OPERATION_NAME: semconv.INVOKE_AGENT}, child=child)

    def finish(self, trace: int, other_than_completed: dict[str, str] | None = None) -> None:
        self.send(trace, semconv.AGENT_FINISH, COMPLETED | (other_than_completed or {}))

    async def export(self) -> None:
        """Export all ended spans in one request, so that even on a slow machine no sampling decision falls between them."""
        spans = self.unsent.get_finished_spans()
        self.unsent.clear()
        assert await asyncio.to_thread(self.exporter.export, spans) is SpanExportResult.SUCCESS

    async def decided(self) -> None:
        """Wait until the sampling of everything sent before is decided: until a span that is always kept has arrived."""
        await self.export()
        last = secrets.randbits(128)
        self.send(last, "last", error=True)
        await self.export()
        await self.jaeger.spans_arrived(1, trace_id=f"{last:032x}")

    def kept(self, trace: int) -> list[str]:
        return [span.name for span in self.jaeger.spans(trace_id=f"{trace:032x}")]


@asynccontextmanager
async def collector(program: Path, percent: float, wait: str = "1s") -> AsyncIterator[Collector]:
    """A collector with `deploy/collector.yaml` on free ports, which sends to a receiver."""
    ports = dict(zip(PORTS, map(str, free_ports(len(PORTS))), strict=True))
    with OtlpReceiver() as jaeger:
        settings = {
            **ports, "JAEGER_OTLP": jaeger.endpoint_grpc.removeprefix("http://"), "BATCH_TIMEOUT": "100ms",
            "TRACES_KEPT_PERCENT": str(percent), "TRACE_DECISION_WAIT": wait,
        }  # fmt: skip
        async with process_group(program, "--config", CONFIG, env=settings) as process:
            assert process.stdout
            reading = asyncio.create_task(process.stdout.read())
            async with httpx2.AsyncClient() as client:
                while not await _is_healthy(client, ports["HEALTH_PORT"]):
                    assert process.returncode is None, (await reading).decode()
                    await asyncio.sleep(0.1)
            yield Collector(ports, jaeger)
            process.kill()
            await reading


async def _is_healthy(client: httpx2.AsyncClient, port: str) -> bool:
    try:
        return (await client.get(f"http://127.0.0.1:{port}/status")).is_success
    except httpx2.TransportError:
        return False


@pytest.fixture(scope="module")
async def strict(jaeger_program: Path) -> AsyncIterator[Collector]:
    """A collector that keeps 0 % of the traces without errors: what arrives was kept for a reason."""
    async with collector(jaeger_program, percent=0) as running:
        yield running


CASES = ["clean", "recovered", "open", "not_completed", "user_workflow", "resumed", "in_a_callers_trace", "not_ours"]
ENDS_AS = {"not_completed": {semconv.STATUS: "max_steps"}, "user_workflow": {semconv.WORKFLOW_TYPE: "TwoTurns"}}


async def test_only_complete_traces_of_runs_without_errors_are_sampled(strict: Collector) -> None:
    trace = {case: secrets.randbits(128) for case in CASES}
    for case in CASES:
        if case == "not_ours":
            strict.send(trace[case], "GET /", child=False)
            continue
        if case != "resumed":
            strict.begin(trace[case], child=case == "in_a_callers_trace")
        strict.send(trace[case], semconv.TOOL_CALL, error=case == "recovered")
        if case != "open":
            strict.finish(trace[case], ENDS_AS.get(case))
    await strict.decided()
    assert {case for case in CASES if strict.kept(trace[case])} == set(CASES) - {"clean"}
    assert sorted(strict.kept(trace["recovered"])) == [semconv.AGENT_FINISH, semconv.TOOL_CALL, "invoke_agent a"]


async def test_an_error_long_after_the_sampling_decision_keeps_the_whole_trace(strict: Collector) -> None:
    trace = secrets.randbits(128)
    strict.begin(trace)
    strict.send(trace, "chat m")
    await strict.decided()
    strict.send(trace, semconv.TOOL_CALL, error=True)
    strict.finish(trace)
    await strict.export()
    await strict.jaeger.spans_arrived(4, trace_id=f"{trace:032x}")
    assert sorted(strict.kept(trace)) == [semconv.AGENT_FINISH, semconv.TOOL_CALL, "chat m", "invoke_agent a"]


async def test_an_error_after_its_trace_was_dropped_is_kept(strict: Collector) -> None:
    """It should not happen, as a run exports all its spans before its end. The spans before the error are lost by then."""
    trace = secrets.randbits(128)
    strict.begin(trace)
    strict.finish(trace)
    await strict.decided()
    assert strict.kept(trace) == []
    # The collector forgets the ids of dropped traces when the next trace arrives.
    other = secrets.randbits(128)
    strict.begin(other)
    strict.finish(other)
    await strict.decided()
    strict.send(trace, semconv.TOOL_CALL, error=True)
    await strict.decided()
    assert strict.kept(trace) == [semconv.TOOL_CALL]


async def test_the_share_of_runs_without_errors_that_is_kept_is_one_number(jaeger_program: Path) -> None:
    """Sampling is by the trace id: for 400 traces at 25 %, five standard deviations are 43."""
    async with collector(jaeger_program, percent=25) as running:
        traces = [secrets.randbits(128) for _ in range(400)]
        for trace in traces:
            running.begin(trace)
            running.finish(trace)
        await running.decided()
        assert 57 <= sum(bool(running.kept(trace)) for trace in traces) <= 143


async def test_the_collector_samples_and_scrapes_what_real_workers_send(
    jaeger_program: Path, temporal: DevServer
) -> None:
    """The run of the example has no errors, that of the demo has some. Each worker has its own metrics."""
    # Root spans are exported at once, all others half a second later: the decision must not fall in between, even on
    # a slow machine.
    async with collector(jaeger_program, percent=0, wait="6s") as strict:
        await _runs_are_told_apart(strict, temporal)


async def _runs_are_told_apart(strict: Collector, temporal: DevServer) -> None:
    queue = f"collector-{uuid.uuid4().hex[:6]}"
    environment = {
        **os.environ, **environment_of(temporal), "OTEL_EXPORTER_OTLP_ENDPOINT": strict.endpoint,
        "OTEL_METRIC_EXPORT_INTERVAL": "500", "PYTHONPATH": str(ROOT / "deploy/example"),
    }  # fmt: skip
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "worker.py", "--load", "stock", "--with-shipped", "--task-queue", queue,
        env=environment, cwd=ROOT, stdin=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        client = await connect_to(temporal)
        ran = {}
        for agent in ("stock", "demo"):
            given = {"agent": agent, "prompt": "Go."}
            ran[agent] = await client.execute_workflow(
                "AgentWorkflow", given, id=f"{queue}-{agent}", task_queue=queue, result_type=dict
            )
            assert ran[agent]["status"] == "completed"
        scraped = [
            await _metrics_line(strict, begins) for begins in ("mulligan_run_steps_count{", "temporal_num_pollers{")
        ]
    finally:
        worker.terminate()
        assert await worker.wait() == 0
    await strict.decided()
    assert not strict.kept(int(ran["stock"]["trace_id"], 16))
    assert semconv.AGENT_FINISH in strict.kept(int(ran["demo"]["trace_id"], 16))
    for line in scraped:
        assert 'job="mulligan-worker"' in line
        assert 'instance="' in line


async def _metrics_line(running: Collector, beginning: str) -> str:
    """The line of /metrics with this beginning, as soon as it is there."""
    async with httpx2.AsyncClient() as client:
        while True:
            text = (await client.get(f"http://127.0.0.1:{running.ports['METRICS_PORT']}/metrics")).text
            if found := [line for line in text.splitlines() if line.startswith(beginning)]:
                return found[0]
            await asyncio.sleep(0.2)
