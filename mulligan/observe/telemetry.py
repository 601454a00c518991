"""Every span of a run.

None is made in workflow code (a replay would make it again). Ids are derived from the run and the call, so that each span
knows its parent's without being told, and what is recorded again is the same span.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from importlib.metadata import version
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from mulligan.observe import otlp, semconv
from mulligan.observe.metrics import UNKNOWN_TOOL, Metrics
from mulligan.observe.span_export import DelayedSpanProcessor, exporting
from mulligan.observe.tool_call_span import ToolCallSpan, cut, fail, nanoseconds
from mulligan.observe.trace_ids import (
    STEPS_IN_A_GROUP,
    DerivedIds,
    chosen,
    context_of,
    context_of_caller,
    derive,
    group,
    links_to,
    parent_of_step,
    resumption,
    trace_id_of_run,
)
from mulligan.run_input import ResumedFrom
from mulligan.values import Decision, ToolCall, Usage
from mulligan.wire.run_context import RunContext
from mulligan.wire.run_end import FinishRun

_SHORT = 1e-3
"""Seconds. Jaeger warns of spans that last no time at all."""


class Telemetry:
    """The spans of this process, and its metrics. Without an OTLP endpoint (or a processor of one's own) it does nothing."""

    def __init__(
        self,
        *processors: SpanProcessor,
        content: bool | None = None,
        exports: bool | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self.content = otlp.captures_content() if content is None else content
        self.metrics = Metrics(exports=exports) if metrics is None else metrics
        self._provider: TracerProvider | None = None
        self._exporting: DelayedSpanProcessor | None = None
        exports = otlp.is_configured() if exports is None else exports
        if exports or processors:
            ids = DerivedIds()
            self._provider = TracerProvider(resource=otlp.resource(), id_generator=ids, shutdown_on_exit=False)
            for processor in processors:
                self._provider.add_span_processor(processor)
            if exports:
                self._exporting = exporting()
                self._provider.add_span_processor(self._exporting)
        source = self._provider or trace.NoOpTracerProvider()
        self._tracer = source.get_tracer("mulligan", version("mulligan"))

    async def parents_sent(self) -> None:
        """Wait, for a second at most, until what was opened is exported: then no child is ever without its parent."""
        if self._exporting is not None:
            await self._exporting.parents_sent()

    def flush(self) -> None:
        """Export what is finished, now."""
        self.metrics.flush()
        if self._provider is not None:
            self._provider.force_flush()

    def shutdown(self) -> None:
        """Export what is left, spans first, and stop."""
        if self._provider is not None:
            self._provider.shutdown()
        self.metrics.shutdown()

    def open_run(
        self, *, workflow_id: str, run_id: str, first_run_id: str, conversation: str, turn: int, agent: str,
        parent: str | None, metadata: Mapping[str, str], at: float, call_id: str | None = None,
        resumed_from: ResumedFrom | None = None,
    ) -> str:  # fmt: skip
        """Export the run's `invoke_agent` span, at once and short; returns the traceparent that all others hang on.

        `at`: seconds since the epoch, the same on each attempt. Then an attempt whose worker was killed after the export
        is followed by the very same span, and Jaeger shows it once. `call_id`: of the call that it is the run of.
        """
        context = context_of_caller(parent)
        outer = trace.get_current_span(context).get_span_context()
        trace_id = outer.trace_id if outer.is_valid else int(trace_id_of_run(workflow_id, first_run_id), 16)
        span_id = derive(64, "run", workflow_id, first_run_id, conversation, turn)
        with chosen(span_id, trace_id):
            span = self._tracer.start_span(
                f"{semconv.INVOKE_AGENT} {agent}", context, SpanKind.INTERNAL,
                links=links_to(resumed_from), start_time=nanoseconds(at),
            )  # fmt: skip
        span.set_attributes(
            {
                semconv.OPERATION_NAME: semconv.INVOKE_AGENT,
                semconv.AGENT_NAME: agent,
                semconv.CONVERSATION_ID: workflow_id,
                semconv.WORKFLOW_ID: workflow_id,
                semconv.RUN_ID: run_id,
                **({semconv.TOOL_CALL_ID: call_id} if call_id else {}),
                **resumption(resumed_from),
                **{f"{semconv.METADATA}{key}": value for key, value in metadata.items()},
            }
        )
        span.end(nanoseconds(at + _SHORT))
        flags = 1 if span.get_span_context().trace_flags.sampled or not span.get_span_context().is_valid else 0
        return f"00-{trace_id:032x}-{span_id:016x}-{flags:02x}"

    def finish_run(self, finished: FinishRun, workflow_type: str) -> None:
        """Export `agent.finish`: what the run came to."""
        self.metrics.run(finished.steps, agent=finished.where.agent, status=finished.status, cost=finished.cost)
        span = self._start(semconv.AGENT_FINISH, finished.where.trace, SpanKind.INTERNAL, "finish", finished.turn)
        span.set_attributes(
            {
                semconv.WORKFLOW_TYPE: workflow_type,
                semconv.STATUS: finished.status,
                semconv.STEPS: finished.steps,
                semconv.RECOVERED_FAILURES: finished.recovered_failures,
                **_usage(finished.usage),
                **({} if finished.cost is None else {semconv.COST: finished.cost}),
            }
        )
        if finished.error_type:
            span.set_attribute(semconv.ERROR_TYPE, finished.error_type)
            span.set_status(Status(StatusCode.ERROR, finished.error_type))
        span.end()

    def open_group(self, where: RunContext, step: int, at: float) -> None:
        """Export the span of the hundred steps that begin with `step`, if one begins there. `at`: as for `open_run`."""
        if step <= STEPS_IN_A_GROUP or step % STEPS_IN_A_GROUP != 1:
            return
        span = self._start(semconv.AGENT_STEPS, where.trace, SpanKind.INTERNAL, *group(step), start=at)
        span.set_attributes({semconv.STEP: step, semconv.LAST_STEP: step + STEPS_IN_A_GROUP - 1})
        span.end(nanoseconds(at + _SHORT))

    @contextmanager
    def chat(
        self, where: RunContext, *, provider: str, model: str, step: int, attempt: int, mends: str = "", compacts: int = 0,
        fallback: int = 0, is_void: Callable[[], bool] = lambda: False,
    ) -> Iterator[Span]:  # fmt: skip
        """The span of one attempt of a model call; what it raises is recorded and goes on.

        `mends`: the call that it mends. `compacts`: how many messages it sums up. `fallback`: how many models were asked
        in vain before. `is_void`, asked at its end: whether another attempt tells of this one; then its span is never
        exported.
        """
        span = self._start_chat(
            where, provider=provider, model=model, step=step, attempt=attempt, mends=mends, compacts=compacts,
            fallback=fallback,
        )  # fmt: skip
        began, failed = time.monotonic(), None
        try:
            with trace.use_span(span, end_on_exit=False, record_exception=False, set_status_on_exception=False):
                yield span
        except BaseException as error:
            failed = getattr(error, "kind", type(error).__name__)
            fail(span, failed, str(error), failed)
            raise
        finally:
            if not is_void():
                span.end()
            self.metrics.model_call(time.monotonic() - began, provider=provider, model=model, error=failed)

    def lost_chat(self, where: RunContext, *, start: float, **about: Any) -> None:
        """The span of an attempt whose worker died, or stopped answering, before it could write its own; as `chat`."""
        span = self._start_chat(where, **about, start=start)
        fail(span, "WorkerLost", "Its worker died, or stopped answering.", "WorkerLost")
        span.end()

    def answered(
        self, span: Span, *, provider: str, requested: str, response_id: str, model: str, finish_reason: str, usage: Usage
    ) -> None:  # fmt: skip
        """Put what the provider said about its answer on the `chat` span, and count its tokens."""
        self.metrics.tokens(usage, provider=provider, model=requested)
        span.set_attributes(
            {
                semconv.FINISH_REASONS: [finish_reason],
                **({semconv.RESPONSE_ID: response_id} if response_id else {}),
                **({semconv.RESPONSE_MODEL: model} if model else {}),
                **_usage(usage),
            }
        )

    def put_content(self, span: Span, attribute: str, value: Any) -> None:
        """Put content on a span, if that was asked for."""
        if self.content and span.is_recording():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            span.set_attribute(attribute, cut(text))

    def tool_call(
        self, where: RunContext, call: ToolCall, *, step: int, attempt: int,
        repaired_by: Sequence[str] = (), arguments: Any = None, start: float | None = None, is_known: bool = True,
        mcp_server: str | None = None,
    ) -> ToolCallSpan:  # fmt: skip
        """Start the span of one attempt of a tool call. `start`: seconds since the epoch, now where None.

        `is_known`: whether there is a tool, or an output, of that name; a name that a model made up is not counted by.
        """
        key = ("tool", call.id, step, attempt)
        span = self._start(semconv.TOOL_CALL, parent_of_step(where.trace, step), SpanKind.INTERNAL, *key, start=start)
        span.set_attributes(
            {
                semconv.AI_NAME: cut(call.name),
                semconv.AI_ID: call.id,
                semconv.OPERATION_NAME: semconv.EXECUTE_TOOL,
                semconv.TOOL_NAME: cut(call.name),
                semconv.TOOL_CALL_ID: call.id,
                semconv.TOOL_TYPE: "function",
                semconv.STEP: step,
                semconv.ATTEMPT: attempt,
                semconv.RECOVERED: False,
                semconv.REPAIRS: list(repaired_by),
                **({semconv.MCP_METHOD: semconv.TOOLS_CALL, semconv.MCP_SERVER: mcp_server} if mcp_server else {}),
            }
        )
        for attribute in (semconv.AI_ARGS, semconv.TOOL_ARGUMENTS):
            self.put_content(span, attribute, call.arguments if arguments is None else arguments)
        counted_as = call.name if is_known else UNKNOWN_TOOL
        return ToolCallSpan(self, span, where.agent, counted_as, time.time() if start is None else start)

    def asked(self, where: RunContext, call: ToolCall, *, step: int, kind: str, at: float) -> None:
        """Export `agent.request`: a call waits for a person, from now on. How long that took, its decision says."""
        span = self._start_about(semconv.AGENT_REQUEST, where, call, step, at)
        span.set_attribute(semconv.DECISION_KIND, kind)
        span.end(nanoseconds(at + _SHORT))

    def decided(self, where: RunContext, call: ToolCall, *, step: int, decision: Decision) -> None:
        """Export `agent.decision`: what became of that."""
        at = datetime.fromisoformat(decision.at).timestamp()
        span = self._start_about(semconv.AGENT_DECISION, where, call, step, at)
        span.set_attribute(semconv.DECISION_KIND, decision.kind)
        self.put_decision(span, decision)
        span.end(nanoseconds(at + _SHORT))

    def put_decision(self, span: Span, decision: Decision) -> None:
        """Who decided on a call, when and what; the reason is content."""
        span.set_attributes({semconv.DECISION: decision.decision, semconv.DECIDED_AT: decision.at})
        if decision.by:
            span.set_attribute(semconv.DECIDED_BY, decision.by)
        if decision.edited:
            span.set_attribute(semconv.EDITED, True)
        if decision.reason:
            self.put_content(span, semconv.DECISION_REASON, decision.reason)

    def _start_about(self, name: str, where: RunContext, call: ToolCall, step: int, at: float) -> Span:
        """A short span about a call, beside the call's own."""
        parent = parent_of_step(where.trace, step)
        span = self._start(name, parent, SpanKind.INTERNAL, name, call.id, step, start=at)
        span.set_attributes({semconv.TOOL_NAME: cut(call.name), semconv.TOOL_CALL_ID: call.id, semconv.STEP: step})
        return span

    def _start_chat(
        self, where: RunContext, *, provider: str, model: str, step: int, attempt: int, mends: str = "", compacts: int = 0,
        fallback: int = 0, start: float | None = None,
    ) -> Span:  # fmt: skip
        what: dict[str, str | int] = {semconv.MENDS: mends} if mends else {}
        what |= {semconv.COMPACTION: compacts} if compacts else {semconv.FALLBACK: fallback} if fallback else {}
        # A compaction comes before the step whose call opens the hundred: its parent must be there already.
        parent = where.trace if compacts else parent_of_step(where.trace, step)
        key = ("chat", step, attempt, *what, *what.values())
        span = self._start(f"{semconv.CHAT} {model}", parent, SpanKind.CLIENT, *key, start=start)
        about = {semconv.OPERATION_NAME: semconv.CHAT, semconv.PROVIDER_NAME: provider, semconv.REQUEST_MODEL: model}
        span.set_attributes({**about, **what, semconv.STEP: step, semconv.ATTEMPT: attempt})
        return span

    def _start(self, span_name: str, parent: str, kind: SpanKind, *key: object, start: float | None = None) -> Span:
        if self._provider is None:
            return trace.get_current_span(context_of(parent))  # spans of users' own providers join the run's trace
        begin = None if start is None else nanoseconds(start)
        with chosen(derive(64, parent, *key)):
            return self._tracer.start_span(span_name, context_of(parent), kind, start_time=begin)


def _usage(usage: Usage) -> dict[str, int]:
    return {
        semconv.INPUT_TOKENS: usage.input_tokens,
        semconv.OUTPUT_TOKENS: usage.output_tokens,
        semconv.CACHED_INPUT_TOKENS: usage.cached_input_tokens,
        semconv.REASONING_TOKENS: usage.reasoning_tokens,
    }
